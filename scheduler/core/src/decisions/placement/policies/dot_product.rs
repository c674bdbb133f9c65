//! The dot-product heuristic of vector packing, as published with FGD.

use crate::decisions::placement::policies::best_fit::{CPU_MAX, DEVICES_MAX, cost, device_core_free, signed};
use crate::decisions::placement::policy::{Bid, Choice, Policy};
use crate::state::node::Node;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::request::Request;

/// Takes the node whose free amounts point least in the direction of the request:
/// score = ⌊100 · (1 − (dot product of both) / 2)⌋, with both vectors in proportion to the largest node.
#[derive(Clone, Copy, Debug, Default)]
pub struct DotProduct;

impl Policy for DotProduct {
    fn bid(&self, _: NodeId, node: &Node, request: &Request) -> Bid {
        let cpu = i128::from(signed(node.cpu_free().get())) * i128::from(signed(request.cpu.get()));
        let devices = i128::from(device_core_free(node)) * i128::from(signed(request.total_core()));
        let (cpu_max, devices_max) = (i128::from(CPU_MAX).pow(2), i128::from(DEVICES_MAX).pow(2));
        let whole = 2 * cpu_max * devices_max;
        let score = (100 * (whole - cpu * devices_max - devices * cpu_max)) / whole;
        Bid { cost: cost(score), forgone: 0, choice: Choice::Tightest }
    }
}
