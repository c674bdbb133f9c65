//! Instances of GPUs in MIG mode that could be made for claims: one device for each profile at each of its places.
//!
//! The scheduler sees by counters which of them exclude each other. Each GPU has a set with one counter for each of its
//! memory slices, so that overlapping instances want the same counter, and with counters for the GPU's other resources
//! that instances take. Instances of an administrator stay, and instances that would overlap with them are not offered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_node::{Device, Devices, MigProfile, Partition, Placement};
use k8s_openapi::api::resource::v1::{Counter, CounterSet, DeviceCounterConsumption};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::names::{device_name, is_label};

/// The node's devices, and which of their instances were made, or are being made, for claims.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// All devices of the node.
    pub devices: Arc<Devices>,
    /// The places of the driver's own instances.
    pub own: BTreeSet<Partition>,
}

impl View {
    /// The devices that are given out in parts: those that slices can be made of, except the driver's own instances,
    /// each of which belongs to one claim.
    pub(super) fn shared(&self) -> impl Iterator<Item = &Device> {
        self.devices.usable().filter(|device| !self.is_own(device))
    }

    fn is_own(&self, device: &Device) -> bool {
        device.mig_instance.as_ref().is_some_and(|instance| {
            let mut own = self.own.iter().filter(|own| own.gpu_uuid == instance.gpu_uuid);
            own.any(|own| Some(own.placement) == instance.placement)
        })
    }

    /// The instances that claims can have: those with room beside the instances that others have made.
    pub(super) fn offers(&self) -> Vec<Offer<'_>> {
        possible(&self.devices).filter(|offer| !self.taken_by_others(offer.gpu, offer.placement)).collect()
    }

    fn taken_by_others(&self, gpu: &Device, placement: Placement) -> bool {
        let occupied = gpu.partitioning.iter().flat_map(|partitioning| &partitioning.occupied);
        let is_own = |taken: &Placement| self.own.iter().any(|own| own.gpu_uuid == gpu.uuid && own.placement == *taken);
        occupied.filter(|taken| !is_own(taken)).any(|taken| taken.overlaps(placement))
    }
}

/// An instance that could be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer<'node> {
    /// The GPU that the instance would be on.
    pub gpu: &'node Device,
    /// The kind of instance.
    pub profile: &'node MigProfile,
    /// The place of the instance on its GPU.
    pub placement: Placement,
}

/// All possible instances, each as if it were alone.
fn possible(devices: &Devices) -> impl Iterator<Item = Offer<'_>> {
    let gpus = devices.devices.iter().filter_map(|gpu| Some((gpu, gpu.partitioning.as_ref()?)));
    let profiles = gpus.flat_map(|(gpu, partitioning)| partitioning.profiles.iter().map(move |profile| (gpu, profile)));
    profiles
        .flat_map(|(gpu, profile)| profile.placements.iter().map(move |&placement| Offer { gpu, profile, placement }))
}

/// The instance of that name, whether there is room for it or not.
#[must_use]
pub(super) fn partition_of<'node>(devices: &'node Devices, name: &str) -> Option<Offer<'node>> {
    possible(devices).find(|offer| offer.name().as_deref() == Some(name))
}

impl Offer<'_> {
    /// The device's name in the pool: the GPU's, the profile's and the first memory slice.
    #[must_use]
    pub(super) fn name(&self) -> Option<String> {
        let profile = self.profile.name.replace('-', "-without-").replace('+', "-with-").replace('.', "-");
        let name =
            format!("{}-{}-{}", device_name(&self.gpu.uuid)?, profile.to_ascii_lowercase(), self.placement.start);
        is_label(&name).then_some(name)
    }

    /// The instance to make.
    #[must_use]
    pub(super) fn partition(&self) -> Partition {
        Partition { gpu_uuid: self.gpu.uuid.clone(), profile: self.profile.name.clone(), placement: self.placement }
    }

    /// The counters that it takes of its GPU.
    #[must_use]
    pub(super) fn consumption(&self) -> Option<DeviceCounterConsumption> {
        let counters = counters(self.placement.slices(), &self.profile.units);
        Some(DeviceCounterConsumption {
            compatibility_groups: None,
            counter_set: device_name(&self.gpu.uuid)?,
            counters,
        })
    }
}

/// The counters of each GPU that has offers.
#[must_use]
pub(super) fn counter_sets(offers: &[Offer<'_>]) -> Vec<CounterSet> {
    let mut gpus: Vec<&Device> = offers.iter().map(|offer| offer.gpu).collect();
    gpus.dedup_by_key(|gpu| &gpu.uuid);
    gpus.into_iter().filter_map(counter_set).collect()
}

/// All counters of a GPU, with the amounts that its largest instance takes.
fn counter_set(gpu: &Device) -> Option<CounterSet> {
    let profiles = &gpu.partitioning.as_ref()?.profiles;
    let ends = profiles.iter().flat_map(|profile| &profile.placements).map(|placement| placement.slices().end);
    let mut units: BTreeMap<String, u32> = BTreeMap::new();
    for (name, count) in profiles.iter().flat_map(|profile| &profile.units) {
        let most = units.entry(name.clone()).or_default();
        *most = (*most).max(*count);
    }
    Some(CounterSet { name: device_name(&gpu.uuid)?, counters: counters(0..ends.max()?, &units) })
}

fn counters(slices: impl Iterator<Item = u32>, units: &BTreeMap<String, u32>) -> BTreeMap<String, Counter> {
    let counter = |count: u32| Counter { value: Quantity(count.to_string()) };
    let slices = slices.map(|slice| (format!("memory-slice-{slice}"), counter(1)));
    slices.chain(units.iter().map(|(name, count)| (name.clone(), counter(*count)))).collect()
}

#[cfg(test)]
mod tests;
