//! The pauses of a container whose gate is open, in which others may use the device.

use crate::timing::{GUEST_DRAIN_MAX_NS, MEETING_MAX_NS, PAUSE_NS};

/// What is known of a container's pauses.
#[derive(Debug)]
pub(crate) struct Pauses {
    /// Since when the container has launched nothing, if it has no work. Its gate was ticked then, so a launch would
    /// have been marked since.
    quiet_since_ns: Option<u64>,
    /// The container has paused since its gate was last opened.
    paused: bool,
    /// The same for the eight times before, a bit for each; the last one is the lowest bit.
    paused_before: u8,
    /// For how long its work goes on after its gate was closed, from experience: the longest time, which is forgotten
    /// slowly. Before there is any experience, the longest that a guest may have.
    drain_ns: u64,
    /// Since when its work has met that of a container that goes before it.
    met_since_ns: Option<u64>,
}

impl Pauses {
    pub(crate) fn new() -> Self {
        Self { quiet_since_ns: None, paused: false, paused_before: 0, drain_ns: GUEST_DRAIN_MAX_NS, met_since_ns: None }
    }

    /// A lease begins, or the gate is opened beside a lease.
    pub(crate) fn begin(&mut self) {
        self.paused_before = self.paused_before << 1 | u8::from(std::mem::take(&mut self.paused));
        self.resume();
    }

    /// Its pauses so far do not count any more.
    pub(crate) fn forget(&mut self) {
        (self.paused, self.paused_before) = (false, 0);
    }

    /// The container is at work, or nobody could use its pause.
    pub(crate) fn resume(&mut self) {
        self.quiet_since_ns = None;
    }

    /// The container was found without work. Returns whether its gate must be ticked.
    pub(crate) fn rest(&mut self, now_ns: u64) -> bool {
        let ticks = self.quiet_since_ns.is_none();
        let since_ns = *self.quiet_since_ns.get_or_insert(now_ns);
        self.paused |= now_ns.saturating_sub(since_ns) >= PAUSE_NS;
        ticks
    }

    /// When the present pause is long enough for others, if the container rests.
    pub(crate) fn open_to_others_ns(&self) -> Option<u64> {
        self.quiet_since_ns.map(|since_ns| since_ns.saturating_add(PAUSE_NS))
    }

    /// Its work was done `drain_ns` after its gate was closed.
    pub(crate) fn learn_drain(&mut self, drain_ns: u64) {
        self.drain_ns = drain_ns.max(self.drain_ns - self.drain_ns / 8);
    }

    /// Whether the container usually pauses.
    pub(crate) fn are_usual(&self) -> bool {
        self.paused || self.paused_before != 0
    }

    /// Whether the container may use the pauses of others: it pauses itself, and is soon gone.
    pub(crate) fn make_a_guest(&self) -> bool {
        self.are_usual() && self.drain_ns <= GUEST_DRAIN_MAX_NS
    }

    /// Notes whether its work meets that of a container that goes before it. Returns whether it has done so for too long.
    pub(crate) fn meet(&mut self, meets: bool, now_ns: u64) -> bool {
        self.met_since_ns = meets.then(|| self.met_since_ns.unwrap_or(now_ns));
        self.met_since_ns.is_some_and(|since_ns| now_ns.saturating_sub(since_ns) >= MEETING_MAX_NS)
    }
}
