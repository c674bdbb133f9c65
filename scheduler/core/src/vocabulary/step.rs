//! The steps of a plan.

use crate::vocabulary::claim::{Allocation, ClaimId};

/// A step of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Evict the claim from its place. It is pending again.
    Evict {
        /// The claim that is evicted.
        claim: ClaimId,
        /// Its place before the step.
        from: Allocation,
    },
    /// Evict the claim from its place and start it at another one.
    Move {
        /// The claim that is moved.
        claim: ClaimId,
        /// Its place before the step.
        from: Allocation,
        /// Its place after the step.
        to: Allocation,
        /// The claims that must be gone before it can start there.
        starts_after: Vec<ClaimId>,
    },
    /// Start the claim at a place.
    Place {
        /// The claim that is started.
        claim: ClaimId,
        /// Its place after the step.
        to: Allocation,
        /// The claims that must be gone before it can start there.
        starts_after: Vec<ClaimId>,
    },
}

impl Step {
    /// The claim that the step is about.
    #[must_use]
    pub fn claim(&self) -> ClaimId {
        match self {
            Self::Evict { claim, .. } | Self::Move { claim, .. } | Self::Place { claim, .. } => *claim,
        }
    }

    /// The claim, if it is placed after the step.
    #[must_use]
    pub fn placed(&self) -> Option<ClaimId> {
        match self {
            Self::Evict { .. } => None,
            Self::Move { claim, .. } | Self::Place { claim, .. } => Some(*claim),
        }
    }
}
