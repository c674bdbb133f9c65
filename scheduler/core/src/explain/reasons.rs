//! The reasons of all pending groups.

use crate::decisions::plan::{Pending, Plan};
use crate::explain::reason::Reason;
use crate::state::cluster::Cluster;

/// The reason of each of a plan's pending groups. Thousands of equal claims of a queue wait for the same reason, so it
/// is found and kept only once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reasons {
    distinct: Vec<Reason>,
    /// For each entry of [`Plan::pending`], the index of its reason in `distinct`.
    numbers: Vec<usize>,
}

impl Reasons {
    /// The different reasons, in the order in which they were found. Two of them can be equal if they are about
    /// different queues or requests.
    #[must_use]
    pub fn distinct(&self) -> &[Reason] {
        &self.distinct
    }

    /// For each entry of [`Plan::pending`], the index of its reason in [`Reasons::distinct`].
    #[must_use]
    pub fn numbers(&self) -> &[usize] {
        &self.numbers
    }

    /// The reason of an entry of [`Plan::pending`].
    #[must_use]
    pub fn of(&self, turn: usize) -> Option<&Reason> {
        self.numbers.get(turn).and_then(|number| self.distinct.get(*number))
    }
}

impl Plan {
    /// The reason of each entry of [`Plan::pending`], as [`Pending::reason`] gives it. Groups that are alike are looked
    /// at only once. `cluster` is as the cycle left it.
    #[must_use]
    pub fn reasons(&self, cluster: &Cluster) -> Reasons {
        let mut reasons = Reasons { distinct: Vec::new(), numbers: Vec::with_capacity(self.pending.len()) };
        // For each number of alike groups, the group that was last looked at.
        let mut known: Vec<Option<(&Pending, usize)>> = Vec::new();
        for pending in &self.pending {
            let new = reasons.distinct.len();
            let same = pending.alike.and_then(|alike| *known.get(alike)?);
            let same = same.filter(|(last, _)| (last.obstacle, last.refusal) == (pending.obstacle, pending.refusal));
            let number = same.map_or(new, |(_, number)| number);
            if number == new {
                reasons.distinct.push(pending.reason(cluster));
                if let Some(alike) = pending.alike {
                    known.resize(known.len().max(alike + 1), None);
                    known[alike] = Some((pending, number));
                }
            }
            reasons.numbers.push(number);
        }
        reasons
    }
}
