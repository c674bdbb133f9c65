//! What `kubectl aliquot` asks the leading scheduler, and what that answers: JSON over HTTP.
//!
//! The scheduler answers on the loopback of its pod only. Whoever asks comes through `pods/portforward` of the API
//! server, whose rules say who may. The Lease says which pod leads.
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

/// The name of the pod of a replica of this identity, as the Lease says it: `POD_...`.
#[must_use]
pub fn pod_of(identity: &str) -> &str {
    identity.split_once('_').map_or(identity, |(pod, _)| pod)
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// In one sentence.
    pub problem: String,
}

/// All queues, each before those below it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queues {
    /// The queues.
    pub queues: Vec<Queue>,
}

/// A queue. Amounts and counts are those of all queues below it, too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// The queue above it.
    pub parent: Option<String>,
    /// How many queues are above it.
    pub depth: u32,
    /// What it is guaranteed, in thousandths of a GPU; `None`: all there is.
    pub quota_gpu_millis: Option<u64>,
    /// What it never exceeds, in thousandths of a GPU; `None`: no limit.
    pub limit_gpu_millis: Option<u64>,
    /// What it may have now, in thousandths of a GPU.
    pub fair_share_gpu_millis: u64,
    /// What it has, in thousandths of a GPU.
    pub held_gpu_millis: u64,
    /// What it waits for, in thousandths of a GPU.
    pub pending_gpu_millis: u64,
    /// Pods that are bound.
    pub running: u32,
    /// Pods and gangs that wait.
    pub waiting: u32,
    /// Which of them is first in the order of turns.
    pub first: Option<String>,
    /// Why that one waits.
    pub first_waits_because: Option<String>,
}

/// What is used of devices, as the managers of nodes report it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageAnswer {
    /// The nodes that were heard of lately.
    pub nodes: Vec<NodeUsage>,
    /// The queues of the pods that have parts of devices.
    pub queues: Vec<PodQueue>,
}

/// What is used on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeUsage {
    /// The node, by its name.
    pub node: String,
    /// How long ago its manager has said this.
    pub age_ms: u64,
    /// What slices use of devices.
    pub parts: Vec<PartUsage>,
}

/// What a slice uses of a device.
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
    /// The memory that is in use.
    pub memory_bytes: u64,
}

/// Names a container of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ContainerName {
    /// The namespace that the pod is in.
    pub namespace: String,
    /// The pod, by its name there.
    pub pod: String,
    /// The container's own name.
    pub container: String,
}

/// The queue of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodQueue {
    /// The namespace that the pod is in.
    pub namespace: String,
    /// The pod, by its name there.
    pub pod: String,
    /// The queue that it waits in, or that pays for what it has.
    pub queue: String,
}

/// What the scheduler knows of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodAnswer {
    /// How far it is.
    pub state: PodState,
    /// The queue that it is in.
    pub queue: String,
    /// Its node, or the one that is kept for it.
    pub node: Option<String>,
    /// What is in its way, the most basic first.
    pub reasons: Vec<Reason>,
    /// Single changes, each of which would let it start, the smallest first.
    pub changes: Vec<String>,
    /// Why it was evicted last, and what led to that.
    pub evictions: Vec<String>,
}

/// How far a pod is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PodState {
    /// It waits for a place.
    #[default]
    Waiting,
    /// It is not scheduled as it is.
    NotSupported,
    /// It has a place, and waits until others have left it.
    Placed,
    /// It is being bound.
    Binding,
    /// It is bound.
    Bound,
    /// It is being evicted, or deleted.
    Leaving,
    /// It has a scheduling gate: somebody else must let it go on first.
    Gated,
    /// It is another scheduler's, or has ended.
    NotOurs,
}

impl PodState {
    /// In words, after the name of a pod.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            PodState::Waiting => "waits",
            PodState::NotSupported => "is not scheduled as it is",
            PodState::Placed => "has a place, and waits until others have left it",
            PodState::Binding => "is being bound",
            PodState::Bound => "is bound",
            PodState::Leaving => "leaves its node",
            PodState::Gated => "has a scheduling gate, which somebody else must take away first",
            PodState::NotOurs => "is not this scheduler's, or has ended",
        }
    }
}

/// Why something waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// What it is about, in one word: `quota`, `fair-share`, `no-room`, ...
    pub tier: String,
    /// A sentence without its full stop.
    pub text: String,
}

/// What would happen if there were these pods, too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WhatIf {
    /// The pod, as a manifest says it. Of its metadata the labels, annotations and namespace count.
    pub pod: Value,
    /// How many of it there are.
    pub count: u32,
    /// Whether all of them start together or none does.
    pub gang: bool,
    /// What each asks of devices, in place of what the pod says.
    pub devices: Option<DeviceAsk>,
}

/// What a pod asks of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceAsk {
    /// How many devices.
    pub gpus: u16,
    /// The part of each one's time, in percent.
    pub gpu_core_percent: u32,
    /// The part of each one's memory; `None`: as large a part as of its time.
    pub gpu_memory_bytes: Option<u64>,
}

/// What would happen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhatIfAnswer {
    /// The queue in which the pods would be.
    pub queue: String,
    /// Where pods would start.
    pub placed: Vec<Placement>,
    /// How many would wait.
    pub waiting: u32,
    /// Who would make way for them.
    pub making_way: Vec<MakingWay>,
    /// Why the rest would wait, the most basic first.
    pub reasons: Vec<Reason>,
    /// Single changes, each of which would let them start, the smallest first.
    pub changes: Vec<String>,
}

/// Where a pod would start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The node.
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
    /// The part of its time, in thousandths.
    pub core_thousandths: u32,
    /// The part of its memory.
    pub memory_bytes: u64,
}

/// A pod that would be evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MakingWay {
    /// Its namespace and name.
    pub pod: String,
    /// Its queue.
    pub queue: String,
    /// Where it is.
    pub node: String,
    /// Where a pod in its place would start; `None`: it would wait.
    pub to: Option<String>,
    /// `reclaim`, `preempt` or `consolidate`.
    pub action: String,
}
