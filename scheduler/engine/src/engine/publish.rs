//! Publishes views for readers.

use std::sync::Arc;

use aliquot_scheduler_core::Scheduler;

use super::Engine;
use crate::view::View;

/// A renewed lease is shown no later than this after the view before, in milliseconds. It changes nothing else, so it
/// need not be shown at once.
const RENEWAL_GAP_MS: u64 = 1_000;

/// What readers have seen.
#[derive(Debug, Default)]
pub(super) struct Published {
    has_changed: bool,
    /// Whether a node has renewed its lease since.
    has_renewed: bool,
    last_ms: Option<u64>,
    version: u64,
    /// The scheduler as the last cycle left it; `None`: a cycle has run since it was published.
    scheduler: Option<Arc<Scheduler>>,
}

impl Published {
    pub(super) fn note_change(&mut self) {
        self.has_changed = true;
    }

    pub(super) fn note_renewal(&mut self) {
        self.has_renewed = true;
    }

    pub(super) fn note_cycle(&mut self) {
        self.has_changed = true;
        self.scheduler = None;
    }
}

impl Engine {
    pub(super) fn next_publication_ms(&self) -> Option<u64> {
        let gap_ms = match (self.published.has_changed, self.published.has_renewed) {
            (true, _) => self.settings.publish_gap_ms,
            (false, true) => RENEWAL_GAP_MS.max(self.settings.publish_gap_ms),
            (false, false) => return None,
        };
        Some(self.published.last_ms.map_or(0, |last_ms| last_ms.saturating_add(gap_ms)))
    }

    pub(super) fn publish_if_due(&mut self) -> Option<Arc<View>> {
        self.next_publication_ms().filter(|due_ms| *due_ms <= self.now_ms)?;
        Some(self.view())
    }

    /// The present state, for readers. This costs little, however large the cluster is: what has not changed since the
    /// last view is shared.
    pub fn view(&mut self) -> Arc<View> {
        (self.published.has_changed, self.published.has_renewed) = (false, false);
        self.published.last_ms = Some(self.now_ms);
        self.published.version += 1;
        let scheduler = match &self.published.scheduler {
            Some(scheduler) => Arc::clone(scheduler),
            None => {
                let fork = Arc::new(self.scheduler.fork());
                self.published.scheduler = Some(Arc::clone(&fork));
                fork
            }
        };
        Arc::new(View {
            at_ms: self.now_ms,
            version: self.published.version,
            cycles: self.pacing.cycles,
            cluster: self.cluster.clone(),
            scheduler,
            decided: Arc::clone(&self.decided),
            entries: self.entries.clone(),
            nodes: self.nodes.clone(),
        })
    }
}
