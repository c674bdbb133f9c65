//! The owners of other drivers' devices: claims that have them or shares of them, and pods that are being bound with them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::Device;

use super::super::super::Mirror;
use super::super::{DeviceClaims, Name};
use super::uses::{Use, Uses, of_results};
use super::{DeviceId, Others};
use crate::dra::{
    self, ClaimFacts, CounterName, Counters, DRIVER, Groups, Pool, PoolKey, Reach, counters_taken_by, groups_of,
};

/// A claim or pod that has a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Owner {
    /// The device is allocated to this claim.
    Claim(Name),
    /// The device is kept for the pod with this UID, which is being bound, to be allocated to this claim.
    Pod(String, Name),
}

/// The owners of a device.
#[derive(Debug, Default)]
pub(super) struct Owners {
    by: BTreeMap<Owner, Use>,
    /// What all of them together have.
    sum: Use,
}

/// What is kept for each claim of a pod that is being bound.
pub(in super::super::super) type Promised = BTreeMap<Name, Uses>;

impl Mirror {
    /// Notes what a claim or pod has of devices now. If more or less of a device is free by this, the places on all nodes
    /// that reach the device are counted again.
    pub(in super::super) fn note_owned(&mut self, owner: Owner, uses: Uses) {
        let changed = self.device_claims.others.note_owned(owner, uses);
        self.forget_places_with(changed);
    }

    /// Has the places counted again on all nodes that reach these devices.
    pub(in super::super) fn forget_places_with(&mut self, changed: BTreeSet<DeviceId>) {
        if self.device_claims.others.kinds.is_empty() {
            return;
        }
        let mut nodes = BTreeSet::new();
        for (key, device) in self.device_claims.with_sharers(changed) {
            match self.device_claims.pools.get(&key).and_then(|pool| pool.reach.get(&device)) {
                Some(Reach::Node(node)) => _ = nodes.insert(node.clone()),
                Some(reach) => {
                    let reached = self.nodes.iter().filter(|(name, node)| reach.includes(name, &node.facts.labels));
                    nodes.extend(reached.map(|(name, _)| name.clone()));
                }
                None => {}
            }
        }
        for node in nodes {
            self.forget_places(&node);
            self.changed_nodes.insert(node);
        }
    }

    /// Keeps this for a pod that is being bound.
    pub(in super::super::super) fn promise(&mut self, uid: &str, promised: Promised) {
        for (claim, uses) in promised {
            self.note_owned(Owner::Pod(uid.to_owned(), claim), uses);
        }
    }

    /// Ends what is kept for a pod: it is allocated to its claims by now, or given back.
    pub(in super::super::super) fn end_promise(&mut self, uid: &str) {
        let of_pod = |owner: &&Owner| matches!(owner, Owner::Pod(of, _) if of == uid);
        let first = Owner::Pod(uid.to_owned(), Name::default());
        let owned = self.device_claims.others.owned.range(first..).map(|(owner, _)| owner);
        let owners: Vec<Owner> = owned.take_while(of_pod).cloned().collect();
        owners.into_iter().for_each(|owner| self.note_owned(owner, Uses::new()));
    }
}

impl Others {
    /// Notes what a claim or pod has now. Returns the devices of which more or less is free by this.
    fn note_owned(&mut self, owner: Owner, uses: Uses) -> BTreeSet<DeviceId> {
        let before = self.owned.remove(&owner).unwrap_or_default();
        let concerned: BTreeSet<DeviceId> = before.into_iter().chain(uses.keys().cloned()).collect();
        if !uses.is_empty() {
            self.owned.insert(owner.clone(), uses.keys().cloned().collect());
        }
        let mut changed = BTreeSet::new();
        for device in concerned {
            let of_pool = self.owners.entry(device.0.clone()).or_default();
            let owners = of_pool.entry(device.1.clone()).or_default();
            let (were_some, sum_before) = (!owners.by.is_empty(), owners.sum.clone());
            match uses.get(&device) {
                Some(used) => _ = owners.by.insert(owner.clone(), used.clone()),
                None => _ = owners.by.remove(&owner),
            }
            owners.add_up();
            let (are_some, has_changed) = (!owners.by.is_empty(), owners.sum != sum_before);
            if !are_some {
                of_pool.remove(&device.1);
            }
            if of_pool.is_empty() {
                self.owners.remove(&device.0);
            }
            if has_changed || were_some != are_some {
                changed.insert(device);
            }
        }
        changed
    }

    /// What all owners together have of a device; `None`: nothing.
    pub(super) fn used(&self, pool: &PoolKey, device: &str) -> Option<&Use> {
        self.owners.get(pool)?.get(device).map(|owners| &owners.sum)
    }

    /// What claims have of a device.
    fn used_by_claims(&self, pool: &PoolKey, device: &str) -> impl Iterator<Item = (&Name, &Use)> {
        let owners = self.owners.get(pool).and_then(|of_pool| of_pool.get(device));
        owners.into_iter().flat_map(|owners| &owners.by).filter_map(|(owner, used)| match owner {
            Owner::Claim(name) => Some((name, used)),
            Owner::Pod(..) => None,
        })
    }
}

impl Owners {
    fn add_up(&mut self) {
        // What is allocated to a claim is not also kept for it.
        let counts = |owner: &Owner| match owner {
            Owner::Claim(_) => true,
            Owner::Pod(_, claim) => !self.by.contains_key(&Owner::Claim(claim.clone())),
        };
        let mut sum = Use::default();
        self.by.iter().filter(|(owner, _)| counts(owner)).for_each(|(_, used)| sum.add(used));
        self.sum = sum;
    }
}

impl DeviceClaims {
    /// These devices, and those with which they share counters: what is left for the latter has changed, too.
    fn with_sharers(&self, devices: BTreeSet<DeviceId>) -> BTreeSet<DeviceId> {
        let mut sets: BTreeMap<&PoolKey, BTreeSet<&str>> = BTreeMap::new();
        for (key, name) in &devices {
            let device = self.pools.get(key).and_then(|pool| pool.devices.get(name));
            sets.entry(key).or_default().extend(device.into_iter().flat_map(counter_sets_of));
        }
        let mut all = BTreeSet::new();
        for (key, sets) in sets.into_iter().filter(|(_, sets)| !sets.is_empty()) {
            let of_pool = self.pools.get(key).into_iter().flat_map(|pool| &pool.devices);
            let sharers = of_pool.filter(|(_, device)| counter_sets_of(device).any(|set| sets.contains(set)));
            all.extend(sharers.map(|(name, _)| (key.clone(), name.clone())));
        }
        all.extend(devices);
        all
    }

    /// What is left of a pool's counters beside the devices that are given out.
    pub(super) fn counters_left(&self, key: &PoolKey, pool: &Pool) -> Counters {
        let given_out = self.others.owners.get(key).into_iter().flatten().map(|(name, _)| name);
        left_of_counters(pool, given_out).into_iter().map(|(name, left)| (name, left.unwrap_or_default())).collect()
    }

    /// The groups of the devices that are given out, by the sets of counters that they take of. Empty if no device of the
    /// pool names a group.
    pub(super) fn groups_given_out<'a>(&self, key: &PoolKey, pool: &'a Pool) -> BTreeMap<&'a str, Vec<Groups>> {
        let mut given_out: BTreeMap<&str, Vec<Groups>> = BTreeMap::new();
        if pool.devices.values().flat_map(groups_of).all(|(_, groups)| groups.is_empty()) {
            return given_out;
        }
        let is_given_out = |name: &String| self.others.owners.get(key).is_some_and(|owned| owned.contains_key(name));
        for (name, device) in &pool.devices {
            for (set, groups) in groups_of(device) {
                given_out.entry(set).or_default().extend(is_given_out(name).then_some(groups));
            }
        }
        given_out
    }

    /// Why the allocation of a claim is wrong: claims were given more devices than the counters of a pool allow, and one of
    /// these is the claim's.
    fn overdrawn(&self, claim: &ClaimFacts) -> Option<String> {
        let results = claim.allocation.iter().flat_map(|allocation| &allocation.results);
        results.filter(|result| result.driver != DRIVER).find_map(|of| {
            let key = (of.driver.clone(), of.pool.clone());
            let pool = self.pools.get(&key).filter(|pool| pool.is_complete)?;
            let taken = counters_taken_by(pool.devices.get(&of.device)?);
            let owned = self.others.owners.get(&key).into_iter().flat_map(BTreeMap::keys);
            let of_claims = owned.filter(|name| self.others.used_by_claims(&key, name).next().is_some());
            let left = left_of_counters(pool, of_claims);
            let (_, counter) = taken.into_keys().find(|name| left.get(name) == Some(&None))?;
            Some(format!(
                "other claims were given devices of the pool {} of {} that leave too little of the counter {counter:?} for \
                 {}",
                of.pool, of.driver, of.device
            ))
        })
    }

    /// Why the allocation of a claim is wrong: one of its devices is allocated to another claim, too, and one of both has it
    /// as a whole.
    fn held_twice(&self, name: &Name, uses: &Uses) -> Option<String> {
        let is_twice = |((pool, device), used): &(&DeviceId, &Use)| {
            let mut others = self.others.used_by_claims(pool, device).filter(|(other, _)| *other != name);
            others.any(|(_, other)| used.is_whole || other.is_whole)
        };
        let (((driver, pool), device), _) = uses.iter().find(is_twice)?;
        Some(format!("another claim was given the device {pool}/{device} of {driver}"))
    }

    /// Why the allocation of a claim is wrong: claims were given larger shares of one of its devices than the device has.
    fn shared_too_often(&self, uses: &Uses) -> Option<String> {
        uses.iter().filter(|(_, used)| !used.is_whole).find_map(|((key, name), _)| {
            let device = self.pools.get(key)?.devices.get(name)?;
            let mut of_claims = Use::default();
            self.others.used_by_claims(key, name).for_each(|(_, used)| of_claims.add(used));
            let consumed = of_claims.consumed;
            let all = dra::left(device, &dra::Amounts::new());
            let (capacity, _) = all.iter().find(|(name, all)| consumed.get(*name).is_some_and(|of| of > *all))?;
            Some(format!(
                "other claims were given so much of the capacity {capacity:?} of the device {}/{name} of {} that it has \
                 too little",
                key.1, key.0
            ))
        })
    }

    /// Why a claim cannot keep the devices of other drivers that it has; `None`: it can.
    pub(in super::super) fn given_too_often(&self, claim: &ClaimFacts) -> Option<String> {
        let name = (claim.namespace.clone(), claim.name.clone());
        let uses = self.others_held_by(&name);
        self.held_twice(&name, &uses).or_else(|| self.overdrawn(claim)).or_else(|| self.shared_too_often(&uses))
    }

    /// What a claim has of devices of other drivers.
    pub(in super::super) fn others_held_by(&self, name: &Name) -> Uses {
        let results = self.claims.get(name).and_then(|claim| claim.allocation.as_ref());
        let results = results.into_iter().flat_map(|allocation| &allocation.results);
        of_results(results, |result| result.share_id.is_some())
    }
}

/// What is left of a pool's counters beside these devices of it; `None`: they take more than there is.
fn left_of_counters<'a>(pool: &Pool, devices: impl Iterator<Item = &'a String>) -> BTreeMap<CounterName, Option<u128>> {
    let mut left: BTreeMap<CounterName, Option<u128>> =
        pool.counters.iter().map(|(name, amount)| (name.clone(), Some(*amount))).collect();
    for (name, amount) in devices.filter_map(|device| pool.devices.get(device)).flat_map(counters_taken_by) {
        if let Some(left) = left.get_mut(&name) {
            *left = left.and_then(|left| left.checked_sub(amount));
        }
    }
    left
}

/// The sets of counters that a device takes of.
fn counter_sets_of(device: &Device) -> impl Iterator<Item = &str> {
    groups_of(device).map(|(set, _)| set)
}
