//! How much is looked at for one unit.

use crate::claim::NodeId;

/// What is left of a search's budget, and where the search has got to.
#[derive(Clone, Debug)]
pub(super) struct Search {
    left: u32,
    /// The node to begin with.
    pub(super) start: Option<NodeId>,
    /// The first node that was not looked at for want of budget.
    stopped: Option<NodeId>,
}

impl Search {
    /// `budget` nodes and victims may be looked at, those from `start` on first.
    pub(super) fn new(budget: u32, start: Option<NodeId>) -> Self {
        Self { left: budget, start, stopped: None }
    }

    /// Takes from the budget, if there is so much.
    pub(super) fn spend(&mut self, looks: usize) -> bool {
        let left = u32::try_from(looks).ok().and_then(|looks| self.left.checked_sub(looks));
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }

    /// What is left.
    pub(super) fn left(&self) -> u32 {
        self.left
    }

    /// Notes that the search ends here without having seen everything.
    pub(super) fn stop(&mut self, at: NodeId) {
        self.stopped = Some(at);
    }

    /// Where it has ended without having seen everything.
    pub(super) fn stopped(&self) -> Option<NodeId> {
        self.stopped
    }
}
