//! A condition variable that uses the kernel's clock.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::timespec;

/// A condition variable. The standard library's computes the end of a wait with the C library's clock. A library that
/// fakes the time interposes that clock, and a wait could then last for years.
#[derive(Debug, Default)]
pub struct Bell(AtomicU32);

impl Bell {
    /// A bell without waiting threads.
    #[must_use]
    pub const fn new() -> Bell {
        Bell(AtomicU32::new(0))
    }

    /// Releases `lock`, which is `held`, and waits until the bell rings or `timeout` is over (`None`: no timeout). Then
    /// takes the lock again. Spurious wake-ups are possible.
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
        // SAFETY: the word is live and aligned; the timeout is null, or a timespec that is valid during the call.
        unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), wait, seen, timeout) };
        lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes one waiting thread.
    pub fn ring_one(&self) {
        self.ring(1);
    }

    /// Wakes all waiting threads.
    pub fn ring_all(&self) {
        self.ring(i32::MAX);
    }

    fn ring(&self, count: i32) {
        self.0.fetch_add(1, Ordering::Relaxed);
        let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word is live and aligned; waking accesses no memory.
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
