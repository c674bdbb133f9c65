//! Volumes that are made for pods, and claims that a pod cannot use.

use serde_json::{Value, json};

use super::{Binding, World, typed};
use crate::mirror::SELECTED_NODE;

const LOCAL: &str = "local.example.com";

impl World {
    /// A claim for which a volume is made once a node is chosen.
    pub(super) fn volume_claim(&mut self, name: &str, provisioner: &str) {
        let class = json!({
            "metadata": {"name": "local"}, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer",
        });
        self.mirror.storage_class(typed(&class));
        let claim = json!({
            "metadata": {"namespace": "default", "name": name, "uid": name, "annotations": {}},
            "spec": {"storageClassName": "local"}, "status": {"phase": "Pending"},
        });
        self.volume_claims.insert(name.to_owned(), claim);
        self.change_volume_claim(name, |_| {});
    }

    fn change_volume_claim(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        self.made += 1;
        let claim = self.volume_claims.get_mut(name).unwrap();
        change(claim);
        claim["metadata"]["resourceVersion"] = self.made.to_string().into();
        self.mirror.volume_claim(typed(claim));
    }

    /// The nodes for which the volumes of a pod are to be made are written to their claims.
    pub(super) fn ask_for_volumes(&mut self, binding: &Binding) {
        for unmade in &binding.unmade {
            self.change_volume_claim(&unmade.name, |claim| {
                claim["metadata"]["annotations"][SELECTED_NODE] = binding.node.as_str().into();
            });
            self.mirror.volume_asked_for(binding, &unmade.name, self.made.to_string());
        }
    }

    /// The node for which the volume of a claim is to be made.
    fn selected(&self, claim: &str) -> Option<&str> {
        self.volume_claims[claim]["metadata"]["annotations"][SELECTED_NODE].as_str()
    }

    /// A volume is made for a claim, which these nodes can mount; none: all can.
    fn volume_is_made(&mut self, claim: &str, nodes: &[&str]) {
        let mut volume = json!({"metadata": {"name": format!("of-{claim}")}, "spec": {}});
        if !nodes.is_empty() {
            let field = json!({"key": "metadata.name", "operator": "In", "values": nodes});
            volume["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchFields": [field]}]}});
        }
        self.mirror.volume(typed(&volume));
        self.change_volume_claim(claim, |claim| {
            claim["spec"]["volumeName"] = volume["metadata"]["name"].clone();
            claim["status"]["phase"] = "Bound".into();
        });
    }

    /// The provisioner says that no volume can be made where it was to be.
    fn no_volume_can_be_made(&mut self, claim: &str) {
        self.change_volume_claim(claim, |claim| claim["metadata"]["annotations"] = json!({}));
    }
}

fn with_claim(name: &str) -> Value {
    json!({"spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]}})
}

#[test]
fn a_claim_that_is_lost_deleted_or_to_be_bound_is_waited_for() {
    let mut world = World::new();
    world.node("n", 1);
    world.volume_claim("data", LOCAL);
    world.change_volume_claim("data", |claim| claim["status"]["phase"] = "Lost".into());
    world.pod("a", 50, with_claim("data"));
    world.reconcile();
    assert!(world.why_waiting("a").contains("has lost its volume"), "{}", world.why_waiting("a"));
    // Somebody wants it to have a volume that exists.
    world.change_volume_claim("data", |claim| {
        claim["status"]["phase"] = "Pending".into();
        claim["spec"]["volumeName"] = "old".into();
    });
    world.reconcile();
    assert!(world.why_waiting("a").contains("not bound yet to its volume \"old\""), "{}", world.why_waiting("a"));
    world.volume_is_made("data", &[]);
    world.change_volume_claim("data", |claim| claim["metadata"]["deletionTimestamp"] = super::LEAVES.into());
    world.reconcile();
    assert!(world.why_waiting("a").contains("is being deleted"), "{}", world.why_waiting("a"));
    world.change_volume_claim("data", |claim| claim["metadata"]["deletionTimestamp"] = Value::Null);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn a_pod_is_bound_only_where_its_new_volume_can_be_mounted() {
    let mut world = World::new();
    ["m", "n"].iter().for_each(|name| world.node(name, 1));
    world.volume_claim("data", LOCAL);
    world.pod("a", 50, with_claim("data"));
    world.reconcile();
    let first = world.selected("data").expect("a volume is asked for").to_owned();
    assert!(world.names_of_bound().is_empty());
    let other = if first == "m" { "n" } else { "m" };
    world.volume_is_made("data", &[other]);
    world.reconcile();
    assert_eq!(world.log, ["a given up".to_owned(), format!("a to {other}")]);
}

#[test]
fn pods_that_share_a_new_volume_have_it_made_once() {
    let mut world = World::new();
    ["m", "n"].iter().for_each(|name| world.node(name, 1));
    world.volume_claim("data", LOCAL);
    for name in ["a", "b"] {
        world.pod(name, 100, with_claim("data"));
        world.join_gang(name, "g", 2);
    }
    world.reconcile();
    let version = world.volume_claims["data"]["metadata"]["resourceVersion"].clone();
    let node = world.selected("data").expect("a volume is asked for").to_owned();
    assert_eq!(world.unready.len(), 2, "both wait for it: {:?}", world.log);
    assert_eq!(world.unready.iter().filter(|of| !of.unmade.is_empty() && of.node == node).count(), 1);
    world.reconcile();
    assert_eq!(world.volume_claims["data"]["metadata"]["resourceVersion"], version, "nobody writes it again");
    world.volume_is_made("data", &[]);
    world.reconcile();
    assert_eq!((world.names_of_bound(), world.log.len()), (vec!["a", "b"], 2), "{:?}", world.log);
}

#[test]
fn where_no_volume_can_be_made_another_node_is_tried() {
    let mut world = World::new();
    ["l", "m", "n"].iter().for_each(|name| world.node(name, 1));
    world.volume_claim("data", LOCAL);
    world.pod("a", 50, with_claim("data"));
    let mut tried = Vec::new();
    for _ in 0..6 {
        // The pause between two tries grows.
        while world.selected("data").is_none() {
            world.reconcile();
        }
        tried.extend(world.selected("data").map(str::to_owned));
        world.no_volume_can_be_made("data");
    }
    let nodes = |tried: &[String]| tried.iter().cloned().collect::<std::collections::BTreeSet<_>>().len();
    assert_eq!((nodes(&tried[..3]), nodes(&tried[3..])), (3, 3), "{tried:?}");
    while world.selected("data").is_none() {
        world.reconcile();
    }
    world.volume_is_made("data", &[]);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn no_member_is_bound_before_the_volumes_of_all_are_made() {
    let mut world = World::new();
    world.node("n", 2);
    for name in ["a", "b"] {
        world.volume_claim(name, LOCAL);
        world.pod(name, 50, with_claim(name));
        world.join_gang(name, "g", 2);
    }
    world.reconcile();
    world.volume_is_made("a", &[]);
    world.reconcile();
    assert!(world.names_of_bound().is_empty(), "{:?}", world.log);
    world.volume_is_made("b", &[]);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
}

#[test]
fn a_pod_waits_for_no_volume_on_a_node_that_is_gone() {
    let mut world = World::new();
    world.node("n", 1);
    world.volume_claim("data", LOCAL);
    world.pod("a", 50, with_claim("data"));
    world.reconcile();
    assert_eq!(world.unready.len(), 1);
    world.remove_node("n");
    world.reconcile();
    assert_eq!((world.unready.len(), world.log.as_slice()), (0, ["a given up".to_owned()].as_slice()));
}

/// As with local disks, each node has its own storage.
#[test]
fn a_new_volume_is_made_only_where_enough_storage_is_left() {
    const SIZES: [(&str, &str); 2] = [("m", "10Gi"), ("n", "40Gi")];
    let mut world = World::new();
    world.mirror.csi_driver(typed(&json!({"metadata": {"name": LOCAL}, "spec": {"storageCapacity": true}})));
    for (node, left) in SIZES {
        world.node(node, 1);
        let mut labelled = world.nodes[node].clone();
        labelled["metadata"]["labels"] = json!({"disk": node});
        world.make_node(node, labelled);
        let topology = json!({"matchLabels": {"disk": node}});
        let capacity = json!({
            "metadata": {"namespace": "storage", "name": node}, "storageClassName": "local",
            "nodeTopology": topology, "capacity": left,
        });
        world.mirror.storage_capacity(typed(&capacity));
        // It says nothing of the class.
        let other = json!({"metadata": {"namespace": "storage", "name": "other"}, "storageClassName": "other",
            "nodeTopology": {}, "capacity": "1Ti"});
        world.mirror.storage_capacity(typed(&other));
    }
    let size = |world: &mut World, claim: &str, size: &str| {
        world.volume_claim(claim, LOCAL);
        world.change_volume_claim(claim, |of| of["spec"]["resources"] = json!({"requests": {"storage": size}}));
        world.pod(claim, 10, with_claim(claim));
    };
    size(&mut world, "fits", "20Gi");
    size(&mut world, "too-large", "41Gi");
    world.reconcile();
    assert_eq!(world.selected("fits"), Some("n"));
    let why = world.why_waiting("too-large");
    assert!(why.contains("41Gi") && why.contains("no node has so much storage left"), "{why}");
    // The limit of one volume counts before what is left in all.
    let large = json!({
        "metadata": {"namespace": "storage", "name": "m"}, "storageClassName": "local", "nodeTopology": {},
        "capacity": "1Gi", "maximumVolumeSize": "50Gi",
    });
    world.mirror.storage_capacity(typed(&large));
    world.reconcile();
    assert!(world.selected("too-large").is_some(), "{}", world.why_waiting("too-large"));
    world.mirror.storage_capacity_gone("storage", "m");
    size(&mut world, "again", "41Gi");
    world.reconcile();
    assert_eq!(world.selected("again"), None);
    // A driver that does not say what is left is not asked.
    world.mirror.csi_driver(typed(&json!({"metadata": {"name": LOCAL}, "spec": {}})));
    world.reconcile();
    assert!(world.selected("again").is_some(), "{}", world.why_waiting("again"));
}

#[test]
fn a_pod_is_not_moved_away_from_a_volume_that_was_made_for_it() {
    let mut world = World::new();
    ["a", "b"].iter().for_each(|name| world.node(name, 1));
    world.volume_claim("data", LOCAL);
    let mut pod = with_claim("data");
    let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "s", "controller": true});
    pod["metadata"] = json!({"ownerReferences": [owner]});
    world.pod("x", 50, pod);
    world.reconcile();
    let node = world.selected("data").expect("a volume is asked for").to_owned();
    world.volume_is_made("data", &[&node]);
    for name in ["filler", "y"] {
        world.pod(name, 50, json!({}));
        world.reconcile();
    }
    world.delete("filler");
    assert_ne!(world.bound()["x"], world.bound()["y"], "{:#?}", world.log);
    world.pod("large", 100, json!({}));
    world.reconcile();
    let is_moved = world.log.iter().any(|line| line.contains("evicted"));
    assert!(!is_moved, "{:#?}", world.log);
}

#[test]
fn a_volume_is_mounted_only_in_its_zones() {
    let mut world = World::new();
    for (name, zone) in [("a", "1"), ("b", "2")] {
        world.node(name, 1);
        let mut node = world.nodes[name].clone();
        node["metadata"]["labels"] = json!({"topology.kubernetes.io/zone": zone});
        world.make_node(name, node);
    }
    for (name, zones) in [("here", "1"), ("there", "2__3"), ("nowhere", "4")] {
        world.volume_claim(name, LOCAL);
        world.volume_is_made(name, &[]);
        let labels = json!({"topology.kubernetes.io/zone": zones});
        let volume = json!({"metadata": {"name": format!("of-{name}"), "labels": labels}, "spec": {}});
        world.mirror.volume(typed(&volume));
        world.pod(name, 10, with_claim(name));
    }
    world.reconcile();
    assert_eq!(world.bound().into_iter().collect::<Vec<_>>(), [("here", "a"), ("there", "b")]);
}

#[test]
fn the_class_of_a_claim_is_that_of_its_annotation() {
    let mut world = World::new();
    world.node("n", 1);
    world.volume_claim("data", LOCAL);
    world.change_volume_claim("data", |claim| {
        claim["metadata"]["annotations"] = json!({"volume.beta.kubernetes.io/storage-class": "local"});
        claim["spec"]["storageClassName"] = "other".into();
    });
    world.pod("a", 10, with_claim("data"));
    world.reconcile();
    assert_eq!(world.selected("data"), Some("n"), "{}", world.why_waiting("a"));
}

#[test]
fn no_volume_is_made_for_a_claim_for_which_one_exists() {
    let exists = json!({
        "metadata": {"name": "old"}, "status": {"phase": "Available"},
        "spec": {
            "storageClassName": "local", "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
        },
    });
    let rows = [
        (json!({}), true),
        (json!({"spec": {"capacity": {"storage": "4Gi"}}}), false),
        (json!({"spec": {"storageClassName": "other"}}), false),
        (json!({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "other"}}}), false),
        (json!({"spec": {"accessModes": ["ReadOnlyMany"]}}), false),
        (json!({"spec": {"volumeMode": "Block"}}), false),
        (json!({"spec": {"claimRef": {"namespace": "default", "name": "data"}}}), true),
        (json!({"spec": {"claimRef": {"namespace": "default", "name": "other"}}}), false),
        (json!({"status": {"phase": "Released"}}), false),
    ];
    for (more, will_do) in rows {
        let mut world = World::new();
        world.node("n", 1);
        world.volume_claim("data", LOCAL);
        world.change_volume_claim("data", |claim| {
            claim["spec"]["accessModes"] = json!(["ReadWriteOnce"]);
            claim["spec"]["resources"] = json!({"requests": {"storage": "5Gi"}});
        });
        let mut volume = exists.clone();
        json_patch::merge(&mut volume, &more);
        world.mirror.volume(typed(&volume));
        world.pod("a", 10, with_claim("data"));
        world.reconcile();
        assert_eq!(world.selected("data").is_none(), will_do, "{more}");
        if will_do {
            let why = world.why_waiting("a");
            assert!(why.contains("could have the PersistentVolume \"old\"") && why.contains("volumeName"), "{why}");
            world.mirror.volume_gone("old");
            world.reconcile();
            assert_eq!(world.selected("data"), Some("n"));
        }
    }
    let mut world = World::new();
    world.node("n", 1);
    world.volume_claim("data", LOCAL);
    world.change_volume_claim("data", |claim| claim["spec"]["selector"] = json!({"matchLabels": {"disk": "fast"}}));
    world.pod("a", 10, with_claim("data"));
    world.reconcile();
    assert!(world.why_waiting("a").contains("has a selector"), "{}", world.why_waiting("a"));
    assert_eq!(world.selected("data"), None);
}
