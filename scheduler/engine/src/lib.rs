//! Makes the scheduler's core live: what is seen outside comes in, what the core decides goes out, and what must
//! outlive the process is saved.
//!
//! An [`Engine`] owns the one `Cluster` and the one `Scheduler`. It is a state machine: [`Engine::handle`] takes in an
//! [`Observation`], and [`Engine::poll`] says what is to be done now, as a [`Ready`]. It knows no clock, no network, no
//! thread and no file. [`run`] drives it where there are some, and the tests drive it through thousands of virtual
//! worlds.
//!
//! ```text
//!  nodes, users ── Observation ──► handle ─► books (core) ─► cycle ─► issue ── Command ──► Backend
//!                                                │                       │
//!                            readers ◄── View ◄──┘                       └──► Batch ──► Store, before the commands
//! ```
//!
//! # Names
//!
//! Outside, claims have UIDs, nodes names, and devices UUIDs; the books have numbers. A claim is looked up in constant
//! time, a node in the logarithm of their number, and a device among those of its node. A device keeps its number as
//! long as its node is known: one that is not reported any more is unhealthy.
//!
//! # From plan to truth
//!
//! The books say at once what was decided. The engine makes them true, claim by claim, by one rule: what the books say
//! is started and has no *instance* is started, and what they say is leaving is stopped. An instance is named by the
//! [`Generation`] of its start command. Each is starting, running or stopping.
//!
//! * **Assume**: a claim counts as running when its start is sent.
//! * **Repeat**: a node that comes back is told once more what it has not handled, as the connection may have lost it.
//! * **Confirm**: the node says that the instance runs.
//! * **Expire**: nothing was heard until the deadline. Then the start has failed, and the instance may run all the same:
//!   it is told to stop, and holds its room until it is gone. A stop is repeated until then.
//! * **Refuse**: a node may refuse an eviction. The claim runs on, and the core leaves it alone for a while that grows.
//! * **Resize**: the books hold the larger of the old and the new amounts until the node has confirmed or refused.
//!
//! An outcome names the instance and the command, so one that is late or repeated finds nothing to change. A report
//! lists all that runs on a node. It counts only if it is newer than all else that was heard of the node, and it says
//! nothing about commands that the node had not handled when it was made.
//!
//! What a report lists and the books do not know is true as well. It becomes the instance of its claim if that has none,
//! even where there is less room than it holds; the cycles evict what is too much. What nobody wants, or a second
//! instance of a claim, is a *stray*: it is in the books under a claim of its own until it is stopped. Its claim is not
//! started before that.
//!
//! # Nodes
//!
//! A node that was silent for a while gets nothing new. Its lease lapses later, by the node's clock before the engine's.
//! Only then, or when somebody who knows says that the node is gone, its claims wait again. Sessions separate the time
//! before a lapse from the time after it: no command of one session means anything in the next.
//!
//! # What is saved
//!
//! A small record of each claim whose state has changed, and of each node; now and then, as a whole, what slowly changes
//! (usage, holds, searches, expected work). Commands go out after the batch that knows of them is durable. So after a
//! restart the engine knows of everything that may run somewhere. What users and administrators want is not saved here:
//! whoever has that tells it again, and then says [`Observation::Synced`].
//!
//! # Snapshots
//!
//! [`Engine::restore`] makes an engine that begins with a state, without a store. With [`AtOnce`], whose nodes do at once
//! what they are told, it says what it would decide about a snapshot.
//!
//! # Readers
//!
//! A [`View`] is the whole state at one moment, with the books, so that *explain* and *what if* work on it. Making one
//! takes microseconds, because it shares all that has not changed. Nobody who reads waits for a cycle.
//!
//! # Invariants
//!
//! * What a node says is running is in the books, whatever they wanted.
//! * An instance's claim is placed nowhere else until the instance is known not to run: its node says so, a newer session
//!   of the node does not list it, its lease has lapsed, or its node is gone for good.
//! * Each command that was sent is in the store. Each observation that was acknowledged is, as far as nobody tells it
//!   again.
//! * A message that is late, repeated or reordered changes nothing twice.
//! * Policy is in the core. The engine decides when, never who or where.
//!
//! # What it may touch
//!
//! The core, and the standard library but for clocks, files, sockets and the start of threads. `clippy.toml` forbids
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
    Batch, ClaimKey, ClaimRecord, EvictionRecord, InstanceRecord, Memory, MemoryStore, NodeRecord, Owner, Phase,
    ResizeRecord, Saved, Store, StoreError,
};
pub use view::{ClaimView, NodeView, Shown, View, Whereabouts};
