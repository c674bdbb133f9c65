//! Trials: groups of changes that are made as a whole or not at all.

use std::collections::{BTreeMap, BTreeSet};

use crate::state::cluster::Cluster;
use crate::vocabulary::claim::{Allocation, ClaimId, Displacement};
use crate::vocabulary::event::EventError;
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::step::Step;

/// A change, with what is needed to undo it.
#[derive(Debug)]
enum Undo {
    Placed(ClaimId),
    Evicted(ClaimId, Allocation),
}

/// A point in a [`Statement`] to roll back to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Savepoint(usize);

/// A transaction on a cluster's state. Its changes are in the books at once. They can be undone back to any savepoint,
/// and are all undone if the statement is dropped without a commit. A gang, a reclaim and a preemption are one
/// statement each.
#[derive(Debug)]
pub struct Statement<'a> {
    cluster: &'a mut Cluster,
    changes: Vec<Undo>,
}

impl<'a> Statement<'a> {
    /// Begins a transaction.
    pub fn new(cluster: &'a mut Cluster) -> Self {
        Self { cluster, changes: Vec::new() }
    }

    /// The state with the changes so far.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        self.cluster
    }

    /// Places a claim.
    ///
    /// # Errors
    /// If it is placed already or there is not enough room. Then nothing has changed.
    pub fn place(&mut self, claim: ClaimId, allocation: Allocation) -> Result<(), EventError> {
        self.cluster.try_place(claim, allocation)?;
        self.changes.push(Undo::Placed(claim));
        Ok(())
    }

    /// Evicts a claim.
    ///
    /// # Errors
    /// If it is not placed. Then nothing has changed.
    pub fn evict(&mut self, claim: ClaimId) -> Result<(), EventError> {
        let allocation = self.cluster.try_evict(claim)?;
        self.changes.push(Undo::Evicted(claim, allocation));
        Ok(())
    }

    /// A point to roll back to.
    #[must_use]
    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.changes.len())
    }

    /// Undoes everything since a savepoint of this statement.
    pub fn rollback(&mut self, savepoint: Savepoint) {
        while self.changes.len() > savepoint.0 {
            // The reverse of a change is always possible: only this statement changes the state meanwhile.
            let undone = match self.changes.pop() {
                Some(Undo::Placed(claim)) => self.cluster.try_evict(claim).map(|_| ()),
                Some(Undo::Evicted(claim, allocation)) => self.cluster.put_back(claim, allocation),
                None => break,
            };
            debug_assert_eq!(undone, Ok(()));
        }
    }

    /// Makes the changes final and returns the steps to carry out: evictions and moves first. A claim that was evicted
    /// and placed again where it was has no step. Evicted claims remember the cause. If a gang has not started and is
    /// too small without its evicted members, its placed members become pending again, too.
    #[must_use]
    pub fn commit(mut self, cause: &Displacement) -> Vec<Step> {
        let groups: BTreeSet<GroupId> = self.touched().filter_map(|claim| self.cluster.group_of(claim)).collect();
        for claim in groups.into_iter().flat_map(|group| self.cluster.too_few_to_start(group)).collect::<Vec<_>>() {
            let evicted = self.evict(claim);
            debug_assert_eq!(evicted, Ok(()), "a placed claim can be evicted");
        }
        let touched = self.touched().collect();
        let mut steps = self.decide(cause);
        self.cluster.make_final(&touched, &mut steps.iter_mut().collect::<Vec<_>>());
        steps
    }

    /// Makes the changes part of the plan under way, which further statements continue, and returns their net steps.
    /// The steps to carry out, and the claims that can start, are known when [the plan is final](crate::Plan).
    pub(crate) fn keep(mut self, cause: &Displacement) -> Vec<Step> {
        let steps = self.decide(cause);
        self.cluster.correct_causes(&steps);
        steps
    }

    /// The claims that this statement has placed or evicted.
    fn touched(&self) -> impl Iterator<Item = ClaimId> {
        self.changes.iter().map(|change| match change {
            Undo::Placed(claim) | Undo::Evicted(claim, _) => *claim,
        })
    }

    fn decide(&mut self, cause: &Displacement) -> Vec<Step> {
        // Where each claim was before, in the order in which it was first touched.
        let mut before: BTreeMap<ClaimId, (usize, Option<Allocation>)> = BTreeMap::new();
        for (order, change) in std::mem::take(&mut self.changes).into_iter().enumerate() {
            let (claim, was) = match change {
                Undo::Placed(claim) => (claim, None),
                Undo::Evicted(claim, allocation) => (claim, Some(allocation)),
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
        let steps: Vec<Step> = steps.collect();
        self.cluster.note_decided(&steps, cause);
        steps
    }
}

impl Drop for Statement<'_> {
    fn drop(&mut self) {
        self.rollback(Savepoint(0));
    }
}
