//! The observations that the engine takes in.

use std::sync::Arc;

use aliquot_scheduler_core::{Claim, DisruptionBudget, NamespaceSpec, NodeSpec, Peers, PodGroup, QueueSpec, Request};

use crate::command::Amounts;
use crate::names::{ClaimUid, Generation, NodeName};

/// What was observed outside. Each observation may be repeated: a repetition changes nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Observation {
    /// All claims and configuration, and all known nodes, were told once. Until then the engine only collects.
    Synced,
    /// A node's report: what it is, and all its instances.
    Node(Box<NodeReport>),
    /// A node's sign of life.
    Heartbeat(Heartbeat),
    /// A node cannot be reached, or has connected anew: earlier commands to it may be lost. Its instances may go on running.
    NodeLost(NodeName),
    /// A node is gone for good, and nothing runs there. None of its earlier messages arrives after this: a later report
    /// is that of another node of the same name.
    NodeGone(NodeName),
    /// The outcome of a command, or the end of an instance.
    Outcome(Report),
    /// A user wants this claim.
    Claim(ClaimUid, Box<Claim>),
    /// A user wants this claim, and another scheduler has chosen its node. It is placed there at once into what is
    /// free, or refused and then forgotten. Its constraints name the node as well.
    ClaimOnNode(ClaimUid, Box<Claim>, NodeName),
    /// A claim asks for something else now. A running claim is resized in place, if there is room. A claim that has not
    /// started gives up a place that is too small now.
    ClaimResized(ClaimUid, Box<Request>),
    /// How a claim's place depends on the places of other claims now. A running claim stays where it is.
    ClaimPeers(ClaimUid, Option<Arc<Peers>>),
    /// Another disruption budget of its namespace protects a claim now, or none does.
    ClaimBudget(ClaimUid, Option<String>),
    /// A claim has ended: its user no longer wants it, or it is done. Its instance, if any, is stopped.
    ClaimEnded(ClaimUid),
    /// A queue is new or has changed.
    Queue(QueueSpec),
    /// A queue, which is empty, is gone.
    QueueRemoved(String),
    /// A pod group is new or has changed.
    Group(PodGroup),
    /// A pod group is gone: its namespace and name. If it has members, it is removed with the last of them.
    GroupRemoved(String, String),
    /// A namespace has this quota and these bounds from now on.
    Namespace(NamespaceSpec),
    /// A namespace has no quota and no bounds any more.
    NamespaceRemoved(String),
    /// A disruption budget is new or has changed.
    Budget(DisruptionBudget),
    /// A disruption budget is gone: its namespace and name.
    BudgetRemoved(String, String),
    /// The levels of the topology are these from now on.
    Topology(Vec<String>),
    /// These happened at the same moment, in this order. Nothing is decided between them, so room that one of them frees
    /// and another one takes is never anybody else's. The first error is the answer.
    Together(Vec<Observation>),
}

/// What a node says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeReport {
    /// The node's specification. Its name and its devices' UUIDs identify the node and the devices. No device has an
    /// empty UUID, or the UUID of another device of the node.
    pub spec: NodeSpec,
    /// The node's session. The number grows each time that the node begins anew with only those instances that it
    /// reports.
    pub session: u64,
    /// The number of this message among all that the node has sent in this session.
    pub sequence: u64,
    /// The greatest generation that the node has handled, in this session or any before.
    pub handled: Generation,
    /// All instances that run, start or stop: each was started by a command not greater than `handled`, and is not
    /// gone.
    pub running: Vec<Running>,
}

/// Something that runs on a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Running {
    /// The claim that runs.
    pub claim: ClaimUid,
    /// The generation of the command that started it.
    pub instance: Generation,
    /// What the instance holds: exactly the amounts of the last command that the node carried out for it.
    pub amounts: Amounts,
    /// Since when it runs, in milliseconds. Counts for an instance that the engine does not know yet. `None`: since it is
    /// seen.
    pub since_ms: Option<u64>,
}

/// A sign of life. The engine answers it with [`Order::Renew`](crate::Order::Renew).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Heartbeat {
    /// The node that is alive.
    pub node: NodeName,
    /// The present session of the node.
    pub session: u64,
    /// The number of this message in the session.
    pub sequence: u64,
}

/// The outcome of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The node that reports.
    pub node: NodeName,
    /// The session of the node in which the command came.
    pub session: u64,
    /// The number of this message.
    pub sequence: u64,
    /// The claim that the command was about.
    pub claim: ClaimUid,
    /// The generation of the instance's start.
    pub instance: Generation,
    /// The command's generation; the instance's generation if the report is not about a command.
    pub generation: Generation,
    /// What became of it.
    pub outcome: StepOutcome,
}

/// The outcome of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StepOutcome {
    /// The instance runs, with the amounts of the command.
    Started,
    /// The node did not carry out the command. The text says why.
    Refused(String),
    /// The node tried and could not. The text says why.
    Failed(String),
    /// The instance does not run any more, or never did.
    Gone,
    /// It is not known whether the command was carried out.
    Unknown,
}
