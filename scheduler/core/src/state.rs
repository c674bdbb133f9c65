//! The state of a cluster: its nodes, queues, pod groups and claims, and the books about them. Events and statements
//! change the state. An event that contradicts the books is refused. This layer makes no decisions.

pub(crate) mod budget;
mod by_model;
pub(crate) mod change_log;
pub(crate) mod class;
pub(crate) mod cluster;
pub(crate) mod group;
pub(crate) mod mix_counter;
pub(crate) mod node;
pub(crate) mod node_parts;
pub(crate) mod peer_books;
pub(crate) mod queue;
pub(crate) mod resources;
pub(crate) mod statement;
pub(crate) mod template;
pub(crate) mod topology;
pub(crate) mod turnover;
pub(crate) mod usage;
