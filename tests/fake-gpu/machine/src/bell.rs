//! Waiting within a process, by the kernel's clock.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::timespec;

/// A condition variable. The standard library's reckons when a wait ends by the C library's clock, which libraries that
/// fake the time interpose: it would wait for years.
#[derive(Debug, Default)]
pub struct Bell(AtomicU32);

impl Bell {
    /// One for which nobody waits.
    #[must_use]
    pub const fn new() -> Bell {
        Bell(AtomicU32::new(0))
    }

    /// Lets go of `lock`, which is `held`, until the bell rings or `timeout` is over; without one for as long as it takes.
    /// It may also end for no reason.
    pub fn wait<'a, T>(
        &self,
        lock: &'a Mutex<T>,
        held: MutexGuard<'a, T>,
        timeout: Option<Duration>,
    ) -> MutexGuard<'a, T> {
        let seen = self.0.load(Ordering::Relaxed);
        drop(held);
        let timeout = timeout.map(|timeout| timespec(timeout.as_nanos() as u64));
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: a live, aligned word; the time is a valid timespec for the length of the call, or there is none.
        unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), wait, seen, timeout) };
        lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes one who waits.
    pub fn ring_one(&self) {
        self.ring(1);
    }

    /// Wakes all who wait.
    pub fn ring_all(&self) {
        self.ring(i32::MAX);
    }

    fn ring(&self, count: i32) {
        self.0.fetch_add(1, Ordering::Relaxed);
        let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: a live, aligned word; waking touches no memory.
        unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), wake, count) };
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_wait_ends_when_it_rings_or_time_is_over() {
        let (bell, lock) = (Bell::new(), Mutex::new(0));
        drop(bell.wait(&lock, lock.lock().unwrap(), Some(Duration::from_millis(1))));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut count = lock.lock().unwrap();
                    while *count < 100 {
                        count = bell.wait(&lock, count, None);
                    }
                });
            }
            for _ in 0..100 {
                *lock.lock().unwrap() += 1;
                bell.ring_all();
            }
        });
    }
}
