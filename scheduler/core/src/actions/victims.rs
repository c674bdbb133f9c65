//! Who could be evicted for a unit, and where they are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::claim::{Action, ClaimId, NodeId};
use crate::cluster::Cluster;
use crate::entitled::{Entitled, PlacedUnit};
use crate::group::GroupId;
use crate::node::Node;
use crate::queue::QueueId;
use crate::resource::Charge;
use crate::shares::Shares;
use crate::unit::Rank;

use super::protection::Protection;

/// What is evicted as a whole: a member beyond a group's core, or a core, with which all members beyond it go.
#[derive(Debug)]
pub(super) struct Victim<'a> {
    pub(super) placed: &'a PlacedUnit,
    /// Of a core: the members beyond it.
    pub(super) beyond: Vec<&'a PlacedUnit>,
    /// The number of its queue in [`Victims::queues`].
    pub(super) queue: usize,
    /// How many members name each budget, by number of the budget.
    budgets: Vec<(usize, u32)>,
}

impl Victim<'_> {
    /// Its units; a core is the first.
    pub(super) fn units(&self) -> impl Iterator<Item = &PlacedUnit> {
        std::iter::once(self.placed).chain(self.beyond.iter().copied())
    }

    pub(super) fn claims(&self) -> impl Iterator<Item = ClaimId> + '_ {
        self.units().flat_map(|placed| placed.unit.claims.iter().copied())
    }

    /// How much of a resource it holds.
    pub(super) fn holds(&self, number: usize) -> u64 {
        self.units().map(|placed| placed.charge.get(number)).fold(0, u64::saturating_add)
    }

    pub(super) fn rank(&self) -> Rank {
        self.placed.unit.rank
    }

    pub(super) fn group(&self) -> GroupId {
        self.placed.unit.group
    }

    /// How many of its units run, or are on the way from one place to another.
    pub(super) fn running(&self, cluster: &Cluster) -> usize {
        let is_there = |claim: &ClaimId| cluster.started_ms(*claim).is_some() || cluster.leaving(*claim).is_some();
        let runs = |placed: &&PlacedUnit| placed.unit.claims.iter().any(is_there);
        self.units().filter(runs).count()
    }

    /// Whether all of it is evicted, in a trial.
    pub(super) fn is_gone(&self, cluster: &Cluster) -> bool {
        self.claims().all(|claim| cluster.allocation(claim).is_none())
    }
}

/// Who could be evicted.
#[derive(Debug, Default)]
pub(super) struct Victims<'a> {
    pub(super) all: Vec<Victim<'a>>,
    pub(super) queues: Vec<QueueId>,
    budgets: Vec<(String, String)>,
    /// Who is on which node, in order of the nodes.
    at: Vec<(NodeId, usize)>,
}

impl<'a> Victims<'a> {
    /// Adds those of a queue that the action may take, if they are `wanted`.
    pub(super) fn add(
        &mut self,
        cluster: &Cluster,
        action: Action,
        queue: QueueId,
        entitled: &'a Entitled,
        wanted: impl Fn(&PlacedUnit) -> bool,
    ) {
        let protection = Protection::of(cluster, queue, action);
        let open = |placed: &&PlacedUnit| {
            let group = cluster.group(placed.unit.group);
            group.is_some_and(|group| !protection.protects(cluster, group, &placed.unit))
        };
        let mut beyond: BTreeMap<GroupId, Option<Vec<&'a PlacedUnit>>> = BTreeMap::new();
        for placed in entitled.last_first().filter(|placed| placed.unit.elastic) {
            let of_group = beyond.entry(placed.unit.group).or_insert_with(|| Some(Vec::new()));
            match open(&placed) {
                true => of_group.iter_mut().for_each(|of_group| of_group.push(placed)),
                false => *of_group = None,
            }
        }
        for placed in entitled.last_first().filter(|placed| wanted(placed)).filter(open) {
            let beyond = match placed.unit.elastic {
                true => Some(Vec::new()),
                false => beyond.remove(&placed.unit.group).unwrap_or_else(|| Some(Vec::new())),
            };
            // A core is not taken while one of those that would go with it must stay.
            let Some(beyond) = beyond else { continue };
            self.push(cluster, queue, placed, beyond);
        }
    }

    /// Adds one unit, and nothing that would go with it.
    pub(super) fn add_alone(&mut self, cluster: &Cluster, queue: QueueId, placed: &'a PlacedUnit) {
        self.push(cluster, queue, placed, Vec::new());
    }

    fn push(&mut self, cluster: &Cluster, queue: QueueId, placed: &'a PlacedUnit, beyond: Vec<&'a PlacedUnit>) {
        if self.queues.last() != Some(&queue) {
            self.queues.push(queue);
        }
        let mut victim = Victim { placed, beyond, queue: self.queues.len() - 1, budgets: Vec::new() };
        let mut budgets: BTreeMap<usize, u32> = BTreeMap::new();
        for claim in victim.claims().filter_map(|id| cluster.claim(id)) {
            let Some(name) = &claim.disruption_budget else { continue };
            let known = self.budgets.iter().position(|known| known.0 == claim.namespace && known.1 == *name);
            let number = known.unwrap_or_else(|| {
                self.budgets.push((claim.namespace.clone(), name.clone()));
                self.budgets.len() - 1
            });
            *budgets.entry(number).or_default() += 1;
        }
        victim.budgets = budgets.into_iter().collect();
        let number = self.all.len();
        let nodes = victim.claims().filter_map(|claim| cluster.allocation(claim)).map(|at| (at.node, number));
        self.at.extend(nodes);
        self.all.push(victim);
    }

    /// To be called when all have been added.
    pub(super) fn index(&mut self) {
        self.at.sort_unstable();
        self.at.dedup();
    }

    /// The nodes on which somebody could be evicted, with the numbers of who, from node `start` on and then from the
    /// first.
    pub(super) fn nodes(&self, start: Option<NodeId>) -> impl Iterator<Item = (NodeId, &[(NodeId, usize)])> {
        let middle = start.map_or(0, |start| self.at.partition_point(|(node, _)| *node < start));
        let (before, from) = self.at.split_at(middle);
        let nodes = [from, before].into_iter().flat_map(|part| part.chunk_by(|left, right| left.0 == right.0));
        nodes.filter_map(|here| Some((here.first()?.0, here)))
    }

    /// A node without those who could be evicted there, numbered in `here`.
    pub(super) fn without(&self, cluster: &Cluster, id: NodeId, here: &[(NodeId, usize)]) -> Option<Node> {
        let mut node = cluster.node(id)?.clone();
        let victims = here.iter().filter_map(|(_, victim)| self.all.get(*victim));
        let claims: BTreeSet<ClaimId> = victims.flat_map(Victim::claims).collect();
        for claim in claims {
            let at = cluster.allocation(claim).filter(|at| at.node == id);
            if let Some((of, at)) = cluster.claim(claim).zip(at) {
                node.give_back(claim, &of.request, at);
            }
        }
        Some(node)
    }

    /// Whether anybody could be evicted.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many claims of each budget may still be evicted.
    pub(super) fn spare(&self, cluster: &Cluster) -> Vec<u32> {
        self.budgets.iter().map(|(namespace, name)| cluster.spare_of_budget(namespace, name)).collect()
    }

    /// Takes a victim out of what may still be evicted of its budgets, if there is so much.
    pub(super) fn take_from(&self, spare: &mut [u32], victim: usize) -> bool {
        let Some(victim) = self.all.get(victim) else { return false };
        let has = |(budget, members): &(usize, u32)| spare.get(*budget).is_some_and(|spare| spare >= members);
        if !victim.budgets.iter().all(has) {
            return false;
        }
        for (budget, members) in &victim.budgets {
            if let Some(spare) = spare.get_mut(*budget) {
                *spare -= members;
            }
        }
        true
    }

    /// The order in which queues give: the one that is furthest above its share first, from the top of the tree down.
    /// By number of the queue, its place in that order.
    pub(super) fn order_of_queues(&self, cluster: &Cluster, shares: &Shares) -> Vec<usize> {
        if self.queues.len() < 2 {
            return vec![0; self.queues.len()];
        }
        let mut known = BTreeMap::new();
        let mut paths: Vec<(Reverse<Vec<_>>, usize)> = Vec::with_capacity(self.queues.len());
        for (number, queue) in self.queues.iter().enumerate() {
            let mut path: Vec<_> = cluster
                .queues()
                .path(*queue)
                .map(|(id, _)| *known.entry(id).or_insert_with(|| shares.dominant(cluster, id, None)))
                .collect();
            path.reverse();
            paths.push((Reverse(path), number));
        }
        paths.sort_unstable();
        let mut places = vec![0; paths.len()];
        for (place, (_, number)) in paths.into_iter().enumerate() {
            places[number] = place;
        }
        places
    }
}

/// How much is evicted for a unit, measured in what the unit itself wants most: time of devices, else memory of
/// devices, else CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measure(usize);

impl Measure {
    /// The measure for a unit that takes `charge`.
    pub(super) fn of(charge: &Charge) -> Self {
        Self([2, 3].into_iter().find(|number| charge.get(*number) > 0).unwrap_or(0))
    }

    /// The amount that a victim holds.
    pub(super) fn amount(self, victim: &Victim<'_>) -> u64 {
        victim.holds(self.0)
    }

    /// The amount of a charge.
    pub(super) fn of_charge(self, charge: &Charge) -> u64 {
        charge.get(self.0)
    }
}
