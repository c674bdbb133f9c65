//! Why everything waits that does.

use std::collections::BTreeMap;

use crate::class::ClassId;
use crate::cluster::Cluster;
use crate::explain::reason::Reason;
use crate::plan::{Obstacle, Pending, Plan};
use crate::queue::QueueId;

/// Why each of a plan's groups waits. Thousands of equal claims of a queue wait for the same reason, which is found and
/// kept once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reasons {
    distinct: Vec<Reason>,
    /// For each entry of [`Plan::pending`], the number of its reason.
    numbers: Vec<usize>,
}

impl Reasons {
    /// The different reasons, in the order in which they came up. Two can be equal, if they are about different queues
    /// or requests.
    #[must_use]
    pub fn distinct(&self) -> &[Reason] {
        &self.distinct
    }

    /// For each entry of [`Plan::pending`], the number of its reason among the different ones.
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
    /// Why each of [`Plan::pending`] waits: as [`Pending::reason`], but what is alike is looked at once. `cluster` is as
    /// the cycle left it.
    #[must_use]
    pub fn reasons(&self, cluster: &Cluster) -> Reasons {
        let mut reasons = Reasons { distinct: Vec::new(), numbers: Vec::with_capacity(self.pending.len()) };
        // Of what is alike, the last one that was looked at.
        let mut known: BTreeMap<(QueueId, ClassId), (&Pending, usize)> = BTreeMap::new();
        for pending in &self.pending {
            let key = alike(cluster, pending);
            let same = key
                .and_then(|key| known.get(&key))
                .filter(|(last, _)| (last.obstacle, last.refusal) == (pending.obstacle, pending.refusal));
            let number = same.map_or(reasons.distinct.len(), |(_, number)| *number);
            if number == reasons.distinct.len() {
                reasons.distinct.push(pending.reason(cluster));
                if let Some(key) = key {
                    known.insert(key, (pending, number));
                }
            }
            reasons.numbers.push(number);
        }
        reasons
    }
}

/// What single claims have in common of which the reason is the same if the obstacle is.
fn alike(cluster: &Cluster, pending: &Pending) -> Option<(QueueId, ClassId)> {
    let group = cluster.group(pending.group).filter(|group| !group.is_declared())?;
    matches!(pending.obstacle, Obstacle::Unplaceable(_)).then_some(())?;
    Some((group.queue(), cluster.class_of(group.members().next()?)?))
}
