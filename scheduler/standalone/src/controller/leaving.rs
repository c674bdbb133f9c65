//! Attempts that are not wanted any more: what of them may still run, and when nothing does.

use std::collections::BTreeMap;
use std::time::Duration;

use aliquot_scheduler_engine::View;

use crate::jobs::{Book, Effects, JobId};

/// Time between two looks whether what is to leave is gone. A look goes through all of it, and messages come much more
/// often. Most of it is gone when its node has said so, without a look.
const LOOK_MS: u64 = 100;
/// After so long, a view shows all that the engine had heard before.
const VIEW_PATIENCE_MS: u64 = 2_000;

/// Names an attempt of a task: the job, the index, and the number of the attempt.
pub(crate) type Attempt = (JobId, u32, u32);

/// Attempts that the engine knows not to be wanted.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    attempts: BTreeMap<Attempt, Left>,
    /// When it was looked last whether they are gone.
    looked_ms: u64,
}

/// When the engine has heard that an attempt is not wanted any more.
#[derive(Clone, Copy, Debug)]
struct Left {
    /// The version of the view that readers saw then. A later one shows what has become of the attempt.
    version: u64,
    at_ms: u64,
}

impl Leaving {
    pub(super) fn add(&mut self, now_ms: u64, attempt: Attempt, version: u64) {
        self.attempts.insert(attempt, Left { version, at_ms: now_ms });
    }

    /// The time until the next look; `None`: there is nothing to look for.
    pub(super) fn wait(&self, now_ms: u64) -> Option<Duration> {
        let due_ms = self.looked_ms.saturating_add(LOOK_MS);
        (!self.attempts.is_empty()).then(|| Duration::from_millis(due_ms.saturating_sub(now_ms)))
    }

    pub(super) fn is_due(&self, now_ms: u64) -> bool {
        self.wait(now_ms) == Some(Duration::ZERO)
    }

    /// Looks whether the engine knows of nothing more that runs of what is to leave. Before the first view nobody can say.
    pub(super) fn look(&mut self, now_ms: u64, view: Option<&View>, book: &mut Book, effects: &mut Effects) {
        self.looked_ms = now_ms;
        let Some(view) = view else { return };
        self.attempts.retain(|attempt, left| {
            let claims = book.leaving_claims(*attempt);
            // If nothing has changed since, there is no later view. Changes are shown long before this time is over.
            if view.version() <= left.version && now_ms < left.at_ms.saturating_add(VIEW_PATIENCE_MS) {
                return !claims.is_empty();
            }
            let mut is_gone = true;
            for claim in claims {
                if view.may_run(&claim.to_string().into()) {
                    is_gone = false;
                } else {
                    book.gone(now_ms, claim, effects);
                }
            }
            !is_gone
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_is_not_looked_at_for_each_message() {
        let mut leaving = Leaving::default();
        assert_eq!((leaving.wait(1000), leaving.is_due(1000)), (None, false));
        (0..10_000).for_each(|index| leaving.add(1000, (1, index, 1), 7));
        let mut looks = 0;
        for now_ms in 1000..2000 {
            if leaving.is_due(now_ms) {
                looks += 1;
                leaving.looked_ms = now_ms;
            }
        }
        assert_eq!((looks, leaving.wait(1999)), (10, Some(Duration::from_millis(1))));
    }
}
