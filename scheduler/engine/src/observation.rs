//! The observations that the engine takes in.

use std::sync::Arc;

use aliquot_scheduler_core::{Claim, DisruptionBudget, NamespaceSpec, NodeSpec, Peers, PodGroup, QueueSpec, Request};

use crate::command::Amounts;
use crate::names::{ClaimUid, Generation, NodeName};

/// What was seen outside. All of it may be repeated: what is known already changes nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Observation {
    /// All that users want and all nodes that are known were told once. Until then the engine only collects.
    Synced,
    /// What a node is, and all that runs there.
    Node(Box<NodeReport>),
    /// A node is there.
    Heartbeat(Heartbeat),
    /// A node cannot be reached. What runs there may go on.
    NodeLost(NodeName),
    /// A node is gone for good, and nothing runs there. What it sent before does not arrive any more: a report that
    /// comes later is that of another node of this name.
    NodeGone(NodeName),
    /// What became of a command, or that an instance has ended.
    Outcome(Report),
    /// A user wants this claim.
    Claim(ClaimUid, Box<Claim>),
    /// A user wants this claim, and somebody else has chosen its node. It is placed there at once, into what is free, or
    /// refused, and then not known any more. Its constraints name the node as well.
    ClaimOnNode(ClaimUid, Box<Claim>, NodeName),
    /// A claim asks for something else now. One that runs is resized where it is, if there is room.
    ClaimResized(ClaimUid, Box<Request>),
    /// What a claim's place has to do with the places of others is this now. One that runs stays where it is.
    ClaimPeers(ClaimUid, Option<Arc<Peers>>),
    /// Nobody wants this any more, or it is done. What still runs of it is stopped.
    ClaimEnded(ClaimUid),
    /// A queue is so from now on.
    Queue(QueueSpec),
    /// A queue, which nothing is in, is gone.
    QueueRemoved(String),
    /// A pod group is so from now on.
    Group(PodGroup),
    /// A pod group is gone: its namespace and name. If it has members, it goes with the last of them.
    GroupRemoved(String, String),
    /// A namespace has this quota and these bounds from now on.
    Namespace(NamespaceSpec),
    /// A namespace has no quota and no bounds any more.
    NamespaceRemoved(String),
    /// A disruption budget is so from now on.
    Budget(DisruptionBudget),
    /// A disruption budget is gone: its namespace and name.
    BudgetRemoved(String, String),
    /// The levels of the topology are these from now on.
    Topology(Vec<String>),
}

/// What a node says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeReport {
    /// What it is. Its name and its devices' UUIDs tell which node and which devices. No device's UUID is empty or that
    /// of another device of the node.
    pub spec: NodeSpec,
    /// Its session: a greater number each time that it begins anew with nothing of what ran before but what it reports.
    pub session: u64,
    /// The number of this message among all that it has sent in this session.
    pub sequence: u64,
    /// The greatest generation that it has handled, in this session or any before.
    pub handled: Generation,
    /// All that runs, is starting or is stopping: what a command not greater than `handled` has started, and is not gone.
    pub running: Vec<Running>,
}

/// Something that runs on a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Running {
    /// The claim that runs.
    pub claim: ClaimUid,
    /// The generation of the command that has started it.
    pub instance: Generation,
    /// What it holds: exactly what the last command said that the node has carried out.
    pub amounts: Amounts,
}

/// A sign of life. The engine answers it with [`Order::Renew`](crate::Order::Renew).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Heartbeat {
    /// The node that is alive.
    pub node: NodeName,
    /// The present session of the node.
    pub session: u64,
    /// The number of this message.
    pub sequence: u64,
}

/// What became of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The node that reports.
    pub node: NodeName,
    /// The session of the node in which it was commanded.
    pub session: u64,
    /// The number of this message.
    pub sequence: u64,
    /// The claim that the command was about.
    pub claim: ClaimUid,
    /// Which instance of it.
    pub instance: Generation,
    /// The command's generation; the instance's if it is not about a command.
    pub generation: Generation,
    /// What became of it.
    pub outcome: StepOutcome,
}

/// What became of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StepOutcome {
    /// The instance runs, with the amounts that the command said.
    Started,
    /// The node did not do it, and says why.
    Refused(String),
    /// The node has tried and could not, and says why.
    Failed(String),
    /// The instance does not run any more, or never did.
    Gone,
    /// It is not known whether the command was carried out.
    Unknown,
}
