//! What the demonstration and its workers say to each other: one JSON object a line, orders on the worker's standard
//! input, events on its standard output.

use serde::{Deserialize, Serialize};

/// What a worker is told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(super) enum Order {
    /// Keep the device busy from now on.
    Launch,
    /// Take so many bytes of memory at once, and give them back.
    Take {
        /// How many.
        bytes: u64,
    },
    /// Take memory until not a byte more is to be had, and keep it.
    Fill,
}

/// What a worker has done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Event {
    /// It has a context and its kernel.
    Ready {
        /// The device's memory as the worker sees it.
        total_bytes: u64,
    },
    /// Kernels completed so far.
    Progress(Progress),
    /// The answer to [`Order::Take`]: the driver's result.
    Taken {
        /// How much was asked for.
        bytes: u64,
        /// `None` if it was given, else the driver's name for the refusal.
        refusal: Option<String>,
    },
    /// The answer to [`Order::Fill`].
    Filled(Filled),
    /// It cannot go on.
    Failed {
        /// Why.
        message: String,
    },
}

/// Kernels that a worker has completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Progress {
    /// `CLOCK_MONOTONIC` in nanoseconds when the last of them was seen to be complete.
    pub(super) at_ns: u64,
    /// How many.
    pub(super) kernels: u64,
}

/// Memory that a worker has taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Filled {
    /// What it was given in all.
    pub(super) allocated_bytes: u64,
    /// The driver's name for its refusal of one byte more.
    pub(super) refusal: String,
    /// What the driver says is free afterwards.
    pub(super) free_bytes: u64,
    /// What the driver says the device has.
    pub(super) total_bytes: u64,
}
