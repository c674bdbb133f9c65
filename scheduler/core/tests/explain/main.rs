//! Why claims wait, which changes would help, and why claims were evicted.

mod alternatives;
mod changes;
mod constraints;
mod evictions;
mod nearest;
mod on_node;
mod peers;
mod properties;
mod queues;
mod reasons;
mod room;
mod setting;
