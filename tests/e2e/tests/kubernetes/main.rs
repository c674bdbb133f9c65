//! The node manager on Kubernetes: the real manager in the test cluster, on the simulated GPU.

mod claims;
mod health;
mod inventory;
mod killed;
mod many_pods;
mod real_containers;
mod relay;
mod requests;
mod restarts;
