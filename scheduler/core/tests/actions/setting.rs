//! A cluster and its scheduler, with short calls.

use aliquot_scheduler_core::placement::BestFit;
use aliquot_scheduler_core::{
    Allowance, Claim, ClaimId, Cluster, DeviceCore, DeviceRequest, Event, NodeId, NodeSpec, Outcome, Plan, PodGroup,
    QueueSpec, Request, Resource, Scheduler, Settings, Step, Texts,
};
use aliquot_scheduler_kit::{self as kit, Build};

pub(crate) const TRAIN: i32 = 50;
pub(crate) const INFERENCE: i32 = 125;

pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) scheduler: Scheduler,
}

impl World {
    /// Nodes with these numbers of devices.
    pub(crate) fn new(nodes: &[usize]) -> Self {
        Self::with(nodes, Settings::default())
    }

    pub(crate) fn with(nodes: &[usize], settings: Settings) -> Self {
        let mut cluster = Cluster::new();
        for (number, devices) in nodes.iter().enumerate() {
            let name = format!("node-{number}");
            let labels = Texts::from([("host".into(), name.clone())]);
            cluster.add_node(NodeSpec { labels, ..kit::node(&name, 64, *devices) });
        }
        Self { cluster, scheduler: Scheduler::new(Box::new(BestFit), settings) }
    }

    pub(crate) fn apply(&mut self, event: Event) -> Outcome {
        self.cluster.event(event)
    }

    /// A queue with a quota of this many devices, and an equal part of what is left over.
    pub(crate) fn queue(&mut self, name: &str, devices: u64) {
        self.queue_with(name, None, kit::quota(devices));
    }

    pub(crate) fn queue_with(&mut self, name: &str, parent: Option<&str>, allowance: Allowance) {
        self.apply(Event::QueueAdded(QueueSpec { parent: parent.map(Into::into), ..kit::queue(name, allowance) }));
    }

    pub(crate) fn claim(&mut self, claim: Claim) -> ClaimId {
        self.cluster.add_claim(claim)
    }

    /// A claim for whole devices; it may be evicted.
    pub(crate) fn add(&mut self, queue: &str, priority: i32, devices: u16) -> ClaimId {
        self.claim(wants(queue, priority, devices))
    }

    pub(crate) fn gang(&mut self, group: PodGroup, members: usize, devices: u16) -> Vec<ClaimId> {
        let name = group.name.clone();
        self.apply(Event::PodGroupAdded(group));
        let member = Claim { pod_group: Some(name), ..wants("", 0, devices) };
        (0..members).map(|_| self.claim(member.clone())).collect()
    }

    pub(crate) fn run_on(&mut self, claim: ClaimId, node: usize, first: u16) {
        let node: NodeId = self.cluster.node_named(&format!("node-{node}")).expect("a node of the world");
        let request = self.cluster.claim(claim).expect("a claim of the world").request.devices;
        let memory = |device: u16| {
            let memory = self.cluster.node(node).map(|node| node.devices()[usize::from(device)].memory());
            request.memory.on(memory.expect("a device of the node"))
        };
        let part =
            |device| aliquot_scheduler_core::DeviceAllocation { device, core: request.core, memory: memory(device) };
        let devices = (first..first + request.count).map(part).collect();
        let allocation = aliquot_scheduler_core::Allocation { node, devices, alternative: 0 };
        self.apply(Event::ClaimPlaced(claim, allocation));
    }

    /// A claim that fits on no node. With it, its queue's fair share is all of its quota.
    pub(crate) fn asks_for_the_rest(&mut self, queue: &str) {
        let _ = self.add(queue, TRAIN - 1, 64);
    }

    /// One cycle. The claims that it evicts are gone at once.
    pub(crate) fn cycle(&mut self) -> Plan {
        let plan = self.scheduler.cycle(&mut self.cluster);
        for step in &plan.steps {
            if self.cluster.leaving(step.step.claim()).is_some() {
                self.apply(Event::ClaimGone(step.step.claim()));
            }
        }
        plan
    }

    pub(crate) fn runs(&self, claim: ClaimId) -> bool {
        self.cluster.allocation(claim).is_some()
    }

    pub(crate) fn running(&self, claims: &[ClaimId]) -> usize {
        kit::placed(&self.cluster, claims)
    }

    pub(crate) fn devices_of(&self, queue: &str) -> u64 {
        let queue = self.cluster.queue_named(queue).expect("a queue of the world");
        self.cluster.allocated(queue, &Resource::DeviceCore) / 1000
    }
}

pub(crate) fn wants(queue: &str, priority: i32, devices: u16) -> Claim {
    Claim { request: kit::whole(devices), queue: queue.into(), priority, preemptible: true, ..Claim::default() }
}

pub(crate) fn part(queue: &str, priority: i32, percent: u32) -> Claim {
    let devices = DeviceRequest::share(DeviceCore::from_percent(percent));
    Claim { request: Request { devices, ..Request::default() }, ..wants(queue, priority, 0) }
}

pub(crate) fn group(name: &str, queue: &str, priority: i32, min_members: u32) -> PodGroup {
    PodGroup { name: name.into(), queue: queue.into(), priority, preemptible: true, min_members, ..PodGroup::default() }
}

pub(crate) fn evicted(plan: &Plan) -> Vec<ClaimId> {
    plan.steps.iter().filter(|step| matches!(step.step, Step::Evict { .. })).map(|step| step.step.claim()).collect()
}

pub(crate) fn moved(plan: &Plan) -> Vec<ClaimId> {
    plan.steps.iter().filter(|step| matches!(step.step, Step::Move { .. })).map(|step| step.step.claim()).collect()
}

pub(crate) fn build(queue: &str, devices: u16) -> Claim {
    Claim { preemptible: false, ..wants(queue, 100, devices) }
}

impl World {
    pub(crate) fn id(&self, n: usize) -> NodeId {
        self.cluster.node_named(&format!("node-{n}")).unwrap()
    }

    pub(crate) fn wait(&mut self, ms: u64) {
        let now = self.cluster.now_ms();
        self.apply(Event::TimeAdvanced(now + ms));
    }
}
