//! A test cluster with the plugin, pods that ask by resources, and queries about their slices.

use std::collections::BTreeMap;

use aliquot_harness::{Image, MIB, wait};
use aliquot_proto::node::v1::Slice;
use aliquot_test_cluster::{NAMESPACE, NODE_NAME, PODS, World};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

pub(crate) const CORE: &str = "aliquot.dev/gpu-core";
pub(crate) const MEMORY: &str = "aliquot.dev/gpu-memory";
/// Memory of one unit, unless the configuration says otherwise.
pub(crate) const UNIT_BYTES: u64 = 256 * MIB;
/// Units of a simulated device, unless its configuration says otherwise.
const MEMORY_UNITS: usize = 320;

/// A cluster with containers that are recorded but not run.
pub(crate) fn on_paper(devices: usize) -> World {
    let world = World::on_paper("device-plugin", devices);
    wait_for_plugin(&world, devices);
    world
}

/// The same, but a slice is removed as soon as kubelet has forgotten its container.
pub(crate) fn on_paper_without_grace(devices: usize) -> World {
    with_settings(devices, "gone_grace_seconds = 0")
}

/// The same with these keys of the plugin's settings.
pub(crate) fn with_settings(devices: usize, settings: &str) -> World {
    with_machine(&"[[device]]\n".repeat(devices), settings)
}

/// The same on a machine of this description.
pub(crate) fn with_machine(machine: &str, settings: &str) -> World {
    World::on_paper_with("device-plugin", machine, &format!("[kubernetes.device_plugin]\n{settings}\n"))
}

/// A cluster with a kubelet that talks to the manager through a relay.
pub(crate) fn with_relay(devices: usize) -> World {
    World::on_paper_with("device-plugin", &"[[device]]\n".repeat(devices), "relay = true\n")
}

/// Waits until all units of these devices are on offer.
pub(crate) fn wait_for_plugin(world: &World, devices: usize) {
    wait_for_units(world, CORE, 100 * devices);
    wait_for_units(world, MEMORY, MEMORY_UNITS * devices);
}

/// Waits until `count` units of a resource are on offer, allocated or not.
pub(crate) fn wait_for_units(world: &World, resource: &str, count: usize) {
    wait::until_true(&format!("{count} units of {resource} are on offer"), || {
        world.cluster.kubelet().capacity(resource).is_some_and(|(_, healthy)| healthy == count)
    });
}

/// The resource limits of a container that asks for this share.
pub(crate) fn part(core_percent: u32, memory_units: u64) -> Value {
    json!({CORE: core_percent.to_string(), MEMORY: memory_units.to_string()})
}

/// A container with these limits.
pub(crate) fn container(world: &World, name: &str, limits: &Value, command: &[&str]) -> Value {
    let image = world.image.as_ref().map_or("none", Image::reference);
    json!({"name": name, "image": image, "command": command, "resources": {"limits": limits}})
}

/// A pod with these init containers and containers.
pub(crate) fn spec(init_containers: &[Value], containers: &[Value]) -> Value {
    json!({"restartPolicy": "Never", "initContainers": init_containers, "containers": containers})
}

/// Creates a pod with one container, which has these limits.
pub(crate) fn create(world: &World, name: &str, limits: &Value) -> Pod {
    world.cluster.create_pod(name, &spec(&[], &[container(world, "main", limits, &[])]))
}

/// The same, with annotations.
pub(crate) fn create_annotated(world: &World, name: &str, limits: &Value, annotations: &Value) -> Pod {
    create_annotated_of(world, name, annotations, &spec(&[], &[container(world, "main", limits, &[])]))
}

/// The same, but bound to the node by another scheduler, which does not check the node's capacity.
pub(crate) fn create_bound(world: &World, name: &str, limits: &Value) -> Pod {
    let mut spec = spec(&[], &[container(world, "main", limits, &[])]);
    spec["nodeName"] = NODE_NAME.into();
    create_annotated_of(world, name, &json!({}), &spec)
}

fn create_annotated_of(world: &World, name: &str, annotations: &Value, spec: &Value) -> Pod {
    let metadata = json!({"name": name, "annotations": annotations});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
    serde_json::from_value(world.cluster.create(&PODS, pod)).expect("what was made is a pod")
}

/// The slice that a container of a pod has.
pub(crate) fn slice_of(world: &World, pod: &str, container: &str) -> Option<Slice> {
    let has =
        |slice: &Slice| slice.consumers.iter().any(|consumer| consumer.pod == pod && consumer.container == container);
    world.slices().into_iter().find(has)
}

/// Time and memory of the slice that a container of a pod has on its only device.
pub(crate) fn share_of(world: &World, pod: &str, container: &str) -> Option<(u32, u64)> {
    let slice = slice_of(world, pod, container)?;
    let [part] = slice.parts.as_slice() else { panic!("{slice:?}") };
    Some((part.core_request_percent, part.memory_limit_bytes))
}

/// The environment variables that a container was given.
pub(crate) fn variables(world: &World, pod: &Pod, container: &str) -> BTreeMap<String, String> {
    let got = world.cluster.output_of(pod, container);
    got.lines().filter_map(|line| line.split_once('=')).map(|(name, value)| (name.into(), value.into())).collect()
}

/// A description of the fault of the slice of a container that asked for this part; `None`: there is none.
pub(crate) fn wrong(world: &World, pod: &Pod, container: &str, core: u32, memory_units: u64) -> Option<String> {
    let (name, uid) = (pod.metadata.name.clone()?, pod.metadata.uid.clone()?);
    let Some(slice) = slice_of(world, &name, container) else { return Some(format!("{name} has no slice")) };
    let [part] = slice.parts.as_slice() else { return Some(format!("{name}: {slice:?}")) };
    let asked = (core, memory_units * UNIT_BYTES);
    let ids = [CORE, MEMORY].map(|resource| world.cluster.kubelet().device_ids(&uid, container, resource)).concat();
    let got = world.cluster.output_of(pod, container);
    let is_right = (part.core_request_percent, part.memory_limit_bytes) == asked
        && ids.len() as u64 == u64::from(core) + memory_units
        && slice.consumers.len() == 1
        && got.contains(&format!("ALIQUOT_DEVICES={}\n", part.device_uuid))
        && got.contains(&slice.region_path);
    (!is_right).then(|| format!("{name} asked for {asked:?}, has units {ids:?}, slice {slice:?}, and sees\n{got}"))
}

/// Deletes pods, all at once, and waits until they are gone.
pub(crate) fn delete<'a>(world: &World, pods: impl IntoIterator<Item = &'a str>) {
    let names: Vec<&str> = pods.into_iter().collect();
    for name in &names {
        world.cluster.store().delete(&PODS, NAMESPACE, name, false).expect("the pod is there");
    }
    wait::until_true("the pods are gone", || names.iter().all(|name| world.cluster.pod(name).is_none()));
}

/// Creates a pod, and waits until both kubelet and the plugin have reported `reason` for it.
pub(crate) fn assert_refused(world: &World, limits: &Value, annotations: &Value, reason: &str) {
    create_annotated(world, "pod", limits, annotations);
    let error = world.cluster.wait_for_error("pod", reason);
    assert!(error.contains("PreStartContainer rpc failed"), "{error}");
    wait::until_true(&format!("an event with {reason:?}"), || {
        world.cluster.events().iter().any(|event| event.starts_with("SliceRefused: ") && event.contains(reason))
    });
    assert!(world.slices().is_empty());
    delete(world, ["pod"]);
}
