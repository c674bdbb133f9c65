//! A task: one element of a job's array, or all of the job.

use serde::{Deserialize, Serialize};

use super::member::Member;
use super::{ClaimName, End, JobId};

/// What has become of a task.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) index: u32,
    pub(crate) state: TaskState,
    /// Which claims it has now; 0: it had none yet.
    pub(crate) attempt: u32,
    /// How often it was started.
    pub(crate) starts: u32,
    /// How often it has failed.
    pub(crate) failures: u32,
    /// How often its gang started anew lately because it had lost a member.
    #[serde(default)]
    pub(crate) setbacks: u32,
    /// Why it waits or has failed; empty: nothing to say.
    pub(crate) reason: String,
    pub(crate) ended_ms: Option<u64>,
    pub(crate) members: Vec<Member>,
}

/// How far a task is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TaskState {
    /// It waits for other jobs.
    Blocked,
    /// It has failed, and waits until this time.
    Retrying {
        at_ms: u64,
    },
    /// Its claims wait or run.
    Active,
    /// What still runs of it is stopped.
    Leaving {
        then: Then,
    },
    Ended(End),
}

/// What becomes of a task when nothing of it runs any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Then {
    End(End),
    /// The next attempt, not before this time.
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
            reason: String::new(),
            ended_ms: None,
            members: vec![Member::default(); members as usize],
        }
    }

    /// The names of its claims in the present attempt.
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

    /// Whether a member runs, as its node says.
    pub(crate) fn runs(&self) -> bool {
        self.state == TaskState::Active
            && self.members.iter().any(|member| member.started_ms.is_some() && member.exit.is_none())
    }
}
