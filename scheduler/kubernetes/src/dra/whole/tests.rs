//! The search for devices, also compared with trying all ways.

use aliquot_scheduler_core::{Bytes, DeviceCore};

use super::super::{Free, Groups, Taken};
use super::*;

fn request(claim: usize, choices: &[(usize, &[usize])]) -> Request {
    let choice = |(count, devices): &(usize, &[usize])| Choice::of(*count, devices.to_vec());
    Request { claim, choices: choices.iter().map(choice).collect(), is_admin: false }
}

/// `values`: for each device its values, with commas between them.
fn rule(linked: &[(usize, Option<usize>)], comparison: Comparison, values: &[&str]) -> Rule {
    let linked = linked.iter().map(|(request, choice)| Linked { request: *request, choice: *choice });
    let of_device = |text: &&str| text.split(',').filter(|text| !text.is_empty()).map(str::to_owned).collect();
    Rule::new(linked.collect(), comparison, values.iter().map(of_device))
}

fn task(requests: &[Request], rules: &[Rule], room: &Room) -> Task {
    let (requests, rules) = (requests.into(), rules.into());
    Task { requests, rules, room: room.clone(), parts: Arc::default() }
}

fn search_in(requests: &[Request], rules: &[Rule], room: &Room, trials_max: u32) -> Result<Vec<Given>, Failure> {
    task(requests, rules, room).search(trials_max)
}

fn search(requests: &[Request], rules: &[Rule]) -> Result<Vec<Given>, Failure> {
    search_in(requests, rules, &Room::default(), TRIALS_MAX)
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
fn lists_need_a_common_element_or_must_have_none() {
    let requests = [request(0, &[(3, &[0, 1, 2, 3, 4])])];
    let same = rule(&[(0, None)], Comparison::Same, &["a,b", "b,c", "a,c", "", "c,b"]);
    // Each two of the first three have an element in common, but not all of them.
    assert_eq!(search(&requests, &[same]), Ok(vec![given(0, &[0, 1, 4])]));
    let distinct = rule(&[(0, None)], Comparison::Distinct, &["a,b", "b,c", "c,d", "", "e,e"]);
    assert_eq!(search(&requests, &[distinct]), Ok(vec![given(0, &[0, 2, 4])]));
}

#[test]
fn parts_of_a_device_are_given_as_far_as_it_has_room() {
    let requests = [request(0, &[(1, &[0, 1])]), request(0, &[(1, &[2, 3])])];
    // Both requests can have both devices, by other numbers.
    let with = |free: [u32; 2], takes: [u32; 4]| {
        let part = |core: u32| (DeviceCore::new(core), Bytes::new(u64::from(core)));
        let mut parts = Parts::default();
        let places = free.map(|free| parts.add(Free::of(Bytes::new(1000), std::iter::once(part(1000 - free)))));
        for (number, takes) in takes.into_iter().enumerate() {
            let (core, memory) = part(takes);
            let taken = Taken { core, memory, consumed: Some(BTreeMap::new()), is_all_memory: false };
            parts.takes(number, places[number % 2], &taken);
        }
        Task { parts: parts.into(), ..task(&requests, &[], &Room::default()) }.search(TRIALS_MAX)
    };
    assert_eq!(with([900, 900], [400; 4]), Ok(vec![given(0, &[0]), given(0, &[2])]));
    assert_eq!(with([700, 700], [400; 4]), Ok(vec![given(0, &[0]), given(0, &[3])]));
    assert_eq!(with([900, 300], [400, 400, 600, 300]), Ok(vec![given(0, &[0]), given(0, &[3])]));
    assert_eq!(with([300, 700], [400; 4]), Err(Failure { request: 1, is_given_up: false }));
}

/// Two requests for a few of many devices that differ in one value, of which only the last ones go together.
fn rarely_served() -> Task {
    let all: Vec<usize> = (0..24).collect();
    let requests = [request(0, &[(3, &all)]), request(0, &[(3, &all)])];
    let rules = [3, 5, 7].map(|modulus| {
        let values: Vec<String> = all.iter().map(|device| (device * device % modulus).to_string()).collect();
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        let comparison = if modulus == 7 { Comparison::Distinct } else { Comparison::Same };
        rule(&[(usize::from(modulus == 5), None)], comparison, &values)
    });
    task(&requests, &rules, &Room::default())
}

#[test]
fn a_search_goes_on_where_it_was_stopped() {
    let task = rarely_served();
    let at_once = task.search(TRIALS_MAX);
    let mut search = Search::begin(&task).unwrap();
    assert_eq!((search.go_on(0), search.go_on(3), search.trials()), (None, None, 3));
    let mut stops = 0;
    let in_steps = loop {
        match search.go_on(1) {
            Some(found) => break found,
            None => stops += 1,
        }
        // What it then tries again is what it would have skipped.
        if stops % 100 == 0 {
            search.forget_dead_ends();
        }
    };
    assert!(stops > 10 && in_steps.is_ok(), "{stops} {in_steps:?}");
    assert_eq!(in_steps, at_once);
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
    let excluding = |device: &usize| if device % 8 < 2 { "first two".to_owned() } else { format!("device {device}") };
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
        let failure = search_in(&requests, &rules, &Room::default(), 0).unwrap_err();
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

/// What there is of each stock, what each device takes of it, and the capacities of devices with shares.
#[derive(Debug, Default)]
struct Stocks {
    amounts: Vec<u128>,
    taken: Vec<Vec<u128>>,
    /// By device. `None`: one request alone can have it.
    capacities: Vec<Option<Vec<u128>>>,
    /// The groups of the devices that are given from the beginning of a set of counters.
    first: Vec<Groups>,
    /// By device, its groups. `None`: it does not take of the set.
    groups: Vec<Option<Groups>>,
}

impl Stocks {
    fn room(&self) -> Room {
        let mut room = Room::default();
        let stocks: Vec<usize> = self.amounts.iter().map(|amount| room.add_stock(*amount)).collect();
        let set = room.add_set(&self.first);
        for (device, groups) in self.groups.iter().enumerate() {
            room.takes_of_sets(device, groups.iter().map(|groups| (set, groups.clone())).collect());
        }
        for (device, taken) in self.taken.iter().enumerate() {
            room.takes(device, stocks.iter().copied().zip(taken.iter().copied()).collect());
        }
        for (device, capacities) in self.capacities.iter().enumerate() {
            for capacity in capacities.iter().flatten() {
                room.add_stock(*capacity);
            }
            if capacities.is_some() {
                room.share(device);
            }
        }
        room
    }

    /// The number of a device's capacity among the stocks of `room`.
    fn stock_of(&self, device: usize, capacity: usize) -> usize {
        let before = self.capacities.iter().take(device).flatten();
        self.amounts.len() + before.map(Vec::len).sum::<usize>() + capacity
    }

    /// Whether there is enough for requests that have these devices with these shares, one after the other. The last of
    /// each says whether it is access for an administrator.
    fn are_enough(&self, given: &[(usize, &[Amount], bool)]) -> bool {
        let is_first = |place: usize, device: usize| !given[..place].iter().any(|(of, ..)| *of == device);
        let taking = || given.iter().enumerate().map(|(place, (device, ..))| (place, *device));
        // A device without shares takes of the stocks once more for each access.
        let takes = |(place, device): &(usize, usize)| is_first(*place, *device) || self.capacities[*device].is_none();
        let taken = |stock: usize| taking().filter(takes).map(|(_, device)| self.taken[device][stock]).sum::<u128>();
        let is_in_the_way = |device: usize| {
            let mut users = given.iter().filter(|(of, ..)| *of == device).skip(1);
            users.any(|(.., is_admin)| !is_admin)
        };
        let consumed = |stock: usize| {
            let shares = given.iter().flat_map(|(_, share, _)| share.iter());
            shares.filter(|(of, _)| *of == stock).map(|(_, amount)| *amount).sum::<u128>()
        };
        let has_enough = |(device, capacities): (usize, &Option<Vec<u128>>)| match capacities {
            None => !is_in_the_way(device),
            Some(capacities) => {
                capacities.iter().enumerate().all(|(number, all)| consumed(self.stock_of(device, number)) <= *all)
            }
        };
        let given_too = given.iter().filter_map(|(device, ..)| self.groups[*device].as_ref());
        let set: Vec<&Groups> = self.first.iter().chain(given_too.clone()).collect();
        let all: Groups = set.iter().flat_map(|groups| groups.iter().cloned()).collect();
        let are_together = given_too.count() == 0
            || all.is_empty()
            || all.iter().any(|group| set.iter().all(|groups| groups.contains(group)));
        are_together
            && self.amounts.iter().enumerate().all(|(stock, amount)| taken(stock) <= *amount)
            && self.capacities.iter().enumerate().all(has_enough)
    }
}

fn is_right(requests: &[Request], rules: &[Rule], stocks: &Stocks, given: &[Given]) -> bool {
    let of_request = |(given, request): (&'_ Given, &'_ Request)| {
        let devices: Vec<usize> = given.devices.clone();
        let choice = request.choices[given.choice].clone();
        let is_admin = request.is_admin;
        devices.into_iter().map(move |device| (device, choice.share_of(device).to_vec(), is_admin)).collect::<Vec<_>>()
    };
    let all: Vec<(usize, Vec<Amount>, bool)> = given.iter().zip(requests).flat_map(of_request).collect();
    let all: Vec<(usize, &[Amount], bool)> =
        all.iter().map(|(device, share, of)| (*device, share.as_slice(), *of)).collect();
    let is_whole = given.iter().zip(requests).all(|(given, request)| {
        let choice = &request.choices[given.choice];
        let different: BTreeSet<&usize> = given.devices.iter().collect();
        let are_all = given.devices.len() == choice.count && different.len() == choice.count;
        are_all && given.devices.iter().all(|device| choice.devices.contains(device))
    });
    let keeps = |rule: &Rule| {
        let is_linked = |of: &Linked| of.choice.is_none_or(|choice| given[of.request].choice == choice);
        let linked: Vec<usize> =
            rule.linked.iter().filter(|of| is_linked(of)).flat_map(|of| given[of.request].devices.clone()).collect();
        let values: Vec<&Vec<usize>> = linked.iter().map(|device| &rule.values[*device]).collect();
        let all: BTreeSet<usize> = values.iter().flat_map(|of| of.iter().copied()).collect();
        values.iter().all(|of| !of.is_empty())
            && match rule.comparison {
                Comparison::Same => {
                    all.is_empty() || all.iter().any(|value| values.iter().all(|of| of.contains(value)))
                }
                Comparison::Distinct => all.len() == values.iter().map(|of| of.len()).sum::<usize>(),
            }
    };
    let pairs = (0..requests.len()).flat_map(|later| (0..later).map(move |earlier| (earlier, later)));
    let are_apart = |(one, other): (usize, usize)| {
        let is_for_both =
            |device: &usize| given[other].devices.contains(device) && stocks.capacities[*device].is_none();
        let of_claim = requests[one].claim == requests[other].claim;
        let has_admin = requests[one].is_admin || requests[other].is_admin;
        !of_claim || !has_admin || !given[one].devices.iter().any(is_for_both)
    };
    let are_apart = pairs.into_iter().all(are_apart);
    is_whole && are_apart && stocks.are_enough(&all) && rules.iter().all(keeps)
}

/// The first right way to serve all requests, found by trying all ways.
fn first_way(requests: &[Request], rules: &[Rule], stocks: &Stocks, before: &[Given]) -> Option<Vec<Given>> {
    let Some(request) = requests.get(before.len()) else {
        return is_right(requests, rules, stocks, before).then(|| before.to_vec());
    };
    request.choices.iter().enumerate().find_map(|(number, choice)| {
        let with = |devices: Vec<usize>| [before.to_vec(), vec![Given { choice: number, devices }]].concat();
        let mut ways = ways(choice.count, &choice.devices).into_iter();
        ways.find_map(|way| first_way(requests, rules, stocks, &with(way)))
    })
}

/// Compares the search with trying all ways in so many random cases. Returns how many of them could be served.
/// `have_shares`: some devices have shares. `have_admins`: some requests ask for administrative access.
fn compare_with_all_ways(cases: usize, have_shares: bool, have_admins: bool) -> usize {
    let mut state = 1_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below) as usize
    };
    let mut served = 0;
    for case in 0..cases {
        let devices = 1 + random(5);
        let counters: usize = random(3);
        let has_sets = random(2) > 0;
        let groups = |random: &mut dyn FnMut(u64) -> usize| -> Groups {
            ["a", "b", "c"].into_iter().filter(|_| random(3) > 0).map(str::to_owned).collect()
        };
        let stocks = Stocks {
            amounts: (0..counters).map(|_| 2 + random(5) as u128).collect(),
            taken: (0..devices).map(|_| (0..counters).map(|_| random(4) as u128).collect()).collect(),
            capacities: (0..devices)
                .map(|_| (have_shares && random(4) > 0).then(|| (0..random(3)).map(|_| random(7) as u128).collect()))
                .collect(),
            first: (0..random(2)).map(|_| groups(&mut random)).collect(),
            groups: (0..devices).map(|_| (has_sets && random(3) > 0).then(|| groups(&mut random))).collect(),
        };
        let choice = |random: &mut dyn FnMut(u64) -> usize| {
            let devices: Vec<usize> = (0..devices).filter(|_| random(3) > 0).collect();
            let mut choice = Choice::of(1 + random(2), devices);
            for device in &choice.devices {
                let Some(capacities) = &stocks.capacities[*device] else { continue };
                let amounts = (0..capacities.len()).map(|of| (stocks.stock_of(*device, of), random(5) as u128));
                choice.shares.insert(*device, amounts.collect());
            }
            choice
        };
        let requests: Vec<Request> = (0..1 + random(3))
            .map(|place| Request {
                // Without access for administrators it makes no difference to whom a request belongs.
                claim: if have_admins { place % 2 } else { 0 },
                choices: (0..1 + random(2)).map(|_| choice(&mut random)).collect(),
                is_admin: have_admins && random(2) > 0,
            })
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
                        .map(|_| {
                            // Half of them are lists.
                            let values = [random(4), if random(2) == 0 { random(4) } else { 3 }];
                            let different: BTreeSet<usize> = values.into_iter().filter(|value| *value < 3).collect();
                            different.into_iter().collect()
                        })
                        .collect(),
                }
            })
            .collect();
        let found = search_in(&requests, &rules, &stocks.room(), TRIALS_MAX);
        let first = first_way(&requests, &rules, &stocks, &[]);
        served += usize::from(first.is_some());
        let found = found.inspect_err(|failure| assert!(!failure.is_given_up, "case {case}")).ok();
        assert_eq!(found, first, "case {case}: {requests:?} {rules:?} {stocks:?}");
    }
    served
}

/// The search finds what trying all ways finds first.
#[test]
fn random_requests_get_the_first_devices_that_they_can() {
    let served = compare_with_all_ways(3_000, false, false);
    assert!((500..2_500).contains(&served), "{served} cases say something");
}

#[test]
fn random_requests_get_the_first_shares_that_they_can() {
    let served = compare_with_all_ways(3_000, true, false);
    assert!((500..2_500).contains(&served), "{served} cases say something");
}

#[test]
fn random_requests_of_administrators_get_the_first_they_can() {
    let served = compare_with_all_ways(3_000, true, true);
    assert!((500..2_500).contains(&served), "{served} cases say something");
}

#[test]
fn an_administrator_has_what_others_have_but_not_twice() {
    let admin = |claim: usize, count: usize| Request { is_admin: true, ..request(claim, &[(count, &[0, 1])]) };
    let one = |claim: usize| request(claim, &[(1, &[0])]);
    assert_eq!(search(&[one(0), admin(1, 2)], &[]), Ok(vec![given(0, &[0]), given(0, &[0, 1])]));
    assert_eq!(search(&[admin(0, 2), admin(1, 1)], &[]), Ok(vec![given(0, &[0, 1]), given(0, &[0])]));
    // A later claim cannot take what an earlier one of the same pod has access to.
    assert_eq!(search(&[admin(0, 1), one(1)], &[]), Ok(vec![given(0, &[1]), given(0, &[0])]));
    assert!(search(&[admin(0, 2), one(1)], &[]).is_err());
    // Of one claim each request has its own devices.
    assert_eq!(search(&[one(0), admin(0, 1)], &[]), Ok(vec![given(0, &[0]), given(0, &[1])]));
    assert_eq!(search(&[admin(0, 1), one(0)], &[]), Ok(vec![given(0, &[1]), given(0, &[0])]));
    assert!(search(&[one(0), admin(0, 2)], &[]).is_err());
    let mut room = Room::default();
    let slots = room.add_stock(2);
    room.takes(0, vec![(slots, 1)]);
    let access = |claims: usize| {
        let requests: Vec<Request> = (0..claims).map(|claim| Request { is_admin: true, ..one(claim) }).collect();
        search_in(&requests, &[], &room, TRIALS_MAX).is_ok()
    };
    assert_eq!((access(2), access(3)), (true, false), "each access takes of the stock");
}

/// Devices with shares, with these capacities, and requests of one device each that take these amounts of any of them.
fn with_shares(capacities: &[u128], amounts: &[u128]) -> (Vec<Request>, Room) {
    let mut room = Room::default();
    let stocks: Vec<usize> = capacities.iter().map(|capacity| room.add_stock(*capacity)).collect();
    (0..capacities.len()).for_each(|device| room.share(device));
    let request = |amount: &u128| {
        let mut request = request(0, &[(1, &(0..capacities.len()).collect::<Vec<usize>>())]);
        request.choices[0].shares = stocks.iter().map(|stock| vec![(*stock, *amount)]).enumerate().collect();
        request
    };
    (amounts.iter().map(request).collect(), room)
}

#[test]
fn a_request_for_all_devices_is_respected_before_it_is_tried() {
    let mut capacities = vec![2; 20];
    capacities.push(4);
    let (mut requests, room) = with_shares(&capacities, &[1, 1, 2]);
    let all: Vec<usize> = (0..capacities.len()).collect();
    for is_admin in [true, false] {
        requests[2].is_admin = is_admin;
        requests[2].choices[0].count = all.len();
        let found = search_in(&requests, &[], &room, 2 + 21);
        assert_eq!(found, Ok(vec![given(0, &[20]), given(0, &[20]), given(0, &all)]));
    }
    // Whole devices.
    let all = request(0, &[(20, &(0..20).collect::<Vec<usize>>())]);
    for access in [all.clone(), Request { is_admin: true, ..all }] {
        let one = request(0, &[(1, &(0..21).collect::<Vec<usize>>())]);
        assert!(search_in(&[one.clone(), access.clone()], &[], &Room::default(), 1 + 20).is_ok());
        let failure = search_in(&[one.clone(), one, access], &[], &Room::default(), 2).unwrap_err();
        assert!(!failure.is_given_up);
    }
}

#[test]
fn shares_of_a_device_go_to_several_requests() {
    let (requests, room) = with_shares(&[5, 5], &[2, 3, 3, 2]);
    let first = [given(0, &[0]), given(0, &[0]), given(0, &[1]), given(0, &[1])];
    assert_eq!(search_in(&requests, &[], &room, TRIALS_MAX), Ok(first.to_vec()));
    // The first two do not go together.
    let (requests, room) = with_shares(&[6, 5], &[2, 3, 4, 2]);
    let first = [given(0, &[0]), given(0, &[1]), given(0, &[0]), given(0, &[1])];
    assert_eq!(search_in(&requests, &[], &room, TRIALS_MAX), Ok(first.to_vec()));
    // Of one device a request has one share.
    let (mut requests, room) = with_shares(&[5, 5], &[1]);
    requests[0].choices[0].count = 3;
    assert_eq!(search_in(&requests, &[], &room, 0), Err(Failure { request: 0, is_given_up: false }));
}

#[test]
fn a_device_takes_from_common_stocks_once_for_all_shares() {
    let (requests, mut room) = with_shares(&[5, 5], &[2, 2, 2]);
    let slots = room.add_stock(4);
    (0..2).for_each(|device| room.takes(device, vec![(slots, 3)]));
    let search = |count: usize| search_in(&requests[..count], &[], &room, TRIALS_MAX);
    assert_eq!(search(2), Ok(vec![given(0, &[0]), given(0, &[0])]));
    assert_eq!(search(3), Err(Failure { request: 2, is_given_up: false }));
}

#[test]
fn shares_that_do_not_fit_are_refused_without_many_trials() {
    // 12 shares of 3 fit on 12 devices of 5, and one more does not.
    let (requests, room) = with_shares(&[5; 12], &[3; 12]);
    assert!(search_in(&requests, &[], &room, TRIALS_MAX).is_ok());
    let (requests, room) = with_shares(&[5; 12], &[3; 13]);
    let failure = search_in(&requests, &[], &room, TRIALS_MAX).unwrap_err();
    assert!(!failure.is_given_up, "{failure:?}");
    // Too much of one device is asked for.
    let (requests, room) = with_shares(&[5], &[2, 2, 2]);
    assert_eq!(search_in(&requests, &[], &room, 0), Err(Failure { request: 2, is_given_up: false }));
}

#[test]
fn devices_take_from_common_stocks() {
    let mut room = Room::default();
    let slots = [7, 3].map(|slots| room.add_stock(slots));
    // On the first stock a device of 4 and four of 1, on the second one two of 2.
    for (device, stock, slots_taken) in [(0, 0, 4), (1, 0, 1), (2, 0, 1), (3, 0, 1), (4, 0, 1), (5, 1, 2), (6, 1, 2)] {
        room.takes(device, vec![(slots[stock], slots_taken)]);
    }
    let all: Vec<usize> = (0..7).collect();
    let search = |count: usize, trials_max: u32| {
        search_in(&[request(0, &[(1, &[0, 5, 6])]), request(0, &[(count, &all)])], &[], &room, trials_max)
    };
    assert_eq!(search(4, TRIALS_MAX), Ok(vec![given(0, &[0]), given(0, &[1, 2, 3, 5])]));
    assert_eq!(search(5, TRIALS_MAX), Err(Failure { request: 1, is_given_up: false }));
    assert_eq!(search(6, 0), Err(Failure { request: 1, is_given_up: false }), "this is seen without a trial");
}

#[test]
fn devices_that_are_alike_are_not_all_tried() {
    // Of 24 slots 40 devices take one each, and one device takes 8.
    let mut room = Room::default();
    let slots = room.add_stock(24);
    for device in 0..40 {
        room.takes(device, vec![(slots, 1)]);
    }
    room.takes(40, vec![(slots, 8)]);
    let small: Vec<usize> = (0..40).collect();
    let search =
        |count: usize| search_in(&[request(0, &[(count, &small)]), request(1, &[(1, &[40])])], &[], &room, TRIALS_MAX);
    assert!(search(16).is_ok());
    assert_eq!(search(17), Err(Failure { request: 1, is_given_up: false }));
    // So are those of which a claim has access to some.
    let access = |device: usize| Request { is_admin: true, ..request(0, &[(1, &[device])]) };
    let requests = [access(0), access(1), request(1, &[(15, &small)]), request(2, &[(1, &[40])])];
    assert_eq!(search_in(&requests, &[], &room, TRIALS_MAX), Err(Failure { request: 3, is_given_up: false }));
}

#[test]
fn what_failed_is_not_tried_again_after_other_choices() {
    // The first request takes both devices of the last one. Those between have nothing to do with either.
    let others: Vec<usize> = (3..15).collect();
    let mut requests = vec![request(0, &[(2, &[0, 1, 2])])];
    requests.extend((0..5).map(|_| request(0, &[(1, &others)])));
    requests.push(request(1, &[(1, &[0, 1])]));
    let linked = (1..6).map(|request| Linked { request, choice: None }).collect();
    let values = (0..15).map(|device| vec![format!("{device}")]);
    let rule = Rule::new(linked, Comparison::Distinct, values);
    let found = search_in(&requests, &[rule], &Room::default(), TRIALS_MAX);
    let first = [&[0, 2][..], &[3], &[4], &[5], &[6], &[7], &[1]].map(|devices| given(0, devices));
    assert_eq!(found, Ok(first.to_vec()));
}
