//! One class's bids, brought up to what the cluster is now.

use crate::decisions::placement::devices;
use crate::decisions::placement::filter::has_room;
use crate::decisions::placement::index::BidIndex;
use crate::decisions::placement::misfit::admits;
use crate::decisions::placement::node_table::NodeTable;
use crate::decisions::placement::policy::{Bid, Policy};
use crate::decisions::placement::several;
use crate::state::cluster::Cluster;
use crate::state::node::Node;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::request::Request;

/// What is added to a cost where devices cannot be had as a task prefers them: more than any policy's cost, so that a
/// node where they can be had goes first.
const NOT_BY_NVLINK: i32 = 1 << 30;
const NOT_ON_ONE_SWITCH: i32 = 1 << 29;
/// Costs are clipped to this for tasks with such preferences.
const COST_MAX: i32 = (1 << 28) - 1;

/// If more has changed than this part of the nodes, they are gone through in their own order and not in that of their
/// changes: that is quicker for each, and a node that has changed often is met once.
const PART_IN_ORDER: u64 = 4;

/// A class's bids, and how far they follow the cluster's changes.
#[derive(Debug, Default)]
pub(crate) struct ClassBids {
    index: BidIndex,
    /// Nodes on which the class's tasks may run at all and that are not held, one bit each.
    admitted: Vec<u64>,
    /// How far the admitted nodes follow the cluster's changes.
    admitted_read: u64,
    /// How far the bids follow the cluster's changes; `None`: not at all.
    read: Option<u64>,
    /// The decision for which they were last asked.
    used: u64,
}

impl ClassBids {
    /// The costs by node.
    pub(crate) fn index(&self) -> &BidIndex {
        &self.index
    }

    /// The decision for which the bids were last asked.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// The nodes that have a bid.
    pub(crate) fn fitting(&self, cluster: &Cluster) -> impl Iterator<Item = NodeId> {
        let nodes = cluster.nodes().map(|(id, _)| id);
        nodes.filter(|id| self.index.get(id.index()).is_some())
    }

    /// Takes in that the policy has changed its mind about all nodes.
    pub(crate) fn forget_costs(&mut self) {
        self.read = None;
        self.index.clear();
    }

    /// Makes the bids anew on what has changed, for a decision. The table knows all changes of the cluster.
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
        self.admit(cluster, table, request);
        let end = cluster.changes().end();
        let changes = self.read.filter(|read| (end - read) * PART_IN_ORDER <= cluster.node_slots() as u64);
        match changes.and_then(|read| Some((read, cluster.changes().since(read)?))) {
            Some((read, changes)) => {
                for (position, change) in (read + 1..).zip(changes) {
                    if table.is_last_change(change.node, position) {
                        self.bid(cluster, table, change.node, request, policy);
                    }
                }
            }
            None => {
                for node in table.changed_since(self.read.unwrap_or(0)) {
                    self.bid(cluster, table, node, request, policy);
                }
            }
        }
        self.read = Some(end);
    }

    /// Finds out anew whether the class's tasks may run on the nodes of which more has changed than what is free.
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

    fn bid(&mut self, cluster: &Cluster, table: &NodeTable, id: NodeId, request: &Request, policy: &impl Policy) {
        let is_admitted = self.admitted[id.index() / 64] >> (id.index() % 64) & 1 == 1;
        let node = match is_admitted && table.may_have_room(id, request) {
            true => cluster.node(id).filter(|node| has_room(node, request)),
            false => None,
        };
        let bid = node.map(|node| {
            let bid = several::bid(policy, id, node, request);
            match request.rules.align() {
                true => (aligned_cost(&bid, node, request), bid.forgone),
                false => (bid.cost, bid.forgone),
            }
        });
        self.index.set(id.index(), bid);
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
