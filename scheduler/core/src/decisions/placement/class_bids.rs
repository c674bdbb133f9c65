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

/// The number of nodes that are handled together. Nodes, and a class's bids on them, are mostly in no cache. In steps that
/// are short for each node, the processor fetches many of them at the same time.
const BATCH: usize = 32;

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
    pub(crate) fn index(&mut self) -> &mut BidIndex {
        if self.others.is_empty() || !self.index.is_empty() {
            return &mut self.index;
        }
        self.others.values_mut().find(|index| !index.is_empty()).unwrap_or(&mut self.index)
    }

    /// Whether no node has a bid.
    pub(crate) fn is_empty(&self) -> bool {
        self.index.is_empty() && self.others.values().all(BidIndex::is_empty)
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
        let at = Asking { cluster, table, request, choices: &choices, policy };
        self.admit(cluster, table, request);
        let end = cluster.changes().end();
        let changes = self.read.filter(|read| (end - read) * PART_IN_ORDER <= cluster.node_slots() as u64);
        match changes.and_then(|read| Some((read, cluster.changes().since(read)?))) {
            Some((read, changes)) => {
                let changes = (read + 1..).zip(changes);
                self.bid(
                    &at,
                    changes.map(|(position, change)| (change.node, table.is_last_change(change.node, position))),
                );
            }
            None => self.bid(&at, table.all_changed_since(self.read.unwrap_or(0))),
        }
        self.read = Some(end);
    }

    /// Checks again whether nodes admit the class's tasks, if more than their free amounts has changed.
    fn admit(&mut self, cluster: &Cluster, table: &NodeTable, request: &Request) {
        self.admitted.resize(cluster.node_slots().div_ceil(64), 0);
        let undemanding = devices_of_undemanding(request);
        for id in table.specs_changed_since(self.admitted_read) {
            let by_table = || table.admits_undemanding(id, undemanding?);
            let by_spec = || cluster.node(id).is_some_and(|node| admits(node.spec(), request).is_ok());
            let (word, bit) = (id.index() / 64, 1 << (id.index() % 64));
            match !cluster.is_held(id) && by_table().unwrap_or_else(by_spec) {
                true => self.admitted[word] |= bit,
                false => self.admitted[word] &= !bit,
            }
        }
        self.admitted_read = cluster.changes().end();
    }

    /// Updates the bids on those of these nodes that are due. Whether a node is due, and whether a task may fit there,
    /// cannot be foretold, so the loop does the same steps for each node.
    fn bid<P: Policy>(&mut self, at: &Asking<'_, P>, nodes: impl Iterator<Item = (NodeId, bool)>) {
        let mut batch = [NodeId(0); BATCH];
        let mut waiting = 0;
        for (id, is_due) in nodes {
            let is_admitted = self.admitted[id.index() / 64] >> (id.index() % 64) & 1 == 1;
            let may_fit = is_admitted & at.may_fit(id);
            self.index.remove_if(is_due & !may_fit, id.index());
            self.others.values_mut().for_each(|index| index.remove_if(is_due & !may_fit, id.index()));
            batch[waiting] = id;
            waiting += usize::from(is_due & may_fit);
            if waiting == BATCH {
                self.bid_together(at, &batch);
                waiting = 0;
            }
        }
        self.bid_together(at, &batch[..waiting]);
    }

    /// Updates the bids on at most [`BATCH`] nodes, step by step for all of them.
    fn bid_together<P: Policy>(&mut self, at: &Asking<'_, P>, ids: &[NodeId]) {
        let mut nodes = [None; BATCH];
        for (node, id) in nodes.iter_mut().zip(ids) {
            *node = at.cluster.node(*id).filter(|node| at.fits(node));
        }
        let mut bids = [None; BATCH];
        for ((bid, node), id) in bids.iter_mut().zip(nodes).zip(ids) {
            *bid = node.and_then(|node| at.bid(*id, node));
        }
        for (bid, id) in bids.into_iter().zip(ids) {
            self.set(*id, at.cluster.node_slots(), bid);
        }
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

/// The most devices that a device request of a task wants, if the task accepts any node without taints and any device;
/// `None`: it does not, or has alternatives.
fn devices_of_undemanding(request: &Request) -> Option<u16> {
    let accepts_any_node = request.constraints.labels.is_empty() && request.constraints.node_terms.is_empty();
    let accepts_any = accepts_any_node && request.wishes().all(|wish| wish.admit_any_device());
    let most = request.wishes().map(|wish| wish.devices.count).max()?;
    (accepts_any && !request.has_alternatives()).then_some(most)
}

/// What a class asks for, and who answers it.
struct Asking<'a, P> {
    cluster: &'a Cluster,
    table: &'a NodeTable,
    request: &'a Request,
    /// The choices of a request with alternatives; empty: it has none.
    choices: &'a [SingleChoice<'a>],
    policy: &'a P,
}

impl<P: Policy> Asking<'_, P> {
    /// A condition that is quick to check: if it does not hold, nothing fits on the node.
    fn may_fit(&self, id: NodeId) -> bool {
        !self.choices.is_empty() || self.table.may_have_room(id, self.request)
    }

    /// Whether a task without alternatives fits on a node. What a task with alternatives needs is found with its bid.
    fn fits(&self, node: &Node) -> bool {
        !self.choices.is_empty() || has_room(node, self.request)
    }

    /// The bid on a node: its rank, its cost, and what is forgone.
    fn bid(&self, id: NodeId, node: &Node) -> Option<(Rank, (i32, u8))> {
        if self.choices.is_empty() {
            return Some((rank(0, self.request, node), cost(self.policy, id, node, self.request)));
        }
        let fits = |choice: &&SingleChoice<'_>| {
            let request = &choice.request;
            self.table.may_have_room(id, request)
                && admits_devices(node.spec(), request).is_ok()
                && has_room(node, request)
        };
        let choice = self.choices.iter().find(fits)?;
        Some((rank(choice.rank, &choice.request, node), cost(self.policy, id, node, &choice.request)))
    }
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
