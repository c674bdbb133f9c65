//! What end-to-end tests and benchmarks are made of.
//!
//! | | |
//! | --- | --- |
//! | [`artifacts`] | the libraries and programs under test, built when they are first asked for |
//! | [`SimulatedGpu`] | a machine with simulated GPUs of its own, and the truth about who uses what of them |
//! | [`FrontDriver`] | a driver of a test's own in front of the simulated one |
//! | [`Region`] | a slice made by hand, with no manager behind: limits stand exactly as they are written |
//! | [`Node`], [`Slice`] | a node manager in a process of its own, and its slices |
//! | [`HostProgram`] | a C program from `tests/programs` |
//! | [`unchanged_in_a_slice`] | a command that must do the same with and without the shim |
//! | [`like_a_device_of`] | a program that must find a slice like a device of its size |
//! | [`PythonEnvironment`] | Python with NVIDIA's own packages |
//! | [`nvidia_headers`] | NVIDIA's headers of any version, for what must agree with them |
//! | [`Sysroot`] | an older C library |
//! | [`RootFs`], [`Image`], [`Container`] | root file systems, and containers that podman runs in them |
//! | [`as_user`] | what another user of the machine can do |
//! | [`Process`], [`wait`] | processes that cannot hang a test, and waiting for what must come |
//! | [`Shares`] | shares of device time, judged so that they hold on a busy machine |
//! | [`Witness`] | how long the machine itself stood still meanwhile |
//!
//! A test puts together a [`Command`](std::process::Command), shows it a GPU ([`SimulatedGpu::show_to`]), lets it enter
//! a slice ([`Region::preload_into`] or [`Slice::preload_into`]) or not, and runs it ([`run`]). Everything is a test's
//! own, so tests can run side by side; everything is gone when it is dropped.
//!
//! What a machine lacks fails the test with a line that names the package to install: nothing is skipped in silence.

pub mod artifacts;
mod client;
pub mod container;
pub mod debian;
mod front_driver;
mod gpu;
mod headers;
mod mapped;
mod node;
mod process;
mod program;
mod publishing;
mod python;
mod region;
mod root;
mod shares;
mod stall;
mod sysroot;
mod tool;
mod unchanged;
mod user;
pub mod wait;

pub use client::Client;
pub use container::{Container, Image};
pub use front_driver::FrontDriver;
pub use gpu::{EXACT_MEMORY, PARTITIONABLE_GPU, SimulatedGpu};
pub use headers::nvidia_headers;
pub use mapped::Mapped;
pub use node::{Node, Slice};
pub use process::{Outcome, Process, run};
pub use program::{HostProgram, copy_program};
pub use python::PythonEnvironment;
pub use region::{Part, Region};
pub use root::{RootFs, libraries_of};
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
