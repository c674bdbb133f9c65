//! A scheduler for machines without Kubernetes: nodes join it, users submit jobs to it, and it is the memory of both.
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
//! * The [`gate`] finds out who calls, from what the connection says ([`callers`]), and bounds how much each user calls
//!   ([`limits`]). What each may do is decided in [`access`] alone. [`grants`] are what the configuration gives, [`accounts`]
//!   what administrators have given to users of other machines.
//!
//! * The [`jobs`] book knows what users want. It is a state machine without I/O. The [`controller`], one thread, owns it:
//!   it saves what has changed, then tells the engine and the nodes.
//! * The engine decides which claim goes where. All policy is there.
//! * [`secrets`] are sealed, here and in the store. Only the node that starts a job is told their values.
//! * [`streams`] connect a user with a running job, by way of a call that its node makes when asked to.
//! * [`sessions`] are the nodes that can be reached now. Whatever is sent to others is lost, and the engine's deadlines
//!   and reports mend that.
//!
//! # Invariants
//!
//! * What a user was told is durable.
//! * Whoever has got an answer to a change finds it in the audit log, unless that cannot be written.
//! * The book hears of an end before the engine does. So no job starts anew that has just succeeded.
//! * A node forgets an end only when it is durable here.
//! * A claim's start goes to a node only if the book wants the claim still. So a job that is never to be started again is
//!   not, whatever the engine knows.
//! * If something cannot be saved, the process ends. It starts anew from what is there.
//! * Of several schedulers that share a database, one leads. What the others would write is refused, and before another one
//!   leads, the leader says nothing more to nodes.
//!
//! # What it may touch
//!
//! Network, files of its state directory and the clock. No policy about placement, and no type of Kubernetes.

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
