//! Explanations, each made once for all pods that wait alike.

use std::sync::Arc;
use std::time::Duration;

use aliquot_scheduler_core::explain::Explanation;
use aliquot_scheduler_core::{ClaimId, ClassId, Pending};
use aliquot_scheduler_engine::{ClaimUid, View};
use tokio::time::Instant;

/// What was explained with one view. An explanation goes through all nodes and claims, and thousands of pods wait for the
/// same.
#[derive(Debug, Default)]
pub(super) struct Explained {
    known: Vec<Known>,
    took: Duration,
}

#[derive(Debug)]
struct Known {
    pending: Pending,
    class: Option<ClassId>,
    namespace: String,
    priority: i32,
    explanation: Arc<Explanation>,
}

impl Explained {
    /// How long explanations took until now.
    pub(super) fn took(&self) -> Duration {
        self.took
    }

    /// Why a claim waits. The view is always the same. When explanations have taken this long, it is only what the last
    /// cycle has found, without changes that would help, unless another pod waits alike.
    pub(super) fn of(&mut self, view: &View, uid: &ClaimUid, at_most: Duration) -> Option<Arc<Explanation>> {
        let (id, cluster) = (view.claim_id(uid)?, view.cluster());
        let (claim, class) = (cluster.claim(id)?, cluster.class_of(id));
        let Some(pending) = cluster.group_of(id).and_then(|group| view.pending(group)) else {
            return view.explain(uid).map(Arc::new);
        };
        let is_like = |known: &&Known| {
            let is_of_gang = (known.pending.group, known.class) == (pending.group, class);
            let is_same = (&known.namespace, known.priority) == (&claim.namespace, claim.priority);
            is_of_gang || is_same && known.pending.is_like(pending)
        };
        if let Some(known) = self.known.iter().find(is_like) {
            return Some(Arc::clone(&known.explanation));
        }
        if self.took >= at_most {
            return Some(Arc::new(in_short(view, id, pending)));
        }
        let began = Instant::now();
        let explanation = Arc::new(view.explain(uid)?);
        self.took += began.elapsed();
        self.known.push(Known {
            pending: pending.clone(),
            class,
            namespace: claim.namespace.clone(),
            priority: claim.priority,
            explanation: Arc::clone(&explanation),
        });
        Some(explanation)
    }
}

/// What the last cycle has found in a claim's way.
fn in_short(view: &View, id: ClaimId, pending: &Pending) -> Explanation {
    let name = view.cluster().claim(id).map(|claim| claim.name.to_string());
    Explanation {
        name: name.unwrap_or_default(),
        group: pending.group,
        node: None,
        reasons: vec![pending.reason(view.cluster())],
        changes: Vec::new(),
        members: Vec::new(),
        evictions: Vec::new(),
    }
}
