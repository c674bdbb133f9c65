//! GPU clustering, as published with FGD.

use std::collections::BTreeSet;

use crate::decisions::placement::policies::best_fit::{DEVICES_MAX, device_core_free};
use crate::decisions::placement::policy::{Bid, Choice, Policy};
use crate::state::node::Node;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::request::Request;

/// Puts tasks of one sort together: shares of a device, one device, two devices, and so on. A node scores 75 if it has
/// only tasks of the sort, 50 if it has tasks of the sort and others, 25 if it has none at all, and otherwise 0. A full
/// node scores up to 25 more.
#[derive(Clone, Debug, Default)]
pub struct GpuClustering;

/// The sort of a task: 0 for a share of a device, otherwise the number of devices.
fn sort(devices: u16, core: u32) -> u16 {
    if devices == 1 && core < 1000 { 0 } else { devices }
}

impl Policy for GpuClustering {
    fn bid(&self, _: NodeId, node: &Node, request: &Request) -> Bid {
        let none = Bid { cost: 0, forgone: 0, choice: Choice::Tightest };
        if request.devices.count == 0 {
            return none;
        }
        let sorts: BTreeSet<u16> = node.sorts().map(|(devices, core)| sort(devices, core.get())).collect();
        let own = sorts.contains(&sort(request.devices.count, request.devices.core.get()));
        let score = match (own, sorts.len()) {
            (true, 1) => 75,
            (true, _) => 50,
            (false, 0) => 25,
            (false, _) => 0,
        };
        let full = 25 * (DEVICES_MAX - device_core_free(node)) / DEVICES_MAX;
        Bid { cost: -(score + i32::try_from(full).unwrap_or(0)), ..none }
    }
}
