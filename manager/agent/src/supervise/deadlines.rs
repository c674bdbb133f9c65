//! When a job is to be asked to end, and when it is killed.

use crate::instance::Reason;
use crate::lease::Lease;

/// The step that is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Terminate(Reason),
    Kill(Reason),
}

/// The deadlines of a job, by the clock of [`boot_ms`](crate::clock::boot_ms).
pub(super) struct Deadlines {
    time_limit_ms: u64,
    grace_ms: u64,
    /// When the time limit is over; `None` if there is none, or the command has not started yet.
    limit_ms: Option<u64>,
    /// When the grace is over; `None` if the job was not asked to end yet.
    grace_until_ms: Option<u64>,
}

impl Deadlines {
    pub(super) fn new(time_limit_ms: u64, grace_ms: u64) -> Deadlines {
        Deadlines { time_limit_ms, grace_ms, limit_ms: None, grace_until_ms: None }
    }

    /// Notes that the command runs.
    pub(super) fn started(&mut self, now_ms: u64) {
        self.limit_ms = (self.time_limit_ms > 0).then(|| now_ms.saturating_add(self.time_limit_ms));
    }

    /// Notes that the job is asked to end. Returns whether this is the first time.
    pub(super) fn terminated(&mut self, now_ms: u64) -> bool {
        let is_first = self.grace_until_ms.is_none();
        self.grace_until_ms.get_or_insert(now_ms.saturating_add(self.grace_ms));
        is_first
    }

    /// The step that is due now.
    pub(super) fn step(&self, now_ms: u64, lease: Lease) -> Option<Step> {
        let is_over = |at_ms: Option<u64>| at_ms.is_some_and(|at_ms| at_ms <= now_ms);
        if lease.kill_ms() <= now_ms {
            return Some(Step::Kill(Reason::Lease));
        }
        if self.grace_until_ms.is_some() {
            // The reason was noted when the job was asked to end.
            return is_over(self.grace_until_ms).then_some(Step::Kill(Reason::Stopped));
        }
        if lease.terminate_ms(self.grace_ms) <= now_ms {
            return Some(Step::Terminate(Reason::Lease));
        }
        is_over(self.limit_ms).then_some(Step::Terminate(Reason::TimeLimit))
    }

    /// When to check again.
    pub(super) fn next_ms(&self, lease: Lease) -> u64 {
        let of_lease = match self.grace_until_ms {
            Some(_) => lease.kill_ms(),
            None => lease.terminate_ms(self.grace_ms),
        };
        let own = if self.grace_until_ms.is_some() { self.grace_until_ms } else { self.limit_ms };
        own.map_or(of_lease, |own| own.min(of_lease))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Lease = Lease { end_ms: 100_000, length_ms: 30_000 };

    #[test]
    fn a_job_without_limits_ends_with_the_lease() {
        let mut deadlines = Deadlines::new(0, 5_000);
        deadlines.started(10);
        assert_eq!(deadlines.next_ms(LEASE), 92_000);
        assert_eq!(deadlines.step(91_999, LEASE), None);
        assert_eq!(deadlines.step(92_000, LEASE), Some(Step::Terminate(Reason::Lease)));
        let longer = Lease { end_ms: 110_000, ..LEASE };
        assert_eq!(deadlines.step(92_000, longer), None);
        assert!(deadlines.terminated(92_000));
        assert!(!deadlines.terminated(92_001));
        assert_eq!(deadlines.next_ms(LEASE), 97_000);
        assert_eq!(deadlines.step(97_000, LEASE), Some(Step::Kill(Reason::Lease)));
    }

    #[test]
    fn grace_never_outlasts_the_lease() {
        let mut deadlines = Deadlines::new(0, 60_000);
        assert!(deadlines.terminated(80_000));
        assert_eq!(deadlines.next_ms(LEASE), 97_000);
        assert_eq!(deadlines.step(97_000, LEASE), Some(Step::Kill(Reason::Lease)));
    }

    #[test]
    fn a_time_limit_counts_from_the_start() {
        let mut deadlines = Deadlines::new(1_000, 500);
        assert_eq!(deadlines.step(50_000, LEASE), None);
        deadlines.started(50_000);
        assert_eq!(deadlines.next_ms(LEASE), 51_000);
        assert_eq!(deadlines.step(51_000, LEASE), Some(Step::Terminate(Reason::TimeLimit)));
        deadlines.terminated(51_000);
        assert_eq!(deadlines.step(51_499, LEASE), None);
        assert_eq!(deadlines.step(51_500, LEASE), Some(Step::Kill(Reason::Stopped)));
    }
}
