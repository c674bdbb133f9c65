//! The search budget of one unit.

use crate::vocabulary::claim::NodeId;

/// How many nodes can be skipped in the time of one look.
const NODES_PER_LOOK: usize = 16;

/// The cost of a look at a node with this many victims.
pub(super) fn looks(victims: usize) -> usize {
    1 + victims
}

/// The rest of a search's budget, and where the search has arrived.
#[derive(Clone, Debug)]
pub(super) struct Search {
    left: u32,
    spent: u32,
    /// The node at which the search begins.
    pub(super) start: Option<NodeId>,
    /// The first node that was not looked at, or not wholly, because the budget was used up.
    stopped: Option<NodeId>,
}

impl Search {
    /// A search that may look at `budget` nodes and victims, beginning at `start`.
    pub(super) fn new(budget: u32, start: Option<NodeId>) -> Self {
        Self { left: budget, spent: 0, start, stopped: None }
    }

    /// Takes looks from the budget. Returns whether any budget was left. The last node may cost more than what is left:
    /// a node with more victims than the whole budget is looked at, too.
    pub(super) fn spend(&mut self, looks: usize) -> bool {
        if self.left == 0 {
            return false;
        }
        let looks = u32::try_from(looks).unwrap_or(u32::MAX);
        self.left = self.left.saturating_sub(looks);
        self.spent = self.spent.saturating_add(looks);
        true
    }

    /// Takes from the budget the cost of a quick look at what nodes promise.
    pub(super) fn pass(&mut self, nodes: usize) {
        self.spend(nodes / NODES_PER_LOOK);
    }

    /// Notes looks that are not taken from this budget, but count for the cycle.
    pub(super) fn note(&mut self, looks: usize) {
        self.spent = self.spent.saturating_add(u32::try_from(looks).unwrap_or(u32::MAX));
    }

    /// The rest of the budget, in looks.
    pub(super) fn left(&self) -> u32 {
        self.left
    }

    /// The number of looks so far.
    pub(super) fn spent(&self) -> u32 {
        self.spent
    }

    /// Notes that from this node on not everything was looked at.
    pub(super) fn stop(&mut self, at: NodeId) {
        self.stopped.get_or_insert(at);
    }

    /// The first node from which on not everything was looked at.
    pub(super) fn stopped(&self) -> Option<NodeId> {
        self.stopped
    }
}
