//! Allocation to claims: shares, whole devices, counters, taints, alternatives, selectors.

use aliquot_test_cluster::{CLAIMS, NAMESPACE, SLICES};
use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use serde_json::{Value, json};

use crate::driver::{Behaviour, Driver};
use crate::stage::{DRIVER, Stage, part, pod_with, shared_device, slice};

fn results(stage: &Stage, claim: &str) -> Vec<DeviceRequestAllocationResult> {
    let claim: ResourceClaim = stage.cluster.store().get(&CLAIMS, NAMESPACE, claim).unwrap();
    claim.status.unwrap().allocation.unwrap().devices.unwrap().results.unwrap()
}

/// Makes a pod for the claim, and waits until the claim has its devices.
fn run(stage: &Stage, claim: &str) -> Vec<DeviceRequestAllocationResult> {
    stage.cluster.create_pod(claim, &pod_with(&[claim]));
    stage.cluster.wait_for_phase(claim, "Running");
    results(stage, claim)
}

#[test]
fn shares_of_a_device_never_exceed_it() {
    let stage = Stage::new();
    let _driver = Driver::start(&stage, Behaviour::Good);
    stage.publish(&json!([shared_device("gpu-0")]));
    stage.claim("first", &part(60, "10Gi"));
    stage.claim("second", &part(60, "10Gi"));
    let first = run(&stage, "first");
    stage.cluster.create_pod("second", &pod_with(&["second"]));
    stage.cluster.wait_for_error("second", "0 of 1 fit");
    stage.cluster.delete_pod("first");
    stage.cluster.wait_for_phase("second", "Running");
    assert_ne!(results(&stage, "second")[0].share_id, first[0].share_id);
}

#[test]
fn a_selector_chooses_and_the_first_alternative_that_fits_is_taken() {
    let stage = Stage::new();
    let _driver = Driver::start(&stage, Behaviour::Good);
    let mut other = shared_device("gpu-1");
    other["attributes"]["model"] = json!({"string": "A100"});
    stage.publish(&json!([shared_device("gpu-0"), other]));
    let select = |expression: String| json!([{"cel": {"expression": expression}}]);
    let mut wanted = part(10, "1Gi");
    wanted["selectors"] = select(format!("device.attributes['{DRIVER}'].model == 'A100'"));
    stage.claim("chosen", &wanted);
    assert_eq!(run(&stage, "chosen")[0].device, "gpu-1");

    let large = select(format!("device.capacity['{DRIVER}'].memory.compareTo(quantity('100Gi')) > 0"));
    stage.claim_of(
        "alternatives",
        &json!({"requests": [{"name": "gpu", "firstAvailable": [
            {"name": "large", "deviceClassName": DRIVER, "selectors": large},
            {"name": "part", "deviceClassName": DRIVER, "capacity": {"requests": {"core": "5", "memory": "1Gi"}}},
        ]}]}),
    );
    let result = &run(&stage, "alternatives")[0];
    assert_eq!((result.request.as_str(), result.device.as_str()), ("gpu/part", "gpu-0"));
}

#[test]
fn nothing_is_given_out_of_a_pool_that_is_not_complete() {
    let stage = Stage::new();
    let _driver = Driver::start(&stage, Behaviour::Good);
    stage.cluster.create(&SLICES, slice("slice-1", 2, &json!([shared_device("gpu-0")])));
    stage.claim("claim", &part(10, "1Gi"));
    stage.cluster.create_pod("claim", &pod_with(&["claim"]));
    stage.cluster.wait_for_error("claim", "0 of 1 fit");
    stage.cluster.create(&SLICES, slice("slice-2", 2, &json!([shared_device("gpu-1")])));
    stage.cluster.wait_for_phase("claim", "Running");
}

#[test]
fn a_tainted_device_is_given_only_to_who_tolerates_it() {
    let stage = Stage::new();
    let _driver = Driver::start(&stage, Behaviour::Good);
    let mut ill = shared_device("gpu-0");
    ill["taints"] = json!([{"key": "gpu.example.org/unhealthy", "effect": "NoSchedule"}]);
    stage.publish(&json!([ill]));
    let mut tolerant = part(10, "1Gi");
    tolerant["tolerations"] = json!([{"key": "gpu.example.org/unhealthy", "operator": "Exists"}]);
    stage.claim("tolerant", &tolerant);
    stage.claim("other", &part(10, "1Gi"));
    assert_eq!(run(&stage, "tolerant")[0].device, "gpu-0");
    stage.cluster.create_pod("other", &pod_with(&["other"]));
    stage.cluster.wait_for_error("other", "0 of 1 fit");
}

#[test]
fn partitions_share_the_counters_of_their_device() {
    let stage = Stage::new();
    let _driver = Driver::start(&stage, Behaviour::Good);
    let mut counters = slice("counters", 2, &Value::Null);
    let spec = counters["spec"].as_object_mut().unwrap();
    spec.remove("devices");
    spec.insert("sharedCounters".to_owned(), json!([{"name": "gpu-0", "counters": {"slices": {"value": "7"}}}]));
    stage.cluster.create(&SLICES, counters);
    let partition = |name: &str, slices: &str| {
        let counters = json!({"slices": {"value": slices}});
        json!({"name": name, "consumesCounters": [{"counterSet": "gpu-0", "counters": counters}]})
    };
    let devices = json!([partition("large", "4"), partition("middle", "3"), partition("small", "1")]);
    stage.cluster.create(&SLICES, slice("partitions", 2, &devices));
    for claim in ["a", "b", "c"] {
        stage.claim(claim, &json!({}));
    }
    assert_eq!(run(&stage, "a")[0].device, "large");
    assert_eq!(run(&stage, "b")[0].device, "middle");
    stage.cluster.create_pod("c", &pod_with(&["c"]));
    stage.cluster.wait_for_error("c", "0 of 1 fit");
}
