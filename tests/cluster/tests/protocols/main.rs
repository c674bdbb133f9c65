//! Tests of the test cluster with plugins of their own: it behaves like a real one, and refuses what a real one
//! refuses.

mod allocation;
mod api_server;
mod claims;
mod clients;
mod device_plugins;
mod driver;
mod plugin;
mod schedulers;
mod stage;
