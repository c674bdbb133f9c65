//! What happens to a cluster.

use std::sync::Arc;

use crate::vocabulary::amount::Amount;
use crate::vocabulary::claim::{Allocation, Claim, ClaimId, NodeId};
use crate::vocabulary::disruption_budget::DisruptionBudget;
use crate::vocabulary::namespace::{NamespaceError, NamespaceSpec};
use crate::vocabulary::not_enough::NotEnough;
use crate::vocabulary::peers::Peers;
use crate::vocabulary::pod_group::{GroupError, GroupId, PodGroup};
use crate::vocabulary::queue_spec::{QueueError, QueueId, QueueSpec};
use crate::vocabulary::request::{Request, RequestError};
use crate::vocabulary::resource::Resource;
use crate::vocabulary::spec::{Health, NodeSpec};

/// One change of a cluster's state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A node is there, with nothing on it.
    NodeAdded(NodeSpec),
    /// A node's labels, taints, attributes of its devices, or whether it is cordoned have changed to those given; the
    /// rest is not looked at.
    NodeRelabelled(NodeId, NodeSpec),
    /// A node has other amounts, devices or labels now. Devices keep their indexes, and none is missing; new ones come
    /// after them. What is placed there stays, even if it is more than the node has now.
    NodeChanged(NodeId, NodeSpec),
    /// A node is gone; what was placed there waits again.
    NodeRemoved(NodeId),
    /// A device's health has changed. Who was to start on one that is not healthy any more waits again.
    DeviceHealthChanged {
        /// The node that has the device.
        node: NodeId,
        /// The device's index on that node.
        device: u16,
        /// What it is now.
        health: Health,
    },
    /// The cluster's topology has these levels from now on: labels of nodes, the outermost level first. A group that
    /// requires a level that is not there waits until it is.
    TopologyChanged(Vec<String>),
    /// A claim was made.
    ClaimAdded(Claim),
    /// A claim is gone; what it held is free.
    ClaimRemoved(ClaimId),
    /// Nobody wants a claim any more. What there is of it holds its room until [`Event::ClaimGone`] or
    /// [`Event::ClaimRemoved`]. Until then the claim asks for nothing, and is never placed, moved or evicted again.
    ClaimWithdrawn(ClaimId),
    /// A claim was placed, and runs.
    ClaimPlaced(ClaimId, Allocation),
    /// A claim that is not taken to run was seen running, whatever was decided: also where there is less room than it
    /// holds. Cycles evict what is too much.
    ClaimSeen(ClaimId, Allocation),
    /// Nobody knows whether a claim that is taken to run does. It counts as failed, and waits again; but it may be
    /// there, is told to leave, and holds its room until it is gone.
    ClaimSilent(ClaimId),
    /// A claim no longer runs where it was placed, and waits again.
    ClaimEvicted(ClaimId),
    /// A claim that a plan evicted or moved is gone from its old place.
    ClaimGone(ClaimId),
    /// A claim that a plan evicted or moved stays where it was, because its node refuses to let it go. It is left alone
    /// for a while, each time longer; who was to have its room waits again.
    EvictionRefused(ClaimId),
    /// A claim could not be started where it was placed. It waits again, each time longer before the next try.
    ClaimFailed(ClaimId),
    /// A claim asks for other amounts now; where it is placed, it keeps its devices.
    ClaimResized(ClaimId, Request),
    /// What a claim's place has to do with the places of others is this now. Whoever is placed stays.
    ClaimPeersChanged(ClaimId, Option<Arc<Peers>>),
    /// A pod group was declared; claims that name it come afterwards.
    PodGroupAdded(PodGroup),
    /// A pod group is so from now on; its name, namespace, queue and sub-groups' names stay as they are.
    PodGroupChanged(GroupId, PodGroup),
    /// A pod group is no longer declared; it has no members any more.
    PodGroupRemoved(GroupId),
    /// There is a new queue.
    QueueAdded(QueueSpec),
    /// The queue of this name is configured so from now on.
    QueueChanged(QueueSpec),
    /// The queue of this name, which nothing is in, is gone.
    QueueRemoved(String),
    /// A namespace has this quota and these bounds from now on; what was admitted before stays.
    NamespaceChanged(NamespaceSpec),
    /// The namespace of this name, whose queue nothing is in, has no quota and bounds any more.
    NamespaceRemoved(String),
    /// A disruption budget is so from now on.
    BudgetChanged(DisruptionBudget),
    /// The disruption budget of this namespace and name is gone.
    BudgetRemoved(String, String),
    /// It is so late now, in milliseconds since whenever the shell began to count.
    TimeAdvanced(u64),
}

/// What an event led to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// A node was given its id.
    Node(NodeId),
    /// A claim was given its id.
    Claim(ClaimId),
    /// A pod group was given its id.
    Group(GroupId),
    /// A queue was given its id.
    Queue(QueueId),
    /// What became of claims.
    Claims {
        /// These wait again that were placed before: those that the event is about, and members of gangs that had not
        /// started yet and cannot without them.
        displaced: Vec<ClaimId>,
        /// These, which are placed, were waiting for room that was still held, and can start.
        ready: Vec<ClaimId>,
    },
    /// Nothing else than what the event says.
    Done,
}

impl Outcome {
    pub(crate) fn displaced(displaced: Vec<ClaimId>) -> Self {
        Self::Claims { displaced, ready: Vec::new() }
    }

    pub(crate) fn ready(ready: Vec<ClaimId>) -> Self {
        Self::Claims { displaced: Vec::new(), ready }
    }
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
        /// The node that was named.
        node: NodeId,
        /// The index that no device of this node has.
        device: u16,
    },
    /// The same label twice as a level of the topology.
    #[error("label {0:?} is named twice as a level of the topology; name each level once, the outermost first")]
    LevelTwice(String),
    /// There is no such claim (any more).
    #[error("there is no claim {0:?}")]
    NoSuchClaim(ClaimId),
    /// Nobody wants the claim any more.
    #[error("claim {0:?} was withdrawn; add a new one")]
    Withdrawn(ClaimId),
    /// The claim is placed and must be evicted first.
    #[error("claim {0:?} is placed; evict it first")]
    Placed(ClaimId),
    /// The claim is not placed.
    #[error("claim {0:?} is not placed")]
    NotPlaced(ClaimId),
    /// The request makes no sense.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A queue cannot be so.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// A namespace cannot be so, or does not take a claim.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The namespace has no quota and bounds.
    #[error("namespace {0:?} has no quota and no bounds")]
    UnknownNamespace(String),
    /// A pod group cannot be so.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// There is a pod group of this name.
    #[error("namespace {namespace:?} has a pod group named {name:?}; remove it first")]
    GroupExists {
        /// The group's namespace.
        namespace: String,
        /// The group's name in that namespace.
        name: String,
    },
    /// There is no such pod group.
    #[error("namespace {namespace:?} has no pod group {name:?}; add it before its members")]
    UnknownGroup {
        /// The group's namespace.
        namespace: String,
        /// The group's name in that namespace.
        name: String,
    },
    /// There is no such pod group (any more).
    #[error("there is no pod group {0:?}")]
    NoSuchGroup(GroupId),
    /// The group has no such sub-group.
    #[error("pod group {group:?} has no sub-group {sub_group:?}")]
    UnknownSubGroup {
        /// The name of the group.
        group: String,
        /// The name that no sub-group of it has.
        sub_group: String,
    },
    /// What names a group and its members cannot be changed.
    #[error("pod group {0:?} keeps its name, namespace, queue and sub-groups; make a new one")]
    GroupRenamed(String),
    /// The group has members.
    #[error("pod group {0:?} has members; remove them first")]
    GroupInUse(String),
    /// The claim is not on its way out of an old place.
    #[error("claim {0:?} is not being evicted")]
    NotLeaving(ClaimId),
    /// The claim does not run.
    #[error("claim {0:?} does not run")]
    NotRunning(ClaimId),
    /// A node's devices keep their places.
    #[error("node {}: device {device} is not the device that was there before", node.index())]
    DevicesDiffer {
        /// The node whose devices differ.
        node: NodeId,
        /// The index at which another device was before.
        device: u16,
    },
    /// A node's devices cannot be told apart.
    #[error("node {node:?} names a device {uuid:?} that is empty or another one's name; give each device its own")]
    DeviceNames {
        /// The name of the node.
        node: String,
        /// The name that does not tell which device it is.
        uuid: String,
    },
    /// No books can be made from what was saved; which entry contradicts those before it, and why.
    #[error("the books cannot be made from what was saved: {0}")]
    NotRestored(String),
    /// The claim is between two places.
    #[error("claim {0:?} has yet to leave its old place or to start at its new one; resize it when it runs or waits")]
    Moving(ClaimId),
    /// The claim would make its queue, or one above it, hold more than it may.
    #[error(
        "queue {queue:?} holds {} and may hold {}, which {} more would exceed; ask for less or raise the bound",
        Amount(resource, *held), Amount(resource, *bound), Amount(resource, *asked)
    )]
    QueueExceeded {
        /// The name of the queue whose bound is passed.
        queue: String,
        /// The resource of which too much would be held.
        resource: Resource,
        /// What the queue holds of it.
        held: u64,
        /// What it would hold more.
        asked: u64,
        /// Its limit, or its quota if the claim may not be evicted.
        bound: u64,
    },
    /// Claims that were evicted have not left yet.
    #[error("node {}: what is free there is still held by claims that are leaving; try again when they are gone", node.index())]
    StillHeld {
        /// The node that the claims are leaving.
        node: NodeId,
    },
    /// There is no such disruption budget.
    #[error("namespace {namespace:?} has no disruption budget {name:?}")]
    UnknownBudget {
        /// The namespace that was named.
        namespace: String,
        /// The name that no budget of it has.
        name: String,
    },
    /// The claim cannot be placed now on the node that somebody has chosen for it.
    #[error("node {node:?}: {why}")]
    NotOnNode {
        /// The name of the node.
        node: String,
        /// What is in the way there.
        why: String,
    },
    /// Time does not run backwards.
    #[error("it is {now_ms} ms already and cannot become {then_ms} ms")]
    TimeBackwards {
        /// The time of the cluster, in milliseconds.
        now_ms: u64,
        /// The earlier time in the event, in milliseconds.
        then_ms: u64,
    },
    /// The node cannot take what the allocation says.
    #[error("node {}: {reason}", node.index())]
    NotEnough {
        /// The node of the allocation.
        node: NodeId,
        /// What the node lacks.
        reason: NotEnough,
    },
}
