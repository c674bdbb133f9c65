//! The bids of one class, kept up to date with the cluster.

use std::collections::BTreeMap;

use crate::decisions::placement::devices;
use crate::decisions::placement::filter::has_room;
use crate::decisions::placement::index::BidIndex;
use crate::decisions::placement::misfit::{admits, admits_devices};
use crate::decisions::placement::node_table::NodeTable;
use crate::decisions::placement::policy::{Bid, Policy};
use crate::decisions::placement::rank::{Rank, rank};
use crate::decisions::placement::several;
use crate::state::cluster::Cluster;
use crate::state::node::Node;
use crate::vocabulary::choices::SingleChoice;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::request::Request;

/// Added to a cost if devices cannot be had as a task prefers them. It is more than any policy's cost, so that a node
/// with the preferred devices goes first.
const NOT_BY_NVLINK: i32 = 1 << 30;
const NOT_ON_ONE_SWITCH: i32 = 1 << 29;
/// Costs for tasks with such preferences are clipped to ± this.
const COST_MAX: i32 = (1 << 28) - 1;

/// If more nodes than one in this many have changed, all are visited in their own order and not in that of the changes.
/// That is quicker for each node, and a node that has changed often is visited once.
const PART_IN_ORDER: u64 = 4;

/// The bids of one class, and up to which change of the cluster they are known.
#[derive(Debug, Default)]
pub(crate) struct ClassBids {
    index: BidIndex,
    /// The bids on nodes of a rank above 0, by rank.
    others: BTreeMap<Rank, BidIndex>,
    /// Nodes that admit the class's tasks and are not held, one bit each.
    admitted: Vec<u64>,
    /// The position in the change log up to which `admitted` is known.
    admitted_read: u64,
    /// The position in the change log up to which the bids are known; `None`: they are not known.
    read: Option<u64>,
    /// The number of the decision that last used the bids.
    used: u64,
}

impl ClassBids {
    /// The bids on the nodes of the least rank.
    pub(crate) fn index(&self) -> &BidIndex {
        if self.others.is_empty() || !self.index.is_empty() {
            return &self.index;
        }
        self.others.values().find(|index| !index.is_empty()).unwrap_or(&self.index)
    }

    /// A node's bid: its rank, its cost, and what is forgone.
    pub(crate) fn get(&self, node: usize) -> Option<(Rank, (i32, u8))> {
        if let Some(bid) = self.index.get(node) {
            return Some((0, bid));
        }
        self.others.iter().find_map(|(rank, index)| Some((*rank, index.get(node)?)))
    }

    /// Number of nodes with a bid.
    pub(crate) fn count(&self) -> usize {
        self.others.values().map(BidIndex::count).fold(self.index.count(), usize::saturating_add)
    }

    /// The number of the decision that last used the bids.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// The nodes that have a bid.
    pub(crate) fn fitting(&self, cluster: &Cluster) -> impl Iterator<Item = NodeId> {
        let nodes = cluster.nodes().map(|(id, _)| id);
        nodes.filter(|id| self.get(id.index()).is_some())
    }

    /// Forgets all bids after the policy has changed them for all nodes.
    pub(crate) fn forget_costs(&mut self) {
        self.read = None;
        self.index.clear();
        self.others.clear();
    }

    /// Updates the bids on changed nodes, for a decision. The table must know all changes of the cluster.
    pub(crate) fn follow(
        &mut self,
        cluster: &Cluster,
        table: &NodeTable,
        request: &Request,
        policy: &impl Policy,
        decision: u64,
    ) {
        self.used = decision;
        self.index.grow(cluster.node_slots());
        self.others.values_mut().for_each(|index| index.grow(cluster.node_slots()));
        let choices: Vec<SingleChoice<'_>> =
            request.has_alternatives().then(|| request.choices()).into_iter().flatten().collect();
        let asked = Asked { request, choices: &choices };
        self.admit(cluster, table, request);
        let end = cluster.changes().end();
        let changes = self.read.filter(|read| (end - read) * PART_IN_ORDER <= cluster.node_slots() as u64);
        match changes.and_then(|read| Some((read, cluster.changes().since(read)?))) {
            Some((read, changes)) => {
                for (position, change) in (read + 1..).zip(changes) {
                    if table.is_last_change(change.node, position) {
                        self.bid(cluster, table, change.node, asked, policy);
                    }
                }
            }
            None => {
                for node in table.changed_since(self.read.unwrap_or(0)) {
                    self.bid(cluster, table, node, asked, policy);
                }
            }
        }
        self.read = Some(end);
    }

    /// Checks again whether nodes admit the class's tasks, if more than their free amounts has changed.
    fn admit(&mut self, cluster: &Cluster, table: &NodeTable, request: &Request) {
        self.admitted.resize(cluster.node_slots().div_ceil(64), 0);
        for id in table.specs_changed_since(self.admitted_read) {
            let node = cluster.node(id);
            let (word, bit) = (id.index() / 64, 1 << (id.index() % 64));
            match node.is_some_and(|node| !cluster.is_held(id) && admits(node.spec(), request).is_ok()) {
                true => self.admitted[word] |= bit,
                false => self.admitted[word] &= !bit,
            }
        }
        self.admitted_read = cluster.changes().end();
    }

    fn bid(&mut self, cluster: &Cluster, table: &NodeTable, id: NodeId, asked: Asked<'_>, policy: &impl Policy) {
        let is_admitted = self.admitted[id.index() / 64] >> (id.index() % 64) & 1 == 1;
        let request = asked.request;
        if !asked.choices.is_empty() {
            let node = cluster.node(id).filter(|_| is_admitted);
            let bid = node.and_then(|node| ranked_bid(table, id, node, asked.choices, policy));
            return self.set(id, cluster.node_slots(), bid);
        }
        let node = match is_admitted && table.may_have_room(id, request) {
            true => cluster.node(id).filter(|node| has_room(node, request)),
            false => None,
        };
        let bid = node.map(|node| (rank(0, request, node.spec()), cost(policy, id, node, request)));
        self.set(id, cluster.node_slots(), bid);
    }

    /// Sets the bid on a node: its rank, its cost, and what is forgone.
    fn set(&mut self, id: NodeId, slots: usize, bid: Option<(Rank, (i32, u8))>) {
        let best = bid.filter(|(rank, _)| *rank == 0).map(|(_, bid)| bid);
        self.index.set(id.index(), best);
        self.others.values_mut().for_each(|index| index.set(id.index(), None));
        if let Some((rank, bid)) = bid.filter(|(rank, _)| *rank > 0) {
            let index = self.others.entry(rank).or_default();
            index.grow(slots);
            index.set(id.index(), Some(bid));
        }
    }
}

/// The bid of a task with alternatives on a node, with the rank of the first of its choices that fits there.
fn ranked_bid(
    table: &NodeTable,
    id: NodeId,
    node: &Node,
    choices: &[SingleChoice<'_>],
    policy: &impl Policy,
) -> Option<(Rank, (i32, u8))> {
    let fits = |choice: &&SingleChoice<'_>| {
        let request = &choice.request;
        table.may_have_room(id, request) && admits_devices(node.spec(), request).is_ok() && has_room(node, request)
    };
    let choice = choices.iter().find(fits)?;
    Some((rank(choice.rank, &choice.request, node.spec()), cost(policy, id, node, &choice.request)))
}

/// The request of a class, and its choices if it has alternatives.
#[derive(Clone, Copy)]
struct Asked<'a> {
    request: &'a Request,
    choices: &'a [SingleChoice<'a>],
}

/// The cost of placing a task on a node, and what is forgone by it.
fn cost(policy: &impl Policy, id: NodeId, node: &Node, request: &Request) -> (i32, u8) {
    let bid = several::bid(policy, id, node, request);
    match request.rules.align() {
        true => (aligned_cost(&bid, node, request), bid.forgone),
        false => (bid.cost, bid.forgone),
    }
}

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
