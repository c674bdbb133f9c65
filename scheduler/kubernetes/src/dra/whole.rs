//! Chooses devices for several requests together: whole ones, and shares of devices that several requests can have. The
//! search is exact, and tries in the order of Kubernetes' own allocator.
//!
//! Devices are numbered from 0. A request takes the first of its choices, and the first devices for it, with which the
//! requests after it find devices, too.

mod bounds;
mod certain;
mod dead_ends;
mod room;

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::Comparison;

use super::Linked;
use bounds::{narrowed, twins, unservable};
use certain::beside_certain;
use dead_ends::DeadEnds;
pub(crate) use room::{Amount, Room};

/// Devices that one claim can have, at most. The limit is Kubernetes'.
pub(crate) const RESULTS_MAX: usize = 32;
/// Trials of a device, after which the search is given up. The core, too, takes a node for full after this many trials.
pub(crate) const TRIALS_MAX: u32 = 20_000;

/// A request of a claim.
#[derive(Clone, Debug)]
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
#[derive(Clone, Debug)]
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
#[derive(Clone, Debug)]
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

/// Whether what all requests get is accepted by a caller who knows more than the rules say.
type Acceptance<'a> = dyn Fn(&[Given]) -> bool + 'a;

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

/// Finds devices for all requests, as far as there is room for them. The result is in the order of the requests. The
/// search is given up after `trials_max` trials of a device.
///
/// # Errors
/// The requests cannot have devices together, or the search was given up.
pub(crate) fn search(
    requests: &[Request],
    rules: &[Rule],
    room: &Room,
    trials_max: u32,
) -> Result<Vec<Given>, Failure> {
    begin(requests, rules, room, trials_max, None)
}

/// Like [`search`], but `is_accepted` must also accept the result. It is asked each time that a further request has its
/// devices, with what all requests up to this one get. If it refuses these, it must refuse them with more requests, too.
pub(crate) fn search_where(
    requests: &[Request],
    rules: &[Rule],
    room: &Room,
    trials_max: u32,
    is_accepted: &Acceptance<'_>,
) -> Result<Vec<Given>, Failure> {
    begin(requests, rules, room, trials_max, Some(is_accepted))
}

fn begin(
    requests: &[Request],
    rules: &[Rule],
    room: &Room,
    trials_max: u32,
    is_accepted: Option<&Acceptance<'_>>,
) -> Result<Vec<Given>, Failure> {
    let requests: Vec<Request> =
        requests.iter().enumerate().map(|(place, request)| narrowed(place, request, rules, room)).collect();
    if let Some(request) = unservable(&requests, rules, room) {
        return Err(Failure { request, is_given_up: false });
    }
    let requests = beside_certain(requests, room).map_err(|request| Failure { request, is_given_up: false })?;
    // What is not accepted with one device may be accepted with another one that is like it.
    let twins = if is_accepted.is_none() { twins(&requests, rules, room) } else { BTreeMap::new() };
    let (given, room) = (Vec::new(), room.clone());
    let has_admins = requests.iter().any(|request| request.is_admin);
    // Nor does it follow that requests fail again when the same is left for them: another way there may be accepted.
    let dead_ends = is_accepted.is_none().then(|| DeadEnds::new(&requests, rules, has_admins));
    let (trials, furthest) = (0, 0);
    let mut search = Search {
        requests: &requests,
        rules,
        trials_max,
        is_accepted,
        twins,
        has_admins,
        dead_ends,
        given,
        room,
        trials,
        furthest,
    };
    match search.serve_from(0) {
        true => Ok(search.given),
        false => Err(Failure { request: search.furthest, is_given_up: search.trials > trials_max }),
    }
}

/// The number of a device's twins, whether it is given already, the claims that have it already and whether each has access
/// only, and what is left of its capacities. Without administrative access it makes no difference which claims have it.
type Likeness = (usize, bool, Vec<(usize, bool)>, Vec<u128>);

struct Search<'a> {
    requests: &'a [Request],
    rules: &'a [Rule],
    trials_max: u32,
    is_accepted: Option<&'a Acceptance<'a>>,
    /// By device. Those without a number have no twin.
    twins: BTreeMap<usize, usize>,
    /// Some requests ask for administrative access.
    has_admins: bool,
    /// `None`: a caller decides what is accepted, so each way is tried.
    dead_ends: Option<DeadEnds<'a>>,
    /// What the requests up to the current one get, if the later ones find devices, too.
    given: Vec<Given>,
    /// What is left beside that.
    room: Room,
    trials: u32,
    furthest: usize,
}

impl Search<'_> {
    /// Finds devices for the request at this place and for the requests after it. Returns whether it did.
    fn serve_from(&mut self, place: usize) -> bool {
        if self.is_accepted.is_some_and(|is_accepted| !is_accepted(&self.given)) {
            return false;
        }
        let Some(request) = self.requests.get(place) else { return true };
        if self.dead_ends.as_ref().is_some_and(|dead_ends| dead_ends.has(place, &self.given, &self.room)) {
            return false;
        }
        self.furthest = self.furthest.max(place);
        let of_claim = self.requests.iter().zip(&self.given).filter(|(before, _)| before.claim == request.claim);
        let before: usize = of_claim.map(|(_, given)| given.devices.len()).sum();
        for (number, choice) in request.choices.iter().enumerate() {
            if before.saturating_add(choice.count) > RESULTS_MAX {
                continue;
            }
            self.given.push(Given { choice: number, devices: Vec::new() });
            if self.add_devices(place, choice, &choice.devices, choice.count) {
                return true;
            }
            self.given.pop();
        }
        if let Some(dead_ends) = self.dead_ends.as_mut().filter(|_| self.trials <= self.trials_max) {
            dead_ends.note(place, &self.given, &self.room);
        }
        false
    }

    /// Gives `missing` of these devices to the request at this place, which has this choice, and then serves the requests
    /// after it.
    fn add_devices(&mut self, place: usize, choice: &Choice, devices: &[usize], missing: usize) -> bool {
        if missing == 0 {
            return self.serve_from(place + 1);
        }
        let mut left = devices;
        let mut in_vain: BTreeSet<Likeness> = BTreeSet::new();
        while let [device, rest @ ..] = left {
            if left.len() < missing {
                return false;
            }
            left = rest;
            let share = choice.share_of(*device);
            let likeness = self.likeness(*device, share);
            if likeness.as_ref().is_some_and(|likeness| in_vain.contains(likeness)) {
                continue;
            }
            self.trials += 1;
            if self.trials > self.trials_max {
                return false;
            }
            if self.is_allowed(place, *device, share) {
                self.give(place, *device, share);
                if self.add_devices(place, choice, rest, missing - 1) {
                    return true;
                }
                self.take_back(place, *device, share);
                in_vain.extend(likeness);
            }
        }
        false
    }

    /// What a device has in common with its twins that can replace it now: of a device with shares also what is left.
    fn likeness(&self, device: usize, share: &[Amount]) -> Option<Likeness> {
        let twin = *self.twins.get(&device)?;
        let left = share.iter().map(|(stock, _)| self.room.left_of(*stock)).collect();
        let having = self.requests.iter().zip(&self.given).filter(|(_, given)| given.devices.contains(&device));
        let holders = having.map(|(request, _)| (request.claim, request.is_admin));
        let holders = if self.has_admins { holders.collect() } else { Vec::new() };
        Some((twin, self.room.is_given(device), holders, left))
    }

    fn is_admin(&self, place: usize) -> bool {
        self.requests.get(place).is_some_and(|request| request.is_admin)
    }

    fn give(&mut self, place: usize, device: usize, share: &[Amount]) {
        match self.is_admin(place) {
            true => self.room.give_access(device, share),
            false => self.room.give(device, share),
        }
        if let Some(given) = self.given.last_mut() {
            given.devices.push(device);
        }
    }

    fn take_back(&mut self, place: usize, device: usize, share: &[Amount]) {
        match self.is_admin(place) {
            true => self.room.take_back_access(device, share),
            false => self.room.take_back(device, share),
        }
        if let Some(given) = self.given.last_mut() {
            given.devices.pop();
        }
    }

    /// Whether the request at this place can have a device beside all devices that are given already. It is the last
    /// request in `given`.
    fn is_allowed(&self, place: usize, device: usize, share: &[Amount]) -> bool {
        let Some(choice) = self.given.last().map(|given| given.choice) else { return false };
        let keeps = |rule: &Rule| {
            let own = rule.values(device);
            let linked = self.given.iter().enumerate().filter(|(place, given)| rule.is_about(*place, given.choice));
            let others = linked.flat_map(|(_, given)| &given.devices).map(|other| rule.values(*other));
            !own.is_empty() && rule.is_kept(own, others)
        };
        let has_room = match self.is_admin(place) {
            true => self.room.has_for_access(device, share),
            false => self.room.has(device, share),
        };
        has_room
            && self.is_apart(place, device)
            && self.rules.iter().filter(|rule| rule.is_about(place, choice)).all(keeps)
    }

    /// Whether no other request of the same claim has a device, if this request or the other one has access only.
    fn is_apart(&self, place: usize, device: usize) -> bool {
        let Some(request) = self.requests.get(place) else { return false };
        let mut others = self.requests.iter().zip(&self.given).take(place);
        let is_in_the_way = |(other, given): (&Request, &Given)| {
            other.claim == request.claim && (other.is_admin || request.is_admin) && given.devices.contains(&device)
        };
        self.room.is_shared(device) || !others.any(is_in_the_way)
    }
}

#[cfg(test)]
mod tests;
