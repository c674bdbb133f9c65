//! What readers see: the state at one moment. A view never changes, and reading it blocks neither the reader nor the
//! engine.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use aliquot_scheduler_core::explain::{Explanation, QueueReport};
use aliquot_scheduler_core::{ClaimId, Cluster, EventError, GroupId, Pending, Plan, Scheduler};

use crate::command::Amounts;
use crate::decided::Decided;
use crate::engine::amounts_in;
use crate::entries::{Entries, Entry, NodeStates};
use crate::names::{ClaimUid, Generation, NodeName};
use crate::store::Phase;

/// The state at one moment.
#[derive(Debug)]
pub struct View {
    pub(crate) at_ms: u64,
    pub(crate) version: u64,
    pub(crate) cycles: u64,
    pub(crate) cluster: Cluster,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) decided: Arc<Decided>,
    pub(crate) entries: Entries,
    pub(crate) nodes: NodeStates,
}

/// Where a claim is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Whereabouts {
    /// The books reject the claim in its present state.
    Refused(EventError),
    /// The claim waits for a place.
    Waiting,
    /// The claim has a place on this node. It waits until other instances have left it, or until a stray of its own is
    /// gone.
    Placed(NodeName),
    /// An instance of the claim exists, or may exist.
    There {
        /// The node of the instance.
        node: NodeName,
        /// The generation that names the instance.
        instance: Generation,
        /// Whether the instance is starting, running or stopping.
        phase: Phase,
        /// What the instance holds of the node.
        amounts: Amounts,
    },
}

/// What is known of a claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClaimView {
    /// Whether the claim waits, has a place or runs.
    pub whereabouts: Whereabouts,
    /// Whether the claim has ended: its user no longer wants it.
    pub is_ended: bool,
    /// How often the claim could not be started, and from when on it may be placed again, in milliseconds.
    pub failures: (u32, u64),
    /// Whether the claim's node was told to resize it and has not answered yet.
    pub is_resizing: bool,
    /// Why the last attempt to start, resize or stop it failed, in the node's words.
    pub complaint: Option<Arc<str>>,
}

/// What is known of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeView {
    /// The name by which the node has reported.
    pub name: NodeName,
    /// Whether the node can be reached, so that something new may be started there.
    pub is_up: bool,
    /// When the node's lease ends; `None`: it holds no lease.
    pub lease_until_ms: Option<u64>,
    /// When the node's last message came.
    pub heard_ms: u64,
    /// Number of instances that exist on the node, or may exist.
    pub instances: usize,
}

impl View {
    /// The moment that this view shows, in the engine's time.
    #[must_use]
    pub fn at_ms(&self) -> u64 {
        self.at_ms
    }

    /// The number of this view. Each view has a greater one than the view before.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// How many cycles the engine had run. [`Self::plan`] is that of the last one.
    #[must_use]
    pub fn cycles(&self) -> u64 {
        self.cycles
    }

    /// The books. A copy, to try changes in, is cheap.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The scheduler. A [fork](Scheduler::fork) of it decides about a copy of the books.
    #[must_use]
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// What the last cycle decided, and which groups are pending.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        self.decided.plan()
    }

    /// What the last cycle says of a group; `None`: no claim of the group is pending. The search does not go through
    /// all pending groups.
    #[must_use]
    pub fn pending(&self, group: GroupId) -> Option<&Pending> {
        self.decided.pending(group)
    }

    /// The claim's number in the books.
    #[must_use]
    pub fn claim_id(&self, uid: &ClaimUid) -> Option<ClaimId> {
        self.entries.get(self.entries.of_uid(uid)?)?.id
    }

    /// What is known of a claim; `None`: the engine does not know the claim.
    #[must_use]
    pub fn claim(&self, uid: &ClaimUid) -> Option<ClaimView> {
        self.entries.get(self.entries.of_uid(uid)?).map(|entry| self.of_entry(entry))
    }

    /// Whether the claim has an instance that runs, or may run: its own, or a stray that is being stopped.
    #[must_use]
    pub fn may_run(&self, uid: &ClaimUid) -> bool {
        let own = self.entries.of_uid(uid).and_then(|id| self.entries.get(id));
        own.is_some_and(|entry| entry.instance().is_some()) || self.entries.has_stray(uid)
    }

    /// All claims, and all strays. A stray is an instance that no claim needs and that is being stopped.
    pub fn claims(&self) -> impl Iterator<Item = (&ClaimUid, ClaimView)> {
        self.entries.iter().map(|(_, entry)| (&entry.key.uid, self.of_entry(entry)))
    }

    /// The claims that run, according to their nodes.
    pub fn running(&self) -> impl Iterator<Item = ClaimId> {
        let runs = |entry: &&Entry| entry.instance().is_some_and(|instance| instance.phase == Phase::Running);
        self.entries.iter().map(|(_, entry)| entry).filter(runs).filter_map(|entry| entry.id)
    }

    /// All nodes that the engine knows.
    pub fn nodes(&self) -> impl Iterator<Item = NodeView> {
        self.nodes.iter().map(|state| NodeView {
            name: state.name.clone(),
            is_up: state.is_up,
            lease_until_ms: state.lease_until_ms,
            heard_ms: state.heard_ms,
            instances: state.instances.len(),
        })
    }

    /// Why a claim waits or was evicted, and what would help; `None`: the books have no such claim.
    #[must_use]
    pub fn explain(&self, uid: &ClaimUid) -> Option<Explanation> {
        self.scheduler.explain(&self.cluster, self.claim_id(uid)?).ok()
    }

    /// All queues with what they hold and may have.
    #[must_use]
    pub fn queues(&self) -> Vec<QueueReport> {
        self.scheduler.queue_reports(&self.cluster, self.plan())
    }

    fn of_entry(&self, entry: &Entry) -> ClaimView {
        let place = || Some(self.cluster.allocation(entry.id?)?.node);
        let name = |node| self.nodes.get(node).map(|state| state.name.clone());
        let whereabouts = match (&entry.parked, entry.instance()) {
            (_, Some(instance)) => {
                let at = entry.id.and_then(|id| self.cluster.leaving(id).or_else(|| self.cluster.allocation(id)));
                let amounts = entry.id.zip(at).map(|(id, at)| amounts_in(&self.cluster, id, at));
                name(instance.node).map(|node| Whereabouts::There {
                    node,
                    instance: instance.generation,
                    phase: instance.phase,
                    amounts: amounts.unwrap_or_default(),
                })
            }
            (Some(parked), None) => Some(Whereabouts::Refused(parked.why.clone())),
            (None, None) => place().and_then(name).map(Whereabouts::Placed),
        };
        ClaimView {
            whereabouts: whereabouts.unwrap_or(Whereabouts::Waiting),
            is_ended: entry.is_ended,
            failures: entry.id.map_or((0, 0), |id| self.cluster.failures(id)),
            is_resizing: entry.resize.as_ref().is_some_and(|resize| resize.command.is_some()),
            complaint: entry.complaint.clone(),
        }
    }
}

/// Writes a view as text, or says why that is not possible.
#[derive(Clone)]
pub struct Snapshots(Arc<Write>);

type Write = dyn Fn(&View) -> Result<String, String> + Send + Sync;

impl Snapshots {
    /// Writes views in this way.
    #[must_use]
    pub fn new(write: impl Fn(&View) -> Result<String, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(write))
    }

    /// The text of a view.
    ///
    /// # Errors
    /// A sentence that says why the view cannot be written.
    pub fn text_of(&self, view: &View) -> Result<String, String> {
        (self.0)(view)
    }
}

impl fmt::Debug for Snapshots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Snapshots")
    }
}

/// Holds the newest view for readers. All copies show the same view.
#[derive(Clone, Debug, Default)]
pub struct Shown(Arc<Mutex<Option<Arc<View>>>>);

impl Shown {
    /// The newest view; `None` before the first. The lock is held only while a pointer is copied.
    #[must_use]
    pub fn get(&self) -> Option<Arc<View>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Shows a newer view.
    pub fn set(&self, view: Arc<View>) {
        let before = self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(view);
        // If no reader holds the old view, it is freed here, after the lock is released.
        drop(before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_on_any_thread_can_look_at_a_view() {
        fn is_shared<T: Send + Sync>() {}
        is_shared::<View>();
        is_shared::<Shown>();
    }
}
