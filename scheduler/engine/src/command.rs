//! The commands that the engine sends to nodes.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{Bytes, DeviceCore, MilliCpu};

use crate::names::{ClaimUid, Generation, NodeName};

/// Carries commands to nodes, or to whoever speaks for them.
///
/// [`Backend::carry_out`] returns at once. What becomes of a command comes back as an
/// [`Observation`](crate::Observation), or not at all: commands and observations may be lost, late, repeated and
/// reordered.
///
/// # Promises of a backend
///
/// * A node does not start what it was told in another [session](Command::session) than its own, in a lower term than it
///   has seen, or with a generation that is not greater than all that it has handled ([`NodeReport::handled`]).
/// * A node does not resize an instance by a command of another session, or whose generation is not greater than that of
///   the last one that it has got to resize this instance. A resize that was refused or failed has changed nothing.
/// * An instance that was reported gone, refused or failed does not run, and never will.
/// * A node that holds a lease has stopped all that ran when the lease lapses, and begins a new session then.
/// * Where the engine gives leases, a node that runs something and holds none begins one of its own with its session. It
///   is as long as the engine's, so what runs there is stopped if the engine is never heard of.
/// * What a new session does not report as running does not run.
/// * [`NodeReport::running`] lists all that was handled and is not gone, also what is still starting or stopping.
/// * [`NodeReport::handled`] outlives sessions: it never becomes less, whatever else a node forgets.
/// * A node reports all that runs every so often, also when nothing has changed.
///
/// [`NodeReport::handled`]: crate::NodeReport::handled
/// [`NodeReport::running`]: crate::NodeReport::running
pub trait Backend {
    /// Sends a command on its way.
    fn carry_out(&mut self, command: Command);
}

/// A command to a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// The node that is to carry it out.
    pub node: NodeName,
    /// The node's session that the command is meant for. In another session it means nothing.
    pub session: u64,
    /// The order itself.
    pub order: Order,
}

/// What a node is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// Start a claim, as the instance of this generation.
    Start {
        /// The claim to start.
        claim: ClaimUid,
        /// Names the instance from now on.
        generation: Generation,
        /// What it may use.
        amounts: Amounts,
        /// When the engine takes it as failed if it has heard nothing.
        deadline_ms: u64,
        /// The term of the engine that sends it. It may be greater than that of the generation: an engine repeats what the
        /// one before it may not have sent.
        term: u64,
    },
    /// Resize an instance where it is. The node answers that the instance has [started](crate::StepOutcome::Started) with
    /// these amounts, or that it goes on with those that it had.
    Resize {
        /// The claim that the instance belongs to.
        claim: ClaimUid,
        /// Which instance of it.
        instance: Generation,
        /// Names this attempt.
        generation: Generation,
        /// What it may use from now on, of the same devices.
        amounts: Amounts,
        /// When the engine tries again if it has heard nothing.
        deadline_ms: u64,
    },
    /// Stop an instance. Nodes do this whatever else they have handled.
    Stop {
        /// The claim that the instance belongs to.
        claim: ClaimUid,
        /// Which instance of it.
        instance: Generation,
        /// Names this attempt.
        generation: Generation,
        /// When the engine tries again if it has heard nothing.
        deadline_ms: u64,
    },
    /// What runs may go on running: so long, from when the node has sent the message of this number.
    Renew {
        /// The number of the heartbeat that this answers.
        sequence: u64,
        /// How long, in milliseconds.
        lease_ms: u64,
        /// The term of the engine that sends it.
        term: u64,
    },
    /// The session is over, as far as the engine knows: stop all that runs, and begin a new one. A node whose lease has
    /// lapsed does so by itself; this is for one that never got a lease.
    EndSession {
        /// The term of the engine that sends it.
        term: u64,
    },
    /// Say what runs: the engine has not heard it in this session.
    Report {
        /// The term of the engine that sends it.
        term: u64,
    },
}

/// What an instance holds of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Amounts {
    /// Processor time, in thousandths of a CPU.
    pub cpu: MilliCpu,
    /// Memory of the node.
    pub memory: Bytes,
    /// Parts of devices: in a command for each of the claim's requests in turn, in a report in any order.
    pub devices: Vec<DevicePart>,
    /// Which of the claim's choices this is; 0 is the first one, and the only one of most claims.
    pub alternative: u16,
    /// What is only counted of the node, by name, as a claim asks for it ([`Request::counted`]).
    ///
    /// [`Request::counted`]: aliquot_scheduler_core::Request::counted
    pub counted: BTreeMap<String, u64>,
}

/// A part of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DevicePart {
    /// The UUID of the device.
    pub uuid: String,
    /// Part of the device's time.
    pub core: DeviceCore,
    /// Part of the device's memory.
    pub memory: Bytes,
}
