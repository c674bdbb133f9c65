//! The decisions: fair shares, the order of turns, placement, the choice of victims, and the cycle that uses them all.

pub(crate) mod actions;
pub(crate) mod beyond;
pub(crate) mod demanded;
pub(crate) mod entitled;
pub(crate) mod fair_share;
pub(crate) mod gang;
pub(crate) mod holds;
pub mod placement;
pub(crate) mod plan;
pub(crate) mod queue_share;
pub(crate) mod scheduler;
pub(crate) mod settings;
pub(crate) mod shared_out;
pub(crate) mod shares;
pub(crate) mod signature;
pub(crate) mod turns;
pub(crate) mod unit;
mod usable;
