//! Asks a policy for bids, and keeps them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::decisions::placement::class_bids::ClassBids;
use crate::decisions::placement::devices;
use crate::decisions::placement::filter::first_fitting;
use crate::decisions::placement::node_table::NodeTable;
use crate::decisions::placement::peer_wishes::PeerWishes;
use crate::decisions::placement::policy::{NodeChange, Policy, Selection};
use crate::decisions::placement::rank::{Rank, rank, surcharge};
use crate::decisions::placement::room::room;
use crate::decisions::placement::several;
use crate::state::class::{Class, ClassId};
use crate::state::cluster::Cluster;
use crate::state::cluster::peer_rules::PeerRules;
use crate::state::node::Node;
use crate::vocabulary::choices::SingleChoice;
use crate::vocabulary::claim::{Allocation, NodeId};
use crate::vocabulary::mix::Mix;
use crate::vocabulary::request::Request;

/// The most bids that are kept, of all classes together. The bids of the class that was not used for longest go first.
const BIDS_MAX: usize = 1 << 25;
/// The number of classes whose bids are kept whatever the number of nodes.
const CLASSES_MIN: usize = 1024;

/// The place that an engine has chosen.
pub type Placement = Allocation;

/// Finds the best node for a claim by a policy.
///
/// An engine belongs to one cluster's history: it follows that cluster's changes. Its answers about any other cluster
/// would be wrong.
#[derive(Debug)]
pub struct Engine<P> {
    policy: P,
    /// The position in the change log up to which the policy and the table know the cluster; `None`: they know nothing.
    read: Option<u64>,
    /// The turnover that the policy was last told, in eighths.
    turnover: u8,
    table: NodeTable,
    classes: BTreeMap<ClassId, ClassBids>,
    /// The class that has, or last had, each request. A class without claims leaves its bids to the next class with the
    /// same request.
    by_request: BTreeMap<Arc<Request>, ClassId>,
    /// Number of decisions.
    decisions: u64,
}

impl<P: Policy> Engine<P> {
    /// An engine that does not know any cluster yet.
    pub fn new(policy: P) -> Self {
        Self {
            policy,
            read: None,
            turnover: 0,
            table: NodeTable::default(),
            classes: BTreeMap::new(),
            by_request: BTreeMap::new(),
            decisions: 0,
        }
    }

    /// An engine with the same knowledge, for a copy of the cluster.
    pub(crate) fn fork(&self) -> Self
    where
        P: Clone,
    {
        let (read, turnover, table) = (self.read, self.turnover, self.table.clone());
        Self { read, turnover, table, ..Self::new(self.policy.clone()) }
    }

    /// The policy.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// Tells the policy which work is expected from now on.
    pub fn expect(&mut self, mix: &Mix) {
        if self.policy.expect(mix) {
            self.read = None;
            self.classes.values_mut().for_each(ClassBids::forget_costs);
        }
    }

    /// The best place for one more task of a class; `None` if it fits nowhere. Nothing is reserved. Held nodes are
    /// skipped.
    pub fn place(&mut self, cluster: &Cluster, class: ClassId) -> Option<Placement> {
        let request = self.make_bids(cluster, class)?;
        let (rules, wishes) = (PeerRules::of(cluster, request), PeerWishes::of(cluster, request));
        if rules.is_some() || wishes.is_some() {
            let nodes = cluster.nodes().map(|(id, _)| id).filter(|id| allow(&rules, cluster, *id));
            return self.best_of(cluster, class, nodes, wishes.as_ref(), |_| 0);
        }
        let index = self.classes.get_mut(&class)?.index();
        let node = match self.policy.selection() {
            Selection::Least => index.least(|forgone| self.policy.surcharge(forgone))?,
            Selection::Uniform => {
                let fitting = u64::try_from(index.count()).ok().filter(|count| *count > 0)?;
                index.nth(usize::try_from(self.policy.draw(fitting)).ok()?)?
            }
        };
        let node = NodeId(u32::try_from(node).ok()?);
        self.placement_on(cluster, class, node)
    }

    /// The best place for one more task of a class among these nodes; `None` if it fits on none of them. The order of
    /// preference is that of [`Engine::place`]. Held nodes are skipped, too: the group that holds a node must open it
    /// first.
    pub fn place_among(
        &mut self,
        cluster: &Cluster,
        class: ClassId,
        nodes: impl IntoIterator<Item = NodeId>,
    ) -> Option<Placement> {
        self.place_ranked(cluster, class, nodes, |_| 0)
    }

    /// Like [`Engine::place_among`], but a node of lower rank goes first whatever the policy's cost.
    pub(super) fn place_ranked(
        &mut self,
        cluster: &Cluster,
        class: ClassId,
        nodes: impl IntoIterator<Item = NodeId>,
        rank: impl Fn(NodeId) -> u32,
    ) -> Option<Placement> {
        let request = self.make_bids(cluster, class)?;
        let (rules, wishes) = (PeerRules::of(cluster, request), PeerWishes::of(cluster, request));
        let nodes = nodes.into_iter().filter(|id| allow(&rules, cluster, *id));
        self.best_of(cluster, class, nodes, wishes.as_ref(), rank)
    }

    /// The best of these nodes by the class's bids, which must be up to date, and by the wishes about peers.
    fn best_of(
        &mut self,
        cluster: &Cluster,
        class: ClassId,
        nodes: impl Iterator<Item = NodeId>,
        wishes: Option<&PeerWishes<'_>>,
        rank: impl Fn(NodeId) -> u32,
    ) -> Option<Placement> {
        let bids = self.classes.get(&class)?;
        let fitting = nodes.filter_map(|id| Some((id, bids.get(id.index())?)));
        let fitting =
            fitting.map(|(id, (of_node, bid))| ((rank(id), of_node + distance(wishes, cluster, id)), bid, id));
        let node = match self.policy.selection() {
            Selection::Least => fitting.map(|(rank, bid, id)| (rank, total(&self.policy, bid), id)).min()?.2,
            Selection::Uniform => {
                let fitting: BTreeSet<((u32, Rank), NodeId)> = fitting.map(|(rank, _, id)| (rank, id)).collect();
                let least = fitting.first()?.0;
                let count = fitting.iter().take_while(|(rank, _)| *rank == least).count();
                let drawn = self.policy.draw(u64::try_from(count).ok()?);
                fitting.into_iter().nth(usize::try_from(drawn).ok()?)?.1
            }
        };
        self.placement_on(cluster, class, node)
    }

    /// The number of nodes on which one more task of a class fits.
    pub fn choices(&mut self, cluster: &Cluster, class: ClassId) -> usize {
        let Some((request, bids)) = self.bids(cluster, class) else { return 0 };
        match PeerRules::of(cluster, request) {
            None => bids.count(),
            rules => bids.fitting(cluster).filter(|id| allow(&rules, cluster, *id)).count(),
        }
    }

    /// Whether one more task of a class fits anywhere.
    pub(crate) fn has_room(&mut self, cluster: &Cluster, class: ClassId) -> bool {
        let Some((request, bids)) = self.bids(cluster, class) else { return false };
        match PeerRules::of(cluster, request) {
            None => !bids.is_empty(),
            rules => bids.fitting(cluster).any(|id| allow(&rules, cluster, id)),
        }
    }

    /// How many more tasks of a class fit on these nodes together, without other tasks, with at most `most` on each.
    /// Held nodes have no room. Neither have nodes that rules about peers close whatever else is placed.
    pub fn room_among(
        &mut self,
        cluster: &Cluster,
        class: ClassId,
        nodes: impl IntoIterator<Item = NodeId>,
        most: impl Fn(NodeId) -> u32,
    ) -> u64 {
        let Some((request, bids)) = self.bids(cluster, class) else { return 0 };
        let rules = PeerRules::of(cluster, request);
        let is_closed = |node: &Node| rules.as_ref().is_some_and(|rules| rules.lasting_misfit(node.spec()).is_some());
        // Most nodes without a bid have no room, so their devices need not be looked at.
        let fitting = nodes.into_iter().filter(|node| bids.get(node.index()).is_some());
        let open = fitting.filter_map(|id| Some((id, cluster.node(id).filter(|node| !is_closed(node))?)));
        let rooms = open.map(|(id, node)| u64::from(room(node, request).min(most(id))));
        rooms.fold(0, u64::saturating_add)
    }

    /// The cost of placing one more task of a class on a node, for comparing nodes in the present state. `None` if it
    /// does not fit there or the node is held.
    pub fn cost_on(&mut self, cluster: &Cluster, class: ClassId, node: NodeId) -> Option<i64> {
        let request = self.make_bids(cluster, class)?;
        let (rank, bid) = self.classes.get(&class)?.get(node.index())?;
        if !allow(&PeerRules::of(cluster, request), cluster, node) {
            return None;
        }
        let distance = distance(PeerWishes::of(cluster, request).as_ref(), cluster, node);
        Some(surcharge(rank + distance) + total(&self.policy, bid))
    }

    /// The place that a task with this request would take on a node if the node were `as_if`, and its cost in the unit
    /// of [`Engine::cost_on`], but without wishes about peers. `None` if it would not fit.
    pub(crate) fn choose_if(&self, node: NodeId, as_if: &Node, request: &Request) -> Option<(i64, Allocation)> {
        self.choose(node, as_if, &first_fitting(as_if, request)?)
    }

    /// Like [`Engine::choose_if`], for one of a task's choices.
    pub(crate) fn choose(&self, node: NodeId, as_if: &Node, choice: &SingleChoice<'_>) -> Option<(i64, Allocation)> {
        let bid = several::bid(&self.policy, node, as_if, &choice.request);
        let devices = devices::chosen(as_if, &choice.request, bid.choice)?;
        let rank = rank(choice.rank, &choice.request, as_if);
        let cost = surcharge(rank) + total(&self.policy, (bid.cost, bid.forgone));
        Some((cost, Allocation { node, devices, alternative: choice.number }))
    }

    /// A class's request and its up-to-date bids.
    fn bids<'a>(&'a mut self, cluster: &'a Cluster, class: ClassId) -> Option<(&'a Request, &'a ClassBids)> {
        let request = self.make_bids(cluster, class)?;
        Some((request, self.classes.get(&class)?))
    }

    /// Brings the class's bids up to date. Returns its request; `None` if there is no such class.
    fn make_bids<'a>(&mut self, cluster: &'a Cluster, class: ClassId) -> Option<&'a Request> {
        self.follow(cluster);
        self.decisions += 1;
        let request = cluster.class(class)?.request();
        if !self.classes.contains_key(&class) {
            self.take_up(cluster, class);
        }
        let bids = self.classes.get_mut(&class)?;
        bids.follow(cluster, &self.table, request, &self.policy, self.decisions);
        Some(request)
    }

    /// Begins with a class that has no bids yet. If a class with the same request had some, it takes them over.
    fn take_up(&mut self, cluster: &Cluster, class: ClassId) {
        let Some(request) = cluster.class(class).map(Class::shared_request) else { return };
        let before = self.by_request.get(request).and_then(|before| self.classes.remove(before));
        self.forget_oldest(cluster);
        self.by_request.insert(Arc::clone(request), class);
        self.classes.insert(class, before.unwrap_or_default());
    }

    /// The devices that the policy takes on a node, as a placement.
    fn placement_on(&self, cluster: &Cluster, class: ClassId, node: NodeId) -> Option<Placement> {
        let (books, request) = (cluster.node(node)?, cluster.class(class)?.request());
        self.choose(node, books, &first_fitting(books, request)?).map(|(_, allocation)| allocation)
    }

    /// Tells the policy and the table which nodes have changed.
    fn follow(&mut self, cluster: &Cluster) {
        self.table.grow(cluster.node_slots());
        let end = cluster.changes().end();
        let mut all_changed = false;
        match self.read.and_then(|read| Some((read, cluster.changes().since(read)?))) {
            Some((read, changes)) => {
                for (position, change) in (read + 1..).zip(changes) {
                    all_changed |= self.tell(cluster, change.node, change.spec, position);
                }
            }
            None => {
                for index in 0..cluster.node_slots() {
                    let Ok(id) = u32::try_from(index).map(NodeId) else { break };
                    all_changed |= self.tell(cluster, id, true, end);
                }
            }
        }
        self.read = Some(end);
        if cluster.turnover() != self.turnover {
            self.turnover = cluster.turnover();
            all_changed |= self.policy.turnover(self.turnover);
        }
        if all_changed {
            self.classes.values_mut().for_each(ClassBids::forget_costs);
        }
    }

    fn tell(&mut self, cluster: &Cluster, id: NodeId, spec: bool, position: u64) -> bool {
        let node = cluster.node(id);
        self.table.note(id, node, spec, position);
        self.policy.node_changed(NodeChange { id, node, spec })
    }

    /// Forgets the bids that were not used for longest, to make room for those of another class.
    fn forget_oldest(&mut self, cluster: &Cluster) {
        let classes_max = (BIDS_MAX / cluster.node_slots().max(1)).max(CLASSES_MIN);
        if self.classes.len() < classes_max {
            return;
        }
        self.classes.retain(|class, _| cluster.class(*class).is_some());
        if self.classes.len() >= classes_max {
            let oldest = self.classes.iter().min_by_key(|(_, bids)| bids.used()).map(|(class, _)| *class);
            oldest.map(|class| self.classes.remove(&class));
        }
        self.by_request.retain(|_, class| self.classes.contains_key(class));
    }
}

/// Whether the rules about peers, if there are any, allow a task on a node.
fn allow(rules: &Option<PeerRules<'_>>, cluster: &Cluster, id: NodeId) -> bool {
    rules.as_ref().is_none_or(|rules| cluster.node(id).is_some_and(|node| rules.admit(node.spec())))
}

/// How far a node is from the wishes about peers; 0 if there are none.
fn distance(wishes: Option<&PeerWishes<'_>>, cluster: &Cluster, id: NodeId) -> Rank {
    wishes.zip(cluster.node(id)).map_or(0, |(wishes, node)| wishes.distance(node.spec()))
}

/// A bid's cost plus the surcharge for what is forgone.
fn total(policy: &impl Policy, (cost, forgone): (i32, u8)) -> i64 {
    let surcharge = if forgone == 0 { 0 } else { policy.surcharge(forgone) };
    i64::from(cost) + i64::from(surcharge)
}
