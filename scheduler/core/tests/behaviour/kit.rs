//! A small cluster with its scheduler and its machines, with short calls to make and inspect it. All laws are checked
//! after each event and each cycle.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_scheduler_core::placement::{BestFit, Policy};
use aliquot_scheduler_core::{
    Action, Allowance, Bytes, Claim, ClaimId, Cluster, DumpedGroupRef, Event, EventError, GroupId, NodeId, NodeSpec,
    Outcome, Plan, PodGroup, QueueSpec, Request, Resource, Scheduler, Settings, Step,
};
use aliquot_scheduler_kit::Build;
pub(crate) use aliquot_scheduler_kit::{cores, part, quota, spread, whole};

use crate::laws::{self, Declared};
use crate::machines::Machines;
use crate::peers;

/// More cycles than any small situation needs to come to rest.
const CYCLES_MAX: usize = 100;

pub(crate) struct Kit {
    pub(crate) cluster: Cluster,
    pub(crate) scheduler: Scheduler,
    pub(crate) settings: Settings,
    pub(crate) machines: Machines,
    pub(crate) declared: Declared,
}

impl Kit {
    /// A kit without nodes, with the default queue and best fit.
    pub(crate) fn new() -> Self {
        Self::with(Box::new(BestFit), Settings::default())
    }

    pub(crate) fn with(policy: Box<dyn Policy>, settings: Settings) -> Self {
        Self {
            cluster: Cluster::new(),
            scheduler: Scheduler::new(policy, settings),
            settings,
            machines: Machines::default(),
            declared: Declared::default(),
        }
    }

    /// A kit with this many nodes, with this many devices each.
    pub(crate) fn of_nodes(nodes: usize, devices: usize) -> Self {
        let mut kit = Self::new();
        (0..nodes).for_each(|number| _ = kit.node(node(&format!("node-{number}"), devices)));
        kit
    }

    /// Applies an event and returns its outcome. The laws are checked afterwards.
    pub(crate) fn try_event(&mut self, event: Event) -> Result<Outcome, EventError> {
        let foretold = match &event {
            Event::ClaimAdded(claim) => Some(self.cluster.admitted(Arc::new(claim.clone()))),
            _ => None,
        };
        let applied = self.cluster.apply(event.clone());
        if let Some(foretold) = foretold {
            let added = applied.as_ref().map(|outcome| match outcome {
                Outcome::Claim(id) => self.cluster.claim(*id).map(Claim::from),
                _ => None,
            });
            assert_eq!(
                foretold.as_ref().map(|claim| Some(Claim::clone(claim))),
                added,
                "{event:?}: the answer in advance"
            );
        }
        let outcome = applied?;
        self.declared.note(&event);
        self.machines.observe(&self.cluster, &event, &outcome).unwrap_or_else(|broken| panic!("{event:?}: {broken}"));
        peers::let_start(&self.cluster, &outcome).unwrap_or_else(|broken| panic!("after {event:?}: {broken}"));
        self.check().unwrap_or_else(|broken| panic!("after {event:?}: {broken}"));
        Ok(outcome)
    }

    pub(crate) fn event(&mut self, event: Event) -> Outcome {
        self.try_event(event).unwrap_or_else(|error| panic!("the event was refused: {error}"))
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        laws::of_state(&self.cluster, &self.machines, &self.declared)
    }

    pub(crate) fn node(&mut self, spec: NodeSpec) -> NodeId {
        self.add_node(spec)
    }

    /// A queue at the top, or below another queue: "parent/child".
    pub(crate) fn queue(&mut self, path: &str, allowance: Allowance) {
        self.queue_of(path, BTreeMap::from([(Resource::DeviceCore, allowance)]), |_| {});
    }

    pub(crate) fn queue_of(
        &mut self,
        path: &str,
        allowances: BTreeMap<Resource, Allowance>,
        change: impl FnOnce(&mut QueueSpec),
    ) {
        let (parent, name) = match path.rsplit_once('/') {
            Some((parent, name)) => (parent.rsplit('/').next().map(str::to_owned), name),
            None => (None, path),
        };
        let mut spec = QueueSpec { name: name.into(), parent, allowances, ..QueueSpec::default() };
        change(&mut spec);
        self.event(Event::QueueAdded(spec));
    }

    pub(crate) fn claim(&mut self, claim: Claim) -> ClaimId {
        self.add_claim(claim)
    }

    pub(crate) fn claims(&mut self, count: usize, claim: &Claim) -> Vec<ClaimId> {
        (0..count).map(|_| self.claim(claim.clone())).collect()
    }

    /// A pod group with members that are all alike.
    pub(crate) fn gang(&mut self, group: PodGroup, members: usize, request: &Request) -> Vec<ClaimId> {
        let (name, namespace) = (group.name.clone(), group.namespace.clone());
        self.group(group);
        let member =
            Claim { request: request.clone(), pod_group: Some(name.clone()), name, namespace, ..Claim::default() };
        self.claims(members, &member)
    }

    pub(crate) fn group(&mut self, group: PodGroup) -> GroupId {
        self.add_group(group)
    }

    pub(crate) fn remove(&mut self, claim: ClaimId) {
        self.event(Event::ClaimRemoved(claim));
    }

    pub(crate) fn advance(&mut self, by_ms: u64) {
        self.event(Event::TimeAdvanced(self.cluster.now_ms() + by_ms));
    }

    /// Runs one cycle and carries out its plan. The evicted claims have not left yet.
    pub(crate) fn try_cycle(&mut self) -> Result<Plan, String> {
        let before = self.cluster.clone();
        let plan = self.scheduler.cycle(&mut self.cluster);
        laws::of_plan(&before, &self.cluster, &plan, &self.settings, &self.declared)?;
        self.machines.carry_out(&self.cluster, &plan)?;
        self.check()?;
        Ok(plan)
    }

    pub(crate) fn cycle(&mut self) -> Plan {
        self.try_cycle().unwrap_or_else(|broken| panic!("{broken}"))
    }

    /// Lets all claims that were told to go be gone.
    pub(crate) fn let_go(&mut self) {
        let stopping: Vec<ClaimId> = self.machines.stopping().collect();
        stopping.into_iter().for_each(|claim| _ = self.event(Event::ClaimGone(claim)));
    }

    /// Runs cycles until nothing changes; evicted claims are gone at once. Returns the steps that were done.
    pub(crate) fn converge(&mut self) -> Vec<(Action, Step)> {
        let mut done = Vec::new();
        for _ in 0..CYCLES_MAX {
            let plan = self.cycle();
            self.let_go();
            if plan.steps.is_empty() {
                return done;
            }
            done.extend(plan.steps.into_iter().map(|planned| (planned.action, planned.step)));
        }
        panic!("no rest after {CYCLES_MAX} cycles");
    }

    /// How many of these claims run.
    pub(crate) fn running(&self, claims: &[ClaimId]) -> usize {
        claims.iter().filter(|claim| self.machines.runs(**claim)).count()
    }

    /// The groups for which something of queues' bounds is kept.
    pub(crate) fn keepers(&self) -> Vec<DumpedGroupRef> {
        let bounded = self.scheduler.dump_without_claims(&self.cluster).bounded.into_iter();
        bounded.filter(|bounded| bounded.keeping.is_some()).map(|bounded| bounded.group).collect()
    }

    /// The nodes that are kept for groups.
    pub(crate) fn kept_nodes(&self) -> Vec<NodeId> {
        self.cluster.nodes().map(|(id, _)| id).filter(|id| self.cluster.is_held(*id)).collect()
    }

    /// The name of the node that a claim is placed on.
    pub(crate) fn node_of(&self, claim: ClaimId) -> Option<&str> {
        let allocation = self.cluster.allocation(claim)?;
        self.cluster.node(allocation.node).map(|node| node.spec().name.as_str())
    }
}

impl Build for Kit {
    fn event(&mut self, event: Event) -> Outcome {
        Kit::event(self, event)
    }
}

/// A node with much CPU and memory, and devices with 80 GiB each.
pub(crate) fn node(name: &str, devices: usize) -> NodeSpec {
    NodeSpec { memory: Bytes::from_mib(2 << 20), ..aliquot_scheduler_kit::node(name, 256, devices) }
}

/// A quota of this many devices, with a limit.
pub(crate) fn limited(devices: u64, limit: u64) -> Allowance {
    Allowance { limit: Some(limit * 1000), ..quota(devices) }
}

/// A claim that may be evicted.
pub(crate) fn train(queue: &str, request: Request) -> Claim {
    Claim { request, queue: queue.into(), priority: 50, preemptible: true, ..Claim::default() }
}

/// A claim that may not be evicted.
pub(crate) fn build(queue: &str, request: Request) -> Claim {
    Claim { request, queue: queue.into(), priority: 100, preemptible: false, ..Claim::default() }
}

/// A gang that may be evicted.
pub(crate) fn gang(name: &str, queue: &str, min_members: u32) -> PodGroup {
    PodGroup {
        name: name.into(),
        queue: queue.into(),
        priority: 50,
        preemptible: true,
        min_members,
        ..PodGroup::default()
    }
}

/// The claims that a plan's steps evict for good.
pub(crate) fn evicted(steps: &[(Action, Step)]) -> Vec<ClaimId> {
    let evicted = |step: &Step| matches!(step, Step::Evict { .. }).then(|| step.claim());
    steps.iter().filter_map(|(_, step)| evicted(step)).collect()
}
