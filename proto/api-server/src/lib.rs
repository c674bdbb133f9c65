//! What Kubernetes adapters share: access to the API server, events, a node's inventory of devices, the operators'
//! questions to a scheduler, and the parameters of claims for the driver.

#![forbid(unsafe_code)]

mod client;
mod events;
mod inventory;
pub mod questions;
mod queue;
pub mod slice_config;

pub use client::{
    ConnectError, Patience, client_with, connect, is_conflict, is_forbidden, is_not_found, is_passing, message,
};
pub use events::{Events, NOT_READ, pod_reference};
pub use inventory::{INVENTORY, Inventory, InventoryDevice};
pub use kube::Client;
pub use queue::{QUEUE, queue_of};
