//! What follows, before devices are tried, from requests that need all the devices that are left for them.

use std::collections::BTreeMap;

use super::{Amount, Choice, Request, Room};

/// A request that needs all its devices, as one for all devices of a node does.
#[derive(Clone, Copy)]
struct Certain<'a> {
    place: usize,
    request: &'a Request,
    choice: &'a Choice,
}

impl<'a> Certain<'a> {
    fn of((place, request): (usize, &'a Request)) -> Option<Certain<'a>> {
        let [choice] = request.choices.as_slice() else { return None };
        (choice.count == choice.devices.len()).then_some(Certain { place, request, choice })
    }

    fn shares(self) -> impl Iterator<Item = &'a Amount> {
        self.choice.devices.iter().flat_map(move |device| self.choice.share_of(*device))
    }

    /// Whether another request cannot have a device, because this one has it as a whole.
    fn keeps(self, device: usize, place: usize, claim: usize, is_admin: bool) -> bool {
        // A later claim can have access to what an earlier one has.
        let is_later_access = if place < self.place { self.request.is_admin } else { is_admin };
        let can_both = is_later_access && claim != self.request.claim;
        !can_both && self.choice.devices.contains(&device)
    }
}

/// The requests without the devices that they cannot have beside the other requests that need all of theirs.
///
/// # Errors
/// A request, by its place, lacks devices by this. The place is its own, or that of the last request that needs all, if
/// this comes later: what comes earlier has its devices first.
pub(super) fn beside_certain(requests: Vec<Request>, room: &Room) -> Result<Vec<Request>, usize> {
    let certain: Vec<Certain<'_>> = requests.iter().enumerate().filter_map(Certain::of).collect();
    let Some(last) = certain.last().map(|certain| certain.place) else { return Ok(requests) };
    let beside = |(place, request): (usize, &Request)| {
        let mut request = request.clone();
        let others: Vec<Certain<'_>> = certain.iter().copied().filter(|other| other.place != place).collect();
        let mut taken: BTreeMap<usize, u128> = BTreeMap::new();
        for (stock, amount) in others.iter().flat_map(|other| other.shares()) {
            let taken = taken.entry(*stock).or_default();
            *taken = taken.saturating_add(*amount);
        }
        let is_left = |(stock, amount): &Amount| {
            taken.get(stock).is_none_or(|taken| taken.saturating_add(*amount) <= room.left_of(*stock))
        };
        let (claim, is_admin) = (request.claim, request.is_admin);
        for choice in &mut request.choices {
            let Choice { devices, shares, .. } = choice;
            devices.retain(|device| match room.is_shared(*device) {
                true => shares.get(device).into_iter().flatten().all(is_left),
                false => !others.iter().any(|other| other.keeps(*device, place, claim, is_admin)),
            });
        }
        let is_possible = request.choices.iter().any(|choice| choice.count <= choice.devices.len());
        if is_possible { Ok(request) } else { Err(place.max(last)) }
    };
    requests.iter().enumerate().map(beside).collect()
}
