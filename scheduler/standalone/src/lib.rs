//! A scheduler for machines without Kubernetes. Nodes join it, users submit jobs to it, and it stores the state of
//! both.
//!
//! ```text
//!  users ── Unix socket, TLS ─► gate ─► users ──┐                                 ┌──► engine's thread ──► store
//!                                │              ├──► controller (the job book) ───┤         │ commands
//!                                └──► audit log │            │                    └── views ─► users
//!  nodes ── mutual TLS ───────────────► agents ─┘            └──► store                     │
//!                                          ▲                                                │
//!                                          └──────────────── sessions ◄─────────────────────┘
//! ```
//!
//! * The [`gate`] identifies each caller from what the connection says ([`callers`]), and bounds the calls of each user
//!   ([`limits`]). [`local_users`] finds names, for which others do not wait. Rights are decided in [`access`] alone.
//!   [`grants`] are the rights from the configuration, [`accounts`] the rights that administrators have given to users
//!   of other machines.
//!
//! * The [`jobs`] book contains what users want. It is a state machine without I/O. The [`controller`], one thread,
//!   owns it: it saves what has changed, then tells the engine and the nodes.
//! * The engine decides which claim goes to which node. All policy is there.
//! * [`secrets`] are encrypted, in this process and in the store. Only the node that starts a job is sent their values.
//! * [`streams`] connect a user with a running job, through a call that the job's node makes when it is asked to.
//! * [`sessions`] are the nodes that are connected now. A message to any other node is lost; the engine's deadlines and
//!   the nodes' reports make up for that.
//!
//! # Invariants
//!
//! * What a user was told is durable.
//! * A change that was answered is in the audit log, unless the log cannot be written.
//! * The book learns of an end before the engine does. So a job that has just succeeded is not started anew.
//! * A node forgets an end only when the end is durable here.
//! * A claim's start goes to a node only if the book still wants the claim. So a job that must never run twice is not
//!   started again, whatever the engine knows.
//! * If something cannot be saved, the process ends. It starts again from what is in the store.
//! * Of several schedulers that share a database, one leads. The database refuses writes of the others. Before another
//!   one begins to lead, the old leader has stopped sending to nodes.
//!
//! # What it may touch
//!
//! The network, the files of its state directory, and the clock. It has no policy about placement, and no type of
//! Kubernetes.

#![forbid(unsafe_code)]

mod access;
mod accounts;
mod agents;
mod audit;
mod backend;
mod callers;
mod certificates;
mod clock;
pub mod config;
mod connections;
mod controller;
mod gate;
mod grants;
mod jobs;
mod limits;
mod local_users;
mod membership;
mod metrics;
mod present;
mod queues;
mod registrar;
mod secrets;
mod serve;
mod sessions;
mod standby;
mod streams;
mod users;
mod wire;

pub use certificates::{CertificateError, SERVER_NAME};
pub use membership::{Invitation, LoadError};
pub use serve::{ServeError, Server, State};
