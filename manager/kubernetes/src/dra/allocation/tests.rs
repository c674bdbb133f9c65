//! Claims as the scheduler leaves them, and the slices that they become.

use serde_json::{Value, json};

use super::*;
use crate::device_plugin::test_node::partitionable;

const UID: &str = "3f0c1d2e-0000-4000-8000-000000000001";
const GIB: u64 = 1 << 30;

fn gpu(uuid: &str) -> Device {
    Device {
        uuid: uuid.into(),
        index: 0,
        model: "NVIDIA A100".into(),
        memory_bytes: 80 * GIB,
        compute_capability: Some((8, 0)),
        pci_bus_id: None,
        pcie_root: None,
        numa_node: None,
        nvlink_peers: Vec::new(),
        is_partitioned: false,
        partitioning: None,
        mig_instance: None,
        enforcement: aliquot_node::Enforcement::Shares,
        problem: None,
    }
}

fn devices() -> Devices {
    let partitioned = Device { is_partitioned: true, ..gpu("GPU-M") };
    Devices { devices: vec![gpu("GPU-A"), gpu("GPU-B"), partitioned], ..Devices::default() }
}

fn result(request: &str, device: &str, core: &str, memory: &str) -> Value {
    json!({
        "request": request, "driver": DRIVER, "pool": "node-1", "device": device, "shareID": format!("share-{request}"),
        "consumedCapacity": {"core": core, "memory": memory},
    })
}

fn config(source: &str, requests: &[&str], fields: Value) -> Value {
    let mut parameters = json!({"apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "SliceConfig"});
    parameters.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({"source": source, "requests": requests, "opaque": {"driver": DRIVER, "parameters": parameters}})
}

fn claim(results: Value, configs: Value) -> ResourceClaim {
    serde_json::from_value(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "train", "namespace": "team", "uid": UID},
        "spec": {},
        "status": {"allocation": {"devices": {"results": results, "config": configs}}},
    }))
    .unwrap()
}

/// The whole claim as one slice.
fn resolved(results: Value, configs: Value) -> Result<ClaimSlice, AllocationError> {
    resolved_on(&claim(results, configs), &ClaimUid::parse(UID).unwrap(), &devices())
}

fn resolved_on(claim: &ResourceClaim, uid: &ClaimUid, devices: &Devices) -> Result<ClaimSlice, AllocationError> {
    let all = requests(claim, uid)?;
    Ok(resolve(claim, uid, "node-1", devices, &[all])?.remove(0))
}

fn refusal(results: Value, configs: Value) -> String {
    resolved(results, configs).unwrap_err().to_string()
}

#[test]
fn a_share_of_a_device_becomes_a_slice_with_that_part() {
    let allocation = resolved(json!([result("gpu", "gpu-a", "30", "8Gi")]), json!([])).unwrap();
    let part = Part {
        device_uuid: "GPU-A".into(),
        core_request_percent: 30,
        core_limit_percent: 30,
        memory_limit_bytes: 8 * GIB,
    };
    assert_eq!(allocation.slice.name, format!("claim-{UID}"));
    assert_eq!(allocation.slice.parts, [part]);
    assert_eq!(allocation.slice.description, "claim team/train");
    assert_eq!((allocation.slice.qos_class, allocation.slice.audit_policy), (None, None));
    let device = AllocatedDevice {
        request: "gpu".into(),
        pool: "node-1".into(),
        device: "gpu-a".into(),
        share_id: Some("share-gpu".into()),
        ..AllocatedDevice::default()
    };
    assert_eq!(allocation.devices, [device]);
}

/// The scheduler's tests compare their output with the same file.
#[test]
fn what_aliquots_scheduler_allocates_becomes_a_slice() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../scheduler/kubernetes/tests/claims/allocation.json");
    let mut allocation: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    // The scheduler adds the share's id when it writes the allocation.
    allocation["devices"]["results"][0]["shareID"] = json!(UID);
    let mut claim = claim(json!([]), json!([]));
    claim.status.get_or_insert_default().allocation = Some(serde_json::from_value(allocation).unwrap());
    let uid = ClaimUid::parse(UID).unwrap();
    let devices = Devices { devices: vec![gpu("GPU-0")], ..Devices::default() };
    let slices = resolve(&claim, &uid, "n", &devices, &[requests(&claim, &uid).unwrap()]).unwrap();
    let part = Part {
        device_uuid: "GPU-0".into(),
        core_request_percent: 25,
        core_limit_percent: 60,
        memory_limit_bytes: 2 * GIB,
    };
    assert_eq!(slices[0].slice.parts, [part]);
    assert_eq!(slices[0].slice.qos_class, Some(QosClass::Batch));
    assert_eq!(slices[0].devices[0].share_id.as_deref(), Some(UID));
}

#[test]
fn a_device_without_consumed_capacity_is_allocated_as_a_whole() {
    let whole = json!([{"request": "gpu", "driver": DRIVER, "pool": "node-1", "device": "gpu-b"}]);
    let allocation = resolved(whole, json!([])).unwrap();
    let part = &allocation.slice.parts[0];
    assert_eq!((part.core_request_percent, part.memory_limit_bytes), (100, 80 * GIB));
}

#[test]
fn several_devices_are_one_slice_and_other_drivers_are_left_alone() {
    let mut other = result("nic", "nic-0", "1", "1");
    other["driver"] = json!("net.example.com");
    let results = json!([result("a", "gpu-a", "30", "8Gi"), other, result("b", "gpu-b", "50", "16Gi")]);
    let allocation = resolved(results, json!([])).unwrap();
    let cores: Vec<u32> = allocation.slice.parts.iter().map(|part| part.core_request_percent).collect();
    assert_eq!((cores, allocation.devices.len()), (vec![30, 50], 2));
    assert_eq!(allocation.requests(), BTreeSet::from(["a".into(), "b".into()]));
}

#[test]
fn each_set_of_requests_is_a_slice_of_its_own() {
    let results = json!([
        result("a", "gpu-a", "30", "8Gi"),
        result("b", "gpu-a", "50", "16Gi"),
        result("c/large", "gpu-b", "70", "32Gi"),
    ]);
    let configs = json!([
        config("FromClaim", &["a"], json!({"priorityClass": "batch"})),
        config("FromClaim", &["c"], json!({"priorityClass": "standard"})),
    ]);
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let uid = ClaimUid::parse(UID).unwrap();
    let division = [set(&["a"]), set(&["b", "c"])];
    let slices = resolve(&claim(results, configs), &uid, "node-1", &devices(), &division).unwrap();
    assert_eq!(slices.iter().map(ClaimSlice::requests).collect::<Vec<_>>(), division);
    let names: Vec<&str> = slices.iter().map(|slice| slice.slice.name.as_str()).collect();
    assert_eq!(names, [format!("claim-{UID}.0"), format!("claim-{UID}.1")]);
    assert_eq!(slices[1].slice.description, "claim team/train, b, c");
    for slice in &slices {
        assert_eq!(described(&slice.slice.description), Some(("team".into(), "train".into())));
    }
    let cores = |slice: &ClaimSlice| -> Vec<(String, u32)> {
        slice.slice.parts.iter().map(|part| (part.device_uuid.clone(), part.core_request_percent)).collect()
    };
    assert_eq!(cores(&slices[0]), [("GPU-A".into(), 30)]);
    assert_eq!(cores(&slices[1]), [("GPU-A".into(), 50), ("GPU-B".into(), 70)]);
    let classes = slices.iter().map(|slice| slice.slice.qos_class).collect::<Vec<_>>();
    assert_eq!(classes, [Some(QosClass::Batch), Some(QosClass::Standard)]);
}

#[test]
fn two_shares_of_one_device_are_one_part() {
    let results = json!([result("a", "gpu-a", "30", "8Gi"), result("b", "gpu-a", "50", "16Gi")]);
    let configs = json!([config("FromClaim", &["a"], json!({"coreLimitPercent": 90}))]);
    let allocation = resolved(results, configs).unwrap();
    let part = Part {
        device_uuid: "GPU-A".into(),
        core_request_percent: 80,
        core_limit_percent: 100,
        memory_limit_bytes: 24 * GIB,
    };
    assert_eq!(allocation.slice.parts, [part]);
    let shares: Vec<Option<&str>> = allocation.devices.iter().map(|device| device.share_id.as_deref()).collect();
    assert_eq!(shares, [Some("share-a"), Some("share-b")]);
    let results = json!([result("a", "gpu-a", "60", "8Gi"), result("b", "gpu-a", "50", "16Gi")]);
    assert_eq!(
        refusal(results, json!([])),
        "the requests of the claim have 110 percent of device gpu-a in sum; at most 100 are possible"
    );
}

#[test]
fn an_alternative_of_a_prioritised_list_answers_the_list() {
    let configs = json!([config("FromClaim", &["gpu/large"], json!({"coreLimitPercent": 100}))]);
    let allocation = resolved(json!([result("gpu/large", "gpu-a", "30", "8Gi")]), configs.clone()).unwrap();
    assert_eq!(allocation.devices[0].request, "gpu");
    assert_eq!(allocation.slice.parts[0].core_limit_percent, 100);
    let other = resolved(json!([result("gpu/small", "gpu-a", "30", "8Gi")]), configs).unwrap();
    assert_eq!(other.slice.parts[0].core_limit_percent, 30);
}

#[test]
fn what_the_claim_says_overrides_what_its_class_says() {
    let configs = json!([
        config("FromClaim", &["gpu"], json!({"coreLimitPercent": 90})),
        config("FromClass", &[], json!({"coreLimitPercent": 50, "priorityClass": "batch", "auditPolicy": "stop"})),
        {"source": "FromClass", "requests": [], "opaque": {"driver": "net.example.com", "parameters": {"x": 1}}},
    ]);
    let slice = resolved(json!([result("gpu", "gpu-a", "30", "8Gi")]), configs).unwrap().slice;
    assert_eq!(slice.parts[0].core_limit_percent, 90);
    assert_eq!(slice.qos_class, Some(QosClass::Batch));
    assert_eq!(slice.audit_policy, Some(AuditPolicy::Stop));
}

#[test]
fn a_claim_cannot_loosen_what_its_class_says() {
    let configs = json!([
        config("FromClaim", &["gpu"], json!({"auditPolicy": "report", "hostMemoryLimit": "0"})),
        config("FromClass", &["gpu"], json!({"auditPolicy": "stop", "hostMemoryLimit": "4Gi"})),
    ]);
    let slice = resolved(json!([result("gpu", "gpu-a", "30", "8Gi")]), configs).unwrap().slice;
    assert_eq!((slice.audit_policy, slice.host_memory_limit_bytes), (Some(AuditPolicy::Stop), 4 * GIB));
}

#[test]
fn a_slice_has_one_priority_class() {
    let results = json!([result("a", "gpu-a", "30", "8Gi"), result("b", "gpu-b", "50", "16Gi")]);
    let of = |request: &str, class: &str| config("FromClaim", &[request], json!({"priorityClass": class}));
    let refused = refusal(results.clone(), json!([of("a", "batch"), of("b", "standard")]));
    assert!(refused.starts_with(r#"the requests {"a", "b"} have different values of priorityClass"#), "{refused}");
    let one = resolved(results, json!([of("a", "batch")])).unwrap();
    assert_eq!(one.slice.qos_class, Some(QosClass::Batch));
}

#[test]
fn what_cannot_be_prepared_is_refused_with_a_reason() {
    let good = || result("gpu", "gpu-a", "30", "8Gi");
    let with = |key: &str, value: Value| {
        let mut result = good();
        result[key] = value;
        json!([result])
    };
    let limit = json!([config("FromClaim", &[], json!({"coreLimitPercent": 20}))]);
    for (results, configs, expected) in [
        (json!([]), json!([]), "the claim has no device of gpu.aliquot.dev"),
        (with("pool", json!("node-2")), json!([]), "device gpu-a of pool node-2; this node's is node-1"),
        (with("adminAccess", json!(true)), json!([]), "administrative access"),
        (with("device", json!("gpu-z")), json!([]), "device gpu-z is not there any more"),
        (with("device", json!("gpu-m")), json!([]), "device gpu-m is not there any more"),
        (with("consumedCapacity", json!({"core": "0"})), json!([]), "core \"0\" of device gpu-a; it must be 1 to 100"),
        (with("consumedCapacity", json!({"core": "101"})), json!([]), "core \"101\""),
        (with("consumedCapacity", json!({"core": "500m"})), json!([]), "core \"500m\""),
        (with("consumedCapacity", json!({"memory": "81Gi"})), json!([]), "memory \"81Gi\""),
        (json!([good()]), limit, "coreLimitPercent is 20, below the 30 percent"),
        (json!([good()]), json!([config("FromClaim", &[], json!({"x": 1}))]), "unknown field `x`"),
    ] {
        let refused = refusal(results, configs);
        assert!(refused.contains(expected), "{expected}: {refused}");
    }
}

#[test]
fn nobody_deletes_a_pod_because_the_driver_is_not_loaded_yet() {
    let claim = claim(json!([result("gpu", "gpu-a", "30", "8Gi")]), json!([]));
    let devices = Devices { problem: Some("libnvidia-ml.so.1: not found".into()), ..Devices::default() };
    let refused = resolved_on(&claim, &ClaimUid::parse(UID).unwrap(), &devices).unwrap_err().to_string();
    assert_eq!(
        refused,
        "device gpu-a is not known, because the driver does not answer (libnvidia-ml.so.1: not found); kubelet tries \
         again"
    );
}

#[test]
fn a_claim_of_the_same_name_is_not_taken_for_it() {
    let uid = ClaimUid::parse("3f0c1d2e-0000-4000-8000-000000000002").unwrap();
    let other = requests(&claim(json!([]), json!([])), &uid);
    assert_eq!(other, Err(AllocationError::OtherClaim { found: UID.into() }));
    let mut unallocated = claim(json!([]), json!([]));
    unallocated.status = None;
    let uid = ClaimUid::parse(UID).unwrap();
    assert_eq!(requests(&unallocated, &uid), Err(AllocationError::NotAllocated));
}

#[test]
fn an_instance_to_be_made_is_no_part_before_it_is_there() {
    let devices = Devices { devices: vec![partitionable(0), gpu("GPU-A")], ..Devices::default() };
    let name = "gpu-00000000-0000-0000-0000-000000000000-2g-20gb-2";
    let results = json!([{"request": "mig", "driver": DRIVER, "pool": "node-1", "device": name}]);
    let uid = ClaimUid::parse(UID).unwrap();
    let resolved = |configs: Value| resolved_on(&claim(results.clone(), configs), &uid, &devices);
    let allocation = resolved(json!([])).unwrap();
    assert_eq!(allocation.slice.parts, []);
    let partition = allocation.devices[0].partition.as_ref().unwrap();
    assert_eq!(partition.to_string(), "MIG instance 2g.20gb at 2:2 of GPU-00000000-0000-0000-0000-000000000000");
    let limited = resolved(json!([config("FromClaim", &[], json!({"coreLimitPercent": 50}))])).unwrap_err();
    assert!(matches!(limited, AllocationError::LimitBelowRequest { limit: 50, request: 100, .. }), "{limited}");
}
