//! How long nodes are kept for a group while nothing leaves them.

use std::collections::BTreeSet;

use crate::state::cluster::Cluster;
use crate::state::node::Node;
use crate::vocabulary::claim::NodeId;

/// What is known of the nodes that were kept for a group so far.
///
/// How long a claim runs is not known, and some never end. So nodes on which nothing ends are given up for others. The
/// wait for that doubles each time, so that in the end it is longer than any claim that ends.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Patience {
    /// How many claims were left on the kept nodes; `None`: they have not been counted yet.
    pub(crate) claims: Option<usize>,
    /// Since when none of them has left, in milliseconds.
    pub(crate) since_ms: u64,
    /// How often kept nodes were given up.
    pub(crate) times: u32,
    /// The nodes that were given up. They are the last to be kept again.
    pub(crate) given_up: BTreeSet<NodeId>,
}

impl Patience {
    /// Begins with the nodes that are kept now.
    pub(super) fn begin(&mut self, cluster: &Cluster, nodes: &[NodeId]) {
        self.claims = Some(claims_on(cluster, nodes));
        self.since_ms = cluster.now_ms();
    }

    /// Whether these nodes are to be kept on. `after_ms`: the wait before nodes are first given up.
    pub(super) fn lasts(&mut self, cluster: &Cluster, nodes: &[NodeId], after_ms: u64) -> bool {
        if self.claims.is_none_or(|before| claims_on(cluster, nodes) < before) {
            self.begin(cluster, nodes);
        }
        let wait_ms = after_ms.max(1).saturating_mul(2_u64.saturating_pow(self.times));
        cluster.now_ms().saturating_sub(self.since_ms) < wait_ms
    }

    /// Gives up those of the kept nodes that something runs on.
    pub(super) fn give_up(&mut self, cluster: &Cluster, nodes: &[NodeId]) {
        let runs_any = |id: &NodeId| cluster.node(*id).is_some_and(|node| node.claims().next().is_some());
        self.given_up.extend(nodes.iter().copied().filter(runs_any));
        self.claims = None;
        self.times = self.times.saturating_add(1);
    }
}

fn claims_on(cluster: &Cluster, nodes: &[NodeId]) -> usize {
    nodes.iter().filter_map(|node| cluster.node(*node)).flat_map(Node::claims).count()
}
