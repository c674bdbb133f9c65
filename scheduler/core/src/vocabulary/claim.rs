//! Claims: what users ask for, and what they are given.

use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::quantity::{Bytes, DeviceCore};
use crate::vocabulary::request::Request;
use crate::vocabulary::share::Share;
use crate::vocabulary::slab::Key;

/// Names a claim to the cluster that it was added to.
pub type ClaimId = Key<Claim>;

/// Names a node to the cluster that it was added to. Ids ascend in the order in which nodes are added, and no id is
/// used again. So of several equally good nodes, the one that was added first is taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub(crate) u32);

impl NodeId {
    /// The node's number; nodes are numbered from 0.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One task's request, with everything that decides when its turn comes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Claim {
    /// Its name, for people who read plans. The scheduler tells claims apart by [`ClaimId`].
    pub name: String,
    /// What it asks for on one node.
    pub request: Request,
    /// The namespace that it belongs to.
    pub namespace: String,
    /// The queue that it waits in; empty: the namespace's, or [`DEFAULT_QUEUE`](crate::DEFAULT_QUEUE). A member of a
    /// pod group waits in the group's queue.
    pub queue: String,
    /// The value of its priority class; the greater goes first. For a member of a pod group, the group's priority
    /// counts.
    pub priority: i32,
    /// Whether it may be evicted for other claims. For a member of a pod group, the group's setting counts.
    pub preemptible: bool,
    /// Whether it is not moved so that free room comes together: nobody would start it anew in another place. It may still
    /// be evicted for others.
    pub immovable: bool,
    /// How long it runs before it may be evicted, in milliseconds. For a member of a pod group, the group's value
    /// counts.
    pub min_runtime_ms: u64,
    /// The pod group that it is a member of, in its own namespace.
    pub pod_group: Option<String>,
    /// The sub-group of the pod group that it belongs to.
    pub sub_group: Option<String>,
    /// The disruption budget that protects it, in its own namespace.
    pub disruption_budget: Option<String>,
}

/// Where a claim was placed, and what it holds there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// The node that it is on.
    pub node: NodeId,
    /// What it holds of the node's devices: for each of its requests in turn, by ascending index. Empty for a task
    /// without devices.
    pub devices: Vec<DeviceAllocation>,
    /// Which of its choices it has; 0 is the first one.
    pub alternative: u16,
}

impl Allocation {
    /// The device time that it holds, in thousandths of one device.
    pub(crate) fn device_core(&self) -> u64 {
        self.devices.iter().map(|part| u64::from(part.core.get())).sum()
    }
}

/// What a claim holds of one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceAllocation {
    /// The device's index on its node.
    pub device: u16,
    /// Device time, in thousandths of the device.
    pub core: DeviceCore,
    /// Device memory, in bytes even if the request asked for a part of a device.
    pub memory: Bytes,
}

/// Why a claim was last evicted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Displacement {
    /// The action that evicted it.
    pub action: Action,
    /// The group that needed its room.
    pub by: Option<GroupId>,
    /// That group's name, or that of its only member.
    pub by_name: String,
    /// When it was evicted, in milliseconds.
    pub at_ms: u64,
    /// What the queues held just before, with their fair shares: first the queue of that group, then the queues that
    /// lost claims.
    pub shares: Vec<Share>,
}

/// What is known of a claim's last eviction while the eviction is under way, or after its node has refused it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LastEviction {
    /// When the claim had started to run before the eviction, in milliseconds; `None`: not known.
    pub ran_since_ms: Option<u64>,
    /// How often its node has refused to evict it where it runs.
    pub refusals: u32,
    /// The time before which it is not chosen for eviction again, in milliseconds.
    pub left_alone_until_ms: u64,
}

/// The actions of a scheduler.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Action {
    /// Places pending claims in free room.
    Allocate,
    /// Moves claims so that free room comes together in one place.
    Consolidate,
    /// Evicts claims of queues that are above their fair share.
    Reclaim,
    /// Evicts claims of lower priority in the same queue.
    Preempt,
    /// Evicts the rest of a gang that has lost members.
    StaleGang,
    /// Evicts claims from a node that holds more than it has.
    Relieve,
}
