//! Work that was already in flight when this manager took over the slice.
//!
//! Markers show when work ends. For markers from the time of an earlier manager it is unknown whether they will ever be
//! written, because the ledger may have been damaged. The manager waits for them, and charges for their work, for as
//! long as the start of a manager may take. Otherwise a slice whose processes cannot get the device because of such
//! markers would stay blocked through every restart. No process can cause this situation, because no process can start
//! managers.

use std::collections::BTreeMap;

/// How long such work is believed to run. A longer kernel from before the manager's start is charged again from its
/// next marker on.
const BELIEVED_NS: u64 = 2_000_000_000;

/// The newest markers of the slots that had work in flight.
pub(super) struct Inherited {
    begun_ns: u64,
    markers: BTreeMap<usize, u64>,
}

impl Inherited {
    /// The work in flight at `now_ns`: slots with their newest markers.
    pub(super) fn new(now_ns: u64, in_flight: impl Iterator<Item = (usize, u64)>) -> Inherited {
        Inherited { begun_ns: now_ns, markers: in_flight.collect() }
    }

    /// Whether the arbiter no longer waits for the work in flight of `slot`. `marker` is the number of the slot's
    /// newest marker.
    pub(super) fn is_abandoned(&mut self, slot: usize, marker: u64, now_ns: u64) -> bool {
        if self.markers.get(&slot).is_some_and(|&inherited| inherited != marker) {
            self.markers.remove(&slot);
        }
        self.markers.contains_key(&slot) && now_ns.saturating_sub(self.begun_ns) >= BELIEVED_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START_NS: u64 = 1_000_000_000_000;

    #[test]
    fn existing_work_is_waited_for_with_a_limit() {
        let mut inherited = Inherited::new(START_NS, [(7, 5)].into_iter());
        assert!(!inherited.is_abandoned(7, 5, START_NS + BELIEVED_NS - 1));
        assert!(inherited.is_abandoned(7, 5, START_NS + BELIEVED_NS));
        assert!(inherited.is_abandoned(7, 5, START_NS + 100 * BELIEVED_NS));
        // A new marker is new work, which is not inherited.
        assert!(!inherited.is_abandoned(7, 6, START_NS + 100 * BELIEVED_NS));
        assert!(!inherited.is_abandoned(7, 5, START_NS + 200 * BELIEVED_NS));
    }

    #[test]
    fn later_work_is_waited_for_without_a_limit() {
        let mut inherited = Inherited::new(START_NS, [(7, 5)].into_iter());
        assert!(!inherited.is_abandoned(8, 5, START_NS));
        assert!(!inherited.is_abandoned(8, 5, START_NS + 1000 * BELIEVED_NS));
    }
}
