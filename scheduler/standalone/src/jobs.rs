//! What users want: jobs, their tasks and the members of these, and what becomes of them.
//!
//! A *job* has *tasks*: one for each index of its array, or one. A task has *members*: the ranks of its gang, or one. The
//! engine knows a member as a claim. A task that is started anew after a failure, and a gang that has lost a member, gets
//! new claims: an *attempt*.
//!
//! The [`Book`] is a state machine without I/O: each call changes jobs, and leaves behind what is to be saved, told to the
//! engine and told to nodes, in this order.

mod attempts;
mod book;
mod claims;
mod image;
mod member;
mod process;
mod run;
mod spec;
mod task;
#[cfg(test)]
mod worlds;

pub(crate) use book::{Book, Effects, Ended, Entry, JOBS, StartOrder, TASKS, Unknown};
pub(crate) use image::{Image, Mount};
pub(crate) use member::{Exit, Member};
pub(crate) use run::{Fault, Instance};
pub(crate) use spec::{JobSpec, NODE_LABEL, Restart, SECRETS_LABEL, SecretUse};
pub(crate) use task::{Task, TaskState, Then};

use serde::{Deserialize, Serialize};

use crate::access::{Identity, OwnedJob};

/// Names a job for ever.
pub(crate) type JobId = u64;

/// What a user wants, without what has become of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) id: JobId,
    pub(crate) spec: JobSpec,
    /// The local user as whom it runs.
    pub(crate) uid: u32,
    /// Who has submitted it: a local user, or one of another machine by the name in the certificate.
    pub(crate) user: String,
    /// The user is one of another machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_remote: bool,
    pub(crate) submitted_ms: u64,
    /// The name of the user's request; empty: it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) request_id: String,
}

impl Job {
    /// Whose job it is.
    pub(crate) fn owner(&self) -> Identity {
        if self.is_remote { Identity::Remote(self.user.clone()) } else { Identity::Local(self.uid) }
    }

    /// The job, as far as rights depend on it.
    pub(crate) fn owned(&self) -> OwnedJob<'_> {
        OwnedJob { id: self.id, owner: self.owner(), user: &self.user }
    }
}

/// The end of a job or of a part of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum End {
    Succeeded,
    Failed,
    Cancelled,
}

/// Which member of which attempt a claim is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ClaimName {
    pub(crate) job: JobId,
    pub(crate) index: u32,
    pub(crate) rank: u32,
    pub(crate) attempt: u32,
}

impl ClaimName {
    /// The name of the log, which all attempts share.
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
