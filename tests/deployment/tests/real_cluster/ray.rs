//! Ray clusters whose workers have halves of devices. The test makes the pods that KubeRay's operator would make.

use aliquot_harness::wait;
use serde_json::{Value, json};

use super::Tests;
use super::cluster::Cluster;
use super::holder::HELD_BYTES;
use super::objects::{holds, pod_with};
use super::units::units;

const KIND: &str = "rayclusters.ray.io";
/// A file with KubeRay's own definition of the kind, if that is to be used.
const DEFINITION: &str = "ALIQUOT_TEST_RAY_DEFINITION";
/// The finalizer with which the operator keeps a RayCluster until what its head has saved elsewhere is removed.
const CLEANUP: &str = "ray.io/gcs-ft-redis-cleanup-finalizer";
/// The name of the only group of workers.
const WORKERS: &str = "halves";

/// The definition of RayClusters. Dropping this removes it if the test has brought it, unless the test fails.
struct Definition<'a> {
    cluster: &'a Cluster,
    is_ours: bool,
}

impl Drop for Definition<'_> {
    fn drop(&mut self) {
        if self.is_ours && !std::thread::panicking() {
            self.cluster.kubectl(&["delete", "customresourcedefinition", KIND], "");
        }
    }
}

/// A Ray cluster: a head without devices, and workers with half of a device each.
struct RayCluster<'t, 'a> {
    tests: &'t Tests<'a>,
    name: &'static str,
    workers: usize,
}

impl Tests<'_> {
    pub(crate) fn ray_clusters_start_as_a_whole(&self) {
        let _definition = self.define_ray_clusters();
        let cluster = |name, workers| RayCluster { tests: self, name, workers };
        let (first, second) = (cluster("first", 2 * self.devices), cluster("second", 2));
        first.create();
        let (last, others) = first.names().split_last().map(|(last, others)| (last.clone(), others.to_vec())).unwrap();
        others.iter().for_each(|name| first.create_pod(name));
        for name in &others {
            wait::until_true("the pod waits for the last worker", || {
                self.waits_with(name, "Waiting").contains("needs 1 more")
            });
        }
        first.has_nothing();
        first.create_pod(&last);
        first.runs();
        assert!(self.all_is_given(), "{:?}", self.given());
        println!("ok: a Ray cluster of a head and {} workers with halves started when it was whole", first.workers);

        second.create();
        second.names().iter().for_each(|name| second.create_pod(name));
        for name in second.names() {
            let why = self.waits_with(&name, "Unschedulable");
            assert!(why.starts_with("no-room"), "{why}");
            println!("ok: {name} waits: {why}");
        }
        second.has_nothing();
        first.remove();
        println!("ok: a Job cleaned up after the first Ray cluster, though that has no other pod");
        second.runs();
        println!("ok: when the first Ray cluster was deleted, the second one started as a whole");
        second.remove();
    }

    /// Brings the definition of the kind, unless the cluster has it.
    fn define_ray_clusters(&self) -> Definition<'_> {
        let known = format!("customresourcedefinition/{KIND}");
        let is_ours = self.cluster.try_kubectl(&["get", &known], "").is_err();
        if is_ours {
            match std::env::var(DEFINITION) {
                Ok(file) => _ = self.cluster.kubectl(&["create", "--filename", &file], ""),
                Err(_) => self.cluster.apply(&[stand_in()]),
            }
            wait::until_true("Ray clusters can be listed", || {
                self.cluster.try_kubectl(&["get", KIND, "--namespace", self.namespace.name()], "").is_ok()
            });
        }
        Definition { cluster: self.cluster, is_ours }
    }
}

impl RayCluster<'_, '_> {
    /// The pods: the head and the workers.
    fn names(&self) -> Vec<String> {
        let workers = (0..self.workers).map(|number| format!("{}-{WORKERS}-worker-{number}", self.name));
        [format!("{}-head", self.name)].into_iter().chain(workers).collect()
    }

    /// The operator makes no more workers than `maxReplicas`, whatever `replicas` says.
    fn create(&self) {
        self.tests.namespace.apply(&[json!({
            "apiVersion": "ray.io/v1", "kind": "RayCluster",
            "metadata": {"name": self.name, "finalizers": [CLEANUP]},
            "spec": {
                "headGroupSpec": {"rayStartParams": {}, "template": {"spec": self.spec(true)}},
                "workerGroupSpecs": [{
                    "groupName": WORKERS, "rayStartParams": {}, "template": {"spec": self.spec(false)},
                    "replicas": self.workers + 1, "minReplicas": 0, "maxReplicas": self.workers,
                }],
            },
        })]);
    }

    fn spec(&self, is_head: bool) -> Value {
        let sleeps = ["/bin/sh", "-c", "echo held; sleep 1000"].map(String::from);
        let (command, resources) =
            if is_head { (sleeps.to_vec(), json!({})) } else { (holds(HELD_BYTES), units(50, 1)) };
        let mut spec = pod_with("", self.tests.image, &command, &resources)["spec"].take();
        spec["schedulerName"] = "aliquot".into();
        spec["terminationGracePeriodSeconds"] = 1.into();
        spec
    }

    /// Makes one of its pods, as the operator does from the templates.
    fn create_pod(&self, name: &str) {
        let is_head = name.ends_with("-head");
        let (node_type, group) = if is_head { ("head", "headgroup") } else { ("worker", WORKERS) };
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": self.spec(is_head)});
        pod["metadata"] = self.metadata(name, node_type, group);
        self.tests.namespace.apply(&[pod]);
    }

    fn metadata(&self, name: &str, node_type: &str, group: &str) -> Value {
        let uid = self.tests.namespace.get(KIND, self.name)["metadata"]["uid"].take();
        json!({
            "name": name,
            "labels": {
                "app.kubernetes.io/created-by": "kuberay-operator", "app.kubernetes.io/name": "kuberay",
                "ray.io/cluster": self.name, "ray.io/group": group,
                "ray.io/identifier": format!("{}-{node_type}", self.name),
                "ray.io/is-ray-node": "yes", "ray.io/node-type": node_type,
            },
            "ownerReferences": [{
                "apiVersion": "ray.io/v1", "kind": "RayCluster", "name": self.name, "uid": uid,
                "controller": true, "blockOwnerDeletion": true,
            }],
        })
    }

    /// Deletes it. When its pods are gone, the operator runs a Job that removes what the head has saved elsewhere. The
    /// Job's pod has the labels of the head, but another type.
    fn remove(&self) {
        let namespace = self.tests.namespace;
        namespace.begin_to_delete(KIND, self.name);
        let of_this = format!("--selector=ray.io/cluster={}", self.name);
        self.tests.cluster.kubectl(&["delete", "pods", &of_this, "--namespace", namespace.name()], "");
        let name = format!("{}-redis-cleanup", self.name);
        let metadata = self.metadata(&name, "redis-cleanup", "headgroup");
        let mut spec = self.spec(true);
        spec["containers"][0]["command"] = json!(["/bin/sh", "-c", "echo cleaned"]);
        let template = json!({"metadata": {"labels": metadata["labels"]}, "spec": spec});
        let spec = json!({"backoffLimit": 0, "activeDeadlineSeconds": 300, "template": template});
        namespace.apply(&[json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})]);
        wait::until_true("the Job has cleaned up", || namespace.get("job", &name)["status"]["succeeded"] == 1);
        let patch = r#"--patch={"metadata":{"finalizers":null}}"#;
        let patch = ["patch", KIND, self.name, "--type=merge", patch, "--namespace", namespace.name()];
        self.tests.cluster.kubectl(&patch, "");
    }

    /// Checks that none of its pods is bound.
    fn has_nothing(&self) {
        let pods = self.tests.namespace.list("pods").into_iter();
        let of_this = pods.filter(|pod| pod["metadata"]["labels"]["ray.io/cluster"] == self.name);
        of_this.for_each(|pod| assert!(pod["spec"]["nodeName"].is_null(), "{pod:#}"));
    }

    fn runs(&self) {
        self.names().iter().for_each(|name| self.tests.namespace.wait_for_output(name, "held"));
    }
}

/// A definition in place of KubeRay's, which takes anything.
fn stand_in() -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": KIND},
        "spec": {
            "group": "ray.io", "scope": "Namespaced",
            "names": {"kind": "RayCluster", "plural": "rayclusters", "singular": "raycluster"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
        },
    })
}
