//! The commands that the engine sends to nodes.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{Bytes, DeviceCore, MilliCpu};

use crate::names::{ClaimUid, Generation, NodeName};

/// Carries commands to nodes, directly or through what manages them.
///
/// [`Backend::carry_out`] returns at once. What becomes of a command comes back as an
/// [`Observation`](crate::Observation), or not at all: commands and observations may be lost, late, repeated and
/// reordered.
///
/// # Promises of a backend
///
/// * A node does not carry out a start that was meant for another [session](Command::session), that has a lower term
///   than the node has seen, or that has no greater generation than all that the node has handled
///   ([`NodeReport::handled`]).
/// * A node does not carry out a resize that was meant for another session, or that has no greater generation than the
///   last resize that it received for this instance. A resize that was refused or failed has changed nothing.
/// * An instance that was reported gone, refused or failed does not run, and never will.
/// * When a node's lease lapses, the node has stopped all its instances. It begins a new session then.
/// * Where the engine gives leases, a node that runs something and holds no lease gives itself one when its session
///   begins. That lease is as long as the engine's, so the instances are stopped even if the node never hears from the
///   engine.
/// * An instance that a new session does not report as running does not run.
/// * [`NodeReport::running`] lists every instance that the node has handled and that is not gone, also those that are
///   still starting or stopping.
/// * [`NodeReport::handled`] outlives sessions: it never decreases, whatever else a node forgets.
/// * A node reports all its instances at regular intervals, also when nothing has changed.
///
/// [`NodeReport::handled`]: crate::NodeReport::handled
/// [`NodeReport::running`]: crate::NodeReport::running
pub trait Backend {
    /// Sends a command. It does not wait for the answer.
    fn carry_out(&mut self, command: Command);

    /// Sends the commands of one moment: the starts of a gang are among the same ones.
    fn carry_out_all(&mut self, commands: Vec<Command>) {
        for command in commands {
            self.carry_out(command);
        }
    }
}

/// A command to a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// The node that is to carry it out.
    pub node: NodeName,
    /// The node's session that the command is meant for. A node in another session ignores the command, unless it asks
    /// for a stop or a report.
    pub session: u64,
    /// The order to the node.
    pub order: Order,
}

/// What a node is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// Start a claim, as the instance of this generation.
    Start {
        /// The claim to start.
        claim: ClaimUid,
        /// The generation that names the instance from now on.
        generation: Generation,
        /// What the instance may use.
        amounts: Amounts,
        /// When the engine counts the start as failed if no answer has come.
        deadline_ms: u64,
        /// The term of the engine that sends the command. It may be greater than the generation's term, because an
        /// engine repeats starts that its predecessor may not have sent.
        term: u64,
    },
    /// Resize an instance in place. The node answers that the instance has [started](crate::StepOutcome::Started) with
    /// the new amounts, or that the resize was refused or failed and the instance keeps the amounts that it has.
    Resize {
        /// The claim that the instance belongs to.
        claim: ClaimUid,
        /// The generation of the instance's start.
        instance: Generation,
        /// The generation of this command.
        generation: Generation,
        /// What the instance may use from now on, on the same devices.
        amounts: Amounts,
        /// When the engine tries again if no answer has come.
        deadline_ms: u64,
    },
    /// Stop an instance. Nodes do this whatever other commands they have handled.
    Stop {
        /// The claim that the instance belongs to.
        claim: ClaimUid,
        /// The generation of the instance's start.
        instance: Generation,
        /// The generation of this command.
        generation: Generation,
        /// When the engine tries again if no answer has come.
        deadline_ms: u64,
    },
    /// Renew the node's lease: its instances may run for `lease_ms` from the moment when the node sent message
    /// `sequence`.
    Renew {
        /// The number of the heartbeat that this answers.
        sequence: u64,
        /// The length of the lease in milliseconds.
        lease_ms: u64,
        /// The term of the engine that sends it.
        term: u64,
    },
    /// The engine counts this session as over: stop all instances, and begin a new session. A node does so by itself
    /// when its lease lapses; this order is for a node that never held a lease.
    EndSession {
        /// The term of the engine that sends it.
        term: u64,
    },
    /// Report all instances: the engine has had no report in this session.
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
    /// Parts of devices. A command lists them in the order of the claim's requests; a report lists them in any order.
    pub devices: Vec<DevicePart>,
    /// The index of the chosen alternative: 0 is the first one, and the only one of most claims.
    pub alternative: u16,
    /// Resources that the node only counts, by name, as a claim asks for them ([`Request::counted`]).
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
