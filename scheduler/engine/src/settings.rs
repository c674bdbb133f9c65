//! How an engine behaves in time.

/// How an engine behaves in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// A start that is not answered for so long has failed.
    pub start_deadline_ms: u64,
    /// A stop that is not answered for so long is tried again, each time after twice as long.
    pub stop_deadline_ms: u64,
    /// The longest time between two tries to stop something.
    pub stop_deadline_max_ms: u64,
    /// What happens within so long after a change is part of the same cycle.
    pub cycle_delay_ms: u64,
    /// From one cycle to the next it takes so long at least.
    pub cycle_gap_ms: u64,
    /// While there are claims, a cycle comes after so long although nothing has changed: time has passed.
    pub idle_cycle_ms: u64,
    /// Readers are shown a new state so often at most.
    pub publish_gap_ms: u64,
    /// What is remembered as a whole is saved so often.
    pub memory_every_ms: u64,
    /// The leases of nodes; `None`: nodes hold none, and only they say what is gone.
    pub lease: Option<Lease>,
}

/// How long nodes may go on without hearing of the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// A node stops what runs so long after it has sent the last message that was answered.
    pub lease_ms: u64,
    /// The engine waits so much longer, for clocks that do not run alike.
    pub margin_ms: u64,
    /// Nothing new is started on a node that was not heard of for so long.
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
