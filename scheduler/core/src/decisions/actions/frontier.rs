//! The nodes that have victims, in order of the least disruption that they promise. They are kept from one unit to the
//! next. Without that, each of a thousand preemptions would look at everything that runs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::decisions::placement::admits;
use crate::decisions::unit::Rank;
use crate::state::class::ClassId;
use crate::state::cluster::Cluster;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::request::Request;

use super::least_disruption::Disruption;
use super::search::looks;
use super::selection::{Measure, QueueOrder, VictimSelection};
use super::takes::Takes;
use super::victims::Victim;

/// Whether tasks with this request may run on a node at all.
pub(super) fn may_run(cluster: &Cluster, id: NodeId, request: &Request) -> bool {
    cluster.node(id).is_some_and(|node| admits(node.spec(), request).is_ok())
}

/// The class that room is for, and the victims that may be taken: with the same purpose, nodes promise the same.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Purpose {
    pub(super) class: ClassId,
    pub(super) measure: Measure,
    pub(super) takes: Takes,
}

/// The frontiers of the recent purposes of a cycle.
#[derive(Debug, Default)]
pub(super) struct Frontiers {
    by_purpose: BTreeMap<Purpose, Frontier>,
}

/// The most nodes in all frontiers together, for each victim. Beyond that, all frontiers are forgotten and made again
/// as needed.
const NODES_PER_VICTIM: usize = 4;

impl Frontiers {
    /// The up-to-date frontier of a purpose. `selection` has the victims that the purpose takes.
    pub(super) fn get(&mut self, cluster: &Cluster, selection: &VictimSelection<'_>, purpose: &Purpose) -> &Frontier {
        if !self.by_purpose.contains_key(purpose) {
            let nodes: usize = self.by_purpose.values().map(|frontier| frontier.nodes.len()).sum();
            if nodes > selection.victims().len() * NODES_PER_VICTIM {
                self.by_purpose.clear();
            }
        }
        let frontier = self.by_purpose.entry(purpose.clone()).or_default();
        frontier.follow(cluster, selection, purpose);
        frontier
    }
}

/// The nodes that admit tasks of a class and have victims for it.
#[derive(Debug, Default)]
pub(super) struct Frontier {
    /// How many of the victims' changes it includes; `None`: it has not been made yet.
    known: Option<usize>,
    nodes: BTreeMap<NodeId, Promise>,
    /// The cost of a look at all of them.
    looks: usize,
    best_first: BTreeMap<Promised, ByQueue>,
}

/// The least disruption that is possible on a node: running units, priority and held amount, each the least over all
/// victims there.
type Promised = (usize, i32, u64);

/// For each queue that has victims on these nodes, by number: the rank of its victim that goes first, and the node.
type ByQueue = BTreeMap<usize, BTreeSet<(Reverse<Rank>, NodeId)>>;

/// What a node promises at best.
#[derive(PartialEq, Eq, Debug)]
struct Promise {
    promised: Promised,
    /// By number of the queue: the rank of its victim that goes first.
    first_of: BTreeMap<usize, Rank>,
    looks: usize,
}

impl Promise {
    fn of(cluster: &Cluster, selection: &VictimSelection<'_>, purpose: &Purpose, node: NodeId) -> Option<Self> {
        let request = cluster.class(purpose.class)?.request();
        let here: Vec<&Victim> = selection.on(node).filter_map(|number| selection.get(number)).collect();
        if here.is_empty() || !may_run(cluster, node, request) {
            return None;
        }
        let promised = (
            here.iter().map(|victim| victim.running).min()?,
            here.iter().map(|victim| victim.rank().priority.0).min()?,
            here.iter().map(|victim| purpose.measure.of_victim(victim)).min()?,
        );
        let mut first_of: BTreeMap<usize, Rank> = BTreeMap::new();
        for victim in &here {
            let first = first_of.entry(victim.queue).or_insert(victim.rank());
            *first = victim.rank().max(*first);
        }
        Some(Self { promised, first_of, looks: looks(here.len()) })
    }
}

impl Frontier {
    /// Updates the frontier with the victims' changes.
    fn follow(&mut self, cluster: &Cluster, selection: &VictimSelection<'_>, purpose: &Purpose) {
        let victims = selection.victims();
        let changed: BTreeSet<NodeId> = match self.known {
            Some(known) => victims.changes(known).iter().copied().collect(),
            None => selection.all().filter_map(|number| selection.get(number)).flat_map(Victim::nodes).collect(),
        };
        self.known = Some(victims.changes(0).len());
        for node in changed {
            self.forget(node);
            if let Some(promise) = Promise::of(cluster, selection, purpose, node) {
                self.enter(node, promise);
            }
        }
        debug_assert!(self.is_as_made_anew(cluster, selection, purpose), "nothing has changed without being noted");
    }

    fn enter(&mut self, node: NodeId, promise: Promise) {
        self.looks += promise.looks;
        let by_queue = self.best_first.entry(promise.promised).or_default();
        for (queue, rank) in &promise.first_of {
            by_queue.entry(*queue).or_default().insert((Reverse(*rank), node));
        }
        self.nodes.insert(node, promise);
    }

    fn forget(&mut self, node: NodeId) {
        let Some(promise) = self.nodes.remove(&node) else { return };
        self.looks -= promise.looks;
        let Some(by_queue) = self.best_first.get_mut(&promise.promised) else { return };
        for (queue, rank) in &promise.first_of {
            let Some(of_queue) = by_queue.get_mut(queue) else { continue };
            of_queue.remove(&(Reverse(*rank), node));
            if of_queue.is_empty() {
                by_queue.remove(queue);
            }
        }
        if by_queue.is_empty() {
            self.best_first.remove(&promise.promised);
        }
    }

    fn is_as_made_anew(&self, cluster: &Cluster, selection: &VictimSelection<'_>, purpose: &Purpose) -> bool {
        let nodes = selection.nodes(None).map(|(node, _)| node);
        let anew = nodes.filter_map(|node| Some((node, Promise::of(cluster, selection, purpose, node)?)));
        self.nodes == anew.collect::<BTreeMap<NodeId, Promise>>()
    }

    /// The number of nodes that are not kept for a group, and the cost of a look at all of them.
    pub(super) fn open(&self, cluster: &Cluster) -> (usize, usize) {
        let held = cluster.held_nodes().filter_map(|node| self.nodes.get(&node));
        held.fold((self.nodes.len(), self.looks), |(nodes, looks), held| (nodes - 1, looks - held.looks))
    }

    /// The nodes in the order of their numbers.
    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.keys().copied()
    }

    /// The nodes, each with the least disruption that is possible there, the best first. A node on which several queues
    /// have victims comes once for each of them; only the first time counts.
    pub(super) fn best_first<'a>(&'a self, order: &'a QueueOrder) -> impl Iterator<Item = (Disruption, NodeId)> + 'a {
        self.best_first.iter().flat_map(move |((running, priority, amount), by_queue)| {
            let mut queues: Vec<(Option<usize>, &BTreeSet<_>)> =
                by_queue.iter().map(|(queue, of_queue)| (order.place(*queue), of_queue)).collect();
            queues.sort_unstable_by_key(|(place, _)| *place);
            let ranked = queues.into_iter().flat_map(|(place, of_queue)| {
                of_queue.iter().map(move |(rank, node)| (place.map(|place| (place, *rank)), *node))
            });
            ranked.map(move |(last, node)| (Disruption::at_least(*running, *priority, *amount, last), node))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::decisions::entitled::EntitledSets;
    use crate::decisions::placement::{BestFit, Engine, Policy};
    use crate::decisions::shares::{Right, Shares};
    use crate::state::group::Group;
    use crate::state::resources::Charge;
    use crate::vocabulary::allowance::Allowance;
    use crate::vocabulary::claim::{Allocation, Claim, DeviceAllocation};
    use crate::vocabulary::device_request::DeviceRequest;
    use crate::vocabulary::event::{Event, Outcome};
    use crate::vocabulary::quantity::{Bytes, DeviceCore};
    use crate::vocabulary::queue_spec::{QueueId, QueueSpec};
    use crate::vocabulary::resource::Resource;
    use crate::vocabulary::spec::{DeviceSpec, NodeSpec};

    use super::super::least_disruption::Question;
    use super::super::selection::Spares;
    use super::super::victims::{Fate, Victims};

    const QUEUES: usize = 3;
    const NODES: usize = 4;
    const DEVICES: u16 = 4;

    /// A cluster in which `running` says, by node and device, the queue and priority of the claim that runs there.
    fn world(running: &[Option<(usize, i32)>]) -> (Cluster, Vec<QueueId>) {
        let mut cluster = Cluster::new();
        let mut apply = |event| cluster.apply(event).unwrap_or_else(|error| panic!("{error}"));
        for queue in 0..QUEUES {
            let none = Allowance { quota: Some(0), ..Allowance::default() };
            let allowances = BTreeMap::from([(Resource::DeviceCore, none)]);
            apply(Event::QueueAdded(QueueSpec { name: queue.to_string(), allowances, ..QueueSpec::default() }));
        }
        for node in 0..NODES {
            let devices = vec![DeviceSpec::default(); usize::from(DEVICES)];
            apply(Event::NodeAdded(NodeSpec { name: node.to_string(), devices, ..NodeSpec::default() }));
        }
        let request = Request { devices: DeviceRequest::whole(1), ..Request::default() };
        let places = (0..).map(NodeId).take(NODES).flat_map(|node| (0..DEVICES).map(move |device| (node, device)));
        for ((node, device), running) in places.zip(running) {
            let Some((queue, priority)) = *running else { continue };
            let (queue, request) = (queue.to_string(), request.clone());
            let claim = Claim { queue, priority, request, preemptible: true, ..Claim::default() };
            let Outcome::Claim(claim) = apply(Event::ClaimAdded(claim)) else { panic!("not a claim") };
            let devices = vec![DeviceAllocation { device, core: DeviceCore::WHOLE, memory: Bytes::ZERO }];
            apply(Event::ClaimPlaced(claim, Allocation { node, devices, alternative: 0 }));
        }
        let queues = (0..QUEUES).map(|queue| cluster.queue_named(&queue.to_string()).expect("it was added"));
        let queues = queues.collect();
        (cluster, queues)
    }

    proptest! {
        #[test]
        fn nodes_come_in_the_order_of_what_they_promise(
            running in vec(proptest::option::weighted(0.8, (0..QUEUES, 0i32..2)), NODES * usize::from(DEVICES)),
            ends in vec(any::<proptest::sample::Index>(), 0..6),
        ) {
            let (mut cluster, queues) = world(&running);
            let request = Request { devices: DeviceRequest::whole(2), ..Request::default() };
            let asked = Event::ClaimAdded(Claim { request: request.clone(), ..Claim::default() });
            let Ok(Outcome::Claim(claim)) = cluster.apply(asked) else { panic!("not a claim") };
            let shares = Shares::of(&cluster, 0);
            let (mut sets, mut victims) = (EntitledSets::default(), Victims::new(Fate::Evicted));
            queues.iter().for_each(|queue| victims.know(&cluster, sets.know(&cluster, &shares, *queue), *queue));
            let takes = Takes::Reclaim { right: Right::FairShare, gives: vec![vec![2]; QUEUES], own: None };
            let class = cluster.class_of(claim).expect("it was added");
            let purpose = Purpose { class, measure: Measure::of(&Charge::default()), takes };
            let mut frontiers = Frontiers::default();
            let placed: Vec<_> = cluster.claims().filter(|(.., at)| at.is_some()).map(|(id, ..)| id).collect();
            let ended = ends.iter().filter(|_| !placed.is_empty()).map(|end| placed[end.index(placed.len())]);
            for ended in std::iter::once(None).chain(ended.map(Some)) {
                if let Some(claim) = ended.filter(|claim| cluster.evict(*claim).is_ok()) {
                    let group = cluster.group_of(claim).expect("it was added");
                    let queue = cluster.group(group).map(Group::queue).expect("it is there");
                    let groups = BTreeSet::from([group]);
                    let others = sets.update(&cluster, queue, &groups);
                    victims.update(&cluster, sets.know(&cluster, &shares, queue), queue, &groups, &others);
                }
                let takes = |victim: &Victim| purpose.takes.allows(victim);
                let selection = VictimSelection::new(&victims, purpose.takes.queues(), takes);
                let order = selection.order_of_queues(&cluster, &shares);
                let engine = Engine::new(Box::new(BestFit) as Box<dyn Policy>);
                let question = Question {
                    cluster: &cluster,
                    selection: &selection,
                    request: &request,
                    engine: &engine,
                    measure: purpose.measure,
                    order: &order,
                    spares: Spares::new(&cluster, &victims),
                    rules: None,
                };
                let mut all: Vec<(Option<Disruption>, NodeId)> =
                    selection.nodes(None).map(|(node, here)| (question.least(&here), node)).collect();
                all.sort_unstable();
                let frontier = frontiers.get(&cluster, &selection, &purpose);
                let mut seen = BTreeSet::new();
                let found = frontier.best_first(&order).filter(|(_, node)| seen.insert(*node));
                let found: Vec<_> = found.map(|(least, node)| (Some(least), node)).collect();
                let looks_of_all = selection.nodes(None).map(|(_, here)| looks(here.len())).sum();
                prop_assert_eq!(frontier.open(&cluster), (all.len(), looks_of_all));
                prop_assert_eq!(found, all);
            }
        }
    }
}
