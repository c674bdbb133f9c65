//! Jobs that are suspended instead of their pods being evicted.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use aliquot_test_api_server::{BUDGETS, Fault, JOBS, PODS};
use serde_json::{Value, json};

use crate::kit::Cluster;

const MARK: &str = "aliquot.dev/suspended";

impl Cluster {
    pub(crate) fn job(&self, name: &str) {
        let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}});
        let spec = json!({"template": template, "parallelism": 2, "completions": 2});
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec});
        self.objects.create(&JOBS, "default", job);
    }

    fn get_job(&self, name: &str) -> Value {
        self.objects.get(&JOBS, "default", name)
    }

    pub(crate) fn is_suspended(&self, name: &str) -> bool {
        self.get_job(name)["spec"]["suspend"] == true
    }

    /// A pod of a Job, with a whole GPU.
    pub(crate) fn pod_of_job(&self, name: &str, job: &str, more: Value) {
        let uid = self.get_job(job)["metadata"]["uid"].clone();
        let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": uid, "controller": true});
        let mut pod = json!({"metadata": {"ownerReferences": [owner]}, "spec": {"priority": 0}});
        json_patch::merge(&mut pod, &more);
        self.pod(name, 100, pod);
    }
}

/// The controller of a Job with two pods that start together.
struct Controller {
    job: &'static str,
    /// Pods that are gone although the Job was not suspended. The Job counts them as failed.
    failed: Cell<usize>,
    made: Cell<bool>,
}

impl Controller {
    fn new(cluster: &Cluster, job: &'static str) -> Controller {
        cluster.job(job);
        Controller { job, failed: Cell::new(0), made: Cell::new(false) }
    }

    fn names(&self) -> [String; 2] {
        [0, 1].map(|number| format!("{}-{number}", self.job))
    }

    fn step(&self, cluster: &Cluster) {
        let there: Vec<String> =
            cluster.objects.list(&PODS).iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().into()).collect();
        let is_suspended = cluster.is_suspended(self.job);
        for name in self.names() {
            match (is_suspended, there.contains(&name)) {
                (true, true) => cluster.objects.delete(&PODS, "default", &name),
                (false, false) => {
                    self.failed.set(self.failed.get() + usize::from(self.made.get()));
                    let annotations = json!({"aliquot.dev/gang": self.job, "aliquot.dev/gang-size": "2"});
                    let labels = json!({"app": self.job});
                    let metadata = json!({"annotations": annotations, "labels": labels});
                    cluster.pod_of_job(&name, self.job, json!({"metadata": metadata}));
                }
                _ => {}
            }
        }
        self.made.set(!is_suspended);
    }
}

/// A cluster whose two GPUs a Job has.
fn with_job() -> (Cluster, Controller) {
    let cluster = Cluster::with_faults();
    cluster.node("n", 2);
    let controller = Controller::new(&cluster, "j");
    controller.step(&cluster);
    (cluster, controller)
}

fn urgent(cluster: &Cluster) {
    for name in ["u-0", "u-1"] {
        cluster.pod(name, 100, json!({"spec": {"priority": 90}}));
    }
}

fn is_resumed(cluster: &Cluster) -> bool {
    let job = cluster.get_job("j");
    job["spec"]["suspend"] != true && job["metadata"]["labels"][MARK].is_null()
}

#[test]
fn a_job_is_suspended_and_starts_anew() {
    let (mut cluster, controller) = with_job();
    let _scheduler = cluster.scheduler();
    cluster.wait_until_bound(&["j-0", "j-1"]);
    urgent(&cluster);
    cluster.wait_until("it is suspended", |cluster| cluster.is_suspended("j"));
    let mark = cluster.get_job("j")["metadata"]["annotations"][MARK].clone();
    let mark: Value = serde_json::from_str(mark.as_str().unwrap()).unwrap();
    assert!(mark["pods"] == "jobs.batch/j" && mark["at"].is_string(), "{mark}");
    let of_pod = "jobs.batch/j is suspended until its pods are gone";
    cluster.wait_until("events say so", |cluster| {
        let says = |name: &str, text: &str| cluster.events_about(name).iter().any(|event| event.contains(text));
        says("j", "\"Suspended\": ") && says("j-0", of_pod) && says("j-1", of_pod)
    });
    assert_eq!(cluster.bound().len(), 2, "nothing was evicted");
    cluster.wait_until("its room is given to the others", |cluster| {
        controller.step(cluster);
        is_resumed(cluster) && cluster.bound().keys().eq(["u-0", "u-1"].iter())
    });
    cluster.wait_until("its pods wait again", |cluster| {
        controller.step(cluster);
        let names = controller.names();
        names.iter().all(|name| cluster.objects.list(&PODS).iter().any(|pod| pod["metadata"]["name"] == **name))
    });
    assert_eq!(controller.failed.get(), 0, "no pod has failed");
    cluster.wait_until("an event says that it goes on", |cluster| {
        cluster.events_about("j").iter().any(|event| event.starts_with("\"Resumed\": "))
    });
    ["u-0", "u-1"].iter().for_each(|name| cluster.objects.delete(&PODS, "default", name));
    cluster.wait_until_bound(&["j-0", "j-1"]);
}

#[test]
fn the_next_leader_resumes_a_job_but_not_those_of_others() {
    let (mut cluster, controller) = with_job();
    cluster.job("of-somebody-else");
    cluster.objects.merge(&JOBS, "default", "of-somebody-else", &json!({"spec": {"suspend": true}}));
    let leader = cluster.scheduler();
    cluster.wait_until_bound(&["j-0", "j-1"]);
    urgent(&cluster);
    cluster.wait_until("it is suspended", |cluster| cluster.is_suspended("j"));
    leader.kill();
    // The pods go while nobody leads.
    controller.step(&cluster);
    assert!(cluster.bound().is_empty() && cluster.is_suspended("j"));
    let _next = cluster.scheduler();
    cluster.wait_until("it is resumed", |cluster| {
        controller.step(cluster);
        is_resumed(cluster) && cluster.bound().len() == 2
    });
    assert_eq!(controller.failed.get(), 0);
    assert!(cluster.is_suspended("of-somebody-else"), "whoever suspended it resumes it");
}

#[test]
fn a_job_is_suspended_although_requests_fail_for_a_moment() {
    let (mut cluster, _controller) = with_job();
    let _scheduler = cluster.scheduler();
    cluster.wait_until_bound(&["j-0", "j-1"]);
    let failures = [AtomicU32::new(0), AtomicU32::new(0)];
    cluster.server().set_fault(move |method, path| {
        let of = match method {
            "GET" if path.ends_with("/jobs/j") => &failures[0],
            "GET" if path.ends_with("/namespaces/default/poddisruptionbudgets") => &failures[1],
            _ => return Fault::None,
        };
        if of.fetch_add(1, Ordering::Relaxed) < 3 { Fault::Refused } else { Fault::None }
    });
    urgent(&cluster);
    cluster.wait_until("it is suspended", |cluster| cluster.is_suspended("j"));
    assert_eq!(cluster.bound().len(), 2, "nothing was evicted");
}

/// The Job's pods are evicted, and the Job is left alone.
fn evicts(make: impl FnOnce(&Cluster)) {
    let (mut cluster, controller) = with_job();
    make(&cluster);
    let _scheduler = cluster.scheduler();
    cluster.wait_until_bound(&["j-0", "j-1"]);
    urgent(&cluster);
    cluster.wait_until_bound(&["u-0", "u-1"]);
    controller.step(&cluster);
    assert_eq!(controller.failed.get(), 2);
    let job = cluster.get_job("j");
    assert!(job["spec"]["suspend"] != true && job["metadata"]["labels"][MARK].is_null(), "{job}");
}

#[test]
fn a_job_with_a_budget_is_not_suspended() {
    evicts(|cluster| {
        let spec = json!({"minAvailable": 0, "selector": {"matchLabels": {"app": "j"}}});
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": spec,
        });
        cluster.objects.create(&BUDGETS, "default", budget);
        cluster.objects.merge_status(
            &BUDGETS,
            "default",
            "b",
            &json!({"status": {
                "disruptionsAllowed": 2, "currentHealthy": 2, "desiredHealthy": 0, "expectedPods": 2,
            }}),
        );
    });
}

#[test]
fn a_job_of_kueue_is_not_suspended() {
    evicts(|cluster| {
        let labels = json!({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "q"}}});
        cluster.objects.merge(&JOBS, "default", "j", &labels);
    });
}

/// Pods name their Job by its name.
#[test]
fn a_job_that_has_come_after_the_pods_is_not_suspended() {
    let created = |object: &Value| object["metadata"]["creationTimestamp"].as_str().unwrap().to_owned();
    evicts(|cluster| {
        let pods = created(&cluster.objects.get(&PODS, "default", "j-1"));
        while created(&cluster.get_job("j")) <= pods {
            cluster.objects.delete(&JOBS, "default", "j");
            cluster.job("j");
        }
    });
}

#[test]
fn pods_are_evicted_without_the_right_to_suspend() {
    evicts(|cluster| {
        cluster.server().set_fault(|method, path| match (method, path.contains("/jobs")) {
            ("PATCH", true) => Fault::Forbidden,
            _ => Fault::None,
        });
    });
    evicts(|cluster| {
        let is_of_batch = |path: &str| path.starts_with("/apis/batch/v1/") && path.contains("jobs");
        cluster.server().set_fault(move |_, path| if is_of_batch(path) { Fault::Forbidden } else { Fault::None });
    });
}
