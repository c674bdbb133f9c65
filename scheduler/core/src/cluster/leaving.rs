//! Claims that a plan has evicted but that are still there, and those that wait for them to be gone.
//!
//! The books show what was decided: room that a plan makes belongs at once to whom it was made for. What is really
//! there follows later, and who is placed on room that is still held starts when its holders are gone.

use std::collections::{BTreeMap, BTreeSet};

use super::Cluster;
use crate::claim::{Allocation, ClaimId, Displacement};
use crate::event::EventError;
use crate::group::GroupId;
use crate::quantity::{Bytes, MilliCpu};
use crate::statement::Step;

impl Cluster {
    /// Makes the steps of a plan, which are in the books already, final: evicted claims begin to leave, and placed ones
    /// start or wait for those. Returns the steps with what each waits for.
    pub(crate) fn settle(&mut self, steps: Vec<Step>, cause: &Displacement) -> Vec<Step> {
        for step in &steps {
            if let Step::Evict { claim, from } | Step::Move { claim, from, .. } = step {
                self.leave(*claim, from.clone(), cause);
            }
        }
        // The members of a gang start together: each waits for whoever any of them waits for.
        let mut waits: BTreeMap<GroupId, BTreeSet<ClaimId>> = BTreeMap::new();
        for step in &steps {
            if let Some((claim, group)) = step.placed().and_then(|claim| Some((claim, self.group_of(claim)?))) {
                waits.entry(group).or_default().extend(self.in_the_way_of(claim));
            }
        }
        let settled = steps.into_iter().map(|mut step| {
            if let Step::Place { claim, starts_after, .. } | Step::Move { claim, starts_after, .. } = &mut step {
                let waits = self.group_of(*claim).and_then(|group| waits.get(&group)).into_iter().flatten();
                *starts_after = waits.copied().collect();
                self.begin(*claim, starts_after.clone());
            }
            step
        });
        let settled: Vec<Step> = settled.collect();
        settled.iter().for_each(|step| self.settle_group_of(step.claim()));
        settled
    }

    fn leave(&mut self, id: ClaimId, from: Allocation, cause: &Displacement) {
        self.wait_for_nobody(id);
        let Some(state) = self.claims.get_mut(id) else { return };
        state.displaced = Some(Box::new(cause.clone()));
        // Who was only placed and did not run yet has nothing to leave.
        if state.started_ms.take().is_some() {
            self.leaving.entry(from.node).or_default().insert(id);
            state.leaving = Some(from);
        }
    }

    fn begin(&mut self, id: ClaimId, after: Vec<ClaimId>) {
        let now_ms = self.now_ms;
        for leaving in &after {
            self.waiting_for.entry(*leaving).or_default().insert(id);
        }
        if let Some(state) = self.claims.get_mut(id) {
            state.started_ms = after.is_empty().then_some(now_ms);
            state.starts_after = after;
        }
    }

    /// The claims that still hold what a placed claim will need.
    fn in_the_way_of(&self, id: ClaimId) -> Vec<ClaimId> {
        let Ok(state) = self.claim_state(id) else { return Vec::new() };
        // Who is moved must itself have left its old place.
        let own: Vec<ClaimId> = state.leaving.is_some().then_some(id).into_iter().collect();
        let Some(allocation) = &state.allocation else { return Vec::new() };
        let Some(node) = self.node(allocation.node) else { return own };
        let Some(leaving) = self.leaving.get(&allocation.node) else { return own };
        let held = |claim: &ClaimId| {
            self.claims.get(*claim).and_then(|state| Some((&state.claim.request, state.leaving.as_ref()?)))
        };
        let cpu: MilliCpu = leaving.iter().filter_map(held).map(|(request, _)| request.cpu).sum();
        let memory: Bytes = leaving.iter().filter_map(held).map(|(request, _)| request.memory).sum();
        // What is free in the books is not free yet as far as others are still leaving.
        let short = node.cpu_free() < cpu || node.memory_free() < memory;
        let shares_a_device = |claim: &ClaimId| {
            held(claim).is_some_and(|(_, held)| {
                held.devices.iter().any(|part| allocation.devices.iter().any(|own| own.device == part.device))
            })
        };
        let others = leaving.iter().filter(|claim| short || shares_a_device(claim)).filter(|claim| **claim != id);
        others.copied().chain(own).collect()
    }

    /// How many claims of a disruption budget may be disturbed now. Who is on the way to another place is not there.
    pub(crate) fn spare_of_budget(&self, namespace: &str, name: &str) -> u32 {
        let spare = self.budgets.spare(namespace, name);
        if spare == u32::MAX || self.leaving.is_empty() {
            return spare;
        }
        let on_the_way = self.leaving.values().flatten().filter_map(|claim| self.claims.get(*claim)).filter(|state| {
            let of_budget =
                state.claim.namespace == namespace && state.claim.disruption_budget.as_deref() == Some(name);
            of_budget && state.allocation.is_some()
        });
        let on_the_way = u32::try_from(on_the_way.count()).unwrap_or(u32::MAX);
        spare.saturating_sub(on_the_way)
    }

    /// Notes that a claim has left its old place; says who can start now.
    pub(super) fn gone(&mut self, id: ClaimId) -> Result<Vec<ClaimId>, EventError> {
        let state = self.claims.get_mut(id).ok_or(EventError::NoSuchClaim(id))?;
        let from = state.leaving.take().ok_or(EventError::NotLeaving(id))?;
        if let Some(leaving) = self.leaving.get_mut(&from.node) {
            leaving.remove(&id);
            if leaving.is_empty() {
                self.leaving.remove(&from.node);
            }
        }
        let now_ms = self.now_ms;
        let mut ready = Vec::new();
        for waiting in self.waiting_for.remove(&id).unwrap_or_default() {
            let Some(state) = self.claims.get_mut(waiting) else { continue };
            state.starts_after.retain(|other| *other != id);
            if state.starts_after.is_empty() && state.allocation.is_some() {
                state.started_ms = Some(now_ms);
                ready.push(waiting);
            }
        }
        Ok(ready)
    }

    /// A claim that is no longer placed waits for nobody to be gone.
    pub(super) fn wait_for_nobody(&mut self, id: ClaimId) {
        let Some(state) = self.claims.get_mut(id) else { return };
        for leaving in std::mem::take(&mut state.starts_after) {
            if let Some(waiting) = self.waiting_for.get_mut(&leaving) {
                waiting.remove(&id);
                if waiting.is_empty() {
                    self.waiting_for.remove(&leaving);
                }
            }
        }
    }
}
