//! What the node manager and the scheduler share on Kubernetes: how the API server is reached, how events are written,
//! and what one tells the other by way of the API server.

#![forbid(unsafe_code)]

mod client;
mod events;
mod inventory;

pub use client::{ConnectError, Patience, connect, is_conflict, is_not_found, message};
pub use events::{Events, NOT_READ, pod_reference};
pub use inventory::{INVENTORY, Inventory, InventoryDevice};
pub use kube::Client;
