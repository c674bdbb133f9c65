#![recursion_limit = "1024"]
//! The shim: the library that is preloaded into every process of a container and keeps it within its slice.
//!
//! A call of a hooked driver function goes this way:
//!
//! ```text
//! host program ── export (exports.rs) ── policy (memory.rs, launch.rs, view.rs, context.rs, start.rs) ── driver function
//!                                              │
//!                    process.rs: this process's attachment: limits, ledger, slot
//!                    allocations.rs: what each address and handle was charged
//!                    gate.rs, markers.rs: leases on device time and work in flight
//! ```
//!
//! Programs find the hooks by linking, by `dlsym` and `dlvsym` (lookup.rs), and by `cuGetProcAddress` (start.rs); all three
//! ask the loader or the driver first and then map *the pointer that it returned* to the hook of exactly that ABI
//! (hooks.rs). What is not known passes through untouched.
//!
//! Invariants:
//!
//! * No constructor, no thread, no lock that can be held across a fork, no heap, no thread-local storage, no signal handler,
//!   no environment variable, no exit; `errno` is never touched (system calls are made directly, sys.rs). Hooks are as
//!   async-signal-safe as the driver functions behind them.
//! * No panic: a panic that the compiler cannot remove is a link error (panic.rs).
//! * A process that does not use CUDA pays nothing but the loading of this library.
//! * What cannot be tracked is passed through, never refused. A region that cannot be used leaves the shim passive.

#![no_std]

mod allocations;
mod arena;
mod arrays;
mod context;
mod driver;
mod elf;
mod exports;
mod gate;
mod hooks;
mod launch;
mod linkmap;
mod lookup;
mod markers;
mod memory;
mod panic;
mod process;
mod radix;
mod region;
mod start;
mod sys;
mod view;
mod vmm;
