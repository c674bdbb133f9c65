//! The one place that atomics come from.
//!
//! Shared memory and the protocols on it use these names only, so that a model checker's atomics can take their place
//! without touching the protocols.

pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
