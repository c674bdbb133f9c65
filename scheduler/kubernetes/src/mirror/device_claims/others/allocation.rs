//! Chooses the devices of other drivers that claims get on a node.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{AllocationResult, DeviceAllocationResult, DeviceRequestAllocationResult};

use super::super::super::Mirror;
use super::{COUNTING_TRIALS_MAX, DeviceId, PLACES_MAX};
use crate::dra::whole::{self, Choice, Failure, Given, Request, Rule};
use crate::dra::{self, Ask, ClaimFacts, DevicesAsk, Found, Linked, PoolKey, Reach, compared_value};

/// What claims ask for on a node.
struct Problem<'a> {
    devices: Vec<OnNode<'a>>,
    requests: Vec<Request>,
    rules: Vec<Rule>,
}

/// A device that can be used on a node.
struct OnNode<'a> {
    pool: &'a PoolKey,
    name: &'a str,
    reach: &'a Reach,
    is_free: bool,
}

impl OnNode<'_> {
    fn id(&self) -> DeviceId {
        (self.pool.clone(), self.name.to_owned())
    }
}

impl Mirror {
    /// How many pods that ask for this can get devices on a node, one after the other. Counting ends with the first pod
    /// that gets a device which other nodes reach, too, because those nodes count it as well, or with the first search
    /// that is given up.
    pub(super) fn places_of(&self, asks: &[&Ask], node: &str) -> u64 {
        let Some(mut problem) = self.problem(asks, node).filter(|problem| !problem.devices.is_empty()) else {
            return 0;
        };
        let mut places = 0;
        while places < PLACES_MAX {
            let given = whole::search(&problem.requests, &problem.rules, COUNTING_TRIALS_MAX);
            let Ok(given) = given else { break };
            places += 1;
            let taken: BTreeSet<usize> = given.into_iter().flat_map(|given| given.devices).collect();
            let is_local = |device: &usize| {
                problem.devices.get(*device).is_some_and(|device| matches!(device.reach, Reach::Node(_)))
            };
            if taken.is_empty() || !taken.iter().all(is_local) {
                break;
            }
            for choice in problem.requests.iter_mut().flat_map(|request| &mut request.choices) {
                choice.devices.retain(|device| !taken.contains(device));
            }
        }
        places
    }

    /// What claims ask for on a node; `None`: the node is not known.
    fn problem(&self, asks: &[&Ask], node: &str) -> Option<Problem<'_>> {
        let claims = &self.device_claims;
        let labels = &self.nodes.get(node)?.facts.labels;
        let complete = claims.pools.others_on(node).filter(|(_, pool)| pool.is_complete);
        let devices = complete.flat_map(|(key, pool)| {
            pool.reach.iter().filter(|(_, reach)| reach.includes(node, labels)).map(move |(name, reach)| OnNode {
                pool: key,
                name,
                reach,
                is_free: claims.others.owners(key, name).is_none(),
            })
        });
        let devices: Vec<OnNode<'_>> = devices.collect();
        // While slices of a pool are missing, it is not known which all devices are.
        let is_changing = claims.pools.others_on(node).any(|(_, pool)| !pool.is_complete);
        let (mut requests, mut rules): (Vec<Request>, Vec<Rule>) = Default::default();
        for (claim, ask) in asks.iter().enumerate() {
            let before = requests.len();
            for request in &ask.requests {
                let choices = request.choices.iter().map(|choice| self.choice(choice, &devices, is_changing)).collect();
                requests.push(Request { claim, choices });
            }
            rules.extend(ask.links.iter().map(|link| {
                let value = |device: &OnNode<'_>| {
                    let known = claims.pools.get(device.pool)?.devices.get(device.name)?;
                    compared_value(&device.pool.0, known, link.attribute())
                };
                let linked = link.requests.iter().map(|of| Linked { request: before + of.request, ..*of });
                Rule::new(linked.collect(), link.comparison, devices.iter().map(value))
            }));
        }
        Some(Problem { devices, requests, rules })
    }

    /// How many devices a request asks for, and the free devices that will do.
    fn choice(&self, ask: &DevicesAsk, devices: &[OnNode<'_>], is_changing: bool) -> Choice {
        let selection = self.device_claims.selection(ask).ok();
        let found = |device: &OnNode<'_>| selection.and_then(|of| of.found(device.pool, device.name));
        let will_do = |device: &OnNode<'_>| device.is_free && found(device) == Some(&Found::Usable);
        let usable = devices.iter().enumerate().filter(|(_, device)| will_do(device)).map(|(number, _)| number);
        let selected = devices.iter().filter(|device| found(device).is_some()).count();
        let count = match ask.is_all {
            false => usize::from(ask.count),
            // No number is enough while it is not known which all devices are. "All" needs one device at least.
            true if is_changing => usize::MAX,
            true => selected.max(1),
        };
        Choice { count, devices: usable.collect() }
    }

    /// The allocations that claims get on a node, and the devices of all of them.
    ///
    /// # Errors
    /// The text names the request that gets no devices there, and why.
    pub(in super::super) fn allocate_others(
        &self,
        claims: &[(&ClaimFacts, &Ask)],
        node: &str,
    ) -> Result<(Vec<AllocationResult>, BTreeSet<DeviceId>), String> {
        if claims.is_empty() {
            return Ok(Default::default());
        }
        let asks: Vec<&Ask> = claims.iter().map(|(_, ask)| *ask).collect();
        let problem = self.problem(&asks, node).ok_or_else(|| format!("there is no node {node} any more"))?;
        let given = whole::search(&problem.requests, &problem.rules, whole::TRIALS_MAX);
        let mut given = given.map_err(|failure| self.without_devices(claims, failure, node))?.into_iter();
        let (mut allocations, mut taken) = (Vec::new(), BTreeSet::new());
        for ask in asks {
            let given: Vec<Given> = given.by_ref().take(ask.requests.len()).collect();
            let choices: Vec<usize> = given.iter().map(|given| given.choice).collect();
            let of_claim = ask.taken(&choices).zip(&given).flat_map(|(request, given)| {
                let devices = given.devices.iter().filter_map(|device| problem.devices.get(*device));
                devices.map(move |device| (request, device))
            });
            let of_claim: Vec<(&DevicesAsk, &OnNode<'_>)> = of_claim.collect();
            taken.extend(of_claim.iter().map(|(_, device)| device.id()));
            let result = |(request, device): &(&DevicesAsk, &OnNode<'_>)| DeviceRequestAllocationResult {
                request: request.name.clone(),
                driver: device.pool.0.clone(),
                pool: device.pool.1.clone(),
                device: device.name.to_owned(),
                tolerations: Some(request.tolerations.clone()).filter(|of| !of.is_empty()),
                ..DeviceRequestAllocationResult::default()
            };
            allocations.push(AllocationResult {
                devices: Some(DeviceAllocationResult {
                    results: Some(of_claim.iter().map(result).collect()),
                    config: self.configurations(ask, &choices),
                }),
                node_selector: dra::selector(of_claim.iter().map(|(_, device)| device.reach), node),
                allocation_timestamp: None,
            });
        }
        Ok((allocations, taken))
    }

    fn without_devices(&self, claims: &[(&ClaimFacts, &Ask)], failure: Failure, node: &str) -> String {
        let mut all = claims.iter().flat_map(|(claim, ask)| ask.requests.iter().map(move |request| (claim, request)));
        let Some((claim, request)) = all.nth(failure.request) else {
            return "its claims have changed".into();
        };
        let drivers = request.choices.iter().filter_map(|choice| self.device_claims.driver_of(choice));
        let drivers: Vec<String> = drivers.collect::<BTreeSet<String>>().into_iter().collect();
        let why = match failure.is_given_up {
            true => "it was not found out which devices would do, because there are too many ways",
            false => "not enough devices are free that will do",
        };
        format!(
            "ResourceClaim {:?}, request {:?} for devices of {}: {why} on node {node}",
            claim.name,
            request.name,
            drivers.join(" and ")
        )
    }
}
