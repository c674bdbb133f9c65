//! The cluster for tests, tried with plugins of a test's own: what it does as the real one does, and what it refuses.

mod allocation;
mod api_server;
mod claims;
mod clients;
mod device_plugins;
mod driver;
mod plugin;
mod schedulers;
mod stage;
