//! Decides when an observation is believed. Pure: the caller passes in the time.
//!
//! A look at a process that is just attaching, or has just died, can show anything. So an observation becomes a finding
//! only if every look over some time shows it for the same process, and at least two looks do. One look that does not
//! show it clears the process.

use std::collections::BTreeMap;
use std::time::SystemTime;

use crate::audit::finding::Subject;

/// The suspicions of the last look, and since when each has been seen.
#[derive(Debug, Default)]
pub(super) struct Suspicions {
    suspects: BTreeMap<Subject, Suspect>,
}

#[derive(Clone, Copy, Debug)]
struct Suspect {
    first_ns: u64,
    since: SystemTime,
    is_confirmed: bool,
}

/// A suspicion that is believed now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Confirmed {
    pub(super) subject: Subject,
    /// When it was first seen.
    pub(super) since: SystemTime,
    /// The previous look did not confirm it yet.
    pub(super) is_new: bool,
}

impl Suspicions {
    /// Records everything that the look at `now_ns` (wall-clock time `now`) has shown. Returns the suspicions that are
    /// confirmed.
    pub(super) fn look(&mut self, now_ns: u64, now: SystemTime, seen: Vec<Subject>) -> Vec<Confirmed> {
        let mut before = std::mem::take(&mut self.suspects);
        let mut confirmed = Vec::new();
        for subject in seen {
            let fresh = Suspect { first_ns: now_ns, since: now, is_confirmed: false };
            let mut suspect = before.remove(&subject).unwrap_or(fresh);
            if now_ns.saturating_sub(suspect.first_ns) >= subject.kind.patience_ns() {
                let (since, is_new) = (suspect.since, !suspect.is_confirmed);
                confirmed.push(Confirmed { subject: subject.clone(), since, is_new });
                suspect.is_confirmed = true;
            }
            self.suspects.insert(subject, suspect);
        }
        confirmed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribution::ProcessId;
    use crate::audit::finding::Kind;
    use crate::inventory::DeviceUuid;

    const SECOND_NS: u64 = 1_000_000_000;

    fn subject(kind: Kind, pid: u32, start_time: u64) -> Subject {
        Subject { kind, process: ProcessId { pid, start_time }, device: DeviceUuid::new("GPU-0") }
    }

    fn pids(confirmed: &[Confirmed]) -> Vec<(u32, bool)> {
        confirmed.iter().map(|confirmed| (confirmed.subject.process.pid, confirmed.is_new)).collect()
    }

    #[test]
    fn one_observation_is_not_enough_and_one_absence_clears() {
        let mut suspicions = Suspicions::default();
        let mut look = |at_ns, seen: &[Subject]| pids(&suspicions.look(at_ns, SystemTime::UNIX_EPOCH, seen.to_vec()));
        let (one, other) = (subject(Kind::Unregistered, 1, 7), subject(Kind::Unregistered, 2, 7));
        assert_eq!(look(0, &[one.clone(), other.clone()]), []);
        // Too early, however often it is seen.
        assert_eq!(look(SECOND_NS / 2, &[one.clone(), other.clone()]), []);
        assert_eq!(look(SECOND_NS, std::slice::from_ref(&one)), [(1, true)]);
        assert_eq!(look(2 * SECOND_NS, &[one.clone(), other.clone()]), [(1, false)]);
        // It was cleared by the look at 1 s, so its time starts again.
        assert_eq!(look(5 * SECOND_NS / 2, &[one.clone(), other.clone()]), [(1, false)]);
        assert_eq!(look(3 * SECOND_NS, &[one, other]), [(1, false), (2, true)]);
    }

    #[test]
    fn a_reused_pid_or_another_kind_of_finding_starts_anew() {
        let mut suspicions = Suspicions::default();
        let mut look = |at_ns, seen| pids(&suspicions.look(at_ns, SystemTime::UNIX_EPOCH, vec![seen]));
        assert_eq!(look(0, subject(Kind::Unregistered, 1, 7)), []);
        assert_eq!(look(SECOND_NS, subject(Kind::Unregistered, 1, 8)), []);
        assert_eq!(look(2 * SECOND_NS, subject(Kind::ForeignDevice, 1, 8)), []);
        assert_eq!(look(3 * SECOND_NS, subject(Kind::ForeignDevice, 1, 8)), [(1, true)]);
    }

    #[test]
    fn time_without_a_lease_needs_longer_observation() {
        let mut suspicions = Suspicions::default();
        let mut look =
            |at_ns| pids(&suspicions.look(at_ns, SystemTime::UNIX_EPOCH, vec![subject(Kind::TimeWithoutLease, 1, 7)]));
        assert_eq!((look(0), look(4 * SECOND_NS), look(5 * SECOND_NS)), (vec![], vec![], vec![(1, true)]));
    }
}
