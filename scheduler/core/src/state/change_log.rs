//! Nodes that have changed lately. A reader that keeps something about every node needs to look only at these.

use std::collections::VecDeque;

use crate::vocabulary::claim::NodeId;

/// A node that has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChangedNode {
    pub(crate) node: NodeId,
    /// Whether more than its free amounts changed: it was added or removed, or its labels, taints or devices' health
    /// changed.
    pub(crate) spec: bool,
}

/// The latest changes. Readers remember how far they have read.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeLog {
    /// Number of changes that were forgotten.
    forgotten: u64,
    changes: VecDeque<ChangedNode>,
}

impl ChangeLog {
    /// Notes a change. With `nodes` nodes in the cluster, no more than max(`nodes`, 1024) changes are kept: a reader
    /// that has missed more looks at every node instead.
    pub(crate) fn push(&mut self, change: ChangedNode, nodes: usize) {
        self.changes.push_back(change);
        while self.changes.len() > nodes.max(1024) {
            self.changes.pop_front();
            self.forgotten += 1;
        }
    }

    /// The position of a reader that has read every change.
    pub(crate) fn end(&self) -> u64 {
        self.forgotten + self.changes.len() as u64
    }

    /// The changes since a reader's `position`. `None` if some of them are forgotten: then every node may have changed.
    pub(crate) fn since(&self, position: u64) -> Option<impl Iterator<Item = ChangedNode>> {
        let skip = usize::try_from(position.checked_sub(self.forgotten)?).ok()?;
        Some(self.changes.iter().skip(skip).copied())
    }
}
