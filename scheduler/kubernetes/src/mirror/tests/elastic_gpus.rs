//! Pods that name a claim for a part of a device.

mod random;
mod rooms;

use aliquot_dialects::{DECISION, Dialect};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::chosen::KUBE;
use super::policies::{policy, with_policy};
use super::*;
use crate::elastic::{ElasticGpuClaim, Step};

/// A world with a class, and a claim of it for 30 % and 8 GiB.
fn world() -> World {
    let mut world = World::new();
    class(&mut world, json!({}));
    claim(&mut world, "part", json!({}));
    world
}

fn class(world: &mut World, spec: Value) {
    world.mirror.elastic_gpu_class("fast", serde_json::from_value(spec).unwrap());
}

fn claim(world: &mut World, name: &str, more: Value) {
    let mut claim = json!({
        "apiVersion": "aliquot.dev/v1alpha1", "kind": "ElasticGPUClaim",
        "metadata": {"namespace": "default", "name": name, "uid": format!("uid-of-{name}")},
        "spec": {"elasticGPUClassName": "fast", "resources": {"requests": {"core": 30, "memory": "8Gi"}}},
    });
    json_patch::merge(&mut claim, &more);
    world.mirror.elastic_gpu_claim(typed::<ElasticGpuClaim>(&claim));
}

fn speaking_node(world: &mut World, name: &str, devices: usize, model: &str) {
    let device = |number: usize| InventoryDevice {
        uuid: format!("{name}-{number}"),
        model: model.into(),
        memory_bytes: DEVICE_BYTES,
        ..InventoryDevice::default()
    };
    let spoken = Spoken::new([Dialect::ElasticGpu]).unwrap();
    let inventory = Inventory::new((0..devices).map(device).collect(), &spoken, &WordsOfNode::default());
    world.node(name, devices);
    let mut node = world.nodes[name].clone();
    node["metadata"]["annotations"][INVENTORY] = serde_json::to_string(&inventory).unwrap().into();
    world.make_node(name, node);
}

/// A pod that names the claim. `more` is merged into it.
fn claiming(world: &mut World, name: &str, more: Value) {
    let containers = json!([{"name": "main", "resources": {"limits": {"aliquot.dev/elastic-gpu": "1"}}}]);
    let mut pod = json!({
        "metadata": {"annotations": {"elastic-gpu-claim.aliquot.dev/main": "part"}},
        "spec": {"containers": containers},
    });
    json_patch::merge(&mut pod, &more);
    world.pod(name, 0, pod);
}

fn decision_of(world: &World, pod: &str) -> String {
    world.pods[pod]["metadata"]["annotations"][DECISION].as_str().unwrap().to_owned()
}

/// All writes that are due.
fn steps(world: &mut World) -> Vec<Step> {
    world.mirror.elastic_gpu_claims_are(Access::Read);
    let (mut last, mut steps) = (None, Vec::new());
    while let Some(planned) = world.mirror.elastic_steps(&mut last, 1, Timestamp::UNIX_EPOCH) {
        steps.extend(planned.into_iter().flat_map(|(_, of_claim)| of_claim));
    }
    steps
}

/// Makes the parts that are due.
fn make_parts(world: &mut World) {
    for step in steps(world) {
        if let Step::Make(gpu) = step {
            world.mirror.elastic_gpu(*gpu);
        }
    }
}

#[test]
fn a_pod_gets_what_its_claim_says() {
    let mut world = world();
    speaking_node(&mut world, "n", 1, "NVIDIA H100");
    claiming(&mut world, "a", json!({}));
    world.reconcile();
    assert_eq!(decision_of(&world, "a"), format!("main=n-0/300/{}", 8 * GIB));
}

#[test]
fn the_class_says_what_the_claim_leaves_out_and_the_model() {
    let mut world = world();
    speaking_node(&mut world, "n", 2, "NVIDIA A100");
    speaking_node(&mut world, "m", 1, "NVIDIA H100");
    class(&mut world, json!({"models": ["h100"], "defaultRequests": {"core": 50}}));
    claim(&mut world, "part", json!({"spec": {"resources": null}}));
    claiming(&mut world, "a", json!({}));
    world.reconcile();
    // The memory is in proportion to the time.
    assert_eq!(decision_of(&world, "a"), format!("main=m-0/500/{}", 40 * GIB));
}

#[test]
fn what_a_claim_lacks_is_said_on_the_pod() {
    let mut world = World::new();
    world.node("n", 1);
    claiming(&mut world, "a", json!({}));
    world.reconcile();
    let lacks = |world: &World, words: &str| {
        let why = world.why_waiting("a");
        assert!(why.contains(words), "{why} lacks {words}");
    };
    lacks(&world, "this cluster has no such kind of object");
    world.mirror.elastic_gpu_claims_are(Access::Forbidden);
    world.reconcile();
    lacks(&world, "the scheduler has no right to read such claims");
    world.mirror.elastic_gpu_claims_are(Access::Read);
    world.reconcile();
    lacks(&world, "there is no ElasticGPUClaim \"part\"");
    claim(&mut world, "part", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    world.reconcile();
    lacks(&world, "is being deleted");
    claim(&mut world, "part", json!({"spec": {"resources": null}}));
    world.reconcile();
    lacks(&world, "no ElasticGPUClass \"fast\"");
    class(&mut world, json!({}));
    world.reconcile();
    lacks(&world, "neither the claim nor its class has an amount");
    claim(&mut world, "part", json!({}));
    world.reconcile();
    lacks(&world, "add \"elastic-gpu\" to the node's dialects");
    speaking_node(&mut world, "n", 1, "NVIDIA H100");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn a_claim_has_one_pod_at_a_time() {
    let mut world = world();
    speaking_node(&mut world, "n", 2, "NVIDIA H100");
    claiming(&mut world, "a", json!({}));
    claiming(&mut world, "b", json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    assert!(world.why_waiting("b").contains("pod default/a has it"), "{}", world.why_waiting("b"));
    world.delete("a");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
    let ended = json!({"status": {"phase": "Succeeded"}});
    json_patch::merge(world.pods.get_mut("b").unwrap(), &ended);
    world.show("b");
    claiming(&mut world, "c", json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b", "c"]);
    let containers = json!([
        {"name": "main", "resources": {"limits": {"aliquot.dev/elastic-gpu": "1"}}},
        {"name": "side", "resources": {"limits": {"aliquot.dev/elastic-gpu": "1"}}},
    ]);
    let both = json!({"elastic-gpu-claim.aliquot.dev/side": "part"});
    claiming(&mut world, "d", json!({"metadata": {"annotations": both}, "spec": {"containers": containers}}));
    world.reconcile();
    assert!(world.why_waiting("d").contains("two containers name"), "{}", world.why_waiting("d"));
}

#[test]
fn a_gated_pod_keeps_no_other_from_its_claim() {
    let mut world = world();
    speaking_node(&mut world, "n", 1, "NVIDIA H100");
    claiming(&mut world, "a", json!({"spec": {"schedulingGates": [{"name": "example.com/later"}]}}));
    claiming(&mut world, "b", json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
}

#[test]
fn later_pods_of_a_claim_get_the_same_part() {
    let mut world = world();
    speaking_node(&mut world, "n", 2, "NVIDIA H100");
    claiming(&mut world, "a", json!({}));
    world.reconcile();
    let first = decision_of(&world, "a");
    make_parts(&mut world);
    world.delete("a");
    // Another node has more room.
    speaking_node(&mut world, "m", 4, "NVIDIA H100");
    claiming(&mut world, "b", json!({}));
    world.reconcile();
    assert_eq!(decision_of(&world, "b"), first);
    world.delete("b");
    world.remove_node("n");
    claiming(&mut world, "c", json!({}));
    world.reconcile();
    assert!(world.why_waiting("c").contains("is not on node n"), "{}", world.why_waiting("c"));
    speaking_node(&mut world, "n", 2, "NVIDIA H100");
    world.reconcile();
    assert_eq!(decision_of(&world, "c"), first);
}

/// Whether parts are to be made.
fn makes_parts(world: &mut World) -> bool {
    steps(world).iter().any(|step| matches!(step, Step::Make(_)))
}

#[test]
fn a_claim_is_protected_while_its_pod_is_being_bound() {
    let mut world = world();
    speaking_node(&mut world, "n", 1, "NVIDIA H100");
    claiming(&mut world, "a", json!({}));
    world.wait_for_writes();
    let leaving = json!({
        "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["aliquot.dev/elastic-gpu-protection"],
    });
    claim(&mut world, "part", json!({"metadata": leaving}));
    let steps = steps(&mut world);
    assert!(!steps.iter().any(|step| matches!(step, Step::Finalizers { .. })), "{steps:?}");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    assert!(makes_parts(&mut world));
}

#[test]
fn later_pods_get_the_bound_part_whatever_words_mean_today() {
    let mut world = world();
    speaking_node(&mut world, "n", 1, "NVIDIA H100");
    claim(&mut world, "part", json!({"spec": {"resources": {"requests": {"core": null}}}}));
    claiming(&mut world, "a", json!({}));
    world.reconcile();
    let first = decision_of(&world, "a");
    assert_eq!(first, format!("main=n-0/100/{}", 8 * GIB));
    make_parts(&mut world);
    world.delete("a");
    // With memory alone the time comes from the smallest device. The class's models are others now, or it is deleted.
    let small = InventoryDevice { uuid: "t-0".into(), memory_bytes: 16 * GIB, ..InventoryDevice::default() };
    let inventory = Inventory::new(vec![small], &Spoken::new([Dialect::ElasticGpu]).unwrap(), &WordsOfNode::default());
    world.node("t", 1);
    let mut node = world.nodes["t"].clone();
    node["metadata"]["annotations"][INVENTORY] = serde_json::to_string(&inventory).unwrap().into();
    world.make_node("t", node);
    class(&mut world, json!({"models": ["A100"]}));
    claiming(&mut world, "b", json!({}));
    world.reconcile();
    assert_eq!(decision_of(&world, "b"), first);
    world.delete("b");
    world.mirror.elastic_gpu_class_gone("fast");
    claiming(&mut world, "c", json!({}));
    world.reconcile();
    assert_eq!(decision_of(&world, "c"), first);
    world.delete("c");
    // The node would refuse a limit below the part's time.
    let limit = json!({"aliquot.dev/gpu-core-limit": "5"});
    claiming(&mut world, "d", json!({"metadata": {"annotations": limit}}));
    world.reconcile();
    assert!(world.why_waiting("d").contains("gpu-core-limit"), "{}", world.why_waiting("d"));
}

#[test]
fn a_pod_that_brings_a_decision_is_not_bound() {
    let mut world = world();
    speaking_node(&mut world, "n", 1, "NVIDIA H100");
    let forged = json!({"metadata": {"annotations": {DECISION: "main=n-0/1000/1"}}});
    world.pod("a", 0, forged);
    world.reconcile();
    assert!(world.names_of_bound().is_empty());
    assert!(world.why_waiting("a").contains("has the annotation aliquot.dev/devices"), "{}", world.why_waiting("a"));
}

#[test]
fn a_claim_that_is_named_after_the_binding_makes_no_part() {
    let mut world = world();
    speaking_node(&mut world, "n", 1, "NVIDIA H100");
    world.pod("a", 50, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    let named = json!({"metadata": {"annotations": {"elastic-gpu-claim.aliquot.dev/main": "part"}}});
    json_patch::merge(world.pods.get_mut("a").unwrap(), &named);
    world.show("a");
    world.reconcile();
    assert!(!makes_parts(&mut world));
}

#[test]
fn a_decision_that_we_have_not_bound_makes_no_part() {
    let mut world = world();
    speaking_node(&mut world, "n", 1, "NVIDIA H100");
    let forged = json!({DECISION: "main=n-0/1000/1"});
    claiming(&mut world, "a", json!({"metadata": {"annotations": forged}, "spec": {"nodeName": "n"}}));
    world.reconcile();
    assert!(!makes_parts(&mut world));
}

#[test]
fn a_limit_lowers_the_time_that_comes_with_memory() {
    let mut world = world();
    speaking_node(&mut world, "n", 1, "NVIDIA H100");
    claim(&mut world, "part", json!({"spec": {"resources": {"requests": {"core": null}}}}));
    claiming(&mut world, "a", json!({"metadata": {"annotations": {"aliquot.dev/gpu-core-limit": "5"}}}));
    world.reconcile();
    // 8 GiB are a tenth of the device. The node refuses limits below the time that was decided.
    assert_eq!(decision_of(&world, "a"), format!("main=n-0/50/{}", 8 * GIB));
}

#[test]
fn writes_are_planned_for_what_has_changed_only() {
    let mut world = world();
    speaking_node(&mut world, "n", 1, "NVIDIA H100");
    claim(&mut world, "other", json!({}));
    let of = |steps: Vec<Step>| -> std::collections::BTreeSet<String> {
        let claims = steps.into_iter().map(|step| match step {
            Step::SayOfClaim((_, name), _) | Step::Finalizers { claim: (_, name), .. } => name,
            Step::Make(gpu) => gpu.spec.claim_ref.unwrap().name,
            Step::Delete { gpu, .. } | Step::SayOfGpu(gpu, _) | Step::Bind { gpu, .. } => gpu,
        });
        claims.collect()
    };
    assert_eq!(of(steps(&mut world)), ["other".into(), "part".into()].into());
    assert_eq!(of(steps(&mut world)), [].into(), "nothing has changed since");
    world.mirror.elastic_gpu_claim_is_due(&("default".into(), "other".into()));
    assert_eq!(of(steps(&mut world)), ["other".into()].into(), "a write has failed");
    claiming(&mut world, "a", json!({}));
    world.reconcile();
    assert_eq!(of(steps(&mut world)), ["part".into()].into(), "a pod was bound");
    class(&mut world, json!({"models": ["H100"]}));
    world.reconcile();
    assert_eq!(of(steps(&mut world)), ["other".into(), "part".into()].into(), "their class has changed");
    claiming(&mut world, "b", json!({}));
    make_parts(&mut world);
    let part = "egpu-uid-of-part".to_owned();
    assert_eq!(of(steps(&mut world)), ["part".into(), part.clone()].into(), "its part was made");
    world.remove_node("n");
    assert_eq!(of(steps(&mut world)), ["part".into(), part].into(), "the node of its part is gone");
}

#[test]
fn no_part_is_deleted_before_all_claims_are_known() {
    let mut world = world();
    speaking_node(&mut world, "n", 1, "NVIDIA H100");
    claiming(&mut world, "a", json!({}));
    world.reconcile();
    make_parts(&mut world);
    world.delete("a");
    world.reconcile();
    // The parts can be read, and the claims cannot.
    world.mirror.elastic_gpu_claim_gone("default", "part");
    world.mirror.elastic_gpu_claims_are(Access::Forbidden);
    assert_eq!(world.mirror.elastic_steps(&mut None, 1, Timestamp::UNIX_EPOCH), None);
    claim(&mut world, "part", json!({}));
    world.mirror.elastic_gpu_claims_are(Access::Read);
    let is_deleted = |step: &Step| matches!(step, Step::Delete { .. });
    assert!(!steps(&mut world).iter().any(is_deleted));
}

/// A pod with a policy that does not exist at first.
fn with_missing_policy(world: &mut World, name: &str) {
    claiming(world, name, with_policy("later", json!({})));
}

/// A pod that has the only device.
fn with_all_of_the_device(world: &mut World, name: &str) {
    claim(world, "whole", json!({"spec": {"resources": {"requests": {"core": 100, "memory": null}}}}));
    claiming(world, name, json!({"metadata": {"annotations": {"elastic-gpu-claim.aliquot.dev/main": "whole"}}}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), [name]);
}

#[test]
fn nobody_waits_for_a_pod_that_cannot_use_its_claim() {
    let mut world = world();
    speaking_node(&mut world, "n", 1, "NVIDIA H100");
    with_missing_policy(&mut world, "a");
    claiming(&mut world, "b", json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"], "{}", world.why_waiting("b"));
    assert!(world.why_waiting("a").contains("pod default/b has it"), "{}", world.why_waiting("a"));
    // The part of a bound claim stays for its next pod.
    make_parts(&mut world);
    world.delete("b");
    policy(&mut world, "later", json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"], "{}", world.why_waiting("a"));
}

#[test]
fn an_older_pod_has_its_turn_until_a_claim_is_used() {
    let mut world = world();
    speaking_node(&mut world, "n", 1, "NVIDIA H100");
    with_all_of_the_device(&mut world, "runs");
    with_missing_policy(&mut world, "a");
    claiming(&mut world, "b", json!({}));
    world.reconcile();
    assert!(world.why_waiting("b").contains("no node has room"), "{}", world.why_waiting("b"));
    policy(&mut world, "later", json!({}));
    world.reconcile();
    let why = world.why_waiting("b");
    assert!(why.contains("pod default/a is to have it first"), "{why}");
    world.delete("runs");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"], "{:?}", world.log);
}

#[test]
fn a_choice_of_another_scheduler_that_fails_gives_the_turn_back() {
    let mut world = world();
    speaking_node(&mut world, "n", 1, "NVIDIA H100");
    with_all_of_the_device(&mut world, "runs");
    claiming(&mut world, "a", json!({"spec": {"schedulerName": KUBE}}));
    claiming(&mut world, "b", json!({}));
    world.reconcile();
    assert!(world.bind("a", "n").is_err());
    world.delete("runs");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"], "{}", world.why_waiting("b"));
}

#[test]
fn no_claim_waits_for_others_that_fail_at_each_look() {
    let mut world = World::new();
    world.mirror.elastic_gpu_claims_are(Access::Read);
    ["a", "b", "c"].iter().for_each(|name| claim(&mut world, name, json!({})));
    let mut last = None;
    let mut seen = Vec::new();
    for _ in 0..4 {
        let planned = world.mirror.elastic_steps(&mut last, 1, Timestamp::UNIX_EPOCH).unwrap();
        let [(name, _)] = planned.as_slice() else { panic!("{planned:?}") };
        seen.push(name.1.clone());
        world.mirror.elastic_gpu_claim_is_due(name);
    }
    assert_eq!(seen, ["a", "b", "c", "a"]);
}

#[test]
fn a_bound_pod_keeps_the_claim_that_it_named() {
    let mut world = world();
    speaking_node(&mut world, "n", 2, "NVIDIA H100");
    claim(&mut world, "other", json!({}));
    claiming(&mut world, "a", json!({}));
    world.reconcile();
    let renamed = json!({"metadata": {"annotations": {"elastic-gpu-claim.aliquot.dev/main": "other"}}});
    json_patch::merge(world.pods.get_mut("a").unwrap(), &renamed);
    world.show("a");
    let made = steps(&mut world).into_iter().filter_map(|step| match step {
        Step::Make(gpu) => Some(gpu.spec.claim_ref.unwrap().name),
        _ => None,
    });
    assert_eq!(made.collect::<Vec<_>>(), ["part"]);
    claiming(&mut world, "b", json!({}));
    world.reconcile();
    assert!(world.why_waiting("b").contains("pod default/a has it"), "{}", world.why_waiting("b"));
    claiming(&mut world, "c", renamed);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "c"]);
}
