//! The victims that reclaim and preemption may take for a unit.

use crate::decisions::shares::Right;
use crate::decisions::unit::Rank;
use crate::vocabulary::claim::Action;

use super::victims::Victim;

/// The victims that an action may take.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Takes {
    /// Units of other queues that hold too much of a resource.
    Reclaim {
        /// The right by which it is taken back.
        right: Right,
        /// By number of the queue, up to the last giving one: the resources that it holds too much of.
        gives: Vec<Vec<usize>>,
    },
    /// Units of lower priority in the same queue.
    Preempt {
        /// The number of the queue.
        queue: usize,
        /// The unit's priority.
        priority: i32,
        /// Whether units within the queue's fair share may be taken, too.
        entitled: bool,
        /// Whether guaranteed units may be taken, too.
        guaranteed: bool,
    },
}

impl Takes {
    /// The numbers of the queues from which units may be taken.
    pub(super) fn queues(&self) -> Vec<usize> {
        match self {
            Self::Reclaim { gives, .. } => (0..gives.len()).filter(|queue| !gives[*queue].is_empty()).collect(),
            Self::Preempt { queue, .. } => vec![*queue],
        }
    }

    /// Whether a victim of one of these queues may be taken.
    pub(super) fn allows(&self, victim: &Victim) -> bool {
        match self {
            Self::Reclaim { right, gives } => {
                let holds = |resource: &usize| victim.charge.get(*resource) > 0;
                !victim.guaranteed
                    && (*right == Right::Guarantee || !victim.entitled)
                    && victim.is_open_to(Action::Reclaim)
                    && gives.get(victim.queue).is_some_and(|gives| gives.iter().any(holds))
            }
            Self::Preempt { priority, entitled, guaranteed, .. } => {
                let Rank { priority: of_victim, .. } = victim.rank();
                of_victim.0 < *priority
                    && (*entitled || !victim.entitled)
                    && (*guaranteed || !victim.guaranteed)
                    && victim.is_open_to(Action::Preempt)
            }
        }
    }
}
