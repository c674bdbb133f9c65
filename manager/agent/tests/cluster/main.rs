//! A real agent with real processes, between a scheduler that says what a test says and a node manager that gives what is
//! asked of it.

mod commands;
mod manager;
mod node;
mod restarts;
mod scheduler;

pub(crate) use manager::FakeManager;
pub(crate) use node::{Node, Pipe};
pub(crate) use scheduler::Scheduler;
