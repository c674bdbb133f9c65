//! What is left of the devices, and of the stocks that they take from: the counters that devices of a pool have in common,
//! and the capacities of each device of which several requests can have shares.

use std::collections::{BTreeMap, BTreeSet};

use super::super::Groups;

/// A stock, by its number, and an amount of it.
pub(crate) type Amount = (usize, u128);

/// The compatibility groups that all given devices of a set have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Common {
    NoneGiven,
    /// Empty if the devices name no groups.
    Groups(Groups),
}

impl Common {
    /// What is in common if a device with these groups is given, too; `None`: it cannot be given. A device without groups is
    /// compatible only with others without groups.
    fn with(&self, groups: &Groups) -> Option<Common> {
        match self {
            Common::Groups(common) if common.is_empty() != groups.is_empty() => None,
            Common::Groups(common) if !common.is_empty() => {
                let both: Groups = common.intersection(groups).cloned().collect();
                (!both.is_empty()).then_some(Common::Groups(both))
            }
            _ => Some(Common::Groups(groups.clone())),
        }
    }
}

/// What is left, while devices are given.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Room {
    /// The amount that is left of each stock.
    left: Vec<u128>,
    /// What each device takes of stocks, however many requests have it. A device without an entry takes nothing.
    takes: BTreeMap<usize, Vec<Amount>>,
    /// Devices that several requests can have. Each takes the amounts of its share in addition.
    shared: BTreeSet<usize>,
    /// How many requests have each device that is given.
    given: BTreeMap<usize, usize>,
    /// Sets of counters, by number: devices that take of one set can be given together only if they have a group in common.
    /// This is what those have in common that were given from the beginning; `None`: nothing, so no further one can be given.
    sets: Vec<Option<Common>>,
    /// The sets that each device takes of, with the groups that it names for them.
    of_sets: BTreeMap<usize, Vec<(usize, Groups)>>,
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

    /// Adds a set of counters. `given`: the groups of each device that takes of it from the beginning. Returns its number.
    pub(crate) fn add_set<'a>(&mut self, given: impl IntoIterator<Item = &'a Groups>) -> usize {
        let common = given.into_iter().try_fold(Common::NoneGiven, |common, groups| common.with(groups));
        self.sets.push(common);
        self.sets.len() - 1
    }

    /// Notes the sets that a device takes of, with the groups that it names for them.
    pub(crate) fn takes_of_sets(&mut self, device: usize, sets: Vec<(usize, Groups)>) {
        if !sets.is_empty() {
            self.of_sets.insert(device, sets);
        }
    }

    /// Notes that several requests can have a device.
    pub(crate) fn share(&mut self, device: usize) {
        self.shared.insert(device);
    }

    /// Whether a share of a device can be given beside all that is given already. The share of a device that only one
    /// request can have is empty.
    pub(crate) fn has(&self, device: usize, share: &[Amount]) -> bool {
        let is_there = self.shared.contains(&device) || !self.given.contains_key(&device);
        let mut amounts = self.amounts_of(device).iter().chain(share);
        is_there && amounts.all(|(stock, amount)| *amount <= self.left_of(*stock)) && self.is_compatible(device)
    }

    /// Whether a device has groups in common with all devices that are given of its sets.
    fn is_compatible(&self, device: usize) -> bool {
        let mut sets = self.sets_of(device).iter();
        self.is_given(device)
            || sets.all(|(set, groups)| self.common_of(*set).is_some_and(|common| common.with(groups).is_some()))
    }

    /// Like [`Room::has`], for access to a device that others may have. Access to a device that only one request can have
    /// takes of the stocks once more.
    pub(super) fn has_for_access(&self, device: usize, share: &[Amount]) -> bool {
        let takes = if self.is_shared(device) { self.amounts_of(device) } else { self.all_of(device) };
        takes.iter().chain(share).all(|(stock, amount)| *amount <= self.left_of(*stock)) && self.is_compatible(device)
    }

    /// Gives access for which there is room.
    pub(super) fn give_access(&mut self, device: usize, share: &[Amount]) {
        if self.is_shared(device) || !self.is_given(device) {
            return self.give(device, share);
        }
        *self.given.entry(device).or_default() += 1;
        self.change_by_device(device, u128::saturating_sub);
    }

    /// Takes back access that was given last.
    pub(super) fn take_back_access(&mut self, device: usize, share: &[Amount]) {
        match self.given.get_mut(&device) {
            Some(given) if *given > 1 && !self.shared.contains(&device) => {
                *given -= 1;
                self.change_by_device(device, u128::saturating_add);
            }
            _ => self.take_back(device, share),
        }
    }

    /// Gives a share of a device for which there is room.
    pub(crate) fn give(&mut self, device: usize, share: &[Amount]) {
        if !self.given.contains_key(&device) {
            self.change_by_device(device, u128::saturating_sub);
        }
        *self.given.entry(device).or_default() += 1;
        change(&mut self.left, share, u128::saturating_sub);
    }

    /// Takes back a share that was given.
    pub(super) fn take_back(&mut self, device: usize, share: &[Amount]) {
        let Some(shares) = self.given.get_mut(&device) else { return };
        *shares -= 1;
        change(&mut self.left, share, u128::saturating_add);
        if *shares == 0 {
            self.given.remove(&device);
            self.change_by_device(device, u128::saturating_add);
        }
    }

    fn change_by_device(&mut self, device: usize, by: fn(u128, u128) -> u128) {
        let takes = self.takes.get(&device).map(Vec::as_slice).unwrap_or_default();
        change(&mut self.left, takes, by);
    }

    /// What a device takes of stocks if any request has it.
    pub(super) fn all_of(&self, device: usize) -> &[Amount] {
        self.takes.get(&device).map(Vec::as_slice).unwrap_or_default()
    }

    /// What a device takes of stocks if one more request has it, beside the request's share.
    pub(super) fn amounts_of(&self, device: usize) -> &[Amount] {
        let is_new = !self.given.contains_key(&device);
        if is_new { self.all_of(device) } else { &[] }
    }

    /// The sets that a device takes of, with its groups.
    pub(super) fn sets_of(&self, device: usize) -> &[(usize, Groups)] {
        self.of_sets.get(&device).map(Vec::as_slice).unwrap_or_default()
    }

    /// What the given devices of a set have in common; `None`: nothing.
    pub(super) fn common_of(&self, set: usize) -> Option<Common> {
        let first = self.sets.get(set)?.clone()?;
        let given = self.given.keys().flat_map(|device| self.sets_of(*device));
        given.filter(|(of, _)| *of == set).try_fold(first, |common, (_, groups)| common.with(groups))
    }

    pub(super) fn is_shared(&self, device: usize) -> bool {
        self.shared.contains(&device)
    }

    pub(super) fn is_given(&self, device: usize) -> bool {
        self.given.contains_key(&device)
    }

    pub(crate) fn left_of(&self, stock: usize) -> u128 {
        self.left.get(stock).copied().unwrap_or_default()
    }

    /// A number that is not less than how many devices can be given together. `takers`: for each device, the shares that
    /// requests can have of it.
    pub(super) fn most(&self, takers: &BTreeMap<usize, Vec<&[Amount]>>) -> usize {
        let mut by_stock: BTreeMap<usize, Vec<u128>> = BTreeMap::new();
        let mut most = 0_usize;
        for (device, shares) in takers {
            let fitting: Vec<&[Amount]> = shares.iter().copied().filter(|share| self.has(*device, share)).collect();
            if self.is_shared(*device) {
                most += self.most_shares(&fitting);
            } else if !fitting.is_empty() {
                // Each device counts at one stock alone: the one of which it takes the largest part.
                let part = |(stock, amount): &&Amount| amount.saturating_mul(1000) / self.left_of(*stock).max(1);
                match self.amounts_of(*device).iter().max_by_key(part) {
                    Some((stock, amount)) => by_stock.entry(*stock).or_default().push(*amount),
                    None => most += 1,
                }
            }
        }
        let of_stocks = by_stock.into_iter().map(|(stock, amounts)| self.fitting(stock, amounts));
        of_stocks.fold(most, usize::saturating_add)
    }

    /// A number that is not less than how many of these shares of one device can be given together.
    fn most_shares(&self, shares: &[&[Amount]]) -> usize {
        let mut by_stock: BTreeMap<usize, Vec<u128>> = BTreeMap::new();
        for (stock, amount) in shares.iter().copied().flatten() {
            by_stock.entry(*stock).or_default().push(*amount);
        }
        let of_stocks = by_stock.into_iter().map(|(stock, amounts)| self.fitting(stock, amounts));
        of_stocks.fold(shares.len(), usize::min)
    }

    /// How many of these amounts of a stock can be given together, at most.
    fn fitting(&self, stock: usize, mut amounts: Vec<u128>) -> usize {
        amounts.sort_unstable();
        let mut left = self.left_of(stock);
        let mut fitting = 0;
        for amount in amounts {
            let Some(rest) = left.checked_sub(amount) else { break };
            left = rest;
            fitting += 1;
        }
        fitting
    }
}

fn change(left: &mut [u128], amounts: &[Amount], change: fn(u128, u128) -> u128) {
    for (stock, amount) in amounts {
        if let Some(left) = left.get_mut(*stock) {
            *left = change(*left, *amount);
        }
    }
}
