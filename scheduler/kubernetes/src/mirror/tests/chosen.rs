//! Pods of kube-scheduler, which chooses their nodes and asks that they be bound.

use aliquot_dialects::{DECISION, GENERATION};
use aliquot_scheduler_engine::{ClaimUid, Whereabouts};
use serde_json::{Value, json};

use super::super::{Choice, Write};
use super::World;
use super::policies::{policy, with_policy};
use crate::queue::{QueueDefinition, QueueResource, QueueResources};

pub(super) const KUBE: &str = "default-scheduler";

impl World {
    /// A pod of kube-scheduler.
    fn kube_pod(&mut self, name: &str, percent: u32, more: Value) {
        let mut pod = json!({"spec": {"schedulerName": KUBE}});
        json_patch::merge(&mut pod, &more);
        self.pod(name, percent, pod);
    }

    /// Kube-scheduler asks that a pod be bound to a node.
    pub(super) fn choose(&mut self, name: &str, node: &str) -> Choice {
        // The engine knows the nodes that kube-scheduler can name.
        self.hear();
        let uid = self.uid(name);
        self.answers.remove(&uid);
        self.mirror.choose(&uid, &format!("default/{name}"), node)
    }

    /// Kube-scheduler asks that a pod be bound to a node, and gets the answer.
    pub(super) fn bind(&mut self, name: &str, node: &str) -> Result<(), String> {
        match self.choose(name, node) {
            Choice::Bound => return Ok(()),
            Choice::Waits => {}
            Choice::Refused(why) => return Err(why),
            Choice::Unknown => panic!("{name} is known"),
        }
        self.reconcile();
        self.answers.remove(&self.uid(name)).expect("it is answered")
    }

    pub(super) fn uid(&self, name: &str) -> String {
        self.pods[name]["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    fn is_known_to_the_engine(&self, name: &str) -> bool {
        self.view.as_ref().unwrap().claim(&ClaimUid::from(self.uid(name).as_str())).is_some()
    }
}

#[test]
fn two_halves_are_bound_to_one_gpu_and_the_third_is_refused() {
    let mut world = World::new();
    world.node("n", 1);
    for name in ["a", "b", "c"] {
        world.kube_pod(name, 50, json!({}));
    }
    world.reconcile();
    assert!(world.bound().is_empty(), "nothing is bound that nobody has asked about");
    assert_eq!((world.bind("a", "n"), world.bind("b", "n")), (Ok(()), Ok(())));
    assert_eq!(world.pods["a"]["metadata"]["annotations"][DECISION], format!("main=n-0/500/{}", 40_u64 << 30));
    let why = world.bind("c", "n").unwrap_err();
    assert!(why.starts_with("node \"n\": 0 of the 1 devices that are wanted have 50 % gpu-core"), "{why}");
    assert!(!world.is_known_to_the_engine("c"), "what was refused waits for nothing");
    world.delete("a");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
    assert_eq!(world.bind("c", "n"), Ok(()));
}

#[test]
fn a_policy_holds_for_pods_of_kube_scheduler() {
    let mut world = World::new();
    world.node("n", 1);
    policy(&mut world, "roomy", json!({"memoryPolicy": {"usedPercentMax": 60}}));
    for name in ["a", "b"] {
        world.kube_pod(name, 40, with_policy("roomy", json!({})));
    }
    world.kube_pod("other", 40, with_policy("missing", json!({})));
    assert_eq!(world.bind("a", "n"), Ok(()));
    assert!(world.bind("b", "n").is_err());
    let why = world.bind("other", "n").unwrap_err();
    assert!(why.contains("no SchedulingPolicy \"missing\""), "{why}");
}

#[test]
fn one_book_counts_pods_of_both_schedulers() {
    let mut world = World::new();
    world.node("n", 1);
    world.kube_pod("kube", 60, json!({}));
    assert_eq!(world.bind("kube", "n"), Ok(()));
    // A foreign pod would keep all devices of the node from being given out.
    world.pod("fits", 40, json!({}));
    world.pod("waits", 10, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["fits", "kube"]);
    world.kube_pod("late", 10, json!({}));
    assert!(world.bind("late", "n").is_err());
    world.change_leader();
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["fits", "kube"], "the next leader counts the same");
    assert!(world.bind("late", "n").is_err());
}

#[test]
fn a_bound_pod_is_counted_with_cpu_and_memory_too() {
    let mut world = World::new();
    world.node("n", 1);
    let cpu = json!([{"name": "main", "resources": {
        "limits": {"aliquot.dev/gpu-core": "10"}, "requests": {"cpu": "15"},
    }}]);
    world.kube_pod("a", 10, json!({"spec": {"containers": cpu}}));
    assert_eq!(world.bind("a", "n"), Ok(()));
    world.kube_pod("b", 10, json!({"spec": {"containers": cpu}}));
    let why = world.bind("b", "n").unwrap_err();
    assert!(why.contains("CPU"), "{why}");
}

#[test]
fn a_request_that_comes_again_is_answered_as_the_first() {
    let mut world = World::new();
    world.node("n", 1);
    world.node("m", 1);
    world.kube_pod("a", 50, json!({}));
    assert_eq!(world.choose("a", "n"), Choice::Waits);
    assert_eq!(world.choose("a", "n"), Choice::Waits);
    let elsewhere = world.choose("a", "m");
    assert!(matches!(&elsewhere, Choice::Refused(why) if why.contains("node n")), "{elsewhere:?}");
    world.reconcile();
    assert_eq!(world.answers.get(&world.uid("a")), Some(&Ok(())));
    assert_eq!(world.choose("a", "n"), Choice::Bound);
    let elsewhere = world.choose("a", "m");
    assert!(matches!(&elsewhere, Choice::Refused(why) if why.contains("bound to node n")), "{elsewhere:?}");
    assert_eq!(world.log, ["a to n"]);
}

#[test]
fn a_binding_that_fails_leaves_nothing_and_can_be_asked_again() {
    let mut world = World::new();
    world.node("n", 1);
    world.kube_pod("a", 100, json!({}));
    assert_eq!(world.choose("a", "n"), Choice::Waits);
    world.wait_for_writes();
    let Some(Write::Bind(binding)) = world.writes.pop() else { panic!("{:?}", world.writes) };
    // The devices are taken while the binding is on its way.
    world.kube_pod("b", 50, json!({}));
    assert!(world.bind("b", "n").is_err());
    world.mirror.bound(&binding, Err("the API server is out of order".into()));
    world.reconcile();
    assert_eq!(world.answers.get(&world.uid("a")), Some(&Err("the API server is out of order".into())));
    assert!(world.bound().is_empty() && !world.is_known_to_the_engine("a"), "{:?}", world.log);
    assert_eq!(world.bind("b", "n"), Ok(()));
}

#[test]
fn a_pod_that_is_deleted_meanwhile_gives_its_devices_back() {
    let mut world = World::new();
    world.node("n", 1);
    world.kube_pod("a", 100, json!({}));
    let uid = world.uid("a");
    assert_eq!(world.choose("a", "n"), Choice::Waits);
    world.wait_for_writes();
    world.delete("a");
    world.reconcile();
    assert!(matches!(&world.answers[&uid], Err(why) if why.contains("deleted")), "{:?}", world.answers);
    world.kube_pod("b", 100, json!({}));
    assert_eq!(world.bind("b", "n"), Ok(()));
}

#[test]
fn the_next_leader_sees_a_binding_whose_answer_was_lost() {
    let mut world = World::new();
    world.node("n", 1);
    world.kube_pod("a", 60, json!({}));
    assert_eq!(world.choose("a", "n"), Choice::Waits);
    world.wait_for_writes();
    let Some(Write::Bind(binding)) = world.writes.pop() else { panic!("{:?}", world.writes) };
    // The API server has bound the pod, and the leader dies before it gets the answer.
    let pod = world.pods.get_mut("a").unwrap();
    pod["spec"]["nodeName"] = "n".into();
    pod["metadata"]["annotations"][GENERATION] = binding.generation.to_string().into();
    pod["metadata"]["annotations"][DECISION] = binding.decision.clone().unwrap().into();
    world.change_leader();
    world.reconcile();
    assert_eq!(world.choose("a", "n"), Choice::Bound);
    world.kube_pod("b", 60, json!({}));
    assert!(world.bind("b", "n").is_err());
    assert!(world.is_known_to_the_engine("a"));
}

#[test]
fn another_scheduler_that_binds_the_pod_first_is_named() {
    let mut world = World::new();
    world.node("n", 1);
    world.kube_pod("a", 50, json!({}));
    assert_eq!(world.choose("a", "n"), Choice::Waits);
    world.pods.get_mut("a").unwrap()["spec"]["nodeName"] = "n".into();
    world.show("a");
    world.reconcile();
    assert_eq!(world.answers[&world.uid("a")], Err("another scheduler has bound the pod to node n".into()));
}

#[test]
fn what_cannot_be_bound_says_why() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("own", 50, json!({}));
    world.kube_pod("gated", 50, json!({"spec": {"schedulingGates": [{"name": "wait"}]}}));
    let wrong = json!([{"name": "main", "resources": {"limits": {"aliquot.dev/gpu-core": "130"}}}]);
    world.kube_pod("wrong", 0, json!({"spec": {"containers": wrong}}));
    world.kube_pod("decided", 0, json!({"metadata": {"annotations": {DECISION: "main=n-0/1000/1"}}}));
    world.kube_pod("a", 50, json!({}));
    for (name, node, expected) in [
        ("own", "n", "names the scheduler \"aliquot\""),
        ("gated", "n", "scheduling gates"),
        ("wrong", "n", "aliquot.dev/gpu-core is \"130\""),
        ("decided", "n", "has the annotation aliquot.dev/devices"),
        ("a", "m", "there is no node m"),
    ] {
        let why = world.bind(name, node).unwrap_err();
        assert!(why.contains(expected), "{name}: {why}");
    }
    assert_eq!(world.mirror.choose("nobody", "default/nobody", "n"), Choice::Unknown);
    let uid = world.uid("a");
    assert!(matches!(world.mirror.choose(&uid, "default/b", "n"), Choice::Refused(why) if why.contains("default/a")));
    assert_eq!(world.bind("a", "n"), Ok(()));
}

#[test]
fn two_containers_of_kube_schedulers_pod_are_bound_together() {
    let mut world = World::new();
    world.node("n", 1);
    let core = json!({"limits": {"aliquot.dev/gpu-core": "30"}});
    let two = json!([{"name": "a", "resources": core}, {"name": "b", "resources": core}]);
    world.kube_pod("two", 0, json!({"spec": {"containers": two}}));
    assert_eq!(world.bind("two", "n"), Ok(()));
    world.kube_pod("third", 50, json!({}));
    assert!(world.bind("third", "n").is_err(), "60 % of the device are taken");
}

#[test]
fn a_pod_of_kube_scheduler_counts_in_its_queue() {
    let mut world = World::new();
    world.node("n", 1);
    let gpu = QueueResource { quota: 0.5, limit: 0.5, ..QueueResource::default() };
    let resources = QueueResources { gpu: Some(gpu), ..QueueResources::default() };
    let queue = QueueDefinition { resources, ..QueueDefinition::default() };
    world.mirror.queue("small", &queue);
    world.queues.insert("small".into(), queue);
    let labels = json!({"metadata": {"labels": {"aliquot.dev/queue": "small"}}});
    world.kube_pod("a", 30, labels.clone());
    assert_eq!(world.bind("a", "n"), Ok(()));
    world.kube_pod("b", 30, labels.clone());
    let why = world.bind("b", "n").unwrap_err();
    assert!(why.contains("\"small\""), "{why}");
    world.pod("own", 30, labels);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn nobody_is_evicted_for_a_pod_of_kube_scheduler() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("train", 100, json!({"spec": {"priority": 0}}));
    world.reconcile();
    world.kube_pod("serve", 100, json!({"spec": {"priority": 125}}));
    assert!(world.bind("serve", "n").is_err());
    assert_eq!(world.names_of_bound(), ["train"]);
    // The other way round, the pod of kube-scheduler is evicted as any pod of its priority.
    world.delete("train");
    world.kube_pod("batch", 100, json!({"spec": {"priority": 0}}));
    assert_eq!(world.bind("batch", "n"), Ok(()));
    world.pod("urgent", 100, json!({"spec": {"priority": 90}}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["urgent"]);
}

#[test]
fn a_pod_without_devices_is_bound_as_it_is() {
    let mut world = World::new();
    world.node("n", 1);
    world.kube_pod("a", 0, json!({}));
    assert_eq!(world.bind("a", "n"), Ok(()));
    assert_eq!(world.pods["a"]["metadata"]["annotations"][DECISION], Value::Null);
    let view = world.view.as_ref().unwrap();
    let claim = view.claim(&ClaimUid::from(world.uid("a").as_str())).unwrap();
    assert!(matches!(claim.whereabouts, Whereabouts::There { amounts, .. } if amounts.cpu.get() == 1000));
}
