//! The node manager on Kubernetes.
//!
//! There are two ways from a pod to a slice, and a node uses one of them: a **DRA driver** ([`dra`]), where claims say
//! which device and how much of it was decided, and a **device plugin** ([`device_plugin`]), where kubelet hands out
//! units by id. Both are adapters: they speak with kubelet and the API server on one side. On the other side they use
//! the node through the trait [`Node`](aliquot_node::Node), which the manager implements. The node alone decides which
//! slices may be made. In a cluster a [`relay`] stands between kubelet and the adapter, so that kubelet does not notice
//! when a manager is replaced. The manager also [reports] to the cluster's scheduler, if the configuration names one.

#![forbid(unsafe_code)]

pub mod device_plugin;
pub mod dra;
pub mod health;
pub mod pod_resources;
pub mod relay;
pub mod reports;
mod unix_socket;

pub use aliquot_api_server::{Client, ConnectError, INVENTORY, connect};
pub use unix_socket::SocketError;
