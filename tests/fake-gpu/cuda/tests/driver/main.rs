//! The simulated driver, tested as a program sees it: loaded by its file, each test in a process of its own.

mod capture;
mod durations;
mod errors;
mod graphs;
mod library;
mod lookup;
mod memory;
mod processes;
mod scenario;
mod streams;
