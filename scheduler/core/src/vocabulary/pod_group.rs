//! Pod groups as they are declared.

mod validate;

use crate::vocabulary::slab::Key;

pub use validate::GroupError;

/// Names a pod group to the cluster that it was added to. A claim without a declared pod group has one of its own.
pub type GroupId = Key<PodGroup>;

/// A group of claims with a minimum of members that are admitted together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PodGroup {
    /// Its name; no two groups of a namespace share one.
    pub name: String,
    /// The namespace that it belongs to.
    pub namespace: String,
    /// The queue that it waits in; empty: the namespace's, or [`DEFAULT_QUEUE`](crate::DEFAULT_QUEUE).
    pub queue: String,
    /// The value of its priority class; the greater goes first.
    pub priority: i32,
    /// Whether its members may be evicted for others.
    pub preemptible: bool,
    /// How long a member runs before it may be evicted, in milliseconds.
    pub min_runtime_ms: u64,
    /// How long it waits before other claims are evicted for it, in milliseconds.
    pub preemption_delay_ms: u64,
    /// How long it may run with fewer members than it needs before the others are evicted, in milliseconds; `None`:
    /// without end.
    pub staleness_grace_ms: Option<u64>,
    /// The number of members that must be placed together. Further members follow one by one. With 0, all follow one by
    /// one.
    pub min_members: u32,
    /// Sorts of members, each with a minimum of its own. Members without a sub-group count only for the group's
    /// minimum.
    pub sub_groups: Vec<SubGroup>,
    /// Where its members may be, relative to each other.
    pub spread: GroupPlacement,
}

/// One sort of members of a pod group, such as a head or its workers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SubGroup {
    /// Its name; members name the sub-group that they belong to.
    pub name: String,
    /// The number of members of this sort that must be placed together with the rest of the minimum.
    pub min_members: u32,
    /// The topology level, a label of nodes, in one domain of which its members must all be.
    pub required_level: Option<String>,
    /// The topology level in one domain of which its members should all be, if that is possible. If not, they should be
    /// in one domain of the nearest level around it.
    pub preferred_level: Option<String>,
}

/// Where a group's members may be, relative to each other.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupPlacement {
    /// How members are distributed over nodes.
    pub strategy: PlacementStrategy,
    /// The topology level, a label of nodes, in one domain of which all members must be.
    pub required_level: Option<String>,
    /// The topology level in one domain of which all members should be, if that is possible. If not, they should be in
    /// one domain of the nearest level around it, and in few domains of this level.
    pub preferred_level: Option<String>,
    /// The most devices that its members together may have on one node; `None`: no bound.
    pub max_devices_per_node: Option<u16>,
}

/// How a group's members are distributed over nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PlacementStrategy {
    /// Each member goes where it fits best.
    #[default]
    BestFit,
    /// No node has more than one member more than any other node that could take one.
    SpreadEvenly,
    /// All members are on one node.
    SingleNode,
}
