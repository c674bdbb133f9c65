//! What is written to claims before a pod is bound.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::{Bytes, DeviceCore};
use aliquot_scheduler_engine::DevicePart;
use k8s_openapi::api::resource::v1::{
    AllocationResult, Device, DeviceAllocationConfiguration, DeviceAllocationResult, DeviceClaimConfiguration,
    DeviceRequestAllocationResult, ResourceClaimConsumerReference,
};

use super::super::{Instance, Means, Mirror};
use super::others::{AskedOf, Asking, GivenOfOurs, Promised, Refusal};
use super::{HeldClaim, held_claim};
use crate::dra::{self, Ask, ClaimFacts, DRIVER, DevicesAsk, Extended};
use crate::pod::PodFacts;
use crate::wanted::Lists;

/// The parts of devices that a pod to be bound is given, as far as its claims were looked at.
struct Given<'a> {
    start: &'a Instance,
    pod: &'a PodFacts,
    parts: Vec<(String, DeviceCore, Bytes)>,
}

/// What is to be written to a claim before a pod is bound.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reservation {
    /// The claim on which the decision was based.
    pub(crate) claim: ClaimFacts,
    /// For whom it is reserved: for the pod, or for its PodGroup.
    pub(crate) user: ResourceClaimConsumerReference,
    /// What is allocated to it, without the names of shares; `None`: it is allocated already.
    pub(crate) allocation: Option<AllocationResult>,
    /// The claim is not there yet: what it asks for, and which of its requests each container has.
    pub(crate) to_make: Option<Extended>,
}

/// What becomes of a pod's claims when it is bound.
#[derive(Debug, Default)]
pub(in super::super) struct Starting {
    pub(in super::super) reservations: Vec<Reservation>,
    /// The claims that its devices of our driver are allocated to.
    pub(in super::super) held: Vec<HeldClaim>,
    /// What it gets of other drivers.
    pub(in super::super) others: Promised,
}

impl Mirror {
    /// What is to be written to claims before a pod is bound, and what it gets by that.
    ///
    /// # Errors
    /// Why it cannot be written: something has changed since the decision.
    pub(in super::super) fn reservations(
        &self,
        facts: &PodFacts,
        means: &Means,
        start: &Instance,
    ) -> Result<Starting, Refusal> {
        let claims = &self.device_claims;
        let extended = means.claimed.extended.as_ref();
        if let Some(made) = extended {
            self.check_is_none_left(facts)?;
            if self.extended_of(facts)?.as_ref() != Some(made) {
                return Err("its extended resources mean something else by now".to_owned().into());
            }
        }
        let to_make = |name: &String| extended.filter(|made| made.claim.name == *name);
        let claim = |name: &String| {
            if let Some(made) = to_make(name) {
                return Ok(&made.claim);
            }
            let claim = claims.claims.get(&(facts.namespace.clone(), name.clone()));
            claim.ok_or_else(|| format!("there is no ResourceClaim {name:?} any more"))
        };
        let unallocated = |name: &String| {
            let claim = claim(name)?;
            match claim.allocation {
                None => Ok(claim),
                Some(_) => Err(format!("ResourceClaim {name:?} was allocated meanwhile")),
            }
        };
        let user = |claim: &ClaimFacts| {
            let of_pod = facts.claims.iter().find(|of_pod| of_pod.claim.as_ref() == Some(&claim.name));
            match of_pod {
                Some(of_pod) => self.user_of_claim(facts, of_pod, claim),
                None => Ok(dra::pod_as_user(&facts.name, &facts.uid)),
            }
        };
        let mut reservations = Vec::new();
        for name in &means.claimed.reserve {
            let claim = claim(name)?;
            if claim.allocation.is_none() {
                return Err(format!("ResourceClaim {name:?} is not allocated any more").into());
            }
            if self.is_left_over(claim) {
                return Err(format!("what ResourceClaim {name:?} has is given back").into());
            }
            let user = user(claim)?;
            // If its devices do not become ready, the pod must not remain its user.
            let is_for_now = !dra::is_group(&user) && claim.unready().next().is_some();
            if !claim.has_user(&user.uid) || is_for_now {
                reservations.push(Reservation { claim: claim.clone(), user, allocation: None, to_make: None });
            }
        }
        for followed in &means.claimed.follows {
            claim(&followed.claim)?;
        }
        let in_numbers = |claim: &'_ ClaimFacts| {
            let ask = claim.ask.as_ref().map_err(Clone::clone)?;
            Ok::<Ask, String>(self.in_numbers(facts, ask, claims.asked_of(ask)).into_owned())
        };
        let asks = means.claimed.allocate.iter().filter_map(|name| in_numbers(claim(name).ok()?).ok());
        let lists = Lists::of(asks.flat_map(|ask| ask.requests).map(|request| request.choices.len()));
        let mut choices = lists.choice(usize::from(start.amounts.alternative)).into_iter();
        let mut parts = start.amounts.devices.iter();
        let mut given = Given { start, pod: facts, parts: Vec::new() };
        let mut held = Vec::new();
        let mut of_ours: BTreeMap<&String, GivenOfOurs> = BTreeMap::new();
        for name in &means.claimed.allocate {
            let claim = unallocated(name)?;
            let before = parts.len();
            let ask = &in_numbers(claim)?;
            let choices: Vec<usize> = choices.by_ref().take(ask.requests.len()).collect();
            let of_claim = self.given_of_ours(ask, choices, &mut parts, &mut given)?;
            held.push(held_claim(claim, before - parts.len()));
            if means.claimed.others.contains(name) {
                of_ours.insert(name, of_claim);
                continue;
            }
            let allocation = AllocationResult {
                devices: Some(DeviceAllocationResult {
                    config: self.configurations(ask, &of_claim.choices),
                    results: Some(of_claim.results.concat()),
                }),
                node_selector: Some(dra::only(&start.node)),
                allocation_timestamp: None,
            };
            let to_make = to_make(name).map(|made| made.asked.clone());
            let user = user(claim)?;
            reservations.push(Reservation { claim: claim.clone(), user, allocation: Some(allocation), to_make });
        }
        if parts.next().is_some() && !held.is_empty() {
            return Err("its claims ask for fewer devices by now".to_owned().into());
        }
        let mut asking = Vec::new();
        for name in &means.claimed.others {
            let claim = unallocated(name)?;
            asking.push(Asking { claim, ask: in_numbers(claim)?, ours: of_ours.remove(name) });
        }
        let (allocations, others) = self.allocate_others(&asking, &start.node)?;
        for (Asking { claim, .. }, allocation) in asking.into_iter().zip(allocations) {
            reservations.push(Reservation {
                claim: claim.clone(),
                user: user(claim)?,
                allocation: Some(allocation),
                to_make: to_make(&claim.name).map(|made| made.asked.clone()),
            });
        }
        Ok(Starting { reservations, held, others })
    }

    /// What the core has decided for a claim. `choices`: the choice that each request has. The claim's parts are the next
    /// ones of `parts`.
    fn given_of_ours<'a>(
        &'a self,
        ask: &Ask,
        choices: Vec<usize>,
        parts: &mut impl Iterator<Item = &'a DevicePart>,
        given: &mut Given<'a>,
    ) -> Result<GivenOfOurs, String> {
        let is_for_both = self.device_claims.asked_of(ask) == AskedOf::Both;
        let mut results = Vec::new();
        for request in ask.taken(&choices) {
            let is_ours = !is_for_both || self.device_claims.is_ours(request);
            let count = if is_ours { usize::from(request.count) } else { 0 };
            let of_request = parts.by_ref().take(count).map(|part| self.result(request, part, given));
            let of_request = of_request.collect::<Result<Vec<_>, _>>()?;
            if of_request.len() != count {
                return Err(format!("request {:?} asks for more devices by now", request.name));
            }
            if is_ours && request.is_all && self.device_claims.all_on(request, &given.start.node) != Some(request.count)
            {
                return Err(format!("request {:?} asks for all devices, and the node's have changed", request.name));
            }
            results.push(of_request);
        }
        Ok(GivenOfOurs { choices, results })
    }

    /// The parameters for drivers in the allocation of a claim. `choices`: the choice that each request has.
    pub(super) fn configurations(&self, ask: &Ask, choices: &[usize]) -> Option<Vec<DeviceAllocationConfiguration>> {
        let taken: Vec<&DevicesAsk> = ask.taken(choices).collect();
        // As Kubernetes does, those of a class are written once, for all requests of the class: the API server allows 64.
        let mut by_class: Vec<(&String, Vec<String>)> = Vec::new();
        for request in &taken {
            match by_class.iter_mut().find(|(class, _)| **class == request.class) {
                Some((_, names)) => names.push(request.name.clone()),
                None => by_class.push((&request.class, vec![request.name.clone()])),
            }
        }
        let of_class = by_class.iter().flat_map(|(class, names)| {
            let class = self.device_claims.classes.get(*class);
            let configs = class.into_iter().flat_map(|class| &class.config);
            configs.map(|config| DeviceAllocationConfiguration {
                source: "FromClass".to_owned(),
                requests: Some(names.clone()),
                opaque: config.opaque.clone(),
            })
        });
        let names: BTreeSet<&String> =
            ask.requests.iter().map(|request| &request.name).chain(taken.iter().map(|of| &of.name)).collect();
        // Parameters for entries of a list that were not taken are left out.
        let is_meant = |config: &&DeviceClaimConfiguration| {
            let named = config.requests.as_deref().unwrap_or_default();
            named.is_empty() || named.iter().any(|name| names.contains(name))
        };
        let of_claim = ask.config.iter().filter(is_meant).map(|config| DeviceAllocationConfiguration {
            source: "FromClaim".to_owned(),
            requests: config.requests.clone(),
            opaque: config.opaque.clone(),
        });
        let config: Vec<DeviceAllocationConfiguration> = of_class.chain(of_claim).collect();
        Some(config).filter(|config| !config.is_empty())
    }

    /// One part of a device as a result in the allocation of a request. The part is added to what the pod is given.
    fn result(
        &self,
        request: &DevicesAsk,
        part: &DevicePart,
        given: &mut Given<'_>,
    ) -> Result<DeviceRequestAllocationResult, String> {
        let claims = &self.device_claims;
        let selection = claims.selections.get(&claims.criteria(request)?.key()).ok_or("its devices have changed")?;
        let found = claims.device(&given.start.node, &part.uuid);
        let found = found.and_then(|(pool, device)| Some((pool, device, selection.taken(pool, &device.name)?)));
        let (pool, device, taken) = found.ok_or_else(|| format!("device {} has changed", part.uuid))?;
        // The numbers of choices may mean other entries of lists by now.
        if (part.core, part.memory) != (taken.core, taken.memory) {
            return Err(format!("request {:?} asks for another part of device {} by now", request.name, part.uuid));
        }
        given.parts.push((part.uuid.clone(), taken.core, taken.memory));
        if let Some(why) = self.too_much_of(&part.uuid, device, Some(given)) {
            return Err(why);
        }
        Ok(DeviceRequestAllocationResult {
            request: request.name.clone(),
            driver: DRIVER.to_owned(),
            pool: pool.1.clone(),
            device: device.name.clone(),
            tolerations: Some(request.tolerations.clone()).filter(|of| !of.is_empty()),
            consumed_capacity: taken.consumed.clone(),
            ..DeviceRequestAllocationResult::default()
        })
    }

    /// The parts of a device of our driver that claims hold, and those of pods that are being bound to its node, which may
    /// not be written yet. One of these pods can be left out.
    pub(super) fn parts_given_out(&self, uuid: &str, node: &str, but_pod: Option<&str>) -> Vec<(DeviceCore, Bytes)> {
        let claims = &self.device_claims;
        let mut parts = claims.parts_held(uuid);
        let there = self.on_node.get(node).into_iter().flatten().filter(|uid| Some(uid.as_str()) != but_pod);
        let starting = there.filter_map(|uid| self.pods.get(uid)).filter(|known| known.binding_to.is_some());
        for instance in starting.filter_map(|known| known.instance.as_ref()) {
            let mut of_instance = instance.amounts.devices.iter();
            for claim in &instance.claims {
                let of_claim = of_instance.by_ref().take(claim.parts);
                let of_device = of_claim.filter(|part| part.uuid == uuid).map(|part| (part.core, part.memory));
                let of_device: Vec<(DeviceCore, Bytes)> = of_device.collect();
                if !claims.is_allocated(&claim.uid, uuid) {
                    parts.extend(of_device);
                }
            }
        }
        parts
    }

    /// Why more is given out of a device than it has; `None`: it is not. With `more`, the parts of that pod and of
    /// other pods that are being bound count, too.
    fn too_much_of(&self, uuid: &str, device: &Device, more: Option<&Given<'_>>) -> Option<String> {
        let parts = match more {
            Some(Given { start, pod, parts: given }) => {
                let own = given.iter().filter(|(of, ..)| of == uuid).map(|(_, core, memory)| (*core, *memory));
                self.parts_given_out(uuid, &start.node, Some(&pod.uid)).into_iter().chain(own).collect()
            }
            None => self.device_claims.parts_held(uuid),
        };
        let core: u64 = parts.iter().map(|(core, _)| u64::from(core.get())).sum();
        let memory: u128 = parts.iter().map(|(_, memory)| u128::from(memory.get())).sum();
        let (_, all) = dra::held(&DeviceRequestAllocationResult::default(), device)?;
        let is_shared = device.allow_multiple_allocations == Some(true) || parts.len() <= 1;
        let fits = is_shared && core <= u64::from(DeviceCore::WHOLE.get()) && memory <= u128::from(all.get());
        (!fits).then(|| format!("other claims were given so much of device {uuid} that it has no room"))
    }

    /// Why a claim cannot keep its devices; `None`: it can. More of a device was allocated than there is, because
    /// another scheduler has allocated it, too.
    pub(crate) fn has_too_much(&self, namespace: &str, name: &str) -> Option<String> {
        let claims = &self.device_claims;
        let claim = claims.claims.get(&(namespace.to_owned(), name.to_owned()))?;
        if let Some(why) = claims.given_too_often(claim) {
            return Some(why);
        }
        claims.parts_of(claim).into_iter().find_map(|(node, part)| {
            let (_, device) = claims.device(&node, &part.uuid)?;
            self.too_much_of(&part.uuid, device, None)
        })
    }
}

impl Reservation {
    /// The users of a claim, with one more.
    pub(crate) fn users_with(
        users: &[ResourceClaimConsumerReference],
        user: &ResourceClaimConsumerReference,
    ) -> Vec<ResourceClaimConsumerReference> {
        users.iter().filter(|other| other.uid != user.uid).chain([user]).cloned().collect()
    }
}
