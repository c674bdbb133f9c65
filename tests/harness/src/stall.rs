//! Measures how long the machine itself stood still, to tell a wrong share from a machine busy with other work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How long a witness thread sleeps each time.
const NAP: Duration = Duration::from_millis(1);
/// A wake-up that is late by no more than this is normal.
const TOLERATED: Duration = Duration::from_micros(500);

/// One thread on each processor that repeatedly sleeps for 1 ms. If it wakes late, no other thread of its priority
/// could have run there in time either: the processor was taken away, or other programs held it.
pub struct Witness {
    seen: Arc<Seen>,
    threads: Vec<JoinHandle<()>>,
}

struct Seen {
    start: Instant,
    stopped: AtomicBool,
    lost: Mutex<Lost>,
}

/// The time since the witness's start in which at least one processor was late. Overlapping times count once.
#[derive(Default)]
struct Lost {
    until: Duration,
    total: Duration,
}

impl Witness {
    /// Starts to watch every processor that this process may use.
    #[must_use]
    pub fn start() -> Witness {
        let seen = Arc::new(Seen {
            start: Instant::now(),
            stopped: AtomicBool::new(false),
            lost: Mutex::new(Lost::default()),
        });
        let allowed = sched_getaffinity(None).expect("a process can ask for its processors");
        let processors = (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor));
        let threads = processors
            .map(|processor| {
                let seen = Arc::clone(&seen);
                thread::spawn(move || watch(processor, &seen))
            })
            .collect();
        Witness { seen, threads }
    }

    /// The time since the start, in nanoseconds, in which at least one processor kept its witness thread waiting. A
    /// stall counts once it is over.
    #[must_use]
    pub fn lost_ns(&self) -> u64 {
        self.seen.lost().total.as_nanos() as u64
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.seen.stopped.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // If the thread panicked, the panic has been printed already.
            let _ = thread.join();
        }
    }
}

impl Seen {
    fn lost(&self) -> MutexGuard<'_, Lost> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lost {
    /// Adds the part of this time that has not been counted yet.
    fn add(&mut self, from: Duration, to: Duration) {
        self.total += to.saturating_sub(from.max(self.until));
        self.until = self.until.max(to);
    }
}

fn watch(processor: usize, seen: &Seen) {
    let mut only = CpuSet::new();
    only.set(processor);
    // If this process may no longer use the processor, it does not count.
    if sched_setaffinity(None, &only).is_err() {
        return;
    }
    while !seen.stopped.load(Ordering::Relaxed) {
        let due = seen.start.elapsed() + NAP;
        thread::sleep(NAP);
        let now = seen.start.elapsed();
        if now > due + TOLERATED {
            seen.lost().add(due, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn time_lost_by_two_processors_at_once_counts_once() {
        let mut lost = Lost::default();
        lost.add(MS(10), MS(20));
        lost.add(MS(5), MS(15));
        lost.add(MS(18), MS(30));
        lost.add(MS(40), MS(41));
        assert_eq!(lost.total, MS(21));
    }

    #[test]
    fn a_witness_can_be_asked_and_ends() {
        let witness = Witness::start();
        let first = witness.lost_ns();
        thread::sleep(NAP * 5);
        assert!(witness.lost_ns() >= first);
    }
}
