//! Claims: what users ask for, and what they were given.

use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::quantity::{Bytes, DeviceCore};
use crate::vocabulary::request::Request;
use crate::vocabulary::share::Share;
use crate::vocabulary::slab::Key;

/// Names a claim to the cluster that it was added to.
pub type ClaimId = Key<Claim>;

/// Names a node to the cluster that it was added to. Ids are given in the order in which nodes are added and never used
/// again, so among nodes that are equally good the one that was added first is taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub(crate) u32);

impl NodeId {
    /// The node's number.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One task's request, with what decides its turn.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Claim {
    /// Its name, for who reads plans. The scheduler tells claims apart by [`ClaimId`].
    pub name: String,
    /// What it asks for on one node.
    pub request: Request,
    /// The namespace that it belongs to.
    pub namespace: String,
    /// The queue that it waits in; empty: the namespace's, or [`DEFAULT_QUEUE`](crate::DEFAULT_QUEUE). In a pod group
    /// the group's queue counts.
    pub queue: String,
    /// Its priority class's value; the greater goes first. In a pod group the group's counts.
    pub priority: i32,
    /// Whether it may be evicted for others. In a pod group the group's word counts.
    pub preemptible: bool,
    /// How long it runs before it may be evicted, in milliseconds. In a pod group the group's value counts.
    pub min_runtime_ms: u64,
    /// The pod group of its namespace that it is a member of.
    pub pod_group: Option<String>,
    /// The sub-group of the pod group.
    pub sub_group: Option<String>,
    /// The disruption budget of its namespace that protects it.
    pub disruption_budget: Option<String>,
}

/// Where a claim was placed, and what it holds there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// The node that it is on.
    pub node: NodeId,
    /// What it holds of the node's devices: for each of its requests in turn, by ascending index; empty for a task
    /// without devices.
    pub devices: Vec<DeviceAllocation>,
    /// Which of its choices it has; 0 is the first one.
    pub alternative: u16,
}

impl Allocation {
    /// Time of devices, in thousandths of one.
    pub(crate) fn device_core(&self) -> u64 {
        self.devices.iter().map(|part| u64::from(part.core.get())).sum()
    }
}

/// What a claim holds of one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceAllocation {
    /// The device's index on its node.
    pub device: u16,
    /// Time.
    pub core: DeviceCore,
    /// Memory, in bytes even if a part was asked for.
    pub memory: Bytes,
}

/// Why a claim was evicted last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Displacement {
    /// The action that evicted it.
    pub action: Action,
    /// The group that its room was needed for.
    pub by: Option<GroupId>,
    /// That group's name, or that of its only member.
    pub by_name: String,
    /// When it was evicted, in milliseconds.
    pub at_ms: u64,
    /// What the queues held just before, with their fair shares: first that of the group, then those that were taken
    /// from.
    pub shares: Vec<Share>,
}

/// What is known of a claim's last eviction while it is under way, or after its node has refused it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LastEviction {
    /// Since when the claim ran before, in milliseconds; `None`: it is not known.
    pub ran_since_ms: Option<u64>,
    /// How often its node has refused to evict it where it runs.
    pub refusals: u32,
    /// Before this it is not chosen again, in milliseconds.
    pub left_alone_until_ms: u64,
}

/// What a scheduler does to place claims.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Action {
    /// Gives what is free.
    Allocate,
    /// Moves claims so that what is free is in one place.
    Consolidate,
    /// Takes back from queues above their fair share.
    Reclaim,
    /// Takes from claims of lower priority in the same queue.
    Preempt,
    /// Evicts what is left of a gang that has lost members.
    StaleGang,
    /// Evicts what runs on a node beyond what the node has.
    Relieve,
}
