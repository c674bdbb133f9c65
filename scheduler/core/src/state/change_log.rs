//! Which nodes have changed lately, so that who keeps something about every node has to look only at those.

use std::collections::VecDeque;

use crate::vocabulary::claim::NodeId;

/// A node that has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChangedNode {
    pub(crate) node: NodeId,
    /// Not only what is free on it: it was added, removed, or its labels, taints or devices' health changed.
    pub(crate) spec: bool,
}

/// The last changes. Readers remember how far they have read.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeLog {
    /// Number of changes that were forgotten.
    forgotten: u64,
    changes: VecDeque<ChangedNode>,
}

impl ChangeLog {
    /// Notes a change. Of `nodes` nodes no more changes are kept than it takes to look at each of them.
    pub(crate) fn push(&mut self, change: ChangedNode, nodes: usize) {
        self.changes.push_back(change);
        while self.changes.len() > nodes.max(1024) {
            self.changes.pop_front();
            self.forgotten += 1;
        }
    }

    /// Where a reader stands who has read everything.
    pub(crate) fn end(&self) -> u64 {
        self.forgotten + self.changes.len() as u64
    }

    /// What has changed since a reader stood at `position`; `None` if that is forgotten and everything may have
    /// changed.
    pub(crate) fn since(&self, position: u64) -> Option<impl Iterator<Item = ChangedNode>> {
        let skip = usize::try_from(position.checked_sub(self.forgotten)?).ok()?;
        Some(self.changes.iter().skip(skip).copied())
    }
}
