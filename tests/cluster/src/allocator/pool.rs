//! Pools: the devices of a driver on a node, from the slices that it has published.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{CounterSet, Device, DeviceRequestAllocationResult, ResourceClaim, ResourceSlice};

use aliquot_test_api_server::Quantity;

/// The complete pools of a node, each in its newest generation.
pub(super) struct Pools {
    pools: Vec<Pool>,
}

struct Pool {
    driver: String,
    name: String,
    devices: Vec<Device>,
    counters: Vec<CounterSet>,
}

/// A device that may be allocated.
pub(super) struct Candidate<'a> {
    pub(super) driver: &'a str,
    pub(super) pool: &'a str,
    pub(super) device: &'a Device,
    counters: &'a [CounterSet],
    siblings: &'a [Device],
}

impl Candidate<'_> {
    /// Whether a result is about this device.
    pub(super) fn is(&self, result: &DeviceRequestAllocationResult) -> bool {
        (result.driver.as_str(), result.pool.as_str(), result.device.as_str())
            == (self.driver, self.pool, self.device.name.as_str())
    }
}

impl Pools {
    /// The pools of a node.
    ///
    /// # Errors
    /// If a pool has two devices of one name, or a device consumes counters that the pool does not have.
    pub(super) fn gather(slices: &[&ResourceSlice], node: &str) -> Result<Pools, String> {
        let mut by_pool: BTreeMap<(&str, &str), Vec<&ResourceSlice>> = BTreeMap::new();
        for slice in slices {
            let here = slice.spec.node_name.as_deref() == Some(node) || slice.spec.all_nodes == Some(true);
            if here {
                by_pool.entry((&slice.spec.driver, &slice.spec.pool.name)).or_default().push(slice);
            }
        }
        let mut pools = Vec::new();
        for ((driver, name), mut slices) in by_pool {
            let newest = slices.iter().map(|slice| slice.spec.pool.generation).max().unwrap_or_default();
            slices.retain(|slice| slice.spec.pool.generation == newest);
            // No device is allocated from a pool that its driver is still writing.
            if slices.iter().any(|slice| slice.spec.pool.resource_slice_count != slices.len() as i64) {
                continue;
            }
            slices.sort_by_key(|slice| slice.metadata.name.clone());
            let devices: Vec<Device> =
                slices.iter().flat_map(|slice| slice.spec.devices.clone().unwrap_or_default()).collect();
            let counters = slices.iter().flat_map(|slice| slice.spec.shared_counters.clone().unwrap_or_default());
            let pool = Pool { driver: driver.to_owned(), name: name.to_owned(), devices, counters: counters.collect() };
            pool.check()?;
            pools.push(pool);
        }
        Ok(Pools { pools })
    }

    pub(super) fn candidates(&self) -> impl Iterator<Item = Candidate<'_>> {
        self.pools.iter().flat_map(|pool| {
            pool.devices.iter().map(|device| Candidate {
                driver: &pool.driver,
                pool: &pool.name,
                device,
                counters: &pool.counters,
                siblings: &pool.devices,
            })
        })
    }

    /// Whether enough is left of the counters that the candidate consumes.
    pub(super) fn has_counters(
        &self,
        candidate: &Candidate<'_>,
        claims: &[&ResourceClaim],
        chosen: &[DeviceRequestAllocationResult],
    ) -> bool {
        let used = |device: &Device| {
            let mut results = results(claims).chain(chosen);
            results.any(|result| {
                (result.driver.as_str(), result.pool.as_str(), result.device.as_str())
                    == (candidate.driver, candidate.pool, device.name.as_str())
            })
        };
        // A device that several claims share consumes its counters only once.
        if used(candidate.device) {
            return true;
        }
        candidate.device.consumes_counters.iter().flatten().all(|consumption| {
            let set = candidate.counters.iter().find(|set| set.name == consumption.counter_set);
            consumption.counters.iter().all(|(name, counter)| {
                let quantity = |text: &str| Quantity::parse(text).unwrap_or(Quantity::of(0));
                let mut sum = quantity(&counter.value.0);
                for sibling in candidate.siblings.iter().filter(|sibling| used(sibling)) {
                    let consumed = sibling.consumes_counters.iter().flatten();
                    let of_set = consumed.filter(|other| other.counter_set == consumption.counter_set);
                    for other in of_set.filter_map(|other| other.counters.get(name)) {
                        sum = sum.plus(quantity(&other.value.0));
                    }
                }
                let available = set.and_then(|set| set.counters.get(name));
                available.is_some_and(|available| sum <= quantity(&available.value.0))
            })
        })
    }
}

impl Pool {
    fn check(&self) -> Result<(), String> {
        let Pool { driver, name, devices, counters } = self;
        for (index, device) in devices.iter().enumerate() {
            if devices[..index].iter().any(|other| other.name == device.name) {
                return Err(format!("pool {driver}/{name} is invalid: two devices are named {:?}", device.name));
            }
            for consumption in device.consumes_counters.iter().flatten() {
                let set = counters.iter().find(|set| set.name == consumption.counter_set);
                let known = |counter: &String| set.is_some_and(|set| set.counters.contains_key(counter));
                if let Some(counter) = consumption.counters.keys().find(|counter| !known(counter)) {
                    let set = &consumption.counter_set;
                    return Err(format!("pool {driver}/{name} is invalid: no counter {counter:?} in set {set:?}"));
                }
            }
        }
        Ok(())
    }
}

/// The devices of all claims.
pub(super) fn results<'a>(claims: &[&'a ResourceClaim]) -> impl Iterator<Item = &'a DeviceRequestAllocationResult> {
    claims
        .iter()
        .filter_map(|claim| claim.status.as_ref()?.allocation.as_ref()?.devices.as_ref())
        .flat_map(|devices| devices.results.iter().flatten())
}
