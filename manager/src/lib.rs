//! The node manager of Aliquot: gives containers exact parts of this node's GPUs, and keeps watch over them.
//!
//! # Bird's-eye view
//!
//! * **Pure**: rules, without a clock, file or thread. `slices` (the parts of devices that each slice has), `health`
//!   (when a device is broken), `usage` (shares and histories from figures); `aliquot_arbiter` (which slice is next).
//! * **`manager`** carries out many changes at once, each in steps that can be rolled back; its `recovery` restores at
//!   the start the state that an earlier manager has left. No other module changes slices.
//! * **`measure`** reads the use of slices.
//! * **Borders**: `region` (the files shared with containers; nearly all `unsafe` code is there), `checkpoint`, `cdi`,
//!   `nvml`, `procfs`, `socket`, `attribution` (which slice a process belongs to), `node` (the manager as adapters see
//!   it). They hold no policy.
//! * **Adapters**, which only `daemon` imports: `grpc`, `metrics`, `kubernetes` and `relay`. The last two start the
//!   adapters of `aliquot_kubernetes`.
//! * **`events`** keeps the events that the other modules report.
//! * **Threads**, each with one task: `attach` (knows the processes in each slice; gives back the memory and slots of
//!   ended ones), `time_sharing` (one for each device: drives the arbiter), `heartbeat`, `sampler`, `devices` (the only
//!   one that waits for the driver; the `audit` runs on it), and those of the servers (`grpc`, `metrics`). Without
//!   slices all but `devices` sleep.
//!
//! Entry points: [`daemon::run`] for the daemon, [`daemon::Daemon::start`] for a manager inside another program.
//!
//! # Invariants
//!
//! * The manager can be killed at any moment. A promise is in the checkpoint before it is given, and the next start
//!   removes the leftovers of an unfinished operation.
//! * Everything that a container can write is hostile input: no value, size or timing of it ends the manager or harms
//!   another container.
//! * On each device the guaranteed shares add up to at most 100 percent, and the memory limits to at most its memory.
//! * A failed operation has changed nothing.

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
mod measure;
mod metrics;
mod mps;
mod node;
mod nvml;
pub mod paths;
mod pci;
mod periodic;
mod procfs;
mod refusals;
#[allow(unsafe_code, reason = "maps memory that other processes write; each block says what makes it sound")]
mod region;
pub mod relay;
pub mod runtime_mount;
mod sampler;
pub mod shim_image;
mod size;
mod slices;
mod socket;
mod time_sharing;
mod usage;
