//! The context in which actions work, and their results.

use std::collections::{BTreeMap, BTreeSet};

use crate::decisions::entitled::EntitledSets;
use crate::decisions::placement::{Engine, Policy};
use crate::decisions::plan::Refusal;
use crate::decisions::settings::Settings;
use crate::decisions::shares::{Right, Shares};
use crate::state::cluster::Cluster;
use crate::state::group::Group;
use crate::state::queue::Queue;
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::QueueId;
use crate::vocabulary::step::Step;

use super::frontier::Frontiers;
use super::givers::Givers;
use super::memory::{SearchMemory, Searches};
use super::victims::{Fate, Victims};

/// What the actions of one cycle share.
pub(crate) struct Context<'a> {
    pub(crate) shares: &'a Shares,
    pub(crate) settings: &'a Settings,
    pub(crate) engine: &'a mut Engine<Box<dyn Policy>>,
    pub(super) searches: Searches<'a>,
    pub(super) entitled: EntitledSets,
    /// The units that could be evicted, of the queues that were asked for.
    pub(super) evictable: Victims,
    /// The units that could be moved.
    pub(super) movable: Victims,
    /// The nodes with evictable units, for each purpose of evictions so far.
    pub(super) frontiers: Frontiers,
    /// For each right: the queues that hold more than it gives them.
    givers: BTreeMap<Right, Givers>,
    /// How many claims may still be moved in this cycle to make room in one place.
    pub(super) moves_left: u32,
}

impl<'a> Context<'a> {
    /// The context at the beginning of a cycle.
    pub(crate) fn new(
        cluster: &Cluster,
        shares: &'a Shares,
        settings: &'a Settings,
        engine: &'a mut Engine<Box<dyn Policy>>,
        memory: &'a mut SearchMemory,
    ) -> Self {
        Self {
            shares,
            settings,
            engine,
            searches: Searches::new(cluster, memory, settings),
            entitled: EntitledSets::default(),
            evictable: Victims::new(Fate::Evicted),
            movable: Victims::new(Fate::Moved),
            frontiers: Frontiers::default(),
            givers: BTreeMap::new(),
            moves_left: settings.moves_per_cycle,
        }
    }

    /// Updates the context after steps have been made final.
    pub(crate) fn changed(&mut self, cluster: &Cluster, steps: &[Step]) {
        let mut groups: BTreeMap<QueueId, BTreeSet<GroupId>> = BTreeMap::new();
        for group in steps.iter().filter_map(|step| cluster.group_of(step.claim())) {
            if let Some(queue) = cluster.group(group).map(Group::queue) {
                groups.entry(queue).or_default().insert(group);
            }
        }
        for (queue, groups) in groups {
            let others = self.entitled.update(cluster, queue, &groups);
            self.givers.values_mut().for_each(|givers| givers.update(cluster, self.shares, queue));
            for victims in [&mut self.evictable, &mut self.movable] {
                if victims.number_of(queue).is_some() || victims.knows_all() {
                    victims.update(cluster, self.entitled.know(cluster, self.shares, queue), queue, &groups, &others);
                }
            }
        }
    }

    /// Makes sure that the evictable units of a queue are known.
    pub(super) fn know_evictable(&mut self, cluster: &Cluster, queue: QueueId) {
        self.evictable.know(cluster, self.entitled.know(cluster, self.shares, queue), queue);
    }

    /// Makes sure that the movable units of all queues are known.
    pub(super) fn know_movable(&mut self, cluster: &Cluster) {
        if self.movable.knows_all() {
            return;
        }
        let holds = |queue: &Queue| !queue.placed().is_empty();
        for queue in cluster.queues().parents_first() {
            if cluster.queue(queue).is_some_and(holds) {
                self.movable.know(cluster, self.entitled.know(cluster, self.shares, queue), queue);
            }
        }
        self.movable.note_all_known();
    }

    /// The queues that hold more of a resource than a right gives them.
    pub(super) fn givers(&mut self, cluster: &Cluster, right: Right) -> &Givers {
        self.givers.entry(right).or_insert_with(|| Givers::of(cluster, self.shares, right))
    }

    /// Ends the cycle: remembers which searches go on in the next cycle.
    pub(crate) fn finish(self, cluster: &Cluster) {
        self.searches.finish(cluster);
    }
}

/// The result of an action for one unit: the steps to carry out, evictions and moves first, or why there are none.
pub(crate) type ActionResult = Result<Vec<Step>, Refusal>;
