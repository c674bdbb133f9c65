//! Claims that a plan has evicted but that have not left yet, and the claims that wait for them to be gone.
//!
//! The books show what was decided: room that a plan makes belongs at once to the claim that it was made for. The nodes
//! follow later. A claim that is placed on room that is still held starts when the holders are gone.

use std::collections::BTreeSet;

use super::Cluster;
use crate::state::node::Node;
use crate::vocabulary::claim::{Allocation, ClaimId};
use crate::vocabulary::counted;
use crate::vocabulary::event::{EventError, Outcome};
use crate::vocabulary::quantity::{Bytes, MilliCpu};

/// What follows when a claim has left its old place.
#[derive(Default, Debug)]
pub(super) struct Freed {
    /// The claims that waited for it and can start now.
    pub(super) ready: Vec<ClaimId>,
    /// The claims that would have started, but that no longer suit their places, and the members of gangs that cannot
    /// start without them. They are pending again.
    pub(super) displaced: Vec<ClaimId>,
}

impl Freed {
    /// Adds what follows when another claim has left, too.
    pub(super) fn add(&mut self, other: Self) {
        self.ready.extend(other.ready);
        self.displaced.extend(other.displaced);
    }
}

impl From<Freed> for Outcome {
    fn from(freed: Freed) -> Self {
        Self::Claims { displaced: freed.displaced, ready: freed.ready }
    }
}

impl Cluster {
    /// Notes the place that a claim has to leave.
    pub(super) fn leave(&mut self, id: ClaimId, from: Allocation) {
        let Some(state) = self.claims.get_mut(id) else { return };
        self.leaving.entry(from.node).or_default().insert(id);
        state.leaving = Some(Box::new(from));
    }

    /// Notes that a claim leaves a place without a plan. If the node held more than it has, claims that are to start
    /// there had not counted on this claim, so they now wait for it, too.
    pub(super) fn leave_unplanned(&mut self, id: ClaimId, from: Allocation, was_over_committed: bool) {
        let node = from.node;
        self.leave(id, from);
        if !was_over_committed {
            return;
        }
        let there: Vec<ClaimId> = self.node(node).into_iter().flat_map(Node::claims).collect();
        for claim in there {
            let mut others: BTreeSet<ClaimId> = self.in_the_way_of(claim).into_iter().collect();
            if self.started_ms(claim).is_some() || !others.contains(&id) {
                continue;
            }
            others.extend(self.starts_after(claim));
            self.wait_for(claim, others.into_iter().collect());
            if let Some(group) = self.group_of(claim) {
                self.start_together(group);
            }
        }
    }

    /// Notes that a claim no longer has to leave its place, or that it has left it.
    pub(super) fn no_longer_leaving(&mut self, id: ClaimId) -> Option<Allocation> {
        let from = *self.claims.get_mut(id)?.leaving.take()?;
        if let Some(leaving) = self.leaving.get_mut(&from.node) {
            leaving.remove(&id);
            if leaving.is_empty() {
                self.leaving.remove(&from.node);
            }
        }
        Some(from)
    }

    /// The claims that still hold what a placed claim will need.
    pub(super) fn in_the_way_of(&self, id: ClaimId) -> Vec<ClaimId> {
        let Ok(state) = self.claim_state(id) else { return Vec::new() };
        // A moved claim must itself have left its old place.
        let own: Vec<ClaimId> = state.leaving.is_some().then_some(id).into_iter().collect();
        let Some(allocation) = &state.allocation else { return Vec::new() };
        let Some(node) = self.node(allocation.node) else { return own };
        let apart = self.leaving_too_near(id);
        let Some(leaving) = self.leaving.get(&allocation.node) else { return [own, apart].concat() };
        let held = |claim: &ClaimId| {
            self.claims.get(*claim).and_then(|state| Some((&state.claim.request, state.leaving.as_deref()?)))
        };
        let cpu: MilliCpu = leaving.iter().filter_map(held).map(|(request, _)| request.cpu).sum();
        let memory: Bytes = leaving.iter().filter_map(held).map(|(request, _)| request.memory).sum();
        let counted = counted::sum(leaving.iter().filter_map(held).map(|(request, _)| &request.counted));
        let lacks = |name: &String| node.counted_free(name) < counted::amount(&counted, name);
        // Room that is free in the books is not really free while other claims are still leaving it.
        let short =
            node.cpu_free() < cpu || node.memory_free() < memory || state.claim.request.counted.keys().any(lacks);
        let shares_a_device = |claim: &ClaimId| {
            held(claim).is_some_and(|(_, held)| {
                held.devices.iter().any(|part| allocation.devices.iter().any(|own| own.device == part.device))
            })
        };
        let others = leaving.iter().filter(|claim| short || shares_a_device(claim)).filter(|claim| **claim != id);
        others.copied().chain(own).chain(apart).collect()
    }

    /// How many claims of a disruption budget may be disturbed now. Claims that have yet to start, or that are moving
    /// to another place, do not count as available.
    pub(crate) fn spare_of_budget(&self, namespace: &str, name: &str) -> u32 {
        let Some((min_available, placed)) = self.budgets.get(namespace, name) else { return u32::MAX };
        let there = placed.filter(|claim| self.runs_on(*claim)).count();
        u32::try_from(there).unwrap_or(u32::MAX).saturating_sub(min_available)
    }

    /// Notes that a claim has left its old place.
    pub(super) fn gone(&mut self, id: ClaimId) -> Result<Freed, EventError> {
        self.claim_state(id)?;
        self.no_longer_leaving(id).ok_or(EventError::NotLeaving(id))?;
        if let Some(state) = self.claims.get_mut(id) {
            state.last_eviction = None;
        }
        let mut waited_last = Vec::new();
        for waiting in self.waiting_for.remove(&id).unwrap_or_default() {
            let Some(others) = self.starts_after.get_mut(&waiting) else { continue };
            others.retain(|other| *other != id);
            if others.is_empty() {
                self.starts_after.remove(&waiting);
                waited_last.push(waiting);
            }
        }
        let mut freed = Freed::default();
        // Each claim that gives up its place can make another one suit its place again, or not suit it any more.
        while let Some(claim) = waited_last.iter().copied().find(|claim| self.is_out_of_place(*claim)) {
            freed.displaced.extend(self.lose(vec![claim])?);
        }
        let now_ms = self.now_ms;
        for claim in waited_last {
            if let Some(state) = self.claims.get_mut(claim).filter(|state| state.allocation.is_some()) {
                state.started_ms = Some(now_ms);
                freed.ready.push(claim);
            }
        }
        Ok(freed)
    }

    /// Sets the claims that a claim waits for from now on.
    pub(super) fn wait_for(&mut self, id: ClaimId, others: Vec<ClaimId>) {
        self.wait_for_nobody(id);
        for other in &others {
            self.waiting_for.entry(*other).or_default().insert(id);
        }
        if !others.is_empty() {
            self.starts_after.insert(id, others);
        }
    }

    /// Clears the claims that a claim waits for.
    pub(super) fn wait_for_nobody(&mut self, id: ClaimId) {
        for leaving in self.starts_after.remove(&id).unwrap_or_default() {
            if let Some(waiting) = self.waiting_for.get_mut(&leaving) {
                waiting.remove(&id);
                if waiting.is_empty() {
                    self.waiting_for.remove(&leaving);
                }
            }
        }
    }
}
