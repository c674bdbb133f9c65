//! What a search need not try again: from some place on, requests are served or not by what is left for them alone. It
//! makes no difference how the requests before them came to leave it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_scheduler_core::Comparison;

use super::room::Common;
use super::{Given, Request, Room, Rule};

/// Cases that are noted, at most. Further ones are tried again when they come again.
const KNOWN_MAX: usize = 50_000;

/// What is left for the requests from a place on, as far as it matters to them.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Left {
    place: usize,
    /// The devices that they can have and that are given already, each with the claims that have it and whether each of
    /// them has access only. Without administrative access it makes no difference which claims have it.
    given: Vec<(usize, Vec<(usize, bool)>)>,
    /// What is left of the stocks from which they can take.
    stocks: Vec<u128>,
    /// What the given devices have in common of the sets that they can take of.
    sets: Vec<Option<Common>>,
    /// For each rule about one of them, the values of the devices that are given already: those that all have in common, or
    /// those of any, as the rule compares them.
    values: Vec<BTreeSet<usize>>,
    /// How many devices each of their claims has already. A claim can have [`super::RESULTS_MAX`] at most.
    of_claims: BTreeMap<usize, usize>,
}

/// What matters to the requests from a place on.
#[derive(Debug)]
struct Scope {
    devices: BTreeSet<usize>,
    stocks: BTreeSet<usize>,
    sets: BTreeSet<usize>,
    /// The rules by their places.
    rules: Vec<usize>,
    claims: BTreeSet<usize>,
}

/// The cases in which the requests from a place on were tried in vain.
#[derive(Debug)]
pub(super) struct DeadEnds {
    requests: Arc<[Request]>,
    rules: Arc<[Rule]>,
    /// Some requests ask for administrative access.
    has_admins: bool,
    /// By place.
    scopes: Vec<Scope>,
    known: BTreeSet<Left>,
}

impl DeadEnds {
    pub(super) fn new(requests: &Arc<[Request]>, rules: &Arc<[Rule]>, has_admins: bool) -> DeadEnds {
        let (requests, rules) = (Arc::clone(requests), Arc::clone(rules));
        DeadEnds { requests, rules, has_admins, scopes: Vec::new(), known: BTreeSet::new() }
    }

    /// Forgets the cases, which take much memory. They are tried again when they come again.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }

    /// Whether the requests from this place on have been tried in vain with the same left for them. `given`: what the
    /// requests before have.
    pub(super) fn has(&self, place: usize, given: &[Given], room: &Room) -> bool {
        // Most searches come to no dead end.
        !self.known.is_empty() && self.left(place, given, room).is_some_and(|left| self.known.contains(&left))
    }

    /// Notes that the requests from this place on were tried in vain.
    pub(super) fn note(&mut self, place: usize, given: &[Given], room: &Room) {
        if self.known.len() >= KNOWN_MAX {
            return;
        }
        if self.scopes.is_empty() {
            self.scopes = (0..self.requests.len()).map(|place| self.scope(place, room)).collect();
        }
        let left = self.left(place, given, room);
        self.known.extend(left);
    }

    fn scope(&self, place: usize, room: &Room) -> Scope {
        let later = || self.requests.iter().skip(place);
        let choices = || later().flat_map(|request| &request.choices);
        let devices: BTreeSet<usize> = choices().flat_map(|choice| choice.devices.iter().copied()).collect();
        let by_devices = devices.iter().flat_map(|device| room.all_of(*device));
        let stocks = by_devices.chain(choices().flat_map(|choice| choice.shares.values().flatten()));
        let stocks = stocks.map(|(stock, _)| *stock).collect();
        let sets = devices.iter().flat_map(|device| room.sets_of(*device)).map(|(set, _)| *set);
        let sets = sets.collect();
        let is_about = |rule: &Rule| rule.linked.iter().any(|linked| linked.request >= place);
        let rules = self.rules.iter().enumerate().filter(|(_, rule)| is_about(rule)).map(|(number, _)| number);
        let claims = later().map(|request| request.claim).collect();
        Scope { stocks, sets, rules: rules.collect(), claims, devices }
    }

    fn left(&self, place: usize, given: &[Given], room: &Room) -> Option<Left> {
        let scope = self.scopes.get(place)?;
        let before = || self.requests.iter().zip(given).take(place);
        let holders = |device: usize| {
            let having = before().filter(|(_, given)| given.devices.contains(&device));
            let having = having.map(|(request, _)| (request.claim, request.is_admin));
            (device, if self.has_admins { having.collect() } else { Vec::new() })
        };
        let values = |rule: &usize| {
            let Some(rule) = self.rules.get(*rule) else { return BTreeSet::new() };
            let linked = given.iter().take(place).enumerate();
            let linked = linked.filter(|(place, given)| rule.is_about(*place, given.choice));
            let mut all = linked.flat_map(|(_, given)| &given.devices).map(|device| rule.values(*device));
            match rule.comparison {
                Comparison::Distinct => all.flatten().copied().collect(),
                Comparison::Same => {
                    let Some(first) = all.next() else { return BTreeSet::new() };
                    let others: Vec<&[usize]> = all.collect();
                    let is_common = |value: &&usize| others.iter().all(|other| other.contains(value));
                    first.iter().filter(is_common).copied().collect()
                }
            }
        };
        let mut of_claims: BTreeMap<usize, usize> = BTreeMap::new();
        for (request, given) in before().filter(|(request, _)| scope.claims.contains(&request.claim)) {
            *of_claims.entry(request.claim).or_default() += given.devices.len();
        }
        Some(Left {
            place,
            given: scope.devices.iter().copied().filter(|device| room.is_given(*device)).map(holders).collect(),
            stocks: scope.stocks.iter().map(|stock| room.left_of(*stock)).collect(),
            sets: scope.sets.iter().map(|set| room.common_of(*set)).collect(),
            values: scope.rules.iter().map(values).collect(),
            of_claims,
        })
    }
}
