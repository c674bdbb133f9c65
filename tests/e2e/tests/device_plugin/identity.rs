//! Each pod gets its own slice, on the device that kubelet chose.

use std::collections::BTreeSet;

use crate::stage::{
    CORE, MEMORY, container, create, create_annotated, delete, on_paper, on_paper_without_grace, part, share_of,
    slice_of, spec, wrong,
};

#[test]
fn a_container_gets_one_slice_for_both_resources_on_the_device_whose_units_it_has() {
    let world = on_paper(2);
    create(&world, "pod", &part(30, 8));
    let pod = world.cluster.wait_for_phase("pod", "Running");
    assert_eq!(wrong(&world, &pod, "main", 30, 8), None);
    assert_eq!(world.slices().len(), 1);
    world.assert_no_complaints();
}

#[test]
fn pods_that_ask_for_the_same_are_told_apart_by_their_units() {
    let world = on_paper(1);
    let limits = ["40", "50", "60"];
    for limit in limits {
        let annotations = serde_json::json!({"aliquot.dev/gpu-core-limit": limit});
        create_annotated(&world, &format!("pod-{limit}"), &part(30, 8), &annotations);
    }
    for limit in limits {
        let name = format!("pod-{limit}");
        let pod = world.cluster.wait_for_phase(&name, "Running");
        assert_eq!(wrong(&world, &pod, "main", 30, 8), None);
        let part = &slice_of(&world, &name, "main").unwrap().parts[0];
        assert_eq!(part.core_limit_percent.to_string(), limit);
    }
}

#[test]
fn units_that_are_preferred_are_of_the_fullest_device_that_has_room() {
    let world = on_paper(3);
    let device_of = |name: &str, core| {
        create(&world, name, &part(core, u64::from(core)));
        let pod = world.cluster.wait_for_phase(name, "Running");
        assert_eq!(wrong(&world, &pod, "main", core, u64::from(core)), None);
        let device = slice_of(&world, name, "main").unwrap().parts[0].device_uuid.clone();
        let ids = world.cluster.kubelet().device_ids(&pod.metadata.uid.unwrap(), "main", CORE);
        assert!(ids.iter().all(|id| id.starts_with(&device)), "{name} is on {device} and has {ids:?}");
        device
    };
    let first = device_of("sixty", 60);
    assert_ne!(device_of("fifty", 50), first);
    assert_eq!(device_of("forty", 40), first);
    let second = slice_of(&world, "fifty", "main").unwrap().parts[0].device_uuid.clone();
    assert_eq!(device_of("thirty", 30), second);
    world.assert_no_complaints();
}

#[test]
fn a_pod_that_asks_for_time_or_memory_alone_gets_the_same_share_of_both() {
    let world = on_paper(1);
    create(&world, "time", &serde_json::json!({CORE: "25"}));
    create(&world, "memory", &serde_json::json!({MEMORY: "80"}));
    for name in ["time", "memory"] {
        world.cluster.wait_for_phase(name, "Running");
        assert_eq!(share_of(&world, name, "main"), Some((25, 20 << 30)));
    }
}

#[test]
fn several_containers_of_a_pod_have_a_slice_each() {
    let world = on_paper(2);
    let containers = [("a", 30, 8), ("b", 30, 8), ("c", 10, 4)];
    let specs: Vec<_> =
        containers.iter().map(|(name, core, memory)| container(&world, name, &part(*core, *memory), &[])).collect();
    let without = container(&world, "without", &serde_json::json!({}), &[]);
    world.cluster.create_pod("pod", &spec(&[], &[specs, vec![without]].concat()));
    let pod = world.cluster.wait_for_phase("pod", "Running");
    for (name, core, memory) in containers {
        assert_eq!(wrong(&world, &pod, name, core, memory), None);
    }
    assert_eq!(world.slices().len(), 3);
    assert_eq!(world.cluster.output_of(&pod, "without"), "");
    delete(&world, ["pod"]);
}

#[test]
fn a_hundred_and_twenty_pods_at_once_get_each_their_own_slice() {
    const PODS: u32 = 120;
    let world = on_paper_without_grace(4);
    crate::stage::wait_for_plugin(&world, 4);
    // Many requests are equal, so the plugin cannot tell the pods apart by amounts.
    let asked = |number: u32| (1 + number % 3, u64::from(1 + number % 5));
    let all: Vec<(String, u32, u64)> =
        (0..PODS).map(|number| (format!("pod-{number}"), asked(number).0, asked(number).1)).collect();
    for (name, core, memory) in &all {
        create(&world, name, &part(*core, *memory));
    }
    let mut regions = BTreeSet::new();
    for (name, core, memory) in &all {
        let pod = world.cluster.wait_for_phase(name, "Running");
        assert_eq!(wrong(&world, &pod, "main", *core, *memory), None);
        regions.insert(slice_of(&world, name, "main").unwrap().region_path);
    }
    assert_eq!((world.slices().len(), regions.len()), (all.len(), all.len()));
    delete(&world, all.iter().map(|(name, ..)| name.as_str()));
    world.wait_until_empty();
    world.assert_no_complaints();
}
