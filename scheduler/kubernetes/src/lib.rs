//! The scheduler on Kubernetes: pods that name it are bound to nodes and to parts of devices.
//!
//! ```text
//!  API server ── watches ──► mirror ── Observation ──► engine
//!       ▲                      ▲  │                       │
//!       └── writer ◄── Write ──┼──┘◄────── Command ───────┘
//!              └── outcome ────┘        View ──► report ──► conditions and events
//! ```
//!
//! The API server is the memory: a leader that begins reads all, and goes on. One annotation, written together with the
//! binding, says which devices a pod has (`aliquot.dev/devices`); its node's manager enforces it. Where managers are
//! DRA drivers the allocation of the pod's ResourceClaim says it, which is written just before the binding. What the
//! engine has learned, such as what queues have used so far, is in a `ConfigMap` (`remembered`).
//!
//! Pods of kube-scheduler can have their devices here as well: it asks by its extender protocol (`extender`), and the
//! same engine decides.
//!
//! Each replica also reviews objects when they are made (`webhook`): what could never be given is refused at once.
//!
//! The nodes' managers report what slices use and how devices are (`reports`), where they are told to. Without reports,
//! everything else still works.
//!
//! # One leader
//!
//! Replicas elect a leader by a Lease. A leader's term is greater than all terms before. A leader begins no write after
//! the end of its lease. A write that was on its way then may still arrive: the next leader sees it as it sees every
//! other change. A pod is bound once, whatever leaders do, because the API server binds a pod only once.

#![forbid(unsafe_code)]

mod budget;
mod certificates;
mod claim_report;
mod condition;
mod devices;
mod dra;
mod elastic;
mod evicted;
mod extender;
mod gang;
mod group_report;
mod kai_queue;
mod kai_words;
mod lease;
mod left_over;
mod mirror;
mod node;
mod one_per_node;
mod owner;
mod peers;
mod placement;
#[cfg(test)]
mod played;
mod pod;
mod questions;
mod queue;
mod queue_status;
mod readiness;
mod remembered;
mod report;
mod reports;
mod reservation;
mod resources;
mod scheduling_policy;
mod serve;
mod suspension;
mod telemetry;
mod tls;
mod volumes;
mod wanted;
mod watches;
mod webhook;
mod workload;
mod writer;

pub use condition::Condition;
pub use elastic::{
    ElasticGpu, ElasticGpuAmounts, ElasticGpuCapacity, ElasticGpuClaim, ElasticGpuClaimDefinition,
    ElasticGpuClaimPhase, ElasticGpuClaimReference, ElasticGpuClaimResources, ElasticGpuClaimStatus, ElasticGpuClass,
    ElasticGpuClassDefinition, ElasticGpuDefinition, ElasticGpuPhase, ElasticGpuStatus, ReclaimPolicy,
};
pub use queue::{Queue, QueueDefinition, QueueResource, QueueResources, QueueShare, QueueStatus};
pub use scheduling_policy::{
    Enforcement, MemoryPolicy, MultiGpuPolicy, PreemptionPolicy, SchedulingPolicy, SchedulingPolicyDefinition,
    TopologyPolicy, TopologyStrategy,
};
pub use serve::{Config, ExtenderListener, Listeners, QuestionsListener, ServeError, serve};
pub use tls::TlsFiles;
