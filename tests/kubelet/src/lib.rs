//! A kubelet and an API server for tests.

mod api_server;
mod quantity;

pub use api_server::*;
