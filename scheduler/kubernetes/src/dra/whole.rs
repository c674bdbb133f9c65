//! Chooses whole devices for several requests together. The search is exact, and tries in the order of Kubernetes' own
//! allocator.
//!
//! Devices are numbered from 0. A request takes the first of its choices, and the first devices for it, with which the
//! requests after it find devices, too.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::Comparison;

use super::Linked;

/// Devices that one claim can have, at most. The limit is Kubernetes'.
const RESULTS_MAX: usize = 32;
/// Trials of a device, after which the search is given up. The core, too, takes a node for full after this many trials.
pub(crate) const TRIALS_MAX: u32 = 20_000;

/// A request of a claim.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The number of the claim that the request belongs to.
    pub(crate) claim: usize,
    /// In order of preference: the first choice that can be had is taken.
    pub(crate) choices: Vec<Choice>,
}

/// Asks for `count` different ones of these devices.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub(crate) count: usize,
    /// The devices that will do and are free, in the order in which they are tried.
    pub(crate) devices: Vec<usize>,
}

/// A value that the devices of some requests must have in common, or in which they must all differ.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// The requests that the rule is about, by their places among all requests.
    pub(crate) linked: Vec<Linked>,
    pub(crate) comparison: Comparison,
    /// The number of each device's compared value: equal values have equal numbers. A device without a value will not
    /// do.
    values: Vec<Option<usize>>,
}

impl Rule {
    /// `values`: the compared value of each device.
    pub(crate) fn new(
        linked: Vec<Linked>,
        comparison: Comparison,
        values: impl Iterator<Item = Option<String>>,
    ) -> Rule {
        let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
        let mut number = |value: String| {
            let next = numbers.len();
            *numbers.entry(value).or_insert(next)
        };
        Rule { linked, comparison, values: values.map(|value| value.map(&mut number)).collect() }
    }

    fn is_about(&self, request: usize, choice: usize) -> bool {
        self.linked.iter().any(|of| of.request == request && of.choice.is_none_or(|of| of == choice))
    }

    fn value(&self, device: usize) -> Option<usize> {
        self.values.get(device).copied().flatten()
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

/// Finds devices for all requests. The result is in the order of the requests. The search is given up after `trials_max`
/// trials of a device.
///
/// # Errors
/// The requests cannot have devices together, or the search was given up.
pub(crate) fn search(requests: &[Request], rules: &[Rule], trials_max: u32) -> Result<Vec<Given>, Failure> {
    search_where(requests, rules, trials_max, &|_| true)
}

/// Like [`search`], but `is_accepted` must also accept the result. It is asked each time that a further request has its
/// devices, with what all requests up to this one get. If it refuses these, it must refuse them with more requests, too.
pub(crate) fn search_where(
    requests: &[Request],
    rules: &[Rule],
    trials_max: u32,
    is_accepted: &dyn Fn(&[Given]) -> bool,
) -> Result<Vec<Given>, Failure> {
    let requests: Vec<Request> =
        requests.iter().enumerate().map(|(place, request)| narrowed(place, request, rules)).collect();
    if let Some(request) = unservable(&requests, rules) {
        return Err(Failure { request, is_given_up: false });
    }
    let (given, used) = (Vec::new(), BTreeSet::new());
    let mut search =
        Search { requests: &requests, rules, trials_max, is_accepted, given, used, trials: 0, furthest: 0 };
    match search.serve_from(0) {
        true => Ok(search.given),
        false => Err(Failure { request: search.furthest, is_given_up: search.trials > trials_max }),
    }
}

/// The request without the devices that the rules rule out, whatever the other requests get.
fn narrowed(place: usize, request: &Request, rules: &[Rule]) -> Request {
    let of_choice = |(number, choice): (usize, &Choice)| {
        let mut choice = choice.clone();
        for rule in rules.iter().filter(|rule| rule.is_about(place, number)) {
            let mut with_value: BTreeMap<usize, usize> = BTreeMap::new();
            for value in choice.devices.iter().filter_map(|device| rule.value(*device)) {
                *with_value.entry(value).or_default() += 1;
            }
            let is_enough = |value: usize| match rule.comparison {
                Comparison::Same => with_value.get(&value).is_some_and(|devices| *devices >= choice.count),
                Comparison::Distinct => with_value.len() >= choice.count,
            };
            choice.devices.retain(|device| rule.value(*device).is_some_and(is_enough));
        }
        choice
    };
    Request { claim: request.claim, choices: request.choices.iter().enumerate().map(of_choice).collect() }
}

/// The first request for which too few devices, or too few values of a rule, are left beside the requests before it,
/// whichever devices are taken. `None`: the requests may be served together.
fn unservable(requests: &[Request], rules: &[Rule]) -> Option<usize> {
    // For each request, the devices that it takes at least.
    let mut least = Vec::new();
    for (place, request) in requests.iter().enumerate() {
        let possible = request.choices.iter().filter(|choice| choice.devices.len() >= choice.count);
        let Some(count) = possible.map(|choice| choice.count).min() else { return Some(place) };
        least.push(count);
    }
    let all: BTreeSet<usize> =
        requests.iter().flat_map(|request| &request.choices).flat_map(|choice| &choice.devices).copied().collect();
    let of_rule = |rule: &Rule| {
        let mut with_value: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for (place, request) in requests.iter().enumerate() {
            let linked = request.choices.iter().enumerate().filter(|(number, _)| rule.is_about(place, *number));
            for device in linked.flat_map(|(_, choice)| choice.devices.iter().copied()) {
                with_value.entry(rule.value(device)?).or_default().insert(device);
            }
        }
        let room = match rule.comparison {
            Comparison::Same => with_value.values().map(BTreeSet::len).max().unwrap_or(0),
            Comparison::Distinct => with_value.len(),
        };
        let is_linked = |place: usize, request: &Request| (0..request.choices.len()).all(|of| rule.is_about(place, of));
        let linked = requests.iter().zip(&least).enumerate().filter(|(place, (request, _))| is_linked(*place, request));
        first_beyond(room, linked.map(|(place, (_, count))| (place, *count)))
    };
    first_beyond(all.len(), least.iter().copied().enumerate()).or_else(|| rules.iter().find_map(of_rule))
}

/// The first of these requests with which more is asked for than there is. `counts`: what each request asks for.
fn first_beyond(room: usize, mut counts: impl Iterator<Item = (usize, usize)>) -> Option<usize> {
    let mut asked = 0_usize;
    counts.find_map(|(place, count)| {
        asked = asked.saturating_add(count);
        (asked > room).then_some(place)
    })
}

struct Search<'a> {
    requests: &'a [Request],
    rules: &'a [Rule],
    trials_max: u32,
    is_accepted: &'a dyn Fn(&[Given]) -> bool,
    /// What the requests up to the current one get, if the later ones find devices, too.
    given: Vec<Given>,
    used: BTreeSet<usize>,
    trials: u32,
    furthest: usize,
}

impl Search<'_> {
    /// Finds devices for the request at this place and for the requests after it. Returns whether it did.
    fn serve_from(&mut self, place: usize) -> bool {
        if !(self.is_accepted)(&self.given) {
            return false;
        }
        let Some(request) = self.requests.get(place) else { return true };
        self.furthest = self.furthest.max(place);
        let of_claim = self.requests.iter().zip(&self.given).filter(|(before, _)| before.claim == request.claim);
        let before: usize = of_claim.map(|(_, given)| given.devices.len()).sum();
        for (number, choice) in request.choices.iter().enumerate() {
            if before.saturating_add(choice.count) > RESULTS_MAX {
                continue;
            }
            self.given.push(Given { choice: number, devices: Vec::new() });
            if self.add_devices(place, &choice.devices, choice.count) {
                return true;
            }
            self.given.pop();
        }
        false
    }

    /// Gives `missing` of these devices to the request at this place, and then serves the requests after it.
    fn add_devices(&mut self, place: usize, devices: &[usize], missing: usize) -> bool {
        if missing == 0 {
            return self.serve_from(place + 1);
        }
        let mut left = devices;
        while let [device, rest @ ..] = left {
            if left.len() < missing {
                return false;
            }
            self.trials += 1;
            if self.trials > self.trials_max {
                return false;
            }
            left = rest;
            if self.is_allowed(place, *device) {
                self.give(*device);
                if self.add_devices(place, rest, missing - 1) {
                    return true;
                }
                self.take_back(*device);
            }
        }
        false
    }

    fn give(&mut self, device: usize) {
        self.used.insert(device);
        if let Some(given) = self.given.last_mut() {
            given.devices.push(device);
        }
    }

    fn take_back(&mut self, device: usize) {
        self.used.remove(&device);
        if let Some(given) = self.given.last_mut() {
            given.devices.pop();
        }
    }

    /// Whether the request at this place can have a device beside all devices that are given already. It is the last
    /// request in `given`.
    fn is_allowed(&self, place: usize, device: usize) -> bool {
        let Some(choice) = self.given.last().map(|given| given.choice) else { return false };
        let keeps = |rule: &Rule| {
            let Some(own) = rule.value(device) else { return false };
            let linked = self.given.iter().enumerate().filter(|(place, given)| rule.is_about(*place, given.choice));
            let mut others = linked.flat_map(|(_, given)| &given.devices).filter_map(|other| rule.value(*other));
            match rule.comparison {
                Comparison::Same => others.all(|other| other == own),
                Comparison::Distinct => others.all(|other| other != own),
            }
        };
        !self.used.contains(&device) && self.rules.iter().filter(|rule| rule.is_about(place, choice)).all(keeps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(claim: usize, choices: &[(usize, &[usize])]) -> Request {
        let choice = |(count, devices): &(usize, &[usize])| Choice { count: *count, devices: devices.to_vec() };
        Request { claim, choices: choices.iter().map(choice).collect() }
    }

    fn rule(linked: &[(usize, Option<usize>)], comparison: Comparison, values: &[&str]) -> Rule {
        let linked = linked.iter().map(|(request, choice)| Linked { request: *request, choice: *choice });
        let value = |text: &&str| (!text.is_empty()).then(|| (*text).to_owned());
        Rule::new(linked.collect(), comparison, values.iter().map(value))
    }

    fn search(requests: &[Request], rules: &[Rule]) -> Result<Vec<Given>, Failure> {
        super::search(requests, rules, TRIALS_MAX)
    }

    fn given(choice: usize, devices: &[usize]) -> Given {
        Given { choice, devices: devices.to_vec() }
    }

    #[test]
    fn a_later_request_makes_an_earlier_one_give_way() {
        let requests = [request(0, &[(1, &[0, 1])]), request(0, &[(1, &[0])])];
        assert_eq!(search(&requests, &[]), Ok(vec![given(0, &[1]), given(0, &[0])]));
        let listed = [request(0, &[(2, &[0, 1]), (1, &[0, 1])]), request(1, &[(1, &[0])])];
        assert_eq!(search(&listed, &[]), Ok(vec![given(1, &[1]), given(0, &[0])]));
        let too_many = [request(0, &[(1, &[0, 1])]), request(0, &[(2, &[0, 1])])];
        assert_eq!(search(&too_many, &[]), Err(Failure { request: 1, is_given_up: false }));
    }

    #[test]
    fn rules_hold_for_the_choices_that_they_name() {
        let requests = [request(0, &[(2, &[0, 1, 2, 3])])];
        let same = rule(&[(0, None)], Comparison::Same, &["a", "b", "", "b"]);
        assert_eq!(search(&requests, &[same]), Ok(vec![given(0, &[1, 3])]));
        let distinct = rule(&[(0, None)], Comparison::Distinct, &["a", "a", "", "b"]);
        assert_eq!(search(&requests, &[distinct]), Ok(vec![given(0, &[0, 3])]));
        let listed = [request(0, &[(2, &[0, 1]), (2, &[0, 1])])];
        let of_first = rule(&[(0, Some(0))], Comparison::Same, &["a", "b"]);
        assert_eq!(search(&listed, &[of_first]), Ok(vec![given(1, &[0, 1])]));
    }

    #[test]
    fn only_what_is_accepted_is_given() {
        let requests = [request(0, &[(1, &[0, 1])]), request(0, &[(1, &[2, 3])])];
        let but = |refused: [usize; 2]| {
            super::search_where(&requests, &[], TRIALS_MAX, &|all: &[Given]| {
                all.iter().flat_map(|given| &given.devices).zip(refused).filter(|(of, no)| *of == no).count() < 2
            })
        };
        assert_eq!(but([0, 2]), Ok(vec![given(0, &[0]), given(0, &[3])]));
        assert_eq!(but([0, 3]), Ok(vec![given(0, &[0]), given(0, &[2])]));
        assert!(super::search_where(&requests, &[], TRIALS_MAX, &|all: &[Given]| all.len() < 2).is_err());
    }

    #[test]
    fn a_claim_has_no_more_devices_than_kubernetes_lets_it() {
        let all: Vec<usize> = (0..40).collect();
        assert!(search(&[request(0, &[(32, &all)])], &[]).is_ok());
        assert!(search(&[request(0, &[(33, &all)])], &[]).is_err());
        assert!(search(&[request(0, &[(20, &all)]), request(0, &[(13, &all)])], &[]).is_err());
        assert!(search(&[request(0, &[(20, &all)]), request(1, &[(13, &all)])], &[]).is_ok());
    }

    #[test]
    fn a_search_that_takes_too_long_is_given_up() {
        let all: Vec<usize> = (0..32).collect();
        // One of each eighth is asked for, and those of two eighths exclude each other.
        let eighths: Vec<String> = all.iter().map(|device| (device % 8).to_string()).collect();
        let excluding =
            |device: &usize| if device % 8 < 2 { "first two".to_owned() } else { format!("device {device}") };
        let excluding: Vec<String> = all.iter().map(excluding).collect();
        let distinct = |values: &[String]| {
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            rule(&[(0, None)], Comparison::Distinct, &values)
        };
        let failure = search(&[request(0, &[(8, &all)])], &[distinct(&eighths), distinct(&excluding)]).unwrap_err();
        assert_eq!(failure, Failure { request: 0, is_given_up: true });
    }

    #[test]
    fn what_cannot_be_served_is_refused_without_a_trial() {
        let all: Vec<usize> = (0..64).collect();
        let values: Vec<String> = all.iter().map(|device| (device % 8).to_string()).collect();
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        let both = [(0, None), (1, None)];
        let rule = |comparison: Comparison| rule(&both, comparison, &values);
        let request = |count: usize| request(0, &[(count, &all)]);
        for (requests, rules, place) in [
            (vec![request(9)], vec![rule(Comparison::Distinct)], 0),
            (vec![request(5), request(4)], vec![rule(Comparison::Distinct)], 1),
            (vec![request(9)], vec![rule(Comparison::Same)], 0),
            (vec![request(1), request(8)], vec![rule(Comparison::Same)], 1),
            (vec![request(65)], Vec::new(), 0),
            (vec![request(32), Request { claim: 1, ..request(32) }, Request { claim: 2, ..request(1) }], Vec::new(), 2),
        ] {
            let failure = super::search(&requests, &rules, 0).unwrap_err();
            assert_eq!(failure, Failure { request: place, is_given_up: false }, "{requests:?}");
        }
        assert!(search(&[request(8)], &[rule(Comparison::Distinct)]).is_ok());
        assert!(search(&[request(1), request(7)], &[rule(Comparison::Same)]).is_ok());
    }

    /// All ways to take `count` different ones of these devices, in any order.
    fn ways(count: usize, devices: &[usize]) -> Vec<Vec<usize>> {
        if count == 0 {
            return vec![Vec::new()];
        }
        let with = |first: &usize| {
            let others: Vec<usize> = devices.iter().copied().filter(|device| device != first).collect();
            ways(count - 1, &others).into_iter().map(move |rest| [vec![*first], rest].concat()).collect::<Vec<_>>()
        };
        devices.iter().flat_map(with).collect()
    }

    fn is_right(requests: &[Request], rules: &[Rule], given: &[Given]) -> bool {
        let all: Vec<usize> = given.iter().flat_map(|given| given.devices.clone()).collect();
        let is_whole = given.iter().zip(requests).all(|(given, request)| {
            let choice = &request.choices[given.choice];
            given.devices.len() == choice.count && given.devices.iter().all(|device| choice.devices.contains(device))
        });
        let keeps = |rule: &Rule| {
            let is_linked = |of: &Linked| of.choice.is_none_or(|choice| given[of.request].choice == choice);
            let linked: BTreeSet<usize> = rule
                .linked
                .iter()
                .filter(|of| is_linked(of))
                .flat_map(|of| given[of.request].devices.clone())
                .collect();
            let values: Vec<Option<usize>> = linked.iter().map(|device| rule.values[*device]).collect();
            let different: BTreeSet<Option<usize>> = values.iter().copied().collect();
            values.iter().all(|value| value.is_some())
                && match rule.comparison {
                    Comparison::Same => different.len() <= 1,
                    Comparison::Distinct => different.len() == values.len(),
                }
        };
        let different: BTreeSet<&usize> = all.iter().collect();
        is_whole && different.len() == all.len() && rules.iter().all(keeps)
    }

    /// Whether there is a right way to serve all requests, found by trying all ways.
    fn can_be_served(requests: &[Request], rules: &[Rule], before: &[Given]) -> bool {
        let Some(request) = requests.get(before.len()) else { return is_right(requests, rules, before) };
        request.choices.iter().enumerate().any(|(number, choice)| {
            let with = |devices: Vec<usize>| [before.to_vec(), vec![Given { choice: number, devices }]].concat();
            ways(choice.count, &choice.devices).into_iter().any(|way| can_be_served(requests, rules, &with(way)))
        })
    }

    /// What the search finds is right, and the search finds something whenever trying all ways does.
    #[test]
    fn random_requests_get_devices_whenever_they_can() {
        let mut state = 1_u64;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below) as usize
        };
        let mut served = 0;
        for case in 0..3_000 {
            let devices = 1 + random(5);
            let choice = |random: &mut dyn FnMut(u64) -> usize| Choice {
                count: 1 + random(2),
                devices: (0..devices).filter(|_| random(3) > 0).collect(),
            };
            let requests: Vec<Request> = (0..1 + random(3))
                .map(|_| Request { claim: 0, choices: (0..1 + random(2)).map(|_| choice(&mut random)).collect() })
                .collect();
            let rules: Vec<Rule> = (0..random(3))
                .map(|_| {
                    let named: Vec<usize> = (0..requests.len()).filter(|_| random(3) > 0).collect();
                    let linked = named.into_iter().map(|request| Linked {
                        request,
                        choice: (random(3) == 0).then(|| random(requests[request].choices.len() as u64)),
                    });
                    Rule {
                        linked: linked.collect(),
                        comparison: [Comparison::Same, Comparison::Distinct][random(2)],
                        values: (0..devices).map(|_| Some(random(4)).filter(|value| *value < 3)).collect(),
                    }
                })
                .collect();
            let found = search(&requests, &rules);
            if let Ok(given) = &found {
                served += 1;
                assert!(is_right(&requests, &rules, given), "case {case}: {given:?} for {requests:?} {rules:?}");
            }
            let can_be = can_be_served(&requests, &rules, &[]);
            assert_eq!(found.is_ok(), can_be, "case {case}: {requests:?} {rules:?}");
        }
        assert!((500..2_500).contains(&served), "{served} cases say something");
    }
}
