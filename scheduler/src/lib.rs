//! The cluster scheduler: so far, its replay of traces.

#![forbid(unsafe_code)]

pub mod curve;
pub mod plot;
pub mod policy;
pub mod replay;
pub mod trace;
