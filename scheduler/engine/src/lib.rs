//! Makes the scheduler's core live: takes in observations of the outside, sends out what the core decides, and saves
//! what must outlive the process.
//!
//! An [`Engine`] owns the one `Cluster` and the one `Scheduler`. It is a state machine: [`Engine::handle`] takes in an
//! [`Observation`], and [`Engine::poll`] answers a [`Ready`] with what must be done now. The engine uses no clock, no
//! network, no thread and no file. [`run`] drives it in a real process, and the tests drive it through thousands of
//! virtual worlds.
//!
//! ```text
//!  nodes, users ── Observation ──► handle ─► books (core) ─► cycle ─► issue ── Command ──► Backend
//!                                                │                       │
//!                            readers ◄── View ◄──┘                       └──► Batch ──► Store, before the commands
//! ```
//!
//! # Names
//!
//! Outside, claims have UIDs, nodes have names, and devices have UUIDs; in the books all have numbers. A claim is found
//! in constant time, a node in logarithmic time in the number of nodes, and a device by a search among those of its
//! node. A device keeps its number as long as its node is known: a device that is not reported any more counts as
//! unhealthy.
//!
//! # From plan to truth
//!
//! The books contain each decision at once. The engine carries the decisions out, claim by claim, by one rule: a claim
//! that has started in the books and has no *instance* is started, and an instance that is leaving in the books is
//! stopped. An instance is named by the [`Generation`] of its start command. Each is starting, running or stopping.
//!
//! * **Assume**: a claim counts as running when its start is sent.
//! * **Repeat**: a node that comes back is sent again the starts and stops that it has not handled, because they may
//!   have been lost with the connection.
//! * **Confirm**: the node says that the instance runs.
//! * **Expire**: no answer came until the deadline. The start counts as failed, but the instance may run all the same:
//!   it is told to stop, and holds its room until it is gone. A stop is repeated until then.
//! * **Refuse**: a node may refuse an eviction. The claim runs on, and the core does not choose it again for a while.
//!   That time grows with each refusal.
//! * **Resize**: the books hold the larger of the old and the new amounts until the node has confirmed or refused.
//!
//! An outcome names the instance and the command, so a late or repeated outcome changes nothing. A report lists all
//! instances on a node. It counts only if it is newer than every other message of the node, and it says nothing about
//! commands that the node had not handled when it made the report.
//!
//! An instance that a report lists and the books do not know counts as well. It becomes the instance of its claim if
//! the claim has none, even if it holds more than is free; the following cycles evict what is too much. An instance
//! that no claim needs, or a second instance of a claim, is a *stray*: it is in the books under a claim of its own
//! until it is stopped. A claim that has a stray is not started before the stray is gone.
//!
//! # Nodes
//!
//! A node that was silent for a while gets nothing new. Its lease lapses later, on the node's clock before it does on
//! the engine's. Its claims become pending again only after the lapse, or when the backend reports that the node is
//! gone. Sessions separate the time before a lapse from the time after it: nothing is started, resized or renewed by a
//! command of an earlier session.
//!
//! # What is saved
//!
//! A small record of each claim and each node whose state has changed; and now and then, as a whole, what changes
//! slowly (usage, holds, searches, expected work). Commands go out after the batch that records them is durable. So
//! after a restart the engine knows every instance that may run somewhere. What users and administrators want is not
//! saved here: its keeper tells it again after a start, and then sends [`Observation::Synced`].
//!
//! # Snapshots
//!
//! [`Engine::restore`] makes an engine that begins with a given state, without a store. [`AtOnce`] is a backend that
//! carries out each command at once. Together they show what the scheduler would decide about a snapshot.
//!
//! # Readers
//!
//! A [`View`] is the whole state at one moment, with the books, so that *explain* and *what if* can work on it. Making
//! one takes microseconds, because it shares all that has not changed. A reader never waits for a cycle.
//!
//! # Invariants
//!
//! * An instance that a node reports is in the books, whatever they wanted.
//! * An instance's claim is placed nowhere else until it is certain that the instance does not run: its node says so, a
//!   newer session of the node does not list it, its lease has lapsed, or its node is gone for good.
//! * Each command that was sent is in the store. So is each acknowledged observation, unless its sender repeats it
//!   after a restart.
//! * A message that is late, repeated or reordered changes nothing twice.
//! * Policy is in the core. The engine decides when something happens, never which claim or which node.
//!
//! # What it may touch
//!
//! The core, and the standard library except clocks, files, sockets and the start of threads. `clippy.toml` forbids
//! those.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic, clippy::print_stdout, clippy::print_stderr)]

mod at_once;
mod command;
pub mod conformance;
mod decided;
mod engine;
mod entries;
mod ids;
mod names;
mod observation;
mod runner;
mod settings;
mod store;
mod view;

pub use at_once::AtOnce;
pub use command::{Amounts, Backend, Command, DevicePart, Order};
pub use engine::{Decisions, Engine, Ready};
pub use names::{ClaimUid, Generation, NodeName};
pub use observation::{Heartbeat, NodeReport, Observation, Report, Running, StepOutcome};
pub use runner::{Acknowledge, Message, run};
pub use settings::{Lease, Settings};
pub use store::{
    Batch, BoundRecord, ClaimKey, ClaimRecord, EvictionRecord, InstanceRecord, Memory, MemoryStore, NodeRecord, Owner,
    Phase, ResizeRecord, Saved, Store, StoreError,
};
pub use view::{ClaimView, NodeView, Shown, Snapshots, View, Whereabouts};
