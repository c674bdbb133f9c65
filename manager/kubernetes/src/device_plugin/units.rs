//! The units that kubelet may hand out: those that it has handed out, and those for which there is room.
//!
//! Several resources stand for the same devices, and others make slices, too. So for each resource only as many free
//! units are healthy as fit into the free part of the devices: a part that was given out by one resource is not on
//! offer by another one. Where units only count, it does not matter which of them are healthy.

use aliquot_node::{Device, Devices, Slice};

use super::held::Held;
use super::resource::{Resource, Room};
use super::unit_id::unit_id;

/// Kubelet accepts messages of 4 MiB; an entry for one id has less than 80 bytes.
const UNITS_MAX: u64 = 50_000;
const MIB: u64 = 1 << 20;

/// A unit, in the form for kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) id: String,
    pub(super) is_healthy: bool,
    pub(super) numa_node: Option<u32>,
}

/// A resource has more units than kubelet can be told of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{resource} would have {found} units, more than the {UNITS_MAX} that kubelet accepts, so none is offered{}",
    .unit_min_mib.map(|mib| format!("; use a unit of {mib} MiB or more")).unwrap_or_default()
)]
pub(super) struct TooManyUnits {
    resource: String,
    found: u64,
    /// The least size of a unit that would do, for units of memory.
    unit_min_mib: Option<u64>,
}

/// All units of a resource. If `is_split`, it offers no more of a share than one container can have: the room of the
/// device with the most of it, or all devices that are free as a whole.
///
/// # Errors
/// There are more units than kubelet accepts.
pub(super) fn units_of(
    resource: &Resource,
    devices: &Devices,
    slices: &[Slice],
    held: &Held<'_>,
    is_split: bool,
) -> Result<Vec<Unit>, TooManyUnits> {
    let of_devices: Vec<(&Device, u64)> =
        devices.usable().map(|device| (device, resource.units_of(device))).filter(|(_, units)| *units > 0).collect();
    let found = of_devices.iter().fold(0_u64, |sum, (_, units)| sum.saturating_add(*units));
    if found > UNITS_MAX {
        let memory_bytes = of_devices.iter().fold(0_u64, |sum, (device, _)| sum.saturating_add(device.memory_bytes));
        let unit_min_mib = match resource.unit {
            aliquot_dialects::Unit::MemoryBytes(_) => Some(memory_bytes.div_ceil(UNITS_MAX).div_ceil(MIB)),
            _ => None,
        };
        return Err(TooManyUnits { resource: resource.name.clone(), found, unit_min_mib });
    }
    let rooms: Vec<Option<Room>> =
        of_devices.iter().map(|(device, _)| device.problem.is_none().then(|| Room::of(device, slices))).collect();
    let mut fits: Vec<u64> = rooms.iter().map(|room| room.map_or(0, |room| resource.units_in(room))).collect();
    if is_split && resource.is_share() {
        keep_what_is_together(&mut fits, &rooms);
    }
    let mut units: Vec<Unit> = Vec::new();
    // Free units for which there is room, but not on their own device. For whole devices: the number of free devices
    // whose own unit is held by a container that is on another device.
    let mut spare = 0_u64;
    for ((device, count), fits) in of_devices.iter().zip(&fits) {
        let (mut left, mut only_counts) = (*fits, !resource.is_of_whole_devices());
        for number in 0..*count {
            let id = unit_id(&device.uuid, number);
            let is_held = held.units.contains(id.as_str());
            only_counts |= held.elsewhere.contains(id.as_str());
            let is_offered = !is_held && left > 0;
            left -= u64::from(is_offered);
            let is_healthy = device.problem.is_none() && (is_held || is_offered);
            units.push(Unit { id, is_healthy, numa_node: device.numa_node });
        }
        spare += if only_counts { left } else { 0 };
    }
    let mut all = units.iter_mut();
    for (device, count) in &of_devices {
        let count = usize::try_from(*count).unwrap_or(usize::MAX);
        for unit in all.by_ref().take(count).filter(|unit| device.problem.is_none() && !unit.is_healthy) {
            if spare == 0 {
                break;
            }
            spare -= 1;
            unit.is_healthy = true;
        }
    }
    Ok(units)
}

/// Reduces the room of the devices to the part that one container can have: all devices that are completely free; if
/// there is none, the device with the most room. An unhealthy device has no room.
fn keep_what_is_together(fits: &mut [u64], rooms: &[Option<Room>]) {
    let is_whole = |room: &Option<Room>| room.is_some_and(|room| room.is_untouched);
    let has_whole = rooms.iter().any(is_whole);
    let most = fits.iter().copied().max();
    let mut has_kept = false;
    for (fit, room) in fits.iter_mut().zip(rooms) {
        let is_kept = if has_whole { is_whole(room) } else { !has_kept && Some(*fit) == most };
        has_kept |= is_kept;
        if !is_kept {
            *fit = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use aliquot_dialects::{NodeFacts, Spoken};
    use proptest::prelude::*;

    use super::*;
    use crate::device_plugin::test_node::{GIB, device, holder, slice_of};
    use crate::device_plugin::unit_id::CdiName;
    use crate::pod_resources::Holders;

    fn resources() -> Vec<Resource> {
        let facts = NodeFacts { whole_devices: true, memory_unit_bytes: GIB, ..NodeFacts::default() };
        Resource::all(&Spoken::new([]).unwrap(), &facts, &Devices::default())
    }

    fn healthy(resource: &Resource, devices: &Devices, slices: &[Slice], held: &[String]) -> Vec<String> {
        let held = Held { units: held.iter().map(String::as_str).collect(), ..Held::default() };
        let units = units_of(resource, devices, slices, &held, false).unwrap();
        units.into_iter().filter(|unit| unit.is_healthy).map(|unit| unit.id).collect()
    }

    fn node(devices: &[Device]) -> Devices {
        Devices { devices: devices.to_vec(), ..Devices::default() }
    }

    #[test]
    fn a_device_that_is_ill_offers_nothing_until_it_is_well() {
        let [core, ..] = &resources()[..] else { panic!("there are three") };
        let mut ill = device(0, 4);
        assert_eq!(healthy(core, &node(&[ill.clone()]), &[], &[]).len(), 100);
        ill.problem = Some("Xid 79".into());
        assert_eq!(healthy(core, &node(&[ill.clone()]), &[], &[unit_id(&ill.uuid, 1)]).len(), 0);
    }

    #[test]
    fn a_device_that_is_given_out_as_a_whole_has_no_parts_and_the_other_way_round() {
        let [core, memory, whole] = &resources()[..] else { panic!("there are three") };
        let (first, second) = (device(0, 4), device(1, 4));
        let devices = node(&[first.clone(), second.clone()]);
        let taken = slice_of("whole", &first, 100, 4 * GIB);
        assert_eq!(healthy(core, &devices, std::slice::from_ref(&taken), &[]).len(), 100);
        assert_eq!(healthy(memory, &devices, std::slice::from_ref(&taken), &[]).len(), 4);
        assert_eq!(healthy(whole, &devices, std::slice::from_ref(&taken), &[]), [unit_id(&second.uuid, 0)]);
        let held = [unit_id(&first.uuid, 0)];
        assert_eq!(healthy(whole, &devices, &[taken], &held).len(), 2);
        let part = slice_of("part", &first, 1, GIB);
        assert_eq!(healthy(whole, &devices, &[part], &[]), [unit_id(&second.uuid, 0)]);
    }

    #[test]
    fn a_whole_device_is_counted_where_its_holder_is() {
        let [_, _, whole] = &resources()[..] else { panic!("there are three") };
        let devices = node(&[0, 1, 2].map(|number| device(number, 4)));
        let ids = devices.devices.iter().map(|device| unit_id(&device.uuid, 0)).collect::<Vec<_>>();
        // A container has the unit of the first device, and no slice yet.
        let holders: Holders = [holder("a", &whole.name, &[&ids[0]])].into_iter().collect();
        let offered = |slices: &[Slice]| -> Vec<bool> {
            let held = Held::new(whole, &holders, slices);
            let units = units_of(whole, &devices, slices, &held, false).unwrap();
            units.into_iter().map(|unit| unit.is_healthy).collect()
        };
        let part = slice_of("part", &devices.devices[1], 1, GIB);
        assert_eq!(offered(std::slice::from_ref(&part)), [true, false, true]);
        let on = |device: usize| {
            let mut slice = slice_of("a", &devices.devices[device], 100, 4 * GIB);
            let units = BTreeSet::from([ids[0].clone()]);
            slice.content.aliases.insert(CdiName::of_units(&whole.name, &units).alias().to_owned());
            slice
        };
        assert_eq!(offered(&[part.clone(), on(0)]), [true, false, true]);
        // On the third device: one of the others' units stands for the first one, which is free.
        assert_eq!(offered(&[part, on(2)]), [true, true, false]);
        assert_eq!(offered(&[on(2)]), [true, true, true]);
    }

    #[test]
    fn units_count_whichever_device_the_node_has_chosen() {
        let [core, ..] = &resources()[..] else { panic!("there are three") };
        let (first, second) = (device(0, 4), device(1, 4));
        // Kubelet took units of the first device; the slice is on the second one.
        let held: Vec<String> = (0..30).map(|number| unit_id(&first.uuid, number)).collect();
        let slices = [slice_of("a", &second, 30, GIB)];
        assert_eq!(healthy(core, &node(&[first, second]), &slices, &held).len(), 200);
    }

    #[test]
    fn memory_that_is_kept_for_time_alone_is_not_on_offer_and_who_takes_it_changes_nothing() {
        let facts = NodeFacts { memory_unit_bytes: GIB, core_memory_percent: Some(50), ..NodeFacts::default() };
        let all = Resource::all(&Spoken::new([]).unwrap(), &facts, &Devices::default());
        let device = device(0, 16);
        let free = |slices: &[Slice]| -> [usize; 2] {
            [0, 1]
                .map(|resource: usize| healthy(&all[resource], &node(std::slice::from_ref(&device)), slices, &[]).len())
        };
        let slice = |core, memory| slice_of("s", &device, core, memory * GIB);
        assert_eq!(free(&[]), [100, 8]);
        // Half of the time comes with a quarter of the memory.
        assert_eq!(free(&[slice(50, 4)]), [50, 8]);
        assert_eq!(free(&[slice(50, 4), slice(25, 2)]), [25, 8]);
        // A container that names the memory takes it from the offer, and leaves the memory that was kept for its time.
        assert_eq!(free(&[slice(50, 4), slice(25, 8)]), [25, 2]);
    }

    #[test]
    fn of_split_room_only_what_one_container_can_have_is_on_offer() {
        let [core, memory, whole] = &resources()[..] else { panic!("there are three") };
        let all: Vec<Device> = (0..3).map(|number| device(number, 4)).collect();
        let free = |resource: &Resource, slices: &[Slice]| {
            let units = units_of(resource, &node(&all), slices, &Held::default(), true).unwrap();
            units.iter().filter(|unit| unit.is_healthy).count()
        };
        let slice = |on: usize, core, memory| slice_of("s", &all[on], core, memory * GIB);
        assert_eq!((free(core, &[]), free(memory, &[]), free(whole, &[])), (300, 12, 3));
        let one = [slice(0, 60, 3)];
        assert_eq!((free(core, &one), free(memory, &one), free(whole, &one)), (200, 8, 2));
        // No device has room for 40 percent and 3 GiB together, but there is room for either by itself.
        let each = [slice(0, 60, 1), slice(1, 90, 2), slice(2, 60, 3)];
        assert_eq!((free(core, &each), free(memory, &each), free(whole, &each)), (40, 3, 0));
    }

    #[test]
    fn devices_that_are_free_stay_on_offer_also_where_some_of_their_memory_is_kept() {
        let facts = NodeFacts { memory_unit_bytes: GIB, core_memory_percent: Some(50), ..NodeFacts::default() };
        let all = Resource::all(&Spoken::new([]).unwrap(), &facts, &Devices::default());
        let devices = node(&[0, 1, 2].map(|number| device(number, 16)));
        // Containers with time alone took the memory that was kept for it. So the same memory as before is free beside
        // the rest of the time.
        let slices = [slice_of("a", &devices.devices[1], 60, 16 * GIB * 6 / 20)];
        let free = |resource: &Resource| {
            let units = units_of(resource, &devices, &slices, &Held::default(), true).unwrap();
            units.iter().filter(|unit| unit.is_healthy).count()
        };
        assert_eq!((free(&all[0]), free(&all[1])), (200, 16));
    }

    #[test]
    fn more_units_than_kubelet_can_be_told_of_are_not_served() {
        let memory = |unit_mib: u64| {
            let facts = NodeFacts { memory_unit_bytes: unit_mib * MIB, ..NodeFacts::default() };
            Resource::all(&Spoken::new([]).unwrap(), &facts, &Devices::default()).remove(1)
        };
        // Eight devices of 141 GiB, as on the largest known node.
        let devices = node(&(0..8).map(|number| device(number, 141)).collect::<Vec<_>>());
        let units = |unit_mib| units_of(&memory(unit_mib), &devices, &[], &Held::default(), false);
        let error = units(1).unwrap_err().to_string();
        assert!(error.contains("aliquot.dev/gpu-memory would have 1155072 units"), "{error}");
        assert!(error.ends_with("use a unit of 24 MiB or more"), "{error}");
        assert!(units(23).is_err());
        assert_eq!(units(24).unwrap().len(), 8 * 141 * 1024 / 24);
        let by_default = NodeFacts::default().memory_unit_bytes / MIB;
        assert_eq!(units(by_default).unwrap().len(), 8 * 141 * 4);
    }

    proptest! {
        #[test]
        fn free_units_are_never_more_than_there_is_room_for(
            parts in prop::collection::vec((0_u32..3, 1_u32..=100, 1_u64..=4), 0..8),
            ill in 0_u32..4,
            held in prop::collection::btree_set((0_u32..3, 0_u64..100), 0..40),
        ) {
            let mut devices: Vec<Device> = (0..3).map(|number| device(number, 4)).collect();
            if let Some(device) = devices.get_mut(ill as usize) {
                device.problem = Some("ill".into());
            }
            let slices: Vec<Slice> = parts
                .iter()
                .map(|(on, core, memory)| slice_of("s", &devices[*on as usize], *core, memory * GIB))
                .collect();
            let held: Vec<String> = held.iter().map(|(on, n)| unit_id(&devices[*on as usize].uuid, *n)).collect();
            let node = node(&devices);
            for resource in resources() {
                let room: u64 = devices
                    .iter()
                    .filter(|device| device.problem.is_none())
                    .map(|device| resource.units_in(Room::of(device, &slices)))
                    .sum();
                let free = healthy(&resource, &node, &slices, &held).into_iter().filter(|id| !held.contains(id));
                let free = free.count() as u64;
                prop_assert!(free <= room, "{}: {free} of {room}", resource.name);
            }
        }
    }
}
