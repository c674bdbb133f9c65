//! Queues as they are configured.

use std::collections::BTreeMap;

use crate::vocabulary::allowance::Allowance;
use crate::vocabulary::resource::Resource;
use crate::vocabulary::slab::Key;

/// Names a queue to the cluster that it was added to.
pub type QueueId = Key<QueueSpec>;

/// The queue of claims that name none. It is always there.
pub const DEFAULT_QUEUE: &str = "default";

/// A queue as it is configured.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QueueSpec {
    /// Its name; no two queues share one.
    pub name: String,
    /// The name of its parent; `None`: it is at the top. Claims wait only in queues that are nobody's parent.
    pub parent: Option<String>,
    /// Queues of higher priority are given what is left over first.
    pub priority: i32,
    /// What it may have. Of resources that are not named: [`Allowance::UNNAMED`].
    pub allowances: BTreeMap<Resource, Allowance>,
    /// How long a claim of it, or of a queue below it that does not say, runs before it may be preempted within its
    /// queue.
    pub preempt_min_runtime_ms: Option<u64>,
    /// The same for being reclaimed by another queue.
    pub reclaim_min_runtime_ms: Option<u64>,
}

/// Why a queue cannot be as it is said to be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QueueError {
    /// There is a queue of this name.
    #[error("there is a queue named {0:?}; change it, or remove it first")]
    Exists(String),
    /// There is no such queue.
    #[error("there is no queue {0:?}; add it first")]
    Unknown(String),
    /// Claims or pod groups are in the parent.
    #[error(
        "queue {0:?} has claims or pod groups of its own and cannot be a parent; move them to a queue below it first"
    )]
    ParentHasClaims(String),
    /// The queue of those who name none is always a leaf.
    #[error(
        "queue {0:?} cannot be below queue {DEFAULT_QUEUE:?}, which takes the claims that name no queue; \
         choose another parent, or none"
    )]
    BelowDefault(String),
    /// Claims can only be in a queue without children.
    #[error("queue {0:?} has queues below it; claims wait in those")]
    NotALeaf(String),
    /// The queue has children, claims or pod groups.
    #[error("queue {0:?} has claims, pod groups or queues below it; remove them first")]
    InUse(String),
    /// A queue stays where it is in the tree.
    #[error("queue {0:?} cannot be moved below another parent; make a new one")]
    Moved(String),
    /// The queue is a namespace's quota.
    #[error("queue {queue:?} is the quota of namespace {namespace:?}, and goes with that")]
    OfNamespace {
        /// The queue.
        queue: String,
        /// The namespace.
        namespace: String,
    },
    /// A queue without a name, which no claim could name.
    #[error("a queue has no name; claims name the queue that they wait in")]
    Unnamed,
    /// The name is one of a namespace's quota.
    #[error("queue {0:?} is named like a namespace's quota; choose a name that does not begin so")]
    Reserved(String),
    /// The queue that is always there.
    #[error("queue {DEFAULT_QUEUE:?} takes the claims that name no queue and stays")]
    Default,
}
