//! The node manager on Kubernetes.
//!
//! Two ways lead from a pod to a slice, and a node uses one of them: a **DRA driver** ([`dra`]), where claims say which
//! device and how much of it was decided, and a **device plugin** ([`device_plugin`]), where kubelet hands out units by
//! id. Both are adapters: they speak with kubelet and the API server on the one side, and on the other with the node
//! through the trait [`Node`](aliquot_node::Node), which the manager implements. Which slices may be made is the node's to
//! decide; nothing here knows. In a cluster a [`relay`] stands between kubelet and either of them, so that kubelet
//! does not notice when a manager is replaced. Beside either of them the manager [reports] to the cluster's scheduler, if the
//! configuration says where that is.

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
