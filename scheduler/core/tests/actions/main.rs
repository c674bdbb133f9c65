//! The actions that move and evict.

mod brute_force;
mod domains;
mod regressions;
mod setting;
mod situations;
