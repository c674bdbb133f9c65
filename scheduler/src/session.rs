//! A scheduler that is run until nothing changes any more.

use std::collections::BTreeSet;

use aliquot_scheduler_core::{Claim, ClaimId, Cluster, Event, Plan, Scheduler};
use anyhow::Result;

use crate::report::{Step, WaitingClaims};
use crate::snapshot::{File, split_name};

/// Cycles that are run where nobody says how many: enough for any plan that comes to an end.
pub const CYCLES_MAX: usize = 1000;

/// A cluster, and the scheduler that decides for it.
#[derive(Debug)]
pub struct Session {
    /// The scheduler.
    pub scheduler: Scheduler,
    /// The cluster.
    pub cluster: Cluster,
}

/// What cycles have led to.
#[derive(Debug)]
pub struct Settled {
    /// What each cycle did.
    pub cycles: Vec<Vec<Step>>,
    /// What the last cycle planned, which says what still waits.
    pub plan: Plan,
    /// Whether the last cycle changed nothing: further ones would not either.
    pub is_settled: bool,
}

impl Session {
    /// From a snapshot.
    ///
    /// # Errors
    /// If there can be no such cluster; the error names the entry.
    pub fn new(snapshot: &File) -> Result<Self> {
        let (scheduler, cluster) = snapshot.restore()?;
        Ok(Self { scheduler, cluster })
    }

    /// Runs cycles until one changes nothing, but not more than so many. Claims that are evicted are gone before the
    /// next cycle.
    pub fn settle(&mut self, cycles_max: usize) -> Settled {
        let mut cycles = Vec::new();
        let mut plan = Plan::default();
        let mut is_settled = false;
        while !is_settled && cycles.len() < cycles_max {
            plan = self.scheduler.cycle(&mut self.cluster);
            let steps: Vec<Step> = plan.steps.iter().map(|step| Step::of(&self.cluster, step)).collect();
            let any_left = self.let_leave();
            is_settled = steps.is_empty() && !any_left;
            if !is_settled {
                cycles.push(steps);
            }
        }
        Settled { cycles, plan, is_settled }
    }

    /// A claim by its name, with its namespace or without.
    #[must_use]
    pub fn claim_named(&self, name: &str) -> Option<ClaimId> {
        let (namespace, name) = split_name(name);
        let named = |claim: &Claim| claim.namespace == namespace && claim.name == name;
        self.cluster.claims().find(|(_, claim, _)| named(claim)).map(|(id, ..)| id)
    }

    /// Lets all claims be gone that are leaving; whether there were any.
    fn let_leave(&mut self) -> bool {
        let leaving: BTreeSet<ClaimId> =
            self.cluster.claims().map(|(id, ..)| id).filter(|id| self.cluster.leaving(*id).is_some()).collect();
        for claim in &leaving {
            let gone = self.cluster.apply(Event::ClaimGone(*claim));
            debug_assert!(gone.is_ok(), "{gone:?}");
        }
        !leaving.is_empty()
    }

    /// What waits after cycles, with its reasons.
    #[must_use]
    pub fn waiting(&self, plan: &Plan) -> Vec<WaitingClaims> {
        WaitingClaims::all(self, plan)
    }
}
