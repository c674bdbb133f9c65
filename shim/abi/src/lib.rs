//! The contracts between the shim, the node manager and the simulated GPU.
//!
//! Each of these contracts is defined here once:
//!
//! * [`cuda`] and [`nvml`]: NVIDIA's interfaces, as far as this project touches them: types, result codes, and one
//!   table of functions each, from which exports, look-up and the simulated GPU expand;
//! * [`region`]: the layout, to the byte, of the files that the manager and the processes of one container share;
//! * [`ledger`]: how memory is reserved, given back and reclaimed in those files;
//! * [`handshake`]: how a thread waits at a gate in those files;
//! * [`pacing`]: how a container keeps to its limit of device time while no manager opens and closes gates.
//!
//! Invariant: this crate is `no_std`, has no dependency, does no system call, and cannot panic. Everything in shared
//! memory is a fixed-width integer or an atomic of one.

#![cfg_attr(not(any(test, loom)), no_std)]

pub mod atomic;
pub mod cuda;
pub mod handshake;
pub mod ledger;
pub mod nvml;
pub mod pacing;
pub mod region;
pub mod rounding;
