//! Workloads that lose a device are suspended as a whole: their own controllers delete all their pods, count none as
//! failed, and make them again when the workload is resumed. Workloads of other projects' operators take part where the
//! cluster has them: JobSet, Kubeflow's trainer, training operator and MPI operator, and KubeRay.

use aliquot_harness::wait;
use serde_json::{Value, json};

use super::Tests;
use super::holder::HELD_BYTES;
use super::objects::{holds, pod_with};
use super::queues::{BORROWER, LENDER, of_queue};
use super::units::units;

/// How the scheduler's events about a workload begin. The workload's own controller has events of the same reasons.
const SUSPENDED: &str = "it is suspended until its pods are gone";
const RESUMED: &str = "its pods are gone, and it starts anew";
const MARK: &str = "aliquot.dev/suspended";
/// The label of the workload's pods.
const OF: &str = "aliquot-test-workload";

/// A workload whose pods take all devices.
struct Workload {
    /// The kind, as `kubectl` takes it.
    plural: &'static str,
    name: &'static str,
    objects: Vec<Value>,
    /// Pods without a device.
    others: usize,
    /// What its controller says that it should never say, as JSON pointers into it.
    failures: &'static [&'static str],
}

impl Tests<'_> {
    pub(crate) fn workloads_are_suspended_as_a_whole(&self) {
        if self.devices < 2 {
            println!("not run: queues that lend devices, because there is only one");
            return;
        }
        self.create_queues();
        if self.has_kind("rayjobs.ray.io") {
            self.a_ray_job_that_nobody_has_submitted_is_evicted();
        }
        let all = [
            self.a_job("whole-job"),
            self.a_job_set(),
            self.a_train_job(),
            self.a_pytorch_job(),
            self.an_mpi_job(),
            self.a_ray_cluster(),
            self.a_ray_job(),
        ];
        for workload in all {
            if !self.has_kind(workload.plural) {
                println!("not run: a suspended workload of {}, which the cluster does not have", workload.plural);
                continue;
            }
            self.is_suspended_and_resumed(&workload, false);
        }
        self.is_suspended_and_resumed(&self.a_job("left-job"), true);
        self.delete_queues();
    }

    /// Whether the cluster has this kind.
    fn has_kind(&self, plural: &str) -> bool {
        self.cluster.try_kubectl(&["get", plural, "--all-namespaces"], "").is_ok()
    }

    /// Creates the workload, and returns the UIDs of its pods.
    fn start_workload(&self, workload: &Workload) -> Vec<Value> {
        for object in &workload.objects {
            // An operator may know an object a little later than the API server, and refuses what names it.
            wait::until_true("the workload is created", || {
                self.namespace.try_apply(std::slice::from_ref(object)).is_ok()
            });
        }
        let first = self.pods_that_run(workload);
        assert!(self.all_is_given(), "{:?}", self.given());
        first
    }

    fn end_workload(&self, workload: &Workload) {
        self.namespace.delete(workload.plural, workload.name);
        wait::until_true("its pods are gone", || self.pods_of(workload).is_empty());
    }

    fn is_suspended_and_resumed(&self, workload: &Workload, kills_leader: bool) {
        let Workload { plural, name, .. } = *workload;
        let first = self.start_workload(workload);
        self.scheduled("back", 100, &of_queue(LENDER, 1));
        let why = wait::until("an event says that the workload is suspended", || self.says(workload, SUSPENDED));
        if kills_leader {
            self.kill_leader();
        }
        self.namespace.wait_for_output("back", "held");
        wait::until("an event says that the workload is resumed", || self.says(workload, RESUMED));
        let object = self.namespace.get(plural, name);
        let is_suspended = [&object["spec"], &object["spec"]["runPolicy"]].iter().any(|of| of["suspend"] == true);
        assert!(!is_suspended && object["metadata"]["labels"][MARK].is_null(), "{object:#}");
        self.starts_anew(workload, &first);
        let object = self.namespace.get(plural, name);
        for failure in workload.failures {
            let said = object.pointer(failure).cloned().unwrap_or_default();
            assert!(said.is_null() || said == 0, "{failure} is {said} in {object:#}");
        }
        let failed = |of: &&Value| of["type"] == "Failed" && of["status"] == "True";
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        assert_eq!(conditions.iter().find(failed), None, "{object:#}");
        for job in self.namespace.list("jobs") {
            assert!(job["status"]["failed"].is_null(), "{job:#}");
        }
        let by = if kills_leader { " by the next leader" } else { "" };
        println!("ok: {plural}/{name} was suspended as a whole and resumed{by}, and nothing of it failed: {why}");
        println!("    {}", object["status"]);
        self.end_workload(workload);
    }

    /// KubeRay suspends only a RayJob that starts or runs, and this one waits until somebody submits its job.
    fn a_ray_job_that_nobody_has_submitted_is_evicted(&self) {
        let mut workload = self.a_ray_job();
        let spec = &mut workload.objects[0]["spec"];
        spec["submissionMode"] = "InteractiveMode".into();
        spec.as_object_mut().unwrap().retain(|field, _| field != "submitterPodTemplate" && field != "entrypoint");
        let first = self.start_workload(&workload);
        let get = || self.namespace.get(workload.plural, workload.name);
        wait::until_true("it waits for its job", || get()["status"]["jobDeploymentStatus"] == "Waiting");
        let since = std::time::Instant::now();
        self.scheduled("back", 100, &of_queue(LENDER, 1));
        self.namespace.wait_for_output("back", "held");
        let took = since.elapsed().as_secs_f64();
        let object = get();
        assert!(object["spec"]["suspend"] != true && object["metadata"]["labels"][MARK].is_null(), "{object:#}");
        self.starts_anew(&workload, &first);
        println!(
            "ok: pods of a RayJob that KubeRay does not suspend were evicted within {took:.1} s, and started again"
        );
        self.end_workload(&workload);
    }

    /// Checks that its pods are others and wait, and that they run when the pod that has taken their place is gone.
    fn starts_anew(&self, workload: &Workload, first: &[Value]) {
        wait::until_true("its new pods wait for their turn", || {
            let pods = self.pods_of(workload);
            let waits = |pod: &Value| pod["spec"]["nodeName"].is_null() && !first.contains(&pod["metadata"]["uid"]);
            pods.len() == self.devices + workload.others && pods.iter().all(waits)
        });
        self.remove("back");
        self.pods_that_run(workload);
    }

    fn pods_of(&self, workload: &Workload) -> Vec<Value> {
        let mut pods = self.namespace.list("pods");
        pods.retain(|pod| pod["metadata"]["labels"][OF] == workload.name);
        pods
    }

    /// The UIDs of its pods, once all run.
    fn pods_that_run(&self, workload: &Workload) -> Vec<Value> {
        wait::until("all its pods run", || {
            let pods = self.pods_of(workload);
            let run = pods.iter().all(|pod| pod["status"]["phase"] == "Running");
            let uids = || pods.iter().map(|pod| pod["metadata"]["uid"].clone()).collect();
            (run && pods.len() == self.devices + workload.others).then(uids)
        })
    }

    /// The scheduler's event about the workload that begins like this.
    fn says(&self, workload: &Workload, begin: &str) -> Option<String> {
        let (kind, _) = workload.plural.split_once('.').expect("a full name");
        let is_it = |event: &&Value| {
            let about = &event["involvedObject"];
            let kind_of_it = about["kind"].as_str().unwrap_or_default().to_lowercase() + "s";
            let says = event["message"].as_str().is_some_and(|message| message.starts_with(begin));
            says && about["name"] == workload.name && kind_of_it == kind
        };
        self.namespace.list("events").iter().find(is_it).map(|event| event["message"].to_string())
    }

    /// A template of pods of the queue that borrows, with a whole device or none.
    fn template(&self, workload: &str, has_device: bool) -> Value {
        let sleeps = ["/bin/sh", "-c", "echo held; sleep 1000"].map(String::from);
        let (command, resources) =
            if has_device { (holds(HELD_BYTES), units(100, 1)) } else { (sleeps.to_vec(), json!({})) };
        let mut template = pod_with("", self.image, &command, &resources);
        template.as_object_mut().unwrap().retain(|field, _| field == "spec");
        template["spec"]["schedulerName"] = "aliquot".into();
        json_patch::merge(&mut template, &of_queue(BORROWER, 1));
        template["metadata"]["labels"][OF] = workload.into();
        template
    }

    fn a_job(&self, name: &'static str) -> Workload {
        let size = self.devices;
        let mut template = self.template(name, true);
        json_patch::merge(&mut template, &super::objects::gang(name, size));
        let spec = json!({"parallelism": size, "completions": size, "backoffLimit": 0, "template": template});
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec});
        Workload { plural: "jobs.batch", name, objects: vec![job], others: 0, failures: &["/status/failed"] }
    }

    fn a_job_set(&self) -> Workload {
        let name = "whole-jobset";
        let job = |has_device| {
            let template = self.template(name, has_device);
            json!({"spec": {"parallelism": 1, "completions": 1, "backoffLimit": 0, "template": template}})
        };
        let spec = json!({
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [
                {"name": "driver", "replicas": 1, "template": job(false)},
                {"name": "workers", "replicas": self.devices, "template": job(true)},
            ],
        });
        let metadata = json!({"name": name});
        let set =
            json!({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec});
        let failures = &["/status/restarts", "/status/restartsCountTowardsMax", "/status/terminalState"];
        Workload { plural: "jobsets.jobset.x-k8s.io", name, objects: vec![set], others: 1, failures }
    }

    fn a_train_job(&self) -> Workload {
        let name = "whole-trainjob";
        let step = json!({"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}});
        let mut template = self.template(name, true);
        template["spec"]["containers"][0]["name"] = "node".into();
        let job = json!({"metadata": step, "spec": {"backoffLimit": 0, "template": template}});
        let runtime = json!({
            "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime", "metadata": {"name": name},
            "spec": {
                "mlPolicy": {"numNodes": self.devices},
                "template": {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}},
            },
        });
        let by = json!({"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": name});
        let train = json!({
            "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": name},
            "spec": {"runtimeRef": by},
        });
        let objects = vec![runtime, train];
        Workload { plural: "trainjobs.trainer.kubeflow.org", name, objects, others: 0, failures: &[] }
    }

    fn a_pytorch_job(&self) -> Workload {
        let name = "whole-pytorchjob";
        let mut template = self.template(name, true);
        template["spec"]["containers"][0]["name"] = "pytorch".into();
        let workers = json!({"replicas": self.devices, "restartPolicy": "Never", "template": template});
        let job = json!({
            "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name},
            "spec": {"runPolicy": {"backoffLimit": 0}, "pytorchReplicaSpecs": {"Worker": workers}},
        });
        let failures = &["/status/replicaStatuses/Worker/failed"];
        Workload { plural: "pytorchjobs.kubeflow.org", name, objects: vec![job], others: 0, failures }
    }

    fn an_mpi_job(&self) -> Workload {
        let name = "whole-mpijob";
        let launcher = json!({"replicas": 1, "restartPolicy": "Never", "template": self.template(name, false)});
        let workers =
            json!({"replicas": self.devices, "restartPolicy": "Never", "template": self.template(name, true)});
        let job = json!({
            "apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": name},
            "spec": {
                "runPolicy": {"backoffLimit": 0}, "mpiReplicaSpecs": {"Launcher": launcher, "Worker": workers},
            },
        });
        let failures = &["/status/replicaStatuses/Worker/failed", "/status/replicaStatuses/Launcher/failed"];
        Workload { plural: "mpijobs.v2beta1.kubeflow.org", name, objects: vec![job], others: 1, failures }
    }

    fn a_ray_cluster(&self) -> Workload {
        let name = "whole-raycluster";
        let metadata = self.metadata_of_ray(name);
        let spec = self.spec_of_ray(name);
        let ray = json!({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": spec});
        let failures = &["/status/reason"];
        Workload { plural: "rayclusters.ray.io", name, objects: vec![ray], others: 1, failures }
    }

    /// Ray's own programs do not run here, so its job is never submitted.
    fn a_ray_job(&self) -> Workload {
        let name = "whole-rayjob";
        let mut submitter = self.template(name, false);
        submitter["metadata"]["labels"] = json!({});
        submitter["spec"]["schedulerName"] = "default-scheduler".into();
        let ray = json!({
            "apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": self.metadata_of_ray(name),
            "spec": {
                "entrypoint": "none", "shutdownAfterJobFinishes": true,
                "submitterPodTemplate": submitter, "rayClusterSpec": self.spec_of_ray(name),
            },
        });
        let failures = &["/status/failed", "/status/reason"];
        Workload { plural: "rayjobs.ray.io", name, objects: vec![ray], others: 1, failures }
    }

    /// The operator leaves the containers' commands alone.
    fn metadata_of_ray(&self, name: &str) -> Value {
        json!({"name": name, "annotations": {"ray.io/overwrite-container-cmd": "true"}})
    }

    fn spec_of_ray(&self, name: &str) -> Value {
        let size = self.devices;
        json!({
            "headGroupSpec": {"rayStartParams": {}, "template": self.template(name, false)},
            "workerGroupSpecs": [{
                "groupName": "whole", "rayStartParams": {}, "template": self.template(name, true),
                "replicas": size, "minReplicas": size, "maxReplicas": size,
            }],
        })
    }
}
