//! Claims: they are prepared once for all pods that use them, and unprepared after the last.

use std::time::Duration;

use aliquot_harness::wait;
use aliquot_test_cluster::{CLAIM_TEMPLATES, CLAIMS, NAMESPACE, NODE_NAME, POD_GROUPS, PODS, SLICES};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use serde_json::json;

use crate::driver::{Behaviour, Driver};
use crate::stage::{DRIVER, Stage, part, pod_with, shared_device};

#[test]
fn a_claim_is_prepared_once_for_two_pods_and_given_back_after_the_last() {
    let stage = Stage::new();
    let driver = Driver::start(&stage, Behaviour::Good);
    stage.publish(&json!([shared_device("gpu-0")]));
    stage.claim("shared", &part(30, "10Gi"));
    stage.cluster.create_pod("one", &pod_with(&["shared"]));
    let pod = stage.cluster.wait_for_phase("one", "Running");
    stage.cluster.create_pod("two", &pod_with(&["shared"]));
    stage.cluster.wait_for_phase("two", "Running");

    let claim: ResourceClaim = stage.cluster.store().get(&CLAIMS, NAMESPACE, "shared").unwrap();
    assert!(stage.cluster.output(&pod).contains(&claim.metadata.uid.unwrap()));
    let results = claim.status.unwrap().allocation.unwrap().devices.unwrap().results.unwrap();
    assert_eq!(results[0].consumed_capacity.as_ref().unwrap()["core"].0, "30");

    stage.cluster.delete_pod("one");
    assert_eq!(driver.calls(), ["prepare shared"]);
    stage.cluster.delete_pod("two");
    assert_eq!(driver.calls()[1..], ["unprepare shared"]);
    wait::until_true("the claim has no devices", || {
        let claim: ResourceClaim = stage.cluster.store().get(&CLAIMS, NAMESPACE, "shared").unwrap();
        claim.status.is_none_or(|status| status.allocation.is_none())
            && claim.metadata.finalizers.is_none_or(|finalizers| finalizers.is_empty())
    });
    assert_eq!(stage.cluster.kubelet().complaints(), Vec::<String>::new());
}

/// A PodGroup is one user, whatever number of pods it has, and stays one until it is gone.
#[test]
fn pods_use_a_claim_that_is_reserved_for_their_group() {
    let stage = Stage::new();
    let driver = Driver::start(&stage, Behaviour::Good);
    stage.publish(&json!([shared_device("gpu-0")]));
    stage.claim("shared", &part(30, "10Gi"));
    let group =
        json!({"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": "workers"}});
    let group = stage.cluster.create(&POD_GROUPS, group);
    let user = json!({
        "apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "workers", "uid": group["metadata"]["uid"],
    });
    let result = json!({"request": "gpu", "driver": DRIVER, "pool": NODE_NAME, "device": "gpu-0",
        "consumedCapacity": {"core": "30", "memory": "10Gi"}, "shareID": "5f1a1c2e-0000-4000-8000-000000000001"});
    let allocation = json!({"devices": {"results": [result]}});
    let store = stage.cluster.store();
    let status = json!({"status": {"allocation": allocation, "reservedFor": [user]}});
    store.merge(&CLAIMS, NAMESPACE, "shared", true, &status).unwrap();
    let bind = |name: &str, group: &str| {
        let mut spec = pod_with(&["shared"]);
        spec["schedulerName"] = "other".into();
        spec["schedulingGroup"] = json!({"podGroupName": group});
        stage.cluster.create_pod(name, &spec);
        store.merge(&PODS, NAMESPACE, name, false, &json!({"spec": {"nodeName": NODE_NAME}})).unwrap();
    };
    // Kubelet asks the driver for each pod that comes before the claim is prepared.
    for name in ["one", "two"] {
        bind(name, "workers");
        stage.cluster.wait_for_phase(name, "Running");
    }
    bind("stranger", "others");
    stage.cluster.wait_for_error("stranger", "pod stranger is not allowed to use ResourceClaim shared");
    assert_eq!(driver.calls(), ["prepare shared"]);
    stage.cluster.delete_pod("stranger");
    stage.cluster.delete_pod("one");
    stage.cluster.delete_pod("two");
    wait::until_true("the claim is given back", || driver.calls().len() == 2);
    let is_reserved = || {
        let claim: ResourceClaim = stage.cluster.store().get(&CLAIMS, NAMESPACE, "shared").unwrap();
        claim.status.is_some_and(|status| status.allocation.is_some() && status.reserved_for.is_some())
    };
    assert!(is_reserved());
    store.delete(&POD_GROUPS, NAMESPACE, "workers", false).unwrap();
    wait::until_true("the claim is nobody's", || !is_reserved());
}

#[test]
fn a_claim_from_a_template_lives_as_long_as_its_pod() {
    let stage = Stage::new();
    let _driver = Driver::start(&stage, Behaviour::Good);
    stage.publish(&json!([shared_device("gpu-0")]));
    let mut exactly = part(30, "10Gi");
    exactly["deviceClassName"] = DRIVER.into();
    stage.cluster.create(
        &CLAIM_TEMPLATES,
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "part"},
            "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
        }),
    );
    let mut spec = pod_with(&["part"]);
    spec["resourceClaims"] = json!([{"name": "part", "resourceClaimTemplateName": "part"}]);
    stage.cluster.create_pod("pod", &spec);
    stage.cluster.wait_for_phase("pod", "Running");
    let claims = || stage.cluster.store().list::<ResourceClaim>(&CLAIMS);
    assert!(claims()[0].metadata.name.as_ref().unwrap().starts_with("pod-part-"));
    stage.cluster.delete_pod("pod");
    wait::until_true("its claim is gone", || claims().is_empty());
}

#[test]
fn a_claim_that_was_deleted_while_its_devices_were_taken_back_goes() {
    let stage = Stage::new();
    // A claim is deallocated in two writes. If another client writes in between, the second one fails: the claim has no
    // devices any more then, and is still protected.
    stage.cluster.create(
        &CLAIMS,
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": "claim", "finalizers": ["resource.kubernetes.io/delete-protection"]},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}},
        }),
    );
    let store = stage.cluster.store();
    // The claim may be gone by now.
    let _ = store.delete(&CLAIMS, NAMESPACE, "claim", false);
    wait::until_true("the claim is gone", || store.count(&CLAIMS) == 0);
}

#[test]
fn all_claims_of_a_pod_go_to_the_driver_in_one_call() {
    let stage = Stage::new();
    let driver = Driver::start(&stage, Behaviour::Good);
    stage.publish(&json!([shared_device("gpu-0")]));
    stage.claim("a", &part(30, "10Gi"));
    stage.claim("b", &part(30, "10Gi"));
    stage.cluster.create_pod("pod", &pod_with(&["a", "b"]));
    stage.cluster.wait_for_phase("pod", "Running");
    assert_eq!(driver.calls(), ["prepare a b"]);
}

#[test]
fn what_a_driver_refuses_or_skips_keeps_the_pod_waiting_until_it_does_it() {
    let stage = Stage::new();
    let driver = Driver::start(&stage, Behaviour::Refuses("no such limit".to_owned()));
    stage.publish(&json!([shared_device("gpu-0")]));
    stage.claim("claim", &part(30, "10Gi"));
    stage.cluster.create_pod("pod", &pod_with(&["claim"]));
    let error = stage.cluster.wait_for_error("pod", "no such limit");
    assert!(error.contains("NodePrepareResources failed for ResourceClaim claim"), "{error}");
    assert!(stage.cluster.events().iter().any(|event| event.starts_with("FailedPrepareDynamicResources: ")));
    driver.behave(Behaviour::Skips);
    stage.cluster.wait_for_error("pod", "skipped 1 ResourceClaims");
    driver.behave(Behaviour::Good);
    stage.cluster.wait_for_phase("pod", "Running");
}

#[test]
fn a_driver_that_speaks_another_version_is_told_so() {
    let stage = Stage::new();
    let driver = Driver::start(&stage, Behaviour::Speaks("v1alpha4.Node".to_owned()));
    wait::until_true("kubelet has refused", || {
        driver.registrations().iter().any(|status| status.error.starts_with("none of services"))
    });
    assert!(!stage.cluster.kubelet().has_driver(DRIVER));
}

#[test]
fn a_driver_whose_socket_has_a_name_that_its_server_refuses_is_never_registered() {
    let stage = Stage::new();
    let _driver = Driver::start_at("test-reg.sock", &stage, Behaviour::Good);
    wait::until_true("kubelet has tried", || {
        let complaints = stage.cluster.kubelet().complaints();
        complaints.iter().any(|complaint| complaint.contains("test-reg.sock: servers refuse the authority"))
    });
    assert!(!stage.cluster.kubelet().has_driver(DRIVER));
}

#[test]
fn a_kubelet_that_starts_again_finds_its_pods_running_and_knows_their_claims() {
    let mut stage = Stage::new();
    let driver = Driver::start(&stage, Behaviour::Good);
    stage.publish(&json!([shared_device("gpu-0")]));
    stage.claim("claim", &part(30, "10Gi"));
    stage.cluster.create_pod("pod", &pod_with(&["claim"]));
    stage.cluster.wait_for_phase("pod", "Running");
    stage.cluster.kill_kubelet();
    stage.cluster.start_kubelet();
    wait::until_true("the driver is registered again", || stage.cluster.kubelet().has_driver(DRIVER));
    stage.cluster.wait_for_phase("pod", "Running");
    stage.cluster.delete_pod("pod");
    assert_eq!(driver.calls(), ["prepare claim", "unprepare claim"]);
}

#[test]
fn a_kubelet_that_starts_again_gives_back_the_claims_of_pods_that_have_ended() {
    let mut stage = Stage::new();
    let driver = Driver::start(&stage, Behaviour::Good);
    stage.publish(&json!([shared_device("gpu-0")]));
    stage.claim("claim", &part(30, "10Gi"));
    stage.cluster.create_pod("pod", &pod_with(&["claim"]));
    stage.cluster.wait_for_phase("pod", "Running");
    stage.cluster.kill_kubelet();
    let ended = json!({"status": {"phase": "Succeeded"}});
    stage.cluster.store().merge(&PODS, NAMESPACE, "pod", true, &ended).unwrap();
    stage.cluster.start_kubelet();
    wait::until_true("the claim is given back", || driver.calls() == ["prepare claim", "unprepare claim"]);
    stage.cluster.delete_pod("pod");
}

#[test]
fn a_driver_that_starts_again_is_found_again_and_keeps_what_it_published() {
    let stage = Stage::new();
    let mut driver = Driver::start(&stage, Behaviour::Good);
    stage.publish(&json!([shared_device("gpu-0")]));
    wait::until_true("the driver is registered", || !driver.registrations().is_empty());
    driver.kill();
    let before = driver.registrations().len();
    driver.serve();
    wait::until_true("the driver is registered again", || driver.registrations().len() > before);
    assert_eq!(stage.cluster.store().list::<ResourceSlice>(&SLICES).len(), 1);
}

#[test]
fn a_driver_that_stays_away_loses_what_it_published() {
    let stage = Stage::with_wipe(Duration::from_millis(300));
    let mut driver = Driver::start(&stage, Behaviour::Good);
    wait::until_true("the driver is registered", || stage.cluster.kubelet().has_driver(DRIVER));
    stage.publish(&json!([shared_device("gpu-0")]));
    driver.stop();
    wait::until_true("its slices are deleted", || stage.cluster.store().count(&SLICES) == 0);
}
