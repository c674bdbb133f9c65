//! Claims that were withdrawn, so are no longer wanted, but are not gone yet.
//!
//! A withdrawn claim that runs is leaving, like an evicted one: its room belongs to the next claim that is placed
//! there, and that claim starts when the withdrawn one is gone. So no other claim is evicted for room that is about to
//! become free. A withdrawn claim counts in no share, no demand and no budget, and no action can choose it.

use super::Cluster;
use crate::vocabulary::claim::{Allocation, ClaimId};
use crate::vocabulary::event::EventError;

impl Cluster {
    /// Notes that a claim is no longer wanted. Returns the claims that are pending again because of that.
    pub(super) fn withdraw(&mut self, id: ClaimId) -> Result<Vec<ClaimId>, EventError> {
        let state = self.claim_state(id)?;
        if state.is_withdrawn {
            return Ok(Vec::new());
        }
        let from = state.allocation.clone().filter(|_| state.started_ms.is_some());
        let is_placed = state.allocation.is_some();
        // A claim that is being moved still runs, too.
        if from.is_some() || (is_placed && state.leaving.is_some()) {
            let device_core = state.allocation.as_ref().map_or(0, Allocation::device_core);
            self.turnover.note_end(device_core);
        }
        let was_full = from.as_ref().is_some_and(|from| self.over_committed.contains(&from.node));
        let mut displaced = if is_placed { self.lose(vec![id])? } else { Vec::new() };
        displaced.retain(|claim| *claim != id);
        if let Some(from) = from {
            self.leave_unplanned(id, from, was_full);
        }
        self.note_withdrawn(id);
        Ok(displaced)
    }

    /// Takes a claim that is not placed out of its queue's demand.
    pub(super) fn note_withdrawn(&mut self, id: ClaimId) {
        self.book_requested(id, false);
        let Some(state) = self.claims.get_mut(id) else { return };
        state.is_withdrawn = true;
        let group = state.group;
        self.change_group(group, |group| group.withdraw(id));
    }
}
