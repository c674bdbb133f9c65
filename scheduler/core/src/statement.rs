//! Trials: changes that are made as a whole or not at all.

use crate::claim::{Allocation, ClaimId};
use crate::cluster::Cluster;
use crate::event::EventError;

/// A step of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Place the claim.
    Place(ClaimId, Allocation),
    /// Evict the claim from where it is.
    Evict(ClaimId, Allocation),
}

/// How far a [`Statement`] had come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Checkpoint(usize);

/// A transaction on a cluster's state: its steps take effect at once, can be undone back to any checkpoint, and are all
/// undone when it is dropped without having been committed. A gang, a reclaim and a preemption are one statement each.
#[derive(Debug)]
pub struct Statement<'a> {
    cluster: &'a mut Cluster,
    steps: Vec<Step>,
}

impl<'a> Statement<'a> {
    /// Begins a transaction.
    pub fn new(cluster: &'a mut Cluster) -> Self {
        Self { cluster, steps: Vec::new() }
    }

    /// The state as it is with the steps so far.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        self.cluster
    }

    /// The steps so far.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Places a claim.
    ///
    /// # Errors
    /// If it is placed already or there is not enough; nothing is changed then.
    pub fn place(&mut self, claim: ClaimId, allocation: Allocation) -> Result<(), EventError> {
        self.cluster.place(claim, allocation.clone())?;
        self.steps.push(Step::Place(claim, allocation));
        Ok(())
    }

    /// Evicts a claim.
    ///
    /// # Errors
    /// If it is not placed; nothing is changed then.
    pub fn evict(&mut self, claim: ClaimId) -> Result<(), EventError> {
        let allocation = self.cluster.evict(claim)?;
        self.steps.push(Step::Evict(claim, allocation));
        Ok(())
    }

    /// A point to come back to.
    #[must_use]
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint(self.steps.len())
    }

    /// Undoes everything since a checkpoint of this statement.
    pub fn rollback(&mut self, checkpoint: Checkpoint) {
        while self.steps.len() > checkpoint.0 {
            // The reverse of a step that was made is always possible: nobody else changes the state meanwhile.
            let undone = match self.steps.pop() {
                Some(Step::Place(claim, _)) => self.cluster.evict(claim).map(|_| ()),
                Some(Step::Evict(claim, allocation)) => self.cluster.place(claim, allocation),
                None => break,
            };
            debug_assert_eq!(undone, Ok(()));
        }
    }

    /// Makes the steps final and returns them, for whoever carries them out.
    #[must_use]
    pub fn commit(mut self) -> Vec<Step> {
        std::mem::take(&mut self.steps)
    }
}

impl Drop for Statement<'_> {
    fn drop(&mut self) {
        self.rollback(Checkpoint(0));
    }
}
