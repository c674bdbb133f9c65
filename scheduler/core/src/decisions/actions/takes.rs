//! Whom reclaim and preemption may take for a unit.

use crate::decisions::shares::Right;
use crate::decisions::unit::Rank;
use crate::vocabulary::claim::Action;

use super::victims::Victim;

/// Whom an action may take.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Takes {
    /// What other queues have too much of.
    Reclaim {
        /// By what right it is taken back.
        right: Right,
        /// By number of the queue, up to the last that gives: the resources that it has too much of.
        gives: Vec<Vec<usize>>,
    },
    /// What is of lower priority in the same queue.
    Preempt {
        /// The number of the queue.
        queue: usize,
        /// The unit's priority.
        priority: i32,
        /// Also what is within the queue's fair share.
        entitled: bool,
        /// Also what the queue is certain of.
        guaranteed: bool,
    },
}

impl Takes {
    /// The numbers of the queues of which somebody may be taken.
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
