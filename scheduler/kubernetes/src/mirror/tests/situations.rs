//! What users do, and what becomes of it.

use std::collections::BTreeMap;

use aliquot_dialects::{DECISION, GENERATION};
use aliquot_scheduler_engine::{Amounts, Command, Order};
use serde_json::{Value, json};

use super::super::Write;
use super::{World, typed};
use crate::queue::{QueueDefinition, QueueResource, QueueResources};

fn with_priority(priority: i32) -> Value {
    json!({"spec": {"priority": priority}})
}

#[test]
fn two_halves_share_a_gpu_and_the_third_waits() {
    let mut world = World::new();
    world.node("n", 1);
    for name in ["a", "b", "c"] {
        world.pod(name, 50, json!({}));
    }
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
    assert_eq!(world.pods["a"]["metadata"]["annotations"][DECISION], format!("main=n-0/500/{}", 40_u64 << 30));
    let why = world.why_waiting("c");
    assert!(why.contains("device") && why.contains("gpu-core"), "{why}");
    world.delete("a");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b", "c"]);
}

#[test]
fn containers_of_a_pod_get_parts_of_their_own() {
    let mut world = World::new();
    world.node("n", 2);
    world.pod("busy", 20, json!({}));
    world.reconcile();
    let container =
        |name: &str, percent: &str| json!({"name": name, "resources": {"limits": {"aliquot.dev/gpu-core": percent}}});
    let main_and_side = json!([container("main", "100"), container("side", "30")]);
    world.pod("a", 0, json!({"spec": {"containers": main_and_side}}));
    world.reconcile();
    let decided = format!("main=n-1/1000/{};side=n-0/300/{}", 80_u64 << 30, 24_u64 << 30);
    assert_eq!(world.pods["a"]["metadata"]["annotations"][DECISION], decided);
    // The next leader reads the decision.
    world.change_leader();
    world.pod("b", 60, json!({}));
    world.pod("c", 50, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "busy", "c"]);
    // An init container that ends before the others start would have their units.
    let ends = json!({"initContainers": [container("first", "10")], "containers": [container("main", "10")]});
    world.pod("init", 0, json!({"spec": ends}));
    world.reconcile();
    assert!(world.why_waiting("init").contains("init container \"first\""), "{}", world.why_waiting("init"));
    let sidecar = json!({"name": "first", "restartPolicy": "Always",
        "resources": {"limits": {"aliquot.dev/gpu-core": "10"}}});
    let beside = json!({"initContainers": [sidecar], "containers": [container("main", "10")]});
    world.node("m", 1);
    world.pod("sidecar", 0, json!({"spec": beside}));
    world.reconcile();
    assert!(world.bound().contains_key("sidecar"), "{}", world.why_waiting("sidecar"));
}

#[test]
fn a_new_leader_goes_on_where_the_last_one_was() {
    let mut world = World::new();
    world.node("n", 1);
    world.node("m", 1);
    for name in ["a", "b", "c", "d", "e"] {
        world.pod(name, 50, json!({}));
    }
    world.reconcile();
    let before = (world.bound().len(), world.log.clone());
    assert_eq!(before.0, 4);
    world.change_leader();
    world.reconcile();
    assert_eq!((world.bound().len(), world.log.clone()), before);
    assert!(world.why_waiting("e").contains("gpu-core"));
}

/// A pod that its Job makes anew when it is gone.
fn of_job(mut pod: Value) -> Value {
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j", "controller": true});
    pod["metadata"]["ownerReferences"] = json!([job]);
    pod
}

#[test]
fn only_pods_that_somebody_makes_anew_are_moved() {
    for (pod, can_move) in [(json!({}), false), (of_job(json!({})), true)] {
        let mut world = World::new();
        ["a", "b"].iter().for_each(|name| world.node(name, 1));
        for name in ["x", "filler", "y"] {
            world.pod(name, 50, pod.clone());
            world.reconcile();
        }
        world.delete("filler");
        assert_eq!(world.bound(), BTreeMap::from([("x", "a"), ("y", "b")]), "{:#?}", world.log);
        world.pod("large", 100, json!({}));
        world.reconcile();
        let is_moved = world.log.iter().any(|line| line.contains("evicted"));
        assert_eq!(is_moved, can_move, "{:#?}", world.log);
        // What is urgent may have its place.
        world.pod("urgent", 100, with_priority(90));
        world.reconcile();
        assert!(world.bound().contains_key("urgent"), "{:#?}", world.log);
    }
}

#[test]
fn a_new_leader_moves_no_pod_that_can_run_nowhere_else() {
    let in_zone = |zone: &str| json!({"spec": {"nodeSelector": {"zone": zone}}});
    let with_volume =
        |name: &str| json!({"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]}});
    for (more, can_move) in
        [([in_zone("a"), in_zone("b")], false), (["a", "b"].map(with_volume), false), ([json!({}), json!({})], true)]
    {
        let more = more.map(of_job);
        let mut world = World::new();
        for name in ["a", "b"] {
            world.node(name, 1);
            let mut node = world.nodes[name].clone();
            node["metadata"]["labels"] = json!({"zone": name});
            world.make_node(name, node);
        }
        let volumes = |world: &mut World| {
            for name in ["a", "b"] {
                let claim = json!({
                    "metadata": {"name": name, "namespace": "default"},
                    "spec": {"volumeName": name}, "status": {"phase": "Bound"},
                });
                world.mirror.volume_claim(typed(&claim));
                world.mirror.volume(typed(&json!({"metadata": {"name": name}, "spec": {}})));
            }
        };
        volumes(&mut world);
        let [of_x, of_y] = more;
        for (name, more) in [("x", of_x), ("filler", json!({})), ("y", of_y)] {
            world.pod(name, 50, more);
            world.reconcile();
        }
        world.delete("filler");
        assert_eq!(world.bound(), BTreeMap::from([("x", "a"), ("y", "b")]), "{:#?}", world.log);
        world.change_leader();
        volumes(&mut world);
        world.pod("large", 100, json!({}));
        world.reconcile();
        let is_moved = world.log.iter().any(|line| line.contains("evicted"));
        assert_eq!(is_moved, can_move, "{:#?}", world.log);
    }
}

#[test]
fn a_higher_priority_evicts_a_lower_one() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("train", 100, with_priority(50));
    world.reconcile();
    world.pod("serve", 100, with_priority(125));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["serve"]);
    assert_eq!(world.log, ["train to n", "train evicted", "serve to n"]);
}

#[test]
fn who_never_preempts_evicts_nobody() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("train", 100, with_priority(50));
    world.reconcile();
    world.pod("serve", 100, json!({"spec": {"priority": 125, "preemptionPolicy": "Never"}}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["train"]);
    world.delete("train");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["serve"]);
}

#[test]
fn a_refused_eviction_leaves_the_pod_running() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("train", 100, json!({"metadata": {"labels": {"protected": "true"}}, "spec": {"priority": 50}}));
    world.reconcile();
    world.pod("serve", 100, with_priority(125));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["train"]);
    assert!(world.why_waiting("serve").contains("gpu-core"), "{}", world.why_waiting("serve"));
}

#[test]
fn a_queue_takes_back_its_quota() {
    let mut world = World::new();
    for name in ["team-a", "team-b"] {
        let gpu = QueueResource { quota: 1.0, ..QueueResource::default() };
        let resources = QueueResources { gpu: Some(gpu), ..QueueResources::default() };
        let queue = QueueDefinition { resources, ..QueueDefinition::default() };
        world.mirror.queue(name, &queue);
        world.queues.insert(name.into(), queue);
    }
    world.node("n", 2);
    world.pod("a1", 100, json!({"metadata": {"labels": {"aliquot.dev/queue": "team-a"}}}));
    world.pod("a2", 100, json!({"metadata": {"labels": {"kai.scheduler/queue": "team-a"}}}));
    world.reconcile();
    assert_eq!(world.bound().len(), 2);
    for (label, name) in [("aliquot.dev/queue", "b1"), ("kai.scheduler/queue", "b2")] {
        world.namespace([(label.to_owned(), "team-b".to_owned())].into());
        world.pod(name, 50, json!({}));
        world.reconcile();
        assert!(world.bound().contains_key(name), "{:?}", world.log);
        let uid = world.pods[name]["metadata"]["uid"].as_str().unwrap();
        assert_eq!(world.mirror.queue_of(&world.mirror.pods[uid].facts), "team-b");
    }
    assert_eq!(world.bound().len(), 3);
}

#[test]
fn a_queue_that_does_not_exist_is_named() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("a", 50, json!({"metadata": {"labels": {"aliquot.dev/queue": "nobody"}}}));
    world.reconcile();
    assert!(world.why_waiting("a").contains("\"nobody\""), "{}", world.why_waiting("a"));
    world.mirror.queue("nobody", &QueueDefinition::default());
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn a_gang_waits_for_its_queue_to_be_made() {
    let mut world = World::new();
    world.node("n", 2);
    let in_queue = json!({"metadata": {"labels": {"aliquot.dev/queue": "later"}}});
    for name in ["a", "b"] {
        world.pod(name, 50, in_queue.clone());
        world.join_gang(name, "g", 2);
    }
    let mut never_preempts = in_queue;
    never_preempts["spec"] = json!({"preemptionPolicy": "Never"});
    world.pod("c", 50, never_preempts);
    world.reconcile();
    for name in ["a", "b", "c"] {
        assert!(world.why_waiting(name).contains("\"later\""), "{}", world.why_waiting(name));
    }
    world.mirror.queue("later", &QueueDefinition::default());
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b", "c"]);
}

#[test]
fn queues_of_kai_count_unless_ours_has_the_same_name() {
    let mut world = World::new();
    let limited = |limit: f64, parent: Option<&str>| {
        let gpu = Some(QueueResource { limit, ..QueueResource::default() });
        let resources = QueueResources { gpu, ..QueueResources::default() };
        QueueDefinition { resources, parent_queue: parent.map(str::to_owned), ..QueueDefinition::default() }
    };
    world.node("n", 2);
    for name in ["a", "b", "c"] {
        world.pod(name, 50, json!({"metadata": {"labels": {"kai.scheduler/queue": "team"}}}));
    }
    world.reconcile();
    assert!(world.why_waiting("a").contains("\"team\""), "{}", world.why_waiting("a"));
    world.mirror.queue_of_kai("above", &limited(-1.0, None));
    world.mirror.queue_of_kai("team", &limited(0.5, Some("above")));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    // Ours is below KAI's, too, and has no status of a fault.
    world.mirror.queue("team", &limited(1.0, Some("above")));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
    let said: Vec<_> = world.mirror.defined_queues().map(|(name, _, fault)| (name.to_owned(), fault)).collect();
    assert_eq!(said, [("team".to_owned(), None)]);
    world.mirror.queue_of_kai("team", &limited(-1.0, Some("above")));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
    world.mirror.queue_gone("team");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b", "c"]);
}

#[test]
fn queues_are_told_parents_first_and_go_children_first() {
    let mut world = World::new();
    let below = |parent: &str| QueueDefinition { parent_queue: Some(parent.into()), ..QueueDefinition::default() };
    for (name, queue) in [("a", below("b")), ("b", below("c")), ("c", QueueDefinition::default())] {
        world.mirror.queue(name, &queue);
    }
    world.reconcile();
    for name in ["c", "b", "a"] {
        world.mirror.queue_gone(name);
    }
    world.reconcile();
    assert!(world.log.is_empty(), "{:?}", world.log);
    assert!(world.view.unwrap().queues().iter().all(|queue| !["a", "b", "c"].contains(&queue.queue.as_str())));
}

#[test]
fn what_is_not_supported_is_said_and_not_bound() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("a", 50, json!({"spec": {"resourceClaims": [{"name": "gpu"}]}}));
    world.reconcile();
    assert!(world.bound().is_empty());
    assert!(world.why_waiting("a").contains("ResourceClaim"));
}

#[test]
fn gated_pods_wait_until_the_gates_are_gone() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("a", 50, json!({"spec": {"schedulingGates": [{"name": "x"}]}}));
    world.reconcile();
    assert!(world.bound().is_empty());
    world.pods.get_mut("a").unwrap()["spec"]["schedulingGates"] = json!([]);
    world.show("a");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn pods_that_are_done_give_their_room_back() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("a", 100, json!({}));
    world.reconcile();
    world.pod("b", 100, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    // A pod that is being deleted holds its room until it is gone.
    world.pods.get_mut("a").unwrap()["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    world.show("a");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    world.pods.get_mut("a").unwrap()["status"] = json!({"phase": "Succeeded"});
    world.show("a");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
    assert_eq!(world.log, ["a to n", "b to n"]);
}

#[test]
fn a_pod_deleted_while_it_is_bound_leaves_nothing() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("a", 100, json!({}));
    world.wait_for_writes();
    world.delete("a");
    world.pod("b", 100, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
}

#[test]
fn a_pod_whose_request_changes_is_placed_as_it_asks_now() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("a", 60, json!({}));
    world.reconcile();
    world.pod("b", 60, json!({}));
    world.reconcile();
    let limits = &mut world.pods.get_mut("b").unwrap()["spec"]["containers"][0]["resources"]["limits"];
    limits["aliquot.dev/gpu-core"] = "40".into();
    world.show("b");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
}

#[test]
fn a_pod_that_changes_its_queue_waits_there() {
    let mut world = World::new();
    world.node("n", 1);
    let gpu = QueueResource { limit: 0.0, ..QueueResource::default() };
    let resources = QueueResources { gpu: Some(gpu), ..QueueResources::default() };
    world.mirror.queue("closed", &QueueDefinition { resources, ..QueueDefinition::default() });
    world.pod("a", 50, json!({"metadata": {"labels": {"aliquot.dev/queue": "closed"}}}));
    world.reconcile();
    assert!(world.bound().is_empty());
    world.pods.get_mut("a").unwrap()["metadata"]["labels"] = json!({});
    world.show("a");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn a_gang_that_changes_its_queue_waits_there() {
    let mut world = World::new();
    world.node("n", 2);
    let gpu = QueueResource { limit: 0.0, ..QueueResource::default() };
    let resources = QueueResources { gpu: Some(gpu), ..QueueResources::default() };
    world.mirror.queue("closed", &QueueDefinition { resources, ..QueueDefinition::default() });
    let closed = json!({"metadata": {"labels": {"aliquot.dev/queue": "closed"}}});
    for name in ["a", "b"] {
        world.pod(name, 50, closed.clone());
        world.join_gang(name, "g", 2);
    }
    let mut never_preempts = closed;
    never_preempts["spec"] = json!({"preemptionPolicy": "Never"});
    world.pod("c", 50, never_preempts);
    world.reconcile();
    assert!(world.bound().is_empty());
    // One pod after the other moves.
    for name in ["c", "b", "a"] {
        world.pods.get_mut(name).unwrap()["metadata"]["labels"] = json!({});
        world.show(name);
        world.reconcile();
    }
    assert_eq!(world.names_of_bound(), ["a", "b", "c"], "{}", world.why_waiting("a"));
    // A gang with places keeps its queue.
    world.pods.get_mut("a").unwrap()["metadata"]["labels"] = json!({"aliquot.dev/queue": "closed"});
    world.show("a");
    world.reconcile();
    assert_eq!((world.names_of_bound(), world.log.len()), (vec!["a", "b", "c"], 3));
}

#[test]
fn without_queues_every_priority_may_have_all_there_is() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("a", 100, with_priority(1_000_000));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn pods_run_on_when_their_queue_is_gone() {
    let mut world = World::new();
    world.node("n", 1);
    world.mirror.queue("gone", &QueueDefinition::default());
    world.mirror.queue("split", &QueueDefinition::default());
    world.pod("a", 50, json!({"metadata": {"labels": {"aliquot.dev/queue": "gone"}}}));
    world.pod(
        "b",
        50,
        json!({"metadata": {
            "labels": {"aliquot.dev/queue": "split"},
            "annotations": {"aliquot.dev/gang": "g", "aliquot.dev/gang-size": "1"},
        }}),
    );
    world.reconcile();
    let below = QueueDefinition { parent_queue: Some("split".into()), ..QueueDefinition::default() };
    world.queues.insert("split".into(), QueueDefinition::default());
    world.queues.insert("below".into(), below);
    world.change_leader();
    world.reconcile();
    assert_eq!(world.log, ["a to n", "b to n"]);
}

#[test]
fn what_runs_in_a_deleted_queue_runs_on_without_its_quota() {
    let mut world = World::new();
    world.node("n", 2);
    let with_quota = |quota: f64| {
        let gpu = Some(QueueResource { quota, ..QueueResource::default() });
        let resources = QueueResources { gpu, ..QueueResources::default() };
        QueueDefinition { resources, ..QueueDefinition::default() }
    };
    world.mirror.queue("gone", &with_quota(2.0));
    world.mirror.queue("other", &with_quota(0.0));
    let in_queue = |queue: &str| json!({"metadata": {"labels": {"aliquot.dev/queue": queue}}});
    for name in ["a", "b", "c"] {
        world.pod(name, 100, in_queue("gone"));
    }
    world.pod("d", 100, in_queue("other"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"], "the other queue has no share");
    world.mirror.queue_gone("gone");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "d"], "without a quota each has half");
    let why = "its queue \"gone\" was deleted; create the queue again, or name another one";
    assert_eq!(world.why_waiting("c"), why);
    world.pod("e", 100, in_queue("gone"));
    world.delete("a");
    world.reconcile();
    assert_eq!((world.names_of_bound(), world.why_waiting("e").as_str()), (vec!["d"], why));
    let is_there = |world: &World| world.view.as_ref().unwrap().queues().iter().any(|queue| queue.queue == "gone");
    assert!(!is_there(&world), "nothing is in it any more");
    world.mirror.queue("gone", &with_quota(0.0));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["c", "d"]);
}

#[test]
fn the_claim_of_an_ephemeral_volume_is_named_after_its_pod() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("a", 0, json!({"spec": {"volumes": [{"name": "scratch", "ephemeral": {}}]}}));
    world.reconcile();
    assert_eq!(world.why_waiting("a"), "there is no PersistentVolumeClaim \"a-scratch\"");
    let mut claim = json!({
        "metadata": {"namespace": "default", "name": "a-scratch"},
        "spec": {"volumeName": "v"}, "status": {"phase": "Bound"},
    });
    let owner = |uid: &str| json!([{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": uid, "controller": true}]);
    world.mirror.volume(super::typed(&json!({"metadata": {"name": "v"}, "spec": {}})));
    claim["metadata"]["ownerReferences"] = owner("earlier");
    world.mirror.volume_claim(super::typed(&claim));
    world.reconcile();
    assert!(world.why_waiting("a").contains("was not made for this pod"), "{}", world.why_waiting("a"));
    claim["metadata"]["ownerReferences"] = owner(&world.uid("a"));
    world.mirror.volume_claim(super::typed(&claim));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn one_pod_at_a_time_has_a_volume_for_one_pod() {
    let mut world = World::new();
    ["m", "n"].iter().for_each(|name| world.node(name, 1));
    let claim = json!({
        "metadata": {"namespace": "default", "name": "data"},
        "spec": {"volumeName": "v", "accessModes": ["ReadWriteOncePod"]}, "status": {"phase": "Bound"},
    });
    world.mirror.volume_claim(super::typed(&claim));
    world.mirror.volume(super::typed(&json!({"metadata": {"name": "v"}, "spec": {}})));
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    let foreign = json!({"schedulerName": "default-scheduler", "nodeName": "m", "volumes": volumes});
    world.pod("other", 0, json!({"spec": foreign}));
    for name in ["a", "b"] {
        world.pod(name, 50, json!({"spec": {"volumes": volumes}}));
    }
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["other"], "{:?}", world.log);
    for name in ["a", "b"] {
        let why = world.why_waiting(name);
        assert!(why.contains("ReadWriteOncePod") && why.contains("pod default/other has it"), "{why}");
    }
    world.pods.get_mut("other").unwrap()["status"] = json!({"phase": "Succeeded"});
    world.show("other");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "other"], "{:?}", world.log);
    let why = world.why_waiting("b");
    assert!(why.contains("pod default/a"), "{why}");
    world.delete("a");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b", "other"], "{:?}", world.log);
}

/// Volumes that one pod at a time may have.
fn volumes_for_one_pod(world: &mut World, names: &[&str]) {
    for name in names {
        let claim = json!({
            "metadata": {"namespace": "default", "name": name},
            "spec": {"volumeName": name, "accessModes": ["ReadWriteOncePod"]}, "status": {"phase": "Bound"},
        });
        world.mirror.volume_claim(super::typed(&claim));
        world.mirror.volume(super::typed(&json!({"metadata": {"name": name}, "spec": {}})));
    }
}

/// A specification with these volumes.
fn with_volumes(names: &[&str]) -> Value {
    let volume = |name: &&str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    json!({"spec": {"volumes": names.iter().map(volume).collect::<Value>()}})
}

/// A pod of another scheduler has a volume.
fn taken(world: &mut World, name: &str) {
    let mut pod = with_volumes(&[name]);
    json_patch::merge(&mut pod, &json!({"spec": {"schedulerName": "default-scheduler", "nodeName": "n"}}));
    world.pod("other", 0, pod);
}

#[test]
fn who_cannot_have_a_volume_keeps_nobody_from_it() {
    let mut world = World::new();
    world.node("n", 2);
    volumes_for_one_pod(&mut world, &["data", "taken"]);
    taken(&mut world, "taken");
    // The oldest one waits for another volume, too, and the next one is not supported.
    world.pod("a", 50, with_volumes(&["data", "taken"]));
    let mut of_nobody = with_volumes(&["data"]);
    of_nobody["metadata"] = json!({"annotations": {"scheduling.k8s.io/group-name": "nobody"}});
    world.pod("b", 50, of_nobody);
    world.pod("c", 50, with_volumes(&["data"]));
    world.pod("d", 50, with_volumes(&["data"]));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["c", "other"], "{}", world.why_waiting("c"));
    assert!(world.why_waiting("a").contains(" has it"), "{}", world.why_waiting("a"));
    assert!(world.why_waiting("d").contains("pod default/c has it"), "{}", world.why_waiting("d"));
    // The oldest one has its turn as soon as it can.
    world.delete("other");
    world.delete("c");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"], "{:?}", world.log);
    assert!(world.why_waiting("d").contains("pod default/a has it"), "{}", world.why_waiting("d"));
}

#[test]
fn an_older_pod_has_its_turn_until_a_volume_is_used() {
    let mut world = World::new();
    world.node("n", 1);
    volumes_for_one_pod(&mut world, &["data", "taken"]);
    taken(&mut world, "taken");
    world.pod("a", 50, with_volumes(&["data", "taken"]));
    world.pod("runs", 100, json!({}));
    world.pod("b", 50, with_volumes(&["data"]));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["other", "runs"], "{:?}", world.log);
    assert!(world.why_waiting("b").contains("no node has room"), "{}", world.why_waiting("b"));
    // The younger one waits for room when nothing else keeps the older one any more.
    world.delete("other");
    world.reconcile();
    assert!(world.why_waiting("a").contains("no node has room"), "{}", world.why_waiting("a"));
    let why = world.why_waiting("b");
    assert!(why.contains("pod default/a is to have it first"), "{why}");
    world.delete("runs");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"], "{:?}", world.log);
}

#[test]
fn a_watch_may_be_faster_than_the_answer_to_a_binding() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("a", 100, json!({}));
    world.wait_for_writes();
    let Write::Bind(binding) = world.writes.remove(0) else { panic!("no binding") };
    let pod = world.pods.get_mut("a").unwrap();
    pod["spec"]["nodeName"] = binding.node.as_str().into();
    let generation = binding.generation.to_string();
    pod["metadata"]["annotations"] = json!({GENERATION: generation, DECISION: binding.decision});
    world.show("a");
    world.hear();
    world.mirror.bound(&binding, Ok(()));
    world.pod("b", 100, json!({}));
    world.reconcile();
    assert!(world.mirror.nodes["n"].unsettled.is_empty());
    world.delete("a");
    world.reconcile();
    assert_eq!(world.log, ["b to n"]);
}

#[test]
fn a_repeated_start_of_a_pod_changes_nothing() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("a", 100, json!({}));
    world.wait_for_writes();
    let Write::Bind(binding) = world.writes.remove(0) else { panic!("no binding") };
    let (generation, term) = (binding.generation, binding.generation.term);
    let order = Order::Start {
        claim: binding.uid.as_str().into(),
        generation,
        amounts: Amounts::default(),
        deadline_ms: 0,
        term,
    };
    let session = world.mirror.nodes["n"].session;
    assert!(world.mirror.command(Command { node: "n".into(), session, order }).is_none());
    assert!(world.mirror.told.is_empty(), "it has not failed");
}

#[test]
fn what_changes_while_a_pod_is_bound_does_not_evict_it() {
    let mut world = World::new();
    world.node("n", 1);
    let claim = json!({
        "metadata": {"namespace": "default", "name": "data"},
        "spec": {"volumeName": "v"}, "status": {"phase": "Bound"},
    });
    world.mirror.volume_claim(super::typed(&claim));
    world.mirror.volume(super::typed(&json!({"metadata": {"name": "v"}, "spec": {}})));
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    world.pod("a", 50, json!({"spec": {"volumes": volumes}}));
    world.wait_for_writes();
    // The watches of claims and of volumes do not agree for a moment.
    world.mirror.volume_gone("v");
    world.hear();
    world.poll();
    world.reconcile();
    assert_eq!(world.log, ["a to n"]);
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn the_next_leader_knows_since_when_pods_run() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("a", 50, json!({}));
    world.reconcile();
    // 900 s after 1970.
    world.pods.get_mut("a").unwrap()["status"]["startTime"] = "1970-01-01T00:15:00Z".into();
    world.change_leader();
    let view = world.view.as_ref().unwrap();
    let claim = view.claim_id(&world.uid("a").as_str().into()).unwrap();
    assert_eq!(view.cluster().started_ms(claim), Some(900_000));
}
