//! The questions of `kubectl aliquot` to the leading scheduler, and the answers: JSON over HTTP.
//!
//! The scheduler answers only on the loopback of its pod. Clients come through `pods/portforward` of the API server,
//! and its rules decide which users may do so. The Lease names the pod that leads.
//!
//! | request | answer |
//! | --- | --- |
//! | `GET /v1/queues` | [`Queues`] |
//! | `GET /v1/pods/NAMESPACE/NAME` | [`PodAnswer`] |
//! | `GET /v1/usage` | [`UsageAnswer`] |
//! | `POST /v1/what-if` with a [`WhatIf`] | [`WhatIfAnswer`] |
//!
//! Any other outcome is a [`Problem`], with the status 404 (no such pod), 422 (the question makes no sense) or 503
//! (this replica does not lead, or has not read the cluster yet).

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The Lease by which replicas elect the leader.
pub const LEASE: &str = "aliquot-scheduler";

/// The port on the loopback of the scheduler's pod.
pub const QUESTIONS_PORT: u16 = 9407;

/// The name of the pod in a replica's identity, which the Lease contains: `POD_...`.
#[must_use]
pub fn pod_of(identity: &str) -> &str {
    identity.split_once('_').map_or(identity, |(pod, _)| pod)
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The problem as one sentence.
    pub problem: String,
}

/// All queues, each before those below it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queues {
    /// All queues of the cluster.
    pub queues: Vec<Queue>,
}

/// A queue. Amounts and counts include all queues below it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// The name of the queue.
    pub name: String,
    /// The name of the queue above it.
    pub parent: Option<String>,
    /// How many queues are above it.
    pub depth: u32,
    /// The guaranteed amount, in thousandths of a GPU; `None`: all GPUs.
    pub quota_gpu_millis: Option<u64>,
    /// The amount that is never exceeded, in thousandths of a GPU; `None`: no limit.
    pub limit_gpu_millis: Option<u64>,
    /// The fair share at this time, in thousandths of a GPU; `None`: nothing is shared out by queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fair_share_gpu_millis: Option<u64>,
    /// What its pods have held lately of the GPUs' time, in millionths of what there was.
    #[serde(default)]
    pub past_usage_ppm: u64,
    /// The amount that its pods hold, in thousandths of a GPU.
    pub held_gpu_millis: u64,
    /// The amount that its pending pods ask for, in thousandths of a GPU.
    pub pending_gpu_millis: u64,
    /// CPU, in thousandths of a core; `None`: the scheduler is of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<QueueAmounts>,
    /// Memory of nodes, in bytes; `None`: the scheduler is of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<QueueAmounts>,
    /// Number of bound pods.
    pub running: u32,
    /// Number of pending pods and gangs. A gang counts once.
    pub waiting: u32,
    /// The first pending pod or gang in the order of turns.
    pub first: Option<String>,
    /// Why the first one waits.
    pub first_waits_because: Option<String>,
}

/// A queue's amounts of CPU or of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueAmounts {
    /// The guaranteed amount; `None`: everything.
    pub quota: Option<u64>,
    /// The amount that is never exceeded; `None`: no limit.
    pub limit: Option<u64>,
    /// The fair share at this time; `None`: the resource is not shared out by queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fair_share: Option<u64>,
    /// The amount that its pods hold.
    pub held: u64,
    /// The amount that its pending pods ask for.
    pub pending: u64,
}

/// What is used of devices, as the managers of nodes report it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageAnswer {
    /// The nodes with a recent report.
    pub nodes: Vec<NodeUsage>,
    /// The queues of the pods that hold parts of devices.
    pub queues: Vec<PodQueue>,
}

/// What is used on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeUsage {
    /// The name of the node.
    pub node: String,
    /// The age of its manager's report in milliseconds.
    pub age_ms: u64,
    /// The usage of each slice of each device.
    pub parts: Vec<PartUsage>,
}

/// The usage of one device by one slice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartUsage {
    /// The id of the slice.
    pub slice: String,
    /// The UUID of the device.
    pub device: String,
    /// The containers that run in the slice.
    pub consumers: Vec<ContainerName>,
    /// The part of the device's time that was used in the last 10 seconds, in thousandths.
    pub core_thousandths: u32,
    /// The used memory in bytes.
    pub memory_bytes: u64,
}

/// Names a container of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ContainerName {
    /// The namespace of the pod.
    pub namespace: String,
    /// The name of the pod.
    pub pod: String,
    /// The name of the container in the pod.
    pub container: String,
}

/// The queue of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodQueue {
    /// The namespace of the pod.
    pub namespace: String,
    /// The name of the pod.
    pub pod: String,
    /// The queue in which it waits, or whose quota it uses.
    pub queue: String,
}

/// What the scheduler knows of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodAnswer {
    /// The state of the pod.
    pub state: PodState,
    /// The queue of the pod.
    pub queue: String,
    /// The node of the pod, or the node that is kept for it.
    pub node: Option<String>,
    /// The obstacles, the most basic first.
    pub reasons: Vec<Reason>,
    /// Single changes, each of which would let it start, the smallest first.
    pub changes: Vec<String>,
    /// The reasons of its last evictions, with what led to them.
    pub evictions: Vec<String>,
}

/// The state of a pod in the scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PodState {
    /// It waits for a place.
    #[default]
    Waiting,
    /// Its specification is not supported, so it is not scheduled.
    NotSupported,
    /// It has a place, and waits until other pods have left it.
    Placed,
    /// It is being bound.
    Binding,
    /// It is bound to its node.
    Bound,
    /// It is being evicted, or deleted.
    Leaving,
    /// It has a scheduling gate, which another component must remove first.
    Gated,
    /// It belongs to another scheduler, or has ended.
    NotOurs,
}

impl PodState {
    /// The state as words that can follow the name of a pod.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            PodState::Waiting => "waits",
            PodState::NotSupported => "is not scheduled as it is",
            PodState::Placed => "has a place, and waits until others have left it",
            PodState::Binding => "is being bound",
            PodState::Bound => "is bound",
            PodState::Leaving => "leaves its node",
            PodState::Gated => "has a scheduling gate, which its owner must remove first",
            PodState::NotOurs => "is not this scheduler's, or has ended",
        }
    }
}

/// Why a pod or gang waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// The kind of the reason in one word: `quota`, `fair-share`, `no-room`, ...
    pub tier: String,
    /// A sentence without its full stop.
    pub text: String,
}

/// The question what would happen if these pods existed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WhatIf {
    /// The manifest of the pod. Of its metadata, only labels, annotations and the namespace count.
    pub pod: Value,
    /// The metadata of the object that makes the pods. Its labels and annotations count where those of the pods' owner do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Value>,
    /// The number of such pods.
    pub count: u32,
    /// Whether all of them must start together.
    pub gang: bool,
    /// The devices that each pod asks for, instead of those in the manifest.
    pub devices: Option<DeviceAsk>,
}

/// A pod's request for devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceAsk {
    /// The number of devices.
    pub gpus: u16,
    /// The part of the time of each device, in percent.
    pub gpu_core_percent: u32,
    /// The part of the memory of each device in bytes; `None`: as large a part as that of its time.
    pub gpu_memory_bytes: Option<u64>,
}

/// What would happen to the pods in question.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhatIfAnswer {
    /// The queue of the pods.
    pub queue: String,
    /// The pods that would start, with their places.
    pub placed: Vec<Placement>,
    /// The number of pods that would wait.
    pub waiting: u32,
    /// The running pods that would be evicted for them.
    pub making_way: Vec<MakingWay>,
    /// Why the rest would wait, the most basic reason first.
    pub reasons: Vec<Reason>,
    /// Single changes, each of which would let them start, the smallest first.
    pub changes: Vec<String>,
    /// The manifest with what the webhook fills in; `None`: there is no webhook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Value>,
}

/// The place where a pod would start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The name of the node.
    pub node: String,
    /// The parts of devices that it would get.
    pub devices: Vec<Part>,
    /// The pods that must have left first.
    pub after: Vec<String>,
}

/// A part of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The UUID of the device.
    pub uuid: String,
    /// The part of the device's time, in thousandths.
    pub core_thousandths: u32,
    /// The part of the device's memory in bytes.
    pub memory_bytes: u64,
}

/// A pod that would be evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MakingWay {
    /// The namespace and name of the pod.
    pub pod: String,
    /// The queue of the pod.
    pub queue: String,
    /// The node on which it runs now.
    pub node: String,
    /// The node on which a replacement would start; `None`: it would wait.
    pub to: Option<String>,
    /// The action that evicts it: `reclaim`, `preempt` or `consolidate`.
    pub action: String,
}
