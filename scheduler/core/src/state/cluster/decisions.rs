//! What a plan decides, while it is under way and when it is final.
//!
//! A plan is made of many statements, and a later one may undo what an earlier one has done: a claim that was placed a
//! moment ago makes way, or one that was evicted finds its old place free. Nobody is told of that. Until the plan is
//! final, a claim that runs keeps its [`started_ms`](Cluster::started_ms) also when it is evicted: it is only noted
//! that it has to leave, which is taken back if it is placed where it was. A claim that the plan places has not
//! started. What is left at the end is carried out.

use std::collections::BTreeSet;

use super::Cluster;
use crate::vocabulary::claim::{Allocation, ClaimId, Displacement};
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

    /// Takes back that a claim was evicted on trial. Its node may have had more on it than it has.
    pub(crate) fn put_back(&mut self, id: ClaimId, allocation: Allocation) -> Result<(), EventError> {
        let returns = self.runs_before_plan(id) && self.leaving(id) == Some(&allocation);
        self.place_beyond(id, allocation)?;
        if returns {
            self.no_longer_leaving(id);
        }
        Ok(())
    }

    /// Evicts a claim on trial; says where it was.
    pub(crate) fn try_evict(&mut self, id: ClaimId) -> Result<Allocation, EventError> {
        let from = self.evict(id)?;
        // Who was moved by the same plan is still where he runs.
        if self.runs_before_plan(id) && self.leaving(id).is_none() {
            self.leave(id, from.clone());
        }
        Ok(from)
    }

    fn runs_before_plan(&self, id: ClaimId) -> bool {
        self.started_ms(id).is_some()
    }

    /// Whether a claim runs and nothing was decided that changes this.
    pub(super) fn runs_on(&self, id: ClaimId) -> bool {
        self.started_ms(id).is_some() && self.leaving(id).is_none()
    }

    /// Takes in the steps of a statement: who is evicted remembers why, and who is placed, whom to wait for. Room that
    /// is free now stays so for him, even if others are evicted there later in the plan.
    pub(crate) fn note_decided(&mut self, steps: &[Step], cause: &Displacement) {
        for step in steps {
            if let Step::Evict { claim, .. } | Step::Move { claim, .. } = step {
                self.causes.insert(*claim, cause.clone());
            }
        }
        steps.iter().filter_map(Step::placed).for_each(|claim| self.note_who_is_in_the_way(claim));
    }

    fn note_who_is_in_the_way(&mut self, id: ClaimId) {
        if self.runs_on(id) {
            return;
        }
        let mut others: BTreeSet<ClaimId> = self.in_the_way_of(id).into_iter().collect();
        // Who waited for somebody on this node before the plan goes on waiting.
        let node = self.allocation(id).map(|at| at.node);
        let is_there = |other: &&ClaimId| self.leaving(**other).is_some_and(|from| Some(from.node) == node);
        others.extend(self.starts_after(id).iter().filter(is_there));
        self.wait_for(id, others.into_iter().collect());
    }

    /// Makes a plan final, which is in the books already, by what is left of its steps, at most one for each claim:
    /// evicted claims begin to leave, and placed ones start or wait for those. Enters into each step what it waits for.
    /// `touched` are all claims that the plan has placed or evicted, even if nothing is left of that.
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
        // Who has lost the place that was thought of, or is where he was, waits for nobody.
        let idle = |claim: &&ClaimId| self.allocation(**claim).is_none() || self.runs_on(**claim);
        let idle: Vec<ClaimId> = touched.iter().filter(idle).copied().collect();
        idle.into_iter().for_each(|claim| self.wait_for_nobody(claim));
        for claim in steps.iter().filter_map(|step| step.placed()) {
            // Somebody who was to make way was placed where he was again, perhaps into room that others leave.
            if self.starts_after(claim).iter().any(|other| self.leaving(*other).is_none()) {
                self.note_who_is_in_the_way(claim);
            }
        }
        let groups: BTreeSet<GroupId> = touched.iter().filter_map(|claim| self.group_of(*claim)).collect();
        groups.iter().for_each(|group| self.start_together(*group));
        let now_ms = self.now_ms;
        for step in steps {
            let (Step::Place { claim, starts_after, .. } | Step::Move { claim, starts_after, .. }) = &mut **step else {
                continue;
            };
            let Some(state) = self.claims.get_mut(*claim) else { continue };
            starts_after.clone_from(&state.starts_after);
            state.started_ms = starts_after.is_empty().then_some(now_ms);
        }
        groups.iter().for_each(|group| self.note_staleness(*group));
    }
}
