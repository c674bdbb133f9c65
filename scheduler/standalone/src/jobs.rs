//! Jobs, their tasks and the tasks' members: the requests of users, and their results.
//!
//! A *job* has *tasks*: one for each index of its array, or a single one. A task has *members*: the ranks of its gang,
//! or a single one. The engine knows a member as a claim. A task that starts anew after a failure, or because its gang
//! has lost a member, gets new claims: each set of claims is an *attempt*.
//!
//! The [`Book`] is a state machine without I/O. Each call changes jobs, and leaves behind what must be saved, then told
//! to the engine, and then told to nodes.

mod attempts;
mod book;
mod claims;
mod image;
mod member;
mod priority_class;
mod process;
mod run;
mod spec;
mod task;
#[cfg(test)]
mod worlds;

pub(crate) use book::{Book, Effects, Ended, Entry, JOBS, StartOrder, TASKS, Unknown};
pub(crate) use image::{Image, Mount};
pub(crate) use member::{Exit, Member};
pub(crate) use priority_class::PriorityClass;
pub(crate) use run::{Fault, Instance};
pub(crate) use spec::{IMAGES_LABEL, JobSpec, NODE_LABEL, Restart, SECRETS_LABEL, SecretUse};
pub(crate) use task::{Task, TaskState, Then};

use serde::{Deserialize, Serialize};

use crate::access::{Identity, OwnedJob};

/// The number of a job. It is never used again.
pub(crate) type JobId = u64;

/// A job as the user submitted it, without its state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) id: JobId,
    pub(crate) spec: JobSpec,
    /// The number of the local user as whom the job runs.
    pub(crate) uid: u32,
    /// The name of that user on the scheduler's machine; empty: it is not known. Nodes do not run the job as a user of
    /// another name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) local_user: String,
    /// The user that submitted it: the name of a local user, or the name in the certificate of a user of another
    /// machine.
    pub(crate) user: String,
    /// Whether `user` is a user of another machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_remote: bool,
    pub(crate) submitted_ms: u64,
    /// The user's ID for the request that made the job; empty: it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) request_id: String,
}

impl Job {
    /// The owner of the job.
    pub(crate) fn owner(&self) -> Identity {
        if self.is_remote { Identity::Remote(self.user.clone()) } else { Identity::Local(self.uid) }
    }

    /// The facts about the job on which rights depend.
    pub(crate) fn owned(&self) -> OwnedJob<'_> {
        OwnedJob { id: self.id, owner: self.owner(), user: &self.user }
    }
}

/// How a job, or a part of it, has ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum End {
    Succeeded,
    Failed,
    Cancelled,
}

/// Names a member of an attempt as the engine's claim.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ClaimName {
    pub(crate) job: JobId,
    pub(crate) index: u32,
    pub(crate) rank: u32,
    pub(crate) attempt: u32,
}

impl ClaimName {
    /// The name of the member's log. All attempts of the task write to the same log.
    pub(crate) fn log(self) -> String {
        format!("{}.{}.{}", self.job, self.index, self.rank)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let name = Self {
            job: parts.next()?.parse().ok()?,
            index: parts.next()?.parse().ok()?,
            rank: parts.next()?.parse().ok()?,
            attempt: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(name)
    }
}

impl std::fmt::Display for ClaimName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}.{}", self.job, self.index, self.rank, self.attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_found_by_its_name() {
        let name = ClaimName { job: 17, index: 3, rank: 0, attempt: 2 };
        assert_eq!(ClaimName::parse(&name.to_string()), Some(name));
        assert_eq!(name.log(), "17.3.0");
        for wrong in ["", "17", "17.3.0", "17.3.0.2.1", "17.3.0.x", "a.b.c.d"] {
            assert_eq!(ClaimName::parse(wrong), None, "{wrong}");
        }
    }
}
