//! Chooses the devices of other drivers that claims get on a node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::resource::v1::{AllocationResult, Device, DeviceAllocationResult, DeviceRequestAllocationResult};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::super::super::Mirror;
use super::super::DeviceClaims;
use super::PLACES_MAX;
use super::owned::Promised;
use super::searches::{Refusal, Searches};
use super::uses::{Use, of_results};
use crate::dra::whole::{self, Amount, Choice, Failure, Given, Parts, Request, Room, Rule, Task};
use crate::dra::{
    self, Amounts, Ask, ClaimFacts, CounterName, DRIVER, DevicesAsk, Found, Linked, PoolKey, Reach, compared_values,
    counters_taken_by, groups_of,
};
use crate::placement::{self, OPTIONAL_NODE_OPERATIONS};

/// A claim that is to be allocated, and that asks other drivers for devices.
pub(in super::super) struct Asking<'a> {
    pub(in super::super) claim: &'a ClaimFacts,
    pub(in super::super) ask: Ask,
    /// `None`: it asks our driver for nothing.
    pub(in super::super) ours: Option<GivenOfOurs>,
}

/// What the core has decided for a claim.
pub(in super::super) struct GivenOfOurs {
    /// The choice that each request has.
    pub(in super::super) choices: Vec<usize>,
    /// The results of each request. Those for devices of other drivers have none yet.
    pub(in super::super) results: Vec<Vec<DeviceRequestAllocationResult>>,
}

/// What a claim asks for, and what is decided of it already: nothing, or something for each request.
pub(super) struct Asked<'a> {
    pub(super) ask: &'a Ask,
    pub(super) decided: Vec<Decided<'a>>,
}

/// What is decided of a request.
pub(super) struct Decided<'a> {
    pub(super) choice: usize,
    /// The devices of our driver that it can have; `None`: it is for devices of other drivers.
    pub(super) ours: Option<Vec<OurDevice<'a>>>,
}

/// A device of our driver that a request can have.
#[derive(Clone, Copy)]
pub(super) struct OurDevice<'a> {
    pub(super) pool: &'a PoolKey,
    pub(super) name: &'a str,
    /// A device has no room for two such requests.
    pub(super) has_room_for_one: bool,
}

/// The devices of our driver that a request has.
pub(super) type Ours<'a> = Vec<(&'a PoolKey, &'a str)>;

/// What claims ask for on a node.
pub(super) struct Problem<'a> {
    devices: Vec<OnNode<'a>>,
    /// Its room is what is left beside all devices that are given out. It is numbered alike for all problems of a node.
    pub(super) task: Task,
    /// Pools with counters that devices on several nodes share.
    spread_counters: BTreeSet<&'a PoolKey>,
}

/// A device that can be used on a node.
struct OnNode<'a> {
    pool: &'a PoolKey,
    name: &'a str,
    /// `None`: it is a device of our driver, and for this node alone.
    reach: Option<&'a Reach>,
    /// A request can have it, or a share of it.
    is_free: bool,
    /// The stocks that stand for its capacities, if several requests can have shares of it.
    stocks: Option<BTreeMap<String, usize>>,
}

/// How many pods get devices, one after the other.
pub(super) struct Counted {
    pub(super) pods: u64,
    /// No more are counted although more may get devices: the last one has a device that other nodes reach, too, and they
    /// count it as well, or there are very many.
    pub(super) is_ended: bool,
    /// The search for the first pod, if it was given up: it is not known whether there is a place.
    pub(super) unsolved: Option<Arc<Task>>,
}

impl Counted {
    fn of(pods: u64, is_ended: bool) -> Counted {
        Counted { pods, is_ended, unsolved: None }
    }
}

impl Problem<'_> {
    /// How many pods that ask for this can get devices of other drivers, one after the other, as far as there is room.
    /// Takes what they get out of `room`. Counting ends with the first search that is given up, after `trials_max` trials.
    pub(super) fn count(&self, room: &mut Room, trials_max: u32, searches: &Searches) -> Counted {
        let mut task = self.task.in_room(std::mem::take(room));
        let counted = self.count_for(&mut task, trials_max, searches);
        *room = task.room;
        counted
    }

    fn count_for(&self, task: &mut Task, trials_max: u32, searches: &Searches) -> Counted {
        let mut pods = 0;
        while pods < PLACES_MAX {
            let given = match searches.search(task, trials_max) {
                Ok(given) => given,
                Err(failure) => {
                    let is_unsolved = pods == 0 && failure.is_given_up;
                    let unsolved = is_unsolved.then(|| Arc::new(task.clone()));
                    return Counted { unsolved, ..Counted::of(pods, false) };
                }
            };
            pods += 1;
            let mut of_others = Vec::new();
            let mut has_access = false;
            for (request, given) in self.task.requests.iter().zip(&given) {
                let Some(choice) = request.choices.get(given.choice) else { continue };
                for number in &given.devices {
                    let device = self.devices.get(*number).filter(|of| of.reach.is_some());
                    has_access |= device.is_some() && request.is_admin;
                    if let Some(device) = device.filter(|_| !request.is_admin) {
                        task.room.give(*number, choice.share_of(*number));
                        of_others.push(device);
                    }
                }
            }
            // Pods with administrative access alone take nothing from each other.
            if has_access && of_others.is_empty() {
                return Counted::of(PLACES_MAX, true);
            }
            if of_others.is_empty() || !of_others.iter().all(|device| self.is_for_one_node(device)) {
                return Counted::of(pods, true);
            }
        }
        Counted::of(pods, true)
    }

    /// Whether a device can be used on this node alone, and so can all devices with which it shares counters.
    fn is_for_one_node(&self, device: &OnNode<'_>) -> bool {
        matches!(device.reach, Some(Reach::Node(_))) && !self.spread_counters.contains(device.pool)
    }

    /// The number that a request, by its place among all requests, has for each device of our driver that it can have.
    pub(super) fn ours_of(&self, request: usize) -> impl Iterator<Item = (usize, &PoolKey, &str)> {
        let choices = self.task.requests.get(request).into_iter().flat_map(|request| &request.choices);
        let devices = choices.flat_map(|choice| &choice.devices);
        let devices = devices.filter_map(|number| Some((*number, self.devices.get(*number)?)));
        devices.filter(|(_, device)| device.reach.is_none()).map(|(number, device)| (number, device.pool, device.name))
    }

    /// The devices of our driver that each request has in the first way to serve all requests, as far as these parts leave
    /// room.
    ///
    /// # Errors
    /// There is no way, or the search was given up, which is returned then.
    pub(super) fn ours_of_first_way(
        &self,
        parts: Parts,
        trials_max: u32,
        searches: &Searches,
    ) -> Result<Vec<Ours<'_>>, Option<Arc<Task>>> {
        let ours = |given: &Given| -> Ours<'_> {
            let devices = given.devices.iter().filter_map(|number| self.devices.get(*number));
            devices.filter(|device| device.reach.is_none()).map(|device| (device.pool, device.name)).collect()
        };
        let task = Task { parts: Arc::new(parts), ..self.task.clone() };
        match searches.search(&task, trials_max) {
            Ok(given) => Ok(given.iter().map(ours).collect()),
            Err(failure) => Err(failure.is_given_up.then(|| Arc::new(task))),
        }
    }
}

impl Mirror {
    /// What claims ask for on a node; `None`: the node is not known.
    pub(super) fn problem<'a>(&'a self, asked: &[Asked<'a>], node: &str) -> Option<Problem<'a>> {
        let claims = &self.device_claims;
        let labels = &self.nodes.get(node)?.facts.labels;
        let complete = claims.pools.others_on(node).filter(|(_, pool)| pool.is_complete);
        // As in Kubernetes' own allocator, pools whose devices are ready at once go first.
        let (slow, ready): (Vec<_>, Vec<_>) = complete.partition(|(_, pool)| pool.is_slow_on(node, labels));
        let may_skip = placement::declares(labels, OPTIONAL_NODE_OPERATIONS);
        let devices = ready.into_iter().chain(slow).flat_map(|(key, pool)| {
            let names = pool.order.iter().filter(move |name| may_skip || !pool.skipped.contains_key(*name));
            let reaches = names.filter_map(|name| pool.reach.get_key_value(name));
            reaches.filter(|(_, reach)| reach.includes(node, labels)).map(move |(name, reach)| OnNode {
                pool: key,
                name,
                reach: Some(reach),
                is_free: claims.has_free(key, name),
                stocks: None,
            })
        });
        let mut devices: Vec<OnNode<'_>> = devices.collect();
        let others = devices.len();
        let (room, spread_counters) = self.room(&mut devices);
        let is_changing = claims.pools.others_on(node).any(|(_, pool)| pool.is_changing_on(node, labels));
        let mut requests: Vec<Request> = Vec::new();
        for (claim, Asked { ask, decided }) in asked.iter().enumerate() {
            for (place, request) in ask.requests.iter().enumerate() {
                let decided = decided.get(place);
                let mut choices = Vec::new();
                for (number, choice) in request.choices.iter().enumerate() {
                    choices.push(match decided {
                        Some(decided) if decided.choice != number => Choice::none(),
                        Some(Decided { ours: Some(ours), .. }) => {
                            // Several requests can have parts of one device, so each has a number of its own for it.
                            let first = devices.len();
                            let device = |of: &OurDevice<'a>| OnNode {
                                pool: of.pool,
                                name: of.name,
                                reach: None,
                                is_free: true,
                                stocks: None,
                            };
                            devices.extend(ours.iter().map(device));
                            Choice::of(usize::from(choice.count), (first..devices.len()).collect())
                        }
                        _ => self.choice(choice, devices.get(..others).unwrap_or_default(), &room, is_changing),
                    });
                }
                let is_admin = request.choices.iter().any(|choice| choice.is_admin);
                requests.push(Request { claim, choices, is_admin });
            }
        }
        let (mut rules, mut before) = (Vec::new(), 0);
        for Asked { ask, .. } in asked {
            rules.extend(ask.links.iter().map(|link| {
                let values_of = |device: &OnNode<'_>| {
                    let known = claims.pools.get(device.pool).and_then(|pool| pool.devices.get(device.name));
                    known.map(|known| compared_values(&device.pool.0, known, link.attribute())).unwrap_or_default()
                };
                let linked = link.requests.iter().map(|of| Linked { request: before + of.request, ..*of });
                Rule::new(linked.collect(), link.comparison, devices.iter().map(values_of))
            }));
            before += ask.requests.len();
        }
        let task = Task { requests: requests.into(), rules: rules.into(), room, parts: Arc::default() };
        Some(Problem { devices, task, spread_counters })
    }

    /// What is left of the counters from which these devices take, and of the capacities of those that have shares; and the
    /// pools whose counters devices on several nodes share.
    fn room<'a>(&self, devices: &mut [OnNode<'a>]) -> (Room, BTreeSet<&'a PoolKey>) {
        let claims = &self.device_claims;
        let (mut room, mut spread) = (Room::default(), BTreeSet::new());
        let mut stocks: BTreeMap<&PoolKey, BTreeMap<CounterName, usize>> = BTreeMap::new();
        let mut sets: BTreeMap<&PoolKey, BTreeMap<&str, usize>> = BTreeMap::new();
        for (number, device) in devices.iter_mut().enumerate() {
            let Some(pool) = claims.pools.get(device.pool) else { continue };
            let Some(known) = pool.devices.get(device.name) else { continue };
            if dra::is_shared(known) {
                room.share(number);
                let left = claims.capacity_left(device.pool, known).into_iter();
                device.stocks = Some(left.map(|(name, left)| (name, room.add_stock(left))).collect());
            }
            if pool.counters.is_empty() {
                continue;
            }
            let of_pool = stocks.entry(device.pool).or_insert_with(|| {
                if pool.node.is_none() {
                    spread.insert(device.pool);
                }
                let left = claims.counters_left(device.pool, pool).into_iter();
                left.map(|(name, left)| (name, room.add_stock(left))).collect()
            });
            // A device that somebody has a share of takes nothing more for a further share. For administrative access to a
            // whole device the counters are taken once more, as in Kubernetes' own allocator.
            let used = claims.others.used(device.pool, device.name);
            if used.is_none_or(|used| used.is_whole) || !dra::is_shared(known) {
                let taken = counters_taken_by(known).into_iter();
                room.takes(number, taken.filter_map(|(name, amount)| Some((*of_pool.get(&name)?, amount))).collect());
                let of_pool = sets.entry(device.pool).or_insert_with(|| {
                    let given_out = claims.groups_given_out(device.pool, pool).into_iter();
                    given_out.map(|(set, given_out)| (set, room.add_set(&given_out))).collect()
                });
                let groups = groups_of(known);
                room.takes_of_sets(
                    number,
                    groups.filter_map(|(set, groups)| Some((*of_pool.get(set)?, groups))).collect(),
                );
            }
        }
        (room, spread)
    }

    /// How many devices a request asks for, and the free devices that will do.
    fn choice(&self, ask: &DevicesAsk, devices: &[OnNode<'_>], room: &Room, is_changing: bool) -> Choice {
        let selection = self.device_claims.selection(ask).ok();
        let found = |device: &OnNode<'_>| selection.and_then(|of| of.found(device.pool, device.name));
        let is_selected = |device: &OnNode<'_>| found(device).is_some_and(|found| !matches!(found, Found::Lacks(_)));
        let mut choice = Choice { count: usize::from(ask.count), devices: Vec::new(), shares: BTreeMap::new() };
        let mut selected = 0_usize;
        for (number, device) in devices.iter().enumerate().filter(|(_, device)| is_selected(device)) {
            let share = self.device_claims.share_of(ask, device);
            let has_access = ask.is_admin && !self.device_claims.is_shunned(device.pool, device.name);
            // A device that has too little left is none of "all" devices, as in Kubernetes, whoever has it.
            let is_overdrawn = self.device_claims.is_overdrawn(device.pool, device.name);
            let is_free = has_access && !is_overdrawn || device.is_free;
            // It is not known whether such a device is one of them, whatever is left of it.
            let has_failed = matches!(found(device), Some(Found::Failed(_)));
            let is_enough = share.iter().all(|(stock, amount)| *amount <= room.left_of(*stock));
            selected += usize::from(has_failed || !is_overdrawn && is_enough);
            if is_free && found(device) == Some(&Found::Usable) {
                choice.devices.push(number);
                choice.shares.extend(device.stocks.is_some().then_some((number, share)));
            }
        }
        match ask.is_all {
            false => {}
            // No number is enough while it is not known which all devices are. "All" needs one device at least.
            true if is_changing => choice.count = usize::MAX,
            true => choice.count = selected.max(1),
        }
        choice
    }

    /// The allocations that claims get on a node, and what each of them has of devices of other drivers.
    ///
    /// # Errors
    /// The text names the request that gets no devices there, and why.
    pub(in super::super) fn allocate_others(
        &self,
        claims: &[Asking<'_>],
        node: &str,
    ) -> Result<(Vec<AllocationResult>, Promised), Refusal> {
        if claims.is_empty() {
            return Ok(Default::default());
        }
        let asked: Vec<Asked<'_>> = claims.iter().map(|of| self.decided_of(of, node)).collect();
        let problem = self.problem(&asked, node).ok_or_else(|| format!("there is no node {node} any more"))?;
        let given = self.device_claims.others.searches.search(&problem.task, whole::TRIALS_MAX);
        let refusal = |failure: Failure| Refusal {
            why: self.without_devices(claims, failure, node),
            unsolved: failure.is_given_up.then(|| Arc::new(problem.task.clone())),
        };
        let mut given = given.map_err(refusal)?.into_iter();
        let (mut allocations, mut promised) = (Vec::new(), Promised::new());
        for Asking { claim, ask, ours } in claims {
            let given: Vec<Given> = given.by_ref().take(ask.requests.len()).collect();
            let choices: Vec<usize> = given.iter().map(|given| given.choice).collect();
            let (mut results, mut reaches, mut is_for_node) = (Vec::new(), Vec::new(), false);
            for (place, (request, given)) in ask.taken(&choices).zip(&given).enumerate() {
                results.extend(ours.iter().filter_map(|of| of.results.get(place)).flatten().cloned());
                for device in given.devices.iter().filter_map(|device| problem.devices.get(*device)) {
                    let Some(reach) = device.reach else { continue };
                    reaches.push(reach);
                    let pool = self.device_claims.pools.get(device.pool);
                    let known = pool.and_then(|pool| pool.devices.get(device.name));
                    is_for_node |= known.is_some_and(|known| known.binds_to_node == Some(true));
                    results.push(DeviceRequestAllocationResult {
                        request: request.name.clone(),
                        driver: device.pool.0.clone(),
                        pool: device.pool.1.clone(),
                        device: device.name.to_owned(),
                        tolerations: Some(request.tolerations.clone()).filter(|of| !of.is_empty()),
                        consumed_capacity: self.device_claims.consumed(request, device),
                        admin_access: request.is_admin.then_some(true),
                        binding_conditions: known.and_then(|known| known.binding_conditions.clone()),
                        binding_failure_conditions: known.and_then(|known| known.binding_failure_conditions.clone()),
                        skip_node_operations: pool.and_then(|pool| pool.skipped.get(device.name).cloned()),
                        ..DeviceRequestAllocationResult::default()
                    });
                }
            }
            let uses = of_results(results.iter(), |result| result.consumed_capacity.is_some());
            promised.insert((claim.namespace.clone(), claim.name.clone()), uses);
            let config = self.configurations(ask, &choices);
            let has_ours = results.iter().any(|result| result.driver == DRIVER);
            allocations.push(AllocationResult {
                devices: Some(DeviceAllocationResult { results: Some(results), config }),
                node_selector: match has_ours || is_for_node {
                    true => Some(dra::only(node)),
                    false => dra::selector(reaches.into_iter(), node),
                },
                allocation_timestamp: None,
            });
        }
        Ok((allocations, promised))
    }

    /// A claim with what the core has decided.
    fn decided_of<'a>(&'a self, asking: &'a Asking<'a>, node: &str) -> Asked<'a> {
        let Asking { ask, ours, .. } = asking;
        let of_request = |(choice, results): (&usize, &Vec<DeviceRequestAllocationResult>), asked: &'a DevicesAsk| {
            let is_given = |device: &OurDevice<'_>| {
                results.iter().any(|result| (&result.pool, result.device.as_str()) == (&device.pool.1, device.name))
            };
            let ours = self.device_claims.is_ours(asked);
            let ours = ours.then(|| self.device_claims.ours_on(node, asked).filter(is_given).collect());
            Decided { choice: *choice, ours }
        };
        let decided = ours.iter().flat_map(|GivenOfOurs { choices, results }| {
            choices.iter().zip(results).zip(ask.taken(choices)).map(|(given, asked)| of_request(given, asked))
        });
        Asked { ask, decided: decided.collect() }
    }

    fn without_devices(&self, claims: &[Asking<'_>], failure: Failure, node: &str) -> String {
        let mut all = claims
            .iter()
            .flat_map(|of| of.ask.requests.iter().enumerate().map(move |(place, request)| (of, place, request)));
        let Some((Asking { claim, ours, .. }, _, request)) = all.nth(failure.request) else {
            return "its claims have changed".into();
        };
        let drivers = request.choices.iter().filter_map(|choice| self.device_claims.driver_of(choice));
        let drivers: Vec<String> = drivers.collect::<BTreeSet<String>>().into_iter().collect();
        let why = match failure.is_given_up {
            true => "it is not known yet which devices would do: there are very many ways, and the search goes on",
            false => "not enough devices are free that will do",
        };
        let labels = self.nodes.get(node).map(|node| &node.facts.labels);
        let reaches = |key: &PoolKey, name: &str| {
            let reach = self.device_claims.pools.get(key).and_then(|pool| pool.reach.get(name));
            reach.zip(labels).is_some_and(|(reach, labels)| reach.includes(node, labels))
        };
        let capacity = request.choices.iter().find_map(|choice| self.device_claims.lacking_for(choice, reaches));
        let shunned = request.choices.iter().find_map(|choice| self.device_claims.shunned_for(choice, reaches));
        let details: String = capacity.into_iter().chain(shunned).map(|text| format!("; {text}")).collect();
        let ours = ours.iter().flat_map(|of| of.results.iter().flatten());
        let ours: Vec<String> = ours.map(|result| format!("{}/{}", result.pool, result.device)).collect();
        let beside = if ours.is_empty() { String::new() } else { format!(" beside {}", ours.join(" and ")) };
        format!(
            "ResourceClaim {:?}, request {:?} for devices of {}: {why}{beside} on node {node}{details}",
            claim.name,
            request.name,
            drivers.join(" and ")
        )
    }
}

impl DeviceClaims {
    /// Whether a request can have a device, or a share of it.
    fn has_free(&self, key: &PoolKey, name: &str) -> bool {
        if self.is_shunned(key, name) {
            return false;
        }
        let device = self.pools.get(key).and_then(|pool| pool.devices.get(name));
        let has_shares = |used: &Use| !used.is_whole && device.is_some_and(dra::is_shared);
        self.others.used(key, name).is_none_or(has_shares) && !self.is_overdrawn(key, name)
    }

    /// Whether the shares of a device take more than it has. It can have shrunk.
    fn is_overdrawn(&self, key: &PoolKey, name: &str) -> bool {
        let device =
            self.pools.get(key).and_then(|pool| pool.devices.get(name)).filter(|device| dra::is_shared(device));
        device.zip(self.others.used(key, name)).is_some_and(|(device, used)| dra::is_overdrawn(device, &used.consumed))
    }

    /// What is left of the capacities of a device.
    pub(super) fn capacity_left(&self, key: &PoolKey, device: &Device) -> Amounts {
        let used = self.others.used(key, &device.name);
        dra::left(device, used.map_or(&Amounts::new(), |used| &used.consumed))
    }

    /// What a request consumes of the capacities of a device that has shares. `None`: it gets the whole device.
    fn consumed(&self, ask: &DevicesAsk, device: &OnNode<'_>) -> Option<BTreeMap<String, Quantity>> {
        let known = self.pools.get(device.pool)?.devices.get(device.name).filter(|known| dra::is_shared(known))?;
        let consumed = dra::consumed(known, &ask.capacity).ok()?;
        Some(consumed.into_iter().map(|(name, amount)| (name, dra::quantity(amount))).collect())
    }

    /// What a request takes of the stocks that stand for a device's capacities.
    fn share_of(&self, ask: &DevicesAsk, device: &OnNode<'_>) -> Vec<Amount> {
        let Some(stocks) = &device.stocks else { return Vec::new() };
        let known = self.pools.get(device.pool).and_then(|pool| pool.devices.get(device.name));
        let consumed = known.and_then(|known| dra::consumed(known, &ask.capacity).ok()).unwrap_or_default();
        consumed.into_iter().filter_map(|(name, amount)| Some((*stocks.get(&name)?, amount))).collect()
    }
}
