//! Small clusters in which one cycle places everything.

use aliquot_scheduler_core::explain::{Change, Explanation, Reason};
use aliquot_scheduler_core::placement::BestFit;
use aliquot_scheduler_core::{
    Allowance, Bytes, Claim, ClaimId, Cluster, DeviceMemory, DeviceRequest, DeviceSpec, GroupId, NodeSpec, Plan,
    PodGroup, QueueSpec, Request, Scheduler, Settings,
};
use aliquot_scheduler_kit::{self as kit, Build};
pub(crate) use aliquot_scheduler_kit::{cores, whole};

pub(crate) const GIB: u64 = 1 << 30;

/// A cluster with its scheduler.
pub(crate) struct Setting {
    pub(crate) cluster: Cluster,
    pub(crate) scheduler: Scheduler,
}

impl Setting {
    /// A setting without nodes. No node is ever kept.
    pub(crate) fn new() -> Self {
        let settings = Settings { hold_after_ms: None, ..Settings::default() };
        Self { cluster: Cluster::new(), scheduler: Scheduler::new(Box::new(BestFit), settings) }
    }

    /// A setting with nodes `node-0`, `node-1`, ..., each with 16 cores, 64 GiB, and `devices` devices of model `A`
    /// with 40 GiB.
    pub(crate) fn with_nodes(nodes: usize, devices: usize) -> Self {
        let mut setting = Self::new();
        (0..nodes).for_each(|number| setting.add_node(node(&format!("node-{number}"), "A", devices)));
        setting
    }

    pub(crate) fn add_node(&mut self, spec: NodeSpec) {
        self.cluster.add_node(spec);
    }

    /// Adds a queue with an allowance of device time.
    pub(crate) fn add_queue(&mut self, name: &str, parent: Option<&str>, allowance: Allowance) {
        self.cluster.add_queue(QueueSpec { parent: parent.map(Into::into), ..kit::queue(name, allowance) });
    }

    pub(crate) fn add_claim(&mut self, claim: Claim) -> ClaimId {
        self.cluster.add_claim(claim)
    }

    /// Adds a preemptible claim.
    pub(crate) fn add(&mut self, name: &str, request: Request) -> ClaimId {
        self.add_claim(Claim { name: name.into(), request, preemptible: true, ..Claim::default() })
    }

    /// Adds a preemptible claim in this queue.
    pub(crate) fn add_in(&mut self, queue: &str, name: &str, request: Request) -> ClaimId {
        let queue = queue.into();
        self.add_claim(Claim { name: name.into(), queue, request, preemptible: true, ..Claim::default() })
    }

    /// Adds a pod group with this many members.
    pub(crate) fn add_group(&mut self, group: PodGroup, members: usize, request: &Request) -> (GroupId, Vec<ClaimId>) {
        let name = group.name.clone();
        let id = self.cluster.add_group(group);
        let member = |number: usize| Claim {
            name: format!("{name}-{number}"),
            pod_group: Some(name.clone()),
            request: request.clone(),
            ..Claim::default()
        };
        let members = (0..members).map(|number| self.add_claim(member(number))).collect();
        (id, members)
    }

    pub(crate) fn cycle(&mut self) -> Plan {
        self.scheduler.cycle(&mut self.cluster)
    }

    pub(crate) fn explain(&self, claim: ClaimId) -> Explanation {
        self.scheduler.explain(&self.cluster, claim).expect("a claim")
    }

    /// The reason of the first tier, and its sentence.
    pub(crate) fn reason(&self, claim: ClaimId) -> (Reason, String) {
        let explanation = self.explain(claim);
        let reason =
            explanation.reasons.first().cloned().unwrap_or_else(|| panic!("nothing in the way: {explanation}"));
        let text = reason.to_string();
        (reason, text)
    }

    /// The suggested changes, the smallest first, as text.
    pub(crate) fn suggestions(&self, claim: ClaimId) -> Vec<String> {
        self.explain(claim).changes.iter().map(Change::to_string).collect()
    }

    /// Whether the claim is placed by the next cycle after a change.
    pub(crate) fn helps(mut self, claim: ClaimId, change: &Change) -> bool {
        let explanation = self.explain(claim);
        for event in change.events(&self.cluster, explanation.group, &explanation.members) {
            self.cluster.apply(event).expect("a change that can be made");
        }
        self.cycle();
        self.cluster.allocation(claim).is_some()
    }
}

pub(crate) fn node(name: &str, model: &str, devices: usize) -> NodeSpec {
    let device = DeviceSpec { memory: Bytes::new(40 * GIB), ..kit::device(model) };
    NodeSpec { memory: Bytes::new(64 * GIB), devices: vec![device; devices], ..kit::node(name, 16, 0) }
}

/// A part of one device.
pub(crate) fn part(percent: u32, gib: u64) -> Request {
    let core = aliquot_scheduler_core::DeviceCore::from_percent(percent);
    let memory = DeviceMemory::Bytes(Bytes::new(gib * GIB));
    Request { devices: DeviceRequest { count: 1, core, memory }, ..Request::default() }
}

/// A limit of device time, in percent of one device, and a quota of 0.
pub(crate) fn limit(percent: u64) -> Allowance {
    Allowance { quota: Some(0), limit: Some(percent * 10), weight: 1, priority: None }
}

/// A quota of device time, in percent of one device, without a limit, and without a part of what others leave.
pub(crate) fn quota(percent: u64) -> Allowance {
    Allowance { quota: Some(percent * 10), limit: None, weight: 0, priority: None }
}
