//! The simulated GPU's management library: our own `libnvidia-ml.so.1`, which needs no GPU.
//!
//! It shows what the machine's processes do on the simulated devices: memory, processes with their host ids,
//! utilisation, topology. Other queries return "not supported". [`exports`] expands the functions from the table in
//! `aliquot-abi`; each line calls the function of the same name in one of the modules here.

#![allow(non_snake_case, reason = "implementations have the names of NVML's functions")]
#![cfg_attr(test, allow(dead_code, reason = "without its exports nothing of the library is called"))]

mod accounting;
mod caller;
mod devices;
mod events;
mod exports;
mod fields;
mod memory;
mod mig;
mod partition;
mod processes;
mod sensors;
mod session;
mod topology;
mod utilisation;

use aliquot_abi::nvml::nvmlReturn_t;

/// The result of an NVML function's implementation.
pub(crate) type Done<T = ()> = Result<T, nvmlReturn_t>;
