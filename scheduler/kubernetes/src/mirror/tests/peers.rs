//! Pods that must be near others, must not be near others, or are spread among others, and pods that only prefer this.

use serde_json::{Value, json};

use super::World;

/// A pod with labels, and rules in its specification.
fn pod(world: &mut World, name: &str, labels: &Value, spec: &Value) {
    world.pod(name, 10, json!({"metadata": {"labels": labels}, "spec": spec}));
}

fn required(of: &str, term: Value) -> Value {
    json!({"affinity": {(of): {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})
}

fn preferred(of: &str, weight: i32, term: Value) -> Value {
    let terms = json!([{"weight": weight, "podAffinityTerm": term}]);
    json!({"affinity": {(of): {"preferredDuringSchedulingIgnoredDuringExecution": terms}}})
}

fn app(name: &str) -> Value {
    json!({"matchLabels": {"app": name}})
}

/// At most one of an app on each node.
fn alone(name: &str) -> Value {
    required("podAntiAffinity", json!({"topologyKey": "metadata.name", "labelSelector": app(name)}))
}

/// A pod of another scheduler on a node.
fn foreign(world: &mut World, name: &str, node: &str, labels: &Value, spec: &Value) {
    let mut spec = spec.clone();
    json_patch::merge(&mut spec, &json!({"schedulerName": "default-scheduler", "nodeName": node}));
    world.pod(name, 0, json!({"metadata": {"labels": labels}, "spec": spec}));
}

fn zones(zones: &[(&str, &str)]) -> World {
    let mut world = World::new();
    for (name, zone) in zones {
        world.node(name, 1);
        let mut node = world.nodes[*name].clone();
        node["metadata"]["labels"] = json!({"zone": zone});
        world.make_node(name, node);
    }
    world
}

#[test]
fn one_of_an_app_runs_on_each_node() {
    let mut world = zones(&[("a", "1"), ("b", "2"), ("c", "3")]);
    foreign(&mut world, "other", "a", &json!({"app": "web"}), &json!({}));
    let labels = json!({"app": "web"});
    for name in ["w1", "w2", "w3"] {
        pod(&mut world, name, &labels, &alone("web"));
    }
    world.reconcile();
    let bound = world.bound();
    let own: Vec<&str> = bound.iter().filter(|(name, _)| name.starts_with('w')).map(|(_, node)| *node).collect();
    assert_eq!((own.len(), own.contains(&"a"), own[0] == own[1]), (2, false, false), "{bound:?}");
    let why = world.why_waiting("w3");
    assert!(why.contains("anti-affinity avoids: pods with app in (web) of namespace default"), "{why}");
    // Bound pods count for the next leader, too.
    world.change_leader();
    world.reconcile();
    assert_eq!(world.bound().len(), 3);
    // A pod that is being deleted counts until it is gone.
    world.pods.get_mut("other").unwrap()["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    world.show("other");
    world.reconcile();
    assert_eq!(world.bound().len(), 3);
    world.delete("other");
    world.reconcile();
    assert_eq!(world.bound()["w3"], "a");
}

#[test]
fn pods_keep_away_from_foreign_ones_that_avoid_them() {
    let mut world = zones(&[("a", "1"), ("b", "1"), ("c", "2")]);
    let avoids = required("podAntiAffinity", json!({"topologyKey": "zone", "labelSelector": app("web")}));
    foreign(&mut world, "other", "a", &json!({}), &avoids);
    pod(&mut world, "web", &json!({"app": "web"}), &json!({}));
    pod(&mut world, "db", &json!({"app": "db"}), &json!({"nodeSelector": {"zone": "1"}}));
    world.reconcile();
    assert_eq!(world.bound()["web"], "c");
    assert!(world.bound().contains_key("db"));
    // A pod that changes its labels counts for other rules.
    pod(&mut world, "late", &json!({"app": "web"}), &json!({"nodeSelector": {"zone": "1"}}));
    world.reconcile();
    assert!(!world.bound().contains_key("late"));
    world.pods.get_mut("late").unwrap()["metadata"]["labels"] = json!({"app": "db"});
    world.show("late");
    world.reconcile();
    assert!(world.bound().contains_key("late"));
}

#[test]
fn a_pod_follows_its_leader_whichever_comes_first() {
    let mut world = zones(&[("a", "1"), ("b", "2")]);
    let near = required("podAffinity", json!({"topologyKey": "zone", "labelSelector": app("leader")}));
    pod(&mut world, "follower", &json!({}), &near);
    world.reconcile();
    let why = world.why_waiting("follower");
    assert!(why.contains("affinity asks for: pods with app in (leader) of namespace default"), "{why}");
    pod(&mut world, "leader", &json!({"app": "leader"}), &json!({"nodeSelector": {"zone": "2"}}));
    world.reconcile();
    assert_eq!((world.bound()["leader"], world.bound()["follower"]), ("b", "b"));
    // A bound pod gets the label that another pod wants to be near.
    pod(&mut world, "bound", &json!({}), &json!({"nodeSelector": {"zone": "1"}}));
    let near = required("podAffinity", json!({"topologyKey": "zone", "labelSelector": app("second")}));
    pod(&mut world, "next", &json!({}), &near);
    world.reconcile();
    assert!(!world.bound().contains_key("next"));
    world.pods.get_mut("bound").unwrap()["metadata"]["labels"] = json!({"app": "second"});
    world.show("bound");
    world.reconcile();
    assert_eq!(world.bound()["next"], "a");
}

#[test]
fn a_gang_stays_in_one_zone_that_holds_it() {
    let mut world = zones(&[("a", "1"), ("b", "2"), ("c", "2")]);
    let near = required("podAffinity", json!({"topologyKey": "zone", "labelSelector": app("job")}));
    let annotations = json!({"aliquot.dev/gang": "job", "aliquot.dev/gang-size": "2"});
    for name in ["m1", "m2"] {
        let metadata = json!({"labels": {"app": "job"}, "annotations": annotations});
        world.pod(name, 60, json!({"metadata": metadata, "spec": near}));
    }
    world.reconcile();
    let nodes: Vec<&str> = world.bound().into_values().collect();
    assert!(nodes.len() == 2 && !nodes.contains(&"a"), "{nodes:?}");
}

#[test]
fn labels_of_namespaces_decide_whenever_they_come() {
    let mut world = zones(&[("a", "1")]);
    let term = json!({
        "topologyKey": "zone", "labelSelector": {}, "namespaceSelector": {"matchLabels": {"team": "x"}},
    });
    foreign(&mut world, "other", "a", &json!({}), &required("podAntiAffinity", term));
    let label = |team: &str| [("team".to_owned(), team.to_owned())].into();
    world.namespace(label("x"));
    pod(&mut world, "p", &json!({}), &json!({}));
    world.reconcile();
    assert!(!world.bound().contains_key("p"));
    world.namespace(label("y"));
    world.reconcile();
    assert!(world.bound().contains_key("p"));
}

#[test]
fn pods_are_spread_over_zones() {
    let mut world = zones(&[("a", "1"), ("b", "2"), ("c", "2")]);
    let constraint = json!({
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": app("web"),
    });
    let spec = json!({"topologySpreadConstraints": [constraint]});
    // Each node has room for one.
    for name in ["w1", "w2", "w3"] {
        world.pod(name, 60, json!({"metadata": {"labels": {"app": "web"}}, "spec": spec}));
    }
    world.reconcile();
    let bound = world.bound();
    assert_eq!(bound.len(), 3, "{bound:?}");
    assert!(bound.values().any(|node| *node == "a"), "{bound:?}");
    // One more in zone 2 would be too many, and one that is being deleted does not count.
    let first = bound.iter().find(|(_, node)| **node != "a").map(|(name, _)| (*name).to_owned()).unwrap();
    let mut anywhere = spec.clone();
    anywhere["topologySpreadConstraints"][0]["nodeAffinityPolicy"] = "Ignore".into();
    anywhere["nodeSelector"] = json!({"zone": "2"});
    pod(&mut world, "small", &json!({"app": "web"}), &anywhere);
    world.reconcile();
    assert!(!world.bound().contains_key("small"));
    world.pods.get_mut(&first).unwrap()["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    world.show(&first);
    world.reconcile();
    assert!(world.bound().contains_key("small"));
}

/// As the Deployments of most charts have it: one to a node as long as there are nodes, and then two.
#[test]
fn pods_go_apart_while_they_can() {
    let mut world = zones(&[("a", "1"), ("b", "2")]);
    let apart = json!({"topologyKey": "metadata.name", "labelSelector": app("web")});
    let apart = preferred("podAntiAffinity", 100, apart);
    let mut nodes = Vec::new();
    for name in ["w1", "w2", "w3"] {
        pod(&mut world, name, &json!({"app": "web"}), &apart);
        world.reconcile();
        nodes.push(world.bound()[name].to_owned());
    }
    assert_ne!(nodes[0], nodes[1]);
    // A pod without preferences of its own is placed where other pods prefer to have it.
    foreign(
        &mut world,
        "other",
        "b",
        &json!({}),
        &preferred("podAffinity", 100, json!({"topologyKey": "zone", "labelSelector": app("db")})),
    );
    pod(&mut world, "db", &json!({"app": "db"}), &json!({}));
    world.reconcile();
    assert_eq!(world.bound()["db"], "b");
}

#[test]
fn a_spread_that_may_fail_is_as_even_as_can_be() {
    let mut world = zones(&[("a", "1"), ("b", "2")]);
    let constraint = json!({
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": app("web"),
    });
    let spec = json!({"topologySpreadConstraints": [constraint]});
    let add = |world: &mut World, name: &str, percent: u32| {
        world.pod(name, percent, json!({"metadata": {"labels": {"app": "web"}}, "spec": spec}));
        world.reconcile();
    };
    add(&mut world, "w1", 20);
    add(&mut world, "w2", 20);
    assert_ne!(world.bound()["w1"], world.bound()["w2"]);
    // A pod goes to the fuller zone if only that one has room for it.
    pod(&mut world, "more", &json!({"app": "web"}), &json!({"nodeSelector": {"zone": "2"}}));
    world.reconcile();
    let anywhere = json!({"nodeSelector": {"zone": "1"}});
    world.pod("full", 60, json!({"spec": anywhere}));
    world.reconcile();
    add(&mut world, "w3", 50);
    assert_eq!(world.bound()["w3"], "b");
    add(&mut world, "w4", 5);
    assert_eq!(world.bound()["w4"], "a");
}

#[test]
fn a_node_that_is_rather_left_alone_is_taken_last() {
    let mut world = zones(&[("a", "1"), ("b", "2")]);
    let mut node = world.nodes["a"].clone();
    node["spec"]["taints"] = json!([{"key": "spare", "effect": "PreferNoSchedule"}]);
    world.make_node("a", node);
    let toleration = json!({"key": "spare", "operator": "Exists", "effect": "PreferNoSchedule"});
    let nodes = json!({"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["1"]}]}},
    ]});
    world.pod("tolerant", 60, json!({"spec": {"tolerations": [toleration], "affinity": {"nodeAffinity": nodes}}}));
    world.pod("p1", 60, json!({}));
    world.pod("p2", 30, json!({}));
    world.reconcile();
    let bound = world.bound();
    assert_eq!([bound["tolerant"], bound["p1"], bound["p2"]], ["a", "b", "b"]);
    world.pod("last", 30, json!({}));
    world.reconcile();
    assert_eq!(world.bound()["last"], "a");
}

#[test]
fn a_rule_that_is_not_understood_is_said() {
    let mut world = zones(&[("a", "1")]);
    let selector = json!({"matchExpressions": [{"key": "app", "operator": "Like", "values": ["w"]}]});
    let term = json!({"topologyKey": "zone", "labelSelector": selector});
    pod(&mut world, "p", &json!({}), &required("podAffinity", term));
    world.reconcile();
    assert!(world.bound().is_empty());
    assert!(world.why_waiting("p").contains("\"Like\""), "{}", world.why_waiting("p"));
}

/// A pod that is being deleted still counts, but not for the one that waits for it to be gone.
#[test]
fn a_pod_waits_on_its_node_for_the_one_that_it_replaces_there() {
    let mut world = zones(&[("a", "1"), ("b", "2")]);
    let labels = json!({"app": "web"});
    for name in ["w1", "w2"] {
        pod(&mut world, name, &labels, &alone("web"));
    }
    world.reconcile();
    world.ending = Some(std::collections::BTreeSet::new());
    let mut spec = alone("web");
    spec["priority"] = 50.into();
    pod(&mut world, "urgent", &labels, &spec);
    world.reconcile();
    let evicted = |world: &World| {
        let evicted = world.log.iter().filter_map(|line| line.strip_suffix(" evicted"));
        evicted.map(str::to_owned).collect::<Vec<_>>()
    };
    let [one] = &evicted(&world)[..] else { panic!("{:#?}", world.log) };
    let node = world.bound()[one.as_str()].to_owned();
    world.delete(one);
    world.reconcile();
    assert_eq!((world.bound()["urgent"], evicted(&world).len()), (node.as_str(), 1), "{:#?}", world.log);
}

#[test]
fn pods_keep_away_from_pods_that_others_have_nominated() {
    let mut world = zones(&[("a", "1")]);
    let to_come = |labels: Value, mut spec: Value| {
        json_patch::merge(&mut spec, &json!({"schedulerName": "default-scheduler", "priority": 10}));
        json!({"metadata": {"labels": labels}, "spec": spec, "status": {"nominatedNodeName": "a"}})
    };
    world.pod("first", 0, to_come(json!({}), alone("web")));
    world.pod("second", 0, to_come(json!({"app": "db"}), json!({})));
    pod(&mut world, "web", &json!({"app": "web"}), &json!({}));
    pod(&mut world, "alone", &json!({}), &alone("db"));
    world.reconcile();
    assert!(world.bound().is_empty(), "{:#?}", world.log);
    // The other scheduler has decided otherwise.
    for (name, bound) in [("first", vec!["web"]), ("second", vec!["alone", "web"])] {
        world.pods.get_mut(name).unwrap()["status"] = json!({});
        world.show(name);
        world.reconcile();
        assert_eq!(world.names_of_bound(), bound);
    }
}

#[test]
fn a_pod_of_others_keeps_pods_away_whatever_its_spread() {
    let mut world = zones(&[("a", "1"), ("b", "1"), ("c", "2")]);
    let mut avoids = required("podAntiAffinity", json!({"topologyKey": "zone", "labelSelector": app("web")}));
    let unsupported = json!({
        "tolerations": [{"key": "sla", "operator": "Gt", "value": "1"}],
        "topologySpreadConstraints": [{
            "topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "nodeTaintsPolicy": "Honor",
        }],
    });
    json_patch::merge(&mut avoids, &unsupported);
    foreign(&mut world, "other", "a", &json!({}), &avoids);
    pod(&mut world, "web", &json!({"app": "web"}), &json!({}));
    // A pod of ours with this spread still waits.
    pod(&mut world, "own", &json!({}), &unsupported);
    world.reconcile();
    assert_eq!(world.bound().get("web"), Some(&"c"));
    assert!(world.why_waiting("own").contains("nodeTaintsPolicy"), "{}", world.why_waiting("own"));
}
