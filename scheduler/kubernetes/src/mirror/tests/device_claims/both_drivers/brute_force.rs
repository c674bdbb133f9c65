//! Random claims for devices of two drivers: one is allocated exactly if trying all ways finds devices, and what it is
//! given is right.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::super::World;
use super::super::NIC;
use super::percent;

const ATTRIBUTES: [&str; 2] = ["example.com/root", "example.com/rail"];

/// A device: the values of the attributes, and how many percent are free. Another driver's has 100 or 0.
#[derive(Clone, Debug)]
struct Device {
    values: [Option<u64>; 2],
    free: u32,
}

/// A request of a claim.
#[derive(Clone, Debug)]
struct Request {
    /// Percent of a GPU; `None`: it is for network cards.
    percent: Option<u32>,
    count: usize,
    /// It is for all devices of the node.
    is_all: bool,
}

#[derive(Clone, Debug)]
struct Rule {
    requests: Vec<usize>,
    attribute: usize,
    is_same: bool,
}

#[derive(Clone, Debug)]
struct Case {
    gpus: Vec<Device>,
    cards: Vec<Device>,
    requests: Vec<Request>,
    rules: Vec<Rule>,
}

impl Case {
    fn random(random: &mut impl FnMut(u64) -> u64) -> Case {
        let device = |random: &mut dyn FnMut(u64) -> u64, free: &[u32]| {
            let mut value = || Some(random(4)).filter(|value| *value < 3);
            let values = [value(), value()];
            Device { values, free: free[random(free.len() as u64) as usize] }
        };
        let gpus = (0..1 + random(4)).map(|_| device(random, &[100, 100, 70, 20])).collect();
        let cards = (0..1 + random(3)).map(|_| device(random, &[100, 100, 0])).collect();
        let one = |percent: Option<u32>| Request { percent, count: 1, is_all: false };
        let mut requests = vec![one(Some(0)), one(None)];
        requests.extend((0..random(3)).map(|_| one((random(2) == 0).then_some(0))));
        for request in &mut requests {
            request.percent = request.percent.map(|_| [30, 60, 100][random(3) as usize]);
            request.count = if random(4) == 0 { 2 } else { 1 };
            request.is_all = random(8) == 0;
        }
        let first = random(requests.len() as u64) as usize;
        requests.rotate_left(first);
        let rules = (0..random(3)).map(|_| Rule {
            requests: (0..requests.len()).filter(|_| random(3) > 0).collect(),
            attribute: random(2) as usize,
            is_same: random(3) > 0,
        });
        let rules = rules.collect::<Vec<Rule>>().into_iter().filter(|rule| !rule.requests.is_empty()).collect();
        Case { gpus, cards, requests, rules }
    }

    /// The device that a request's number stands for.
    fn devices(&self, request: &Request) -> &[Device] {
        if request.percent.is_some() { &self.gpus } else { &self.cards }
    }

    /// Whether these devices, for the first requests, break no rule, and are free.
    fn is_right(&self, given: &[Vec<usize>]) -> bool {
        let served = || self.requests.iter().zip(given);
        let is_free = |percent: bool, devices: &[Device]| {
            devices.iter().enumerate().all(|(number, device)| {
                let of_sort = served().filter(|(request, _)| request.percent.is_some() == percent);
                let takes = of_sort.filter(|(_, given)| given.contains(&number));
                takes.map(|(request, _)| request.percent.unwrap_or(100)).sum::<u32>() <= device.free
            })
        };
        let keeps = |rule: &Rule| {
            let linked = served().enumerate().filter(|(place, _)| rule.requests.contains(place));
            let values: Vec<Option<u64>> = linked
                .flat_map(|(_, (request, given))| {
                    given.iter().map(|number| self.devices(request)[*number].values[rule.attribute])
                })
                .collect();
            let different: BTreeSet<&Option<u64>> = values.iter().collect();
            let is_kept = if rule.is_same { different.len() <= 1 } else { different.len() == values.len() };
            is_kept && values.iter().all(Option::is_some)
        };
        is_free(true, &self.gpus) && is_free(false, &self.cards) && self.rules.iter().all(keeps)
    }

    /// Whether there is a right way to serve all requests, found by trying all ways.
    fn can_be_served(&self, given: &mut Vec<Vec<usize>>) -> bool {
        let Some(request) = self.requests.get(given.len()) else { return self.is_right(given) };
        let all = self.devices(request).len();
        let ways: Vec<Vec<usize>> = match request.count {
            _ if request.is_all => vec![(0..all).collect()],
            1 => (0..all).map(|one| vec![one]).collect(),
            _ => (0..all).flat_map(|one| (one + 1..all).map(move |other| vec![one, other])).collect(),
        };
        ways.into_iter().any(|way| {
            given.push(way);
            let can_be = self.is_right(given) && self.can_be_served(given);
            given.pop();
            can_be
        })
    }

    fn world(&self) -> World {
        let said = |device: &Device| {
            let value = |(name, value): (&&str, &Option<u64>)| Some(((*name).to_owned(), json!({"int": (*value)?})));
            json!({"attributes": ATTRIBUTES.iter().zip(&device.values).filter_map(value).collect::<serde_json::Map<_, _>>()})
        };
        let mut world = World::new();
        let of = |devices: &[Device]| devices.iter().map(said).collect::<Vec<Value>>();
        world.node_of_both("n", &of(&self.gpus), &of(&self.cards));
        for (number, gpu) in self.gpus.iter().enumerate().filter(|(_, gpu)| gpu.free < 100) {
            let claim = format!("held-{number}");
            world.claim(&claim, 1, None, json!({}));
            world.allocate_by_hand(&claim, "n", &format!("gpu-{number}"), 100 - gpu.free, 1 << 30);
        }
        for (number, _) in self.cards.iter().enumerate().filter(|(_, card)| card.free == 0) {
            let claim = format!("card-{number}");
            world.claim(&claim, 1, None, json!({}));
            let result = json!({"request": "gpu", "driver": NIC, "pool": "n-nics", "device": format!("nic-{number}")});
            world.change_claim(&claim, |claim| {
                claim["status"]["allocation"] = json!({"devices": {"results": [result]}})
            });
        }
        let request = |(place, request): (usize, &Request)| {
            let mut exactly = request.percent.map_or_else(|| json!({"deviceClassName": NIC}), percent);
            match request.is_all {
                true => exactly["allocationMode"] = "All".into(),
                false => exactly["count"] = request.count.into(),
            }
            json!({"name": format!("r{place}"), "exactly": exactly})
        };
        let rule = |rule: &Rule| {
            let sort = if rule.is_same { "matchAttribute" } else { "distinctAttribute" };
            let requests: Vec<String> = rule.requests.iter().map(|place| format!("r{place}")).collect();
            json!({"requests": requests, sort: ATTRIBUTES[rule.attribute]})
        };
        let requests: Vec<Value> = self.requests.iter().enumerate().map(request).collect();
        let rules: Vec<Value> = self.rules.iter().map(rule).collect();
        world.pod_of_both("a", requests.into(), rules.into());
        world
    }

    /// The numbers of the devices that each request was given, in the order of the requests.
    fn given(&self, world: &World) -> Vec<Vec<usize>> {
        let results = world.results("a");
        let names: Vec<&String> = results.iter().map(|(request, ..)| request).collect();
        assert!(names.is_sorted(), "{names:?}");
        let of_request = |place: usize| {
            let name = format!("r{place}");
            let of = results.iter().filter(|(request, ..)| *request == name);
            of.map(|(_, device, _)| device.split('-').nth(1).unwrap().parse().unwrap()).collect()
        };
        (0..self.requests.len()).map(of_request).collect()
    }
}

#[test]
fn a_claim_for_both_is_allocated_whenever_it_can_be() {
    let mut state = 77_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut served = 0;
    for number in 0..CASES {
        let case = Case::random(&mut random);
        let mut world = case.world();
        for _ in 0..20 {
            world.hear();
            world.poll();
            for write in std::mem::take(&mut world.writes) {
                world.carry_out(write);
            }
            world.now_ms += 50;
        }
        let can_be = case.can_be_served(&mut Vec::new());
        let is_bound = world.bound().contains_key("a");
        assert_eq!(is_bound, can_be, "case {number}: {case:?} {}", world.why_waiting("a"));
        if is_bound {
            served += 1;
            let given = case.given(&world);
            let count = |request: &Request| match request.is_all {
                true => case.devices(request).len(),
                false => request.count,
            };
            let counts = given.iter().zip(&case.requests).all(|(given, request)| given.len() == count(request));
            assert!(counts && case.is_right(&given), "case {number}: {given:?} for {case:?}");
        }
    }
    assert!((CASES / 8..CASES / 2).contains(&served), "{served} cases say something");
}

const CASES: usize = 800;
