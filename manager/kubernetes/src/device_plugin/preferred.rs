//! Chooses the free units that kubelet should take.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use aliquot_dialects::Unit;
use aliquot_node::{Device, Devices};

use super::resource::Resource;
use super::unit_id::device_of;

/// The value of an NVLink connection between two devices to a container that has both.
const NVLINK: u32 = 4;
const SAME_PCIE_ROOT: u32 = 2;
const SAME_NUMA_NODE: u32 = 1;

/// Chooses `size` of the `available` units, or fewer if there are not so many. All `must` units are among them. Shares
/// are of as few devices as possible, and of the fullest ones; containers' slots are of different devices, and whole
/// devices are close to each other.
#[must_use]
pub(super) fn preferred(
    resource: &Resource,
    devices: &Devices,
    available: &[String],
    must: &[String],
    size: usize,
) -> Vec<String> {
    let mut chosen: Vec<String> = must.iter().take(size).cloned().collect();
    let taken: BTreeSet<&str> = chosen.iter().map(String::as_str).collect();
    let mut free: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for id in available.iter().filter(|id| !taken.contains(id.as_str())) {
        free.entry(device_of(id).unwrap_or_default()).or_default().push(id);
    }
    for ids in free.values_mut() {
        ids.sort_unstable_by_key(|id| (id.len(), *id));
    }
    let begun: BTreeSet<String> = must.iter().filter_map(|id| device_of(id)).map(str::to_owned).collect();
    let missing = size - chosen.len();
    let more = match resource.unit {
        Unit::CorePercent | Unit::MemoryBytes(_) | Unit::Part { .. } => of_few_devices(&free, &begun, missing),
        Unit::Slot { .. } => of_different_devices(&free, &begun, missing),
        Unit::Device | Unit::MigInstance => close_together(&free, &begun, devices, missing),
    };
    chosen.extend(more.into_iter().map(str::to_owned));
    chosen
}

type Free<'a> = BTreeMap<&'a str, Vec<&'a str>>;

/// Takes all units from one device if one has enough: from the one that is then the fullest. Otherwise it takes the
/// emptiest devices first, so that few are needed.
fn of_few_devices<'a>(free: &Free<'a>, begun: &BTreeSet<String>, size: usize) -> Vec<&'a str> {
    let mut chosen = Vec::with_capacity(size);
    let mut left: BTreeMap<&str, &[&'a str]> = free.iter().map(|(device, ids)| (*device, ids.as_slice())).collect();
    while chosen.len() < size && !left.is_empty() {
        let missing = size - chosen.len();
        let rank = |device: &str, ids: &[&str]| {
            let is_enough = ids.len() >= missing;
            let fullness = if is_enough { ids.len() } else { usize::MAX - ids.len() };
            (Reverse(begun.contains(device)), Reverse(is_enough), fullness)
        };
        let best = left.iter().min_by_key(|(device, ids)| rank(device, ids)).map(|(device, _)| *device);
        let Some(ids) = best.and_then(|device| left.remove(device)) else { break };
        chosen.extend(ids.iter().take(missing));
    }
    chosen
}

/// Takes one unit of each device, of the fullest device first, and then starts again.
fn of_different_devices<'a>(free: &Free<'a>, begun: &BTreeSet<String>, size: usize) -> Vec<&'a str> {
    let mut order: Vec<(&str, &Vec<&'a str>)> = free.iter().map(|(device, ids)| (*device, ids)).collect();
    order.sort_by_key(|(device, ids)| (begun.contains(*device), ids.len()));
    let rounds = order.iter().map(|(_, ids)| ids.len()).max().unwrap_or(0);
    let in_turn = (0..rounds).flat_map(|round| order.iter().filter_map(move |(_, ids)| ids.get(round).copied()));
    in_turn.take(size).collect()
}

/// Starts at each device in turn, and always adds the device that is closest to those chosen before. Returns the best
/// of these choices.
fn close_together<'a>(free: &Free<'a>, begun: &BTreeSet<String>, devices: &Devices, size: usize) -> Vec<&'a str> {
    let candidates: Vec<(&str, &'a str)> =
        free.iter().filter_map(|(device, ids)| Some((*device, *ids.first()?))).collect();
    let size = size.min(candidates.len());
    let starts = if begun.is_empty() { candidates.len() } else { 1 };
    let mut best: Option<(u32, Vec<&'a str>)> = None;
    for start in 0..starts {
        let mut near: Vec<&str> = begun.iter().map(String::as_str).collect();
        let mut left = candidates.clone();
        let (mut worth, mut ids) = (0, Vec::new());
        if begun.is_empty() && size > 0 {
            let (device, id) = left.remove(start);
            near.push(device);
            ids.push(id);
        }
        while ids.len() < size {
            let gain = |device: &str| near.iter().map(|other| closeness(devices, device, other)).sum::<u32>();
            let most = left.iter().enumerate().max_by_key(|(place, (device, _))| (gain(device), Reverse(*place)));
            let Some((place, gained)) = most.map(|(place, (device, _))| (place, gain(device))) else { break };
            let (device, id) = left.remove(place);
            near.push(device);
            ids.push(id);
            worth += gained;
        }
        if best.as_ref().is_none_or(|(most, _)| worth > *most) {
            best = Some((worth, ids));
        }
    }
    best.map_or_else(Vec::new, |(_, ids)| ids)
}

fn closeness(devices: &Devices, one: &str, other: &str) -> u32 {
    let (Some(one), Some(other)) = (devices.get(one), devices.get(other)) else { return 0 };
    let linked = one.nvlink_peers.contains(&other.uuid) || other.nvlink_peers.contains(&one.uuid);
    let same = |of: fn(&Device) -> Option<String>| of(one).is_some() && of(one) == of(other);
    u32::from(linked) * NVLINK
        + u32::from(same(|device| device.pcie_root.clone())) * SAME_PCIE_ROOT
        + u32::from(same(|device| device.numa_node.map(|node| node.to_string()))) * SAME_NUMA_NODE
}

#[cfg(test)]
mod tests {
    use aliquot_dialects::{Dialect, NodeFacts, Spoken};
    use proptest::prelude::*;

    use super::*;
    use crate::device_plugin::test_node::device;
    use crate::device_plugin::unit_id::unit_id;

    fn resource(name: &str) -> Resource {
        let facts = NodeFacts { whole_devices: true, ..NodeFacts::default() };
        let all = Resource::all(&Spoken::new([Dialect::Hami]).unwrap(), &facts, &Devices::default());
        all.into_iter().find(|resource| resource.name == name).unwrap()
    }

    /// The free units of devices with these numbers of units.
    fn free(counts: &[u64]) -> Vec<String> {
        let of = |(number, count): (usize, &u64)| {
            let uuid = device(u32::try_from(number).unwrap(), 1).uuid;
            (0..*count).map(move |unit| unit_id(&uuid, unit))
        };
        counts.iter().enumerate().flat_map(of).collect()
    }

    /// The number of units chosen of each device.
    fn chosen(name: &str, devices: &Devices, available: &[String], must: &[String], size: usize) -> Vec<(u32, usize)> {
        let mut found: BTreeMap<u32, usize> = BTreeMap::new();
        for id in preferred(&resource(name), devices, available, must, size) {
            let number = (0..16).find(|number| device(*number, 1).uuid == device_of(&id).unwrap());
            *found.entry(number.unwrap()).or_default() += 1;
        }
        found.into_iter().collect()
    }

    #[test]
    fn shares_are_of_the_fullest_device_that_has_enough() {
        let core = "aliquot.dev/gpu-core";
        let none = Devices::default();
        let available = free(&[100, 40, 60]);
        assert_eq!(chosen(core, &none, &available, &[], 50), [(2, 50)]);
        assert_eq!(chosen(core, &none, &available, &[], 30), [(1, 30)]);
        assert_eq!(chosen(core, &none, &available, &[], 120), [(0, 100), (1, 20)]);
        assert_eq!(chosen(core, &none, &available, &available[..1], 30), [(0, 30)]);
        assert_eq!(chosen(core, &none, &available, &[], 500).len(), 3);
    }

    #[test]
    fn slots_are_of_different_devices() {
        let none = Devices::default();
        assert_eq!(chosen("nvidia.com/gpu", &none, &free(&[10, 3, 10]), &[], 1), [(1, 1)]);
        assert_eq!(chosen("nvidia.com/gpu", &none, &free(&[10, 3, 10]), &[], 3), [(0, 1), (1, 1), (2, 1)]);
        let available = free(&[10, 3, 10]);
        assert_eq!(chosen("nvidia.com/gpu", &none, &available, &available[10..11], 2), [(0, 1), (1, 1)]);
    }

    #[test]
    fn whole_devices_are_close_to_each_other() {
        let mut all: Vec<Device> = (0..6).map(|number| device(number, 1)).collect();
        for (one, other) in [(1, 4), (4, 5)] {
            let peer = all[other].uuid.clone();
            all[one].nvlink_peers.push(peer);
        }
        for (number, device) in all.iter_mut().enumerate() {
            device.numa_node = Some(u32::try_from(number / 3).unwrap());
        }
        let devices = Devices { devices: all, ..Devices::default() };
        let whole = "aliquot.dev/gpu";
        let numbers = |must: &[String], size| -> Vec<u32> {
            let found = chosen(whole, &devices, &free(&[1; 6]), must, size);
            found.into_iter().map(|(number, _)| number).collect()
        };
        assert_eq!(numbers(&[], 2), [4, 5]);
        assert_eq!(numbers(&[], 3), [1, 4, 5]);
        assert_eq!(numbers(&free(&[1]), 2), [0, 1]);
        assert_eq!(numbers(&[], 9).len(), 6);
    }

    proptest! {
        #[test]
        fn what_is_preferred_is_what_was_asked_for(
            counts in prop::collection::vec(0_u64..20, 0..5),
            must in 0_usize..10,
            size in 0_usize..60,
            of_whole in any::<bool>(),
        ) {
            let name = if of_whole { "nvidia.com/gpu" } else { "aliquot.dev/gpu-memory" };
            let available = free(&counts);
            let must = &available[..must.min(available.len())];
            let found = preferred(&resource(name), &Devices::default(), &available, must, size);
            let distinct: BTreeSet<&String> = found.iter().collect();
            prop_assert_eq!(distinct.len(), found.len());
            prop_assert_eq!(found.len(), size.min(available.len()));
            prop_assert!(found.iter().all(|id| available.contains(id)));
            prop_assert!(size < must.len() || must.iter().all(|id| found.contains(id)));
        }
    }
}
