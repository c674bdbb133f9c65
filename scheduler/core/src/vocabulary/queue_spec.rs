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
    /// The name of its parent; `None`: it is at the top. Claims wait only in queues without children.
    pub parent: Option<String>,
    /// Queues of higher priority are given first what is left over.
    pub priority: i32,
    /// What it may have of each resource. A resource that is not named has [`Allowance::UNNAMED`].
    pub allowances: BTreeMap<Resource, Allowance>,
    /// How long a claim must have run before it may be preempted within its queue, in milliseconds. It applies to
    /// claims of this queue, and to those of queues below it without a value of their own.
    pub preempt_min_runtime_ms: Option<u64>,
    /// How long a claim must have run before another queue may reclaim it, in milliseconds. It applies to the same
    /// claims.
    pub reclaim_min_runtime_ms: Option<u64>,
}

/// Why a queue is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QueueError {
    /// There is a queue of this name.
    #[error("there is a queue named {0:?}; change it, or remove it first")]
    Exists(String),
    /// There is no such queue.
    #[error("there is no queue {0:?}; add it first")]
    Unknown(String),
    /// The parent has claims or pod groups of its own.
    #[error(
        "queue {0:?} has claims or pod groups of its own and cannot be a parent; move them to a queue below it first"
    )]
    ParentHasClaims(String),
    /// The default queue must stay a leaf.
    #[error(
        "queue {0:?} cannot be below queue {DEFAULT_QUEUE:?}, which takes the claims that name no queue; \
         choose another parent, or none"
    )]
    BelowDefault(String),
    /// The queue has children, so claims cannot wait in it.
    #[error("queue {0:?} has queues below it; claims wait in those")]
    NotALeaf(String),
    /// The queue has children, claims or pod groups, so it cannot be removed.
    #[error("queue {0:?} has claims, pod groups or queues below it; remove them first")]
    InUse(String),
    /// A queue cannot be moved to another parent.
    #[error("queue {0:?} cannot be moved below another parent; make a new one")]
    Moved(String),
    /// The queue holds a namespace's quota.
    #[error("queue {queue:?} is the quota of namespace {namespace:?}; change or remove that quota instead")]
    OfNamespace {
        /// The queue.
        queue: String,
        /// The namespace.
        namespace: String,
    },
    /// The queue has no name, so no claim could name it.
    #[error("a queue has no name; claims name the queue that they wait in")]
    Unnamed,
    /// The name is reserved for a namespace's quota.
    #[error("queue {0:?} has the prefix of queues for namespaces' quotas; choose a name without it")]
    Reserved(String),
    /// The default queue cannot be removed.
    #[error("queue {DEFAULT_QUEUE:?} takes the claims that name no queue; it cannot be removed")]
    Default,
}
