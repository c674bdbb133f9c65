//! Best fit, as published with FGD.

use crate::decisions::placement::policy::{Bid, Choice, Policy};
use crate::state::node::Node;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::request::Request;

/// CPU and devices of the largest node, to which amounts are put in proportion: 128 cores, 8 devices.
pub(crate) const CPU_MAX: i64 = 128_000;
/// Device time of the largest node, in thousandths of a device.
pub(crate) const DEVICES_MAX: i64 = 8_000;

/// Takes the node with the least CPU and devices left, in proportion to the largest node:
/// score = ⌊100 · (1 − (CPU left + devices left) / 2)⌋.
#[derive(Clone, Copy, Debug, Default)]
pub struct BestFit;

impl Policy for BestFit {
    fn bid(&self, _: NodeId, node: &Node, request: &Request) -> Bid {
        let cpu = signed(node.cpu_free().saturating_sub(request.cpu).get());
        let devices = device_core_free(node) - signed(request.total_core());
        // 100 * (1 - (cpu / CPU_MAX + devices / DEVICES_MAX) / 2), over the common denominator.
        let whole = 2 * CPU_MAX * DEVICES_MAX;
        let score = (100 * (whole - cpu * DEVICES_MAX - devices * CPU_MAX)) / whole;
        Bid { cost: cost(i128::from(score)), forgone: 0, choice: Choice::Tightest }
    }
}

/// Free time of all devices of a node, in thousandths of a device.
pub(crate) fn device_core_free(node: &Node) -> i64 {
    node.devices().iter().map(|device| i64::from(device.core_free().get())).sum()
}

/// Greater amounts are all treated as this much.
const AMOUNT_MAX: u64 = 1 << 40;

pub(crate) fn signed(amount: u64) -> i64 {
    i64::try_from(amount.min(AMOUNT_MAX)).unwrap_or(i64::MAX)
}

/// The cost for a score: the greater the score, the less the cost.
pub(crate) fn cost(score: i128) -> i32 {
    let bound = i128::from(Bid::NONE - 1);
    i32::try_from((-score).clamp(-bound, bound)).unwrap_or(0)
}
