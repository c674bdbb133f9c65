//! The telemetry of a scheduler: metrics for Prometheus, and health for probes.
//!
//! All metrics but a few counters are computed from the engine's view when they are requested, so they cost nothing
//! between requests.

#![forbid(unsafe_code)]

mod crowd;
mod http;
mod queues;
mod view;

pub use crowd::{CONNECTIONS_MAX, Capped, CappedIo, Crowd, Stay};
pub use http::{Telemetry, page, serve};
pub use queues::{Head, QueueUse, ResourceUse, queue_uses};
pub use view::{DeviceUse, NodeState, device_uses, register_view, tier_word, waiting_by_reason};

use std::sync::atomic::{AtomicI64, AtomicU64};

use prometheus_client::metrics::gauge::Gauge;

/// A whole number that can rise and fall.
pub type Level = Gauge<i64, AtomicI64>;
/// A number that need not be whole, and can rise and fall.
pub type Amount = Gauge<f64, AtomicU64>;
