//! A lock in shared memory that names its owner, so that it can be taken over from a dead owner.
//!
//! The protected data must be consistent at every instruction, because the process that takes the lock over cannot
//! repair it.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

/// Set while a thread may be sleeping on the lock.
const WAITED_FOR: u32 = 1 << 31;
/// How often a waiter checks whether the owner is alive.
const OWNER_CHECK: Duration = Duration::from_millis(1);
const SPINS: u32 = 100;

/// The lock word: 0 when free, otherwise its owner's token.
#[repr(transparent)]
pub(crate) struct OwnedLock(AtomicU32);

/// A process that takes locks, and can check whether another owner is alive.
pub(crate) trait Owner {
    /// This process's token: not 0, bit 31 clear, unique among live owners.
    fn token(&self) -> u32;
    /// Whether the process with that token may still be holding locks.
    fn is_alive(&self, token: u32) -> bool;
}

/// Releases the lock when dropped.
pub(crate) struct Held<'a>(&'a OwnedLock);

impl OwnedLock {
    /// Waits for the lock.
    #[inline]
    pub(crate) fn lock(&self, owner: &impl Owner) -> Held<'_> {
        if self.0.compare_exchange(0, owner.token(), Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_slow(owner);
        }
        Held(self)
    }

    #[cold]
    fn lock_slow(&self, owner: &impl Owner) {
        let mut spins = 0;
        // After this thread has slept, it cannot know whether other threads sleep too, so it takes the lock as waited
        // for.
        let mut taken_as = owner.token();
        loop {
            let seen = self.0.load(Ordering::Relaxed);
            if seen == 0 {
                if self.0.compare_exchange(0, taken_as, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return;
                }
                continue;
            }
            if spins < SPINS {
                spins += 1;
                core::hint::spin_loop();
                continue;
            }
            taken_as = owner.token() | WAITED_FOR;
            let marked = seen | WAITED_FOR;
            if seen != marked && self.0.compare_exchange(seen, marked, Ordering::Relaxed, Ordering::Relaxed).is_err() {
                continue;
            }
            if !futex_wait(&self.0, marked, OWNER_CHECK) && !owner.is_alive(marked & !WAITED_FOR) {
                // The token contains the record's generation, so this cannot match a later owner of the same record.
                if self.0.compare_exchange(marked, taken_as, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return;
                }
            }
        }
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.0.swap(0, Ordering::Release) & WAITED_FOR != 0 {
            futex_wake(&self.0.0, 1);
        }
    }
}

/// Sleeps while `word` is `seen`, at most for `timeout`. Returns false if the time ran out.
pub(crate) fn futex_wait(word: &AtomicU32, seen: u32, timeout: Duration) -> bool {
    let timeout = crate::clock::timespec(timeout.as_nanos() as u64);
    // SAFETY: `word` is a live, aligned word and `timeout` a valid timespec for the length of the call.
    let result = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const timeout) };
    result == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ETIMEDOUT)
}

/// Wakes at most `count` sleepers.
pub(crate) fn futex_wake(word: &AtomicU32, count: i32) {
    // SAFETY: `word` is live and aligned; waking accesses no memory.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, count) };
}
