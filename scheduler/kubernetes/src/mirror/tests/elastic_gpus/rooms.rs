//! The room of parts: whoever comes, it is the part's.

use super::*;
use crate::elastic::{ElasticGpu, ElasticGpuPhase};

/// A world in which pod a has used the claim's part, and has ended. The part is 60 % and 8 GiB of the only device.
fn after_first_pod() -> World {
    let mut world = world();
    claim(&mut world, "part", json!({"spec": {"resources": {"requests": {"core": 60}}}}));
    speaking_node(&mut world, "n", 1, "NVIDIA H100");
    claiming(&mut world, "a", json!({}));
    world.reconcile();
    make_parts(&mut world);
    world.reconcile();
    world
}

/// A world with a class, and a node of one device.
fn without_claims() -> World {
    let mut world = World::new();
    class(&mut world, json!({}));
    world.mirror.elastic_gpu_claims_are(Access::Read);
    speaking_node(&mut world, "n", 1, "NVIDIA H100");
    world
}

/// A part that an administrator makes. `more` is merged into it.
fn made(world: &mut World, name: &str, more: Value) {
    let mut gpu = json!({
        "apiVersion": "aliquot.dev/v1alpha1", "kind": "ElasticGPU",
        "metadata": {"name": name, "uid": format!("uid-of-{name}"), "resourceVersion": "1"},
        "spec": {
            "capacity": {"core": 60, "memoryBytes": 20 * GIB}, "nodeName": "n", "device": "n-0",
            "model": "NVIDIA H100", "elasticGPUClassName": "fast",
        },
    });
    json_patch::merge(&mut gpu, &more);
    world.mirror.elastic_gpu(typed::<ElasticGpu>(&gpu));
}

/// Carries out what is due for parts, and returns the phase and the sentence of this one.
fn said_of(world: &mut World, name: &str) -> Option<(ElasticGpuPhase, String)> {
    let mut said = None;
    for step in steps(world) {
        match step {
            Step::SayOfGpu(gpu, status) if gpu == name => said = Some((status.phase, status.message.clone())),
            Step::Bind { gpu, claim, .. } => {
                made(world, &gpu, json!({"spec": {"claimRef": claim}, "status": {"reserved": true}}));
            }
            _ => {}
        }
    }
    said
}

/// What the books have free of the device, in thousandths.
fn free(world: &World) -> u32 {
    let view = world.view.as_ref().unwrap();
    let node = view.cluster().node_named("n").and_then(|id| view.cluster().node(id)).unwrap();
    node.devices()[0].core_free().get()
}

fn no_errors(world: &World) {
    assert!(world.log.iter().all(|line| !line.starts_with("error")), "{:#?}", world.log);
}

#[test]
fn the_room_of_a_part_is_kept_between_its_pods() {
    let mut world = after_first_pod();
    assert_eq!(free(&world), 400);
    world.pod("waits", 80, json!({}));
    world.reconcile();
    world.delete("a");
    world.reconcile();
    assert_eq!((free(&world), world.names_of_bound()), (400, vec![]));
    let why = world.why_waiting("waits");
    assert!(why.contains("80 % gpu-core"), "{why}");
    claiming(&mut world, "b", json!({}));
    world.reconcile();
    assert_eq!(decision_of(&world, "b"), format!("main=n-0/600/{}", 8 * GIB));
    assert_eq!((free(&world), world.names_of_bound()), (400, vec!["b"]));
    // The part is deleted while the pod has it: the pod holds the room itself until it ends.
    world.mirror.elastic_gpu_gone("egpu-uid-of-part");
    world.reconcile();
    assert_eq!((free(&world), world.names_of_bound()), (400, vec!["b"]));
    world.delete("b");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["waits"]);
    no_errors(&world);
}

#[test]
fn a_pod_that_begins_to_leave_gives_its_room_to_its_part() {
    let mut world = world();
    claim(&mut world, "part", json!({"spec": {"resources": {"requests": {"core": 60}}}}));
    speaking_node(&mut world, "n", 1, "NVIDIA H100");
    claiming(&mut world, "a", json!({}));
    world.reconcile();
    world.pod("waits", 80, json!({}));
    world.reconcile();
    // The part is seen for the first time, and its pod leaves, at the same moment.
    make_parts(&mut world);
    world.hear();
    let leaving = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    json_patch::merge(world.pods.get_mut("a").unwrap(), &leaving);
    world.show("a");
    world.reconcile();
    assert_eq!(free(&world), 400);
    world.delete("a");
    world.reconcile();
    assert_eq!((free(&world), world.names_of_bound()), (400, vec![]));
    no_errors(&world);
}

#[test]
fn another_leader_keeps_the_rooms_of_parts() {
    for is_used in [true, false] {
        let mut world = after_first_pod();
        let mut gpu = None;
        for step in steps(&mut world) {
            if let Step::SayOfGpu(_, status) = step {
                assert!(status.reserved && status.phase == ElasticGpuPhase::Bound);
                gpu = Some(json!({"status": status}));
            }
        }
        if !is_used {
            world.delete("a");
        }
        world.pod("waits", 80, json!({"spec": {"priority": 1000}}));
        world.term += 1;
        world.writes.clear();
        let (nodes, pods) = (world.nodes.clone(), world.pods.clone());
        world.mirror = Mirror::new("aliquot", world.term, &[]);
        world.engine = engine(world.policy.fork(), world.term, world.learned.clone());
        class(&mut world, json!({}));
        let bound = json!({"phase": "Bound", "elasticGPUName": "egpu-uid-of-part"});
        claim(&mut world, "part", json!({"status": bound}));
        let reference = json!({"namespace": "default", "name": "part", "uid": "uid-of-part"});
        let own = json!({"capacity": {"memoryBytes": 8 * GIB}, "claimRef": reference});
        made(&mut world, "egpu-uid-of-part", json!({"spec": own, "status": gpu.unwrap()["status"]}));
        world.mirror.elastic_gpu_claims_are(Access::Read);
        nodes.into_iter().for_each(|(name, node)| world.make_node(&name, node));
        pods.keys().for_each(|name| world.show(name));
        world.hear();
        world.engine.handle(world.now_ms, Observation::Synced).unwrap();
        world.reconcile();
        assert_eq!(free(&world), 400, "used: {is_used}");
        assert_eq!(world.names_of_bound().len(), usize::from(is_used));
        world.delete("a");
        claiming(&mut world, "b", json!({}));
        world.reconcile();
        assert_eq!(world.names_of_bound(), ["b"]);
        no_errors(&world);
    }
}

#[test]
fn an_available_part_keeps_its_room_for_a_claim() {
    let mut world = without_claims();
    made(&mut world, "static", json!({}));
    world.reconcile();
    assert_eq!(said_of(&mut world, "static"), Some((ElasticGpuPhase::Available, String::new())));
    world.pod("waits", 50, json!({}));
    claim(&mut world, "part", json!({}));
    claiming(&mut world, "a", json!({}));
    world.reconcile();
    assert!(world.why_waiting("a").contains("it is just being bound to the ElasticGPU"), "{}", world.why_waiting("a"));
    said_of(&mut world, "static");
    world.reconcile();
    assert_eq!(said_of(&mut world, "static").map(|(phase, _)| phase), Some(ElasticGpuPhase::Bound));
    // The pod has all of the part, which is more than the claim requests.
    assert_eq!(decision_of(&world, "a"), format!("main=n-0/600/{}", 20 * GIB));
    assert_eq!((free(&world), world.names_of_bound()), (400, vec!["a"]));
    no_errors(&world);
}

#[test]
fn a_part_that_has_no_room_says_so_and_evicts_nobody() {
    let mut world = without_claims();
    world.pod("a", 50, json!({}));
    world.reconcile();
    made(&mut world, "static", json!({}));
    made(&mut world, "huge", json!({"spec": {"capacity": {"memoryBytes": 81 * GIB}}}));
    made(&mut world, "nowhere", json!({"spec": {"device": "n-7"}}));
    world.reconcile();
    let mut said = BTreeMap::new();
    for step in steps(&mut world) {
        if let Step::SayOfGpu(gpu, status) = step {
            assert_eq!((status.phase, status.reserved), (ElasticGpuPhase::Failed, false));
            said.insert(gpu, status.message);
        }
    }
    let says = |gpu: &str, words: &str| assert!(said[gpu].contains(words), "{said:?}");
    says("static", "60 % gpu-core and 20 GiB of gpu-memory free");
    says("huge", "create a smaller ElasticGPU");
    says("nowhere", "the device n-7 is not on node n");
    assert_eq!(world.names_of_bound(), ["a"]);
    world.delete("a");
    world.reconcile();
    world.mirror.look_for_room_again();
    world.reconcile();
    assert_eq!(said_of(&mut world, "static").map(|(phase, _)| phase), Some(ElasticGpuPhase::Available));
    // A second part of the same device is more than it has, whatever its status says.
    made(&mut world, "twice", json!({"status": {"phase": "Bound", "reserved": true}}));
    world.reconcile();
    let (phase, why) = said_of(&mut world, "twice").unwrap();
    assert!(phase == ElasticGpuPhase::Failed && why.contains("together with the ElasticGPU static"), "{why}");
    assert_eq!(free(&world), 400);
    no_errors(&world);
}

#[test]
fn a_part_has_its_room_again_when_its_node_is_back() {
    let mut world = after_first_pod();
    world.delete("a");
    world.reconcile();
    for step in steps(&mut world) {
        if let Step::SayOfGpu(_, status) = step {
            let reference = json!({"namespace": "default", "name": "part", "uid": "uid-of-part"});
            let own = json!({"capacity": {"memoryBytes": 8 * GIB}, "claimRef": reference});
            made(&mut world, "egpu-uid-of-part", json!({"spec": own, "status": status}));
        }
    }
    let node = world.nodes["n"].clone();
    world.remove_node("n");
    world.reconcile();
    world.pod("waits", 80, json!({"spec": {"priority": 1000}}));
    world.make_node("n", node.clone());
    world.reconcile();
    assert_eq!((free(&world), world.names_of_bound()), (400, vec![]));
    // It goes and comes back between two looks.
    world.remove_node("n");
    world.make_node("n", node);
    world.reconcile();
    assert_eq!((free(&world), world.names_of_bound()), (400, vec![]));
    no_errors(&world);
}

#[test]
fn a_part_counts_to_the_queue_of_its_claim() {
    let mut world = without_claims();
    made(&mut world, "static", json!({}));
    world.reconcile();
    let of_team = |world: &World| {
        let view = world.view.as_ref().unwrap();
        let queue = view.cluster().queue_named("team").unwrap();
        view.cluster().allocated(queue, &aliquot_scheduler_core::Resource::DeviceCore)
    };
    world.queues.insert("team".into(), QueueDefinition::default());
    world.mirror.queue("team", &QueueDefinition::default());
    world.reconcile();
    assert_eq!(of_team(&world), 0);
    claim(&mut world, "part", json!({"metadata": {"labels": {"aliquot.dev/queue": "team"}}}));
    world.reconcile();
    said_of(&mut world, "static");
    world.reconcile();
    assert_eq!((of_team(&world), free(&world)), (600, 400));
    // The part is kept when its claim is gone, and is not charged to a later claim of that name.
    let later = json!({"metadata": {"uid": "another", "labels": {"aliquot.dev/queue": "team"}}});
    claim(&mut world, "part", later);
    world.reconcile();
    assert_eq!((of_team(&world), free(&world)), (0, 400));
    no_errors(&world);
}

#[test]
fn a_pod_keeps_its_part_when_the_kind_is_removed() {
    let mut world = after_first_pod();
    world.mirror.elastic_gpu_claim_gone("default", "part");
    world.mirror.elastic_gpu_class_gone("fast");
    world.mirror.elastic_gpu_gone("egpu-uid-of-part");
    world.mirror.elastic_gpu_claims_are(Access::Absent);
    world.reconcile();
    assert_eq!((free(&world), world.names_of_bound()), (400, vec!["a"]));
    world.delete("a");
    world.reconcile();
    assert_eq!(free(&world), 1000, "nothing is kept for parts any more");
    no_errors(&world);
}

#[test]
fn a_part_deleted_while_its_pod_is_bound_is_the_pod_s() {
    let mut world = after_first_pod();
    world.delete("a");
    world.reconcile();
    claiming(&mut world, "b", json!({}));
    world.wait_for_writes();
    world.mirror.elastic_gpu_gone("egpu-uid-of-part");
    world.pod("waits", 80, json!({}));
    for _ in 0..20 {
        world.hear();
        world.poll();
        world.now_ms += 50;
    }
    world.reconcile();
    assert_eq!((free(&world), world.names_of_bound()), (400, vec!["b"]));
    world.delete("b");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["waits"]);
    no_errors(&world);
}

#[test]
fn a_part_that_changes_while_room_is_asked_gets_it_once() {
    let mut world = without_claims();
    world.reconcile();
    made(&mut world, "static", json!({}));
    world.hear();
    made(&mut world, "static", json!({"spec": {"capacity": {"core": 50}}}));
    world.reconcile();
    assert_eq!(free(&world), 500);
    world.mirror.elastic_gpu_gone("static");
    world.pod("a", 80, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    no_errors(&world);
}

#[test]
fn a_claim_that_lost_its_part_is_bound_to_no_other() {
    let mut world = after_first_pod();
    world.delete("a");
    world.mirror.elastic_gpu_gone("egpu-uid-of-part");
    claim(&mut world, "part", json!({"status": {"phase": "Lost", "elasticGPUName": "egpu-uid-of-part"}}));
    made(&mut world, "static", json!({"spec": {"capacity": {"core": 90}}}));
    world.reconcile();
    let steps = steps(&mut world);
    assert!(!steps.iter().any(|step| matches!(step, Step::Bind { .. })), "{steps:?}");
    assert_eq!(free(&world), 100);
    no_errors(&world);
}
