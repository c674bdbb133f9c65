//! What the shim, the node manager and the simulated GPU agree on.
//!
//! Three contracts live here, each defined once:
//!
//! * [`cuda`] and [`nvml`]: the interfaces that NVIDIA defines, as far as we touch them: types, result codes, and one
//!   table of functions each, from which exports, look-up and the simulated GPU expand;
//! * [`region`]: the files that the manager and the processes of one container share, to the byte;
//! * [`ledger`]: how memory is reserved, given back and reclaimed in those files; [`handshake`]: how one waits at a gate there;
//!   [`pacing`]: how a container keeps to its limit of device time when nobody opens and closes gates.
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
