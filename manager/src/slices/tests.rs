use proptest::prelude::*;

use super::*;
use crate::inventory::{Device, Health, SharingMode};

const GIB: u64 = 1 << 30;

fn uuid(number: u32) -> DeviceUuid {
    DeviceUuid::new(format!("GPU-00000000-0000-0000-0000-{number:012x}"))
}

fn inventory(devices: u32) -> Inventory {
    let device = |index| Device {
        uuid: uuid(index),
        index,
        model: "Test".into(),
        memory_bytes: 80 * GIB,
        pci_bus_id: String::new(),
        minor: None,
        numa_node: None,
        nvlink_peers: Vec::new(),
        compute_capability: None,
        mig_enabled: false,
        partitioning: None,
        mig_instance: None,
        tells_utilisation: true,
        sharing: SharingMode::Time,
        health: Health::Healthy,
    };
    Inventory { devices: (0..devices).map(device).collect(), ..Inventory::default() }
}

fn part(device: Option<u32>, core: u32, limit: u32, memory: u64) -> PartRequest {
    PartRequest {
        device: device.map(uuid),
        core_request_percent: core,
        core_limit_percent: limit,
        memory_limit_bytes: memory,
    }
}

fn resized(parts: Vec<PartRequest>) -> ResizeRequest {
    ResizeRequest { parts, ..ResizeRequest::default() }
}

fn request(name: &str, parts: Vec<PartRequest>) -> CreateRequest {
    CreateRequest { name: name.into(), parts, ..CreateRequest::default() }
}

fn create(
    slices: &mut Slices,
    inventory: &Inventory,
    name: &str,
    parts: Vec<PartRequest>,
) -> Result<Slice, CreateError> {
    let id = SliceId::from_random(
        u128::from(name.bytes().map(u64::from).sum::<u64>()) << 64 | slices.iter().count() as u128,
    );
    let slice = slices.create(inventory, request(name, parts), id, SystemTime::UNIX_EPOCH)?;
    slices.put(slice.clone());
    Ok(slice)
}

#[test]
fn omitted_values_have_defaults() {
    let mut slices = Slices::default();
    let slice = create(&mut slices, &inventory(1), "", vec![part(None, 30, 0, 0)]).unwrap();
    assert_eq!(slice.name, format!("slice-{:.8}", slice.id.to_string()));
    let expected =
        Part { device: uuid(0), core_request_percent: 30, core_limit_percent: 30, memory_limit_bytes: 24 * GIB };
    assert_eq!(slice.parts, [expected]);
}

#[test]
fn values_that_can_never_be_right_are_refused() {
    let (mut slices, inventory) = (Slices::default(), inventory(2));
    for (parts, expected) in [
        (vec![], "0 devices"),
        (vec![part(None, 1, 0, 0); 17], "17 devices"),
        (vec![part(None, 0, 0, 0)], "gpu-core is 0"),
        (vec![part(None, 101, 0, 0)], "gpu-core is 101"),
        (vec![part(None, 10, 101, 0)], "gpu-core-limit is 101"),
        (vec![part(None, 10, 5, 0)], "gpu-core-limit is 5, below gpu-core, which is 10"),
        (vec![part(None, 10, 0, 81 * GIB)], "gpu-memory is 81 GiB"),
        (vec![part(None, u32::MAX, u32::MAX, u64::MAX)], "gpu-core is 4294967295"),
        (
            vec![part(Some(7), 10, 0, 0)],
            "there is no device GPU-00000000-0000-0000-0000-000000000007; this node has GPU-",
        ),
        (vec![part(Some(1), 10, 0, 0), part(Some(1), 10, 0, 0)], "named twice"),
        (vec![part(None, 10, 0, 0); 3], "more devices than this node has; ask for 2"),
    ] {
        let error = create(&mut slices, &inventory, "a", parts).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(slices, Slices::default());
    let error = create(&mut slices, &Inventory::default(), "a", vec![part(None, 1, 0, 0)]).unwrap_err();
    assert_eq!(error, CreateError::NoDevice);
}

#[test]
fn a_name_is_given_once() {
    let (mut slices, inventory) = (Slices::default(), inventory(1));
    create(&mut slices, &inventory, "a", vec![part(None, 10, 0, 0)]).unwrap();
    let error = create(&mut slices, &inventory, "a", vec![part(None, 10, 0, 0)]).unwrap_err();
    assert_eq!(error, CreateError::Exists { name: "a".into() });
}

#[test]
fn the_device_with_the_least_room_that_is_enough_is_taken() {
    let (mut slices, inventory) = (Slices::default(), inventory(3));
    create(&mut slices, &inventory, "a", vec![part(Some(1), 60, 0, GIB)]).unwrap();
    create(&mut slices, &inventory, "b", vec![part(Some(2), 80, 0, GIB)]).unwrap();
    let device = |slice: Slice| slice.parts[0].device.clone();
    assert_eq!(device(create(&mut slices, &inventory, "c", vec![part(None, 20, 0, GIB)]).unwrap()), uuid(2));
    assert_eq!(device(create(&mut slices, &inventory, "d", vec![part(None, 20, 0, GIB)]).unwrap()), uuid(1));
    assert_eq!(device(create(&mut slices, &inventory, "e", vec![part(None, 30, 0, GIB)]).unwrap()), uuid(0));
    let error = create(&mut slices, &inventory, "f", vec![part(None, 90, 0, GIB)]).unwrap_err();
    assert!(matches!(error, CreateError::NoRoom { ref refusals } if refusals.len() == 3), "{error}");
}

#[test]
fn parts_that_name_a_device_come_before_those_that_do_not() {
    let (mut slices, inventory) = (Slices::default(), inventory(2));
    let slice = create(&mut slices, &inventory, "a", vec![part(None, 10, 0, GIB), part(Some(0), 10, 0, GIB)]).unwrap();
    assert_eq!((&slice.parts[0].device, &slice.parts[1].device), (&uuid(1), &uuid(0)));
}

#[test]
fn a_device_that_is_unhealthy_or_partitioned_is_not_given_out() {
    let mut inventory = inventory(2);
    inventory.devices[0].health = Health::Unhealthy { reason: "XID 79".into() };
    inventory.devices[1].mig_enabled = true;
    let mut slices = Slices::default();
    let error = create(&mut slices, &inventory, "a", vec![part(Some(0), 1, 0, 0)]).unwrap_err().to_string();
    assert!(error.contains("XID 79"), "{error}");
    let error = create(&mut slices, &inventory, "a", vec![part(Some(1), 1, 0, 0)]).unwrap_err().to_string();
    assert!(error.contains("MIG"), "{error}");
    create(&mut slices, &inventory, "a", vec![part(None, 1, 0, 0)]).unwrap_err();
}

#[test]
fn a_resize_changes_what_it_names_and_nothing_else() {
    let (mut slices, inventory) = (Slices::default(), inventory(2));
    create(&mut slices, &inventory, "a", vec![part(Some(0), 30, 60, GIB), part(Some(1), 30, 0, GIB)]).unwrap();
    let shares = |slice: &Slice| -> Vec<(u32, u32, u64)> {
        slice
            .parts
            .iter()
            .map(|part| (part.core_request_percent, part.core_limit_percent, part.memory_limit_bytes / GIB))
            .collect()
    };
    // A limit that equalled the request follows it.
    let slice = slices.resize(&inventory, "a", &resized(vec![part(None, 40, 0, 0)])).unwrap();
    assert_eq!(shares(&slice), [(40, 60, 1), (40, 40, 1)]);
    let slice = slices.resize(&inventory, "a", &resized(vec![part(Some(1), 0, 0, 2 * GIB)])).unwrap();
    assert_eq!(shares(&slice), [(30, 60, 1), (30, 30, 2)]);
    // The slice itself may use the whole device.
    let slice = slices.resize(&inventory, "a", &resized(vec![part(None, 100, 100, 80 * GIB)])).unwrap();
    assert_eq!(shares(&slice), [(100, 100, 80), (100, 100, 80)]);
    for (changes, expected) in [
        (vec![], "nothing to change"),
        (vec![part(None, 70, 0, 0)], "gpu-core-limit is 60, below gpu-core, which is 70"),
        (vec![part(None, 0, 0, 81 * GIB)], "gpu-memory is 81 GiB"),
        (vec![part(Some(5), 1, 0, 0)], "has no part of device"),
    ] {
        let error = slices.resize(&inventory, "a", &resized(changes)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(
        slices
            .resize(&inventory, "b", &resized(vec![part(None, 1, 0, 0)]))
            .unwrap_err()
            .to_string()
            .contains("no slice named \"b\"")
    );
}

#[test]
fn the_host_memory_limit_is_set_changed_and_removed() {
    let (mut slices, inventory) = (Slices::default(), inventory(1));
    let asked = |limit_bytes| CreateRequest {
        host_memory_limit_bytes: limit_bytes,
        ..request("a", vec![part(None, 10, 0, 0)])
    };
    let id = SliceId::from_random(1);
    let refused = slices.create(&inventory, asked(u64::MAX), id, SystemTime::UNIX_EPOCH).unwrap_err().to_string();
    assert!(refused.contains("host-memory is") && refused.contains("can be counted"), "{refused}");
    let slice = slices.create(&inventory, asked(GIB), id, SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(slice.host_memory_limit_bytes, GIB);
    slices.put(slice.clone());
    let change =
        |bytes, parts| ResizeRequest { parts, host_memory_limit_bytes: Some(bytes), ..ResizeRequest::default() };
    let resized = slices.resize(&inventory, "a", &change(2 * GIB, vec![])).unwrap();
    assert_eq!(resized, Slice { host_memory_limit_bytes: 2 * GIB, ..slice.clone() });
    let resized = slices.resize(&inventory, "a", &change(0, vec![part(None, 20, 0, 0)])).unwrap();
    assert_eq!((resized.host_memory_limit_bytes, resized.parts[0].core_request_percent), (0, 20));
    let error = slices.resize(&inventory, "a", &change(u64::MAX, vec![])).unwrap_err();
    assert_eq!(error, ResizeError::HostMemory(HostMemoryError { found_bytes: u64::MAX }));
    // A limit that the request leaves out stays.
    let other = ResizeRequest { parts: vec![part(None, 30, 0, 0)], ..ResizeRequest::default() };
    assert_eq!(slices.resize(&inventory, "a", &other).unwrap().host_memory_limit_bytes, GIB);
}

#[test]
fn a_priority_class_is_requested_or_the_default_and_changes_on_its_own() {
    let (mut slices, inventory) = (Slices::new(QosClass::Batch), inventory(1));
    assert_eq!(create(&mut slices, &inventory, "a", vec![part(None, 10, 0, 0)]).unwrap().qos_class, QosClass::Batch);
    let asked = CreateRequest { qos_class: Some(QosClass::Standard), ..request("b", vec![part(None, 10, 0, 0)]) };
    let slice = slices.create(&inventory, asked, SliceId::from_random(1), SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(slice.qos_class, QosClass::Standard);
    slices.put(slice.clone());
    let change = ResizeRequest { qos_class: Some(QosClass::LatencyCritical), ..ResizeRequest::default() };
    let changed = slices.resize(&inventory, "b", &change).unwrap();
    assert_eq!(changed, Slice { qos_class: QosClass::LatencyCritical, ..slice });
    slices.put(changed);
    let other = slices.resize(&inventory, "b", &resized(vec![part(None, 20, 0, 0)])).unwrap();
    assert_eq!(other.qos_class, QosClass::LatencyCritical);
}

#[test]
fn all_parts_are_on_devices_that_are_shared_alike() {
    let (mut slices, mut inventory) = (Slices::default(), inventory(3));
    inventory.devices[0].sharing = SharingMode::Mps;
    // The best device for one part is the fullest, which is the only one that MPS shares.
    create(&mut slices, &inventory, "other", vec![part(Some(0), 50, 0, 0)]).unwrap();
    let one = create(&mut slices, &inventory, "one", vec![part(None, 10, 0, 0)]).unwrap();
    assert_eq!(one.parts[0].device, uuid(0));
    let two = create(&mut slices, &inventory, "two", vec![part(None, 10, 0, 0), part(None, 10, 0, 0)]).unwrap();
    assert!(two.parts.iter().all(|part| part.device != uuid(0)), "{two:?}");
    let three = vec![part(None, 10, 0, 0), part(None, 10, 0, 0), part(None, 10, 0, 0)];
    create(&mut slices, &inventory, "three", three).unwrap_err();
}

#[test]
fn users_of_a_resize_are_added_to_the_present_ones() {
    let (mut slices, inventory) = (Slices::default(), inventory(1));
    let asked = CreateRequest { users: [1000].into(), ..request("a", vec![part(None, 10, 0, 0)]) };
    let slice = slices.create(&inventory, asked, SliceId::from_random(1), SystemTime::UNIX_EPOCH).unwrap();
    slices.put(slice.clone());
    let change = ResizeRequest { users: [1001, 1000].into(), ..ResizeRequest::default() };
    let changed = slices.resize(&inventory, "a", &change).unwrap();
    assert_eq!(changed, Slice { users: [1000, 1001].into(), ..slice });
    slices.put(changed);
    assert_eq!(slices.resize(&inventory, "a", &resized(vec![part(None, 20, 0, 0)])).unwrap().users.len(), 2);
}

#[test]
fn a_slice_in_use_is_removed_by_force_only() {
    let (mut slices, inventory) = (Slices::default(), inventory(1));
    create(&mut slices, &inventory, "a", vec![part(None, 10, 0, 0)]).unwrap();
    assert_eq!(slices.remove("a", 2, false).unwrap_err(), RemoveError::InUse { name: "a".into(), attached: 2 });
    assert!(slices.remove("a", 2, true).is_ok() && slices.remove("a", 0, false).is_ok());
    assert_eq!(slices.remove("b", 0, true).unwrap_err(), RemoveError::NotFound { name: "b".into() });
}

#[test]
fn ids_are_parsed_as_written_and_other_texts_are_refused() {
    let id = SliceId::from_random(0xab);
    assert_eq!(SliceId::parse(&id.to_string()), Some(id));
    for text in [
        "",
        "ab",
        "000000000000000000000000000000AB",
        "+00000000000000000000000000000ab",
        ".new-0000000000000000000000000ab",
    ] {
        assert_eq!(SliceId::parse(text), None, "{text}");
    }
}

fn arbitrary_part() -> impl Strategy<Value = PartRequest> {
    let device = proptest::option::of(0_u32..4);
    let memory = prop_oneof![Just(0), (1..90 * GIB), Just(u64::MAX)];
    (device, 0_u32..110, 0_u32..110, memory).prop_map(|(device, core, limit, memory)| part(device, core, limit, memory))
}

proptest! {
    #[test]
    fn no_sequence_of_operations_gives_out_more_than_there_is(
        steps in proptest::collection::vec((0_u8..3, 0_u32..8, proptest::collection::vec(arbitrary_part(), 0..4)), 1..60),
    ) {
        let inventory = inventory(3);
        let mut slices = Slices::default();
        for (what, who, parts) in steps {
            let name = format!("s{who}");
            match what {
                0 => drop(create(&mut slices, &inventory, &name, parts)),
                1 => if let Ok(slice) = slices.resize(&inventory, &name, &resized(parts)) { slices.put(slice) },
                _ => if slices.remove(&name, 0, false).is_ok() { slices.take(&name); },
            }
            for device in &inventory.devices {
                let given = slices.given(&device.uuid, None);
                prop_assert!(given.core_request_percent <= 100);
                prop_assert!(given.memory_bytes <= device.memory_bytes);
            }
            for slice in slices.iter() {
                let devices: std::collections::BTreeSet<_> = slice.parts.iter().map(|part| &part.device).collect();
                prop_assert_eq!(devices.len(), slice.parts.len());
                for part in &slice.parts {
                    prop_assert!((1..=100).contains(&part.core_request_percent));
                    prop_assert!((part.core_request_percent..=100).contains(&part.core_limit_percent));
                }
            }
        }
    }
}

/// The slice for `request`, on a node with one device.
fn made_of(slices: &Slices, request: CreateRequest) -> Result<Slice, CreateError> {
    slices.create(&inventory(1), request, SliceId::from_random(1), SystemTime::UNIX_EPOCH)
}

#[test]
fn all_names_of_a_slice_are_its_own() {
    let published = |aliases: &[&str]| Published {
        aliases: aliases.iter().map(|&alias| alias.to_owned()).collect(),
        ..Published::default()
    };
    let asked = |name: &str, aliases: &[&str]| CreateRequest {
        published: published(aliases),
        ..request(name, vec![part(None, 10, 0, GIB)])
    };
    let mut slices = Slices::default();
    let made = made_of(&slices, asked("a", &["x", "y"])).unwrap();
    assert_eq!(made.cdi_names().collect::<Vec<_>>(), ["a", "x", "y"]);
    slices.put(made);
    for (request, taken) in
        [(asked("x", &[]), "x"), (asked("b", &["a"]), "a"), (asked("b", &["z", "y"]), "y"), (asked("b", &["b"]), "b")]
    {
        assert_eq!(made_of(&slices, request), Err(CreateError::Exists { name: taken.into() }));
    }
    assert!(matches!(made_of(&slices, asked("b", &["X"])), Err(CreateError::Name(_))));
}

#[test]
fn variables_that_define_the_slice_cannot_be_overridden() {
    let asked = |name: &str, value: &str| CreateRequest {
        published: Published {
            environment: std::iter::once((name.to_owned(), value.to_owned())).collect(),
            ..Published::default()
        },
        ..request("a", vec![part(None, 10, 0, GIB)])
    };
    let slices = Slices::default();
    for (name, value) in [("LD_PRELOAD", "x"), ("CUDA_VISIBLE_DEVICES", "0"), ("", "x"), ("A=B", "x"), ("A", "\0")] {
        assert!(matches!(made_of(&slices, asked(name, value)), Err(CreateError::Variable(_))), "{name}={value}");
    }
    assert!(made_of(&slices, asked("GPU_MEM", "")).is_ok());
}
