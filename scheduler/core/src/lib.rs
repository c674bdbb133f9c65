//! Which claims go where, and why: the cluster scheduler's policy as a pure library.
//!
//! It has no clock, does no I/O and starts no thread. State is changed by [`Event`]s ([`Cluster::apply`]); trials are
//! [`Statement`]s that can be rolled back; an [`Engine`](placement::Engine) says where a claim should go.
//!
//! What queues are entitled to is a function of amounts ([`entitlements`]): fair shares, the order of turns
//! ([`DominantShare`]) and, later, reclaim and the choice of victims follow from the one [`Entitlement`].
//!
//! # Invariants
//!
//! * For each node's CPU and memory, and for each device's time and memory: what is free and what the placed claims
//!   hold add up to what there is. No sequence of events, errors and rollbacks changes that.
//! * No decision depends on a floating-point number or on the order of a hash: equal events give equal plans.
//! * An event that contradicts the state is refused and changes nothing.

#![forbid(unsafe_code)]

mod actions;
mod allowance;
mod amount;
mod beyond;
mod budget;
mod change_log;
mod claim;
mod class;
mod cluster;
mod disruption_budget;
mod dump;
mod entitled;
mod event;
pub mod explain;
mod fair_share;
mod gang;
mod group;
mod holds;
mod mix;
mod mix_counter;
mod namespace;
mod node;
mod not_enough;
pub mod placement;
mod plan;
mod pod_group;
mod priority;
mod protection;
mod quantity;
mod queue;
mod queue_share;
mod queue_spec;
mod request;
mod resource;
mod resources;
mod scheduler;
mod settings;
mod share;
mod shares;
mod signature;
mod slab;
mod spec;
mod statement;
mod step;
mod topology;
mod turns;
mod unit;
mod usage;

pub use allowance::Allowance;
pub use claim::{Action, Allocation, Claim, ClaimId, DeviceAllocation, Displacement, NodeId};
pub use class::{Class, ClassId};
pub use cluster::Cluster;
pub use disruption_budget::DisruptionBudget;
pub use dump::{
    Dump, DumpEntry, DumpedBlocked, DumpedClaim, DumpedDisplacement, DumpedGroup, DumpedGroupRef, DumpedNode,
    DumpedPlace, DumpedQueue, DumpedSearch, DumpedUsage, RestoreError, RestoreReason,
};
pub use entitled::Standing;
pub use event::{Event, EventError, Outcome};
pub use fair_share::{Demand, DominantShare, Entitlement, QueueDemand, divide, entitlements};
pub use group::Group;
pub use namespace::{ClaimBounds, LimitRange, NamespaceError, NamespaceSpec};
pub use node::{Device, Node};
pub use not_enough::NotEnough;
pub use plan::{Pending, Plan, PlannedStep};
pub use pod_group::{GroupError, GroupId, GroupPlacement, PlacementStrategy, PodGroup, SubGroup};
pub use priority::PriorityClass;
pub use quantity::{Bytes, DeviceCore, MilliCpu};
pub use queue::Queue;
pub use queue_spec::{DEFAULT_QUEUE, QueueError, QueueId, QueueSpec};
pub use request::{Alignment, Constraints, DeviceMemory, DeviceRequest, PlacementRules, Request, RequestError};
pub use resource::Resource;
pub use scheduler::Scheduler;
pub use settings::Settings;
pub use slab::Key;
pub use spec::{DeviceSpec, Health, NodeSpec, Taint};
pub use statement::{Checkpoint, Statement};
pub use step::Step;
pub use topology::{Domain, DomainId, Topology};
pub use usage::DecayedUsage;
