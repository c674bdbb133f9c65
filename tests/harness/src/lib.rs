//! Building blocks of end-to-end tests and benchmarks.
//!
//! | | |
//! | --- | --- |
//! | [`artifacts`] | the libraries and programs under test, built when they are first asked for |
//! | [`SimulatedGpu`] | a machine with simulated GPUs, and its own exact account of what each process uses |
//! | [`FrontDriver`] | a test's own driver library in front of the simulated one |
//! | [`Region`] | a slice made by hand, without a manager: limits stay exactly as the test writes them |
//! | [`Node`], [`Slice`] | a node manager in its own process, and its slices |
//! | [`delete_at_once`] | a directory of a manager's, gone from one moment to the next |
//! | [`HostProgram`] | a C program from `tests/programs` |
//! | [`unchanged_in_a_slice`] | a command that must do the same with and without the shim |
//! | [`like_a_device_of`] | a program that must find a slice like a device of its size |
//! | [`PythonEnvironment`] | Python with NVIDIA's own packages |
//! | [`Scheduler`], [`Jobs`] | a scheduler for machines without Kubernetes, and a client of it |
//! | [`nvidia_headers`] | NVIDIA's headers of any version, to compare our declarations with |
//! | [`nvidia_runtime`] | NVIDIA's runtime library of any version, shared and static |
//! | [`PostgreSql`] | a PostgreSQL server from this machine's package, with empty databases |
//! | [`Sysroot`] | an older C library |
//! | [`RootFs`], [`Image`], [`Container`] | root file systems, and containers that podman runs in them |
//! | [`as_user`] | code run as another user of the machine |
//! | [`Process`], [`wait`] | processes that cannot hang a test, and waiting for conditions with a deadline |
//! | [`Shares`] | shares of device time, judged so that the verdict is right on a busy machine too |
//! | [`Witness`] | how long the machine itself stood still during a measurement |
//!
//! A test builds a [`Command`](std::process::Command), points it at a GPU ([`SimulatedGpu::show_to`]), optionally puts
//! it into a slice ([`Region::preload_into`] or [`Slice::preload_into`]), and runs it ([`run`]). Each test has its own
//! GPUs, nodes and slices, so tests can run side by side. All of them are removed when they are dropped.
//!
//! A missing tool fails the test with a message that names the package to install: no test is skipped silently.

pub mod artifacts;
mod client;
mod compiler;
pub mod container;
pub mod debian;
mod front_driver;
mod gpu;
mod headers;
mod loopback;
mod mapped;
mod node;
mod played_nodes;
mod postgresql;
mod process;
mod program;
mod publishing;
mod python;
mod region;
mod root;
mod scheduler;
mod shares;
mod stall;
mod sysroot;
mod tool;
mod unchanged;
mod user;
pub mod wait;

pub use client::Client;
pub use compiler::nvidia_compiler;
pub use container::{Container, Image};
pub use front_driver::FrontDriver;
pub use gpu::{EXACT_MEMORY, PARTITIONABLE_GPU, SimulatedGpu};
pub use headers::{nvidia_headers, nvidia_runtime};
pub use loopback::own_address;
pub use mapped::Mapped;
pub use node::{Node, Slice, delete_at_once};
pub use played_nodes::{PlayedNodes, spec_of_today};
pub use postgresql::PostgreSql;
pub use process::{Outcome, Process, freeze, resume, run};
pub use program::{HostProgram, copy_program};
pub use python::PythonEnvironment;
pub use region::{Part, Region};
pub use root::{RootFs, libraries_of};
pub use scheduler::{Jobs, Scheduler};
pub use shares::Shares;
pub use stall::Witness;
pub use sysroot::Sysroot;
pub use tool::tool;
pub use unchanged::{like_a_device_of, unchanged_in_a_slice};
pub use user::as_user;

/// Bytes of a gibibyte.
pub const GIB: u64 = 1 << 30;
/// Bytes of a mebibyte.
pub const MIB: u64 = 1 << 20;
