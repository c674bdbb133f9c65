//! The only source of atomics for shared memory and its protocols.
//!
//! Built with `--cfg loom`, this module exports the model checker's atomics instead, and the protocols need no change.
//! That build is only for `tests/loom`.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{Ordering, fence};
#[cfg(loom)]
pub use mortal::{AtomicU32, AtomicU64};

#[cfg(loom)]
pub mod mortal;
