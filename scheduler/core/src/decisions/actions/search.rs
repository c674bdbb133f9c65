//! How much is looked at for one unit.

use crate::vocabulary::claim::NodeId;

/// So many nodes are passed over in the time that it takes to look at one.
const NODES_PER_LOOK: usize = 16;

/// What a look at a node with so many victims costs.
pub(super) fn looks(victims: usize) -> usize {
    1 + victims
}

/// What is left of a search's budget, and where the search has got to.
#[derive(Clone, Debug)]
pub(super) struct Search {
    left: u32,
    spent: u32,
    /// The node to begin with.
    pub(super) start: Option<NodeId>,
    /// The first node that was not, or not wholly, looked at for want of budget.
    stopped: Option<NodeId>,
}

impl Search {
    /// `budget` nodes and victims may be looked at, those from `start` on first.
    pub(super) fn new(budget: u32, start: Option<NodeId>) -> Self {
        Self { left: budget, spent: 0, start, stopped: None }
    }

    /// Takes so many looks from the budget, if anything is left of it. The last ones may be more than that: a node with
    /// more victims than the whole budget is looked at too.
    pub(super) fn spend(&mut self, looks: usize) -> bool {
        if self.left == 0 {
            return false;
        }
        let looks = u32::try_from(looks).unwrap_or(u32::MAX);
        self.left = self.left.saturating_sub(looks);
        self.spent = self.spent.saturating_add(looks);
        true
    }

    /// Takes from the budget what it costs to see of so many nodes what they promise.
    pub(super) fn pass(&mut self, nodes: usize) {
        self.spend(nodes / NODES_PER_LOOK);
    }

    /// Notes looks that are not taken from the budget, but count for the cycle.
    pub(super) fn note(&mut self, looks: usize) {
        self.spent = self.spent.saturating_add(u32::try_from(looks).unwrap_or(u32::MAX));
    }

    /// What is left.
    pub(super) fn left(&self) -> u32 {
        self.left
    }

    /// What was looked at.
    pub(super) fn spent(&self) -> u32 {
        self.spent
    }

    /// Notes that not everything was seen, from this node on.
    pub(super) fn stop(&mut self, at: NodeId) {
        self.stopped.get_or_insert(at);
    }

    /// From where on not everything was seen.
    pub(super) fn stopped(&self) -> Option<NodeId> {
        self.stopped
    }
}
