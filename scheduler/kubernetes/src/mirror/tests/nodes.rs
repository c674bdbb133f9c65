//! What nodes have, and what becomes of pods when that changes.

use std::collections::{BTreeSet, VecDeque};

use serde_json::{Value, json};

use super::{World, Write};

#[test]
fn other_pods_take_their_part_of_a_node() {
    let mut world = World::new();
    world.node("n", 1);
    let foreign = |cpu: &str| {
        json!({"spec": {"schedulerName": "default-scheduler", "nodeName": "n",
            "containers": [{"name": "x", "resources": {"requests": {"cpu": cpu}}}]}})
    };
    world.pod("other", 0, foreign("15500m"));
    world.pod("a", 50, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["other"]);
    assert!(world.why_waiting("a").contains("CPU"), "{}", world.why_waiting("a"));
    world.delete("other");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn devices_that_others_use_are_not_given_out() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("other", 30, json!({"spec": {"schedulerName": "default-scheduler", "nodeName": "n"}}));
    world.pod("a", 30, json!({}));
    world.pod("without", 0, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["other", "without"]);
    world.delete("other");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "without"]);
}

#[test]
fn a_pod_is_on_the_node_that_it_prefers_if_there_is_room() {
    let mut world = World::new();
    ["m", "n", "o"].iter().for_each(|name| world.node(name, 1));
    let prefers = |name: &str| {
        let field = json!({"key": "metadata.name", "operator": "In", "values": [name]});
        let term = json!({"weight": 1, "preference": {"matchFields": [field]}});
        json!({"spec": {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}}})
    };
    world.pod("a", 50, json!({}));
    world.reconcile();
    let full = world.bound()["a"].to_owned();
    let other = if full == "n" { "o" } else { "n" };
    // Without its preference, the policy would put the pod beside the first one.
    world.pod("b", 50, prefers(other));
    world.pod("c", 60, prefers(other));
    world.reconcile();
    assert_eq!(world.bound()["b"], other);
    assert_ne!(world.bound()["c"], other);
}

#[test]
fn pods_of_a_node_that_comes_back_run_on() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("a", 60, json!({}));
    world.reconcile();
    let node = world.nodes["n"].clone();
    world.remove_node("n");
    world.reconcile();
    world.make_node("n", node);
    world.pod("b", 60, json!({}));
    world.pod("c", 40, json!({}));
    world.reconcile();
    assert_eq!(world.log, ["a to n", "c to n"]);
}

#[test]
fn a_pod_bound_while_its_node_comes_back_keeps_its_device() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("a", 60, json!({}));
    world.wait_for_writes();
    let Some(Write::Bind(binding)) = world.writes.pop() else { panic!("a is bound") };
    let node = world.nodes["n"].clone();
    world.remove_node("n");
    world.hear();
    world.make_node("n", node);
    world.hear();
    // The API server binds the pod, and the watch does not tell of it yet.
    world.late = Some(VecDeque::new());
    world.write_binding(&binding).unwrap();
    world.end_binding(&binding, Ok(()));
    world.late = None;
    world.pod("b", 60, json!({}));
    world.late = Some(VecDeque::new());
    world.reconcile();
    assert_eq!(world.log, ["a to n"]);
}

#[test]
fn nothing_is_placed_on_nodes_that_are_not_ready() {
    let mut world = World::new();
    world.node("n", 1);
    world.nodes.get_mut("n").unwrap()["status"]["conditions"][0]["status"] = "Unknown".into();
    world.change_leader();
    world.pod("a", 50, json!({}));
    world.reconcile();
    assert!(world.bound().is_empty());
}

#[test]
fn pods_run_on_where_a_node_does_not_tell_of_its_devices() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("a", 60, json!({}));
    world.reconcile();
    let told = world.nodes["n"].clone();
    world.nodes.get_mut("n").unwrap()["metadata"]["annotations"] = json!({});
    world.change_leader();
    world.pod("b", 40, json!({}));
    world.reconcile();
    assert_eq!(world.log, ["a to n"]);
    // The node is deleted and made again with another UID.
    world.remove_node("n");
    let mut bare = told.clone();
    bare["metadata"]["uid"] = "another".into();
    bare["metadata"]["annotations"] = json!({});
    world.make_node("n", bare.clone());
    world.reconcile();
    bare["metadata"]["annotations"] = told["metadata"]["annotations"].clone();
    world.make_node("n", bare);
    world.reconcile();
    assert_eq!(world.log, ["a to n", "b to n"]);
    assert_eq!(world.promised()["n-0"].0, 1000);
}

#[test]
fn nobody_is_evicted_where_a_node_has_less_than_before() {
    let mut world = World::new();
    world.node("n", 1);
    let hca = json!([{"name": "main", "resources": {"requests": {"rdma/hca": "1", "cpu": "8"}}}]);
    world.nodes.get_mut("n").unwrap()["status"]["allocatable"]["rdma/hca"] = "2".into();
    world.change_leader();
    world.pod("a", 0, json!({"spec": {"containers": hca}}));
    world.reconcile();
    // Kubelet starts anew, and another scheduler overloads the node.
    world.nodes.get_mut("n").unwrap()["status"]["allocatable"]["rdma/hca"] = "0".into();
    let node = world.nodes["n"].clone();
    world.make_node("n", node);
    let foreign = json!([{"name": "x", "resources": {"requests": {"cpu": "12"}}}]);
    let spec = json!({"schedulerName": "default-scheduler", "nodeName": "n", "containers": foreign});
    world.pod("other", 0, json!({"spec": spec}));
    world.pod("b", 0, json!({"spec": {"containers": hca}}));
    world.reconcile();
    world.change_leader();
    world.reconcile();
    assert_eq!(world.log, ["a to n"]);
}

#[test]
fn ports_of_init_containers_that_end_are_free() {
    let mut world = World::new();
    world.node("n", 1);
    for (name, policy) in [("a", Value::Null), ("b", Value::Null), ("c", json!("Always")), ("d", json!("Always"))] {
        let init = json!({"name": "init", "ports": [{"containerPort": 80, "hostPort": 80}], "restartPolicy": policy});
        world.pod(name, 0, json!({"spec": {"containers": [{"name": "main"}], "initContainers": [init]}}));
        world.reconcile();
    }
    assert_eq!(world.names_of_bound(), ["a", "b", "c"]);
    assert!(world.why_waiting("d").contains("hostPort/TCP/80"), "{}", world.why_waiting("d"));
}

#[test]
fn a_port_of_a_node_is_given_to_one_pod() {
    let mut world = World::new();
    world.node("n", 1);
    let with_port = |port: u32| {
        let ports = json!([{"containerPort": 80, "hostPort": port}]);
        json!({"spec": {"containers": [{"name": "main", "ports": ports}]}})
    };
    let mut foreign = with_port(8080);
    json_patch::merge(&mut foreign, &json!({"spec": {"schedulerName": "default-scheduler", "nodeName": "n"}}));
    world.pod("other", 0, foreign);
    for (name, port) in [("a", 80), ("b", 80), ("c", 8080), ("d", 443)] {
        world.pod(name, 0, with_port(port));
        world.reconcile();
    }
    assert_eq!(world.names_of_bound(), ["a", "d", "other"]);
    assert!(world.why_waiting("b").contains("hostPort/TCP/80"), "{}", world.why_waiting("b"));
    world.delete("a");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b", "d", "other"]);
}

/// Every node lists all ports.
#[test]
fn ports_are_forgotten_and_are_few_for_each_pod() {
    let mut world = World::new();
    world.node("n", 1);
    let with_ports = |ports: Vec<u32>, scheduler: &str| {
        let ports: Vec<_> = ports.iter().map(|port| json!({"containerPort": 80, "hostPort": port})).collect();
        json!({"spec": {"schedulerName": scheduler, "containers": [{"name": "main", "ports": ports}]}})
    };
    world.pod("a", 0, with_ports((1000..1100).collect(), "aliquot"));
    world.pod("many", 0, with_ports((2000..2101).collect(), "aliquot"));
    world.pod("theirs", 0, with_ports((3000..30_000).collect(), "default-scheduler"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    assert_eq!(world.mirror.ports.names().count(), 100);
    let why = world.why_waiting("many");
    assert!(why.contains("101 ports of its node (hostPort)") && why.contains("at most 100"), "{why}");
    world.pod("b", 0, with_ports(vec![1000, 5000], "aliquot"));
    world.reconcile();
    assert_eq!(world.mirror.ports.names().count(), 101);
    world.delete("a");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
    assert_eq!(world.mirror.ports.names().collect::<Vec<_>>(), ["hostPort/TCP/1000", "hostPort/TCP/5000"]);
}

#[test]
fn a_pod_tolerates_taints_whose_number_is_great_enough() {
    let mut world = World::new();
    world.node("n", 1);
    let tainted = |world: &mut World, value: &str| {
        let mut node = world.nodes["n"].clone();
        node["spec"]["taints"] = json!([{"key": "sla", "value": value, "effect": "NoSchedule"}]);
        world.make_node("n", node);
    };
    tainted(&mut world, "950");
    let tolerates = json!([{"key": "sla", "operator": "Gt", "value": "990"}]);
    world.pod("a", 50, json!({"spec": {"tolerations": tolerates}}));
    world.reconcile();
    assert!(world.bound().is_empty(), "{:?}", world.log);
    tainted(&mut world, "1000");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn room_that_another_scheduler_has_chosen_counts_as_taken() {
    let mut world = World::new();
    world.node("n", 1);
    let containers = json!([{"name": "x", "resources": {"requests": {"cpu": "15500m"}}}]);
    let spec = json!({"schedulerName": "default-scheduler", "priority": 10, "containers": containers});
    let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable"});
    let waits = json!({"nominatedNodeName": "n", "conditions": [condition]});
    world.pod("other", 0, json!({"spec": spec, "status": waits}));
    world.pod("a", 50, json!({"spec": {"priority": 10}}));
    world.reconcile();
    assert!(world.bound().is_empty(), "{:?}", world.log);
    assert!(world.why_waiting("a").contains("CPU"), "{}", world.why_waiting("a"));
    world.delete("a");
    // A more urgent pod may have the room.
    world.pod("urgent", 50, json!({"spec": {"priority": 11}}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["urgent"]);
    world.pod("b", 50, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["urgent"]);
    // The other scheduler has decided otherwise.
    world.pods.get_mut("other").unwrap()["status"] = json!({});
    world.show("other");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b", "urgent"]);
}

#[test]
fn room_of_a_pod_that_another_scheduler_is_binding_counts_as_taken_for_every_pod() {
    let mut world = World::new();
    world.node("n", 1);
    let containers = json!([{"name": "x", "resources": {"requests": {"cpu": "15500m"}}}]);
    let spec = json!({"schedulerName": "default-scheduler", "priority": 10, "containers": containers});
    world.pod("other", 0, json!({"spec": spec, "status": {"nominatedNodeName": "n"}}));
    world.pod("urgent", 50, json!({"spec": {"priority": 11}}));
    world.reconcile();
    assert!(world.bound().is_empty(), "{:?}", world.log);
}

#[test]
fn a_chosen_pod_is_counted_once_when_it_is_bound() {
    let mut world = World::new();
    world.node("n", 1);
    let containers = json!([{"name": "x", "resources": {"requests": {"cpu": "8"}}}]);
    let spec = json!({"schedulerName": "default-scheduler", "priority": 10, "containers": containers});
    world.pod("other", 0, json!({"spec": spec, "status": {"nominatedNodeName": "n"}}));
    world.reconcile();
    world.pods.get_mut("other").unwrap()["spec"]["nodeName"] = "n".into();
    world.show("other");
    let fits = json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "8"}}}]}});
    world.pod("a", 0, fits);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "other"], "{:?}", world.log);
}

#[test]
fn a_pod_is_on_a_node_that_declares_what_it_needs() {
    let mut world = World::new();
    world.node("m", 1);
    world.pod("a", 50, json!({"spec": {"hostNetwork": true, "hostUsers": false}}));
    world.reconcile();
    assert!(world.bound().is_empty(), "{:?}", world.log);
    let why = world.why_waiting("a");
    assert!(why.contains("declaredFeatures/UserNamespacesHostNetworkSupport"), "{why}");
    let mut node = world.nodes["m"].clone();
    node["status"]["declaredFeatures"] = json!(["UserNamespacesHostNetworkSupport"]);
    world.make_node("m", node);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn a_pod_with_options_for_its_mounts_is_on_a_node_that_declares_them() {
    let mut world = World::new();
    world.node("m", 1);
    let mount = json!({"name": "data", "mountPath": "/data", "bindMountOptions": ["noexec"]});
    let containers = json!([{"name": "main", "volumeMounts": [mount]}]);
    world.pod("a", 50, json!({"spec": {"containers": containers}}));
    world.reconcile();
    let why = world.why_waiting("a");
    assert!(why.contains("declaredFeatures/VolumeBindMountOptions"), "{why}");
}

/// What kubelet counts for devices that stand for CPU or memory of the node.
#[test]
fn resources_of_the_node_that_pods_of_others_hold_by_claims_count() {
    let mut world = World::new();
    world.node("n", 1);
    let held = json!([{
        "resourceClaimName": "cores", "containers": ["x", "y"],
        "mapping": [{"name": "cpu", "quantity": "12"}],
        "overhead": [{"name": "cpu", "perPod": "500m", "perContainer": "1500m"}, {"name": "memory", "perPod": "1Gi"}],
    }]);
    let spec =
        json!({"schedulerName": "default-scheduler", "nodeName": "n", "containers": [{"name": "x"}, {"name": "y"}]});
    let status = json!({"phase": "Running", "nodeAllocatableResourceClaimStatuses": held});
    world.pod("other", 0, json!({"spec": spec, "status": status}));
    let asks = |cpu: &str| json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}});
    world.pod("large", 0, asks("600m"));
    world.pod("small", 0, asks("400m"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["other", "small"], "{:?}", world.log);
}

#[test]
fn a_waiting_pod_goes_elsewhere_if_its_node_takes_no_more() {
    let changes: [fn(&mut Value); 3] = [
        |node| node["spec"]["unschedulable"] = true.into(),
        |node| node["status"]["conditions"][0]["status"] = "Unknown".into(),
        |node| node["spec"]["taints"] = json!([{"key": "broken", "effect": "NoSchedule"}]),
    ];
    for change in changes {
        let mut world = World::new();
        world.node("n", 1);
        world.pod("low", 100, json!({}));
        world.reconcile();
        world.ending = Some(BTreeSet::new());
        world.pod("high", 100, json!({"spec": {"priority": 50}}));
        world.reconcile();
        assert_eq!(world.log, ["low to n", "low evicted"]);
        let mut node = world.nodes["n"].clone();
        change(&mut node);
        world.make_node("n", node.clone());
        world.node("m", 1);
        world.reconcile();
        assert_eq!(world.bound().get("high"), Some(&"m"), "{node}: {:#?}", world.log);
    }
}

#[test]
fn a_volume_that_pods_name_themselves_is_for_one_pod_of_a_node() {
    let mut world = World::new();
    world.node("n", 1);
    let with = |kind: &str, volume: Value| json!({"spec": {"volumes": [{"name": "v", (kind): volume}]}});
    let iscsi = |iqn: &str| with("iscsi", json!({"iqn": iqn, "lun": 0, "targetPortal": "storage:3260"}));
    let rbd = |monitors: [&str; 2], image: &str| with("rbd", json!({"monitors": monitors, "image": image}));
    let disk = |name: &str| with("gcePersistentDisk", json!({"pdName": name}));
    let mut foreign = disk("d");
    json_patch::merge(&mut foreign, &json!({"spec": {"schedulerName": "default-scheduler", "nodeName": "n"}}));
    world.pod("other", 0, foreign);
    let pods = [
        ("a", iscsi("iqn.1")),
        ("b", iscsi("iqn.1")),
        ("c", iscsi("iqn.2")),
        ("d", rbd(["m1", "m2"], "x")),
        ("e", rbd(["m2", "m3"], "x")),
        ("f", rbd(["m2", "m3"], "y")),
        ("g", disk("d")),
        ("h", with("awsElasticBlockStore", json!({"volumeID": "d"}))),
    ];
    for (name, pod) in pods {
        world.pod(name, 0, pod);
        world.reconcile();
    }
    assert_eq!(world.names_of_bound(), ["a", "c", "d", "f", "h", "other"]);
    for (name, volume) in
        [("b", "volume/iscsi/iqn.1"), ("e", "volume/rbd/m2/rbd/x"), ("g", "volume/gcePersistentDisk/d")]
    {
        let why = world.why_waiting(name);
        assert!(why.contains(volume), "{name}: {why}");
    }
    world.delete("other");
    world.reconcile();
    assert!(world.bound().contains_key("g"));
}
