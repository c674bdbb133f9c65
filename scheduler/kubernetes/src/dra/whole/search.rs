//! The search itself. It can be stopped before any trial, and goes on later where it was stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::bounds::{narrowed, twins, unservable};
use super::certain::beside_certain;
use super::dead_ends::DeadEnds;
use super::{Amount, Failure, Given, Parts, RESULTS_MAX, Request, Room, Rule, Task};

/// A search that has begun.
#[derive(Debug)]
pub(crate) struct Search {
    /// Without the devices that are ruled out before any is tried.
    requests: Arc<[Request]>,
    rules: Arc<[Rule]>,
    parts: Arc<Parts>,
    /// By device. Those without a number have no twin.
    twins: BTreeMap<usize, usize>,
    /// Some requests ask for administrative access.
    has_admins: bool,
    /// `None`: each way is tried.
    dead_ends: Option<DeadEnds>,
    /// What the requests up to the current one get, if the later ones find devices, too.
    given: Vec<Given>,
    /// What is left beside that.
    room: Room,
    /// What is to be done, the next step last. If a step is in vain, the one before it goes on.
    steps: Vec<Step>,
    trials: u64,
    furthest: usize,
}

#[derive(Debug)]
enum Step {
    /// The requests from this place on are to be served.
    Serve(usize),
    /// The request at this place is to have one of its choices, this one or a later one.
    Choose { place: usize, next: usize },
    /// The last request that has a choice is to have more devices.
    Add(Adding),
}

/// How a request gets one more device, and those that it lacks after this one.
#[derive(Debug)]
struct Adding {
    /// The place of the request.
    place: usize,
    /// The place, among the devices of its choice, of the first one that was not tried yet.
    next: usize,
    /// How many devices it lacks.
    missing: usize,
    /// The device that it has for now.
    tried: Option<(usize, Option<Likeness>)>,
    in_vain: BTreeSet<Likeness>,
}

/// The number of a device's twins, whether it is given already, the claims that have it already and whether each has access
/// only, and what is left of its capacities. Without administrative access it makes no difference which claims have it.
type Likeness = (usize, bool, Vec<(usize, bool)>, Vec<u128>);

/// What has come of looking for one more device.
enum Found {
    Device(Adding),
    Nothing,
    /// There may be one, but as many trials were made as were allowed.
    Stopped(Adding),
}

impl Adding {
    fn of(place: usize, next: usize, missing: usize) -> Adding {
        Adding { place, next, missing, tried: None, in_vain: BTreeSet::new() }
    }
}

impl Search {
    /// # Errors
    /// It is seen without a trial that the requests cannot have devices together.
    pub(crate) fn begin(task: &Task) -> Result<Search, Failure> {
        let Task { requests, rules, room, parts } = task;
        let requests: Vec<Request> =
            requests.iter().enumerate().map(|(place, request)| narrowed(place, request, rules, room)).collect();
        if let Some(request) = unservable(&requests, rules, room) {
            return Err(Failure { request, is_given_up: false });
        }
        let requests = beside_certain(requests, room).map_err(|request| Failure { request, is_given_up: false })?;
        let requests: Arc<[Request]> = requests.into();
        let has_admins = requests.iter().any(|request| request.is_admin);
        // For parts of devices it makes a difference which device is given, and how the same came to be left for others.
        let has_parts = !parts.is_empty();
        let twins = if has_parts { BTreeMap::new() } else { twins(&requests, rules, room) };
        let dead_ends = (!has_parts).then(|| DeadEnds::new(&requests, rules, has_admins));
        let (rules, parts, room) = (Arc::clone(rules), Arc::clone(parts), room.clone());
        let (given, steps, trials, furthest) = (Vec::new(), vec![Step::Serve(0)], 0, 0);
        Ok(Search { requests, rules, parts, twins, has_admins, dead_ends, given, room, steps, trials, furthest })
    }

    /// How many trials of a device were made.
    pub(crate) fn trials(&self) -> u64 {
        self.trials
    }

    /// That the search ended before everything was tried.
    pub(crate) fn given_up(&self) -> Failure {
        Failure { request: self.furthest, is_given_up: true }
    }

    /// Frees memory that saves trials.
    pub(crate) fn forget_dead_ends(&mut self) {
        self.dead_ends.iter_mut().for_each(DeadEnds::forget);
    }

    /// Makes so many more trials at most. `None`: the search is not at its end.
    pub(crate) fn go_on(&mut self, trials: u64) -> Option<Result<Vec<Given>, Failure>> {
        let end = self.trials.saturating_add(trials);
        while let Some(step) = self.steps.pop() {
            match step {
                Step::Serve(_) if !self.parts.have_room(&self.given) => {}
                Step::Serve(place) if place >= self.requests.len() => {
                    return Some(Ok(std::mem::take(&mut self.given)));
                }
                Step::Serve(place) => {
                    let dead_ends = self.dead_ends.as_ref();
                    if !dead_ends.is_some_and(|dead_ends| dead_ends.has(place, &self.given, &self.room)) {
                        self.furthest = self.furthest.max(place);
                        self.steps.push(Step::Choose { place, next: 0 });
                    }
                }
                Step::Choose { place, next } => self.choose(place, next),
                Step::Add(adding) => match self.look_further(adding, end) {
                    Found::Device(adding) => {
                        let Adding { place, next, missing, .. } = adding;
                        self.steps.push(Step::Add(adding));
                        self.steps.push(match missing {
                            0 | 1 => Step::Serve(place + 1),
                            _ => Step::Add(Adding::of(place, next, missing - 1)),
                        });
                    }
                    Found::Nothing => {}
                    Found::Stopped(adding) => {
                        self.steps.push(Step::Add(adding));
                        return None;
                    }
                },
            }
        }
        Some(Err(Failure { request: self.furthest, is_given_up: false }))
    }

    /// Gives the request at this place its next choice that a claim can have. The choice before is in vain.
    fn choose(&mut self, place: usize, next: usize) {
        self.given.truncate(place);
        let Some(request) = self.requests.get(place) else { return };
        let of_claim = self.requests.iter().zip(&self.given).filter(|(before, _)| before.claim == request.claim);
        let before: usize = of_claim.map(|(_, given)| given.devices.len()).sum();
        let mut choices = request.choices.iter().enumerate().skip(next);
        match choices.find(|(_, choice)| before.saturating_add(choice.count) <= RESULTS_MAX) {
            Some((number, choice)) => {
                self.given.push(Given { choice: number, devices: Vec::new() });
                self.steps.push(Step::Choose { place, next: number + 1 });
                self.steps.push(match choice.count {
                    0 => Step::Serve(place + 1),
                    count => Step::Add(Adding::of(place, 0, count)),
                });
            }
            None => {
                if let Some(dead_ends) = self.dead_ends.as_mut() {
                    dead_ends.note(place, &self.given, &self.room);
                }
            }
        }
    }

    /// Gives a request the next device with which it was not tried yet, in place of the one that it has for now. `end`: no
    /// further trial is made after so many.
    fn look_further(&mut self, mut adding: Adding, end: u64) -> Found {
        let place = adding.place;
        let requests = Arc::clone(&self.requests);
        let choice = || requests.get(place)?.choices.get(self.given.last()?.choice);
        let Some(choice) = choice() else { return Found::Nothing };
        if let Some((device, likeness)) = adding.tried.take() {
            self.take_back(place, device, choice.share_of(device));
            adding.in_vain.extend(likeness);
        }
        loop {
            let left = choice.devices.get(adding.next..).unwrap_or_default();
            let Some(device) = left.first().copied().filter(|_| left.len() >= adding.missing) else {
                return Found::Nothing;
            };
            let share = choice.share_of(device);
            let likeness = self.likeness(device, share);
            if likeness.as_ref().is_some_and(|likeness| adding.in_vain.contains(likeness)) {
                adding.next += 1;
                continue;
            }
            if self.trials >= end {
                return Found::Stopped(adding);
            }
            self.trials += 1;
            adding.next += 1;
            if self.is_allowed(place, device, share) {
                self.give(place, device, share);
                adding.tried = Some((device, likeness));
                return Found::Device(adding);
            }
        }
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
