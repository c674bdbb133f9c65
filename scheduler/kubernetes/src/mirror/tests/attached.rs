//! Limits of attached volumes.

use aliquot_dialects::GENERATION;
use serde_json::{Value, json};

use super::{World, Write, typed};

const DRIVER: &str = "disk.example.com";

fn limit(world: &mut World, node: &str, count: u32) {
    let driver = json!({"name": DRIVER, "nodeID": node, "allocatable": {"count": count}});
    world.mirror.csi_node(typed(&json!({"metadata": {"name": node}, "spec": {"drivers": [driver]}})));
}

/// A volume that exists, with a claim that is bound to it.
fn volume(world: &mut World, name: &str) {
    let csi = json!({"driver": DRIVER, "volumeHandle": format!("handle-{name}")});
    let reference = json!({"namespace": "default", "name": name});
    let spec = json!({"csi": csi, "claimRef": reference});
    world.mirror.volume(typed(&json!({"metadata": {"name": name}, "spec": spec})));
    claim(world, name, json!({"spec": {"volumeName": name}, "status": {"phase": "Bound"}}));
}

fn claim(world: &mut World, name: &str, more: Value) {
    let mut claim = json!({"metadata": {"name": name, "namespace": "default"}});
    json_patch::merge(&mut claim, &more);
    world.mirror.volume_claim(typed(&claim));
}

fn pod(world: &mut World, name: &str, claims: &[&str]) {
    let volumes: Vec<Value> =
        claims.iter().map(|of| json!({"name": of, "persistentVolumeClaim": {"claimName": of}})).collect();
    world.pod(name, 0, json!({"spec": {"volumes": volumes}}));
}

/// A node to which two volumes can be attached.
fn world() -> World {
    let mut world = World::new();
    world.node("n", 1);
    limit(&mut world, "n", 2);
    for name in ["v0", "v1", "v2", "v3"] {
        volume(&mut world, name);
    }
    world
}

#[test]
fn a_node_gets_no_more_volumes_than_can_be_attached() {
    let mut world = world();
    pod(&mut world, "a", &["v0", "v1"]);
    world.reconcile();
    pod(&mut world, "b", &["v2"]);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"], "{:#?}", world.log);
    let why = world.why_waiting("b");
    assert!(why.contains("not enough attachable volumes of disk.example.com free"), "{why}");
    // The same for the next leader, which has bound nothing.
    world.change_leader_with_volumes();
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"], "{:#?}", world.log);
    world.delete("a");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
}

#[test]
fn pods_of_others_and_volumes_that_are_still_attached_count() {
    let mut world = world();
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "v0"}}]);
    world.pod("foreign", 0, json!({"spec": {"schedulerName": "other", "nodeName": "n", "volumes": volumes}}));
    let attachment = json!({
        "metadata": {"name": "old"},
        "spec": {"attacher": DRIVER, "nodeName": "n", "source": {"persistentVolumeName": "v3"}},
    });
    world.mirror.volume_attachment(typed(&attachment));
    pod(&mut world, "a", &["v1"]);
    world.reconcile();
    assert!(!world.names_of_bound().contains(&"a"), "{:#?}", world.log);
    world.mirror.volume_attachment_gone("old");
    world.reconcile();
    assert!(world.names_of_bound().contains(&"a"), "{:#?}", world.log);
}

#[test]
fn a_volume_that_pods_share_is_attached_once() {
    let mut world = world();
    limit(&mut world, "n", 3);
    pod(&mut world, "a", &["v0"]);
    pod(&mut world, "b", &["v0"]);
    world.reconcile();
    pod(&mut world, "c", &["v1", "v2"]);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b", "c"], "{:#?}", world.log);
}

#[test]
fn volumes_that_are_made_for_pods_count() {
    let mut world = world();
    for name in ["w0", "w1", "w2"] {
        world.volume_claim(name, DRIVER);
    }
    pod(&mut world, "a", &["w0", "w1"]);
    world.reconcile();
    pod(&mut world, "b", &["w2"]);
    world.reconcile();
    let begun: Vec<&str> = world.unready.iter().map(|binding| binding.name.as_str()).collect();
    assert_eq!(begun, ["a"], "{:#?}", world.log);
    let why = world.why_waiting("b");
    assert!(why.contains("not enough attachable volumes of disk.example.com free"), "{why}");
}

#[test]
fn a_pod_that_an_earlier_leader_binds_meanwhile_stays() {
    let mut world = world();
    let class = json!({
        "metadata": {"name": "c"}, "provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer",
    });
    world.mirror.storage_class(typed(&class));
    claim(&mut world, "w0", json!({"spec": {"storageClassName": "c"}}));
    pod(&mut world, "a", &["w0"]);
    world.wait_for_writes();
    let Write::Bind(binding) = world.writes.remove(0) else { panic!("it is to be bound") };
    // The volume that was made is none of the driver's.
    world.mirror.volume(typed(&json!({"metadata": {"name": "v"}, "spec": {}})));
    claim(&mut world, "w0", json!({"spec": {"volumeName": "v"}, "status": {"phase": "Bound"}}));
    let bound = world.pods.get_mut("a").unwrap();
    bound["spec"]["nodeName"] = "n".into();
    bound["metadata"]["annotations"][GENERATION] = "0.7".into();
    world.show("a");
    world.end_binding(&binding, Err("it is bound already".into()));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    assert!(world.log.iter().all(|line| !line.contains("evicted")), "{:#?}", world.log);
}

#[test]
fn without_a_limit_every_volume_finds_a_place() {
    let mut world = world();
    world.mirror.csi_node_gone("n");
    for (pod_of, claim) in [("a", "v0"), ("b", "v1"), ("c", "v2"), ("d", "v3")] {
        pod(&mut world, pod_of, &[claim]);
    }
    world.reconcile();
    assert_eq!(world.names_of_bound().len(), 4, "{:#?}", world.log);
    // A new limit evicts nobody.
    limit(&mut world, "n", 1);
    world.reconcile();
    assert_eq!(world.names_of_bound().len(), 4, "{:#?}", world.log);
}

impl World {
    /// Another leader begins, and learns of these volumes.
    fn change_leader_with_volumes(&mut self) {
        self.change_leader();
        limit(self, "n", 2);
        ["v0", "v1", "v2", "v3"].into_iter().for_each(|name| volume(self, name));
    }
}

#[test]
fn a_driver_can_keep_pods_from_nodes_where_it_is_not() {
    let mut world = World::new();
    world.node("n", 1);
    volume(&mut world, "v0");
    let driver = |prevents: bool| {
        let spec = json!({"preventPodSchedulingIfMissing": prevents});
        typed(&json!({"metadata": {"name": DRIVER}, "spec": spec}))
    };
    world.mirror.csi_driver(driver(true));
    pod(&mut world, "a", &["v0"]);
    world.reconcile();
    assert!(world.names_of_bound().is_empty());
    let there = json!({"name": DRIVER, "nodeID": "n"});
    world.mirror.csi_node(typed(&json!({"metadata": {"name": "n"}, "spec": {"drivers": [there]}})));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    // Without that wish a driver that is not there is no obstacle.
    world.mirror.csi_node_gone("n");
    world.mirror.csi_driver(driver(false));
    volume(&mut world, "v1");
    pod(&mut world, "b", &["v1"]);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
}
