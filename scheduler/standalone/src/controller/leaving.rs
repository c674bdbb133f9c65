//! Attempts that have ended for the user and may still have running members: tells when all of those are gone.

use std::collections::BTreeMap;
use std::time::Duration;

use aliquot_scheduler_engine::View;

use crate::jobs::{Book, Effects, JobId};

/// Time between two checks whether attempts are gone. A check goes through all of them, and messages come much more
/// often. Most attempts are gone when their node has said so, without a check.
const LOOK_MS: u64 = 100;
/// After this time, a view shows everything that the engine was told before.
const VIEW_PATIENCE_MS: u64 = 2_000;

/// Names an attempt of a task: the job, the index, and the number of the attempt.
pub(crate) type Attempt = (JobId, u32, u32);

/// Attempts that the engine has been told to end.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    attempts: BTreeMap<Attempt, Left>,
    /// When the last check was.
    looked_ms: u64,
}

/// When the engine was told that an attempt has ended.
#[derive(Clone, Copy, Debug)]
struct Left {
    /// The version of the view that readers saw then. A later view shows the state of the attempt after that.
    version: u64,
    at_ms: u64,
}

impl Leaving {
    pub(super) fn add(&mut self, now_ms: u64, attempt: Attempt, version: u64) {
        self.attempts.insert(attempt, Left { version, at_ms: now_ms });
    }

    /// The time until the next check; `None`: there is nothing to check.
    pub(super) fn wait(&self, now_ms: u64) -> Option<Duration> {
        let due_ms = self.looked_ms.saturating_add(LOOK_MS);
        (!self.attempts.is_empty()).then(|| Duration::from_millis(due_ms.saturating_sub(now_ms)))
    }

    pub(super) fn is_due(&self, now_ms: u64) -> bool {
        self.wait(now_ms) == Some(Duration::ZERO)
    }

    /// Checks which attempts have no instance left, as far as the engine knows. Before the first view this cannot be
    /// said.
    pub(super) fn look(&mut self, now_ms: u64, view: Option<&View>, book: &mut Book, effects: &mut Effects) {
        self.looked_ms = now_ms;
        let Some(view) = view else { return };
        self.attempts.retain(|attempt, left| {
            let claims = book.leaving_claims(*attempt);
            // If nothing has changed since, there is no later view. A change is always shown long before this time is
            // over.
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
