//! Claims that nobody wants any more and that are not gone yet.
//!
//! A withdrawn claim that runs is on its way out, like one that was evicted: its room belongs to whoever is placed there
//! next, who starts when the claim is gone. So nobody else is evicted for room that is about to become free. It is in no
//! share, no demand and no budget, and no action can choose it.

use super::Cluster;
use crate::vocabulary::claim::{Allocation, ClaimId};
use crate::vocabulary::event::EventError;

impl Cluster {
    /// Notes that nobody wants a claim any more; says who waits again because of that.
    pub(super) fn withdraw(&mut self, id: ClaimId) -> Result<Vec<ClaimId>, EventError> {
        let state = self.claim_state(id)?;
        if state.is_withdrawn {
            return Ok(Vec::new());
        }
        let from = state.allocation.clone().filter(|_| state.started_ms.is_some());
        let is_placed = state.allocation.is_some();
        // One that was being moved runs, too.
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

    /// Takes a claim that is not placed out of what is asked for.
    pub(super) fn note_withdrawn(&mut self, id: ClaimId) {
        self.book_requested(id, false);
        let Some(state) = self.claims.get_mut(id) else { return };
        state.is_withdrawn = true;
        let (group, sequence) = (state.group, state.sequence);
        self.change_group(group, |group| group.withdraw(sequence));
    }
}
