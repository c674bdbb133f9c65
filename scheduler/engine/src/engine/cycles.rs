//! Decides when a cycle runs.

use std::collections::BTreeSet;
use std::sync::Arc;

use aliquot_scheduler_core::ClaimId;

use super::Engine;
use crate::decided::Decided;

/// When the next cycle is due.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    /// When the first change came that no cycle has seen yet.
    changed_since_ms: Option<u64>,
    /// How many cycles there were.
    pub(super) cycles: u64,
    /// When the last cycle was.
    last_ms: Option<u64>,
    /// The times at which claims that could not be started may be placed again.
    retries_ms: BTreeSet<u64>,
}

impl Pacing {
    pub(super) fn note_change(&mut self, now_ms: u64) {
        self.changed_since_ms.get_or_insert(now_ms);
    }
}

impl Engine {
    /// When a cycle is due: shortly after a change, so that changes that come together are decided together; when a
    /// retry is due; and at intervals, because decisions also depend on the time.
    pub(super) fn next_cycle_ms(&self) -> Option<u64> {
        let earliest_ms = self.pacing.last_ms.map_or(0, |last_ms| last_ms.saturating_add(self.settings.cycle_gap_ms));
        let after_change_ms =
            self.pacing.changed_since_ms.map(|at_ms| at_ms.saturating_add(self.settings.cycle_delay_ms));
        let is_empty = self.cluster.claim_count() == 0;
        let last_ms = self.pacing.last_ms.filter(|_| !is_empty);
        let idle_ms = last_ms.map(|last_ms| last_ms.saturating_add(self.settings.idle_cycle_ms));
        let retry_ms = self.pacing.retries_ms.first().copied();
        let due_ms = [after_change_ms, idle_ms, retry_ms].into_iter().flatten().min()?;
        Some(due_ms.max(earliest_ms))
    }

    pub(super) fn cycle_if_due(&mut self) {
        if self.next_cycle_ms().is_none_or(|due_ms| due_ms > self.now_ms) {
            return;
        }
        self.pacing.retries_ms = self.pacing.retries_ms.split_off(&self.now_ms.saturating_add(1));
        self.pacing.changed_since_ms = None;
        self.pacing.last_ms = Some(self.now_ms);
        self.pacing.cycles += 1;
        let plan = self.scheduler.cycle(&mut self.cluster);
        self.touched.extend(plan.steps.iter().map(|planned| planned.step.claim()));
        if !plan.steps.is_empty() {
            // One more cycle shows whether this was all.
            self.pacing.note_change(self.now_ms);
        }
        self.decided = Arc::new(Decided::new(plan));
        self.published.note_cycle();
        self.issue_commands();
    }

    /// Notes when a claim may be tried again, or may be evicted again.
    pub(super) fn note_retry(&mut self, claim: ClaimId) {
        let (failures, retry_at_ms) = self.cluster.failures(claim);
        if failures > 0 && retry_at_ms > self.now_ms {
            self.pacing.retries_ms.insert(retry_at_ms);
        }
        let alone_until_ms = self.cluster.last_eviction(claim).map_or(0, |last| last.left_alone_until_ms);
        if alone_until_ms > self.now_ms {
            self.pacing.retries_ms.insert(alone_until_ms);
        }
    }
}
