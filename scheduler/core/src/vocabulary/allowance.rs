//! The quota, limit and weight of a queue for one resource.

/// What a queue may have of one resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Allowance {
    /// What it is certain to get if it asks for it, as far as there is enough for all quotas. `None`: all there is. If
    /// that is so of all queues above it, too, it is never over its quota: nothing is taken back from it for another
    /// queue.
    pub quota: Option<u64>,
    /// What it never exceeds; `None`: no limit.
    pub limit: Option<u64>,
    /// Its weight for what others leave.
    pub weight: u64,
    /// Its priority for what others leave; `None`: the queue's own.
    pub priority: Option<i32>,
}

impl Allowance {
    /// Of a resource that a queue does not name: nothing for certain, and an equal part of what others leave.
    pub const UNNAMED: Self = Self { quota: Some(0), limit: None, weight: 1, priority: None };
}
