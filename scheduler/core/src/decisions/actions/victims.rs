//! Who could be made to go, and where they are: found out once for a cycle, and kept true as claims are placed and
//! evicted. Without that, each of a thousand reclaims would look at everything that runs.

use std::collections::{BTreeMap, BTreeSet};

use crate::decisions::entitled::{Entitled, PlacedUnit};
use crate::decisions::unit::{Rank, Unit};
use crate::state::cluster::Cluster;
use crate::state::group::Group;
use crate::state::resources::Charge;
use crate::vocabulary::claim::{Action, ClaimId, NodeId};
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::QueueId;

use super::protection::MinRuntime;

/// What goes as a whole: a member beyond a group's core, or a core, with which all members beyond it go.
#[derive(Clone, Debug)]
pub(super) struct Victim {
    /// Its units; a core is the first.
    pub(super) units: Vec<PlacedUnit>,
    /// The number of its queue in [`Victims::queues`].
    pub(super) queue: usize,
    /// What it takes.
    pub(super) charge: Charge,
    /// Whether it is within its queue's fair share.
    pub(super) entitled: bool,
    /// Whether it is within what its queue is certain of.
    pub(super) guaranteed: bool,
    /// How many units that run, or are on the way from one place to another, would be stopped. Of a core with a member
    /// that is moved each other member counts, too.
    pub(super) running: usize,
    rank: Rank,
    group: GroupId,
    /// Whether reclaim, and preemption within its queue, may disturb it.
    reclaimable: bool,
    preemptible: bool,
    /// How many members name each budget, by number of the budget.
    pub(super) budgets: Vec<(usize, u32)>,
    /// Each once.
    nodes: Vec<NodeId>,
}

impl Victim {
    pub(super) fn claims(&self) -> impl Iterator<Item = ClaimId> + '_ {
        self.units.iter().flat_map(|placed| placed.unit.claims.iter().copied())
    }

    pub(super) fn rank(&self) -> Rank {
        self.rank
    }

    pub(super) fn group(&self) -> GroupId {
        self.group
    }

    /// Whether an action may disturb it.
    pub(super) fn is_open_to(&self, action: Action) -> bool {
        if action == Action::Reclaim { self.reclaimable } else { self.preemptible }
    }

    /// Whether all of it is evicted, in a trial.
    pub(super) fn is_gone(&self, cluster: &Cluster) -> bool {
        self.claims().all(|claim| cluster.allocation(claim).is_none())
    }
}

/// What is done with victims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// They are evicted, and a core takes along what its group has beyond it.
    Evicted,
    /// They are moved, each member by itself; only those that may be anywhere.
    Moved,
}

/// Who could be made to go, of the queues that were asked for.
#[derive(Clone, Debug)]
pub(super) struct Victims {
    fate: Fate,
    /// Whether every queue with anything placed is to be known.
    knows_all: bool,
    /// By number; `None`: the number is free.
    all: Vec<Option<Victim>>,
    free: Vec<usize>,
    queues: Vec<QueueId>,
    by_queue: BTreeMap<QueueId, usize>,
    /// By number of the queue: its victims in the order of rank.
    of_queue: Vec<Vec<(Rank, usize)>>,
    /// Who is on which node.
    at: BTreeMap<NodeId, Vec<usize>>,
    budgets: Vec<(String, String)>,
    by_budget: BTreeMap<(String, String), usize>,
}

impl Victims {
    /// Of no queue yet.
    pub(super) fn new(fate: Fate) -> Self {
        Self {
            fate,
            knows_all: false,
            all: Vec::new(),
            free: Vec::new(),
            queues: Vec::new(),
            by_queue: BTreeMap::new(),
            of_queue: Vec::new(),
            at: BTreeMap::new(),
            budgets: Vec::new(),
            by_budget: BTreeMap::new(),
        }
    }

    pub(super) fn get(&self, number: usize) -> Option<&Victim> {
        self.all.get(number)?.as_ref()
    }

    /// The queues that are known, by number.
    pub(super) fn queues(&self) -> &[QueueId] {
        &self.queues
    }

    /// The number of a queue, if it is known.
    pub(super) fn number_of(&self, queue: QueueId) -> Option<usize> {
        self.by_queue.get(&queue).copied()
    }

    /// The victims of a queue, in the order of rank.
    pub(super) fn of_queue(&self, queue: usize) -> impl Iterator<Item = usize> + '_ {
        self.of_queue.get(queue).into_iter().flatten().map(|(_, victim)| *victim)
    }

    /// The nodes on which there is anybody, with who, from node `start` on and then from the first.
    pub(super) fn nodes(&self, start: Option<NodeId>) -> impl Iterator<Item = (NodeId, &[usize])> {
        let start = start.unwrap_or(NodeId(0));
        let nodes = self.at.range(start..).chain(self.at.range(..start));
        nodes.map(|(node, here)| (*node, here.as_slice()))
    }

    /// Who is on a node.
    pub(super) fn on(&self, node: NodeId) -> &[usize] {
        self.at.get(&node).map_or(&[], Vec::as_slice)
    }

    /// A budget's namespace and name.
    pub(super) fn budget(&self, number: usize) -> Option<&(String, String)> {
        self.budgets.get(number)
    }

    /// Whether every queue with anything placed is known.
    pub(super) fn knows_all(&self) -> bool {
        self.knows_all
    }

    /// Says that every queue with anything placed was made known, and is to be from now on.
    pub(super) fn note_all_known(&mut self) {
        self.knows_all = true;
    }

    /// Makes sure that a queue is known; `entitled` are its placed units.
    pub(super) fn know(&mut self, cluster: &Cluster, entitled: &Entitled, queue: QueueId) {
        if self.by_queue.contains_key(&queue) {
            return;
        }
        let number = self.queues.len();
        self.queues.push(queue);
        self.by_queue.insert(queue, number);
        self.of_queue.push(Vec::new());
        self.add_groups(cluster, entitled, number, |_| true);
    }

    /// Takes in that members of groups of a queue were placed or evicted, and who is entitled now.
    pub(super) fn update(
        &mut self,
        cluster: &Cluster,
        entitled: &Entitled,
        queue: QueueId,
        groups: &BTreeSet<GroupId>,
    ) {
        let Some(number) = self.number_of(queue) else {
            if self.knows_all {
                self.know(cluster, entitled, queue);
            }
            return;
        };
        self.remove_groups(number, groups);
        self.add_groups(cluster, entitled, number, |group| groups.contains(&group));
        // Both are in the order of rank.
        let mut units = entitled.units().iter().peekable();
        for (rank, victim) in self.of_queue.get(number).into_iter().flatten() {
            // Several members of a core have one rank.
            while units.next_if(|placed| placed.unit.rank < *rank).is_some() {}
            let placed = units.peek().filter(|placed| placed.unit.rank == *rank);
            if let Some(Some(victim)) = self.all.get_mut(*victim) {
                victim.entitled = placed.is_some_and(|placed| placed.entitled);
                victim.guaranteed = placed.is_some_and(|placed| placed.guaranteed);
            }
        }
    }

    fn remove_groups(&mut self, queue: usize, groups: &BTreeSet<GroupId>) {
        let Some(of_queue) = self.of_queue.get_mut(queue) else { return };
        let (all, at, free) = (&mut self.all, &mut self.at, &mut self.free);
        of_queue.retain(|(_, number)| {
            let Some(slot) = all.get_mut(*number) else { return false };
            let Some(victim) = slot.take_if(|victim| groups.contains(&victim.group)) else { return true };
            for node in victim.nodes {
                if let Some(here) = at.get_mut(&node) {
                    here.retain(|other| other != number);
                    if here.is_empty() {
                        at.remove(&node);
                    }
                }
            }
            free.push(*number);
            false
        });
    }

    fn add_groups(&mut self, cluster: &Cluster, entitled: &Entitled, queue: usize, wanted: impl Fn(GroupId) -> bool) {
        let Some(id) = self.queues.get(queue).copied() else { return };
        let protections = [Action::Reclaim, Action::Preempt].map(|action| MinRuntime::of(cluster, id, action));
        // In the order of rank a group's core comes before the members beyond it.
        let mut by_group: Vec<&PlacedUnit> =
            entitled.units().iter().filter(|placed| wanted(placed.unit.group)).collect();
        by_group.sort_by_key(|placed| placed.unit.group);
        for units in by_group.chunk_by(|one, other| one.unit.group == other.unit.group) {
            let group = units.first().and_then(|placed| cluster.group(placed.unit.group));
            let Some(group) = group.filter(|group| self.fate == Fate::Evicted || may_move(group)) else { continue };
            let open =
                |placed: &&PlacedUnit| protections.map(|protection| !protection.protects(cluster, group, &placed.unit));
            for placed in units {
                let with = match (self.fate, placed.unit.elastic) {
                    (Fate::Moved, _) if is_on_its_way(cluster, &placed.unit) => continue,
                    (Fate::Evicted, false) => units,
                    _ => std::slice::from_ref(placed),
                };
                // A core is not taken while one of those that would go with it must stay.
                let open = with.iter().map(open).reduce(|all, one| [all[0] && one[0], all[1] && one[1]]);
                let Some(open) = open.filter(|open| *open != [false, false]) else { continue };
                match self.fate {
                    Fate::Evicted => {
                        let units: Vec<PlacedUnit> = with.iter().copied().cloned().collect();
                        let running = units.iter().filter(|placed| running(cluster, &placed.unit) > 0).count();
                        self.push(cluster, queue, units, running, open);
                    }
                    Fate::Moved => {
                        let running = running(cluster, &placed.unit);
                        for member in placed.members(cluster) {
                            self.push(cluster, queue, vec![member], running, open);
                        }
                    }
                }
            }
        }
        if let Some(of_queue) = self.of_queue.get_mut(queue) {
            of_queue.sort_unstable();
        }
    }

    /// Adds one; `open` says whether reclaim, and preemption within the queue, may disturb it.
    fn push(&mut self, cluster: &Cluster, queue: usize, units: Vec<PlacedUnit>, running: usize, open: [bool; 2]) {
        let [reclaimable, preemptible] = open;
        let Some(first) = units.first() else { return };
        let (rank, group) = (first.unit.rank, first.unit.group);
        let (entitled, guaranteed) = (first.entitled, first.guaranteed);
        let mut charge = Charge::default();
        units.iter().for_each(|placed| charge.add(&placed.charge));
        let claims = || units.iter().flat_map(|placed| placed.unit.claims.iter());
        let mut nodes: Vec<NodeId> =
            claims().filter_map(|claim| cluster.allocation(*claim)).map(|at| at.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let mut budgets: BTreeMap<usize, u32> = BTreeMap::new();
        for claim in claims().filter_map(|claim| cluster.claim(*claim)) {
            let Some(name) = &claim.disruption_budget else { continue };
            let number = self.number_of_budget(&claim.namespace, name);
            *budgets.entry(number).or_default() += 1;
        }
        let budgets = budgets.into_iter().collect();
        let victim = Victim {
            units,
            queue,
            charge,
            entitled,
            guaranteed,
            running,
            rank,
            group,
            reclaimable,
            preemptible,
            budgets,
            nodes,
        };
        let number = self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            self.all.len() - 1
        });
        for node in &victim.nodes {
            self.at.entry(*node).or_default().push(number);
        }
        if let Some(of_queue) = self.of_queue.get_mut(queue) {
            of_queue.push((rank, number));
        }
        if let Some(slot) = self.all.get_mut(number) {
            *slot = Some(victim);
        }
    }

    fn number_of_budget(&mut self, namespace: &str, name: &str) -> usize {
        let key = (namespace.to_owned(), name.to_owned());
        *self.by_budget.entry(key).or_insert_with_key(|key| {
            self.budgets.push(key.clone());
            self.budgets.len() - 1
        })
    }
}

/// How many members of a unit run, or are on the way from one place to another.
fn running(cluster: &Cluster, unit: &Unit) -> usize {
    let is_there = |claim: &&ClaimId| cluster.started_ms(**claim).is_some() || cluster.leaving(**claim).is_some();
    unit.claims.iter().filter(is_there).count()
}

/// Whether a unit that was moved has yet to start where it is now. It is moved no further: it would never run, and
/// nothing protects it.
fn is_on_its_way(cluster: &Cluster, unit: &Unit) -> bool {
    unit.claims.iter().any(|claim| cluster.leaving(*claim).is_some())
}

/// Whether members of a group may be moved. Where a group says how they stand to each other they stay together where
/// they are, and what is left of a gang would start nowhere else.
fn may_move(group: &Group) -> bool {
    group.has_minimum() && !group.has_rules()
}
