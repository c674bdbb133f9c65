//! Kinds of nodes: nodes that are alike to the expected work.

use crate::decisions::placement::policy::NodeChange;
use crate::state::node::Node;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::known_node::KnownNode;
use crate::vocabulary::mix::Mix;
use crate::vocabulary::quantity::Bytes;
use crate::vocabulary::request::{Constraints, Request};

/// A kind of nodes: they allow the same requests of a mix, and their first devices have the same memory.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Kind {
    device_memory: Bytes,
    /// For each request of the mix: whether its constraints allow such nodes.
    allowed: Vec<bool>,
}

/// The kinds of a cluster's nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kinds {
    requests: Vec<Request>,
    kinds: Vec<Kind>,
    by_node: Vec<Option<usize>>,
}

impl Kinds {
    /// No kinds yet. Nodes are told apart by the requests of this mix.
    pub(crate) fn new(mix: &Mix) -> Self {
        let requests = mix.requests().map(|(request, _)| request.clone()).collect();
        Self { requests, ..Self::default() }
    }

    /// The number of a node's kind; `None` if the node is not known.
    pub(crate) fn of(&self, node: NodeId) -> Option<usize> {
        self.by_node.get(node.index()).copied().flatten()
    }

    /// Updates a node that was added or removed, or that has changed.
    pub(crate) fn learn(&mut self, change: NodeChange<'_>) {
        if !change.spec {
            return;
        }
        if self.by_node.len() <= change.id.index() {
            self.by_node.resize(change.id.index() + 1, None);
        }
        self.by_node[change.id.index()] = change.node.map(|node| self.number(node));
    }

    fn number(&mut self, node: &Node) -> usize {
        let device_memory = node.devices().first().map_or(Bytes::ZERO, |device| device.memory());
        let allowed = self.requests.iter().map(|request| allow(node.spec(), &request.constraints)).collect();
        let kind = Kind { device_memory, allowed };
        self.kinds.iter().position(|known| *known == kind).unwrap_or_else(|| {
            self.kinds.push(kind);
            self.kinds.len() - 1
        })
    }

    /// Whether nodes of a kind allow the mix's request with this number.
    pub(crate) fn allow(&self, kind: usize, request: usize) -> bool {
        self.kinds.get(kind).is_some_and(|kind| kind.allowed.get(request) == Some(&true))
    }

    /// Memory of the first device of the kind's nodes.
    pub(crate) fn device_memory(&self, kind: usize) -> Bytes {
        self.kinds.get(kind).map_or(Bytes::ZERO, |kind| kind.device_memory)
    }

    /// Number of kinds.
    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }
}

/// Whether labels, taints, models and attributes allow such tasks on the node. Whether it has too few devices, or takes
/// no tasks at the moment, is not checked here: the free amounts show that.
fn allow(node: &KnownNode, constraints: &Constraints) -> bool {
    let devices = constraints.admit_any_device() || node.devices.iter().any(|device| constraints.admit_device(device));
    devices && constraints.admit(node)
}
