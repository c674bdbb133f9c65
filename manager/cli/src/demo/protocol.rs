//! The protocol between the demonstration and its workers: one JSON object a line, orders on the worker's standard
//! input, events on its standard output.

use serde::{Deserialize, Serialize};

/// An order to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(super) enum Order {
    /// Keep the device busy from now on.
    Launch,
    /// Allocate this many bytes in one piece, and free them.
    Take {
        /// The number of bytes.
        bytes: u64,
    },
    /// Allocate memory until not one byte more is given, and keep it.
    Fill,
}

/// A report of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Event {
    /// The worker has a context and its kernel.
    Ready {
        /// The device's memory as the worker sees it.
        total_bytes: u64,
    },
    /// Kernels completed so far.
    Progress(Progress),
    /// The answer to [`Order::Take`]: the driver's result.
    Taken {
        /// The number of bytes that were requested.
        bytes: u64,
        /// `None` if it was given, else the driver's name for the refusal.
        refusal: Option<String>,
    },
    /// The answer to [`Order::Fill`].
    Filled(Filled),
    /// The worker cannot continue.
    Failed {
        /// The reason, for people to read.
        message: String,
    },
}

/// Kernels that a worker has completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Progress {
    /// `CLOCK_MONOTONIC` in nanoseconds when the last of them was seen to be complete.
    pub(super) at_ns: u64,
    /// The number of kernels.
    pub(super) kernels: u64,
}

/// Memory that a worker has taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Filled {
    /// The total that was given.
    pub(super) allocated_bytes: u64,
    /// The driver's name for the refusal of one more byte.
    pub(super) refusal: String,
    /// Free memory afterwards, as the driver says.
    pub(super) free_bytes: u64,
    /// Total memory of the device, as the driver says.
    pub(super) total_bytes: u64,
}
