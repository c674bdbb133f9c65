//! Binpack and spread: decide only by how much is free.

use crate::decisions::placement::policy::{Bid, Choice, Policy};
use crate::state::node::Node;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::request::Request;

/// Takes the fullest node, and on it the fullest device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Binpack;

/// Takes the emptiest node, and on it the emptiest device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spread;

impl Policy for Binpack {
    fn bid(&self, _: NodeId, node: &Node, request: &Request) -> Bid {
        Bid { cost: free(node, request), forgone: 0, choice: Choice::Tightest }
    }
}

impl Policy for Spread {
    fn bid(&self, _: NodeId, node: &Node, request: &Request) -> Bid {
        Bid { cost: -free(node, request), forgone: 0, choice: Choice::Emptiest }
    }

    fn spreads(&self) -> bool {
        true
    }
}

/// The amount that decides: for a task with devices, thousandths of a device; for others, thousandths of a CPU core.
fn free(node: &Node, request: &Request) -> i32 {
    let free = if request.devices.count > 0 { u64::from(node.usable_thousandths()) } else { node.cpu_free().get() };
    i32::try_from(free).unwrap_or(i32::MAX - 1)
}
