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
    /// A node was added, with nothing on it.
    NodeAdded(NodeSpec),
    /// A node's labels, taints, attributes of its devices, or whether it is cordoned have changed to the given values.
    /// The rest of the specification is ignored. A claim that was going to start on a node that takes no such claims
    /// any more is pending again, as is a claim that others now keep from its place. Claims that run stay.
    NodeRelabelled(NodeId, NodeSpec),
    /// A node now has other amounts, devices or labels. Devices keep their indexes, and none is missing; new devices
    /// come after them. Claims that are placed there stay, even if they now hold more than the node has. Claims that
    /// have yet to start are pending again as after [`Event::NodeRelabelled`] and [`Event::DeviceHealthChanged`].
    NodeChanged(NodeId, NodeSpec),
    /// A node is gone; the claims that were placed there are pending again.
    NodeRemoved(NodeId),
    /// A device's health has changed. A claim that was going to start on a device that is no longer healthy is pending
    /// again.
    DeviceHealthChanged {
        /// The node that has the device.
        node: NodeId,
        /// The device's index on that node.
        device: u16,
        /// The device's new health.
        health: Health,
    },
    /// The topology of the cluster now has these levels: labels of nodes, the outermost level first. A group that
    /// requires a level that does not exist waits until it exists.
    TopologyChanged(Vec<String>),
    /// A claim was made.
    ClaimAdded(Claim),
    /// A claim is gone; what it held is free again.
    ClaimRemoved(ClaimId),
    /// A claim is no longer wanted. Its place, or the place that it is leaving, stays held until [`Event::ClaimGone`]
    /// or [`Event::ClaimRemoved`]. Until then the claim asks for nothing, and is never placed, moved or evicted again.
    ClaimWithdrawn(ClaimId),
    /// A claim was placed and runs.
    ClaimPlaced(ClaimId, Allocation),
    /// A claim that is not known to run was seen running. This is recorded whatever was decided before, even if less
    /// room is free than it holds. Later cycles evict claims from a node that holds more than it has.
    ClaimSeen(ClaimId, Allocation),
    /// A claim that runs has done so since this time, in milliseconds: it was seen later than it was started. A time in
    /// the future counts as now.
    ClaimRunsSince(ClaimId, u64),
    /// It is unknown whether a running claim still runs. It counts as failed and is pending again. It may still be on
    /// its old place, so it is told to leave and holds that room until it is gone.
    ClaimSilent(ClaimId),
    /// A claim no longer runs where it was placed, and is pending again.
    ClaimEvicted(ClaimId),
    /// A claim that a plan evicted or moved is gone from its old place.
    ClaimGone(ClaimId),
    /// A claim that a plan evicted or moved stays where it was, because its node refuses to let it go. It is left alone
    /// for a while, longer after each refusal. The claims that were going to have its room are pending again.
    EvictionRefused(ClaimId),
    /// A claim failed to start where it was placed. It is pending again; the wait before the next try grows with each
    /// failure.
    ClaimFailed(ClaimId),
    /// A claim now asks for other amounts. If it is placed, it keeps its devices.
    ClaimResized(ClaimId, Request),
    /// A claim's peers and its rules about their places have changed. Claims that run stay. A claim that was going to
    /// start is pending again if an anti-affinity keeps it from its place now.
    ClaimPeersChanged(ClaimId, Option<Arc<Peers>>),
    /// Another disruption budget of its namespace protects a claim now, or none does.
    ClaimBudgetChanged(ClaimId, Option<String>),
    /// A pod group was declared. Claims that name it come afterwards.
    PodGroupAdded(PodGroup),
    /// A pod group has changed. Its name, namespace, queue and the names of its sub-groups stay the same.
    PodGroupChanged(GroupId, PodGroup),
    /// A pod group is no longer declared. It must have no members.
    PodGroupRemoved(GroupId),
    /// A queue was added.
    QueueAdded(QueueSpec),
    /// The configuration of the queue of this name has changed.
    QueueChanged(QueueSpec),
    /// The queue of this name is gone. Nothing may be in it or below it.
    QueueRemoved(String),
    /// A namespace has this quota and these bounds from now on. Claims that were admitted before stay.
    NamespaceChanged(NamespaceSpec),
    /// The namespace of this name no longer has a quota and bounds. No claim or group may be in its queue.
    NamespaceRemoved(String),
    /// A disruption budget was added or has changed.
    BudgetChanged(DisruptionBudget),
    /// The disruption budget of this namespace and name is gone.
    BudgetRemoved(String, String),
    /// The time is now this, in milliseconds. The caller chooses the time that counts as 0.
    TimeAdvanced(u64),
}

/// What an event led to, beyond the change that it names.
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
    /// Which claims were affected.
    Claims {
        /// Claims that were placed and are now pending again: those that the event is about, those that do not suit
        /// their places any more now that they could start, and members of gangs that had not started yet and cannot
        /// start without them.
        displaced: Vec<ClaimId>,
        /// Placed claims that waited for held room and can start now.
        ready: Vec<ClaimId>,
    },
    /// Nothing beyond the change that the event names.
    Done,
}

impl Outcome {
    pub(crate) fn displaced(displaced: Vec<ClaimId>) -> Self {
        Self::Claims { displaced, ready: Vec::new() }
    }
}

/// Why an event is refused. The state is unchanged.
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
    /// The same label is named twice as a level of the topology.
    #[error("label {0:?} is named twice as a level of the topology; name each level once, the outermost first")]
    LevelTwice(String),
    /// There is no such claim, or no longer.
    #[error("there is no claim {0:?}")]
    NoSuchClaim(ClaimId),
    /// The claim was withdrawn.
    #[error("claim {0:?} was withdrawn; add a new one")]
    Withdrawn(ClaimId),
    /// The claim is placed and must be evicted first.
    #[error("claim {0:?} is placed; evict it first")]
    Placed(ClaimId),
    /// The claim is not placed.
    #[error("claim {0:?} is not placed")]
    NotPlaced(ClaimId),
    /// The request is not valid.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The queue's specification is refused.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The namespace's specification is refused, or the namespace does not admit a claim.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The namespace has no quota and bounds.
    #[error("namespace {0:?} has no quota and no bounds")]
    UnknownNamespace(String),
    /// The pod group's specification is refused.
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
    /// There is no such pod group, or no longer.
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
    /// The name, namespace, queue and sub-groups of a group cannot be changed.
    #[error("pod group {0:?} keeps its name, namespace, queue and sub-groups; make a new one")]
    GroupRenamed(String),
    /// The group has members.
    #[error("pod group {0:?} has members; remove them first")]
    GroupInUse(String),
    /// The claim is not leaving a place.
    #[error("claim {0:?} is not being evicted")]
    NotLeaving(ClaimId),
    /// The claim does not run.
    #[error("claim {0:?} does not run")]
    NotRunning(ClaimId),
    /// A node's devices must keep their indexes.
    #[error("node {}: device {device} is not the device that was there before", node.index())]
    DevicesDiffer {
        /// The node whose devices differ.
        node: NodeId,
        /// The index at which another device was before.
        device: u16,
    },
    /// The devices of a node cannot be told apart by their names.
    #[error("node {node:?} names a device {uuid:?} that is empty or another one's name; give each device its own")]
    DeviceNames {
        /// The name of the node.
        node: String,
        /// The name that is empty, or that another device has.
        uuid: String,
    },
    /// A saved state cannot be restored. The text names the entry that contradicts those before it, and says why.
    #[error("the books cannot be made from what was saved: {0}")]
    NotRestored(String),
    /// The claim has not left its old place, or not started at its new one.
    #[error("claim {0:?} has yet to leave its old place or to start at its new one; resize it when it runs or waits")]
    Moving(ClaimId),
    /// The claim would make its queue, or one above it, hold more than it may.
    #[error(
        "queue {queue:?} holds {} and may hold {}, which {} more would exceed; ask for less or raise the bound",
        Amount(resource, *held), Amount(resource, *bound), Amount(resource, *asked)
    )]
    QueueExceeded {
        /// The name of the queue with the bound.
        queue: String,
        /// The resource of which too much would be held.
        resource: Resource,
        /// What the queue holds of it.
        held: u64,
        /// How much more it would hold.
        asked: u64,
        /// Its limit, or its quota if the claim may not be evicted.
        bound: u64,
    },
    /// Claims that were evicted have not left the node yet.
    #[error("node {}: the free resources there are still held by claims that are leaving; try again when they are gone", node.index())]
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
    /// A node was chosen for the claim from outside, and the claim cannot be placed there now.
    #[error("node {node:?}: {why}")]
    NotOnNode {
        /// The name of the node.
        node: String,
        /// What keeps the claim from this node.
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
    /// The node cannot take the allocation.
    #[error("node {}: {reason}", node.index())]
    NotEnough {
        /// The node of the allocation.
        node: NodeId,
        /// What the node lacks.
        reason: NotEnough,
    },
}
