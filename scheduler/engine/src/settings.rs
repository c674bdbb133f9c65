//! The engine's times: deadlines, intervals and leases.

/// The engine's times: deadlines, intervals and leases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// A start without an answer after this time counts as failed.
    pub start_deadline_ms: u64,
    /// A stop without an answer after this time is repeated. The time doubles with each try.
    pub stop_deadline_ms: u64,
    /// The longest time between two tries to stop an instance.
    pub stop_deadline_max_ms: u64,
    /// Changes within this time after a first change are part of the same cycle.
    pub cycle_delay_ms: u64,
    /// The shortest time from one cycle to the next.
    pub cycle_gap_ms: u64,
    /// While there are claims, a cycle runs at least this often, even if nothing has changed: decisions also depend on
    /// the time.
    pub idle_cycle_ms: u64,
    /// The shortest time between two views for readers.
    pub publish_gap_ms: u64,
    /// The time between two saves of all that the decisions have learned ([`crate::Memory`]).
    pub memory_every_ms: u64,
    /// The leases of nodes; `None`: nodes hold no leases, and instances are gone only when nodes say so.
    pub lease: Option<Lease>,
}

/// How long nodes may go on without hearing of the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// The length of a lease. It begins when the node sends a message that the engine answers; when it ends, the node
    /// stops its instances.
    pub lease_ms: u64,
    /// How much longer the engine waits than the node, because clocks do not run at the same speed.
    pub margin_ms: u64,
    /// A node that was silent for this time gets nothing new.
    pub silence_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            start_deadline_ms: 30_000,
            stop_deadline_ms: 60_000,
            stop_deadline_max_ms: 600_000,
            cycle_delay_ms: 5,
            cycle_gap_ms: 20,
            idle_cycle_ms: 5_000,
            publish_gap_ms: 10,
            memory_every_ms: 60_000,
            lease: Some(Lease::default()),
        }
    }
}

impl Default for Lease {
    fn default() -> Self {
        Self { lease_ms: 30_000, margin_ms: 3_000, silence_ms: 10_000 }
    }
}
