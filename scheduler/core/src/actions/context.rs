//! What the actions work with, and what they answer.

use std::collections::BTreeMap;

use crate::claim::{Action, NodeId};
use crate::cluster::Cluster;
use crate::entitled::EntitledSets;
use crate::group::GroupId;
use crate::limits::Exceeded;
use crate::placement::{Engine, Policy};
use crate::queue::QueueId;
use crate::scheduler::Settings;
use crate::shares::Shares;
use crate::statement::Step;

/// What an action that evicts works with; all but the memory lasts for one cycle.
pub(crate) struct Context<'a> {
    pub(crate) shares: &'a Shares,
    pub(crate) settings: &'a Settings,
    pub(crate) engine: &'a mut Engine<Box<dyn Policy>>,
    pub(crate) memory: &'a mut SearchMemory,
    pub(crate) entitled: EntitledSets,
    /// Claims that may still be moved in this cycle to make room in one place.
    pub(crate) moves_left: u32,
}

/// Where searches that were too long for one cycle go on in the next one.
#[derive(Clone, Debug, Default)]
pub(crate) struct SearchMemory {
    resume: BTreeMap<(Action, GroupId), NodeId>,
}

impl SearchMemory {
    /// The node at which to begin.
    pub(crate) fn start(&self, action: Action, group: GroupId) -> Option<NodeId> {
        self.resume.get(&(action, group)).copied()
    }

    /// Notes where a search has stopped; `None`: it has seen everything.
    pub(crate) fn note(&mut self, action: Action, group: GroupId, stopped: Option<NodeId>) {
        match stopped {
            Some(node) => self.resume.insert((action, group), node),
            None => self.resume.remove(&(action, group)),
        };
    }

    /// Forgets groups that are gone, or have nothing to place any more.
    pub(crate) fn forget_gone(&mut self, cluster: &Cluster) {
        self.resume.retain(|(_, group), _| cluster.group(*group).is_some_and(|group| group.has_waiting()));
    }
}

/// Why an action does not place a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// All that may be taken for it would not make enough room.
    NothingToTake,
    /// Its queue would be above its fair share of a resource, and takes nothing back.
    AboveFairShare {
        /// The number of the resource.
        resource: usize,
        /// The share.
        fair_share: u64,
    },
    /// It would pass a limit.
    Limit(Exceeded),
    /// There would be room, but too much would be evicted for it: see
    /// [`Settings::disruption_per_mille`](crate::Settings::disruption_per_mille).
    TooDisruptive,
    /// Its group waits until then before others are evicted for it.
    Delayed {
        /// Until when.
        until_ms: u64,
    },
    /// The search was ended before it had seen everything; it goes on in the next cycle.
    SearchExhausted,
}

impl Refusal {
    /// A queue would be above its fair share of the resource of this number.
    pub(super) fn above(shares: &Shares, queue: QueueId, resource: usize) -> Self {
        Self::AboveFairShare { resource, fair_share: shares.fair_share(queue, resource) }
    }

    /// Of several actions' refusals the one that says most about what would have to change.
    pub(crate) fn more_telling(self, other: Self) -> Self {
        let telling = |refusal: &Self| match refusal {
            Self::NothingToTake => 0,
            Self::AboveFairShare { .. } => 1,
            Self::Limit(_) => 2,
            Self::TooDisruptive => 3,
            Self::Delayed { .. } => 4,
            Self::SearchExhausted => 5,
        };
        if telling(&other) > telling(&self) { other } else { self }
    }
}

/// What came of an action for one unit: what is to be done, evictions and moves first, or why nothing is.
pub(crate) type Outcome = Result<Vec<Step>, Refusal>;
