//! What can be ruled out before devices are tried.

use std::collections::BTreeMap;

use aliquot_scheduler_core::Comparison;

use super::super::Groups;
use super::room::Amount;
use super::{Choice, Request, Room, Rule};

/// The request without the devices that are ruled out whatever the other requests get: by the rules, or because there
/// is no room for them.
pub(super) fn narrowed(place: usize, request: &Request, rules: &[Rule], room: &Room) -> Request {
    let of_choice = |(number, asked): (usize, &Choice)| {
        let mut choice = asked.clone();
        choice.devices.retain(|device| match request.is_admin {
            true => room.has_for_access(*device, asked.share_of(*device)),
            false => room.has(*device, asked.share_of(*device)),
        });
        for rule in rules.iter().filter(|rule| rule.is_about(place, number)) {
            let mut with_value: BTreeMap<usize, usize> = BTreeMap::new();
            for value in choice.devices.iter().flat_map(|device| rule.values(*device)) {
                *with_value.entry(*value).or_default() += 1;
            }
            let is_enough = |value: &usize| match rule.comparison {
                Comparison::Same => with_value.get(value).is_some_and(|devices| *devices >= choice.count),
                Comparison::Distinct => with_value.len() >= choice.count,
            };
            choice.devices.retain(|device| rule.values(*device).iter().any(is_enough));
        }
        choice
    };
    Request { choices: request.choices.iter().enumerate().map(of_choice).collect(), ..*request }
}

/// The first request for which too few devices, or too few values of a rule, are left beside the requests before it,
/// whichever devices are taken. `None`: the requests may be served together.
pub(super) fn unservable(requests: &[Request], rules: &[Rule], room: &Room) -> Option<usize> {
    // For each request, the devices that it takes at least.
    let mut least = Vec::new();
    for (place, request) in requests.iter().enumerate() {
        let is_possible = |choice: &&Choice| match request.is_admin {
            true => choice.devices.len() >= choice.count,
            false => room.most(&takers([*choice].into_iter())) >= choice.count,
        };
        let possible = request.choices.iter().filter(is_possible);
        let Some(count) = possible.map(|choice| choice.count).min() else { return Some(place) };
        // Access is beside others, so it does not count here.
        least.push(if request.is_admin { 0 } else { count });
    }
    let of_rule = |rule: &Rule| {
        let linked = requests.iter().enumerate().flat_map(|(place, request)| {
            let choices = taking(request).iter().enumerate();
            choices.filter(move |(number, _)| rule.is_about(place, *number)).map(|(_, choice)| choice)
        });
        let mut with_value: BTreeMap<usize, BTreeMap<usize, Vec<&[Amount]>>> = BTreeMap::new();
        for (device, shares) in takers(linked) {
            for value in rule.values(device) {
                with_value.entry(*value).or_default().insert(device, shares.clone());
            }
        }
        let most = match rule.comparison {
            Comparison::Same => with_value.values().map(|takers| room.most(takers)).max().unwrap_or(0),
            Comparison::Distinct => with_value.len(),
        };
        let is_linked = |place: usize, request: &Request| (0..request.choices.len()).all(|of| rule.is_about(place, of));
        let linked = requests.iter().zip(&least).enumerate().filter(|(place, (request, _))| is_linked(*place, request));
        first_beyond(most, linked.map(|(place, (_, count))| (place, *count)))
    };
    let most = room.most(&takers(requests.iter().flat_map(taking)));
    first_beyond(most, least.iter().copied().enumerate()).or_else(|| rules.iter().find_map(of_rule))
}

/// The choices with which a request takes its devices from others.
fn taking(request: &Request) -> &[Choice] {
    if request.is_admin { &[] } else { &request.choices }
}

/// For each device of these choices, the shares that they take of it.
fn takers<'a>(choices: impl Iterator<Item = &'a Choice>) -> BTreeMap<usize, Vec<&'a [Amount]>> {
    let mut takers: BTreeMap<usize, Vec<&[Amount]>> = BTreeMap::new();
    for choice in choices {
        for device in &choice.devices {
            takers.entry(*device).or_default().push(choice.share_of(*device));
        }
    }
    takers
}

/// The first of these requests with which more is asked for than there is. `counts`: what each request asks for.
fn first_beyond(most: usize, mut counts: impl Iterator<Item = (usize, usize)>) -> Option<usize> {
    let mut asked = 0_usize;
    counts.find_map(|(place, count)| {
        asked = asked.saturating_add(count);
        (asked > most).then_some(place)
    })
}

/// For each device the number of its *twins*: devices that can replace each other in every way to serve the requests, as
/// long as the same is left of their capacities. If a request cannot have one of them, it cannot have another one.
pub(super) fn twins(requests: &[Request], rules: &[Rule], room: &Room) -> BTreeMap<usize, usize> {
    type Likeness<'a> = (Vec<(usize, usize, Vec<u128>)>, Vec<&'a [usize]>, &'a [Amount], &'a [(usize, Groups)], bool);
    let mut alike: BTreeMap<usize, Likeness<'_>> = BTreeMap::new();
    for (place, request) in requests.iter().enumerate() {
        for (number, choice) in request.choices.iter().enumerate() {
            for device in &choice.devices {
                let new = || {
                    let values = rules.iter().map(|rule| rule.values(*device)).collect();
                    let (amounts, sets) = (room.amounts_of(*device), room.sets_of(*device));
                    (Vec::new(), values, amounts, sets, room.is_shared(*device))
                };
                // Each device has stocks of its own for shares, so only the amounts are compared.
                let share = choice.share_of(*device).iter().map(|(_, amount)| *amount).collect();
                alike.entry(*device).or_insert_with(new).0.push((place, number, share));
            }
        }
    }
    let mut numbers: BTreeMap<Likeness<'_>, usize> = BTreeMap::new();
    let number = |(device, likeness)| {
        let next = numbers.len();
        (device, *numbers.entry(likeness).or_insert(next))
    };
    alike.into_iter().map(number).collect()
}
