//! A real agent with real processes, between a scheduler that a test controls and a node manager that grants each
//! request.

mod commands;
mod manager;
mod node;
mod restarts;
mod scheduler;

pub(crate) use manager::FakeManager;
pub(crate) use node::{Node, Pipe};
pub(crate) use scheduler::Scheduler;
