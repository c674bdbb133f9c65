//! The node manager on Kubernetes: the real manager beside a kubelet and an API server for tests, on the simulated GPU.

mod claims;
mod health;
mod killed;
mod many_pods;
mod real_containers;
mod restarts;
