//! The simulated driver, tested as a program sees it: loaded by its file, each test in a process of its own.

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
