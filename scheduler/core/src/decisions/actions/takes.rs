//! The victims that reclaim and preemption may take for a unit.

use std::collections::BTreeSet;

use crate::decisions::shares::{Guarantees, Right};
use crate::decisions::unit::Rank;
use crate::vocabulary::claim::Action;

use super::victims::Victim;

/// The victims that an action may take.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Takes {
    /// Units of other queues that hold too much of a resource, and perhaps also units of the same queue.
    Reclaim {
        /// The right by which it is taken back.
        right: Right,
        /// By number of the queue, up to the last giving one: the resources that it holds too much of.
        gives: Vec<Vec<usize>>,
        /// The units of the same queue that may be taken, too.
        own: Option<Own>,
    },
    /// Units of lower priority in the same queue.
    Preempt {
        /// The number of the queue.
        queue: usize,
        /// The unit's priority.
        priority: i32,
        /// Whether units within the queue's fair share may be taken, too.
        entitled: bool,
        /// The guarantees whose units may be taken, too.
        guaranteed: Guarantees,
    },
}

/// Units of lower priority in the unit's own queue that reclaim may take beside those of other queues.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Own {
    /// The number of the queue.
    pub(super) queue: usize,
    /// The unit's priority.
    pub(super) priority: i32,
    /// The guarantees whose units may be taken, too.
    pub(super) guaranteed: Guarantees,
    /// The ranks of the units that may be taken; `None`: units of all ranks.
    pub(super) among: Option<BTreeSet<Rank>>,
}

impl Own {
    fn allows(&self, victim: &Victim) -> bool {
        let rank = victim.rank();
        victim.queue == self.queue
            && rank.priority.0 < self.priority
            && self.guaranteed.cover(victim.guaranteed)
            && victim.is_open_to(Action::Preempt)
            && self.among.as_ref().is_none_or(|among| among.contains(&rank))
    }
}

impl Takes {
    /// The numbers of the queues from which units may be taken.
    pub(super) fn queues(&self) -> Vec<usize> {
        match self {
            Self::Reclaim { gives, own, .. } => {
                let others = (0..gives.len()).filter(|queue| !gives[*queue].is_empty());
                others.chain(own.iter().map(|own| own.queue)).collect()
            }
            Self::Preempt { queue, .. } => vec![*queue],
        }
    }

    /// Whether these victims are chosen for a single unit.
    pub(super) fn is_of_one_unit(&self) -> bool {
        matches!(self, Self::Reclaim { own: Some(Own { among: Some(_), .. }), .. })
    }

    /// Whether a victim of one of these queues may be taken.
    pub(super) fn allows(&self, victim: &Victim) -> bool {
        match self {
            Self::Reclaim { right, gives, own } => {
                let holds = |resource: &usize| victim.charge.get(*resource) > 0;
                let is_owed = match right {
                    Right::FairShare => !victim.entitled && !victim.guaranteed.any(),
                    Right::Guarantee => !victim.guaranteed.of_all,
                    Right::AmongSiblings => !victim.guaranteed.among_siblings,
                };
                let is_given = is_owed
                    && victim.is_open_to(Action::Reclaim)
                    && gives.get(victim.queue).is_some_and(|gives| gives.iter().any(holds));
                is_given || own.as_ref().is_some_and(|own| own.allows(victim))
            }
            Self::Preempt { priority, entitled, guaranteed, .. } => {
                let Rank { priority: of_victim, .. } = victim.rank();
                of_victim.0 < *priority
                    && (*entitled || !victim.entitled)
                    && guaranteed.cover(victim.guaranteed)
                    && victim.is_open_to(Action::Preempt)
            }
        }
    }
}
