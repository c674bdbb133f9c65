//! Evictions that nodes refuse.
//!
//! A claim stays where it was and runs on if its node refuses to evict it. If it were chosen again at once, the claims
//! that need its room could wait for ever, although other claims could make way. So no action chooses it for a while.
//! This time doubles with each further refusal, up to a bound.

use super::Cluster;
use crate::vocabulary::claim::{ClaimId, LastEviction};
use crate::vocabulary::event::EventError;

/// How long a claim is left alone after its node's first refusal.
const ALONE_MS: u64 = 5000;
/// The longest time that a claim is left alone.
pub const ALONE_MAX_MS: u64 = 600_000;

impl Cluster {
    /// Puts a leaving claim back. Returns the claims that were going to have its room and are pending again.
    pub(super) fn refuse_eviction(&mut self, id: ClaimId) -> Result<Vec<ClaimId>, EventError> {
        let state = self.claim_state(id)?;
        if state.is_withdrawn {
            return Err(EventError::Withdrawn(id));
        }
        let from = state.leaving.as_deref().cloned().ok_or(EventError::NotLeaving(id))?;
        let before = state.last_eviction.as_deref().copied().unwrap_or_default();
        // A moved claim waits for itself to leave its old place.
        let mut waiting: Vec<ClaimId> = self.waiting_for.get(&id).into_iter().flatten().copied().collect();
        if state.allocation.is_some() && !waiting.contains(&id) {
            waiting.push(id);
        }
        let mut displaced = self.lose(waiting)?;
        displaced.retain(|claim| *claim != id);
        self.no_longer_leaving(id);
        self.place_beyond(id, from)?;
        let now_ms = self.now_ms;
        let alone_ms = ALONE_MS.checked_shl(before.refusals).unwrap_or(ALONE_MAX_MS).clamp(ALONE_MS, ALONE_MAX_MS);
        let refused = LastEviction {
            refusals: before.refusals.saturating_add(1).min(32),
            left_alone_until_ms: now_ms.saturating_add(alone_ms),
            ..before
        };
        let state = self.claims.get_mut(id).ok_or(EventError::NoSuchClaim(id))?;
        state.started_ms = Some(before.ran_since_ms.unwrap_or(now_ms));
        state.last_eviction = Some(Box::new(refused));
        state.displaced = None;
        let group = state.group;
        self.start_together(group);
        self.note_staleness(group);
        Ok(displaced)
    }

    /// Notes since when a claim that is leaving now has run.
    pub(super) fn note_eviction(&mut self, id: ClaimId, ran_since_ms: u64) {
        if let Some(state) = self.claims.get_mut(id) {
            state.last_eviction.get_or_insert_default().ran_since_ms = Some(ran_since_ms);
        }
    }

    /// What is known of a claim's last eviction, while the eviction is under way or after it was refused.
    #[must_use]
    pub fn last_eviction(&self, id: ClaimId) -> Option<&LastEviction> {
        self.claim_state(id).ok()?.last_eviction.as_deref()
    }

    /// How much longer a claim is left alone after a refused eviction, in milliseconds; `None`: it may be chosen.
    pub(crate) fn left_alone_ms(&self, id: ClaimId) -> Option<u64> {
        let until_ms = self.last_eviction(id)?.left_alone_until_ms;
        (until_ms > self.now_ms).then(|| until_ms - self.now_ms)
    }
}
