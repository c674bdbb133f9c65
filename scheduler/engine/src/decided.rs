//! The plan of a cycle, with a fast way to find one pending group.

use std::sync::OnceLock;

use aliquot_scheduler_core::{GroupId, Pending, Plan};

/// A plan with an index of the pending groups.
#[derive(Debug, Default)]
pub(crate) struct Decided {
    plan: Plan,
    /// For each slot of a group in the books: one more than the group's position among the pending groups; 0: it is not
    /// pending. Made when the first reader asks, so that showing one job does not go through all pending groups.
    places: OnceLock<Vec<usize>>,
}

impl Decided {
    pub(crate) fn new(plan: Plan) -> Self {
        Self { plan, places: OnceLock::new() }
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What the cycle says of a group; `None`: no claim of the group is pending.
    pub(crate) fn pending(&self, group: GroupId) -> Option<&Pending> {
        let places = self.places.get_or_init(|| places(&self.plan.pending));
        let place = places.get(group.index())?.checked_sub(1)?;
        // Another group may have this slot by now.
        self.plan.pending.get(place).filter(|pending| pending.group == group)
    }
}

fn places(pending: &[Pending]) -> Vec<usize> {
    let slots = pending.iter().map(|pending| pending.group.index() + 1).max().unwrap_or(0);
    let mut places = vec![0; slots];
    for (place, pending) in pending.iter().enumerate() {
        places[pending.group.index()] = place + 1;
    }
    places
}

#[cfg(test)]
mod tests {
    use aliquot_scheduler_core::placement::BestFit;
    use aliquot_scheduler_core::{Claim, Cluster, Event, Outcome, Scheduler, Settings};

    use super::*;

    #[test]
    fn a_group_that_waits_is_found_and_no_other() {
        let (mut cluster, mut scheduler) = (Cluster::new(), Scheduler::new(Box::new(BestFit), Settings::default()));
        for _ in 0..5 {
            assert!(cluster.apply(Event::ClaimAdded(Claim::default())).is_ok());
        }
        let first = cluster.claims().map(|(id, ..)| id).min().expect("there are five");
        let gone = cluster.group_of(first).expect("a claim is in a group");
        assert!(matches!(cluster.apply(Event::ClaimRemoved(first)), Ok(Outcome::Claims { .. })));
        // The nodes that they need do not exist, so all groups are pending.
        let plan = scheduler.cycle(&mut cluster);
        assert_eq!(plan.pending.len(), 4);
        let decided = Decided::new(plan.clone());
        for pending in &plan.pending {
            assert_eq!(decided.pending(pending.group), Some(pending));
        }
        assert_eq!(decided.pending(gone), None);
        // A group that came after the cycle, in a slot that was used before, or beyond all others.
        for _ in 0..2 {
            assert!(cluster.apply(Event::ClaimAdded(Claim::default())).is_ok());
        }
        let newest = cluster.claims().map(|(id, ..)| id).max().and_then(|id| cluster.group_of(id));
        assert_eq!(decided.pending(newest.expect("a claim is in a group")), None);
        assert_eq!(Decided::default().pending(gone), None);
    }
}
