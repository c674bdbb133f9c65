//! What is left of the devices, and of the stocks that several devices take from: the counters of a pool.

use std::collections::{BTreeMap, BTreeSet};

/// A stock, by its number, and an amount of it.
pub(crate) type Amount = (usize, u128);

/// What is left, while devices are given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    /// The amount that is left of each stock.
    left: Vec<u128>,
    /// What each device takes of stocks. A device without an entry takes nothing.
    takes: BTreeMap<usize, Vec<Amount>>,
    given: BTreeSet<usize>,
}

impl Room {
    /// Adds a stock of which this amount is left. Returns its number.
    pub(crate) fn add_stock(&mut self, left: u128) -> usize {
        self.left.push(left);
        self.left.len() - 1
    }

    /// Notes what a device takes of stocks when it is given: one amount of each.
    pub(crate) fn takes(&mut self, device: usize, amounts: Vec<Amount>) {
        if !amounts.is_empty() {
            self.takes.insert(device, amounts);
        }
    }

    /// Whether a device can be given beside all that are given already.
    pub(crate) fn has(&self, device: usize) -> bool {
        !self.given.contains(&device)
            && self.amounts_of(device).iter().all(|(stock, amount)| *amount <= self.left_of(*stock))
    }

    /// Gives a device for which there is room.
    pub(crate) fn give(&mut self, device: usize) {
        if self.given.insert(device) {
            self.change(device, u128::saturating_sub);
        }
    }

    pub(super) fn take_back(&mut self, device: usize) {
        if self.given.remove(&device) {
            self.change(device, u128::saturating_add);
        }
    }

    fn change(&mut self, device: usize, change: fn(u128, u128) -> u128) {
        let Room { left, takes, .. } = self;
        for (stock, amount) in takes.get(&device).into_iter().flatten() {
            if let Some(left) = left.get_mut(*stock) {
                *left = change(*left, *amount);
            }
        }
    }

    pub(super) fn amounts_of(&self, device: usize) -> &[Amount] {
        self.takes.get(&device).map(Vec::as_slice).unwrap_or_default()
    }

    fn left_of(&self, stock: usize) -> u128 {
        self.left.get(stock).copied().unwrap_or_default()
    }

    /// A number that is not less than how many of these devices can be given together.
    pub(super) fn most(&self, devices: impl Iterator<Item = usize>) -> usize {
        let mut by_stock: BTreeMap<usize, Vec<u128>> = BTreeMap::new();
        let mut most = 0_usize;
        for device in devices.filter(|device| self.has(*device)) {
            // Each device counts at one stock alone: the one of which it takes the largest part.
            let part = |(stock, amount): &&Amount| amount.saturating_mul(1000) / self.left_of(*stock).max(1);
            match self.amounts_of(device).iter().max_by_key(part) {
                Some((stock, amount)) => by_stock.entry(*stock).or_default().push(*amount),
                None => most += 1,
            }
        }
        for (stock, mut amounts) in by_stock {
            amounts.sort_unstable();
            let mut left = self.left_of(stock);
            for amount in amounts {
                let Some(rest) = left.checked_sub(amount) else { break };
                left = rest;
                most += 1;
            }
        }
        most
    }
}
