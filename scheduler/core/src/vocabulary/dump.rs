//! The state as a value. [`Scheduler::dump`](crate::Scheduler::dump) gives it and
//! [`Scheduler::restore`](crate::Scheduler::restore) takes it. [`Cluster::dump`](crate::Cluster::dump) and
//! [`Cluster::restore`](crate::Cluster::restore) leave out what the scheduler remembers.
//!
//! A dump has no ids: an entry refers to another by its position in that entry's list. All lists are in the order in
//! which their entries were added, because decisions depend on it. What can be computed from the rest is left out: free
//! amounts, what queues hold, and which claims form a class. So the books of a restored state cannot contradict each
//! other.

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
    /// Usage that is this many milliseconds old counts half.
    pub usage_half_life_ms: u64,
    /// The models that nodes had or queues name, in the order in which they became known. Models that occur elsewhere
    /// in the dump become known after them.
    pub models: Vec<String>,
    /// The cluster's capacity of each resource over time.
    pub capacity: DumpedUsage,
    /// The labels that make the levels of the topology, the outermost first.
    pub topology: Vec<String>,
    /// The nodes, in the order in which they were added.
    pub nodes: Vec<DumpedNode>,
    /// The queues, parents before their children. The default queue may be left out.
    pub queues: Vec<DumpedQueue>,
    /// The namespaces that have a quota or bounds. If a namespace's queue is missing from the queues, it is made.
    pub namespaces: Vec<NamespaceSpec>,
    /// What arriving claims have asked for; `None`: not known.
    pub arrivals: Option<DumpedMixCounter>,
    /// How much of the running work has lately ended.
    pub turnover: DumpedTurnover,
    /// The disruption budgets of all namespaces.
    pub budgets: Vec<DisruptionBudget>,
    /// The declared pod groups.
    pub groups: Vec<DumpedGroup>,
    /// The claims, in the order in which they were added.
    pub claims: Vec<DumpedClaim>,
    /// What a scheduler remembers of pending groups that find no room; empty in a dump of a cluster alone.
    pub blocked: Vec<DumpedBlocked>,
    /// What a scheduler remembers of pending groups that wait for their queues' bounds; empty in a dump of a cluster
    /// alone.
    pub bounded: Vec<DumpedBounded>,
    /// Searches of a scheduler that were too long for one cycle, in the order in which they go on; empty in a dump of a
    /// cluster alone.
    pub searches: Vec<DumpedSearch>,
}

/// Amounts that were held over time, decayed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DumpedUsage {
    /// The time up to which amounts are included, in milliseconds.
    pub until_ms: u64,
    /// The decayed integrals over time, in each resource's unit times milliseconds.
    pub integrals: Vec<(Resource, u128)>,
}

/// The counter of expected requests as a value. Weights are in 2^20ths of a task.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DumpedMixCounter {
    /// The half-life of a task's weight, in milliseconds.
    pub half_life_ms: u64,
    /// The time up to which the weights have decayed, in milliseconds.
    pub decayed_ms: u64,
    /// The counted requests, each with its weight.
    pub counts: Vec<(Request, u64)>,
    /// The weight of the tasks that have come since the last mix was given.
    pub news: u64,
    /// The requests of the mix that was last given, and how often each occurs in it.
    pub given: Option<Vec<(Request, u64)>>,
}

/// How much of the running work has lately ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DumpedTurnover {
    /// Device time that ended lately, in 1024ths of a thousandth of a device.
    pub ended: u64,
    /// The turnover that decisions use, in eighths.
    pub eighths: u8,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DumpedNode {
    /// What the node has, as it was reported.
    pub spec: NodeSpec,
    /// Whether it is kept for a pending group.
    pub held: bool,
}

/// A queue.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DumpedQueue {
    /// The queue as it was configured.
    pub spec: QueueSpec,
    /// Its past usage of each resource.
    pub usage: DumpedUsage,
}

/// A declared pod group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DumpedGroup {
    /// The group as it was declared.
    pub spec: PodGroup,
    /// How many of the dump's claims were added before it. Of groups with equal priority, the one that was added first
    /// goes first.
    pub after_claims: usize,
    /// When it was added, in milliseconds.
    pub added_ms: u64,
    /// Since when only some of the members that it needs are placed, in milliseconds.
    pub stale_since_ms: Option<u64>,
}

/// A claim.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DumpedClaim {
    /// The claim as it was added.
    pub claim: Arc<Claim>,
    /// When it was added, in milliseconds; in a pod group the group's time counts.
    pub added_ms: u64,
    /// Where it is placed.
    pub place: Option<DumpedPlace>,
    /// Since when it runs there, in milliseconds.
    pub started_ms: Option<u64>,
    /// The place that it was evicted or moved from and has not left yet.
    pub leaving: Option<DumpedPlace>,
    /// The claims that must be gone before it can start, by their numbers in [`Dump::claims`].
    pub starts_after: Vec<usize>,
    /// What is known of its last eviction, if the eviction is under way or was refused.
    pub last_eviction: Option<LastEviction>,
    /// Whether it was withdrawn: it is no longer wanted. Such a claim has no place, but may be leaving one.
    pub withdrawn: bool,
    /// Why it was last evicted.
    pub displaced: Option<DumpedDisplacement>,
    /// How often it failed to start where it was placed.
    pub failures: u32,
    /// The time before which it is not placed again, in milliseconds.
    pub retry_at_ms: u64,
}

/// Where a claim is. How much it holds there follows from what it asks for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DumpedPlace {
    /// The node's number in [`Dump::nodes`].
    pub node: usize,
    /// The indexes of its devices on the node: for each of its requests in turn, ascending.
    pub devices: Vec<u16>,
    /// Which of its choices it has there; 0 is the first one.
    pub alternative: u16,
    /// Whether more of the node is held than it has.
    pub over_committed: bool,
}

/// Why a claim was evicted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DumpedDisplacement {
    /// The action that evicted it.
    pub action: Action,
    /// The group that needed its room, if that group still exists.
    pub by: Option<DumpedGroupRef>,
    /// The name of that group, or of its only member.
    pub by_name: String,
    /// When it was evicted, in milliseconds.
    pub at_ms: u64,
    /// What the queues held just before the eviction, with their fair shares.
    pub shares: Vec<Share>,
}

/// The first pending group of a queue, which finds no room.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DumpedBlocked {
    /// The group, by its place in the dump.
    pub group: DumpedGroupRef,
    /// Since when it finds no room, in milliseconds.
    pub since_ms: u64,
    /// The numbers of the nodes that are kept for it.
    pub nodes: Vec<usize>,
    /// What is known of the nodes that were kept for it so far.
    pub patience: DumpedPatience,
}

/// What is known of the nodes that were kept for a group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DumpedPatience {
    /// How many claims were left on the kept nodes; `None`: they have not been counted yet.
    pub claims: Option<usize>,
    /// Since when none of them has left, in milliseconds.
    pub since_ms: u64,
    /// How often kept nodes were given up.
    pub times: u32,
    /// The numbers of the nodes that were given up.
    pub given_up: Vec<usize>,
}

/// A pending group that waits for its queue's bounds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DumpedBounded {
    /// The group, by its place in the dump.
    pub group: DumpedGroupRef,
    /// Since when it waits, or since when nothing more is kept for it, in milliseconds.
    pub since_ms: u64,
    /// How often something was kept for it in vain.
    pub times: u32,
    /// `None`: nothing is kept for it.
    pub keeping: Option<DumpedKeeping>,
}

/// That something of queues' bounds is kept for a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DumpedKeeping {
    /// The names of the queues.
    pub queues: Vec<String>,
    /// By how much their bounds would be exceeded with the group, in thousandths of them; the least so far.
    pub excess_per_mille: u64,
    /// Since when it has been that much, in milliseconds.
    pub since_ms: u64,
    /// Whether the group's next unit would be within the fair share of its queue.
    pub is_entitled: bool,
}

/// A search for room that was cut short.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DumpedSearch {
    /// The action that the search is part of.
    pub action: Action,
    /// The group that the room is for.
    pub group: DumpedGroupRef,
    /// The number of the node at which the search goes on; `None`: at the first node.
    pub node: Option<usize>,
    /// How often the search was cut short.
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
    /// An entry of [`Dump::bounded`].
    Bounded(usize),
    /// A search that goes on.
    Search(usize),
}

/// Why a dump cannot be restored.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{entry:?}: {reason}")]
pub struct RestoreError {
    /// The entry that contradicts the entries before it.
    pub entry: DumpEntry,
    /// What is wrong with the entry.
    pub reason: RestoreReason,
}

/// What is wrong with an entry of a dump.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RestoreReason {
    /// The event that would add it is refused.
    #[error(transparent)]
    Event(#[from] EventError),
    /// The node has no room for it.
    #[error("it does not fit on node {node:?} beside the entries before it in the list: {reason}")]
    NotEnough {
        /// The name of the node.
        node: String,
        /// What the node lacks.
        reason: NotEnough,
    },
    /// An entry before it has the same namespace and name.
    #[error("there is an earlier claim {0:?} of the same namespace in the list")]
    SameName(String),
    /// There is no entry of the number that it refers to.
    #[error("it refers to {0:?}, which the list does not contain")]
    NoSuchEntry(DumpEntry),
    /// It starts after a claim that is not leaving any place.
    #[error("it starts after claim {0:?}, which is not leaving any place")]
    NotLeaving(String),
    /// A time in the entry is later than now.
    #[error("{what} is {at_ms} ms, which is later than now, {now_ms} ms")]
    InTheFuture {
        /// The name of the time.
        what: &'static str,
        /// The time in the entry, in milliseconds.
        at_ms: u64,
        /// The time of the dump, in milliseconds.
        now_ms: u64,
    },
    /// It runs or waits to start, but is not placed.
    #[error("it has {0}, but is not placed")]
    NotPlaced(&'static str),
    /// It was withdrawn, but has a place.
    #[error("it was withdrawn, but is placed; list it as leaving its place")]
    WithdrawnAndPlaced,
}

impl From<QueueError> for RestoreReason {
    fn from(error: QueueError) -> Self {
        Self::Event(error.into())
    }
}
