//! The victims that an action may take for one unit.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::decisions::shares::{Guarantees, Shares};
use crate::decisions::unit::Rank;
use crate::state::cluster::Cluster;
use crate::state::node::Node;
use crate::state::resources::{CPU, Charge, DEVICE_CORE, DEVICE_MEMORY, MEMORY};
use crate::vocabulary::claim::{ClaimId, NodeId};
use crate::vocabulary::queue_spec::QueueId;

use super::victims::{Victim, Victims};

/// The victims that may be taken for a unit.
pub(super) struct VictimSelection<'a> {
    victims: &'a Victims,
    /// The numbers of the queues that they belong to.
    queues: Vec<usize>,
    /// By number of a queue: whether victims of it may be taken.
    is_of_queues: Vec<bool>,
    takes: Box<dyn Fn(&Victim) -> bool + 'a>,
}

impl<'a> VictimSelection<'a> {
    /// Of the victims of these queues, given by number, those that `takes` allows.
    pub(super) fn new(victims: &'a Victims, queues: Vec<usize>, takes: impl Fn(&Victim) -> bool + 'a) -> Self {
        let mut is_of_queues = vec![false; victims.queues().len()];
        for queue in &queues {
            is_of_queues.iter_mut().skip(*queue).take(1).for_each(|is_of_queues| *is_of_queues = true);
        }
        Self { victims, queues, is_of_queues, takes: Box::new(takes) }
    }

    pub(super) fn get(&self, number: usize) -> Option<&'a Victim> {
        self.victims.get(number)
    }

    pub(super) fn victims(&self) -> &'a Victims {
        self.victims
    }

    /// The queue that a victim belongs to.
    pub(super) fn queue(&self, victim: &Victim) -> Option<QueueId> {
        self.victims.queues().get(victim.queue).copied()
    }

    /// The guarantees of a queue that any of its units among these victims are within.
    pub(super) fn guarantees_of<'b>(&self, queue: QueueId, victims: impl Iterator<Item = &'b Victim>) -> Guarantees {
        let of_queue = victims.filter(|victim| self.queue(victim) == Some(queue));
        of_queue.fold(Guarantees::default(), |all, victim| all.with(victim.guaranteed))
    }

    fn may_take(&self, number: usize) -> bool {
        let is_of_queues = |victim: &Victim| self.is_of_queues.get(victim.queue) == Some(&true);
        self.get(number).is_some_and(|victim| is_of_queues(victim) && (self.takes)(victim))
    }

    /// The numbers of all its victims.
    pub(super) fn all(&self) -> impl Iterator<Item = usize> {
        self.queues.iter().flat_map(|queue| self.victims.of_queue(*queue)).filter(|number| self.may_take(*number))
    }

    /// Whether it has no victims.
    pub(super) fn is_empty(&self) -> bool {
        // Most victims that may be taken are the last ones of their queue.
        let mut last_first = self.queues.iter().flat_map(|queue| self.victims.of_queue(*queue).rev());
        !last_first.any(|number| self.may_take(number))
    }

    /// The nodes with victims, with their victims, from node `start` on and then from the first node.
    pub(super) fn nodes(&self, start: Option<NodeId>) -> impl Iterator<Item = (NodeId, Vec<usize>)> {
        let nodes = self.victims.nodes(start).map(|(node, here)| (node, self.of(here)));
        nodes.filter(|(_, here)| !here.is_empty())
    }

    /// The victims that may be taken on a node.
    pub(super) fn on(&self, node: NodeId) -> impl Iterator<Item = usize> {
        self.victims.on(node).iter().copied().filter(|number| self.may_take(*number))
    }

    fn of(&self, here: &[usize]) -> Vec<usize> {
        here.iter().copied().filter(|number| self.may_take(*number)).collect()
    }

    /// A node without the victims that may be taken there; `None` if there are none.
    pub(super) fn without(&self, cluster: &Cluster, id: NodeId) -> Option<Node> {
        let here: Vec<usize> = self.on(id).collect();
        if here.is_empty() {
            return None;
        }
        let mut node = cluster.node(id)?.clone();
        let claims: BTreeSet<ClaimId> =
            here.iter().filter_map(|number| self.get(*number)).flat_map(Victim::claims).collect();
        for claim in claims {
            let at = cluster.allocation(claim).filter(|at| at.node == id);
            if let Some((of, at)) = cluster.claim(claim).zip(at) {
                node.give_back(claim, &of.request, at);
            }
        }
        Some(node)
    }

    /// The order in which queues give units: the queue furthest above its share first, from the top of the tree down.
    pub(super) fn order_of_queues(&self, cluster: &Cluster, shares: &Shares) -> QueueOrder {
        let mut places = vec![usize::MAX; self.victims.queues().len()];
        if let [only] = self.queues[..] {
            places.iter_mut().skip(only).take(1).for_each(|place| *place = 0);
            return QueueOrder { places };
        }
        let mut known = BTreeMap::new();
        let mut paths: Vec<(Reverse<Vec<_>>, usize)> = Vec::with_capacity(self.queues.len());
        for number in &self.queues {
            let Some(queue) = self.victims.queues().get(*number) else { continue };
            let mut path: Vec<_> = cluster
                .queues()
                .path(*queue)
                .map(|(id, _)| *known.entry(id).or_insert_with(|| shares.dominant(cluster, id)))
                .collect();
            path.reverse();
            paths.push((Reverse(path), *number));
        }
        paths.sort_unstable();
        for (place, (_, number)) in paths.into_iter().enumerate() {
            places[number] = place;
        }
        QueueOrder { places }
    }

    /// The key by which victims are sorted; the least goes first.
    pub(super) fn goes(&self, order: &QueueOrder, victim: usize) -> Option<EvictionKey> {
        let victim = self.get(victim)?;
        Some((order.place(victim.queue)?, Reverse(victim.rank())))
    }
}

/// When a victim goes: its queue's place in the order, and its rank.
pub(super) type EvictionKey = (usize, Reverse<Rank>);

/// The order in which queues give units.
#[derive(Clone, Debug)]
pub(super) struct QueueOrder {
    /// The place of each queue, by the queue's number.
    places: Vec<usize>,
}

impl QueueOrder {
    /// The place of a queue, by its number.
    pub(super) fn place(&self, queue: usize) -> Option<usize> {
        self.places.get(queue).copied()
    }
}

/// How many more claims may be taken of each disruption budget, in one state of the cluster.
#[derive(Debug)]
pub(super) struct Spares<'a> {
    cluster: &'a Cluster,
    victims: &'a Victims,
    known: BTreeMap<usize, u32>,
}

impl<'a> Spares<'a> {
    pub(super) fn new(cluster: &'a Cluster, victims: &'a Victims) -> Self {
        Self { cluster, victims, known: BTreeMap::new() }
    }

    /// Whether the budgets of a victim allow it to go together with some others.
    pub(super) fn allow(&mut self, victim: &Victim, others: impl Iterator<Item = &'a Victim> + Clone) -> bool {
        victim.budgets.iter().all(|(budget, members)| {
            let of_other = |other: &Victim| -> u32 {
                other.budgets.iter().filter(|(number, _)| number == budget).map(|(_, members)| *members).sum()
            };
            let taken = others.clone().map(of_other).fold(*members, u32::saturating_add);
            taken <= self.spare(*budget)
        })
    }

    fn spare(&mut self, budget: usize) -> u32 {
        let Self { cluster, victims, known } = self;
        let spare = |(namespace, name): &(String, String)| cluster.spare_of_budget(namespace, name);
        *known.entry(budget).or_insert_with(|| victims.budget(budget).map_or(0, spare))
    }
}

/// The resource in which the amount that is taken for a unit is measured. It is the unit's most important one: device
/// time, else device memory, else CPU, else memory. `None`: it takes none of these. Then each claim counts 1, whatever
/// it holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Measure(Option<usize>);

impl Measure {
    /// The measure for a unit that takes `charge`.
    pub(super) fn of(charge: &Charge) -> Self {
        Self([DEVICE_CORE, DEVICE_MEMORY, CPU, MEMORY].into_iter().find(|number| charge.get(*number) > 0))
    }

    /// The amount of a charge of this many claims.
    pub(super) fn amount(self, claims: usize, charge: &Charge) -> u64 {
        match self.0 {
            Some(resource) => charge.get(resource),
            None => u64::try_from(claims).unwrap_or(u64::MAX),
        }
    }

    /// The amount that a victim holds.
    pub(super) fn of_victim(self, victim: &Victim) -> u64 {
        self.amount(victim.claims().count(), &victim.charge)
    }
}
