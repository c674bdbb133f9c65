//! The simulated GPU's CUDA driver: our own `libcuda.so.1`, which needs no GPU.
//!
//! It behaves like NVIDIA's driver in everything that a program can observe: handles, contexts, memory contents,
//! streams, events, capture and graphs, errors. Kernels compute nothing; they take device time by the rules of
//! [`aliquot_fake_machine`], which also describes how processes share the devices.
//!
//! [`exports`] expands the functions from the table in `aliquot-abi`. Each line of the table calls the function of the
//! same name in one of the modules here, so a line without an implementation does not compile. An implementation
//! returns [`Done`], and accesses the caller's memory only through [`caller`].

#![allow(non_snake_case, reason = "implementations have the names of the driver API's functions")]
#![cfg_attr(test, allow(dead_code, reason = "without its exports nothing of the library is called"))]

mod arena;
mod array_copies;
mod arrays;
mod attributes;
mod backing;
mod batches;
mod blocks;
mod caller;
mod capture;
mod conditionals;
mod context;
mod copies;
mod device;
mod events;
mod executor;
mod exports;
mod external_memory;
mod external_semaphores;
mod graph_attributes;
mod graph_exec;
mod graph_memory;
mod graph_node_parameters;
mod graph_nodes;
mod graph_print;
mod graph_update;
mod graphs;
mod green_contexts;
mod handles;
mod host_memory;
mod images;
mod imported;
mod interface_v1;
mod ipc;
mod kernels;
mod launches;
mod linking;
mod locations;
mod lookup;
mod meetings;
mod memory;
mod memory_operations;
mod modules;
mod multicast;
mod occupancy;
mod physical_memory;
mod pinning;
mod pointers;
mod pool_settings;
mod pool_sharing;
mod pools;
mod process;
mod queue;
mod sets;
mod shared_extents;
mod sparse_arrays;
mod stream_ordered;
mod streams;
mod textures;
mod thunks;
mod user_objects;
mod virtual_memory;

use aliquot_abi::cuda::CUresult;

/// The result of a driver function's implementation.
pub(crate) type Done<T = ()> = Result<T, CUresult>;
