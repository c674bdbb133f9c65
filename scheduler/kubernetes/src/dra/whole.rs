//! Chooses devices for several requests together: whole ones, and shares of devices that several requests can have. The
//! search is exact, and tries in the order of Kubernetes' own allocator.
//!
//! Devices are numbered from 0. A request takes the first of its choices, and the first devices for it, with which the
//! requests after it find devices, too.

mod bounds;
mod certain;
mod dead_ends;
mod parts;
mod room;
mod search;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_scheduler_core::Comparison;

use super::Linked;
pub(crate) use parts::Parts;
pub(crate) use room::{Amount, Room};
pub(crate) use search::Search;

/// For what devices are searched. Equal tasks have equal results, whatever node they are about.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Task {
    pub(crate) requests: Arc<[Request]>,
    pub(crate) rules: Arc<[Rule]>,
    pub(crate) room: Room,
    /// Of devices that requests have parts of.
    pub(crate) parts: Arc<Parts>,
}

/// Devices that one claim can have, at most. The limit is Kubernetes'.
pub(crate) const RESULTS_MAX: usize = 32;
/// Trials of a device, after which the search is given up. The core, too, takes a node for full after this many trials.
pub(crate) const TRIALS_MAX: u32 = 20_000;

/// A request of a claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Request {
    /// The number of the claim that the request belongs to.
    pub(crate) claim: usize,
    /// In order of preference: the first choice that can be had is taken.
    pub(crate) choices: Vec<Choice>,
    /// It asks for access beside those who have the devices already, and needs room in the stocks, as all requests do. Of
    /// the requests of its claim, no other one has these devices, except those that several requests can have. Later
    /// requests of other claims can only have access, too.
    pub(crate) is_admin: bool,
}

/// Asks for `count` different ones of these devices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Choice {
    pub(crate) count: usize,
    /// The devices that will do and are free, in the order in which they are tried.
    pub(crate) devices: Vec<usize>,
    /// What the choice takes of the capacities of those devices that several requests can have.
    pub(crate) shares: BTreeMap<usize, Vec<Amount>>,
}

impl Choice {
    /// Asks for whole devices.
    pub(crate) fn of(count: usize, devices: Vec<usize>) -> Choice {
        Choice { count, devices, shares: BTreeMap::new() }
    }

    /// A choice that cannot be had.
    pub(crate) fn none() -> Choice {
        Choice::of(usize::MAX, Vec::new())
    }

    /// The amounts of the share that the choice takes of a device. A whole device has none.
    pub(crate) fn share_of(&self, device: usize) -> &[Amount] {
        self.shares.get(&device).map(Vec::as_slice).unwrap_or_default()
    }
}

/// A value that the devices of some requests must have in common, or in which they must all differ.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rule {
    /// The requests that the rule is about, by their places among all requests.
    pub(crate) linked: Vec<Linked>,
    pub(crate) comparison: Comparison,
    /// The numbers of each device's compared values, ascending: equal values have equal numbers. A device has several if
    /// its attribute is a list. One without a value will not do.
    values: Vec<Vec<usize>>,
}

impl Rule {
    /// `values`: the compared values of each device.
    pub(crate) fn new(linked: Vec<Linked>, comparison: Comparison, values: impl Iterator<Item = Vec<String>>) -> Rule {
        let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
        let mut number = |value: String| {
            let next = numbers.len();
            *numbers.entry(value).or_insert(next)
        };
        let of_device = |values: Vec<String>| {
            let different: BTreeSet<usize> = values.into_iter().map(&mut number).collect();
            different.into_iter().collect()
        };
        Rule { linked, comparison, values: values.map(of_device).collect() }
    }

    fn is_about(&self, request: usize, choice: usize) -> bool {
        self.linked.iter().any(|of| of.request == request && of.choice.is_none_or(|of| of == choice))
    }

    fn values(&self, device: usize) -> &[usize] {
        self.values.get(device).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether a device with these values may be given beside the other devices that the rule is about: all have a value
    /// in common, or no two of them have.
    fn is_kept<'a>(&self, own: &[usize], mut others: impl Iterator<Item = &'a [usize]> + Clone) -> bool {
        let is_common = |value: &usize| others.clone().all(|other| other.contains(value));
        match self.comparison {
            Comparison::Same => own.iter().any(is_common),
            Comparison::Distinct => others.all(|other| !own.iter().any(|value| other.contains(value))),
        }
    }
}

/// What a request gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) choice: usize,
    pub(crate) devices: Vec<usize>,
}

/// Why the requests get nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The place of the furthest request that was tried: no devices were found for it beside those of the requests
    /// before.
    pub(crate) request: usize,
    /// The search was given up before everything was tried.
    pub(crate) is_given_up: bool,
}

impl Task {
    /// The same with this room.
    pub(crate) fn in_room(&self, room: Room) -> Task {
        let Task { requests, rules, parts, .. } = self;
        Task { requests: Arc::clone(requests), rules: Arc::clone(rules), room, parts: Arc::clone(parts) }
    }

    /// Finds devices for all requests, as far as there is room for them. The result is in the order of the requests. The
    /// search is given up after `trials_max` trials of a device.
    ///
    /// # Errors
    /// The requests cannot have devices together, or the search was given up.
    pub(crate) fn search(&self, trials_max: u32) -> Result<Vec<Given>, Failure> {
        let mut search = Search::begin(self)?;
        search.go_on(trials_max.into()).unwrap_or_else(|| Err(search.given_up()))
    }
}

#[cfg(test)]
mod tests;
