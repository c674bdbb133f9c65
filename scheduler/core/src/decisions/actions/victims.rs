//! The units that could be made to go, and where they are. They are found once for a cycle, and updated as claims are
//! placed and evicted. Without that, each of a thousand reclaims would look at everything that runs.

use std::collections::{BTreeMap, BTreeSet};

use crate::decisions::entitled::{Entitled, PlacedUnit};
use crate::decisions::shares::{Guarantees, Right};
use crate::decisions::unit::{Rank, Unit};
use crate::state::cluster::Cluster;
use crate::state::group::Group;
use crate::state::resources::Charge;
use crate::vocabulary::claim::{Action, ClaimId, NodeId};
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::QueueId;

use super::protection::MinRuntime;

/// A victim goes as a whole: a member beyond a group's core, or a core together with all members beyond it.
#[derive(Clone, Debug)]
pub(super) struct Victim {
    /// Its units; if it has a core, the core is the first.
    pub(super) units: Vec<PlacedUnit>,
    /// The number of its queue in [`Victims::queues`].
    pub(super) queue: usize,
    /// The charge of all its units.
    pub(super) charge: Charge,
    /// Whether it is within its queue's fair share.
    pub(super) entitled: bool,
    /// The guarantees of its queue that it is within.
    pub(super) guaranteed: Guarantees,
    /// How many units would be stopped that run or are moving to another place. Of a core with a moved member, each
    /// other member counts, too.
    pub(super) running: usize,
    rank: Rank,
    group: GroupId,
    /// Whether reclaim may disturb it; `preemptible`: whether preemption within its queue may.
    reclaimable: bool,
    preemptible: bool,
    /// The number of members that name each budget, by the budget's number.
    pub(super) budgets: Vec<(usize, u32)>,
    /// The nodes that its members are on, each once.
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

    /// The nodes that its members are on, each once.
    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().copied()
    }

    /// Whether an action may disturb it.
    pub(super) fn is_open_to(&self, action: Action) -> bool {
        if action == Action::Reclaim { self.reclaimable } else { self.preemptible }
    }

    /// Whether a trial has evicted all of it.
    pub(super) fn is_gone(&self, cluster: &Cluster) -> bool {
        self.claims().all(|claim| cluster.allocation(claim).is_none())
    }
}

/// What happens to victims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// They are evicted. A core takes along the members of its group beyond it.
    Evicted,
    /// They are moved, each member by itself. Only members without placement rules of their group can be moved.
    Moved,
}

/// The units that could be made to go, of the queues that were asked for.
#[derive(Clone, Debug)]
pub(super) struct Victims {
    fate: Fate,
    /// Whether every queue with placed units must be known.
    knows_all: bool,
    /// Victims by their number; `None`: the number is free.
    all: Vec<Option<Victim>>,
    free: Vec<usize>,
    queues: Vec<QueueId>,
    by_queue: BTreeMap<QueueId, usize>,
    /// By number of the queue: its victims in the order of rank.
    of_queue: Vec<BTreeSet<(Rank, usize)>>,
    /// The victims on each node.
    at: BTreeMap<NodeId, Vec<usize>>,
    /// Nodes on which a victim has come, gone or changed its verdict, in the order of these changes.
    changes: Vec<NodeId>,
    budgets: Vec<(String, String)>,
    by_budget: BTreeMap<(String, String), usize>,
}

impl Victims {
    /// Knows no queue yet.
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
            changes: Vec::new(),
            budgets: Vec::new(),
            by_budget: BTreeMap::new(),
        }
    }

    pub(super) fn get(&self, number: usize) -> Option<&Victim> {
        self.all.get(number)?.as_ref()
    }

    /// The known queues; their numbers are their positions.
    pub(super) fn queues(&self) -> &[QueueId] {
        &self.queues
    }

    /// The number of a queue; `None` if it is not known.
    pub(super) fn number_of(&self, queue: QueueId) -> Option<usize> {
        self.by_queue.get(&queue).copied()
    }

    /// The victims of a queue, in the order of rank.
    pub(super) fn of_queue(&self, queue: usize) -> impl DoubleEndedIterator<Item = usize> + '_ {
        self.of_queue.get(queue).into_iter().flatten().map(|(_, victim)| *victim)
    }

    /// The nodes with victims, with their victims, from node `start` on and then from the first node.
    pub(super) fn nodes(&self, start: Option<NodeId>) -> impl Iterator<Item = (NodeId, &[usize])> {
        let start = start.unwrap_or(NodeId(0));
        let nodes = self.at.range(start..).chain(self.at.range(..start));
        nodes.map(|(node, here)| (*node, here.as_slice()))
    }

    /// The victims on a node.
    pub(super) fn on(&self, node: NodeId) -> &[usize] {
        self.at.get(&node).map_or(&[], Vec::as_slice)
    }

    /// The nodes on which a victim has come, gone or changed its verdict, once for each change. The first `known` of
    /// them are left out.
    pub(super) fn changes(&self, known: usize) -> &[NodeId] {
        self.changes.get(known..).unwrap_or_default()
    }

    /// The number of victims.
    pub(super) fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// A budget's namespace and name.
    pub(super) fn budget(&self, number: usize) -> Option<&(String, String)> {
        self.budgets.get(number)
    }

    /// Whether every queue with placed units is known.
    pub(super) fn knows_all(&self) -> bool {
        self.knows_all
    }

    /// Notes that every queue with placed units is known, and must be from now on.
    pub(super) fn note_all_known(&mut self) {
        self.knows_all = true;
    }

    /// Makes sure that a queue is known. `entitled` has the queue's placed units.
    pub(super) fn know(&mut self, cluster: &Cluster, entitled: &Entitled, queue: QueueId) {
        if self.by_queue.contains_key(&queue) {
            return;
        }
        let number = self.queues.len();
        self.queues.push(queue);
        self.by_queue.insert(queue, number);
        self.of_queue.push(BTreeSet::new());
        let mut units: Vec<&PlacedUnit> = entitled.units().collect();
        // In the order of rank a group's core comes before the members beyond it.
        units.sort_by_key(|placed| placed.unit.group);
        self.add_groups(cluster, number, &units);
    }

    /// Updates a queue after members of some of its groups were placed or evicted, and after the verdicts of other
    /// units, given by rank, have changed.
    pub(super) fn update(
        &mut self,
        cluster: &Cluster,
        entitled: &Entitled,
        queue: QueueId,
        groups: &BTreeSet<GroupId>,
        others: &BTreeSet<Rank>,
    ) {
        let Some(number) = self.number_of(queue) else {
            if self.knows_all {
                self.know(cluster, entitled, queue);
            }
            return;
        };
        self.remove_groups(cluster, number, groups);
        let units: Vec<&PlacedUnit> = groups.iter().flat_map(|group| entitled.of_group(cluster, *group)).collect();
        self.add_groups(cluster, number, &units);
        let Some(of_queue) = self.of_queue.get(number) else { return };
        for placed in others.iter().filter_map(|rank| entitled.get(*rank)) {
            let rank = placed.unit.rank;
            // Several members of a core share one rank.
            for (_, victim) in of_queue.range((rank, 0)..=(rank, usize::MAX)) {
                let Some(Some(victim)) = self.all.get_mut(*victim) else { continue };
                victim.entitled = placed.is(Right::FairShare);
                victim.guaranteed = placed.guarantees();
                self.changes.extend(&victim.nodes);
            }
        }
    }

    fn remove_groups(&mut self, cluster: &Cluster, queue: usize, groups: &BTreeSet<GroupId>) {
        let Some(of_queue) = self.of_queue.get(queue) else { return };
        let ranks = groups.iter().filter_map(|id| {
            let core = Rank::new(cluster.group(*id)?.spec().priority, id.number(), None);
            Some([core..=core, core.beyond()])
        });
        let victims =
            ranks.flatten().flat_map(|ranks| of_queue.range((*ranks.start(), 0)..=(*ranks.end(), usize::MAX)));
        let mut ranked: Vec<(Rank, usize)> = victims.copied().collect();
        ranked.sort_unstable();
        for (rank, number) in ranked {
            let Some(victim) = self.all.get_mut(number).and_then(Option::take) else { continue };
            for node in &victim.nodes {
                if let Some(here) = self.at.get_mut(node) {
                    here.retain(|other| *other != number);
                    if here.is_empty() {
                        self.at.remove(node);
                    }
                }
            }
            self.changes.extend(victim.nodes);
            self.of_queue.get_mut(queue).into_iter().for_each(|of_queue| _ = of_queue.remove(&(rank, number)));
            self.free.push(number);
        }
    }

    /// Adds the victims among a queue's units. The units come group by group, each group's core first.
    fn add_groups(&mut self, cluster: &Cluster, queue: usize, units: &[&PlacedUnit]) {
        let Some(id) = self.queues.get(queue).copied() else { return };
        let protections = [Action::Reclaim, Action::Preempt].map(|action| MinRuntime::of(cluster, id, action));
        for units in units.chunk_by(|one, other| one.unit.group == other.unit.group) {
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
                // A core is not taken while a unit that would go with it must stay.
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
                        let stays =
                            |member: &PlacedUnit| member.unit.claims.iter().any(|claim| must_stay(cluster, *claim));
                        for member in placed.members(cluster).filter(|member| !stays(member)) {
                            self.push(cluster, queue, vec![member], running, open);
                        }
                    }
                }
            }
        }
    }

    /// Adds a victim. `open` says whether reclaim, and preemption within the queue, may disturb it.
    fn push(&mut self, cluster: &Cluster, queue: usize, units: Vec<PlacedUnit>, running: usize, open: [bool; 2]) {
        let [reclaimable, preemptible] = open;
        let Some(first) = units.first() else { return };
        let (rank, group) = (first.unit.rank, first.unit.group);
        let (entitled, guaranteed) = (first.is(Right::FairShare), first.guarantees());
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
        self.changes.extend(&victim.nodes);
        if let Some(of_queue) = self.of_queue.get_mut(queue) {
            of_queue.insert((rank, number));
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

/// Whether a claim is not moved, whatever its group is.
fn must_stay(cluster: &Cluster, claim: ClaimId) -> bool {
    cluster.is_counted_on(claim) || cluster.claim(claim).is_some_and(|claim| claim.immovable)
}

/// How many members of a unit run or are moving to another place.
fn running(cluster: &Cluster, unit: &Unit) -> usize {
    let is_there = |claim: &&ClaimId| cluster.started_ms(**claim).is_some() || cluster.leaving(**claim).is_some();
    unit.claims.iter().filter(is_there).count()
}

/// Whether a moved unit has yet to start at its new place. It is not moved again: otherwise it might never run, as
/// nothing protects it.
fn is_on_its_way(cluster: &Cluster, unit: &Unit) -> bool {
    unit.claims.iter().any(|claim| cluster.leaving(*claim).is_some())
}

/// Whether members of a group may be moved. Members of a group with placement rules stay together where they are. The
/// rest of a gang would not start anywhere else.
fn may_move(group: &Group) -> bool {
    group.has_minimum() && !group.has_rules()
}
