//! The content for the API server, within the limits that the server sets.

use std::sync::Arc;

use aliquot_node::MigInstance;
use proptest::prelude::*;

use super::*;
use crate::device_plugin::test_node::partitionable;

fn gpu(uuid: &str) -> node::Device {
    node::Device {
        uuid: uuid.into(),
        index: 0,
        model: "NVIDIA H100 80GB HBM3".into(),
        memory_bytes: 85_520_809_984 + 4096,
        compute_capability: Some((9, 0)),
        pci_bus_id: Some("0000:3b:00.0".into()),
        pcie_root: Some("pci0000:3a".into()),
        numa_node: Some(1),
        nvlink_peers: Vec::new(),
        is_partitioned: false,
        partitioning: None,
        mig_instance: None,
        enforcement: aliquot_node::Enforcement::Shares,
        problem: None,
    }
}

fn node(devices: Vec<node::Device>) -> Devices {
    Devices { driver_version: "580.65.06".into(), cuda_version: "13.0".into(), devices, problem: None }
}

const ALL: Support = Support { taints: true, counters: true, shares: true };

fn devices(node: &Devices, support: Support) -> Vec<Device> {
    content(&View { devices: Arc::new(node.clone()), own: BTreeSet::new() }, support).devices
}

fn attribute(device: &Device, name: &str) -> DeviceAttribute {
    device.attributes.as_ref().and_then(|attributes| attributes.get(name)).cloned().unwrap_or_default()
}

#[test]
fn a_gpu_is_told_with_its_attributes_and_capacities() {
    let devices = devices(&node(vec![gpu("GPU-A")]), ALL);
    let [device] = devices.as_slice() else { panic!("{devices:?}") };
    assert_eq!(device.name, "gpu-a");
    assert_eq!(device.allow_multiple_allocations, Some(true));
    assert_eq!(device.taints, None);
    let texts = ["uuid", "type", "productName", "architecture"].map(|name| attribute(device, name).string);
    let expected = ["GPU-A", "gpu", "NVIDIA H100 80GB HBM3", "Hopper"].map(|text| Some(text.to_owned()));
    assert_eq!(texts, expected);
    let versions = ["computeCapability", "driverVersion", "cudaVersion"].map(|name| attribute(device, name).version);
    assert_eq!(versions, ["9.0.0", "580.65.6", "13.0.0"].map(|text| Some(text.to_owned())));
    assert_eq!(attribute(device, "healthy").bool, Some(true));
    assert_eq!(attribute(device, "resource.kubernetes.io/numaNode").int, Some(1));
    assert_eq!(attribute(device, "resource.kubernetes.io/pcieRoot").string.as_deref(), Some("pci0000:3a"));
    // It has no connection to another device.
    assert_eq!(attribute(device, "nvlinkClique").string.as_deref(), Some("GPU-A"));
    let memory = &device.capacity.as_ref().unwrap()[MEMORY];
    assert_eq!(memory.value.0, "81559Mi");
    let policy = memory.request_policy.as_ref().unwrap();
    assert_eq!(policy.default.as_ref().unwrap().0, "81559Mi");
    let range = policy.valid_range.as_ref().unwrap();
    let (min, step, max) = (&range.min.0, &range.step.as_ref().unwrap().0, &range.max.as_ref().unwrap().0);
    assert_eq!((min.as_str(), step.as_str(), max.as_str()), ("1Mi", "1Mi", "81559Mi"));
}

#[test]
fn a_device_of_which_nothing_is_known_has_every_attribute_and_is_like_no_other() {
    let unknown = |uuid: &str| node::Device {
        model: String::new(),
        compute_capability: None,
        pci_bus_id: None,
        pcie_root: None,
        numa_node: None,
        ..gpu(uuid)
    };
    let names = |device: &Device| -> Vec<String> { device.attributes.as_ref().unwrap().keys().cloned().collect() };
    let all = devices(&node(vec![gpu("GPU-A"), partitionable(1)]), ALL);
    let bare = Devices { devices: vec![unknown("GPU-C"), unknown("GPU-D")], ..Devices::default() };
    let bare = devices(&bare, ALL);
    let own =
        |device: &Device| -> Vec<String> { names(device).into_iter().filter(|name| !name.contains('/')).collect() };
    let expected = [
        "architecture",
        "computeCapability",
        "cudaVersion",
        "driverVersion",
        "healthy",
        "migPlacement",
        "migProfile",
        "nvlinkClique",
        "parentUUID",
        "productName",
        "type",
        "uuid",
    ];
    assert!(all.len() > 2);
    for device in all.iter().chain(&bare) {
        assert_eq!(own(device), expected, "{}", device.name);
    }
    assert_eq!(names(&bare[0]).len(), expected.len());
    assert_eq!(attribute(&bare[0], "computeCapability").version.as_deref(), Some("0.0.0"));
    assert_eq!(attribute(&bare[0], "architecture").string.as_deref(), Some(""));
    for name in ["nvlinkClique", "parentUUID", "uuid"] {
        assert_ne!(attribute(&bare[0], name), attribute(&bare[1], name), "{name}");
    }
    let offers: BTreeSet<Option<String>> =
        all[1..].iter().map(|offer| attribute(offer, "nvlinkClique").string).collect();
    assert_eq!(offers.len(), all.len() - 1);
}

#[test]
fn instances_are_told_in_place_of_the_gpu_that_is_partitioned() {
    let instance = node::Device {
        mig_instance: Some(MigInstance { gpu_uuid: "GPU-A".into(), profile: "3g.40gb".into(), placement: None }),
        ..gpu("MIG-B")
    };
    let partitioned = node::Device { is_partitioned: true, ..gpu("GPU-A") };
    let devices = devices(&node(vec![partitioned, instance]), ALL);
    let [device] = devices.as_slice() else { panic!("{devices:?}") };
    assert_eq!(device.name, "mig-b");
    let texts = ["type", "parentUUID", "migProfile"].map(|name| attribute(device, name).string);
    assert_eq!(texts, ["mig", "GPU-A", "3g.40gb"].map(|text| Some(text.to_owned())));
}

#[test]
fn an_ill_device_has_a_taint_or_is_left_out() {
    let ill = node::Device { problem: Some("XID 79".into()), ..gpu("GPU-A") };
    let node = node(vec![ill, gpu("GPU-B")]);
    let tainted = devices(&node, ALL);
    let effects: Vec<usize> = tainted.iter().map(|device| device.taints.iter().flatten().count()).collect();
    assert_eq!(effects, [1, 0]);
    assert_eq!(attribute(&tainted[0], "healthy").bool, Some(false));
    let names: Vec<String> =
        devices(&node, Support { taints: false, ..ALL }).into_iter().map(|device| device.name).collect();
    assert_eq!(names, ["gpu-b"]);
}

#[test]
fn devices_that_nvlink_connects_have_one_clique() {
    let linked = |uuid: &str, peers: &[&str]| node::Device {
        nvlink_peers: peers.iter().map(|&peer| peer.to_owned()).collect(),
        ..gpu(uuid)
    };
    let node = [linked("GPU-C", &["GPU-B"]), linked("GPU-B", &["GPU-A"]), linked("GPU-A", &[]), linked("GPU-D", &[])];
    let cliques = nvlink_cliques(&node);
    assert_eq!(cliques, BTreeMap::from([("GPU-A", "GPU-A"), ("GPU-B", "GPU-A"), ("GPU-C", "GPU-A")]));
}

#[test]
fn a_version_that_is_not_numbers_is_not_told() {
    for (version, expected) in
        [("580.65.06", Some("580.65.6")), ("13", Some("13.0.0")), ("", None), ("1.2.3.4", None), ("535-open", None)]
    {
        assert_eq!(semantic(version).as_deref(), expected, "{version}");
    }
}

#[test]
fn amounts_are_written_as_the_api_server_writes_them() {
    for (bytes, expected) in [(1, "1"), (1 << 20, "1Mi"), (80 << 30, "80Gi"), (81559 << 20, "81559Mi")] {
        assert_eq!(binary(bytes), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn whatever_the_driver_says_stays_within_the_limits(
        model in ".{0,100}",
        driver_version in ".{0,20}",
        uuid in "(GPU|MIG)-[0-9a-f-]{0,70}",
        memory_bytes in 2_u64 << 20..,
        capability in proptest::option::of((0_u32.., 0_u32..)),
    ) {
        let device = node::Device { model, memory_bytes, compute_capability: capability, ..gpu(&uuid) };
        let mut node = node(vec![device]);
        node.driver_version = driver_version;
        for device in devices(&node, ALL) {
            prop_assert!((1..=63).contains(&device.name.len()));
            let attributes = device.attributes.unwrap_or_default();
            prop_assert!(attributes.len() + device.capacity.iter().flatten().count() <= 32);
            for (name, attribute) in attributes {
                let bare = name.rsplit('/').next().unwrap_or_default();
                prop_assert!(bare.len() <= 32 && bare.bytes().all(|byte| byte.is_ascii_alphanumeric()));
                let text = attribute.string.or(attribute.version).unwrap_or_default();
                prop_assert!(text.len() <= 64);
            }
            let quantity = |text: &str| aliquot_dialects::quantity::whole(text).ok();
            let memory = &device.capacity.as_ref().unwrap()[MEMORY];
            let value = quantity(&memory.value.0).unwrap();
            prop_assert!(value <= memory_bytes && memory_bytes - value < MEMORY_STEP_BYTES);
        }
    }
}

#[test]
fn an_instance_that_could_be_made_goes_to_one_claim_as_a_whole() {
    let mut gpu = partitionable(0);
    gpu.problem = Some("XID 79".into());
    let view = View { devices: Arc::new(node(vec![gpu])), own: BTreeSet::new() };
    let told = content(&view, ALL);
    assert_eq!((told.devices.len(), told.counter_sets.len()), (7, 1));
    let device = &told.devices[5];
    assert_eq!(device.name, "gpu-00000000-0000-0000-0000-000000000000-2g-20gb-2");
    assert_eq!((device.allow_multiple_allocations, device.taints.iter().flatten().count()), (None, 1));
    let texts = ["type", "parentUUID", "migProfile", "migPlacement"].map(|name| attribute(device, name).string);
    let expected = ["mig", "GPU-00000000-0000-0000-0000-000000000000", "2g.20gb", "2:2"];
    assert_eq!(texts, expected.map(|text| Some(text.to_owned())));
    // An instance has no UUID before it is made.
    assert_eq!(attribute(device, "uuid"), text(""));
    let capacity = device.capacity.as_ref().unwrap();
    assert_eq!((capacity[MEMORY].value.0.as_str(), capacity[CORE].value.0.as_str()), ("20Gi", "100"));
    assert!(capacity.values().all(|capacity| capacity.request_policy.is_none()));
    let taken: Vec<&String> = device.consumes_counters.as_ref().unwrap()[0].counters.keys().collect();
    assert_eq!(taken, ["compute-slices", "memory-slice-2", "memory-slice-3"]);
    // Without counters the scheduler would not see that they exclude each other, and without taints not that they are
    // unhealthy.
    for support in [Support { counters: false, ..ALL }, Support { taints: false, ..ALL }] {
        assert_eq!(content(&view, support), Content::default());
    }
}
