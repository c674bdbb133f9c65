//! Tests of the simulated driver, loaded from its file as programs do. Each test runs in its own process.

mod accounts;
mod capture;
mod contexts;
mod copies;
mod durations;
mod errors;
mod graph_memory;
mod graph_nodes;
mod graphs;
mod held;
mod host_memory;
mod ipc;
mod library;
mod lookup;
mod memory;
mod modules;
mod pools;
mod processes;
mod scenario;
mod streams;
mod virtual_memory;
