//! Chooses whole devices for several requests together. The search is exact, and tries in the order of Kubernetes' own
//! allocator.
//!
//! Devices are numbered from 0. A request takes the first of its choices, and the first devices for it, with which the
//! requests after it find devices, too.

use std::collections::BTreeSet;

use aliquot_scheduler_core::Comparison;

use super::Linked;

/// Devices that one claim can have, at most. The limit is Kubernetes'.
const RESULTS_MAX: usize = 32;
/// Trials of a device, after which the search is given up. The core, too, takes a node for full after this many trials.
const TRIALS_MAX: u32 = 20_000;

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
    /// The compared value of each device. A device without a value will not do.
    pub(crate) values: Vec<Option<String>>,
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

/// Finds devices for all requests. The result is in the order of the requests.
///
/// # Errors
/// The requests cannot have devices together, or the search was given up.
pub(crate) fn search(requests: &[Request], rules: &[Rule]) -> Result<Vec<Given>, Failure> {
    let mut search = Search { requests, rules, given: Vec::new(), used: BTreeSet::new(), trials: 0, furthest: 0 };
    match search.serve_from(0) {
        true => Ok(search.given),
        false => Err(Failure { request: search.furthest, is_given_up: search.trials > TRIALS_MAX }),
    }
}

struct Search<'a> {
    requests: &'a [Request],
    rules: &'a [Rule],
    /// What the requests up to the current one get, if the later ones find devices, too.
    given: Vec<Given>,
    used: BTreeSet<usize>,
    trials: u32,
    furthest: usize,
}

impl Search<'_> {
    /// Finds devices for the request at this place and for the requests after it. Returns whether it did.
    fn serve_from(&mut self, place: usize) -> bool {
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
            self.trials += 1;
            if left.len() < missing || self.trials > TRIALS_MAX {
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
        self.given.iter_mut().last().into_iter().for_each(|given| given.devices.push(device));
    }

    fn take_back(&mut self, device: usize) {
        self.used.remove(&device);
        self.given.iter_mut().last().into_iter().for_each(|given| _ = given.devices.pop());
    }

    /// Whether the request at this place can have a device beside all devices that are given already. It is the last
    /// request in `given`.
    fn is_allowed(&self, place: usize, device: usize) -> bool {
        let is_linked = |rule: &Rule, place: usize, choice: usize| {
            let is_it = |of: &Linked| of.request == place && of.choice.is_none_or(|of| of == choice);
            rule.linked.iter().any(is_it)
        };
        let value = |rule: &Rule, device: usize| rule.values.get(device).cloned().flatten();
        let Some(choice) = self.given.last().map(|given| given.choice) else { return false };
        let keeps = |rule: &&Rule| {
            let Some(own) = value(rule, device) else { return false };
            let linked = self.given.iter().enumerate().filter(|(place, given)| is_linked(rule, *place, given.choice));
            let mut others = linked.flat_map(|(_, given)| &given.devices).filter_map(|other| value(rule, *other));
            match rule.comparison {
                Comparison::Same => others.all(|other| other == own),
                Comparison::Distinct => others.all(|other| other != own),
            }
        };
        !self.used.contains(&device)
            && self.rules.iter().filter(|rule| is_linked(rule, place, choice)).all(|of| keeps(&of))
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
        Rule { linked: linked.collect(), comparison, values: values.iter().map(value).collect() }
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
        let values: Vec<String> = all.iter().map(|device| (device % 8).to_string()).collect();
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        let distinct = rule(&[(0, None)], Comparison::Distinct, &values);
        let failure = search(&[request(0, &[(9, &all)])], &[distinct]).unwrap_err();
        assert_eq!(failure, Failure { request: 0, is_given_up: true });
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
            let values: Vec<&Option<String>> = linked.iter().map(|device| &rule.values[*device]).collect();
            let different: BTreeSet<&Option<String>> = values.iter().copied().collect();
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
                        values: (0..devices)
                            .map(|_| ["a", "b", "c"].get(random(4)).map(|of| (*of).to_owned()))
                            .collect(),
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
