//! The cluster scheduler's replays and simulations: its decisions about traces and snapshots of a cluster.

#![forbid(unsafe_code)]

pub mod curve;
pub mod live;
pub mod past_usage;
pub mod plot;
pub mod policy;
pub mod random;
pub mod replay;
pub mod report;
pub mod session;
pub mod simulate;
pub mod snapshot;
pub mod sort;
pub mod steady;
pub mod trace;
