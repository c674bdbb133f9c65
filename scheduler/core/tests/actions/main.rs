//! The actions that move and evict.

mod regressions;
mod setting;
mod situations;
