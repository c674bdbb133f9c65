//! Claims: what users ask for, and what they were given.

use crate::quantity::{Bytes, DeviceCore};
use crate::request::Request;
use crate::slab::Key;

/// Names a claim to the cluster that it was added to.
pub type ClaimId = Key<Claim>;

/// Names a node to the cluster that it was added to. Ids are given in the order in which nodes are added and never used again,
/// so among nodes that are equally good the one that was added first is taken.
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
    /// What it needs.
    pub request: Request,
    /// The namespace that it belongs to.
    pub namespace: String,
    /// The queue that it waits in.
    pub queue: String,
    /// Its priority class's value; the greater goes first.
    pub priority: i32,
    /// Whether it may be evicted for others.
    pub preemptible: bool,
    /// How long it runs before it may be evicted, in milliseconds.
    pub min_runtime_ms: u64,
    /// The pod group that it is a member of.
    pub pod_group: Option<String>,
}

/// Where a claim was placed, and what it holds there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// The node.
    pub node: NodeId,
    /// What it holds of the node's devices, by ascending index; empty for a task without devices.
    pub devices: Vec<DeviceAllocation>,
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
