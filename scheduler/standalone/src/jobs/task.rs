//! A task: one element of a job's array, or the whole job.

use serde::{Deserialize, Serialize};

use super::member::Member;
use super::{ClaimName, End, JobId};

/// The most nodes that are kept for a task because they have refused it. With this many, each still has a weight of its
/// own; see [`Preferences::distance`](aliquot_scheduler_core::Preferences::distance).
const REFUSED_BY_MAX: usize = 15;

/// A task that has run for this time is treated as if it had lost no place and no node before.
pub(super) const RUN_MS: u64 = 300_000;

/// A task with its state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) index: u32,
    pub(crate) state: TaskState,
    /// The number of the present attempt, which names its claims; 0: no attempt has begun.
    pub(crate) attempt: u32,
    /// How often it was started.
    pub(crate) starts: u32,
    /// How often it has failed.
    pub(crate) failures: u32,
    /// How often the gang has lately started anew because it lost a member.
    #[serde(default)]
    pub(crate) setbacks: u32,
    /// How often a node of the task was lost lately.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) losses: u32,
    /// The nodes that have refused its latest starts, the last one at the end; empty: it has run since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) refused_by: Vec<String>,
    /// Why it waits or has failed; empty: there is no reason to tell.
    pub(crate) reason: String,
    pub(crate) ended_ms: Option<u64>,
    pub(crate) members: Vec<Member>,
}

/// The state of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TaskState {
    /// The task waits for other jobs.
    Blocked,
    /// It has failed, and waits until this time.
    Retrying {
        at_ms: u64,
    },
    /// Its claims are pending or running.
    Active,
    /// The rest of it that still runs is being stopped.
    Leaving {
        then: Then,
    },
    Ended(End),
}

/// The treatment of a task when none of its members runs any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Then {
    End(End),
    /// The next attempt begins, but not before this time.
    Again {
        at_ms: u64,
    },
}

impl Task {
    pub(crate) fn new(index: u32, members: u32) -> Self {
        Self {
            index,
            state: TaskState::Blocked,
            attempt: 0,
            starts: 0,
            failures: 0,
            setbacks: 0,
            losses: 0,
            refused_by: Vec::new(),
            reason: String::new(),
            ended_ms: None,
            members: vec![Member::default(); members as usize],
        }
    }

    /// The names of the task's claims in the present attempt.
    pub(crate) fn claims(&self, job: JobId) -> impl Iterator<Item = ClaimName> + use<> {
        let (index, attempt) = (self.index, self.attempt);
        (0..self.members.len() as u32).map(move |rank| ClaimName { job, index, rank, attempt })
    }

    pub(crate) fn end(&self) -> Option<End> {
        match self.state {
            TaskState::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// Forgets what the task has lost before if it has run for a while since. A loss that is under way counts already.
    pub(super) fn note_run(&mut self, now_ms: u64) {
        if self.state != TaskState::Active {
            return;
        }
        let mut started = self.members.iter().filter_map(|member| member.started_ms);
        if started.any(|started_ms| now_ms.saturating_sub(started_ms) >= RUN_MS) {
            (self.setbacks, self.losses) = (0, 0);
        }
    }

    /// Notes that a node has refused a start.
    pub(super) fn note_refusal(&mut self, node: &str) {
        self.refused_by.retain(|other| other != node);
        self.refused_by.push(node.to_owned());
        let too_many = self.refused_by.len().saturating_sub(REFUSED_BY_MAX);
        self.refused_by.drain(..too_many);
    }

    /// Whether a member runs, according to its node.
    pub(crate) fn runs(&self) -> bool {
        self.state == TaskState::Active
            && self.members.iter().any(|member| member.started_ms.is_some() && member.exit.is_none())
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_that_have_refused_last_are_kept() {
        let mut task = Task::new(0, 1);
        (0..20).for_each(|number| task.note_refusal(&number.to_string()));
        task.note_refusal("7");
        let kept: Vec<String> = [5, 6].into_iter().chain(8..20).chain([7]).map(|number| number.to_string()).collect();
        assert_eq!(task.refused_by, kept);
    }
}
