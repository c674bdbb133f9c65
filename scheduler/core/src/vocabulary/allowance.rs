//! The quota, limit and weight of a queue for one resource.

/// What a queue may have of one resource. All amounts are in the resource's unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Allowance {
    /// The amount that the queue is certain to get if it asks for it, as long as the cluster has enough for all quotas.
    /// `None`: everything that the cluster has. A queue is never over its quota if this is `None` for it and for all
    /// queues above it; then nothing is reclaimed from it.
    ///
    /// Below a division, the first queue on the way from the top with a quota of less than everything, quotas count
    /// among each other only: what a team has of its own quota no other team of its division takes, though the
    /// division's quota be smaller, and what the division lends a team goes back to the others' quotas. What queues of
    /// other divisions may not take is also bounded by the division's quota.
    pub quota: Option<u64>,
    /// The most that it may hold; `None`: no limit.
    pub limit: Option<u64>,
    /// Its weight when what other queues leave unused is shared out.
    pub weight: u64,
    /// Its priority when what other queues leave unused is shared out; `None`: the queue's own priority.
    pub priority: Option<i32>,
}

impl Allowance {
    /// For a resource that the queue does not name: no quota, no limit, and a weight of 1 when the rest is shared out.
    pub const UNNAMED: Self = Self { quota: Some(0), limit: None, weight: 1, priority: None };
}
