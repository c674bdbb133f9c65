//! Pods whose CPU and memory change while they run.

use serde_json::{Value, json};

use super::World;

/// A node of 16 CPUs, and the running pod `a`, which asks for one.
fn world() -> World {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("a", 30, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    world
}

impl World {
    /// A running pod asks for this many CPUs from now on. `status` is merged into its status.
    fn resize(&mut self, name: &str, cpu: &str, status: Value) {
        let pod = self.pods.get_mut(name).unwrap();
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpu.into();
        json_patch::merge(pod, &json!({"status": status}));
        self.show(name);
        self.reconcile();
    }
}

/// The status of a pod whose container has this many CPUs, and for which kubelet has set aside this many.
fn has(has: &str, set_aside: &str) -> Value {
    let status = json!({
        "name": "main", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
        "allocatedResources": {"cpu": set_aside}, "resources": {"requests": {"cpu": has}},
    });
    json!({"containerStatuses": [status], "conditions": []})
}

#[test]
fn a_pod_that_is_resized_counts_with_its_new_size() {
    let mut world = world();
    world.resize("a", "15500m", json!({}));
    world.pod("b", 30, json!({}));
    world.reconcile();
    assert!(world.why_waiting("b").contains("CPU"), "{}", world.why_waiting("b"));
    world.change_leader();
    world.reconcile();
    assert!(world.why_waiting("b").contains("CPU"), "{}", world.why_waiting("b"));
    world.resize("a", "500m", json!({}));
    assert_eq!(world.log, ["a to n", "b to n"]);
    let promised: Vec<(u32, u64)> = world.promised().into_values().collect();
    assert_eq!(promised[0].0, 600, "the devices stay as they were");
}

#[test]
fn a_pod_counts_with_what_it_still_has_until_it_is_resized() {
    let mut world = world();
    world.resize("a", "15500m", has("15500m", "15500m"));
    world.resize("a", "1", has("15500m", "15500m"));
    world.pod("b", 30, json!({}));
    world.reconcile();
    assert!(world.why_waiting("b").contains("CPU"), "{}", world.why_waiting("b"));
    world.resize("a", "1", has("15500m", "1"));
    assert!(world.why_waiting("b").contains("CPU"), "{}", world.why_waiting("b"));
    world.resize("a", "1", has("1", "1"));
    assert_eq!(world.log, ["a to n", "b to n"]);
}

#[test]
fn a_size_that_the_node_can_never_have_does_not_count() {
    let mut world = world();
    let mut status = has("1", "1");
    let pending = |reason: &str| json!([{"type": "PodResizePending", "status": "True", "reason": reason}]);
    status["conditions"] = pending("Deferred");
    world.resize("a", "40", status.clone());
    world.pod("b", 30, json!({}));
    world.reconcile();
    assert!(world.why_waiting("b").contains("CPU"), "{}", world.why_waiting("b"));
    status["conditions"] = pending("Infeasible");
    world.resize("a", "40", status);
    assert_eq!(world.log, ["a to n", "b to n"]);
}

#[test]
fn pods_of_other_schedulers_count_with_what_they_have() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("other", 0, json!({"spec": {"schedulerName": "default-scheduler", "nodeName": "n"}}));
    world.resize("other", "1", has("15500m", "1"));
    world.pod("b", 30, json!({}));
    world.reconcile();
    assert!(world.why_waiting("b").contains("CPU"), "{}", world.why_waiting("b"));
    world.resize("other", "1", has("1", "1"));
    assert_eq!(world.log, ["b to n"]);
}

#[test]
fn members_of_a_gang_are_resized_without_ending_the_gang() {
    let mut world = World::new();
    world.node("n", 1);
    let member = json!({"metadata": {"annotations": {"aliquot.dev/gang": "g", "aliquot.dev/gang-size": "2"}}});
    world.pod("a", 30, member.clone());
    world.pod("b", 30, member);
    world.reconcile();
    world.resize("a", "2", json!({}));
    world.resize("b", "2", json!({}));
    world.change_leader();
    world.reconcile();
    for _ in 0..10 {
        world.reconcile();
    }
    assert_eq!(world.log, ["a to n", "b to n"]);
}
