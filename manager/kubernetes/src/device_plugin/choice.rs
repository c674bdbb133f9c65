//! Chooses a container's devices, once the container is known.

use std::collections::BTreeMap;

use aliquot_dialects::{Decided, DeviceFacts, Wish};
use aliquot_node::{Device, Devices, Part, Slice};

use super::resource::{Room, kept_bytes, profile};

/// The reason why no devices fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} found that will do{}{}: {}",
    counted(*.found, *.wanted),
    together(*.on_one_numa_node),
    of_decided(.decided.as_ref()),
    .reasons.join("; ")
)]
pub(super) struct NoDevice {
    wanted: u32,
    found: usize,
    on_one_numa_node: bool,
    decided: Option<Decided>,
    /// The reason for each device.
    reasons: Vec<String>,
}

fn counted(found: usize, wanted: u32) -> String {
    match wanted {
        1 => "no device".to_owned(),
        _ => format!("only {found} of {wanted} devices"),
    }
}

fn together(on_one_numa_node: bool) -> &'static str {
    if on_one_numa_node { " on one NUMA node" } else { "" }
}

fn of_decided(decided: Option<&Decided>) -> String {
    decided.map(|decided| format!(" of those that the scheduler has decided on ({decided})")).unwrap_or_default()
}

/// The devices that kubelet's choice of units points to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hint<'a> {
    /// These devices if they fit, the first one best, because the units only count.
    Rather(&'a [String]),
    /// These devices and no others, because the units are the devices.
    Exactly(&'a [String]),
}

/// The parts for a wish. They are on the devices of the hint if those fit, else on the devices that are then the
/// fullest. `kept_percent` percent of each device's memory are kept for containers that request time alone.
///
/// # Errors
/// There is no room, or no device of the requested kind.
pub(super) fn choose(
    wish: &Wish,
    devices: &Devices,
    slices: &[Slice],
    kept_percent: u32,
    hint: Hint<'_>,
) -> Result<Vec<Part>, NoDevice> {
    let mut reasons = Vec::new();
    let mut fits: Vec<(Rank, &Device, Part)> = Vec::new();
    for device in devices.usable() {
        match fit(wish, device, slices, kept_percent, hint) {
            Ok((rank, part)) => fits.push((rank, device, part)),
            Err(reason) => reasons.push(format!("{}: {reason}", device.uuid)),
        }
    }
    if devices.usable().next().is_none() {
        reasons.push("this node has no device".to_owned());
    }
    fits.sort_by_key(|(rank, ..)| *rank);
    let wanted = usize::try_from(wish.devices).unwrap_or(usize::MAX);
    let chosen = if wish.constraints.one_numa_node { of_one_numa_node(fits, wanted) } else { fits };
    if chosen.len() < wanted {
        let (on_one_numa_node, decided) = (wish.constraints.one_numa_node, wish.constraints.decided.clone());
        return Err(NoDevice { wanted: wish.devices, found: chosen.len(), on_one_numa_node, decided, reasons });
    }
    Ok(chosen.into_iter().take(wanted).map(|(_, _, part)| part).collect())
}

/// The order of devices: the place in the other scheduler's decision, the place in the hint, the time and the memory
/// that stay free, the device's number.
type Rank = (usize, usize, u32, u64, u32);

fn fit(
    wish: &Wish,
    device: &Device,
    slices: &[Slice],
    kept_percent: u32,
    hint: Hint<'_>,
) -> Result<(Rank, Part), String> {
    let facts =
        DeviceFacts { uuid: &device.uuid, index: device.index, model: &device.model, mig_profile: profile(device) };
    if let Some(problem) = &device.problem {
        return Err(format!("it is unhealthy: {problem}"));
    }
    let decided = match &wish.constraints.decided {
        None => 0,
        Some(decided) => decided.place(&facts).ok_or("the scheduler has decided on another one")?,
    };
    if !wish.constraints.allow(&facts) {
        return Err("it is not among those that were asked for".to_owned());
    }
    let place = |uuids: &[String]| uuids.iter().position(|uuid| *uuid == device.uuid);
    let hinted = match hint {
        Hint::Exactly(uuids) => place(uuids).ok_or("kubelet has chosen another one")?,
        Hint::Rather(uuids) => place(uuids).unwrap_or(usize::MAX),
    };
    let part = wish.share.on(device.memory_bytes);
    let room = Room::of(device, slices);
    let Some(core_left) = room.core_percent.checked_sub(part.core_request_percent) else {
        let wanted = part.core_request_percent;
        return Err(format!("{wanted} percent of its time are wanted, {} are left", room.core_percent));
    };
    let Some(memory_left) = room.memory_bytes.checked_sub(part.memory_bytes) else {
        let (wanted, left) = (part.memory_bytes, room.memory_bytes);
        return Err(format!("{wanted} bytes of memory are wanted, {left} are left"));
    };
    // A container that requests time alone takes no more memory than was kept for its time.
    let kept = kept_bytes(device.memory_bytes, core_left, kept_percent);
    if memory_left < kept {
        let (wanted, left) = (part.memory_bytes, room.memory_bytes);
        return Err(format!(
            "{wanted} bytes of memory are wanted, {left} are left, and {kept} of these must stay for containers that ask \
             for the rest of its time alone"
        ));
    }
    let part = Part {
        device_uuid: device.uuid.clone(),
        core_request_percent: part.core_request_percent,
        core_limit_percent: part.core_limit_percent,
        memory_limit_bytes: part.memory_bytes,
    };
    Ok(((decided, hinted, core_left, memory_left, device.index), part))
}

/// The devices of the first NUMA node that has enough, in their order. If no node has enough, those of the node with
/// the most.
fn of_one_numa_node(fits: Vec<(Rank, &Device, Part)>, wanted: usize) -> Vec<(Rank, &Device, Part)> {
    let mut by_node: BTreeMap<u32, Vec<(Rank, &Device, Part)>> = BTreeMap::new();
    for fit in fits {
        if let Some(node) = fit.1.numa_node {
            by_node.entry(node).or_default().push(fit);
        }
    }
    let mut groups: Vec<Vec<(Rank, &Device, Part)>> = by_node.into_values().collect();
    groups.sort_by_key(|group| (wanted.saturating_sub(group.len()), group.first().map(|(rank, ..)| *rank)));
    groups.into_iter().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use aliquot_dialects::{DECISION, Dialect, NodeFacts, Pod, Spoken};
    use proptest::prelude::*;

    use super::*;
    use crate::device_plugin::test_node::{GIB, device, pod, slice_of};

    const CORE: &str = "aliquot.dev/gpu-core";
    const MEMORY: &str = "aliquot.dev/gpu-memory";

    fn wish(dialect: Dialect, resources: &[(&str, &str)], annotations: &[(&str, &str)]) -> Wish {
        let pod: Pod = pod("main", resources, annotations);
        Spoken::new([dialect]).unwrap().translate(&pod, 0, &NodeFacts::default()).unwrap().unwrap()
    }

    fn third() -> Wish {
        wish(Dialect::Own, &[("aliquot.dev/gpu-core", "30"), ("aliquot.dev/gpu-memory", "16")], &[])
    }

    fn node(count: u32) -> Devices {
        Devices { devices: (0..count).map(|number| device(number, 16)).collect(), ..Devices::default() }
    }

    fn numbers(found: Result<Vec<Part>, NoDevice>, devices: &Devices) -> Vec<u32> {
        found.unwrap().iter().map(|part| devices.get(&part.device_uuid).unwrap().index).collect()
    }

    #[test]
    fn the_fullest_device_that_has_room_is_chosen_unless_units_point_elsewhere() {
        let devices = node(3);
        let slices = [slice_of("a", &devices.devices[1], 50, GIB), slice_of("b", &devices.devices[2], 80, GIB)];
        assert_eq!(numbers(choose(&third(), &devices, &slices, 0, Hint::Rather(&[])), &devices), [1]);
        for (hinted, found) in [(0, 0), (1, 1), (2, 1)] {
            let uuids = [devices.devices[hinted].uuid.clone()];
            assert_eq!(numbers(choose(&third(), &devices, &slices, 0, Hint::Rather(&uuids)), &devices), [found]);
        }
    }

    #[test]
    fn whole_devices_are_those_that_kubelet_has_chosen() {
        let devices = node(3);
        let wish = wish(Dialect::Nvidia, &[("nvidia.com/gpu", "2")], &[]);
        let uuids = [devices.devices[2].uuid.clone(), devices.devices[0].uuid.clone()];
        assert_eq!(numbers(choose(&wish, &devices, &[], 0, Hint::Exactly(&uuids)), &devices), [2, 0]);
        let taken = [slice_of("a", &devices.devices[0], 1, GIB)];
        let error = choose(&wish, &devices, &taken, 0, Hint::Exactly(&uuids)).unwrap_err().to_string();
        assert!(error.starts_with("only 1 of 2 devices found that will do: "), "{error}");
        assert!(error.contains("100 percent of its time are wanted, 99 are left"), "{error}");
    }

    #[test]
    fn memory_that_is_kept_for_time_alone_goes_to_nobody_else() {
        let devices = node(2);
        let facts = NodeFacts { memory_unit_bytes: GIB, core_memory_percent: Some(50), ..NodeFacts::default() };
        let found = |resources: &[(&str, &str)], slices: &[Slice]| {
            let wish = Spoken::new([]).unwrap().translate(&pod("main", resources, &[]), 0, &facts).unwrap().unwrap();
            choose(&wish, &devices, slices, 50, Hint::Rather(&[]))
        };
        let asks = |core: &'static str, memory: &'static str| [(CORE, core), (MEMORY, memory)];
        // 7.2 of the 16 GiB must stay for the other 90 percent of the time.
        assert_eq!(numbers(found(&asks("10", "8"), &[]), &devices), [0]);
        let error = found(&asks("10", "9"), &[]).unwrap_err().to_string();
        assert!(error.contains("17179869184 are left, and 7730941132 of these must stay for containers"), "{error}");
        assert_eq!(numbers(found(&asks("100", "16"), &[]), &devices), [0]);
        // Kube-scheduler counts both devices together.
        let slices = [slice_of("a", &devices.devices[0], 10, 6 * GIB), slice_of("b", &devices.devices[1], 10, 6 * GIB)];
        assert!(found(&asks("10", "4"), &slices).is_err());
        assert_eq!(numbers(found(&asks("10", "3"), &slices), &devices), [0]);
    }

    proptest! {
        #[test]
        fn time_alone_has_room_as_long_as_there_is_time(
            percents in prop::collection::vec(1_u32..50, 1..8),
            memory_bytes in 1_u64..1 << 40,
            kept in 1_u32..=100,
        ) {
            let mut devices = node(1);
            devices.devices[0].memory_bytes = memory_bytes;
            let facts = NodeFacts { core_memory_percent: Some(kept), ..NodeFacts::default() };
            let (mut slices, mut taken) = (Vec::new(), 0);
            for percent in percents.into_iter().take_while(|percent| { taken += percent; taken <= 100 }) {
                let pod = pod("main", &[(CORE, &percent.to_string())], &[]);
                let wish = Spoken::new([]).unwrap().translate(&pod, 0, &facts).unwrap().unwrap();
                let part = choose(&wish, &devices, &slices, kept, Hint::Rather(&[])).unwrap().remove(0);
                slices.push(slice_of("s", &devices.devices[0], percent, part.memory_limit_bytes));
            }
        }
    }

    #[test]
    fn what_another_scheduler_has_decided_goes_before_the_hint() {
        let devices = node(3);
        let (one, two) = (&devices.devices[1].uuid, &devices.devices[2].uuid);
        let decided = format!("{two},NVIDIA,1000,10:{one},NVIDIA,1000,10:;");
        let wish = wish(
            Dialect::Hami,
            &[("nvidia.com/gpu", "2"), ("nvidia.com/gpumem", "1000"), ("nvidia.com/gpucores", "10")],
            &[("hami.io/vgpu-devices-allocated", &decided)],
        );
        let hinted = [devices.devices[0].uuid.clone()];
        assert_eq!(numbers(choose(&wish, &devices, &[], 0, Hint::Rather(&hinted)), &devices), [2, 1]);
    }

    #[test]
    fn the_scheduler_s_decision_is_followed_in_each_dialect() {
        let devices = node(3);
        let [zero, one, two] = [0, 1, 2].map(|number: usize| devices.devices[number].uuid.clone());
        let decided = format!("main={two}/300/4294967296,{one}/300/4294967296");
        let asked = |resource, amount: &str| wish(Dialect::Qgpu, &[(resource, amount)], &[(DECISION, &decided)]);
        let found = |wish: &Wish, slices: &[Slice]| {
            choose(wish, &devices, slices, 0, Hint::Rather(std::slice::from_ref(&zero)))
        };
        assert_eq!(numbers(found(&asked("tke.cloud.tencent.com/qgpu-core", "200"), &[]), &devices), [2, 1]);
        // The amount comes from the request.
        let parts = found(&asked(CORE, "50"), &[]).unwrap();
        assert_eq!((parts.len(), parts[0].core_request_percent), (1, 50));
        assert_eq!(parts[0].device_uuid, two);
        let full = [slice_of("a", &devices.devices[1], 60, GIB), slice_of("b", &devices.devices[2], 90, GIB)];
        let error = found(&asked(CORE, "50"), &full).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "no device found that will do of those that the scheduler has decided on ({two}, {one}): {zero}: the \
                 scheduler has decided on another one; {one}: 50 percent of its time are wanted, 40 are left; {two}: 50 \
                 percent of its time are wanted, 10 are left"
            )
        );
    }

    #[test]
    fn devices_on_one_numa_node_are_looked_for_on_each() {
        let mut devices = node(5);
        for (number, device) in devices.devices.iter_mut().enumerate() {
            device.numa_node = Some(u32::from(number >= 2));
        }
        let bound = |count| {
            wish(
                Dialect::Hami,
                &[("nvidia.com/gpu", count), ("nvidia.com/gpumem", "1000")],
                &[("nvidia.com/numa-bind", "true")],
            )
        };
        assert_eq!(numbers(choose(&bound("2"), &devices, &[], 0, Hint::Rather(&[])), &devices), [0, 1]);
        assert_eq!(numbers(choose(&bound("3"), &devices, &[], 0, Hint::Rather(&[])), &devices), [2, 3, 4]);
        let error = choose(&bound("4"), &devices, &[], 0, Hint::Rather(&[])).unwrap_err().to_string();
        assert!(error.contains("4 devices found that will do on one NUMA node"), "{error}");
    }

    #[test]
    fn who_finds_no_room_is_told_why_of_each_device() {
        let mut devices = node(2);
        devices.devices[0].problem = Some("Xid 79".into());
        let full = [slice_of("a", &devices.devices[1], 10, 13 * GIB)];
        let error = choose(&third(), &devices, &full, 0, Hint::Rather(&[])).unwrap_err().to_string();
        assert!(error.starts_with("no device found that will do: "), "{error}");
        assert!(error.contains("it is unhealthy: Xid 79"), "{error}");
        assert!(error.contains("4294967296 bytes of memory are wanted, 3221225472 are left"), "{error}");
        let none = choose(&third(), &Devices::default(), &[], 0, Hint::Rather(&[])).unwrap_err().to_string();
        assert!(none.ends_with("this node has no device"), "{none}");
    }
}
