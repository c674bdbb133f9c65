//! The decisions of a plan, while it is under way and when it is final.
//!
//! A plan is made of many statements, and a later statement may undo what an earlier one has done: a claim that was
//! just placed makes way, or an evicted claim returns to its old place. Outside, none of this is seen. Until the plan
//! is final, a running claim keeps its [`started_ms`](Cluster::started_ms) even when it is evicted: the books only note
//! that it has to leave. If the plan places it where it was, this is taken back. A claim that the plan places has not
//! started. When the plan is final, the remaining decisions are carried out.

use std::collections::BTreeSet;

use super::Cluster;
use crate::state::group::Group;
use crate::vocabulary::claim::{Action, Allocation, ClaimId, Displacement};
use crate::vocabulary::event::EventError;
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::step::Step;

impl Cluster {
    /// Places a claim on trial.
    pub(crate) fn try_place(&mut self, id: ClaimId, allocation: Allocation) -> Result<(), EventError> {
        let returns = self.runs_before_plan(id) && self.leaving(id) == Some(&allocation);
        self.place(id, allocation)?;
        if returns {
            self.no_longer_leaving(id);
        }
        Ok(())
    }

    /// Undoes a trial eviction. The claim's node may have held more than it has, so this does not check for room.
    pub(crate) fn put_back(&mut self, id: ClaimId, allocation: Allocation) -> Result<(), EventError> {
        let returns = self.runs_before_plan(id) && self.leaving(id) == Some(&allocation);
        self.place_beyond(id, allocation)?;
        if returns {
            self.no_longer_leaving(id);
        }
        Ok(())
    }

    /// Evicts a claim on trial, and returns its place.
    pub(crate) fn try_evict(&mut self, id: ClaimId) -> Result<Allocation, EventError> {
        let from = self.evict(id)?;
        // A claim that the same plan has moved still runs at its first place.
        if self.runs_before_plan(id) && self.leaving(id).is_none() {
            self.leave(id, from.clone());
        }
        Ok(from)
    }

    fn runs_before_plan(&self, id: ClaimId) -> bool {
        self.started_ms(id).is_some()
    }

    /// Whether a claim runs and no decision changes this.
    pub(super) fn runs_on(&self, id: ClaimId) -> bool {
        self.started_ms(id).is_some() && self.leaving(id).is_none()
    }

    /// Notes the steps of a statement. Evicted claims remember the cause. Placed claims remember which claims they wait
    /// for. Room that is free now stays free for a placed claim, even if the plan later evicts other claims there.
    pub(crate) fn note_decided(&mut self, steps: &[Step], cause: &Displacement) {
        for step in steps {
            if let Step::Evict { claim, .. } | Step::Move { claim, .. } = step {
                self.causes.insert(*claim, cause.clone());
                let others = self.starts_after(*claim).to_vec();
                if !others.is_empty() && self.started_ms(*claim).is_none() {
                    self.waited.entry(*claim).or_insert(others);
                }
            }
        }
        steps.iter().filter_map(Step::placed).for_each(|claim| self.note_who_is_in_the_way(claim));
    }

    /// Corrects the causes of evictions by the queues of the evicted claims; see [`Cluster::action_on`].
    pub(crate) fn correct_causes(&mut self, steps: &[Step]) {
        for claim in steps.iter().map(Step::claim) {
            let Some((action, by)) = self.causes.get(&claim).map(|cause| (cause.action, cause.by)) else { continue };
            let action = self.action_on(claim, action, by);
            self.causes.entry(claim).and_modify(|cause| cause.action = action);
        }
    }

    /// The action that makes a claim leave, if `action` places the group `by`. Reclaim is between queues: what it takes
    /// from the group's own queue beside that is a preemption.
    pub(crate) fn action_on(&self, claim: ClaimId, action: Action, by: Option<GroupId>) -> Action {
        let queue = |group: GroupId| self.group(group).map(Group::queue);
        let of_evictor = by.and_then(queue);
        let is_own = of_evictor.is_some() && self.group_of(claim).and_then(queue) == of_evictor;
        if action == Action::Reclaim && is_own { Action::Preempt } else { action }
    }

    fn note_who_is_in_the_way(&mut self, id: ClaimId) {
        if self.runs_on(id) {
            return;
        }
        let mut others: BTreeSet<ClaimId> = self.in_the_way_of(id).into_iter().collect();
        // A claim that already waited for claims on this node before the plan goes on waiting for them.
        let node = self.allocation(id).map(|at| at.node);
        let is_there = |other: &&ClaimId| self.leaving(**other).is_some_and(|from| Some(from.node) == node);
        others.extend(self.starts_after(id).iter().filter(is_there));
        self.wait_for(id, others.into_iter().collect());
    }

    /// Makes a plan final. The books already show it. `steps` are its remaining steps, at most one for each claim:
    /// evicted claims begin to leave, and placed claims start, or wait for claims that leave. Each step is told which
    /// claims it waits for. `touched` are all claims that the plan has placed or evicted, even if no step remains for
    /// them.
    pub(crate) fn make_final(&mut self, touched: &BTreeSet<ClaimId>, steps: &mut [&mut Step]) {
        let mut causes = std::mem::take(&mut self.causes);
        for step in &*steps {
            let (Step::Evict { claim, .. } | Step::Move { claim, .. }) = &**step else { continue };
            if let Some(ran_since_ms) = self.started_ms(*claim) {
                self.note_eviction(*claim, ran_since_ms);
            }
            if let Some(state) = self.claims.get_mut(*claim) {
                state.started_ms = None;
                state.displaced = causes.remove(claim).map(Box::new);
            }
        }
        // A claim that has lost its planned place, or that is back where it ran, waits for no other claim.
        let idle = |claim: &&ClaimId| self.allocation(**claim).is_none() || self.runs_on(**claim);
        let idle: Vec<ClaimId> = touched.iter().filter(idle).copied().collect();
        idle.into_iter().for_each(|claim| self.wait_for_nobody(claim));
        for claim in steps.iter().filter_map(|step| step.placed()) {
            // A claim that was going to make way is back at its place, and may itself use room that other claims leave.
            if self.starts_after(claim).iter().any(|other| self.leaving(*other).is_none()) {
                self.note_who_is_in_the_way(claim);
            }
        }
        // A claim that is back at the place where it had yet to start has no step. It may have waited only for claims that
        // leave elsewhere, so that its gang starts together. It goes on waiting, and so starts when they are gone.
        let mut waited = std::mem::take(&mut self.waited);
        waited.retain(|claim, _| self.allocation(*claim).is_some() && self.starts_after(*claim).is_empty());
        steps.iter().filter_map(|step| step.placed()).for_each(|claim| _ = waited.remove(&claim));
        waited.into_iter().for_each(|(claim, others)| self.wait_for(claim, others));
        let groups: BTreeSet<GroupId> = touched.iter().filter_map(|claim| self.group_of(*claim)).collect();
        groups.iter().for_each(|group| self.start_together(*group));
        let now_ms = self.now_ms;
        for step in steps {
            let (Step::Place { claim, starts_after, .. } | Step::Move { claim, starts_after, .. }) = &mut **step else {
                continue;
            };
            *starts_after = self.starts_after(*claim).to_vec();
            let Some(state) = self.claims.get_mut(*claim) else { continue };
            state.started_ms = starts_after.is_empty().then_some(now_ms);
        }
        groups.iter().for_each(|group| self.note_staleness(*group));
    }
}
