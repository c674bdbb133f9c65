//! ResourceClaims of pods, and what is allocated by them of our driver's devices.
//!
//! A pod whose claim is not allocated asks for the claim's devices. A pod whose claim is allocated runs where the claim
//! can be used, and asks for no device. An allocation that no pod in the books holds becomes a *holder*: a claim in the
//! books that is never placed and never evicted, and that is seen on its node for as long as the allocation lasts.

mod about;
mod allocated;
mod asking;
mod containers;
mod extended;
mod holders;
mod hopeless;
mod left_over;
mod others;
mod pod_groups;
mod readiness;
mod reservations;
mod shortage;
mod taint_rules;
mod turns;

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::{Bytes, DeviceCore, DeviceSpec};
use aliquot_scheduler_engine::DevicePart;
use k8s_openapi::api::resource::v1::{
    Device, DeviceClass, DeviceClassConfiguration, DeviceRequestAllocationResult, ResourceSlice,
};

use super::{Access, KnownPod, Mirror};
use crate::dra::{
    self, Ask, ClaimFacts, Criteria, DRIVER, DevicesAsk, PoolKey, Pools, Selection, TaintRule, USABLE, Whose,
};
use crate::pod::PodFacts;
use crate::wanted::Wanted;

pub(crate) use about::AboutDevices;
use extended::ToMake;
use holders::Holder;
pub(crate) use left_over::LeftOver;
pub(crate) use others::DeviceId;
use others::{Others, Owner};
use pod_groups::Followed;
use readiness::Awaiting;
pub(crate) use readiness::{LONGEST_MS, Readiness, is_worthless};
pub(crate) use reservations::Reservation;
pub(super) use reservations::Starting;
pub(crate) use shortage::{Looked, Shortage};
use turns::Users;

/// Users that a claim can be reserved for, at most. The limit is Kubernetes'.
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
    /// The cluster has DeviceTaintRules, and the scheduler has no right to read them.
    are_rules_forbidden: bool,
    pools: Pools,
    /// The DeviceTaintRules, by name.
    taint_rules: BTreeMap<String, TaintRule>,
    classes: BTreeMap<String, ClassFacts>,
    claims: BTreeMap<Name, ClaimFacts>,
    /// The classes, by the extended resources that they stand for.
    by_resource: BTreeMap<String, String>,
    /// Pods that wait and may ask for such resources.
    askers: BTreeSet<String>,
    /// By the UID of the pod, the claims that were made for its extended resources.
    made: BTreeMap<String, BTreeSet<Name>>,
    /// The pods that name each claim, whether it is known or not.
    users: BTreeMap<Name, Users>,
    /// Claims of which a pod may have taken or left its turn.
    turned: BTreeSet<Name>,
    /// By UID, allocated claims with which no pod was bound in time.
    overdue: BTreeSet<String>,
    /// By UID, pods with claims that no node may take, whatever is free.
    hopeless: BTreeSet<String>,
    /// By the key of their criteria.
    selections: BTreeMap<String, Selection>,
    selections_made: u64,
    /// The attributes that devices of our driver have had, with their domains.
    published: BTreeSet<String>,
    /// Those of them by which claims compare devices.
    compared: BTreeSet<String>,
    has_ours: bool,
    has_changed_classes: bool,
    /// What claims hold of each of our driver's devices.
    held: BTreeMap<String, BTreeMap<Name, (DeviceCore, Bytes)>>,
    /// The devices that each claim holds some of.
    held_by: BTreeMap<Name, BTreeSet<String>>,
    others: Others,
    awaiting: Awaiting,
    holders: BTreeMap<Name, Vec<Holder>>,
    holders_on: BTreeMap<String, BTreeSet<Name>>,
    /// Claims that have changed, and claims for which a pod in the books may have begun or ceased to hold the devices.
    changed: BTreeSet<Name>,
}

/// A device class.
#[derive(Clone, Debug, PartialEq)]
struct ClassFacts {
    expressions: Result<Vec<String>, String>,
    config: Vec<DeviceClassConfiguration>,
    /// The extended resource that it stands for, beside the one that has its name.
    resource: Option<String>,
    created_ms: i64,
}

/// What a pod has by claims, or is to get.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Claimed {
    /// The devices that are to be allocated together with the pod.
    pub(super) devices: Wanted,
    /// The claims that they are to be allocated to, in the order of the requests.
    pub(super) allocate: Vec<String>,
    /// The claims to which devices of other drivers are to be allocated, alone or together with some of ours.
    pub(super) others: Vec<String>,
    /// The name in the books of a place where the devices of other drivers are free.
    pub(super) place: Option<String>,
    /// Some of its claims are for devices of our driver.
    pub(super) has_ours: bool,
    /// The claims that are allocated already.
    pub(super) reserve: Vec<String>,
    /// The claims of its PodGroup that are allocated with this pod.
    pub(super) leads: Vec<String>,
    /// The claims of its PodGroup that are allocated with another pod of the group.
    pub(super) follows: Vec<Followed>,
    /// The claim that is to be made for the pod's extended resources, and then allocated: the last one of its list.
    pub(super) extended: Option<ToMake>,
}

/// A claim to which devices of an instance are allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeldClaim {
    name: String,
    uid: String,
    /// How many of the instance's parts belong to this claim. The parts stand in the order of the claims.
    parts: usize,
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
        let spec = class.spec.unwrap_or_default();
        let facts = ClassFacts {
            expressions: dra::expressions(spec.selectors.as_deref().unwrap_or_default()),
            config: spec.config.unwrap_or_default(),
            resource: spec.extended_resource_name,
            created_ms: class.metadata.creation_timestamp.map_or(0, |time| time.0.as_millisecond()),
        };
        let before = self.device_claims.classes.insert(class.metadata.name.unwrap_or_default(), facts.clone());
        if before != Some(facts) {
            self.classes_changed();
        }
    }

    fn classes_changed(&mut self) {
        self.device_claims.has_changed_classes = true;
        self.device_claims.apply_rules_of_classes();
        self.device_claims.map_resources();
        self.is_to_read = true;
    }

    pub(crate) fn device_class_gone(&mut self, name: &str) {
        if self.device_claims.classes.remove(name).is_some() {
            self.classes_changed();
        }
    }

    pub(crate) fn device_class_names(&self) -> BTreeSet<String> {
        self.device_claims.classes.keys().cloned().collect()
    }

    /// Takes in a claim from a watch or from the answer to a write. A version that is older than the known one changes
    /// nothing.
    pub(crate) fn resource_claim(&mut self, claim: ClaimFacts) {
        let name = (claim.namespace.clone(), claim.name.clone());
        let known = self.device_claims.claims.get(&name);
        if known.is_some_and(|known| known.uid == claim.uid && !claim.is_newer_than(known)) {
            return;
        }
        let compared: Vec<String> = claim.ask.iter().flat_map(Ask::compared).map(str::to_owned).collect();
        if claim.allocation.is_none() {
            self.device_claims.overdue.remove(&claim.uid);
        }
        self.device_claims.note_made(&name, false);
        self.device_claims.claims.insert(name.clone(), claim);
        self.device_claims.note_made(&name, true);
        self.made_changed(&name);
        self.device_claims.changed.insert(name);
        self.compare(compared);
    }

    /// A claim has come or gone. If it was made for extended resources, its pod is looked at again: the pod does not
    /// name such a claim while it waits, so it is not among the claim's users.
    fn made_changed(&mut self, name: &Name) {
        let claim = self.device_claims.claims.get(name).filter(|claim| claim.is_of_extended_resources);
        let owner = claim.and_then(|claim| claim.owner.clone());
        self.changed_pods.extend(owner.filter(|uid| self.pods.contains_key(uid)));
    }

    /// Adds attributes of devices to the books, because claims compare devices by them. What no device has is left out:
    /// whoever may make claims can name as many attributes as they like.
    fn compare(&mut self, attributes: Vec<String>) {
        let claims = &mut self.device_claims;
        let before = claims.compared.len();
        claims.compared.extend(attributes.into_iter().filter(|attribute| claims.published.contains(attribute)));
        if claims.compared.len() > before {
            let has_ours = |node: &&String| self.device_claims.pools.on(node).next().is_some();
            self.changed_nodes.extend(self.nodes.keys().filter(has_ours).cloned());
        }
    }

    /// Notes the attributes of our driver's devices in these pools.
    fn note_published<'a>(&mut self, pools: impl Iterator<Item = &'a PoolKey>) {
        let claims = &mut self.device_claims;
        let devices = pools.filter(|(driver, _)| driver == DRIVER).filter_map(|key| claims.pools.get(key));
        let names = devices.flat_map(|pool| pool.devices.values()).filter_map(|device| device.attributes.as_ref());
        let of_domain = |name: &String| if name.contains('/') { name.clone() } else { format!("{DRIVER}/{name}") };
        let before = claims.published.len();
        claims.published.extend(names.flat_map(BTreeMap::keys).map(of_domain));
        if claims.published.len() > before {
            let asks = claims.claims.values().filter_map(|claim| claim.ask.as_ref().ok());
            let compared = asks.flat_map(Ask::compared).map(str::to_owned).collect::<BTreeSet<String>>();
            self.compare(compared.into_iter().collect());
        }
    }

    pub(crate) fn resource_claim_gone(&mut self, namespace: &str, name: &str) {
        let name = (namespace.to_owned(), name.to_owned());
        self.made_changed(&name);
        self.device_claims.note_made(&name, false);
        if let Some(gone) = self.device_claims.claims.remove(&name) {
            self.device_claims.overdue.remove(&gone.uid);
            self.device_claims.changed.insert(name);
        }
    }

    pub(crate) fn resource_claim_names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.device_claims.claims.keys().map(|(namespace, name)| (namespace.as_str(), name.as_str()))
    }

    /// Notes whether the cluster has claims, and all are known.
    pub(crate) fn resource_claims_are(&mut self, access: Access) {
        let is_served = access == Access::Read;
        if std::mem::replace(&mut self.device_claims.is_served, is_served) != is_served {
            let claims: Vec<Name> = self.device_claims.users.keys().cloned().collect();
            self.device_claims.changed.extend(claims);
        }
    }

    /// Lists a pod with the claims that it names.
    pub(super) fn list_in_claims(&mut self, facts: &PodFacts) {
        self.device_claims.note_asker(facts);
        for name in names_of(facts) {
            self.device_claims.users.entry(name).or_default().add(&facts.uid);
        }
    }

    /// Removes a pod from the users of the claims that it named. Another user may have its turn now.
    pub(super) fn unlist_in_claims(&mut self, facts: &PodFacts) {
        self.device_claims.askers.remove(&facts.uid);
        for name in names_of(facts) {
            if let Some(users) = self.device_claims.users.get_mut(&name) {
                users.remove(&facts.uid);
                if users.is_empty() {
                    self.device_claims.users.remove(&name);
                }
            }
            self.device_claims.turned.insert(name);
        }
    }

    /// Has the engine told again what is allocated on a node.
    pub(super) fn claims_of_node_changed(&mut self, node: &str) {
        let pools: BTreeSet<&PoolKey> = self.device_claims.pools.on(node).map(|(key, _)| key).collect();
        let changed: Vec<Name> = self.device_claims.allocated_in(&pools).cloned().collect();
        self.device_claims.changed.extend(changed);
    }

    /// Reads what has changed of devices, classes and claims, and has the pods looked at again that this concerns.
    pub(super) fn look_at_device_claims(&mut self) {
        let news = self.device_claims.pools.read();
        let has_changed_classes = std::mem::take(&mut self.device_claims.has_changed_classes);
        if has_changed_classes {
            self.forget_all_places();
        }
        let are_all_to_see = has_changed_classes || !news.is_empty();
        if !news.is_empty() {
            self.look_at_pools(news);
        }
        let claims = &self.device_claims;
        if are_all_to_see {
            self.changed_pods.extend(claims.users.values().flat_map(Users::uids).cloned().chain(self.askers()));
        } else {
            let users = claims.changed.iter().filter_map(|name| claims.users.get(name));
            self.changed_pods.extend(users.flat_map(Users::uids).cloned());
        }
        for uid in self.changed_pods.clone() {
            let names = self.pods.get(&uid).map(|pod| names_of(&pod.facts));
            self.device_claims.changed.extend(names.into_iter().flatten());
            self.note_turns(&uid);
        }
        self.device_claims.changed.extend(self.device_claims.turned.iter().cloned());
        let turned = self.take_turned();
        self.changed_pods.extend(turned);
        self.select_for_waiting();
        self.learn_kinds();
        for name in self.device_claims.changed.clone() {
            self.device_claims.note_held(&name);
            let others = self.device_claims.others_held_by(&name);
            self.note_owned(Owner::Claim(name), others);
        }
    }

    fn look_at_pools(&mut self, news: BTreeMap<PoolKey, BTreeSet<String>>) {
        let claims = &mut self.device_claims;
        let mut means_other_drivers = false;
        for selection in claims.selections.values_mut() {
            let was_ours = selection.whose() == Whose::Ours;
            selection.look_at(&claims.pools, news.keys());
            means_other_drivers |= was_ours != (selection.whose() == Whose::Ours);
        }
        let changed: Vec<Name> = claims.allocated_in(&news.keys().collect()).cloned().collect();
        claims.changed.extend(changed);
        self.note_published(news.keys());
        let claims = &mut self.device_claims;
        let has_ours = claims.pools.has_ours();
        if std::mem::replace(&mut claims.has_ours, has_ours) != has_ours {
            self.reading.has_claimed_devices = has_ours;
            self.all_changed();
        }
        for node in news.values().flatten() {
            self.forget_places(node);
        }
        let nodes = news.into_values().flatten();
        self.changed_nodes.extend(nodes.filter(|node| self.nodes.contains_key(node)));
        if self.device_claims.pools.take_has_changed_spread() || means_other_drivers {
            self.forget_all_places();
        }
    }

    /// Selects devices for the changed pods that wait for some.
    fn select_for_waiting(&mut self) {
        let mut wanted: BTreeMap<String, Criteria> = BTreeMap::new();
        for pod in self.changed_pods.iter().filter_map(|uid| self.pods.get(uid)) {
            wanted.extend(self.criteria_of(pod).into_iter().map(|criteria| (criteria.key(), criteria)));
        }
        wanted.retain(|key, _| !self.device_claims.selections.contains_key(key));
        if wanted.is_empty() {
            return;
        }
        if self.device_claims.selections.len() >= SELECTIONS_KEPT {
            let used: BTreeSet<String> =
                self.pods.values().flat_map(|pod| self.criteria_of(pod)).map(|criteria| criteria.key()).collect();
            self.device_claims.selections.retain(|key, _| used.contains(key));
            let DeviceClaims { selections, others, .. } = &mut self.device_claims;
            others.retain(selections);
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

    /// The criteria of a waiting pod for the devices that are to be allocated with it.
    fn criteria_of(&self, pod: &KnownPod) -> Vec<Criteria> {
        let facts = &pod.facts;
        if facts.scheduler != self.own_name || facts.node.is_some() {
            return Vec::new();
        }
        let extended = self.extended_of(facts).ok().flatten();
        let claims = names_of(facts).filter_map(|name| self.device_claims.claims.get(&name));
        let to_allocate = claims.filter(|claim| claim.allocation.is_none());
        let to_allocate = to_allocate.chain(extended.iter().map(|made| &made.claim));
        let choices = to_allocate.filter_map(|claim| claim.ask.as_ref().ok()).flat_map(Ask::choices);
        choices.filter_map(|request| self.device_claims.criteria(request).ok()).collect()
    }

    /// The devices of our driver on a node, as the books know them.
    pub(super) fn claimed_devices(&self, node: &str) -> Vec<DeviceSpec> {
        let claims = &self.device_claims;
        let marks = self.marks_on(node);
        let marks = &marks;
        let values = claims.selections.values().filter_map(|of| Some((of, of.value_on(&claims.pools, node)?)));
        let values = &values.collect::<Vec<(&Selection, String)>>();
        let specs = claims.pools.on(node).flat_map(|(key, pool)| {
            let usable = move |device: &str| {
                let marked = marks.get(&dra::uuid(&key.1, device)).into_iter().flatten();
                let marked = marked.map(|attribute| (attribute.clone(), USABLE.to_owned()));
                let selections = values.iter().filter(|(of, _)| of.taken(key, device).is_some());
                let selected = selections.map(|(of, value)| (of.attribute.clone(), value.clone()));
                let compared = claims.compared.iter().filter_map(|attribute| {
                    Some((attribute.clone(), dra::compared_value(pool.devices.get(device)?, attribute)?))
                });
                selected.chain(compared).chain(marked).collect()
            };
            dra::device_specs(&key.1, &pool.devices, usable)
        });
        specs.collect()
    }

    /// What a bound pod has by claims that were made for it.
    pub(super) fn held_by_claims_of(&self, facts: &PodFacts) -> (Vec<HeldClaim>, Vec<DevicePart>) {
        let own = facts.claims.iter().filter(|of_pod| of_pod.is_made_for_it);
        let (mut held, mut parts) = (Vec::new(), Vec::new());
        for name in own.filter_map(|of_pod| of_pod.claim.clone()) {
            let claim = self.device_claims.claims.get(&(facts.namespace.clone(), name));
            let Some(claim) = claim.filter(|claim| claim.has_user(&facts.uid)) else { continue };
            let of_claim = self.device_claims.parts_of(claim);
            if !of_claim.is_empty() {
                held.push(held_claim(claim, of_claim.len()));
                parts.extend(of_claim.into_iter().map(|(_, part)| part));
            }
        }
        (held, parts)
    }

    /// Whether devices of a pod that has ended are still allocated to it: others get them only afterwards.
    pub(super) fn lingers(&self, uid: &str) -> bool {
        let Some(known) = self.pods.get(uid) else { return false };
        known.instance.iter().flat_map(|instance| &instance.claims).any(|held| {
            let claim = self.device_claims.claims.get(&(known.facts.namespace.clone(), held.name.clone()));
            let claim = claim.filter(|claim| claim.uid == held.uid && claim.allocation.is_some());
            claim.is_some_and(|claim| !claim.has_users_beside(uid))
        })
    }
}

impl DeviceClaims {
    /// What a request asks of devices.
    ///
    /// # Errors
    /// The request's class does not exist, or is not supported.
    fn criteria(&self, ask: &DevicesAsk) -> Result<Criteria, String> {
        let class = self.classes.get(&ask.class).ok_or_else(|| format!("there is no DeviceClass {:?}", ask.class))?;
        let of_class = class.expressions.as_ref().map_err(|why| format!("DeviceClass {:?}: {why}", ask.class))?;
        Ok(Criteria {
            class: ask.class.clone(),
            expressions: of_class.iter().chain(&ask.selectors).cloned().collect(),
            tolerations: ask.tolerations.clone(),
            capacity: ask.capacity.clone(),
            is_all: ask.is_all,
            is_admin: ask.is_admin,
        })
    }

    /// How many devices a node has for a request for all of them.
    fn all_on(&self, ask: &DevicesAsk, node: &str) -> Option<u16> {
        self.selection(ask).ok()?.all_on(&self.pools, node)
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

    /// Notes which devices and parts of devices a claim holds now.
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

    /// The parts of a device that claims hold.
    fn parts_held(&self, device: &str) -> Vec<(DeviceCore, Bytes)> {
        self.held.get(device).into_iter().flat_map(BTreeMap::values).copied().collect()
    }

    fn is_allocated(&self, claim_uid: &str, device: &str) -> bool {
        let holders = self.held.get(device).into_iter().flat_map(BTreeMap::keys);
        holders.filter_map(|name| self.claims.get(name)).any(|claim| claim.uid == claim_uid)
    }

    /// A device of our driver on a node, by its name in the books.
    pub(super) fn device(&self, node: &str, uuid: &str) -> Option<(&PoolKey, &Device)> {
        self.pools.on(node).find_map(|(key, pool)| {
            let name = uuid.strip_prefix(key.1.as_str())?.strip_prefix('/')?;
            Some((key, pool.devices.get(name)?))
        })
    }
}

fn held_claim(claim: &ClaimFacts, parts: usize) -> HeldClaim {
    HeldClaim { name: claim.name.clone(), uid: claim.uid.clone(), parts }
}

/// The claims of a pod that have been made.
fn names_of(facts: &PodFacts) -> impl Iterator<Item = Name> {
    let names = facts.claims.iter().filter_map(|of_pod| of_pod.claim.as_ref());
    names.map(|name| (facts.namespace.clone(), name.clone()))
}
