//! Trials: changes that are made as a whole or not at all.

use std::collections::BTreeMap;

use crate::claim::{Allocation, ClaimId, Displacement};
use crate::cluster::Cluster;
use crate::event::EventError;

/// A step of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Evict the claim from where it is; it waits again.
    Evict {
        /// The claim.
        claim: ClaimId,
        /// Where it is.
        from: Allocation,
    },
    /// Evict the claim from where it is and start it elsewhere.
    Move {
        /// The claim.
        claim: ClaimId,
        /// Where it is.
        from: Allocation,
        /// Where it goes.
        to: Allocation,
        /// Claims that must be gone before it can start there.
        starts_after: Vec<ClaimId>,
    },
    /// Start the claim.
    Place {
        /// The claim.
        claim: ClaimId,
        /// Where it goes.
        to: Allocation,
        /// Claims that must be gone before it can start there.
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

/// What was done, so that it can be undone.
#[derive(Debug)]
enum Change {
    Placed(ClaimId),
    Evicted(ClaimId, Allocation),
}

/// How far a [`Statement`] had come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Checkpoint(usize);

/// A transaction on a cluster's state: its changes are in the books at once, can be undone back to any checkpoint, and
/// are all undone when it is dropped without having been committed. A gang, a reclaim and a preemption are one
/// statement each.
#[derive(Debug)]
pub struct Statement<'a> {
    cluster: &'a mut Cluster,
    changes: Vec<Change>,
}

impl<'a> Statement<'a> {
    /// Begins a transaction.
    pub fn new(cluster: &'a mut Cluster) -> Self {
        Self { cluster, changes: Vec::new() }
    }

    /// The state as it is with the changes so far.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        self.cluster
    }

    /// Places a claim.
    ///
    /// # Errors
    /// If it is placed already or there is not enough; nothing is changed then.
    pub fn place(&mut self, claim: ClaimId, allocation: Allocation) -> Result<(), EventError> {
        self.cluster.place(claim, allocation)?;
        self.changes.push(Change::Placed(claim));
        Ok(())
    }

    /// Evicts a claim.
    ///
    /// # Errors
    /// If it is not placed; nothing is changed then.
    pub fn evict(&mut self, claim: ClaimId) -> Result<(), EventError> {
        let allocation = self.cluster.evict(claim)?;
        self.changes.push(Change::Evicted(claim, allocation));
        Ok(())
    }

    /// A point to come back to.
    #[must_use]
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint(self.changes.len())
    }

    /// Undoes everything since a checkpoint of this statement.
    pub fn rollback(&mut self, checkpoint: Checkpoint) {
        while self.changes.len() > checkpoint.0 {
            // The reverse of a change that was made is always possible: nobody else changes the state meanwhile.
            let undone = match self.changes.pop() {
                Some(Change::Placed(claim)) => self.cluster.evict(claim).map(|_| ()),
                Some(Change::Evicted(claim, allocation)) => self.cluster.place(claim, allocation),
                None => break,
            };
            debug_assert_eq!(undone, Ok(()));
        }
    }

    /// Makes the changes final and returns what is to be done, for whoever does it: evictions and moves first. What was
    /// evicted and placed again where it was is left out. Evicted claims remember the cause.
    #[must_use]
    pub fn commit(mut self, cause: &Displacement) -> Vec<Step> {
        // Where each claim was before, in the order in which it was first touched.
        let mut before: BTreeMap<ClaimId, (usize, Option<Allocation>)> = BTreeMap::new();
        for (order, change) in std::mem::take(&mut self.changes).into_iter().enumerate() {
            let (claim, was) = match change {
                Change::Placed(claim) => (claim, None),
                Change::Evicted(claim, allocation) => (claim, Some(allocation)),
            };
            before.entry(claim).or_insert((order, was));
        }
        let mut touched: Vec<(usize, ClaimId, Option<Allocation>)> =
            before.into_iter().map(|(claim, (order, was))| (order, claim, was)).collect();
        touched.sort_unstable_by_key(|(order, claim, was)| (was.is_none(), *order, *claim));
        let steps = touched.into_iter().filter_map(|(_, claim, was)| {
            let is = self.cluster.allocation(claim).cloned();
            match (was, is) {
                (Some(from), Some(to)) if from == to => None,
                (Some(from), Some(to)) => Some(Step::Move { claim, from, to, starts_after: Vec::new() }),
                (Some(from), None) => Some(Step::Evict { claim, from }),
                (None, Some(to)) => Some(Step::Place { claim, to, starts_after: Vec::new() }),
                (None, None) => None,
            }
        });
        let steps = steps.collect();
        self.cluster.settle(steps, cause)
    }
}

impl Drop for Statement<'_> {
    fn drop(&mut self) {
        self.rollback(Checkpoint(0));
    }
}
