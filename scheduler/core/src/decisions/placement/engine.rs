//! Asks a policy, and remembers what it said.

use std::collections::{BTreeMap, BTreeSet};

use crate::decisions::placement::devices;
use crate::decisions::placement::filter::has_room;
use crate::decisions::placement::index::BidIndex;
use crate::decisions::placement::misfit::admits;
use crate::decisions::placement::peer_rules::PeerRules;
use crate::decisions::placement::policy::{Bid, NodeChange, Policy, Selection};
use crate::decisions::placement::room::room;
use crate::state::class::ClassId;
use crate::state::cluster::Cluster;
use crate::state::node::Node;
use crate::vocabulary::claim::{Allocation, NodeId};
use crate::vocabulary::mix::Mix;
use crate::vocabulary::request::Request;

/// Bids that are kept at most, of all classes together; those of classes that were not asked for longest go first.
const BIDS_MAX: usize = 1 << 25;
/// Classes whose bids are kept however many nodes there are.
const CLASSES_MIN: usize = 1024;

/// A decision.
pub type Placement = Allocation;

/// Finds the best node for a claim by a policy.
///
/// An engine belongs to one cluster's history: it follows the cluster's changes, and asked about another cluster it
/// would answer nonsense.
#[derive(Debug)]
pub struct Engine<P> {
    policy: P,
    /// How far the policy knows the cluster's changes; `None`: not at all.
    read: Option<u64>,
    /// The turnover that the policy was told last.
    turnover: u8,
    classes: BTreeMap<ClassId, ClassBids>,
    /// Number of decisions.
    decisions: u64,
    /// The decision at which each node was last looked at.
    looked_at: Vec<u64>,
}

/// A class's bids.
#[derive(Debug, Default)]
struct ClassBids {
    index: BidIndex,
    /// Nodes on which the class's tasks may run at all and that are not held, one bit each.
    admitted: Vec<u64>,
    /// How far the bids follow the cluster's changes; `None`: not at all.
    read: Option<u64>,
    /// The decision for which they were last asked.
    used: u64,
}

impl<P: Policy> Engine<P> {
    /// An engine that knows nothing of any cluster yet.
    pub fn new(policy: P) -> Self {
        Self { policy, read: None, turnover: 0, classes: BTreeMap::new(), decisions: 0, looked_at: Vec::new() }
    }

    /// An engine that knows as much, for a copy of the cluster.
    pub(crate) fn fork(&self) -> Self
    where
        P: Clone,
    {
        Self { read: self.read, turnover: self.turnover, ..Self::new(self.policy.clone()) }
    }

    /// The policy.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// Tells the policy what work is expected from now on.
    pub fn expect(&mut self, mix: &Mix) {
        if self.policy.expect(mix) {
            self.read = None;
            self.classes.clear();
        }
    }

    /// Where one more task of a class should go; `None` if it fits nowhere. Nothing is reserved. Held nodes are passed
    /// over.
    pub fn place(&mut self, cluster: &Cluster, class: ClassId) -> Option<Placement> {
        let request = self.make_bids(cluster, class)?;
        if let rules @ Some(_) = PeerRules::of(cluster, request) {
            let nodes = cluster.nodes().map(|(id, _)| id).filter(|id| allow(&rules, cluster, *id));
            return self.best_of(cluster, class, nodes, |_| 0);
        }
        let index = &self.classes.get(&class)?.index;
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

    /// Where one more task of a class should go if only these nodes are open to it; `None` if it fits on none of them.
    /// The order of preference is that of [`Engine::place`], and held nodes are passed over too: who holds one releases
    /// it before.
    pub fn place_among(
        &mut self,
        cluster: &Cluster,
        class: ClassId,
        nodes: impl IntoIterator<Item = NodeId>,
    ) -> Option<Placement> {
        self.place_ranked(cluster, class, nodes, |_| 0)
    }

    /// The same, but a node of lower rank goes first whatever the policy says.
    pub(super) fn place_ranked(
        &mut self,
        cluster: &Cluster,
        class: ClassId,
        nodes: impl IntoIterator<Item = NodeId>,
        rank: impl Fn(NodeId) -> u32,
    ) -> Option<Placement> {
        let request = self.make_bids(cluster, class)?;
        let rules = PeerRules::of(cluster, request);
        self.best_of(cluster, class, nodes.into_iter().filter(|id| allow(&rules, cluster, *id)), rank)
    }

    /// The best of these nodes by the class's bids, which are as the cluster is now.
    fn best_of(
        &mut self,
        cluster: &Cluster,
        class: ClassId,
        nodes: impl Iterator<Item = NodeId>,
        rank: impl Fn(NodeId) -> u32,
    ) -> Option<Placement> {
        let index = &self.classes.get(&class)?.index;
        let fitting = nodes.filter_map(|id| Some((rank(id), index.get(id.index())?, id)));
        let node = match self.policy.selection() {
            Selection::Least => fitting.map(|(rank, bid, id)| (rank, total(&self.policy, bid), id)).min()?.2,
            Selection::Uniform => {
                let fitting: BTreeSet<(u32, NodeId)> = fitting.map(|(rank, _, id)| (rank, id)).collect();
                let least = fitting.first()?.0;
                let count = fitting.iter().take_while(|(rank, _)| *rank == least).count();
                let drawn = self.policy.draw(u64::try_from(count).ok()?);
                fitting.into_iter().nth(usize::try_from(drawn).ok()?)?.1
            }
        };
        self.placement_on(cluster, class, node)
    }

    /// On how many nodes one more task of a class fits.
    pub fn choices(&mut self, cluster: &Cluster, class: ClassId) -> usize {
        let Some((request, bids)) = self.bids(cluster, class) else { return 0 };
        match PeerRules::of(cluster, request) {
            None => bids.index.count(),
            rules => bids.fitting(cluster).filter(|id| allow(&rules, cluster, *id)).count(),
        }
    }

    /// Whether one more task of a class fits anywhere.
    pub(crate) fn has_room(&mut self, cluster: &Cluster, class: ClassId) -> bool {
        let Some((request, bids)) = self.bids(cluster, class) else { return false };
        match PeerRules::of(cluster, request) {
            None => !bids.index.is_empty(),
            rules => bids.fitting(cluster).any(|id| allow(&rules, cluster, id)),
        }
    }

    /// How many more tasks of a class fit on these nodes together, by themselves, with at most `most` on each. Held
    /// nodes have no room, nor have those that rules about peers close however many others are placed.
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
        // Most nodes have no bid because they have no room: that is known without looking at their devices.
        let fitting = nodes.into_iter().filter(|node| bids.index.get(node.index()).is_some());
        let open = fitting.filter_map(|id| Some((id, cluster.node(id).filter(|node| !is_closed(node))?)));
        let rooms = open.map(|(id, node)| u64::from(room(node, request).min(most(id))));
        rooms.fold(0, u64::saturating_add)
    }

    /// What it costs to place one more task of a class on a node, by which nodes can be compared in this state; `None`
    /// if it does not fit there or the node is held.
    pub fn cost_on(&mut self, cluster: &Cluster, class: ClassId, node: NodeId) -> Option<i64> {
        let request = self.make_bids(cluster, class)?;
        let bid = self.classes.get(&class)?.index.get(node.index())?;
        if !allow(&PeerRules::of(cluster, request), cluster, node) {
            return None;
        }
        Some(total(&self.policy, bid))
    }

    /// What it would cost to place a task of this request on a node, if the node were `as_if`, in the unit of
    /// [`Engine::cost_on`], and where it would be; `None` if it would not fit.
    pub(crate) fn choose_if(&self, node: NodeId, as_if: &Node, request: &Request) -> Option<(i64, Allocation)> {
        let bid = self.policy.bid(node, as_if, request);
        let devices = devices::chosen(as_if, request, bid.choice)?;
        Some((total(&self.policy, (bid.cost, bid.forgone)), Allocation { node, devices }))
    }

    /// A class's request, and its bids as the cluster is now.
    fn bids<'a>(&'a mut self, cluster: &'a Cluster, class: ClassId) -> Option<(&'a Request, &'a ClassBids)> {
        let request = self.make_bids(cluster, class)?;
        Some((request, self.classes.get(&class)?))
    }

    /// Brings the class's bids up to what the cluster is now. Answers its request; `None` if there is no such class.
    fn make_bids<'a>(&mut self, cluster: &'a Cluster, class: ClassId) -> Option<&'a Request> {
        self.follow(cluster);
        self.decisions += 1;
        let request = cluster.class(class)?.request();
        self.forget_oldest(cluster, class);
        self.looked_at.resize(cluster.node_slots(), 0);
        let bids = self.classes.entry(class).or_default();
        bids.used = self.decisions;
        bids.follow(cluster, request, &self.policy, &mut self.looked_at);
        Some(request)
    }

    /// The devices that the policy takes on a node.
    fn placement_on(&self, cluster: &Cluster, class: ClassId, node: NodeId) -> Option<Placement> {
        let (books, request) = (cluster.node(node)?, cluster.class(class)?.request());
        let choice = self.policy.bid(node, books, request).choice;
        Some(Allocation { node, devices: devices::chosen(books, request, choice)? })
    }

    /// Tells the policy what has changed.
    fn follow(&mut self, cluster: &Cluster) {
        let mut all_changed = false;
        match self.read.and_then(|read| cluster.changes().since(read)) {
            Some(changes) => {
                for change in changes {
                    all_changed |= self.tell(cluster, change.node, change.spec);
                }
            }
            None => {
                for index in 0..cluster.node_slots() {
                    let Ok(id) = u32::try_from(index).map(NodeId) else { break };
                    all_changed |= self.tell(cluster, id, true);
                }
            }
        }
        self.read = Some(cluster.changes().end());
        if cluster.turnover() != self.turnover {
            self.turnover = cluster.turnover();
            all_changed |= self.policy.turnover(self.turnover);
        }
        if all_changed {
            self.classes.clear();
        }
    }

    fn tell(&mut self, cluster: &Cluster, id: NodeId, spec: bool) -> bool {
        self.policy.node_changed(NodeChange { id, node: cluster.node(id), spec })
    }

    /// Makes room for the bids of another class.
    fn forget_oldest(&mut self, cluster: &Cluster, but: ClassId) {
        let classes_max = (BIDS_MAX / cluster.node_slots().max(1)).max(CLASSES_MIN);
        if self.classes.len() < classes_max || self.classes.contains_key(&but) {
            return;
        }
        self.classes.retain(|class, _| cluster.class(*class).is_some());
        if self.classes.len() >= classes_max {
            let oldest = self.classes.iter().min_by_key(|(_, bids)| bids.used).map(|(class, _)| *class);
            oldest.map(|class| self.classes.remove(&class));
        }
    }
}

/// Whether rules about peers, if there are any, let a task be on a node.
fn allow(rules: &Option<PeerRules<'_>>, cluster: &Cluster, id: NodeId) -> bool {
    rules.as_ref().is_none_or(|rules| cluster.node(id).is_some_and(|node| rules.admit(node.spec())))
}

/// A bid's cost with what is added for what is forgone.
fn total(policy: &impl Policy, (cost, forgone): (i32, u8)) -> i64 {
    let surcharge = if forgone == 0 { 0 } else { policy.surcharge(forgone) };
    i64::from(cost) + i64::from(surcharge)
}

/// What is added to a cost where devices cannot be had as a task prefers them: more than any policy's cost, so that a
/// node where they can be had goes first.
const NOT_BY_NVLINK: i32 = 1 << 30;
const NOT_ON_ONE_SWITCH: i32 = 1 << 29;
/// Costs are clipped to this for tasks with such preferences.
const COST_MAX: i32 = (1 << 28) - 1;

/// The cost of a bid for a task that prefers or requires devices near each other.
fn aligned_cost(bid: &Bid, node: &Node, request: &Request) -> i32 {
    let misses = devices::misses(node, request, bid.choice).unwrap_or_default();
    let mut cost = bid.cost.clamp(-COST_MAX, COST_MAX);
    if misses.nvlink {
        cost += NOT_BY_NVLINK;
    }
    if misses.switch {
        cost += NOT_ON_ONE_SWITCH;
    }
    cost
}

impl ClassBids {
    /// The nodes that have a bid.
    fn fitting(&self, cluster: &Cluster) -> impl Iterator<Item = NodeId> {
        let nodes = cluster.nodes().map(|(id, _)| id);
        nodes.filter(|id| self.index.get(id.index()).is_some())
    }

    /// Makes the bids anew on what has changed. `looked_at` holds no later decision than the one that is being made,
    /// whose number is `self.used`.
    fn follow(&mut self, cluster: &Cluster, request: &Request, policy: &impl Policy, looked_at: &mut [u64]) {
        let slots = cluster.node_slots();
        self.index.grow(slots);
        self.admitted.resize(slots.div_ceil(64), 0);
        match self.read.and_then(|read| cluster.changes().since(read)) {
            Some(changes) => {
                for change in changes {
                    let Some(looked_at) = looked_at.get_mut(change.node.index()) else { continue };
                    // A node that has changed several times is looked at once, as it is now.
                    if std::mem::replace(looked_at, self.used) == self.used && !change.spec {
                        continue;
                    }
                    self.update(cluster, change.node, change.spec, request, policy);
                }
            }
            None => {
                for index in 0..slots {
                    let Ok(id) = u32::try_from(index).map(NodeId) else { break };
                    self.update(cluster, id, true, request, policy);
                }
            }
        }
        self.read = Some(cluster.changes().end());
    }

    fn update(&mut self, cluster: &Cluster, id: NodeId, spec: bool, request: &Request, policy: &impl Policy) {
        let node = cluster.node(id);
        let (word, bit) = (id.index() / 64, 1 << (id.index() % 64));
        if spec {
            let admitted = node.is_some_and(|node| !cluster.is_held(id) && admits(node.spec(), request).is_ok());
            match admitted {
                true => self.admitted[word] |= bit,
                false => self.admitted[word] &= !bit,
            }
        }
        let admitted = node.filter(|node| self.admitted[word] & bit != 0 && has_room(node, request));
        let bid = admitted.map(|node| {
            let bid = policy.bid(id, node, request);
            match request.rules.align() {
                true => (aligned_cost(&bid, node, request), bid.forgone),
                false => (bid.cost, bid.forgone),
            }
        });
        self.index.set(id.index(), bid);
    }
}
