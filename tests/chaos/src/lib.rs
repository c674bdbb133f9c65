//! Faults of every kind against a whole node, and what must hold all the while.
//!
//! | | |
//! | --- | --- |
//! | `world` | a simulated machine, a real manager, slices, and tenants of several kinds that are at work all the time |
//! | `churn` | slices that are made, resized and removed meanwhile |
//! | `faults` | what goes wrong, one kind in each file |
//! | `observer` | looks at the devices' own books from outside, all the while |
//! | `rest` | what must be so when all has been put right and all tenants have ended |
//! | `shares` | shares of device time, in calm windows |
//! | `verdict` | what was found, and the table |
//!
//! A round is one fault: all tenants are at work, the fault is injected and put right, all tenants go on, and when they have
//! ended nothing of them is left. What is wrong is told with the seed and the round, which can be played again; a world in which
//! something was wrong is made anew, so that each violation has its own cause.

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

pub use engine::{Length, Plan, fault_names, run};
pub use verdict::{Effort, Report, Tally, Violation};
