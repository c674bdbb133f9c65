//! GPU packing, as published with FGD.

use crate::decisions::placement::devices::chosen;
use crate::decisions::placement::policy::{Bid, Choice, Policy};
use crate::state::node::Node;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::request::Request;

/// Takes devices in use first, then idle devices of nodes in use, then idle nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct GpuPacking;

impl Policy for GpuPacking {
    fn bid(&self, _: NodeId, node: &Node, request: &Request) -> Bid {
        let score = if request.devices.count == 0 { 0 } else { score(node, request) };
        Bid { cost: -score, forgone: 0, choice: Choice::Tightest }
    }
}

fn score(node: &Node, request: &Request) -> i32 {
    let idle = i32::from(node.idle_devices());
    if usize::from(node.idle_devices()) == node.devices().len() {
        return (33 - idle).max(idle);
    }
    let taken = chosen(node, request, Choice::Tightest).unwrap_or_default();
    let devices = || taken.iter().filter_map(|part| node.devices().get(usize::from(part.device)));
    let idle_taken = i32::try_from(devices().filter(|device| device.is_idle()).count()).unwrap_or(i32::MAX);
    if idle_taken > 0 {
        return (50 - idle_taken).max(33);
    }
    let left_percent: u32 = devices().map(|device| device.core_free().get() / 10).sum();
    (100 - i32::try_from(left_percent / 10).unwrap_or(i32::MAX)).max(50)
}
