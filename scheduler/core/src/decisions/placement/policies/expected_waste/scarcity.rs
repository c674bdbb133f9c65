//! Nodes that some of the expected tasks are restricted to.

use std::collections::BTreeMap;

use crate::decisions::placement::kinds::Kinds;
use crate::decisions::placement::policy::NodeChange;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::mix::Mix;
use crate::vocabulary::request::{Constraints, Request};

/// What the devices of each kind of node cost for being wanted by tasks that can run nowhere else: the demand of those
/// tasks over the devices that they may use, each task restricted to several kinds counting for each of them, less what
/// the least wanted kind costs.
#[derive(Clone, Debug)]
pub(crate) struct Scarcity {
    kinds: Kinds,
    /// Restricted requests: their number in the mix, and their part of the mix's demand in millionths.
    restricted: Vec<(usize, i64)>,
    /// Units of cost for a whole device of which as much is wanted as there is.
    weight: i64,
    /// Of each node, its kind and devices.
    nodes: BTreeMap<NodeId, (usize, i64)>,
    devices: Vec<i64>,
    /// Devices of each kind when the prices were made.
    priced: Vec<i64>,
    prices: Vec<i64>,
}

impl Scarcity {
    /// For a mix. `weight` is what a device costs, of which restricted tasks want as much as there is.
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

    /// Takes in a node that was added, removed, or has changed. Returns whether prices have changed: only when the
    /// cluster has changed by a sixteenth, because then all bids are made anew.
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
                // What is wanted of each of these devices, in millionths, if all tasks together want as much as there
                // is.
                wanted[kind] += part * all / devices.max(1);
            }
        }
        let with_devices = || wanted.iter().zip(&self.devices).filter(|(_, devices)| **devices > 0);
        let least = with_devices().map(|(wanted, _)| *wanted).min().unwrap_or(0);
        self.prices = wanted.iter().map(|wanted| (wanted - least).max(0) * self.weight / 1_000_000).collect();
    }
}
