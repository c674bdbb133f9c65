//! The state as a value: what [`Scheduler::dump`](crate::Scheduler::dump) gives and
//! [`Scheduler::restore`](crate::Scheduler::restore) takes; [`Cluster::dump`](crate::Cluster::dump) and
//! [`Cluster::restore`](crate::Cluster::restore) without what the scheduler remembers.
//!
//! Ids do not occur in it: what is referred to is numbered by its place in its list. All lists are in the order in
//! which things were added, because decisions depend on it. Nothing is in it that follows from the rest: what is free,
//! what queues hold, which claims form a class. So the books of a restored state cannot contradict each other.

use std::sync::Arc;

use crate::vocabulary::claim::{Action, Claim, LastEviction};
use crate::vocabulary::disruption_budget::DisruptionBudget;
use crate::vocabulary::event::EventError;
use crate::vocabulary::namespace::NamespaceSpec;
use crate::vocabulary::not_enough::NotEnough;
use crate::vocabulary::pod_group::PodGroup;
use crate::vocabulary::queue_spec::{QueueError, QueueSpec};
use crate::vocabulary::request::Request;
use crate::vocabulary::resource::Resource;
use crate::vocabulary::share::Share;
use crate::vocabulary::spec::NodeSpec;

/// The state of a cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Dump {
    /// The time, in milliseconds.
    pub now_ms: u64,
    /// Past usage counts half as much after so many milliseconds.
    pub usage_half_life_ms: u64,
    /// Models that nodes had or queues name, in the order in which they became known. Others that occur become known
    /// after them.
    pub models: Vec<String>,
    /// What there was of each resource over time.
    pub capacity: DumpedUsage,
    /// The labels that make the levels of the topology, the outermost first.
    pub topology: Vec<String>,
    /// The nodes, in the order in which they were added.
    pub nodes: Vec<DumpedNode>,
    /// The queues, parents before their children. The default queue may be left out.
    pub queues: Vec<DumpedQueue>,
    /// The namespaces that have a quota or bounds. The queue of one that is not among the queues is made.
    pub namespaces: Vec<NamespaceSpec>,
    /// What claims have asked for as they came; `None`: nothing is known of that.
    pub arrivals: Option<DumpedMixCounter>,
    /// How much of what runs has lately ended.
    pub turnover: DumpedTurnover,
    /// The disruption budgets of all namespaces.
    pub budgets: Vec<DisruptionBudget>,
    /// The declared pod groups.
    pub groups: Vec<DumpedGroup>,
    /// The claims, in the order in which they were added.
    pub claims: Vec<DumpedClaim>,
    /// What a scheduler remembers of who waits; nothing in a dump of a cluster alone.
    pub blocked: Vec<DumpedBlocked>,
    /// Searches of a scheduler that were too long for one cycle, in the order in which they go on; nothing in a dump of
    /// a cluster alone.
    pub searches: Vec<DumpedSearch>,
}

/// Amounts that were held over time, decayed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DumpedUsage {
    /// Up to when, in milliseconds.
    pub until_ms: u64,
    /// The decayed integrals over time, in each resource's unit times milliseconds.
    pub integrals: Vec<(Resource, u128)>,
}

/// A counter as a value. Weights are in 2^20ths of a task.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DumpedMixCounter {
    /// After how many milliseconds a task counts half as much.
    pub half_life_ms: u64,
    /// Until when counts have decayed.
    pub decayed_ms: u64,
    /// What was counted, with its weight.
    pub counts: Vec<(Request, u64)>,
    /// Weight of tasks that came since a mix was given.
    pub news: u64,
    /// The requests of the mix that was given last, and how often each occurs in it.
    pub given: Option<Vec<(Request, u64)>>,
}

/// How much of what runs has lately ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DumpedTurnover {
    /// Device time that has ended lately, in 1024ths of a thousandth of a device.
    pub ended: u64,
    /// The turnover that decisions reckon with, in eighths.
    pub eighths: u8,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DumpedNode {
    /// What the node is, as it was reported.
    pub spec: NodeSpec,
    /// Whether it is kept for somebody.
    pub held: bool,
}

/// A queue.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DumpedQueue {
    /// What the queue is, as it was configured.
    pub spec: QueueSpec,
    /// What it has used.
    pub usage: DumpedUsage,
}

/// A declared pod group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DumpedGroup {
    /// What the group is, as it was declared.
    pub spec: PodGroup,
    /// How many of the dump's claims were there before it. Among those of equal priority who was there first goes
    /// first.
    pub after_claims: usize,
    /// When it was added, in milliseconds.
    pub added_ms: u64,
    /// Since when it has fewer members placed than it needs, but some.
    pub stale_since_ms: Option<u64>,
}

/// A claim.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DumpedClaim {
    /// What it asks for, and as whom.
    pub claim: Arc<Claim>,
    /// When it was added, in milliseconds; in a pod group the group's time counts.
    pub added_ms: u64,
    /// Where it is placed.
    pub place: Option<DumpedPlace>,
    /// Since when it runs there, in milliseconds.
    pub started_ms: Option<u64>,
    /// The place that it was evicted or moved from and has not left yet.
    pub leaving: Option<DumpedPlace>,
    /// The claims that must be gone before it can start, by their numbers.
    pub starts_after: Vec<usize>,
    /// What is known of its last eviction, if that is under way or was refused.
    pub last_eviction: Option<LastEviction>,
    /// Nobody wants it any more; it has no place, at most one that it is leaving.
    pub withdrawn: bool,
    /// Why it was evicted last.
    pub displaced: Option<DumpedDisplacement>,
    /// How often it could not be started where it was placed.
    pub failures: u32,
    /// Before this it is not placed again, in milliseconds.
    pub retry_at_ms: u64,
}

/// Where a claim is. How much it holds there follows from what it asks for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DumpedPlace {
    /// The node's number in [`Dump::nodes`].
    pub node: usize,
    /// The indexes of its devices there: for each of its requests in turn, ascending.
    pub devices: Vec<u16>,
    /// Which of its choices it has there; 0 is the first one.
    pub alternative: u16,
    /// Whether more is held of the node than there is.
    pub over_committed: bool,
}

/// Why a claim was evicted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DumpedDisplacement {
    /// The action that evicted it.
    pub action: Action,
    /// Whom its room was needed for, if that is still there.
    pub by: Option<DumpedGroupRef>,
    /// The name of that group, or of its only member.
    pub by_name: String,
    /// When it was evicted, in milliseconds.
    pub at_ms: u64,
    /// What the queues held just before, with their fair shares.
    pub shares: Vec<Share>,
}

/// The first of a queue that finds no room.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DumpedBlocked {
    /// The group that waits.
    pub group: DumpedGroupRef,
    /// Since when, in milliseconds.
    pub since_ms: u64,
    /// The numbers of the nodes that are kept for it.
    pub nodes: Vec<usize>,
}

/// A search for room that has not seen everything.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DumpedSearch {
    /// What it was part of.
    pub action: Action,
    /// Whom room is sought for.
    pub group: DumpedGroupRef,
    /// The number of the node at which to go on; `None`: at the first.
    pub node: Option<usize>,
    /// How often it was cut short.
    pub times: u32,
}

/// Refers to a pod group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DumpedGroupRef {
    /// The declared group of this number.
    Declared(usize),
    /// The group that stands for the claim of this number alone.
    Claim(usize),
}

/// An entry of a dump, by its number in its list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DumpEntry {
    /// The levels of the topology.
    Topology,
    /// An entry of [`Dump::nodes`].
    Node(usize),
    /// An entry of [`Dump::queues`].
    Queue(usize),
    /// An entry of [`Dump::namespaces`].
    Namespace(usize),
    /// An entry of [`Dump::groups`].
    Group(usize),
    /// An entry of [`Dump::claims`].
    Claim(usize),
    /// An entry of [`Dump::blocked`].
    Blocked(usize),
    /// A search that goes on.
    Search(usize),
}

/// Why there can be no cluster of this state.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{entry:?}: {reason}")]
pub struct RestoreError {
    /// The entry that contradicts what stands before it.
    pub entry: DumpEntry,
    /// What is wrong with it.
    pub reason: RestoreReason,
}

/// What is wrong with an entry of a dump.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RestoreReason {
    /// It cannot be added.
    #[error(transparent)]
    Event(#[from] EventError),
    /// The node has no room for it.
    #[error("it cannot be on node {node:?} with all that is before it in the list: {reason}")]
    NotEnough {
        /// The name of the node.
        node: String,
        /// What the node lacks.
        reason: NotEnough,
    },
    /// An entry before it has the same namespace and name.
    #[error("claim {0:?} of the same namespace is before it in the list")]
    SameName(String),
    /// There is no entry of this number.
    #[error("it refers to {0:?}, which is not there")]
    NoSuchEntry(DumpEntry),
    /// It waits for a claim that is not leaving.
    #[error("it starts after claim {0:?}, which is not leaving any place")]
    NotLeaving(String),
    /// Something is said to be later than now.
    #[error("{what} is {at_ms} ms, which is later than now, {now_ms} ms")]
    InTheFuture {
        /// What is said to have happened.
        what: &'static str,
        /// When it is said to be.
        at_ms: u64,
        /// The time of the dump, in milliseconds.
        now_ms: u64,
    },
    /// It runs or waits to start without being placed.
    #[error("it has {0}, but is not placed")]
    NotPlaced(&'static str),
    /// It was withdrawn, and has a place all the same.
    #[error("it was withdrawn, but is placed; say that it is leaving this place")]
    WithdrawnAndPlaced,
}

impl From<QueueError> for RestoreReason {
    fn from(error: QueueError) -> Self {
        Self::Event(error.into())
    }
}
