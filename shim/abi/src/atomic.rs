//! The one place that atomics come from.
//!
//! Shared memory and the protocols on it use these names only, so that the model checker's atomics take their place
//! without touching the protocols: built with `--cfg loom`, this crate is what `tests/loom.rs` explores, and nothing
//! else.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{Ordering, fence};
#[cfg(loom)]
pub use mortal::{AtomicU32, AtomicU64};

#[cfg(loom)]
pub mod mortal;
