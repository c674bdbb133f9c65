//! ResourceClaims of pods, and what is allocated by them of our driver's devices.
//!
//! A pod whose claim is not allocated asks for the claim's devices. A pod whose claim is allocated runs where that can be
//! used, and asks for no device. What is allocated and no pod in the books holds is a *holder*: a claim in the books that
//! is never placed and never evicted, and that is seen on its node for as long as the allocation lasts.

mod holders;
mod reservations;
mod shortage;

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::{Bytes, Constraints, DeviceCore, DeviceRequest, DeviceSpec, PlacementRules};
use aliquot_scheduler_engine::DevicePart;
use k8s_openapi::api::resource::v1::{
    Device, DeviceClass, DeviceClassConfiguration, DeviceRequestAllocationResult, ResourceSlice,
};

use super::{KnownPod, Mirror};
use crate::dra::{self, Ask, ClaimFacts, Criteria, DRIVER, PoolKey, Pools, Selection};
use crate::placement;
use crate::pod::PodFacts;

use holders::Holder;
pub(crate) use reservations::Reservation;
pub(crate) use shortage::Shortage;

/// The value of the attribute by which the books know a device that will do.
const USABLE: &str = "true";

/// Users that a claim can be reserved for.
const USERS_MAX: usize = 256;

/// Selections that no pod waits for are dropped when there are more than so many.
const SELECTIONS_KEPT: usize = 64;

/// A namespace and a name in it.
type Name = (String, String);

/// What is known of devices of drivers and of claims for them.
#[derive(Debug, Default)]
pub(super) struct DeviceClaims {
    /// The cluster has such claims.
    is_served: bool,
    pools: Pools,
    classes: BTreeMap<String, ClassFacts>,
    claims: BTreeMap<Name, ClaimFacts>,
    /// The pods that name each claim, whether it is known or not.
    users: BTreeMap<Name, BTreeSet<String>>,
    /// By the key of their criteria.
    selections: BTreeMap<String, Selection>,
    selections_made: u64,
    has_ours: bool,
    has_changed_classes: bool,
    /// What claims hold of each of our driver's devices.
    held: BTreeMap<String, BTreeMap<Name, (DeviceCore, Bytes)>>,
    /// The devices that each claim holds some of.
    held_by: BTreeMap<Name, BTreeSet<String>>,
    holders: BTreeMap<Name, Vec<Holder>>,
    holders_on: BTreeMap<String, BTreeSet<Name>>,
    /// Claims that have changed, and those of which a pod in the books may hold the devices now, or not any more.
    changed: BTreeSet<Name>,
}

/// A device class.
#[derive(Clone, Debug, PartialEq)]
struct ClassFacts {
    expressions: Result<Vec<String>, String>,
    config: Vec<DeviceClassConfiguration>,
}

/// What a pod has by claims, or is to get.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Claimed {
    /// What of devices is to be allocated with the pod.
    pub(super) devices: DeviceRequest,
    /// What they must have in common.
    pub(super) rules: PlacementRules,
    /// The claim that they are to be allocated to.
    pub(super) allocate: Option<String>,
    /// The claims that are allocated already.
    pub(super) reserve: Vec<String>,
}

/// The claim to which the devices of an instance are allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeldClaim {
    name: String,
    uid: String,
}

/// A claim that is allocated for a pod alone that waits: whoever allocated it did not bind the pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeftOver {
    pub(crate) claim: ClaimFacts,
    pub(crate) pod_name: String,
    pub(crate) pod_uid: String,
}

impl Mirror {
    pub(crate) fn resource_slice(&mut self, slice: ResourceSlice) {
        self.device_claims.pools.slice(slice);
    }

    pub(crate) fn resource_slice_gone(&mut self, name: &str) {
        self.device_claims.pools.slice_gone(name);
    }

    pub(crate) fn resource_slice_names(&self) -> BTreeSet<String> {
        self.device_claims.pools.slice_names()
    }

    pub(crate) fn device_class(&mut self, class: DeviceClass) {
        let facts = ClassFacts {
            expressions: dra::expressions(class.spec.selectors.as_deref().unwrap_or_default()),
            config: class.spec.config.unwrap_or_default(),
        };
        let before = self.device_claims.classes.insert(class.metadata.name.unwrap_or_default(), facts.clone());
        self.device_claims.has_changed_classes |= before != Some(facts);
    }

    pub(crate) fn device_class_gone(&mut self, name: &str) {
        self.device_claims.has_changed_classes |= self.device_claims.classes.remove(name).is_some();
    }

    pub(crate) fn device_class_names(&self) -> BTreeSet<String> {
        self.device_claims.classes.keys().cloned().collect()
    }

    /// A claim, as the API server has shown it or answered. What is older than what is known changes nothing.
    pub(crate) fn resource_claim(&mut self, claim: ClaimFacts) {
        let name = (claim.namespace.clone(), claim.name.clone());
        let known = self.device_claims.claims.get(&name);
        if known.is_some_and(|known| known.uid == claim.uid && !claim.is_newer_than(known)) {
            return;
        }
        self.device_claims.claims.insert(name.clone(), claim);
        self.device_claims.changed.insert(name);
    }

    pub(crate) fn resource_claim_gone(&mut self, namespace: &str, name: &str) {
        let name = (namespace.to_owned(), name.to_owned());
        if self.device_claims.claims.remove(&name).is_some() {
            self.device_claims.changed.insert(name);
        }
    }

    pub(crate) fn resource_claim_names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.device_claims.claims.keys().map(|(namespace, name)| (namespace.as_str(), name.as_str()))
    }

    /// The cluster has claims, and all are known.
    pub(crate) fn resource_claims_served(&mut self) {
        if !std::mem::replace(&mut self.device_claims.is_served, true) {
            let claims: Vec<Name> = self.device_claims.users.keys().cloned().collect();
            self.device_claims.changed.extend(claims);
        }
    }

    /// A pod names these claims.
    pub(super) fn list_in_claims(&mut self, facts: &PodFacts) {
        for name in names_of(facts) {
            self.device_claims.users.entry(name).or_default().insert(facts.uid.clone());
        }
    }

    /// A pod does not name these claims any more. Others that name them may be first now.
    pub(super) fn unlist_in_claims(&mut self, facts: &PodFacts) {
        for name in names_of(facts) {
            if let Some(users) = self.device_claims.users.get_mut(&name) {
                users.remove(&facts.uid);
                if users.is_empty() {
                    self.device_claims.users.remove(&name);
                }
            }
            self.device_claims.changed.insert(name);
        }
    }

    /// What is allocated on a node is told again.
    pub(super) fn claims_of_node_changed(&mut self, node: &str) {
        let pools: BTreeSet<&PoolKey> = self.device_claims.pools.on(node).map(|(key, _)| key).collect();
        let changed: Vec<Name> = self.device_claims.allocated_in(&pools).cloned().collect();
        self.device_claims.changed.extend(changed);
    }

    /// Reads what has changed of devices, classes and claims, and looks again at the pods that it is about.
    pub(super) fn look_at_device_claims(&mut self) {
        let news = self.device_claims.pools.read();
        let are_all_to_see = std::mem::take(&mut self.device_claims.has_changed_classes) || !news.is_empty();
        if !news.is_empty() {
            self.look_at_pools(news);
        }
        for uid in &self.changed_pods {
            let names = self.pods.get(uid).map(|pod| names_of(&pod.facts));
            self.device_claims.changed.extend(names.into_iter().flatten());
        }
        let claims = &self.device_claims;
        if are_all_to_see {
            self.changed_pods.extend(claims.users.values().flatten().cloned());
        } else {
            let users = claims.changed.iter().filter_map(|name| claims.users.get(name));
            self.changed_pods.extend(users.flatten().cloned());
        }
        self.select_for_waiting();
        for name in self.device_claims.changed.clone() {
            self.device_claims.note_held(&name);
        }
    }

    fn look_at_pools(&mut self, news: BTreeMap<PoolKey, BTreeSet<String>>) {
        let claims = &mut self.device_claims;
        for selection in claims.selections.values_mut() {
            selection.look_at(&claims.pools, news.keys());
        }
        let changed: Vec<Name> = claims.allocated_in(&news.keys().collect()).cloned().collect();
        claims.changed.extend(changed);
        let has_ours = claims.pools.has_ours();
        if std::mem::replace(&mut claims.has_ours, has_ours) != has_ours {
            self.reading.has_claimed_devices = has_ours;
            self.all_changed();
        }
        let nodes = news.into_values().flatten();
        self.changed_nodes.extend(nodes.filter(|node| self.nodes.contains_key(node)));
    }

    /// Selects devices for the pods that have changed and wait for some.
    fn select_for_waiting(&mut self) {
        let mut wanted: BTreeMap<String, Criteria> = BTreeMap::new();
        for pod in self.changed_pods.iter().filter_map(|uid| self.pods.get(uid)) {
            wanted.extend(self.criteria_of(pod).map(|criteria| (criteria.key(), criteria)));
        }
        wanted.retain(|key, _| !self.device_claims.selections.contains_key(key));
        if wanted.is_empty() {
            return;
        }
        if self.device_claims.selections.len() >= SELECTIONS_KEPT {
            let used: BTreeSet<String> =
                self.pods.values().filter_map(|pod| Some(self.criteria_of(pod)?.key())).collect();
            self.device_claims.selections.retain(|key, _| used.contains(key));
        }
        let claims = &mut self.device_claims;
        let pools: Vec<PoolKey> = claims.pools.all().map(|(key, _)| key.clone()).collect();
        for (key, criteria) in wanted {
            claims.selections_made += 1;
            let mut selection = Selection::new(criteria, claims.selections_made);
            selection.look_at(&claims.pools, pools.iter());
            claims.selections.insert(key, selection);
        }
        let has_ours = |node: &&String| self.device_claims.pools.on(node).next().is_some();
        self.changed_nodes.extend(self.nodes.keys().filter(has_ours).cloned());
    }

    /// What a pod that waits asks of devices that are to be allocated with it.
    fn criteria_of(&self, pod: &KnownPod) -> Option<Criteria> {
        let facts = &pod.facts;
        if facts.scheduler != self.own_name || facts.node.is_some() {
            return None;
        }
        let claims = names_of(facts).filter_map(|name| self.device_claims.claims.get(&name));
        let mut to_allocate = claims.filter(|claim| claim.allocation.is_none());
        self.device_claims.criteria(to_allocate.next()?.ask.as_ref().ok()?).ok()
    }

    /// Adds the nodes where a pod's claims can be used to where it may run. Answers what it has by claims.
    ///
    /// # Errors
    /// Why the pod cannot be scheduled with these claims now.
    pub(super) fn constrain_by_claims(
        &self,
        facts: &PodFacts,
        constraints: &mut Constraints,
    ) -> Result<Claimed, String> {
        let mut claimed = Claimed::default();
        let mut seen = BTreeSet::new();
        for of_pod in &facts.claims {
            let Some(name) = &of_pod.claim else {
                return Err(format!("the ResourceClaim for {:?} has not been made yet", of_pod.name));
            };
            if !seen.insert(name) {
                continue;
            }
            if !self.device_claims.is_served {
                return Err("it has resource claims, and this cluster does not serve resource.k8s.io/v1".into());
            }
            let claim = self.device_claims.claims.get(&(facts.namespace.clone(), name.clone()));
            let claim = claim.ok_or_else(|| format!("there is no ResourceClaim {name:?}"))?;
            let of_claim = |problem: &str| format!("ResourceClaim {name:?}: {problem}");
            if claim.is_leaving {
                return Err(of_claim("it is being deleted"));
            }
            if of_pod.is_made_for_it && claim.owner.as_deref() != Some(&facts.uid) {
                return Err(of_claim("it was not made for this pod"));
            }
            match &claim.allocation {
                Some(_) if self.device_claims.is_left_over(claim, &facts.uid) => {
                    return Err(of_claim(
                        "it is allocated, but the pod was not bound; the allocation is given back first",
                    ));
                }
                Some(_) if claim.reserved_for.len() >= USERS_MAX && !claim.is_reserved_for(&facts.uid) => {
                    return Err(of_claim("it is reserved for 256 others, and for more it cannot be"));
                }
                Some(allocation) => {
                    let terms = allocation.terms.as_ref().map_err(|problem| of_claim(problem))?;
                    constraints.node_terms = placement::both(std::mem::take(&mut constraints.node_terms), terms);
                    claimed.reserve.push(name.clone());
                }
                None if claimed.allocate.is_some() => {
                    return Err(
                        "it has several claims that are not allocated, and Aliquot's scheduler allocates one claim \
                                with a pod; ask for all in one claim, or for one device"
                            .into(),
                    );
                }
                None => {
                    let (ask, devices, attribute) =
                        self.devices_of(facts, claim).map_err(|problem| of_claim(&problem))?;
                    claimed.devices = devices;
                    claimed.rules = ask.rules;
                    claimed.allocate = Some(name.clone());
                    constraints.attributes.insert(attribute, USABLE.to_owned());
                }
            }
        }
        Ok(claimed)
    }

    /// What a claim that is to be allocated with a pod asks for, and the attribute of devices that will do.
    fn devices_of<'a>(
        &self,
        facts: &PodFacts,
        claim: &'a ClaimFacts,
    ) -> Result<(&'a Ask, DeviceRequest, String), String> {
        let ask = claim.ask.as_ref().map_err(Clone::clone)?;
        let first = self.first_user(claim).filter(|first| first.uid != facts.uid);
        if let Some(first) = first {
            return Err(format!("it will be allocated with the pod {}, which is first", first.full_name()));
        }
        if facts.gang.is_some() && self.waiting_users(claim).nth(1).is_some() {
            return Err(
                "several pods share it, and it is not allocated: Aliquot's scheduler does not allocate such a \
                        claim with a pod of a gang"
                    .into(),
            );
        }
        let claims = &self.device_claims;
        let key = claims.criteria(ask)?.key();
        let selection = claims.selections.get(&key).ok_or("its devices are not selected yet")?;
        let (core, memory) = selection.part(&claims.pools)?;
        Ok((ask, DeviceRequest { count: ask.count, core, memory }, selection.attribute.clone()))
    }

    fn waiting_users(&self, claim: &ClaimFacts) -> impl Iterator<Item = &PodFacts> {
        let users = self.device_claims.users.get(&(claim.namespace.clone(), claim.name.clone()));
        let pods = users.into_iter().flatten().filter_map(|uid| Some(&self.pods.get(uid)?.facts));
        pods.filter(|pod| {
            let is_ours = pod.scheduler == self.own_name && pod.node.is_none();
            is_ours && !pod.is_leaving && !pod.has_ended && !pod.is_gated
        })
    }

    /// The pod with which a claim is allocated that several share.
    fn first_user(&self, claim: &ClaimFacts) -> Option<&PodFacts> {
        self.waiting_users(claim).min_by_key(|pod| (pod.created_ms, &pod.uid))
    }

    /// The devices of our driver on a node, as the books know them.
    pub(super) fn claimed_devices(&self, node: &str) -> Vec<DeviceSpec> {
        let claims = &self.device_claims;
        let specs = claims.pools.on(node).flat_map(|(key, pool)| {
            let usable = |device: &str| {
                let selections = claims.selections.values().filter(|of| of.taken(key, device).is_some());
                selections.map(|of| (of.attribute.clone(), USABLE.to_owned())).collect()
            };
            dra::device_specs(&key.1, &pool.devices, usable)
        });
        specs.collect()
    }

    /// What a bound pod has by a claim that was made for it, as equal parts of different devices.
    pub(super) fn held_by_claim_of(&self, facts: &PodFacts) -> Option<(HeldClaim, Vec<DevicePart>)> {
        let own = facts.claims.iter().filter(|of_pod| of_pod.is_made_for_it);
        let mut allocated = own.filter_map(|of_pod| {
            let claim = self.device_claims.claims.get(&(facts.namespace.clone(), of_pod.claim.clone()?))?;
            let parts: Vec<DevicePart> = self.device_claims.parts_of(claim).into_iter().map(|(_, part)| part).collect();
            let first = parts.first()?;
            let uuids: BTreeSet<&String> = parts.iter().map(|part| &part.uuid).collect();
            let are_equal = parts.iter().all(|part| (part.core, part.memory) == (first.core, first.memory));
            let is_its = claim.is_reserved_for(&facts.uid) && are_equal && uuids.len() == parts.len();
            is_its.then(|| (held_claim(claim), parts))
        });
        allocated.next()
    }

    /// Whether the devices of a pod that has ended are still allocated to it: others get them only afterwards.
    pub(super) fn lingers(&self, uid: &str) -> bool {
        let Some(known) = self.pods.get(uid) else { return false };
        let held = known.instance.as_ref().and_then(|instance| instance.claim.as_ref());
        held.is_some_and(|held| {
            let claim = self.device_claims.claims.get(&(known.facts.namespace.clone(), held.name.clone()));
            let claim = claim.filter(|claim| claim.uid == held.uid && claim.allocation.is_some());
            claim.is_some_and(|claim| !claim.is_reserved_for_others_than(uid))
        })
    }

    /// Claims that are allocated for a pod that waits, and for nobody else.
    pub(crate) fn left_over_claims(&self) -> Vec<LeftOver> {
        let is_waiting = |pod: &&KnownPod| {
            let facts = &pod.facts;
            let is_ours = facts.scheduler == self.own_name && facts.node.is_none() && !facts.is_leaving;
            is_ours && !facts.claims.is_empty() && pod.instance.is_none() && pod.binding_to.is_none()
        };
        let mut left_over = Vec::new();
        for pod in self.pods.values().filter(is_waiting) {
            let claims = names_of(&pod.facts).filter_map(|name| self.device_claims.claims.get(&name));
            let claims = claims.filter(|claim| self.device_claims.is_left_over(claim, &pod.facts.uid));
            left_over.extend(claims.map(|claim| LeftOver {
                claim: claim.clone(),
                pod_name: pod.facts.name.clone(),
                pod_uid: pod.facts.uid.clone(),
            }));
        }
        left_over
    }
}

impl DeviceClaims {
    /// What a request asks of devices.
    ///
    /// # Errors
    /// Its class is not there, or not supported.
    fn criteria(&self, ask: &Ask) -> Result<Criteria, String> {
        let class = self.classes.get(&ask.class).ok_or_else(|| format!("there is no DeviceClass {:?}", ask.class))?;
        let of_class = class.expressions.as_ref().map_err(|why| format!("DeviceClass {:?}: {why}", ask.class))?;
        Ok(Criteria {
            class: ask.class.clone(),
            expressions: of_class.iter().chain(&ask.selectors).cloned().collect(),
            tolerations: ask.tolerations.clone(),
            capacity: ask.capacity.clone(),
        })
    }

    /// Claims that have devices of one of these pools.
    fn allocated_in<'a>(&'a self, pools: &'a BTreeSet<&'a PoolKey>) -> impl Iterator<Item = &'a Name> {
        let is_of = move |result: &DeviceRequestAllocationResult| {
            pools.iter().any(|(driver, pool)| (driver, pool) == (&result.driver, &result.pool))
        };
        let claims = self.claims.iter();
        let allocated = claims.filter(move |(_, claim)| {
            claim.allocation.as_ref().is_some_and(|allocation| allocation.results.iter().any(is_of))
        });
        allocated.map(|(name, _)| name)
    }

    /// The parts of our driver's devices that a claim has, each with its node.
    fn parts_of(&self, claim: &ClaimFacts) -> Vec<(String, DevicePart)> {
        let results = claim.allocation.iter().flat_map(|allocation| &allocation.results);
        let ours = results.filter(|result| result.driver == DRIVER);
        let part = |result: &DeviceRequestAllocationResult| {
            let pool = self.pools.get(&(result.driver.clone(), result.pool.clone()))?;
            let (core, memory) = dra::held(result, pool.devices.get(&result.device)?)?;
            let uuid = dra::uuid(&result.pool, &result.device);
            Some((pool.node.clone()?, DevicePart { uuid, core, memory }))
        };
        ours.filter_map(part).collect()
    }

    /// Notes what a claim holds of devices now.
    fn note_held(&mut self, name: &Name) {
        let parts = self.claims.get(name).map(|claim| self.parts_of(claim)).unwrap_or_default();
        for device in self.held_by.remove(name).unwrap_or_default() {
            if let Some(of_device) = self.held.get_mut(&device) {
                of_device.remove(name);
                if of_device.is_empty() {
                    self.held.remove(&device);
                }
            }
        }
        for (_, part) in parts {
            self.held_by.entry(name.clone()).or_default().insert(part.uuid.clone());
            let of_claim = self.held.entry(part.uuid).or_default().entry(name.clone()).or_default();
            of_claim.0 = DeviceCore::new(of_claim.0.get().saturating_add(part.core.get()));
            of_claim.1 = Bytes::new(of_claim.1.get().saturating_add(part.memory.get()));
        }
    }

    fn is_allocated(&self, claim_uid: &str, device: &str) -> bool {
        let holders = self.held.get(device).into_iter().flat_map(BTreeMap::keys);
        holders.filter_map(|name| self.claims.get(name)).any(|claim| claim.uid == claim_uid)
    }

    /// A device of our driver on a node, by its name in the books.
    fn device(&self, node: &str, uuid: &str) -> Option<(&PoolKey, &Device)> {
        self.pools.on(node).find_map(|(key, pool)| {
            let name = uuid.strip_prefix(key.1.as_str())?.strip_prefix('/')?;
            Some((key, pool.devices.get(name)?))
        })
    }

    /// Whether a claim is allocated for this pod alone, which is not bound. Only what we could allocate anew counts.
    fn is_left_over(&self, claim: &ClaimFacts, pod_uid: &str) -> bool {
        let is_ours = |result: &DeviceRequestAllocationResult| result.driver == DRIVER;
        let is_ours = claim.allocation.as_ref().is_some_and(|of| of.results.iter().all(is_ours));
        is_ours && claim.ask.is_ok() && claim.is_reserved_for(pod_uid) && !claim.is_reserved_for_others_than(pod_uid)
    }
}

fn held_claim(claim: &ClaimFacts) -> HeldClaim {
    HeldClaim { name: claim.name.clone(), uid: claim.uid.clone() }
}

/// The claims of a pod that have been made.
fn names_of(facts: &PodFacts) -> impl Iterator<Item = Name> {
    let names = facts.claims.iter().filter_map(|of_pod| of_pod.claim.as_ref());
    names.map(|name| (facts.namespace.clone(), name.clone()))
}
