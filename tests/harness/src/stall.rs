//! How long the machine itself stood still: what tells a wrong share from a machine that was busy with something else.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How long a witness sleeps.
const NAP: Duration = Duration::from_millis(1);
/// Being woken late by less than this is how machines are.
const TOLERATED: Duration = Duration::from_micros(500);

/// A thread on each processor that does nothing but sleep for a millisecond, again and again. Where it comes late,
/// nobody else of its priority came in time either: the processor was taken away, or held by other programs.
pub struct Witness {
    seen: Arc<Seen>,
    threads: Vec<JoinHandle<()>>,
}

struct Seen {
    start: Instant,
    stopped: AtomicBool,
    lost: Mutex<Lost>,
}

/// The time, from the witness's start, in which some processor was late. Where several were, it counts once.
#[derive(Default)]
struct Lost {
    until: Duration,
    total: Duration,
}

impl Witness {
    /// Begins to watch every processor that this process may use.
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

    /// How long the machine has stood still since the start, in nanoseconds: the time in which at least one processor
    /// kept its witness waiting. A stall counts when it is over.
    #[must_use]
    pub fn lost_ns(&self) -> u64 {
        self.seen.lost().total.as_nanos() as u64
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.seen.stopped.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic of it has been printed already.
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
    /// Adds what of this time was not counted yet.
    fn add(&mut self, from: Duration, to: Duration) {
        self.total += to.saturating_sub(from.max(self.until));
        self.until = self.until.max(to);
    }
}

fn watch(processor: usize, seen: &Seen) {
    let mut only = CpuSet::new();
    only.set(processor);
    // A processor that is taken away from this process meanwhile is none of its machine.
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
    fn what_two_processors_lose_at_once_counts_once() {
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
