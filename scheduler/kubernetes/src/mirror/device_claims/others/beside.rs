//! Claims that ask for devices of our driver and of others together.
//!
//! The core chooses the devices of our driver. It does not know the devices of other drivers, but a constraint can compare
//! both. So for each node the mirror looks for free devices of other drivers that go with ours. Each of our devices for
//! which it finds some gets an attribute, the *mark*. The pod's request for our devices asks for this attribute.
//!
//! If all compared devices of our driver must have equal values, or if only one of them is compared, the marks are exact:
//! a pod can have any of the marked devices. Otherwise the mirror searches for one way to serve the pod, and marks only
//! devices with the same values as the devices of this way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_scheduler_core::{Alternatives, Bytes, Comparison, DeviceCore};
use k8s_openapi::api::resource::v1::DeviceRequestAllocationResult;

use super::super::super::Mirror;
use super::super::{DeviceClaims, USABLE};
use super::allocation::{Asked, Decided, OurDevice, Problem};
use super::{AskedOf, COUNTING_TRIALS_MAX, COUNTING_TRIALS_MIN, Kind};
use crate::dra::whole::{Parts, Task};
use crate::dra::{self, Ask, DevicesAsk, Free, Link, PoolKey, compared_value};
use crate::wanted::{ASKS_FOR_NONE, Lists, Mark};

/// What pods of a kind can get on a node.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Places {
    /// How many pods of the kind can get devices of other drivers there, one after the other.
    pub(super) free: u64,
    /// The places also depend on the free parts of our driver's devices. So they are counted again each time the node is
    /// reported to the engine.
    pub(super) depend_on_room: bool,
    /// Searches that were given up before a place was found, so there may be more places.
    pub(super) unsolved: Vec<Arc<Task>>,
    /// For each mark, the devices of our driver that get it.
    beside: Vec<Beside>,
}

#[derive(Debug, PartialEq)]
struct Beside {
    attribute: String,
    /// Each pod takes exactly one of these devices, and no device has room for two of the pods. So one device of a group
    /// can replace another one about which the manager reports the same.
    is_one_of_each: bool,
    groups: Vec<Group>,
}

/// Devices with equal values of all compared attributes.
#[derive(Debug, PartialEq)]
struct Group {
    /// Their names in the books.
    devices: BTreeSet<String>,
    /// The number of pods that can get devices of other drivers together with these devices.
    places: u64,
}

/// What pods of a kind ask for if each request has one of its choices.
struct Combination<'a> {
    asks: &'a [Ask],
    /// The number of combinations of the claims' lists, of which this is one.
    combinations: usize,
    /// For each claim, the number of the chosen list entry of each request. Empty for a claim that asks only other
    /// drivers: its entries are chosen when the pod is bound.
    choices: Vec<Vec<usize>>,
    ours: Vec<Our<'a>>,
}

/// A request for devices of our driver.
struct Our<'a> {
    claim: usize,
    request: usize,
    /// Its place among the requests of all claims.
    number: usize,
    /// Its place among the requests of those claims that ask for devices of both sorts.
    place: usize,
    ask: &'a DevicesAsk,
    /// The constraints of its claim that compare its devices with those of other drivers.
    links: Vec<&'a Link>,
    /// Its claim also has constraints that compare its devices only with devices of our driver.
    has_further_links: bool,
}

/// The values by which a device of our driver is compared with others.
type Values = Vec<String>;

impl Combination<'_> {
    /// Trials after which a search for this combination is given up.
    fn trials_max(&self) -> u32 {
        let combinations = u32::try_from(self.combinations).unwrap_or(u32::MAX).max(1);
        (COUNTING_TRIALS_MAX / combinations).max(COUNTING_TRIALS_MIN)
    }

    /// The requests whose devices a constraint compares with devices of other drivers.
    fn linked(&self) -> impl Iterator<Item = &Our<'_>> {
        self.ours.iter().filter(|our| !our.links.is_empty())
    }

    /// Whether all linked requests must have devices with equal values, or are for one device only.
    fn is_uniform(&self) -> bool {
        let Some(first) = self.linked().next() else { return true };
        let is_alike = |our: &Our<'_>| our.claim == first.claim && our.links == first.links;
        let are_same = first.links.iter().all(|link| link.comparison == Comparison::Same);
        let devices: usize = self.linked().map(|our| usize::from(our.ask.count)).sum();
        devices == 1 || are_same && self.linked().all(is_alike)
    }
}

impl Mirror {
    /// What pods of a kind can get on a node.
    pub(super) fn places_of(&self, kind: &Kind, node: &str) -> Places {
        let claims = &self.device_claims;
        let lists = claims.lists_of(&kind.asks);
        let mut places = Places::default();
        for number in 0..lists.combinations().clamp(1, Alternatives::CHOICES_MAX) {
            let combination = claims.combination(&kind.asks, &lists, &lists.choice(number));
            let of_combination = match combination.is_uniform() {
                true => self.places_by_values(kind, &combination, node),
                false => self.places_of_first_way(kind, &combination, node),
            };
            places.free = places.free.max(of_combination.free);
            places.depend_on_room |= of_combination.depend_on_room;
            places.unsolved.extend(of_combination.unsolved);
            places.beside.extend(of_combination.beside);
        }
        places
    }

    /// The places of a uniform combination. They are counted for each group of devices with equal values.
    fn places_by_values(&self, kind: &Kind, combination: &Combination<'_>, node: &str) -> Places {
        let claims = &self.device_claims;
        let mut by_values: BTreeMap<Option<Values>, BTreeSet<(&PoolKey, &str)>> = BTreeMap::new();
        for our in combination.linked() {
            for OurDevice { pool, name, .. } in claims.ours_on(node, our.ask) {
                if let Some(values) = claims.values_of(our, pool, name) {
                    by_values.entry(Some(values)).or_default().insert((pool, name));
                }
            }
        }
        if combination.linked().next().is_none() {
            let all = combination.ours.iter().flat_map(|our| claims.ours_on(node, our.ask));
            by_values.insert(None, all.map(|of| (of.pool, of.name)).collect());
        }
        let (mut free, mut is_ended, mut left) = (0_u64, false, None);
        let (mut groups, mut unsolved) = (Vec::new(), Vec::new());
        let searches = &claims.others.searches;
        for devices in by_values.values() {
            let can_have =
                |our: &Our<'_>, of: &OurDevice<'_>| our.links.is_empty() || devices.contains(&(of.pool, of.name));
            let asked = claims.asked(combination, node, can_have);
            let Some(problem) = self.problem(&asked, node) else { continue };
            let is_first = left.is_none();
            let left = left.get_or_insert_with(|| problem.task.room.clone());
            let trials_max = combination.trials_max();
            let counted = if is_ended { None } else { Some(problem.count(left, trials_max, searches)) };
            free = free.saturating_add(counted.as_ref().map_or(0, |counted| counted.pods));
            is_ended |= counted.as_ref().is_some_and(|counted| counted.is_ended);
            // Nothing is taken for the pods of the groups before: it is not known whether there will be any.
            let counted = counted.filter(|_| is_first);
            let counted =
                counted.unwrap_or_else(|| problem.count(&mut problem.task.room.clone(), trials_max, searches));
            unsolved.extend(counted.unsolved);
            if counted.pods > 0 {
                groups.push((devices, counted.pods));
            }
        }
        let group = |(devices, places): &(&BTreeSet<(&PoolKey, &str)>, u64)| Group {
            devices: devices.iter().map(|(pool, name)| dra::uuid(&pool.1, name)).collect(),
            places: *places,
        };
        let is_one_of_each = match &combination.ours[..] {
            _ if kind.has_more_of_ours => false,
            [our] if our.ask.count == 1 && !our.links.is_empty() && !our.has_further_links => {
                claims.ours_on(node, our.ask).all(|device| device.has_room_for_one)
            }
            _ => false,
        };
        let beside = |(_, attribute)| Beside { attribute, is_one_of_each, groups: groups.iter().map(group).collect() };
        Places {
            free,
            depend_on_room: false,
            unsolved,
            beside: claims.names_of_marks(combination, &kind.name).into_iter().map(beside).collect(),
        }
    }

    /// The places of a combination that is not uniform: one at most. Devices with the same values as those of the first way
    /// to serve a pod are marked. If no way has room now, room is ignored: the core may evict pods to make room.
    fn places_of_first_way(&self, kind: &Kind, combination: &Combination<'_>, node: &str) -> Places {
        let claims = &self.device_claims;
        let asked = claims.asked(combination, node, |_, _| true);
        let problem = self.problem(&asked, node);
        let mut unsolved = None;
        let mut way = |held: &dyn Fn(&str) -> Vec<(DeviceCore, Bytes)>| {
            let problem = problem.as_ref()?;
            let parts = claims.parts_beside(combination, problem, held);
            let way = problem.ours_of_first_way(parts, combination.trials_max(), &claims.others.searches);
            let way = way.map_err(|task| unsolved = unsolved.take().or(task)).ok()?;
            let values = combination.linked().map(|our| {
                let devices = way.get(our.number).into_iter().flatten();
                let values: BTreeSet<Option<Values>> =
                    devices.map(|(pool, name)| claims.values_of(our, pool, name)).collect();
                (our.place, values)
            });
            Some(values.collect::<BTreeMap<_, _>>())
        };
        let all_of = |device: &str| {
            let is_ill = self.said_of(node, device).is_some_and(|said| said.problem.is_some());
            is_ill.then(|| vec![(DeviceCore::WHOLE, Bytes::new(u64::MAX))])
        };
        let held = |device: &str| all_of(device).unwrap_or_else(|| self.parts_given_out(device, node, None));
        // No eviction makes room on an ill device.
        let values = way(&held).or_else(|| way(&|device: &str| all_of(device).unwrap_or_default()));
        let beside = |(place, attribute): (usize, String)| {
            let our = combination.ours.iter().find(|our| our.place == place);
            let like = values.as_ref().and_then(|values| values.get(&place));
            let devices = our.into_iter().flat_map(|our| {
                let all = claims.ours_on(node, our.ask);
                let is_like = move |of: &OurDevice<'_>| {
                    let values = claims.values_of(our, of.pool, of.name);
                    values.is_some() && like.is_some_and(|like| like.contains(&values))
                };
                all.filter(is_like).map(|of| dra::uuid(&of.pool.1, of.name))
            });
            Beside { attribute, is_one_of_each: false, groups: vec![Group { devices: devices.collect(), places: 1 }] }
        };
        let free = u64::from(values.is_some());
        Places {
            free,
            depend_on_room: true,
            unsolved: unsolved.into_iter().collect(),
            beside: claims.names_of_marks(combination, &kind.name).into_iter().map(beside).collect(),
        }
    }

    /// The marks of our devices on a node, by the device's name in the books.
    pub(in super::super) fn marks_on(&self, node: &str) -> BTreeMap<String, Vec<String>> {
        let others = &self.device_claims.others;
        let mut marks: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let counted = others.places.get(node);
        let mut are_unused: BTreeMap<&String, bool> = BTreeMap::new();
        for kind in others.kinds.values() {
            let Some(places) = counted.and_then(|counted| counted.get(&kind.number)) else { continue };
            if places.beside.is_empty() {
                continue;
            }
            // When a pod of this kind ends, the other drivers' devices that it has become free, too.
            let held = self.held_by_kind(&kind.name, node);
            for Beside { attribute, is_one_of_each, groups } in &places.beside {
                let mut devices: BTreeSet<&String> = BTreeSet::new();
                for group in groups {
                    let mut unused: Vec<&String> = Vec::new();
                    for device in group.devices.iter().filter(|_| *is_one_of_each) {
                        if *are_unused.entry(device).or_insert_with(|| self.is_unused(device, node)) {
                            unused.push(device);
                        }
                    }
                    let said = || unused.iter().map(|device| self.said_of(node, device));
                    let are_alike = || said().zip(said().skip(1)).all(|(one, next)| one == next);
                    match usize::try_from(group.places) {
                        // Each pod takes one device. If more were marked, the core would start more pods than have places.
                        Ok(enough) if unused.len() > enough && are_alike() => {
                            devices.extend(unused.into_iter().take(enough));
                        }
                        _ => devices.extend(&group.devices),
                    }
                }
                devices.extend(held.iter().filter(|_| *is_one_of_each || places.free == 0));
                for device in devices {
                    marks.entry(device.clone()).or_default().push(attribute.clone());
                }
            }
        }
        marks
    }

    fn is_unused(&self, device: &str, node: &str) -> bool {
        let is_ill = self.said_of(node, device).is_some_and(|said| said.problem.is_some());
        !is_ill && self.parts_given_out(device, node, None).is_empty()
    }

    /// The devices that pods of a kind have on a node.
    fn held_by_kind(&self, kind: &str, node: &str) -> BTreeSet<String> {
        let pods = self.on_node.get(node).into_iter().flatten().filter_map(|uid| self.pods.get(uid));
        let instances = pods.filter_map(|pod| pod.instance.as_ref()).filter(|of| of.amounts.counted.contains_key(kind));
        instances.flat_map(|of| &of.amounts.devices).map(|part| part.uuid.clone()).collect()
    }
}

impl DeviceClaims {
    /// The marks that a pod's devices need. `choices`: the numbers of the chosen list entries, for all requests of the claims
    /// that ask for devices of both sorts.
    pub(in super::super) fn marks(&self, asks: &[Ask], kind: &str, choices: &[usize]) -> Vec<Mark> {
        let combination = self.combination(asks, &self.lists_of(asks), choices);
        let names = self.names_of_marks(&combination, kind);
        let mark = |(wish, attribute)| Mark { wish, attribute, value: USABLE.to_owned() };
        names.into_iter().map(mark).collect()
    }

    /// Refuses lists with a combination that asks our driver for nothing by claims for both sorts: no device could have the
    /// mark of this combination, so the core would choose it where other drivers have no device for it. A combination is
    /// never chosen if an entry of it selects no device.
    ///
    /// # Errors
    /// There is such a combination.
    pub(in super::super) fn check_marks(&self, asks: &[Ask]) -> Result<(), String> {
        let lists = self.lists_of(asks);
        let combinations = lists.combinations();
        let mut numbers = 0..combinations.min(Alternatives::CHOICES_MAX);
        let is_never_chosen = |choices: &[usize]| {
            let chosen = self.both_of(asks).flat_map(|ask| &ask.requests).zip(choices);
            let mut chosen = chosen.filter_map(|(of, choice)| Some((of.choices.get(*choice)?, &of.choices)));
            chosen.any(|(choice, list)| self.selects_none_beside_ours(choice, list))
        };
        let is_without = |number| {
            let choices = lists.choice(number);
            self.combination(asks, &lists, &choices).ours.is_empty() && !is_never_chosen(&choices)
        };
        match combinations > 1 && numbers.any(is_without) {
            true => Err(ASKS_FOR_NONE.to_owned()),
            false => Ok(()),
        }
    }

    /// The attributes by which constraints compare our devices with others.
    pub(super) fn compared_with_ours(&self, asks: &[Ask]) -> BTreeSet<String> {
        let lists = self.lists_of(asks);
        let of_combination = |number| {
            let combination = self.combination(asks, &lists, &lists.choice(number));
            let links = combination.ours.into_iter().flat_map(|our| our.links);
            links.map(|link| link.attribute().to_owned()).collect::<Vec<String>>()
        };
        (0..lists.combinations().min(Alternatives::CHOICES_MAX)).flat_map(of_combination).collect()
    }

    /// How many list entries each request has, for the claims that ask for devices of both sorts.
    fn lists_of(&self, asks: &[Ask]) -> Lists {
        Lists::of(self.both_of(asks).flat_map(|ask| &ask.requests).map(|request| request.choices.len()))
    }

    /// The claims that ask for devices of both sorts.
    fn both_of<'a>(&self, asks: &'a [Ask]) -> impl Iterator<Item = &'a Ask> {
        asks.iter().filter(|ask| self.asked_of(ask) == AskedOf::Both)
    }

    fn combination<'a>(&self, asks: &'a [Ask], lists: &Lists, choices: &[usize]) -> Combination<'a> {
        let combinations = lists.combinations();
        let mut combination = Combination { asks, combinations, choices: Vec::new(), ours: Vec::new() };
        let (mut before, mut number) = (0, 0);
        for (claim, ask) in asks.iter().enumerate() {
            let first = number;
            number += ask.requests.len();
            if self.asked_of(ask) != AskedOf::Both {
                combination.choices.push(Vec::new());
                continue;
            }
            let of_claim: Vec<usize> = choices.iter().skip(before).take(ask.requests.len()).copied().collect();
            let is_ours: Vec<bool> = ask.taken(&of_claim).map(|choice| self.is_ours(choice)).collect();
            let is_ours = |request: usize| is_ours.get(request).copied().unwrap_or_default();
            let is_about = |link: &Link, request: usize| {
                let is_chosen = |choice: usize| of_claim.get(request) == Some(&choice);
                link.requests.iter().any(|of| of.request == request && of.choice.is_none_or(is_chosen))
            };
            let with_others = |link: &&Link| (0..ask.requests.len()).any(|of| !is_ours(of) && is_about(link, of));
            for (request, asked) in ask.taken(&of_claim).enumerate().filter(|(request, _)| is_ours(*request)) {
                let about_it = ask.links.iter().filter(|link| is_about(link, request));
                let (links, further): (Vec<&Link>, Vec<&Link>) = about_it.partition(with_others);
                let (place, has_further_links) = (before + request, !further.is_empty());
                let number = first + request;
                combination.ours.push(Our { claim, request, number, place, ask: asked, links, has_further_links });
            }
            before += ask.requests.len();
            combination.choices.push(of_claim);
        }
        combination
    }

    /// The attributes that are the marks of a combination, each with the place of the request that needs it.
    fn names_of_marks(&self, combination: &Combination<'_>, kind: &str) -> Vec<(usize, String)> {
        let mut marked: Vec<usize> = combination.linked().map(|our| our.place).collect();
        if marked.is_empty() && combination.combinations > 1 {
            // Nothing is compared. The mark only says that other drivers' devices are free for this combination.
            marked.extend(combination.ours.first().map(|our| our.place));
        }
        let choices = combination.choices.concat().iter().map(usize::to_string).collect::<Vec<_>>().join(".");
        let one = marked.len() == 1;
        let name = |place: usize| {
            let mut name = format!("free beside it: {kind}");
            if combination.combinations > 1 {
                name = format!("{name}, choices {choices}");
            }
            if !one {
                name = format!("{name}, request {place}");
            }
            (place, name)
        };
        marked.into_iter().map(name).collect()
    }

    /// What claims ask for with a combination of choices. `can_have`: whether a request can have a device of our driver.
    fn asked<'a>(
        &'a self,
        combination: &Combination<'a>,
        node: &str,
        can_have: impl Fn(&Our<'_>, &OurDevice<'_>) -> bool,
    ) -> Vec<Asked<'a>> {
        let of_claim = |(claim, ask): (usize, &'a Ask)| {
            let choices = combination.choices.get(claim).into_iter().flatten().enumerate();
            let decided = choices.map(|(request, choice)| {
                let our = combination.ours.iter().find(|our| (our.claim, our.request) == (claim, request));
                let ours = our.map(|our| self.ours_on(node, our.ask).filter(|device| can_have(our, device)).collect());
                Decided { choice: *choice, ours }
            });
            Asked { ask, decided: decided.collect() }
        };
        combination.asks.iter().enumerate().map(of_claim).collect()
    }

    /// The devices of our driver on a node that a request selects. For all of another number of devices than the node has it
    /// selects none.
    pub(super) fn ours_on<'a>(&'a self, node: &str, ask: &DevicesAsk) -> impl Iterator<Item = OurDevice<'a>> {
        let is_possible = !ask.is_all || self.all_on(ask, node) == Some(ask.count);
        let selection = self.selection(ask).ok().filter(|_| is_possible);
        let pools = self.pools.on(node).filter(|(_, pool)| pool.is_complete);
        pools.flat_map(move |(key, pool)| {
            pool.devices.iter().filter_map(move |(name, device)| {
                let takes = selection?.taken(key, name)?;
                let (_, memory) = dra::held(&DeviceRequestAllocationResult::default(), device)?;
                let left = Free::of(memory, std::iter::once((takes.core, takes.memory)));
                Some(OurDevice { pool: key, name, has_room_for_one: !left.is_enough_for(takes) })
            })
        })
    }

    /// What is free of our driver's devices, and what the requests of a combination take of them. `held`: the parts of a
    /// device that are taken.
    fn parts_beside(
        &self,
        combination: &Combination<'_>,
        problem: &Problem<'_>,
        held: impl Fn(&str) -> Vec<(DeviceCore, Bytes)>,
    ) -> Parts {
        let mut parts = Parts::default();
        let mut places: BTreeMap<(&PoolKey, &str), usize> = BTreeMap::new();
        for our in &combination.ours {
            let selection = self.selection(our.ask).ok();
            for (number, pool, name) in problem.ours_of(our.number) {
                let device = self.pools.get(pool).and_then(|pool| pool.devices.get(name));
                let whole = device.and_then(|device| dra::held(&DeviceRequestAllocationResult::default(), device));
                let takes = selection.and_then(|selection| selection.taken(pool, name));
                let (Some((_, memory)), Some(takes)) = (whole, takes) else { continue };
                let free = || Free::of(memory, held(&dra::uuid(&pool.1, name)).into_iter());
                let place = *places.entry((pool, name)).or_insert_with(|| parts.add(free()));
                parts.takes(number, place, takes);
            }
        }
        parts
    }

    /// The values by which a device is compared with others; `None`: it lacks one.
    fn values_of(&self, our: &Our<'_>, pool: &PoolKey, name: &str) -> Option<Values> {
        let device = self.pools.get(pool)?.devices.get(name)?;
        our.links.iter().map(|link| compared_value(device, link.attribute())).collect()
    }
}
