//! Tests of the test cluster with their own plugins: the cluster behaves like a real one, and refuses the same
//! requests.

mod allocation;
mod api_server;
mod claims;
mod clients;
mod device_plugins;
mod driver;
mod plugin;
mod schedulers;
mod stage;
