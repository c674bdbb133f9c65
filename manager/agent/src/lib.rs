//! A node in a cluster without Kubernetes: joins a scheduler, holds its lease, runs jobs.
//!
//! | Modules | Task |
//! | --- | --- |
//! | [`settings`] | what a person configures |
//! | `identity`, `link`, `address` | the node's certificate; the connection to the scheduler, always made anew; the node's address |
//! | `agent` | carries out what the scheduler says, and tells it what has become of that |
//! | `instance`, `lease`, `logs` | files: what was commanded and how it ended, until when jobs may run, what they write |
//! | `supervise` | the process that starts a job and ends it, whatever happens to the agent |
//! | `container` | how podman runs a job that has an image |
//! | `secrets` | files that only a job's user can read, in memory |
//! | `streams`, `send_log` | what users run beside a job, connections to its ports, and its log, on the way to them |
//! | `manager`, `report` | the node manager's words, and what they mean to the scheduler |
//! | [`slice_environment`] | the variables that put a command into a slice |
//!
//! The agent is a thread of the node manager. Everything that it has promised is in files first, so it can be killed at
//! any moment: jobs run on, and the next agent finds them. That thread renews the lease. So whatever may wait long, for a
//! disk or for a name service on another machine, is done by [`aliquot_node::aside()`].

pub mod settings;
pub mod slice_environment;

mod address;
mod agent;
mod clock;
mod container;
mod files;
mod identity;
mod instance;
mod lease;
mod link;
mod logs;
mod manager;
mod process;
mod report;
mod secrets;
mod send_log;
mod streams;
mod supervise;
mod users;

pub use agent::{Running, StartError};
pub use process::kill_descendants;
pub use supervise::main as supervise;
