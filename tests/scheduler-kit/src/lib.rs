//! Clusters for tests and benchmarks of the scheduler: short calls that add to one, and the usual nodes, queues and
//! requests. A test that needs other values changes the specification: `NodeSpec { labels, ..node("a", 64, 8) }`.
//!
//! The kit knows the scheduler's core alone. Each suite adds the calls that only it needs, and its checks, on a type of
//! its own that implements [`Build`].

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_scheduler_core::{
    Allowance, Alternative, Alternatives, Bytes, Claim, ClaimId, Cluster, DeviceCore, DeviceMemory, DeviceRequest,
    DeviceSpec, Event, GroupId, MilliCpu, NodeId, NodeSpec, Outcome, PodGroup, QueueSpec, Request, Resource,
    TopologySpread,
};

/// The memory of a [`device`].
pub const DEVICE_MEMORY: Bytes = Bytes::from_mib(80 << 10);

/// A receiver of events. Each call panics if its event is refused.
pub trait Build {
    /// Applies an event.
    ///
    /// # Panics
    /// If the event is refused.
    fn event(&mut self, event: Event) -> Outcome;

    /// Adds a node.
    fn add_node(&mut self, spec: NodeSpec) -> NodeId {
        match self.event(Event::NodeAdded(spec)) {
            Outcome::Node(id) => id,
            other => panic!("not a node's id: {other:?}"),
        }
    }

    /// Adds a queue.
    fn add_queue(&mut self, spec: QueueSpec) {
        self.event(Event::QueueAdded(spec));
    }

    /// Adds a claim.
    fn add_claim(&mut self, claim: Claim) -> ClaimId {
        match self.event(Event::ClaimAdded(claim)) {
            Outcome::Claim(id) => id,
            other => panic!("not a claim's id: {other:?}"),
        }
    }

    /// Adds a pod group, without members.
    fn add_group(&mut self, group: PodGroup) -> GroupId {
        match self.event(Event::PodGroupAdded(group)) {
            Outcome::Group(id) => id,
            other => panic!("not a group's id: {other:?}"),
        }
    }
}

impl Build for Cluster {
    fn event(&mut self, event: Event) -> Outcome {
        self.apply(event).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// How many of these claims are placed.
#[must_use]
pub fn placed(cluster: &Cluster, claims: &[ClaimId]) -> usize {
    claims.iter().filter(|claim| cluster.allocation(**claim).is_some()).count()
}

/// A device of a model, with 80 GiB.
#[must_use]
pub fn device(model: &str) -> DeviceSpec {
    DeviceSpec { model: model.into(), memory: DEVICE_MEMORY, ..DeviceSpec::default() }
}

/// A node with devices of model `A`, and without memory of its own.
#[must_use]
pub fn node(name: &str, cpu_cores: u64, devices: usize) -> NodeSpec {
    NodeSpec {
        name: name.into(),
        cpu: MilliCpu::new(cpu_cores * 1000),
        devices: vec![device("A"); devices],
        ..NodeSpec::default()
    }
}

/// A queue at the top with an allowance of device time.
#[must_use]
pub fn queue(name: &str, allowance: Allowance) -> QueueSpec {
    let allowances = BTreeMap::from([(Resource::DeviceCore, allowance)]);
    QueueSpec { name: name.into(), allowances, ..QueueSpec::default() }
}

/// A quota of this number of devices, and weight 1 for the rest.
#[must_use]
pub fn quota(devices: u64) -> Allowance {
    Allowance { quota: Some(devices * 1000), weight: 1, ..Allowance::default() }
}

/// Whole devices.
#[must_use]
pub fn whole(devices: u16) -> Request {
    Request { devices: DeviceRequest::whole(devices), ..Request::default() }
}

/// A part of one device, of its time and of its memory alike.
#[must_use]
pub fn part(percent: u32) -> Request {
    let memory = DeviceMemory::Thousandths(percent * 10);
    let devices = DeviceRequest { count: 1, core: DeviceCore::from_percent(percent), memory };
    Request { devices, ..Request::default() }
}

/// What the first request asks for, or else the devices of one of the others, in this order; called `a`, `b`, and so on.
#[must_use]
pub fn first_of(choices: &[Request]) -> Request {
    let mut choices = choices.iter().cloned();
    let first = choices.next().unwrap_or_default();
    let other = |(rank, name, choice): (u16, char, Request)| Alternative {
        name: name.into(),
        rank,
        devices: choice.devices,
        models: choice.constraints.models,
        attributes: choice.constraints.attributes,
        further: choice.further,
    };
    let others = (1..).zip('b'..).zip(choices).map(|((rank, name), choice)| other((rank, name, choice))).collect();
    let alternatives = Some(Arc::new(Alternatives { first_name: "a".into(), others }));
    Request { alternatives, ..first }
}

/// Members of a group on nodes of all kinds are spread over the domains of a key.
#[must_use]
pub fn spread(group: &str, key: &str, max_skew: u32) -> TopologySpread {
    TopologySpread {
        group: group.into(),
        topology_key: key.into(),
        max_skew,
        min_domains: 1,
        labels: BTreeMap::new(),
        node_terms: BTreeSet::new(),
        tolerations: None,
    }
}

/// CPU cores, and nothing else.
#[must_use]
pub fn cores(cpu_cores: u64) -> Request {
    Request { cpu: MilliCpu::new(cpu_cores * 1000), ..Request::default() }
}
