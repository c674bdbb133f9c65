//! The actions that move and evict claims.

mod brute_force;
mod budgets;
mod counted;
mod domains;
mod failed_starts;
mod in_vain;
mod indivisible;
mod kept_bounds;
mod kept_nodes;
mod members;
mod moves;
mod queues_apart;
mod regressions;
mod searches;
mod setting;
mod situations;
