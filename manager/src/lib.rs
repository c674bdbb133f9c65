//! The node manager of Aliquot: gives containers exact parts of this node's GPUs, and keeps watch over them.
//!
//! # Bird's-eye view
//!
//! * **Pure**: what is wanted and whether it may be. `slices` (who has what of which device), `health` (when a device
//!   is broken), `usage` (shares from a history); `aliquot_arbiter` (whose turn it is). They know no clock, file or
//!   thread.
//! * **`manager`** carries out what is asked, step by step, each of which can be undone; its `recovery` finds at the
//!   start what was there before. Nothing else changes slices.
//! * **Borders**: `region` (the files shared with containers; nearly all `unsafe` code is there), `checkpoint`, `cdi`,
//!   `nvml`, `procfs`, `socket`, `attribution` (whose a process is), `kubernetes` (the manager as `aliquot_kubernetes`
//!   sees it). They hold no policy.
//! * **`events`** keeps what all of them say has happened.
//! * **Threads**, each with one task: `attach` (who is in which slice; gives back what the dead held), `time_sharing`
//!   (one for each device: drives the arbiter), `heartbeat`, `sampler`, `devices` (the only one that waits for the
//!   driver; the `audit` looks with it), and the servers' (`grpc`, `metrics`). With no slice all but `devices` sleep.
//!
//! Entry points: [`daemon::run`] for the daemon, [`daemon::Daemon::start`] for a manager inside another program.
//!
//! # Invariants
//!
//! * The manager can be killed at any moment. What it has promised is in the checkpoint before it is promised, and
//!   what a half-done operation leaves is removed at the next start.
//! * What a container can write is hostile input: no value, size or timing of it ends the manager or takes from
//!   another container.
//! * On each device the guaranteed shares add up to at most 100 percent and the memory limits to at most its memory.
//! * An operation that fails has changed nothing.

#![deny(unsafe_code)]

mod attach;
mod attribution;
mod audit;
mod cdi;
mod checkpoint;
mod clock;
pub mod config;
pub mod daemon;
mod damage;
mod descriptors;
mod devices;
mod driver_root;
mod events;
pub mod file_system;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod grpc;
mod health;
mod heartbeat;
pub mod inventory;
mod kubernetes;
mod live;
mod logging;
mod manager;
mod metrics;
mod mps;
mod nvml;
pub mod paths;
mod periodic;
mod procfs;
mod refusals;
#[allow(unsafe_code, reason = "maps memory that other processes write; each block says what makes it sound")]
mod region;
mod rollback;
pub mod runtime_mount;
mod sampler;
pub mod shim_image;
mod size;
mod slices;
mod socket;
mod time_sharing;
mod usage;
