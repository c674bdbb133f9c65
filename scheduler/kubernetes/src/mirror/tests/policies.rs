//! How pods are placed that name a scheduling policy.

use serde_json::{Value, json};

use super::World;
use crate::scheduling_policy::SchedulingPolicyDefinition;

pub(super) fn policy(world: &mut World, name: &str, spec: Value) {
    let definition: SchedulingPolicyDefinition = serde_json::from_value(spec).unwrap();
    world.policies.insert(name.to_owned(), definition.facts());
    world.mirror.scheduling_policy(name, definition.facts());
}

/// A pod that names a policy. `more` is merged into it.
pub(super) fn with_policy(name: &str, more: Value) -> Value {
    let mut pod = json!({"metadata": {"labels": {"aliquot.dev/scheduling-policy": name}}});
    json_patch::merge(&mut pod, &more);
    pod
}

fn of_gang(size: u32) -> Value {
    json!({"metadata": {"annotations": {"aliquot.dev/gang": "g", "aliquot.dev/gang-size": size.to_string()}}})
}

#[test]
fn a_pod_waits_until_its_policy_is_there() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("a", 50, with_policy("roomy", json!({})));
    world.reconcile();
    assert!(world.why_waiting("a").contains("no SchedulingPolicy \"roomy\""), "{}", world.why_waiting("a"));
    policy(&mut world, "roomy", json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn a_gpu_s_memory_is_filled_as_far_as_the_policy_allows() {
    let mut world = World::new();
    world.node("n", 1);
    policy(&mut world, "roomy", json!({"memoryPolicy": {"usedPercentMax": 60}}));
    world.pod("a", 40, with_policy("roomy", json!({})));
    world.reconcile();
    world.pod("b", 40, with_policy("roomy", json!({})));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    // The policy of one pod does not apply to another pod, and a change of the policy applies to a pod that waits.
    world.pod("c", 10, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "c"]);
    policy(&mut world, "roomy", json!({"memoryPolicy": {"usedPercentMax": 90}}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b", "c"]);
}

#[test]
fn pods_without_a_policy_count_for_those_with_one() {
    let mut world = World::new();
    world.node("n", 1);
    policy(&mut world, "roomy", json!({"memoryPolicy": {"usedPercentMax": 60}}));
    world.pod("a", 40, json!({}));
    world.reconcile();
    world.pod("b", 40, with_policy("roomy", json!({})));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    // Another node has room for the pod.
    world.node("m", 1);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
}

#[test]
fn a_namespace_names_the_policy_of_its_pods() {
    let mut world = World::new();
    world.node("n", 1);
    policy(&mut world, "roomy", json!({"memoryPolicy": {"usedPercentMax": 30}}));
    policy(&mut world, "full", json!({}));
    let label = |name: &str| [("aliquot.dev/scheduling-policy".to_owned(), name.to_owned())].into();
    world.namespace(label("roomy"));
    world.pod("a", 40, json!({}));
    world.pod("b", 40, with_policy("full", json!({})));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"], "the pod's own label goes first");
    world.namespace(label("full"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
}

#[test]
fn a_gang_is_spread_as_its_policy_says() {
    for (spec, nodes) in [
        (json!({}), 1),
        (json!({"topologyPolicy": {"strategy": "SpreadEvenly"}}), 2),
        (json!({"topologyPolicy": {"strategy": "SingleNode"}}), 1),
        (json!({"multiGPUPolicy": {"maxGPUsPerNode": 1}}), 2),
    ] {
        let mut world = World::new();
        world.node("m", 2);
        world.node("n", 2);
        policy(&mut world, "p", spec.clone());
        world.pod("a", 100, with_policy("p", of_gang(2)));
        world.pod("b", 100, with_policy("p", of_gang(2)));
        world.reconcile();
        let used: std::collections::BTreeSet<&str> = world.bound().into_values().collect();
        assert_eq!((world.bound().len(), used.len()), (2, nodes), "{spec}");
    }
}

#[test]
fn a_gang_that_no_node_holds_alone_waits_for_a_single_node() {
    let mut world = World::new();
    world.node("m", 1);
    world.node("n", 1);
    policy(&mut world, "p", json!({"topologyPolicy": {"strategy": "SingleNode"}}));
    world.pod("a", 100, with_policy("p", of_gang(2)));
    world.pod("b", 100, with_policy("p", of_gang(2)));
    world.reconcile();
    assert!(world.bound().is_empty(), "{:?}", world.log);
    world.node("large", 2);
    world.reconcile();
    assert_eq!(world.bound().into_values().collect::<Vec<_>>(), ["large", "large"]);
}

#[test]
fn more_gpus_than_the_gang_may_have_of_a_node_are_named() {
    let mut world = World::new();
    world.node("n", 4);
    policy(&mut world, "p", json!({"multiGPUPolicy": {"maxGPUsPerNode": 1}}));
    world.pod("a", 200, with_policy("p", of_gang(1)));
    world.reconcile();
    let why = world.why_waiting("a");
    assert!(why.contains("2 GPUs") && why.contains("maxGPUsPerNode"), "{why}");
}

#[test]
fn a_pod_runs_for_its_grace_period_before_it_is_preempted() {
    let mut world = World::new();
    world.node("n", 1);
    policy(&mut world, "p", json!({"preemption": {"gracePeriod": "10m"}}));
    world.pod("train", 100, with_policy("p", json!({"spec": {"priority": 50}})));
    world.reconcile();
    world.pod("serve", 100, json!({"spec": {"priority": 125}}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["train"]);
    // The next leader reads the policy, too.
    world.change_leader();
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["train"]);
    world.now_ms += 600_000;
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["serve"]);
}

#[test]
fn others_are_evicted_for_a_pod_after_its_delay_only() {
    let mut world = World::new();
    world.node("n", 1);
    policy(&mut world, "p", json!({"preemption": {"delay": "5m"}}));
    world.pod("train", 100, json!({"spec": {"priority": 50}}));
    world.reconcile();
    world.pod("serve", 100, with_policy("p", json!({"spec": {"priority": 125}})));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["train"]);
    world.now_ms += 300_000;
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["serve"]);
}
