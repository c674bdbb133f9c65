//! What a queue holds, compared with its fair share.

use crate::vocabulary::resource::Resource;

/// What a queue would hold, and its fair share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Share {
    /// The name of the queue.
    pub queue: String,
    /// Of what: the resource of which it would be furthest above its share, or nearest to it.
    pub resource: Resource,
    /// What the queue holds of the resource.
    pub held: u64,
    /// What would be added.
    pub asked: u64,
    /// What the queue may keep of it while others ask.
    pub fair_share: u64,
}
