//! What adapters to Kubernetes share: how the API server is reached, how events are written, and how a node tells a
//! scheduler of its devices. What operators ask a scheduler, and what claims say to the driver.

#![forbid(unsafe_code)]

mod client;
mod events;
mod inventory;
pub mod questions;
pub mod slice_config;

pub use client::{ConnectError, Patience, connect, is_conflict, is_not_found, message};
pub use events::{Events, NOT_READ, pod_reference};
pub use inventory::{INVENTORY, Inventory, InventoryDevice};
pub use kube::Client;
