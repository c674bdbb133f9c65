//! Prices of devices on nodes that some of the expected tasks are restricted to.

use std::collections::BTreeMap;

use crate::decisions::placement::kinds::Kinds;
use crate::decisions::placement::policy::NodeChange;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::mix::Mix;
use crate::vocabulary::request::{Constraints, Request};

/// The price of devices on each kind of node, because tasks want them that can run nowhere else. It is the demand of
/// those tasks divided by the devices that they may use, less the price of the least wanted kind. A task that may use
/// several kinds counts for each of them.
#[derive(Clone, Debug)]
pub(crate) struct Scarcity {
    kinds: Kinds,
    /// Restricted requests: their number in the mix, and their part of the mix's demand in millionths.
    restricted: Vec<(usize, i64)>,
    /// Units of cost for a whole device, if restricted tasks want as much as there is.
    weight: i64,
    /// For each node, its kind and its number of devices.
    nodes: BTreeMap<NodeId, (usize, i64)>,
    devices: Vec<i64>,
    /// The number of devices of each kind when the prices were computed.
    priced: Vec<i64>,
    prices: Vec<i64>,
}

impl Scarcity {
    /// The prices for a mix. `weight` is the cost of a device if restricted tasks want as much as there is.
    pub(crate) fn new(mix: &Mix, weight: i64) -> Self {
        let all = mix.device_core().max(1);
        let is_restricted = |request: &Request| request.constraints != Constraints::default();
        let restricted = mix.requests().enumerate().filter(|(_, (request, _))| is_restricted(request));
        let part = |request: &Request, count: u64| {
            let part = u128::from(request.total_core()) * u128::from(count) * 1_000_000 / u128::from(all);
            i64::try_from(part).unwrap_or(1_000_000)
        };
        Self {
            restricted: restricted.map(|(number, (request, count))| (number, part(request, count))).collect(),
            kinds: Kinds::new(mix),
            weight,
            nodes: BTreeMap::new(),
            devices: Vec::new(),
            priced: Vec::new(),
            prices: Vec::new(),
        }
    }

    /// Units of cost for a whole device of this node.
    pub(crate) fn price(&self, node: NodeId) -> i64 {
        self.kinds.of(node).and_then(|kind| self.prices.get(kind)).copied().unwrap_or(0)
    }

    /// Updates a node that was added or removed, or that has changed. Returns whether prices have changed. They change
    /// only after the cluster has changed by a sixteenth, because all bids are then computed anew.
    pub(crate) fn learn(&mut self, change: NodeChange<'_>) -> bool {
        if !change.spec || self.restricted.is_empty() {
            return false;
        }
        self.kinds.learn(change);
        self.devices.resize(self.kinds.len(), 0);
        if let Some((kind, devices)) = self.nodes.remove(&change.id) {
            self.devices[kind] -= devices;
        }
        if let Some((node, kind)) = change.node.zip(self.kinds.of(change.id)) {
            let devices = i64::try_from(node.devices().len()).unwrap_or(i64::MAX);
            self.nodes.insert(change.id, (kind, devices));
            self.devices[kind] += devices;
        }
        let old = self.priced.iter().copied().chain(std::iter::repeat(0));
        let changed = self.devices.iter().zip(old).any(|(now, then)| (now - then).abs() * 16 > then);
        if changed {
            self.set_prices();
        }
        changed
    }

    fn set_prices(&mut self) {
        self.priced.clone_from(&self.devices);
        let all: i64 = self.devices.iter().sum();
        let mut wanted = vec![0; self.devices.len()];
        for (request, part) in &self.restricted {
            let kinds: Vec<usize> = (0..self.devices.len()).filter(|kind| self.kinds.allow(*kind, *request)).collect();
            let devices: i64 = kinds.iter().map(|kind| self.devices[*kind]).sum();
            for kind in kinds {
                // The demand for each of these devices, in millionths, if all tasks together want as much as there is.
                wanted[kind] += part * all / devices.max(1);
            }
        }
        let with_devices = || wanted.iter().zip(&self.devices).filter(|(_, devices)| **devices > 0);
        let least = with_devices().map(|(wanted, _)| *wanted).min().unwrap_or(0);
        self.prices = wanted.iter().map(|wanted| (wanted - least).max(0) * self.weight / 1_000_000).collect();
    }
}
