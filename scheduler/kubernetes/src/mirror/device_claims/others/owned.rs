//! The owners of other drivers' devices: claims that have them, and pods that are being bound with them.

use std::collections::{BTreeMap, BTreeSet};

use super::super::super::Mirror;
use super::super::{DeviceClaims, Name};
use super::{DeviceId, Others};
use crate::dra::{ClaimFacts, CounterName, Counters, DRIVER, Pool, PoolKey, Reach, counters_taken_by};

/// A claim or pod that has a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Owner {
    /// The device is allocated to this claim.
    Claim(Name),
    /// The device is kept for the pod with this UID, which is being bound.
    Pod(String),
}

impl Mirror {
    /// Notes the devices that a claim or pod has now. If a device has become free by this, or is not free any more, the
    /// places on all nodes that reach the device are counted again.
    pub(in super::super) fn note_owned(&mut self, owner: Owner, devices: BTreeSet<DeviceId>) {
        let changed = self.device_claims.others.note_owned(owner, devices);
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

    /// Keeps these devices for a pod that is being bound.
    pub(in super::super::super) fn promise(&mut self, uid: &str, devices: BTreeSet<DeviceId>) {
        self.note_owned(Owner::Pod(uid.to_owned()), devices);
    }

    /// Ends what is kept for a pod: the devices are allocated to its claims by now, or given back.
    pub(in super::super::super) fn end_promise(&mut self, uid: &str) {
        self.note_owned(Owner::Pod(uid.to_owned()), BTreeSet::new());
    }
}

impl Others {
    /// Notes the devices that a claim or pod has now. Returns those that have become free by this, and those that are not
    /// free any more.
    fn note_owned(&mut self, owner: Owner, devices: BTreeSet<DeviceId>) -> BTreeSet<DeviceId> {
        let before = self.owned.remove(&owner).unwrap_or_default();
        let mut changed = BTreeSet::new();
        for device in before.difference(&devices) {
            let Some(of_pool) = self.owners.get_mut(&device.0) else { continue };
            let Some(owners) = of_pool.get_mut(&device.1) else { continue };
            owners.remove(&owner);
            if owners.is_empty() {
                of_pool.remove(&device.1);
                changed.insert(device.clone());
            }
            if of_pool.is_empty() {
                self.owners.remove(&device.0);
            }
        }
        for device in devices.difference(&before) {
            let owners = self.owners.entry(device.0.clone()).or_default().entry(device.1.clone()).or_default();
            if owners.is_empty() {
                changed.insert(device.clone());
            }
            owners.insert(owner.clone());
        }
        if !devices.is_empty() {
            self.owned.insert(owner, devices);
        }
        changed
    }

    pub(super) fn owners(&self, pool: &PoolKey, device: &str) -> Option<&BTreeSet<Owner>> {
        self.owners.get(pool)?.get(device)
    }
}

impl DeviceClaims {
    /// These devices, and those with which they share counters: what is left for the latter has changed, too.
    fn with_sharers(&self, devices: BTreeSet<DeviceId>) -> BTreeSet<DeviceId> {
        let mut taken: BTreeMap<&PoolKey, BTreeSet<CounterName>> = BTreeMap::new();
        for (key, name) in &devices {
            let device = self.pools.get(key).and_then(|pool| pool.devices.get(name));
            taken.entry(key).or_default().extend(device.map(counters_taken_by).unwrap_or_default().into_keys());
        }
        let mut all = BTreeSet::new();
        for (key, counters) in taken.into_iter().filter(|(_, counters)| !counters.is_empty()) {
            let of_pool = self.pools.get(key).into_iter().flat_map(|pool| &pool.devices);
            let sharers =
                of_pool.filter(|(_, device)| counters_taken_by(device).keys().any(|name| counters.contains(name)));
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

    /// Why the allocation of a claim is wrong: claims were given more devices than the counters of a pool allow, and one of
    /// these is the claim's.
    fn overdrawn(&self, claim: &ClaimFacts) -> Option<String> {
        let results = claim.allocation.iter().flat_map(|allocation| &allocation.results);
        results.filter(|result| result.driver != DRIVER).find_map(|of| {
            let key = (of.driver.clone(), of.pool.clone());
            let pool = self.pools.get(&key).filter(|pool| pool.is_complete)?;
            let taken = counters_taken_by(pool.devices.get(&of.device)?);
            let is_of_claim = |owners: &BTreeSet<Owner>| owners.iter().any(|owner| matches!(owner, Owner::Claim(_)));
            let owned = self.others.owners.get(&key).into_iter().flatten();
            let left = left_of_counters(pool, owned.filter(|(_, owners)| is_of_claim(owners)).map(|(name, _)| name));
            let (_, counter) = taken.into_keys().find(|name| left.get(name) == Some(&None))?;
            Some(format!(
                "other claims were given devices of the pool {} of {} that leave too little of the counter {counter:?} for \
                 {}",
                of.pool, of.driver, of.device
            ))
        })
    }

    /// Why the allocation of a claim is wrong: one of its whole devices is allocated to another claim, too.
    fn held_twice(&self, claim: &ClaimFacts) -> Option<String> {
        let results = claim.allocation.iter().flat_map(|allocation| &allocation.results);
        let whole = results.filter(|result| result.driver != DRIVER && result.share_id.is_none());
        let mut devices = whole.map(|of| ((of.driver.clone(), of.pool.clone()), of.device.clone()));
        let is_claim = |owner: &&Owner| matches!(owner, Owner::Claim(_));
        let is_twice = |(pool, device): &DeviceId| {
            self.others.owners(pool, device).into_iter().flatten().filter(is_claim).nth(1).is_some()
        };
        let ((driver, pool), device) = devices.find(is_twice)?;
        Some(format!("another claim was given the device {pool}/{device} of {driver}"))
    }

    /// Why a claim cannot keep the devices of other drivers that it has; `None`: it can.
    pub(in super::super) fn given_too_often(&self, claim: &ClaimFacts) -> Option<String> {
        self.held_twice(claim).or_else(|| self.overdrawn(claim))
    }

    /// The devices of other drivers that a claim has.
    pub(in super::super) fn others_held_by(&self, name: &Name) -> BTreeSet<DeviceId> {
        let results = self.claims.get(name).and_then(|claim| claim.allocation.as_ref());
        let results = results.into_iter().flat_map(|allocation| &allocation.results);
        let others = results.filter(|result| result.driver != DRIVER);
        others.map(|of| ((of.driver.clone(), of.pool.clone()), of.device.clone())).collect()
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
