//! A table of all nodes that an engine keeps beside the cluster. With it, the bids of a class are updated without a
//! look at nodes that have not changed or have no room.

use crate::state::node::{Device, Node};
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::known_node::KnownNode;
use crate::vocabulary::quantity::{Bytes, DeviceCore, MilliCpu};
use crate::vocabulary::request::Request;
use crate::vocabulary::taint::Taint;

/// For each node, by its number: when it last changed, and the most that a task can have there.
///
/// A position is the number of changes in the cluster's log that were read by then.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeTable {
    rows: Vec<Row>,
    specs: Vec<Spec>,
    /// The greatest position in `specs`.
    last_spec_change: u64,
}

/// What changes of a node only with more than its free amounts.
#[derive(Clone, Copy, Debug, Default)]
struct Spec {
    /// The position just after the last such change.
    changed_at: u64,
    /// The number of devices, used or not.
    devices: u16,
    /// Whether it takes new tasks, and no taint keeps any away.
    is_open: bool,
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
        self.specs.resize(nodes, Spec::default());
    }

    /// Updates a node that has changed; `None` if it was removed. `spec`: more than its free amounts may have changed.
    pub(crate) fn note(&mut self, id: NodeId, node: Option<&Node>, spec: bool, position: u64) {
        let index = id.index();
        let Some(row) = self.rows.get_mut(index) else { return };
        if spec {
            self.specs[index] = Spec {
                changed_at: position,
                devices: node.map_or(0, |node| u16::try_from(node.devices().len()).unwrap_or(u16::MAX)),
                is_open: node.is_some_and(|node| is_open(node.spec())),
            };
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
        let specs = if self.last_spec_change > position { &self.specs[..] } else { &[] };
        (0..).zip(specs).filter(move |(_, spec)| spec.changed_at > position).map(|(index, _)| NodeId(index))
    }

    /// Whether a node admits tasks that accept any node and want this many devices of any sort; `None`: the table does
    /// not know.
    pub(crate) fn admits_undemanding(&self, node: NodeId, devices: u16) -> Option<bool> {
        let spec = self.specs.get(node.index()).filter(|spec| spec.is_open)?;
        Some(spec.devices >= devices)
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

fn is_open(node: &KnownNode) -> bool {
    !node.cordoned && !node.taints.iter().any(Taint::keeps_away)
}

fn whole_devices(node: &Node) -> u16 {
    let is_whole = |device: &&Device| device.is_healthy() && device.core_free() >= DeviceCore::WHOLE;
    u16::try_from(node.devices().iter().filter(is_whole).count()).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decisions::placement::misfit::admits;
    use crate::state::node_parts::NodeParts;
    use crate::vocabulary::device_request::DeviceRequest;
    use crate::vocabulary::spec::{DeviceSpec, NodeSpec};
    use crate::vocabulary::taint::TaintEffect;

    #[test]
    fn the_table_admits_what_the_specification_admits() {
        let with = |devices: usize, cordoned, effects: &[TaintEffect]| {
            let taint = |effect: &TaintEffect| Taint { key: "spot".into(), effect: *effect, ..Taint::default() };
            let taints = effects.iter().map(taint).collect();
            let devices = vec![DeviceSpec::default(); devices];
            Node::new(NodeParts::default().join(NodeSpec { devices, cordoned, taints, ..NodeSpec::default() }, &[4; 2]))
        };
        let mut table = NodeTable::default();
        table.grow(1);
        let id = NodeId(0);
        let rows = [
            (with(0, false, &[]), [Some(true), Some(false), Some(false)]),
            (with(2, false, &[]), [Some(true), Some(true), Some(false)]),
            (with(2, false, &[TaintEffect::PreferNoSchedule]), [Some(true), Some(true), Some(false)]),
            (with(2, false, &[TaintEffect::PreferNoSchedule, TaintEffect::NoExecute]), [None; 3]),
            (with(2, true, &[]), [None; 3]),
        ];
        for (position, (node, expected)) in (1..).zip(rows) {
            table.note(id, Some(&node), true, position);
            for (devices, expected) in [0, 2, 3].into_iter().zip(expected) {
                assert_eq!(table.admits_undemanding(id, devices), expected, "{devices} on {node:?}");
                let request = Request { devices: DeviceRequest::whole(devices), ..Request::default() };
                let by_spec = admits(node.spec(), &request).is_ok();
                assert_eq!(expected.unwrap_or(false), by_spec, "{devices} on {node:?}");
            }
        }
        table.note(id, None, true, 9);
        assert_eq!(table.admits_undemanding(id, 0), None, "it was removed");
    }
}
