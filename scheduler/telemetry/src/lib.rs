//! What a scheduler tells of itself: metrics for Prometheus, and its health for probes.
//!
//! All but a few counters are computed from the engine's view when somebody asks, so they cost nothing as long as nobody
//! does.

#![forbid(unsafe_code)]

mod http;
mod queues;
mod view;

pub use http::{Telemetry, page, serve};
pub use queues::{QueueUse, queue_uses};
pub use view::{DeviceUse, NodeState, device_uses, register_view, tier_word};

use std::sync::atomic::{AtomicI64, AtomicU64};

use prometheus_client::metrics::gauge::Gauge;

/// A number of things.
pub type Level = Gauge<i64, AtomicI64>;
/// An amount that need not be whole.
pub type Amount = Gauge<f64, AtomicU64>;
