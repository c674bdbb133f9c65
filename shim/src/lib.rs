#![recursion_limit = "1024"]
//! The shim: the library that is preloaded into every process of a container and keeps it within its slice.
//!
//! A call of a hooked driver function goes this way:
//!
//! ```text
//! host program ── export (exports.rs) ── policy (memory.rs, launch.rs, copy.rs, view.rs, context.rs, start.rs) ── driver function
//!                                              │
//!                    process.rs: this process's attachment: limits, ledger, slot
//!                    allocations.rs: what each address and handle was charged; vmm.rs, arrays.rs, host_memory.rs: by what rule
//!                    reserve.rs, pools.rs, graph_memory.rs: what is charged as a whole, by the driver's own figures
//!                    gate.rs, markers.rs: leases on device time and work in flight
//! ```
//!
//! Programs find the hooks by linking (deep_binding.rs sees to libraries that are bound past them, own_variables.rs to
//! those that are bound to them and have variables of these names), by `dlsym` and `dlvsym` (lookup.rs), and by
//! `cuGetProcAddress` (start.rs). Look-ups ask the loader or the driver first and then map *the pointer that it
//! returned* to the hook of exactly that ABI (hooks.rs). What is not known passes through untouched.
//!
//! Invariants:
//!
//! * No constructor, no thread, no lock that can be held across a fork, no heap, no thread-local storage, no signal handler,
//!   no environment variable, no exit; `errno` is never touched (system calls are made directly, sys.rs). Hooks are as
//!   async-signal-safe as the driver functions behind them.
//! * No panic: a panic that the compiler cannot remove is a link error (panic.rs).
//! * A process that uses neither CUDA nor NVML pays for loading this library and for little else: `dlsym` and `dlopen`
//!   look at the name, and `chroot` maps the region.
//! * In a sound region a call that cannot be tracked passes; it is not refused. A process without a slot is refused, as
//!   nothing that it does can be counted.
//! * A region that is there and cannot be used refuses the device (region.rs). The shim is passive only with no region
//!   beside it, and on kernels that cannot wipe its block in a forked child (process.rs).

#![no_std]

mod allocations;
mod arena;
mod arrays;
mod bindings;
mod clock;
mod context;
mod copy;
mod deep_binding;
mod driver;
mod elf;
mod exports;
mod freestanding;
mod gate;
mod graph_memory;
mod graph_needs;
mod hooks;
mod host_memory;
mod launch;
mod linkmap;
mod live_contexts;
mod looks;
mod lookup;
mod markers;
mod memory;
mod own_variables;
mod pacing;
mod panic;
mod polling;
mod pools;
mod process;
mod radix;
mod references;
mod region;
mod reserve;
mod start;
mod synchronize;
mod sys;
mod trampoline;
mod view;
mod vmm;
