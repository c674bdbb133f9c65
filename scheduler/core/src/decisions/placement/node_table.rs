//! A table of all nodes that an engine keeps beside the cluster. With it, the bids of a class are updated without a
//! look at nodes that have not changed or have no room.

use crate::state::node::{Device, Node};
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::quantity::{Bytes, DeviceCore, MilliCpu};
use crate::vocabulary::request::Request;

/// For each node, by its number: when it last changed, and the most that a task can have there.
///
/// A position is the number of changes in the cluster's log that were read by then.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeTable {
    rows: Vec<Row>,
    /// The position just after a node's last change of more than the free amounts.
    spec_changed_at: Vec<u64>,
    /// The greatest value in `spec_changed_at`.
    last_spec_change: u64,
}

/// What is asked of a node for each decision of a class after the node has changed. It is side by side, so that a
/// processor fetches it at once.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(32))]
struct Row {
    /// The position just after the node's last change.
    changed_at: u64,
    free: Free,
}

/// The free amounts of a node; all 0 for a node that was removed.
#[derive(Clone, Copy, Debug, Default)]
struct Free {
    cpu: MilliCpu,
    memory: Bytes,
    /// The most free time on one device.
    core_max: DeviceCore,
    /// The number of healthy devices with all of their time free.
    whole: u16,
    is_there: bool,
}

impl NodeTable {
    /// Makes room for this many nodes.
    pub(crate) fn grow(&mut self, nodes: usize) {
        self.rows.resize(nodes, Row::default());
        self.spec_changed_at.resize(nodes, 0);
    }

    /// Updates a node that has changed; `None` if it was removed. `spec`: more than its free amounts may have changed.
    pub(crate) fn note(&mut self, id: NodeId, node: Option<&Node>, spec: bool, position: u64) {
        let index = id.index();
        let Some(row) = self.rows.get_mut(index) else { return };
        if spec {
            self.spec_changed_at[index] = position;
            self.last_spec_change = self.last_spec_change.max(position);
        }
        let free = node.map_or_else(Free::default, |node| Free {
            cpu: node.cpu_free(),
            memory: node.memory_free(),
            core_max: node.core_free_max(),
            whole: whole_devices(node),
            is_there: true,
        });
        *row = Row { changed_at: position, free };
    }

    /// Whether the change just before `position` is the last change of a node.
    pub(crate) fn is_last_change(&self, node: NodeId, position: u64) -> bool {
        self.rows.get(node.index()).is_some_and(|row| row.changed_at == position)
    }

    /// All nodes in order, each with whether it has changed after a position.
    pub(crate) fn all_changed_since(&self, position: u64) -> impl Iterator<Item = (NodeId, bool)> + use<'_> {
        (0..).map(NodeId).zip(self.rows.iter().map(move |row| row.changed_at > position))
    }

    /// The nodes of which more than the free amounts has changed after a position, in order.
    pub(crate) fn specs_changed_since(&self, position: u64) -> impl Iterator<Item = NodeId> + use<'_> {
        let changed_at = if self.last_spec_change > position { &self.spec_changed_at[..] } else { &[] };
        (0..).zip(changed_at).filter(move |(_, at)| **at > position).map(|(index, _)| NodeId(index))
    }

    /// Whether a node may have room for the first choice of a task. This is a necessary condition that is quick to
    /// check: its parts are all computed, as jumps between them would take longer.
    pub(crate) fn may_have_room(&self, node: NodeId, request: &Request) -> bool {
        let Some(Row { free, .. }) = self.rows.get(node.index()) else { return false };
        let devices = &request.devices;
        let has_whole = (devices.core < DeviceCore::WHOLE) | (free.whole >= devices.count);
        let has_devices = (devices.count == 0) | ((free.core_max >= devices.core) & has_whole);
        free.is_there & (free.cpu >= request.cpu) & (free.memory >= request.memory) & has_devices
    }
}

fn whole_devices(node: &Node) -> u16 {
    let is_whole = |device: &&Device| device.is_healthy() && device.core_free() >= DeviceCore::WHOLE;
    u16::try_from(node.devices().iter().filter(is_whole).count()).unwrap_or(u16::MAX)
}
