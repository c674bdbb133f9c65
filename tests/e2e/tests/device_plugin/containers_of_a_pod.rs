//! Init containers and sidecars: kubelet gives the units of an init container to the containers that start after it.

use aliquot_harness::{MIB, wait};
use aliquot_test_cluster::World;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::stage::{
    CORE, MEMORY, container, delete, on_paper, on_paper_without_grace, part, share_of, spec, variables, wait_for_plugin,
};

/// The command of a container that ends at once.
const ENDS: [&str; 1] = ["true"];

/// Creates a pod of these init containers and containers, and waits until it runs.
fn run(world: &World, init_containers: &[Value], containers: &[Value]) -> Pod {
    world.cluster.create_pod("pod", &spec(init_containers, containers));
    world.cluster.wait_for_phase("pod", "Running")
}

/// The device that a running or ended container was given.
fn device(world: &World, pod: &Pod, container: &str) -> Option<String> {
    variables(world, pod, container).remove("ALIQUOT_DEVICES")
}

#[test]
fn an_init_container_that_asks_for_no_device_has_none() {
    let world = on_paper(1);
    let init = container(&world, "init", &json!({}), &ENDS);
    let pod = run(&world, &[init], &[container(&world, "main", &part(30, 8), &[])]);
    assert_eq!(device(&world, &pod, "init"), None);
    assert_eq!(share_of(&world, "pod", "main"), Some((30, 2048 * MIB)));
}

#[test]
fn an_init_container_s_slice_makes_way_for_those_that_come_after_it() {
    let world = on_paper(1);
    // Together they ask for more than the device has.
    let init = container(&world, "init", &part(90, 300), &ENDS);
    let pod = run(&world, &[init], &[container(&world, "main", &part(80, 200), &[])]);
    assert!(device(&world, &pod, "init").is_some());
    assert_eq!(share_of(&world, "pod", "main"), Some((80, 200 * 256 * MIB)));
    assert_eq!(world.slices().len(), 1);
    // They had regions of their own.
    let region = |container: &str| {
        let got = world.cluster.output_of(&pod, container);
        got.lines().find(|line| line.contains("/slices/")).map(str::to_owned)
    };
    assert!(region("init").is_some());
    assert_ne!(region("init"), region("main"));
    world.assert_no_complaints();
}

#[test]
fn an_init_container_that_asks_as_the_container_does_gets_the_same_slice() {
    let world = on_paper(1);
    let both =
        ["init", "main"].map(|name| container(&world, name, &part(60, 200), if name == "init" { &ENDS } else { &[] }));
    let pod = run(&world, &both[..1], &both[1..]);
    assert!(device(&world, &pod, "init").is_some());
    assert_eq!(share_of(&world, "pod", "main"), Some((60, 200 * 256 * MIB)));
    assert_eq!(world.slices().len(), 1);
}

#[test]
fn containers_with_equal_units_of_one_resource_are_told_apart_by_the_other() {
    let world = on_paper(1);
    for (number, (init, main)) in [
        (part(50, 16), part(30, 16)),
        (part(30, 16), part(50, 16)),
        (json!({CORE: "40"}), part(40, 16)),
        (part(40, 16), json!({CORE: "40"})),
        (json!({MEMORY: "32"}), part(40, 32)),
    ]
    .into_iter()
    .enumerate()
    {
        let (init, wanted) = (container(&world, "init", &init, &ENDS), &main);
        let pod = run(&world, &[init], &[container(&world, "main", wanted, &[])]);
        assert!(device(&world, &pod, "init").is_some());
        let core = wanted[CORE].as_str().unwrap().parse().unwrap();
        let memory = wanted[MEMORY].as_str().map_or(32 << 30, |units| units.parse::<u64>().unwrap() * 256 * MIB);
        assert_eq!(share_of(&world, "pod", "main"), Some((core, memory)), "case {number}");
        assert_eq!(world.slices().len(), 1, "case {number}");
        delete(&world, ["pod"]);
    }
}

#[test]
fn an_init_container_alone_may_have_a_device_for_as_long_as_it_runs() {
    let world = on_paper_without_grace(1);
    wait_for_plugin(&world, 1);
    let init = container(&world, "init", &part(30, 8), &[]);
    world.cluster.create_pod("pod", &spec(&[init], &[container(&world, "main", &json!({}), &[])]));
    wait::until_true("the init container has its slice", || share_of(&world, "pod", "init") == Some((30, 2048 * MIB)));
    // The slice stays until the pod is gone although nothing runs in it, also while the plugin checks other slices.
    let other = container(&world, "main", &part(10, 4), &[]);
    world.cluster.create_pod("other", &spec(&[], &[other]));
    world.cluster.wait_for_phase("other", "Running");
    delete(&world, ["other"]);
    wait::until_true("the other one's slice is gone", || world.slices().len() == 1);
    assert_eq!(share_of(&world, "pod", "init"), Some((30, 2048 * MIB)));
    delete(&world, ["pod"]);
    world.wait_until_empty();
}

#[test]
fn a_sidecar_has_its_slice_beside_the_others() {
    let world = on_paper(1);
    let init = container(&world, "init", &part(50, 100), &ENDS);
    let mut sidecar = container(&world, "sidecar", &part(20, 50), &[]);
    sidecar["restartPolicy"] = "Always".into();
    run(&world, &[init, sidecar], &[container(&world, "main", &part(60, 200), &[])]);
    assert_eq!(share_of(&world, "pod", "sidecar"), Some((20, 50 * 256 * MIB)));
    assert_eq!(share_of(&world, "pod", "main"), Some((60, 200 * 256 * MIB)));
    assert_eq!(world.slices().len(), 2);
    world.assert_no_complaints();
}
