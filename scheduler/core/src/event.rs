//! What happens to a cluster.

use crate::claim::{Allocation, Claim, ClaimId, NodeId};
use crate::node::NotEnough;
use crate::request::{Request, RequestError};
use crate::spec::{Health, NodeSpec};

/// One change of a cluster's state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A node is there, with nothing on it.
    NodeAdded(NodeSpec),
    /// A node's labels, taints, or whether it is cordoned have changed to those given; the rest is not looked at.
    NodeRelabelled(NodeId, NodeSpec),
    /// A node is gone; what was placed there waits again.
    NodeRemoved(NodeId),
    /// A device's health has changed.
    DeviceHealthChanged {
        /// Its node.
        node: NodeId,
        /// Its index there.
        device: u16,
        /// What it is now.
        health: Health,
    },
    /// A claim was made.
    ClaimAdded(Claim),
    /// A claim is gone; what it held is free.
    ClaimRemoved(ClaimId),
    /// A claim was placed.
    ClaimPlaced(ClaimId, Allocation),
    /// A claim was evicted, and waits again.
    ClaimEvicted(ClaimId),
    /// A claim asks for other amounts now; where it is placed, it keeps its devices.
    ClaimResized(ClaimId, Request),
}

/// What an event led to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// A node was given its id.
    Node(NodeId),
    /// A claim was given its id.
    Claim(ClaimId),
    /// These claims wait again that were placed before.
    Displaced(Vec<ClaimId>),
    /// Nothing else than what the event says.
    Done,
}

/// Why an event cannot be; the state is as before.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EventError {
    /// There is a node of this name.
    #[error("there is a node named {0:?}; remove it first")]
    NodeExists(String),
    /// There is no such node.
    #[error("there is no node {}", .0.index())]
    NoSuchNode(NodeId),
    /// There is no such device.
    #[error("node {} has no device {device}", node.index())]
    NoSuchDevice {
        /// The node.
        node: NodeId,
        /// The index.
        device: u16,
    },
    /// There is no such claim (any more).
    #[error("there is no claim {0:?}")]
    NoSuchClaim(ClaimId),
    /// The claim is placed and must be evicted first.
    #[error("claim {0:?} is placed; evict it first")]
    Placed(ClaimId),
    /// The claim is not placed.
    #[error("claim {0:?} is not placed")]
    NotPlaced(ClaimId),
    /// The request makes no sense.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The node cannot take what the allocation says.
    #[error("node {}: {reason}", node.index())]
    NotEnough {
        /// The node.
        node: NodeId,
        /// What is missing.
        reason: NotEnough,
    },
}
