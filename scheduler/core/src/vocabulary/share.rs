//! What a queue holds, compared with its fair share.

use crate::vocabulary::resource::Resource;

/// What a queue would hold of one resource, and its fair share. Amounts are in the resource's unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Share {
    /// The name of the queue.
    pub queue: String,
    /// The resource of which the queue would be furthest above its share, or nearest to it.
    pub resource: Resource,
    /// What the queue holds of the resource.
    pub held: u64,
    /// How much would be added.
    pub asked: u64,
    /// What the queue may keep of it while other queues ask for it.
    pub fair_share: u64,
}
