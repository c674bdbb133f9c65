//! Pod groups as they are declared.

mod validate;

use crate::vocabulary::slab::Key;

pub use validate::GroupError;

/// Names a pod group to the cluster that it was added to. A claim without a pod group has one of its own.
pub type GroupId = Key<PodGroup>;

/// Claims that are admitted together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PodGroup {
    /// Its name; no two groups of a namespace share one.
    pub name: String,
    /// The namespace that it belongs to.
    pub namespace: String,
    /// The queue that it waits in; empty: the namespace's, or [`DEFAULT_QUEUE`](crate::DEFAULT_QUEUE).
    pub queue: String,
    /// Its priority class's value; the greater goes first.
    pub priority: i32,
    /// Whether its members may be evicted for others.
    pub preemptible: bool,
    /// How long a member runs before it may be evicted, in milliseconds.
    pub min_runtime_ms: u64,
    /// How long it waits before others are evicted for it, in milliseconds.
    pub preemption_delay_ms: u64,
    /// How long it may run with fewer members than it needs before the rest is evicted, in milliseconds; `None`:
    /// forever.
    pub staleness_grace_ms: Option<u64>,
    /// Members that must be placed together; the rest follows one by one. 0: all of them follow one by one.
    pub min_members: u32,
    /// Sorts of members, each with a minimum of its own; members that name none of them only count for the group.
    pub sub_groups: Vec<SubGroup>,
    /// Where its members may be, relative to each other.
    pub spread: GroupPlacement,
}

/// One sort of members of a pod group, such as a head or its workers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SubGroup {
    /// Its name, by which claims say that they belong to it.
    pub name: String,
    /// Members of this sort that must be placed together with the rest of the minimum.
    pub min_members: u32,
    /// The topology level, a label of nodes, in one domain of which its members must be.
    pub required_level: Option<String>,
}

/// Where a group's members may be, relative to each other.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupPlacement {
    /// How members are distributed.
    pub strategy: PlacementStrategy,
    /// The topology level, a label of nodes, in one domain of which all members must be.
    pub required_level: Option<String>,
    /// The topology level in one domain of which all members should be if that can be had.
    pub preferred_level: Option<String>,
    /// Devices that its members together may have on one node; `None`: any number.
    pub max_devices_per_node: Option<u16>,
}

/// How a group's members are distributed over nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PlacementStrategy {
    /// Each where it fits best.
    #[default]
    BestFit,
    /// So that no node has more than one member more than another one that could take it.
    SpreadEvenly,
    /// All on one node.
    SingleNode,
}
