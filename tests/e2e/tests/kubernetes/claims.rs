//! Claims: the slices of their pods, the claims' status, and refused claims.

use aliquot_harness::wait;
use aliquot_test_cluster::NAMESPACE;
use serde_json::json;

use aliquot_test_cluster::{DRIVER, World, request, share};

#[test]
fn a_pod_gets_the_slice_of_its_claim_and_nothing_is_left_of_it() {
    let world = World::on_paper("dra", 2);
    world.wait_for_driver(2);
    let wanted = share(30, 4096);
    world.claim("part", wanted);
    world.pod("pod", &["part"], &[]);
    let pod = world.cluster.wait_for_phase("pod", "Running");
    world.assert_identity(&pod, "part", wanted);
    wait::until_true("the claim's status tells of its device", || {
        let status = world.claim_now("part").status.unwrap();
        let devices = status.devices.unwrap_or_default();
        devices.len() == 1 && devices[0].share_id == world.results("part")[0].share_id
    });
    world.cluster.delete_pod("pod");
    world.wait_until_empty();
    world.assert_no_complaints();
}

#[test]
fn two_pods_that_share_a_claim_share_its_slice_until_the_last_has_ended() {
    let world = World::on_paper("dra", 1);
    world.wait_for_driver(1);
    world.claim("shared", share(50, 1024));
    for name in ["one", "two"] {
        world.pod(name, &["shared"], &[]);
        let pod = world.cluster.wait_for_phase(name, "Running");
        world.assert_identity(&pod, "shared", share(50, 1024));
    }
    assert_eq!(world.slices().len(), 1);
    world.cluster.delete_pod("one");
    assert!(world.slice_of("shared").is_some(), "the second pod's slice is gone");
    world.cluster.delete_pod("two");
    world.wait_until_empty();
}

#[test]
fn several_devices_of_a_claim_are_one_slice_for_every_pod_that_joins() {
    let world = World::on_paper("dra", 3);
    world.wait_for_driver(3);
    let wanted = share(40, 2048);
    world.claim_of("pair", &json!({"requests": [{"name": "gpu", "exactly": request(wanted, 2)}]}));
    world.pod("pod", &["pair"], &[]);
    let pod = world.cluster.wait_for_phase("pod", "Running");
    world.assert_identity(&pod, "pair", wanted);
    let slice = world.slice_of("pair").unwrap();
    assert_eq!(slice.parts.len(), 2);
    assert_ne!(slice.parts[0].device_uuid, slice.parts[1].device_uuid);
    world.pod("second", &["pair"], &[]);
    let second = world.cluster.wait_for_phase("second", "Running");
    world.assert_identity(&second, "pair", wanted);
    world.cluster.delete_pod("pod");
    assert_eq!(world.slice_of("pair").unwrap().id, slice.id);
    world.assert_no_complaints();
}

#[test]
fn a_claim_that_names_no_amounts_has_a_whole_device() {
    let world = World::on_paper("dra", 1);
    world.wait_for_driver(1);
    let exactly = json!({"deviceClassName": DRIVER});
    world.claim_of("whole", &json!({"requests": [{"name": "gpu", "exactly": exactly}]}));
    world.claim("rest", share(1, 1));
    world.pod("pod", &["whole"], &[]);
    world.cluster.wait_for_phase("pod", "Running");
    let slice = world.slice_of("whole").unwrap();
    assert_eq!(slice.parts[0].core_request_percent, 100);
    world.pod("other", &["rest"], &[]);
    world.cluster.wait_for_error("other", "0 of 1 fit");
}

#[test]
fn the_first_alternative_that_fits_is_what_the_slice_is() {
    let world = World::on_paper("dra", 1);
    world.wait_for_driver(1);
    let mut large = request(share(50, 1024), 2);
    let mut small = request(share(20, 512), 1);
    large["name"] = "pair".into();
    small["name"] = "single".into();
    world.claim_of("either", &json!({"requests": [{"name": "gpu", "firstAvailable": [large, small]}]}));
    let mut spec = world.pod_spec(&["either"], &[]);
    // A container may name only the request. Then it gets the allocated alternative, whichever that is.
    spec["containers"][0]["resources"]["claims"][0]["request"] = "gpu".into();
    world.cluster.create_pod("pod", &spec);
    let pod = world.cluster.wait_for_phase("pod", "Running");
    world.assert_identity(&pod, "either", share(20, 512));
}

#[test]
fn parameters_are_obeyed_and_bad_ones_are_refused_with_a_reason() {
    let world = World::on_paper("dra", 1);
    world.wait_for_driver(1);
    let with = |parameters| {
        json!({
            "requests": [{"name": "gpu", "exactly": request(share(10, 64), 1)}],
            "config": [{"opaque": {"driver": DRIVER, "parameters": parameters}}],
        })
    };
    let parameters = |key: &str, value: serde_json::Value| {
        with(json!({"apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "SliceConfig", key: value}))
    };
    world.claim_of("burst", &parameters("coreLimitPercent", json!(80)));
    world.pod("burst", &["burst"], &[]);
    world.cluster.wait_for_phase("burst", "Running");
    let part = &world.slice_of("burst").unwrap().parts[0];
    assert_eq!((part.core_request_percent, part.core_limit_percent), (10, 80));

    for (name, claim, reason) in [
        ("zero", parameters("coreLimitPercent", json!(0)), "coreLimitPercent is 0"),
        ("below", parameters("coreLimitPercent", json!(5)), "5"),
        ("unknown", parameters("burst", json!(true)), "burst"),
        ("class", parameters("priorityClass", json!("urgent")), "urgent"),
        ("memory", parameters("hostMemoryLimit", json!("lots")), "lots"),
        ("kind", with(json!({"apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "Other"})), "Other"),
    ] {
        world.claim_of(name, &claim);
        world.pod(name, &[name], &[]);
        let error = world.cluster.wait_for_error(name, "NodePrepareResources failed for ResourceClaim");
        assert!(error.contains(reason), "{name}: {error}");
        assert!(world.slice_of(name).is_none(), "{name} has a slice");
        wait::until_true("somebody is told", || world.cluster.events().iter().any(|event| event.contains(reason)));
        world.cluster.delete_pod(name);
    }
    assert_eq!(world.slices().len(), 1);
}

#[test]
fn a_container_may_name_only_one_claim_but_a_pod_several() {
    let world = World::on_paper("dra", 1);
    world.wait_for_driver(1);
    world.claim("a", share(10, 64));
    world.claim("b", share(20, 128));
    world.pod("both", &["a", "b"], &[]);
    let error = world.cluster.wait_for_error("both", "NodePrepareResources failed");
    assert!(error.contains("main"), "the container is not named: {error}");
    world.cluster.delete_pod("both");
    world.wait_until_empty();

    let mut spec = world.pod_spec(&["a", "b"], &[]);
    let container = spec["containers"][0].clone();
    spec["containers"] = ["a", "b"]
        .map(|claim| {
            let mut container = container.clone();
            container["name"] = claim.into();
            container["resources"]["claims"] = json!([{"name": claim}]);
            container
        })
        .into();
    world.cluster.create_pod("each", &spec);
    world.cluster.wait_for_phase("each", "Running");
    assert_eq!(world.slices().len(), 2);
}

#[test]
fn a_claim_that_is_made_again_under_its_name_is_another_one() {
    let world = World::on_paper("dra", 1);
    world.wait_for_driver(1);
    for wanted in [share(10, 64), share(20, 128)] {
        world.claim("claim", wanted);
        world.pod("pod", &["claim"], &[]);
        let pod = world.cluster.wait_for_phase("pod", "Running");
        world.assert_identity(&pod, "claim", wanted);
        assert_eq!(world.slices().len(), 1);
        world.delete_everything();
    }
    world.wait_until_empty();
    world.assert_no_complaints();
}

#[test]
fn a_claim_deleted_while_the_node_is_down_leaves_nothing() {
    let mut world = World::on_paper("dra", 1);
    world.wait_for_driver(1);
    world.claim("claim", share(10, 64));
    world.pod("pod", &["claim"], &[]);
    world.cluster.wait_for_phase("pod", "Running");
    // Kubelet loses its state, as when a node is reinstalled, and the cluster deletes all objects.
    world.node.kill();
    world.cluster.kill_kubelet();
    let store = world.cluster.store();
    store.delete(&aliquot_test_cluster::PODS, NAMESPACE, "pod", true).unwrap();
    store.delete(&aliquot_test_cluster::CLAIMS, NAMESPACE, "claim", false).unwrap();
    wait::until_true("the claim is gone", || store.count(&aliquot_test_cluster::CLAIMS) == 0);
    std::fs::remove_dir_all(world.cluster.kubelet_dir()).unwrap();
    world.node.restart();
    world.cluster.start_kubelet();
    world.wait_until_empty();
}

#[test]
fn an_outage_of_the_api_server_delays_pods_and_breaks_nothing() {
    let world = World::on_paper("dra", 1);
    world.wait_for_driver(1);
    world.claim("before", share(10, 64));
    world.claim("during", share(10, 64));
    world.pod("before", &["before"], &[]);
    world.cluster.wait_for_phase("before", "Running");
    world.cluster.api_server().set_out(true);
    world.pod("during", &["during"], &[]);
    world.cluster.wait_for_error("during", "NodePrepareResources failed");
    assert!(world.slice_of("before").is_some());
    world.cluster.api_server().set_out(false);
    world.cluster.api_server().compact();
    let pod = world.cluster.wait_for_phase("during", "Running");
    world.assert_identity(&pod, "during", share(10, 64));
    world.delete_everything();
    world.wait_until_empty();
}
