//! Nodes that are alike to the work that is expected.

use crate::decisions::placement::policy::NodeChange;
use crate::state::node::Node;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::known_node::KnownNode;
use crate::vocabulary::mix::Mix;
use crate::vocabulary::quantity::Bytes;
use crate::vocabulary::request::{Constraints, Request};

/// Nodes of a kind allow the same requests of a mix and have devices with the same memory (of the first one).
#[derive(Clone, PartialEq, Eq, Debug)]
struct Kind {
    device_memory: Bytes,
    /// For each of the mix's requests, whether its constraints allow it there.
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
    /// No kinds yet; they are told apart by what this mix asks for.
    pub(crate) fn new(mix: &Mix) -> Self {
        let requests = mix.requests().map(|(request, _)| request.clone()).collect();
        Self { requests, ..Self::default() }
    }

    /// A node's kind, if the node is known.
    pub(crate) fn of(&self, node: NodeId) -> Option<usize> {
        self.by_node.get(node.index()).copied().flatten()
    }

    /// Takes in a node that was added, removed, or has changed.
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

    /// Whether a kind allows the mix's request of this number.
    pub(crate) fn allow(&self, kind: usize, request: usize) -> bool {
        self.kinds.get(kind).is_some_and(|kind| kind.allowed.get(request) == Some(&true))
    }

    /// Memory of the kind's devices.
    pub(crate) fn device_memory(&self, kind: usize) -> Bytes {
        self.kinds.get(kind).map_or(Bytes::ZERO, |kind| kind.device_memory)
    }

    /// Number of kinds.
    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }
}

/// Whether labels, taints, models and attributes allow such tasks on the node. That too few of its devices are there,
/// or that it takes nothing at the moment, is not asked: that is seen from what is free.
fn allow(node: &KnownNode, constraints: &Constraints) -> bool {
    let devices = constraints.admit_any_device() || node.devices.iter().any(|device| constraints.admit_device(device));
    devices && constraints.admit(node)
}
