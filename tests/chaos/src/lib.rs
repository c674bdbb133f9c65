//! Injects faults of every kind into a whole node, and checks the invariants throughout.
//!
//! | | |
//! | --- | --- |
//! | `world` | a simulated machine, a real manager, slices, and tenants of several kinds that work all the time |
//! | `churn` | a thread that makes, resizes and removes slices at the same time |
//! | `faults` | the faults, one kind in each file |
//! | `observer` | reads the simulated devices' own accounts throughout |
//! | `rest` | checks after repair, when all tenants have ended |
//! | `shares` | shares of device time, in calm windows |
//! | `verdict` | the violations, and the result table |
//!
//! A round has one fault. All tenants are at work, the fault is injected and repaired, all tenants go on, and when they
//! have ended nothing of them may be left. A violation is reported with the seed and the round, with which it can be
//! repeated. After a violation the world is made anew, so that each violation has its own cause.

mod chance;
mod churn;
mod counts;
mod engine;
mod faults;
mod manager;
mod mounts;
mod observer;
mod rest;
mod roster;
mod shares;
mod tenant;
mod verdict;
mod wait;
mod world;

pub use engine::{Campaign, Length, fault_names, run};
pub use verdict::{Effort, Report, Tally, Violation};
