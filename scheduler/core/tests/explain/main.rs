//! Why something waits, what would change that, and why it was evicted.

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
