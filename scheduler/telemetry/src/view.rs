//! The metrics of an engine's view: pending claims with reasons, and the state of queues, nodes and devices.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::explain::{Reason, Tier};
use aliquot_scheduler_core::{GroupId, Health, Node};
use aliquot_scheduler_engine::{NodeView, View};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use crate::{Amount, Level, QueueUse, ResourceUse, queue_uses};

/// All tiers of reasons.
const TIERS: [Tier; 10] = [
    Tier::Members,
    Tier::Namespace,
    Tier::Quota,
    Tier::FairShare,
    Tier::Topology,
    Tier::Search,
    Tier::Waiting,
    Tier::Device,
    Tier::Model,
    Tier::Size,
];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfQueue {
    queue: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfState {
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfReason {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfModel {
    model: String,
}

/// Whether a node accepts new claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// New claims may be started there.
    Up,
    /// The node cannot be reached.
    Silent,
    /// An administrator has closed it for new claims.
    Cordoned,
}

impl NodeState {
    const ALL: [NodeState; 3] = [NodeState::Up, NodeState::Silent, NodeState::Cordoned];

    /// The state as a word for metrics and tools.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            NodeState::Up => "up",
            NodeState::Silent => "silent",
            NodeState::Cordoned => "cordoned",
        }
    }
}

/// A device, with the allocated part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceUse {
    /// The UUID of the device.
    pub uuid: String,
    /// The model of the device.
    pub model: String,
    /// The memory of the device in bytes.
    pub memory_bytes: u64,
    /// Whether new parts of it may be allocated.
    pub is_healthy: bool,
    /// The allocated time, in thousandths of the device.
    pub core_given_millis: u32,
    /// The allocated memory in bytes.
    pub memory_given_bytes: u64,
}

/// The devices of a node, in the order of their numbers.
pub fn device_uses(node: &Node) -> impl Iterator<Item = DeviceUse> {
    node.spec().devices.iter().zip(node.devices()).map(|(spec, device)| DeviceUse {
        uuid: spec.uuid.to_string(),
        model: spec.model.clone(),
        memory_bytes: spec.memory.get(),
        is_healthy: spec.health == Health::Healthy,
        core_given_millis: 1000_u32.saturating_sub(device.core_free().get()),
        memory_given_bytes: spec.memory.saturating_sub(device.memory_free()).get(),
    })
}

/// Registers the metrics of a view. `searched`: the groups of which it is not known yet whether there is room for them.
/// `state` tells the state of a node.
pub fn register_view(
    registry: &mut Registry,
    view: &View,
    searched: &BTreeSet<GroupId>,
    state: impl Fn(&NodeView) -> NodeState,
) {
    waiting(registry, view, searched);
    queues(registry, &queue_uses(view));
    nodes(registry, view, state);
}

/// The number of pending groups for each reason, by the reason's word. Each word is there.
///
/// Of groups in `searched` it is not known yet whether there is room for them. What the books say of room does not count
/// then.
#[must_use]
pub fn waiting_by_reason(view: &View, searched: &BTreeSet<GroupId>) -> BTreeMap<&'static str, i64> {
    let reasons = view.plan().reasons(view.cluster());
    // An alert on a reason without pending claims must see 0, not a missing metric.
    let mut waiting: BTreeMap<&'static str, i64> = TIERS.map(|tier| (tier_word(tier), 0)).into();
    for (turn, pending) in view.plan().pending.iter().enumerate() {
        let Some(tier) = reasons.of(turn).map(Reason::tier) else { continue };
        let is_about_room = matches!(tier, Tier::Device | Tier::Model | Tier::Size);
        let is_searched = is_about_room && searched.contains(&pending.group);
        *waiting.entry(tier_word(if is_searched { Tier::Search } else { tier })).or_default() += 1;
    }
    waiting
}

fn waiting(registry: &mut Registry, view: &View, searched: &BTreeSet<GroupId>) {
    let waiting = Family::<OfReason, Level>::default();
    for (reason, number) in waiting_by_reason(view, searched) {
        waiting.get_or_create(&OfReason { reason }).set(number);
    }
    registry.register("waiting", "Tasks and gangs that wait for a place, by the main obstacle", waiting);
}

/// A tier of reasons as a word for metrics and tools.
#[must_use]
pub const fn tier_word(tier: Tier) -> &'static str {
    match tier {
        Tier::Members => "gang-incomplete",
        Tier::Namespace | Tier::Quota => "quota",
        Tier::FairShare => "fair-share",
        Tier::Topology => "topology",
        Tier::Search => "search",
        Tier::Waiting => "starts-soon",
        Tier::Device => "no-room",
        Tier::Model => "no-such-node",
        Tier::Size => "too-large",
    }
}

fn queues(registry: &mut Registry, queues: &[QueueUse]) {
    let count = |value: fn(&QueueUse) -> u32| {
        let family = Family::<OfQueue, Level>::default();
        for queue in queues {
            family.get_or_create(&OfQueue { queue: queue.name.clone() }).set(value(queue).into());
        }
        family
    };
    let past = Family::<OfQueue, Amount>::default();
    for queue in queues {
        let ratio = queue.past_usage_ppm as f64 / 1_000_000.0;
        past.get_or_create(&OfQueue { queue: queue.name.clone() }).set(ratio);
    }
    let registry = registry.sub_registry_with_prefix("queue");
    amounts(registry, queues, "gpus", "GPUs", 1000.0, |queue| queue.gpu);
    amounts(registry, queues, "cpus", "CPUs", 1000.0, |queue| queue.cpu);
    amounts(registry, queues, "memory_bytes", "Memory of nodes", 1.0, |queue| queue.memory);
    registry.register("past_usage_ratio", "GPU time that a queue had lately, as a part of all that there was", past);
    registry.register("running_tasks", "Members of tasks that run", count(|queue| queue.running));
    registry.register("pending_tasks", "Tasks that wait; a gang counts once", count(|queue| queue.waiting));
}

/// Registers the amounts of a resource. `unit` is one of the metric's, in the resource's unit.
fn amounts(
    registry: &mut Registry,
    queues: &[QueueUse],
    suffix: &str,
    resource: &str,
    unit: f64,
    of: fn(&QueueUse) -> ResourceUse,
) {
    type Value = fn(ResourceUse) -> Option<u64>;
    let metrics: [(&str, &str, Value); 5] = [
        ("quota", "that a queue is guaranteed", |of| of.quota),
        ("limit", "that a queue may have at most", |of| of.limit),
        ("fair_share", "that a queue may have now", |of| of.fair_share),
        ("held", "that a queue has", |of| Some(of.held)),
        ("pending", "that a queue waits for", |of| Some(of.pending)),
    ];
    for (name, help, value) in metrics {
        let family = Family::<OfQueue, Amount>::default();
        for queue in queues {
            if let Some(amount) = value(of(queue)) {
                family.get_or_create(&OfQueue { queue: queue.name.clone() }).set(amount as f64 / unit);
            }
        }
        registry.register(format!("{name}_{suffix}"), format!("{resource} {help}"), family);
    }
}

fn nodes(registry: &mut Registry, view: &View, state: impl Fn(&NodeView) -> NodeState) {
    let states = Family::<OfState, Level>::default();
    let [devices, unhealthy] = [(); 2].map(|()| Family::<OfModel, Level>::default());
    let [given, memory_given] = [(); 2].map(|()| Family::<OfModel, Amount>::default());
    for state in NodeState::ALL {
        let _ = states.get_or_create(&OfState { state: state.word() });
    }
    let cluster = view.cluster();
    for node in view.nodes() {
        states.get_or_create(&OfState { state: state(&node).word() }).inc();
        let books = cluster.node_named(node.name.as_str()).and_then(|id| cluster.node(id));
        for device in books.into_iter().flat_map(device_uses) {
            let model = OfModel { model: device.model };
            devices.get_or_create(&model).inc();
            unhealthy.get_or_create(&model).inc_by(i64::from(!device.is_healthy));
            given.get_or_create(&model).inc_by(f64::from(device.core_given_millis) / 1000.0);
            memory_given.get_or_create(&model).inc_by(device.memory_given_bytes as f64);
        }
    }
    registry.register("nodes", "Nodes that are known", states);
    registry.register("devices", "Devices of these nodes", devices);
    registry.register("devices_unhealthy", "Devices that take nothing new", unhealthy);
    registry.register("devices_given", "Time of devices that is given out, in devices", given);
    registry.register_with_unit(
        "device_memory_given",
        "Memory of devices that is given out",
        Unit::Bytes,
        memory_given,
    );
}
