#![recursion_limit = "1024"]
//! The shim: the library that is preloaded into every process of a container and keeps it within its slice.
//!
//! A call of a hooked driver function goes this way:
//!
//! ```text
//! host program ── export (exports.rs) ── policy ── driver function
//!                                          │
//!              start.rs, memory.rs, launch.rs, copy.rs, synchronize.rs, view.rs, context.rs: the policies, by class
//!              process.rs: this process's attachment: limits, ledger, slot
//!              allocations.rs: the charge of each address and handle
//!              vmm.rs, arrays.rs, host_memory.rs: memory that is charged piece by piece
//!              reserve.rs, pools.rs, graph_memory.rs: memory that is charged as a whole, by the driver's own figures
//!              modules.rs: memory that the driver takes for modules, noted until a look has found it
//!              gate.rs, markers.rs: leases on device time, and work in flight
//! ```
//!
//! Programs find the hooks by linking, by `dlsym` and `dlvsym` (lookup.rs), and by `cuGetProcAddress` (start.rs).
//! deep_binding.rs binds libraries to the hooks that the loader bound past them; own_variables.rs unbinds libraries
//! whose own variables have the names of hooks. A look-up asks the loader or the driver first and then maps *the
//! pointer that it returned* to the hook of exactly that ABI (hooks.rs). An unknown pointer is returned as it is.
//!
//! Invariants:
//!
//! * No constructor, no thread, no lock that can be held across a fork, no heap, no thread-local storage, no signal
//!   handler, no exit. `errno` is never touched: system calls are made directly (sys.rs). Hooks are as
//!   async-signal-safe as the driver functions behind them.
//! * No environment variable but one of the driver's, which makes launches wait (process/environment.rs).
//! * No panic: a panic that the compiler cannot remove is a link error (panic.rs).
//! * A process that uses neither CUDA nor NVML pays little beyond loading this library: `dlsym` and `dlopen` look at
//!   the name, and `chroot` maps the region.
//! * In a sound region a call that cannot be tracked passes; it is not refused. A process without a slot is refused,
//!   because nothing that it does can be counted.
//! * If there is a region and it cannot be used, the device is refused (region.rs). The shim is passive only if there
//!   is no region beside it, and on kernels that cannot wipe its block in a forked child (process.rs).

// A profile that unwinds, as that of tests and lints, only checks this crate: unwinding needs the standard library.
#![cfg_attr(panic = "abort", no_std)]

mod allocations;
mod arena;
mod arrays;
mod bindings;
mod call;
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
mod modules;
mod own_variables;
mod pacing;
#[cfg(panic = "abort")]
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
