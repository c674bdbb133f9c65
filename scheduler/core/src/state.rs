//! The state: who is where, what is free, who holds how much, who waits. It changes by events and by statements, keeps
//! its books and refuses what contradicts them. Nothing here chooses.

pub(crate) mod budget;
pub(crate) mod change_log;
pub(crate) mod class;
pub(crate) mod cluster;
pub(crate) mod group;
pub(crate) mod mix_counter;
pub(crate) mod node;
pub(crate) mod queue;
pub(crate) mod resources;
pub(crate) mod statement;
pub(crate) mod topology;
pub(crate) mod usage;
