//! Runs a live engine until nothing changes any more.
//!
//! The engine decides about a snapshot as it decides about a running cluster. Its nodes are simulated: they start and
//! stop claims at once when they are told to.

use std::sync::Arc;

use aliquot_scheduler_core::{ClaimId, Cluster, Event, EventError, KnownClaim, Scheduler};
use aliquot_scheduler_engine::{AtOnce, Backend, Engine, NodeName, Observation, Ready, View};
use anyhow::Result;

use crate::report::{Step, WaitingClaims};
use crate::snapshot::{File, split_name};

/// The most cycles by default: enough for any plan that comes to an end.
pub const CYCLES_MAX: usize = 1000;

/// A cluster with the engine that decides for it.
#[derive(Debug)]
pub struct Session {
    engine: Engine,
    nodes: AtOnce,
    view: Arc<View>,
    now_ms: u64,
}

/// The results of running cycles.
#[derive(Debug)]
pub struct Converged {
    /// The steps of each cycle.
    pub cycles: Vec<Vec<Step>>,
    /// Whether the last cycle changed nothing, so that further ones would change nothing either.
    pub is_converged: bool,
}

impl Session {
    /// A session for the cluster in a snapshot.
    ///
    /// # Errors
    /// If such a cluster is impossible; the error names the entry.
    pub fn new(snapshot: &File) -> Result<Self> {
        let mut engine = snapshot.engine()?;
        let view = engine.view();
        let now_ms = view.cluster().now_ms();
        Ok(Self { engine, nodes: AtOnce::default(), view, now_ms })
    }

    /// The cluster in its present state.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        self.view.cluster()
    }

    /// The scheduler, as the last cycle has left it.
    #[must_use]
    pub fn scheduler(&self) -> &Scheduler {
        self.view.scheduler()
    }

    /// The newest view, with the plan of the last cycle.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Runs cycles until one changes nothing, and at most `cycles_max`. Evicted claims are gone before the next cycle.
    pub fn converge(&mut self, cycles_max: usize) -> Converged {
        let mut cycles = Vec::new();
        let mut is_converged = false;
        while !is_converged && cycles.len() < cycles_max {
            let Ready { commands, view, .. } = self.engine.poll(self.now_ms);
            let ran = view.filter(|view| view.cycles() > self.view.cycles());
            let steps: Vec<Step> = ran.iter().flat_map(|view| Step::all(view.cluster(), view.plan())).collect();
            let any_left = ran.is_some_and(|view| any_leaves(view.cluster()));
            commands.into_iter().for_each(|command| self.nodes.carry_out(command));
            for answer in self.nodes.take_answers() {
                let taken = self.engine.handle(self.now_ms, answer);
                debug_assert!(taken.is_ok(), "{taken:?}");
            }
            self.view = self.engine.view();
            is_converged = steps.is_empty() && !any_left;
            if !is_converged {
                cycles.push(steps);
            }
        }
        Converged { cycles, is_converged }
    }

    /// Lets time pass until `then_ms`.
    ///
    /// # Errors
    /// If the time is later already.
    pub fn advance(&mut self, then_ms: u64) -> Result<(), EventError> {
        self.view.cluster().clone().apply(Event::TimeAdvanced(then_ms))?;
        self.now_ms = then_ms;
        Ok(())
    }

    /// Removes a node for good: the claims that ran there become pending again.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove_node(&mut self, name: &str) -> Result<(), EventError> {
        self.engine.handle(self.now_ms, Observation::NodeGone(NodeName::from(name)))?;
        self.view = self.engine.view();
        Ok(())
    }

    /// Finds a claim by its name, with or without its namespace.
    #[must_use]
    pub fn claim_named(&self, name: &str) -> Option<ClaimId> {
        let (namespace, name) = split_name(name);
        let named = |claim: &KnownClaim| claim.namespace == namespace && *claim.name == *name;
        self.cluster().claims().find(|(_, claim, _)| named(claim)).map(|(id, ..)| id)
    }

    /// The pending claims after the cycles, with their reasons.
    #[must_use]
    pub fn waiting(&self) -> Vec<WaitingClaims> {
        WaitingClaims::all(self)
    }
}

fn any_leaves(cluster: &Cluster) -> bool {
    cluster.claims().any(|(id, ..)| cluster.leaving(id).is_some())
}
