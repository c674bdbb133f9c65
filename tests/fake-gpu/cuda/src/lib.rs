//! The simulated GPU's CUDA driver: a `libcuda.so.1` of our own, with no GPU behind.
//!
//! It answers as NVIDIA's driver does, wherever a program can see it: handles, contexts, memory that returns what was
//! written, streams, events, capture and graphs, errors. Kernels compute nothing; they take device time by the rule of
//! [`aliquot_fake_machine`], which also says how processes share the devices.
//!
//! [`exports`] expands the functions from the table in `aliquot-abi`; each line of the table calls the function of the same
//! name in one of the modules here, so a line without an implementation does not compile. An implementation returns
//! [`Done`], and reads and writes the caller's memory through [`caller`] only.

#![allow(non_snake_case, reason = "implementations have the names of the driver API's functions")]
#![cfg_attr(test, allow(dead_code, reason = "without its exports nothing of the library is called"))]

mod arena;
mod arrays;
mod attributes;
mod caller;
mod capture;
mod context;
mod copies;
mod device;
mod events;
mod executor;
mod exports;
mod graph_exec;
mod graph_memory;
mod graph_nodes;
mod graphs;
mod handles;
mod host_memory;
mod images;
mod interface_v1;
mod kernels;
mod launches;
mod lookup;
mod memory;
mod memory_operations;
mod modules;
mod occupancy;
mod pointers;
mod pools;
mod process;
mod queue;
mod sets;
mod streams;
mod virtual_memory;

use aliquot_abi::cuda::CUresult;

/// What a driver function's implementation returns.
pub(crate) type Done<T = ()> = Result<T, CUresult>;
