//! Decides which claims are placed on which nodes, and explains why. It is the policy of the cluster scheduler, as a
//! library without side effects.
//!
//! It has no clock, does no I/O and starts no thread. [`Event`]s change the state ([`Cluster::apply`]). A [`Statement`]
//! is a trial that can be rolled back. An [`Engine`](placement::Engine) says where a claim should go.
//!
//! What queues are entitled to is computed from amounts alone ([`entitlements`]). Fair shares, the order of turns
//! ([`DominantShare`]), reclaim and the choice of victims all follow from the same [`Entitlement`].
//!
//! # Invariants
//!
//! * For each resource of a node (CPU, memory and every counted resource) and for each device's time and memory: free +
//!   held by placed claims = capacity. No sequence of events, errors and rollbacks breaks this.
//! * No decision depends on a floating-point number or on the order of a hash: equal events give equal plans.
//! * An event that contradicts the state is refused and changes nothing.
//!
//! # Layers
//!
//! A layer imports only from itself and from the layers listed before it. The modules of a layer do not import each
//! other in a circle. A test in `tests/architecture` checks both.
//!
//! 1. `vocabulary`: values that describe requests, events and errors.
//! 2. `state`: the books of a cluster.
//! 3. `decisions`: the plan of a cycle.
//! 4. [`explain`]: the reasons for decisions. This layer only reads.
//!
//! # What it may touch
//!
//! The crate uses values and ordered collections of the standard library, and `thiserror`. Events bring the time, and a
//! seed brings randomness. `clippy.toml` forbids clocks, I/O, threads, hash collections and floating-point numbers.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic, clippy::print_stdout, clippy::print_stderr)]

mod decisions;
pub mod explain;
mod state;
mod vocabulary;

pub use decisions::entitled::Standing;
pub use decisions::fair_share::{Demand, DominantShare, Entitlement, QueueDemand, divide, entitlements};
pub use decisions::placement;
pub use decisions::plan::{Pending, Plan, PlannedStep};
pub use decisions::scheduler::Scheduler;
pub use decisions::settings::Settings;
pub use state::class::{Class, ClassId};
pub use state::cluster::{ALONE_MAX_MS, Cluster, RETRY_MAX_MS};
pub use state::group::Group;
pub use state::node::{Device, Node};
pub use state::queue::Queue;
pub use state::statement::{Savepoint, Statement};
pub use state::template::{KnownClaim, Template};
pub use state::topology::{Domain, DomainId, Topology};
pub use state::usage::DecayedUsage;
pub use vocabulary::allowance::Allowance;
pub use vocabulary::alternatives::{Alternative, Alternatives};
pub use vocabulary::chunks::Chunks;
pub use vocabulary::claim::{Action, Allocation, Claim, ClaimId, DeviceAllocation, Displacement, LastEviction, NodeId};
pub use vocabulary::device_request::{
    Comparison, DeviceLink, DeviceMemory, DeviceProperty, DeviceRequest, DeviceWish, FurtherRequest, FurtherRequests,
};
pub use vocabulary::disruption_budget::DisruptionBudget;
pub use vocabulary::dump::{
    Dump, DumpEntry, DumpedBlocked, DumpedBounded, DumpedClaim, DumpedDisplacement, DumpedGroup, DumpedGroupRef,
    DumpedKeeping, DumpedMixCounter, DumpedNode, DumpedPatience, DumpedPlace, DumpedQueue, DumpedSearch,
    DumpedTurnover, DumpedUsage, RestoreError, RestoreReason,
};
pub use vocabulary::event::{Event, EventError, Outcome};
pub use vocabulary::known_node::{DeviceKind, KnownDevice, KnownNode};
pub use vocabulary::namespace::{ClaimBounds, LimitRange, NamespaceError, NamespaceSpec};
pub use vocabulary::node_term::{NodeOperator, NodeRequirement, NodeTerm};
pub use vocabulary::not_enough::NotEnough;
pub use vocabulary::peers::{Affinity, AntiAffinity, PeerGroup, PeerMisfit, PeerPreference, Peers, TopologySpread};
pub use vocabulary::pod_group::{GroupError, GroupId, GroupPlacement, PlacementStrategy, PodGroup, SubGroup};
pub use vocabulary::preference::{Preference, Preferences};
pub use vocabulary::priority::PriorityClass;
pub use vocabulary::quantity::{Bytes, DeviceCore, MilliCpu};
pub use vocabulary::queue_spec::{DEFAULT_QUEUE, QueueError, QueueId, QueueSpec};
pub use vocabulary::request::{Alignment, Constraints, PlacementRules, Request, RequestError};
pub use vocabulary::resource::Resource;
pub use vocabulary::slab::Key;
pub use vocabulary::spec::{DeviceSpec, Health, NodeSpec};
pub use vocabulary::step::Step;
pub use vocabulary::taint::{Taint, TaintEffect, Toleration};
pub use vocabulary::texts::Texts;
