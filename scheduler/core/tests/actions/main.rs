//! The actions that move and evict.

mod brute_force;
mod regressions;
mod setting;
mod situations;
