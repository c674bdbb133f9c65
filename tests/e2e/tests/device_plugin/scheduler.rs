//! The scheduler of the cluster together with the node's manager: the manager enforces the scheduler's decisions.

use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use aliquot_harness::{artifacts, wait};
use aliquot_test_cluster::{CORE_EVENTS, NODE_NAME, NODES, PODS, World};
use serde_json::{Value, json};

use crate::stage::{container, delete, on_paper, part, share_of, slice_of, spec};

/// A running `aliquot-scheduler kubernetes`. When it ends by itself, it is started anew, as by kubelet: a replica that
/// could not renew its lease in time ends.
pub(crate) struct Scheduler {
    child: Arc<Mutex<Option<Child>>>,
    supervisor: Option<JoinHandle<()>>,
}

impl Scheduler {
    fn start(world: &World) -> Scheduler {
        Scheduler::with(world, &[])
    }

    /// A scheduler with further flags.
    pub(crate) fn with(world: &World, flags: &[String]) -> Scheduler {
        let mut command = Command::new(artifacts::scheduler());
        command.arg("kubernetes").arg("--kubeconfig").arg(world.cluster.kubeconfig()).args(flags);
        let child = Arc::new(Mutex::new(Some(command.spawn().expect("the scheduler starts"))));
        let watched = Arc::clone(&child);
        let supervisor = thread::spawn(move || {
            loop {
                {
                    let mut child = watched.lock().unwrap();
                    let Some(child) = child.as_mut() else { return };
                    if child.try_wait().expect("it is ours").is_some() {
                        *child = command.spawn().expect("the scheduler starts");
                    }
                }
                thread::sleep(Duration::from_millis(100));
            }
        });
        Scheduler { child, supervisor: Some(supervisor) }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut child) = child {
            // Fails if it has just ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.supervisor.take().map(JoinHandle::join);
    }
}

/// Writes into the node's status that it is ready and has room for some pods.
pub(crate) fn make_ready(world: &World) {
    let status = json!({"status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": "8", "memory": "16Gi", "pods": "20"},
    }});
    world.cluster.store().merge(&NODES, "", NODE_NAME, true, &status).unwrap();
}

pub(crate) fn create(world: &World, name: &str, core_percent: u32) {
    let mut spec = spec(&[], &[container(world, "main", &part(core_percent, 8), &[])]);
    spec["schedulerName"] = "aliquot".into();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    let _: Value = world.cluster.create(&PODS, pod);
}

#[test]
fn a_pod_gets_what_the_scheduler_has_decided_or_a_reason() {
    let world = on_paper(2);
    make_ready(&world);
    let _scheduler = Scheduler::start(&world);
    let device_of = |pod: &str| slice_of(&world, pod, "main").unwrap().parts.remove(0).device_uuid;
    // The devices have room for a third pod only together.
    for name in ["first", "second"] {
        create(&world, name, 60);
        world.cluster.wait_for_phase(name, "Running");
        assert_eq!(share_of(&world, name, "main"), Some((60, 8 * crate::stage::UNIT_BYTES)));
        let annotations = world.cluster.pod(name).unwrap().metadata.annotations.unwrap();
        assert!(annotations["aliquot.dev/devices"].starts_with(&format!("main={}/600/", device_of(name))));
        let events: Vec<Value> = world.cluster.store().list(&CORE_EVENTS);
        let complaint = events.iter().find(|event| event["reason"] == "AnnotationNotRead");
        assert_eq!(complaint, None, "the manager complains of what the scheduler has written");
    }
    assert_ne!(device_of("first"), device_of("second"));
    create(&world, "third", 60);
    world.cluster.wait_for_error("third", "no node has room now");
    assert!(world.slices().len() == 2);
    delete(&world, ["first"]);
    world.cluster.wait_for_phase("third", "Running");
    create(&world, "small", 40);
    world.cluster.wait_for_phase("small", "Running");
    world.assert_no_complaints();
}

#[test]
fn pods_run_on_and_are_known_when_the_scheduler_is_killed() {
    let world = on_paper(1);
    make_ready(&world);
    let scheduler = Scheduler::start(&world);
    create(&world, "first", 60);
    world.cluster.wait_for_phase("first", "Running");
    drop(scheduler);
    create(&world, "second", 60);
    create(&world, "third", 40);
    // The next scheduler waits for the end of the lease.
    let _scheduler = Scheduler::start(&world);
    world.cluster.wait_for_phase("third", "Running");
    world.cluster.wait_for_error("second", "no node has room now");
    wait::until_true("each pod has one slice", || world.slices().len() == 2);
    assert_eq!(share_of(&world, "first", "main"), Some((60, 8 * crate::stage::UNIT_BYTES)));
    world.assert_no_complaints();
}
