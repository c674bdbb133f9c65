//! A cluster of one node.

use std::path::PathBuf;
use std::sync::Arc;

use aliquot_harness::wait;
use k8s_openapi::api::core::v1::{Event as CoreEvent, Pod};
use k8s_openapi::api::events::v1::Event;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::controllers;
use crate::kubelet::{Kubelet, Settings, Timing};
use crate::pod::{all_containers_of, containers_of, uid_of};
use crate::runtime::ContainerRuntime;
use aliquot_test_api_server::{ApiServer, CORE_EVENTS, EVENTS, NODES, PODS, Resource, Store};

/// The name of the cluster's only node.
pub const NODE_NAME: &str = "node-1";
/// The namespace of the tests' pods.
pub const NAMESPACE: &str = "default";

/// A cluster: an API server, controllers and a scheduler, and a node with a kubelet. When it is dropped, all of it
/// ends, also its containers.
#[derive(Debug)]
pub struct Cluster {
    kubelet: Option<Kubelet>,
    api_server: ApiServer,
    containers: Arc<dyn ContainerRuntime>,
    timing: Timing,
    dir: TempDir,
    _runtime: Runtime,
}

impl Cluster {
    /// Starts a cluster that runs its node's containers with `containers`.
    #[must_use]
    pub fn start(containers: Arc<dyn ContainerRuntime>) -> Cluster {
        Cluster::with(containers, Timing::default())
    }

    /// The same, with the kubelet's waits in `timing`.
    ///
    /// # Panics
    /// If a part of it cannot be started.
    #[must_use]
    pub fn with(containers: Arc<dyn ContainerRuntime>, timing: Timing) -> Cluster {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("threads for the cluster");
        let dir = tempfile::Builder::new().prefix("aliquot-cluster-").tempdir().expect("a temporary directory");
        let api_server = ApiServer::start(runtime.handle());
        api_server.write_kubeconfig(&dir.path().join("kubeconfig"));
        let store = api_server.store();
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE_NAME}});
        store.create(&NODES, "", node).expect("a node can be made");
        runtime.spawn(controllers::run(store, NODE_NAME.to_owned()));
        let mut cluster = Cluster { kubelet: None, api_server, containers, timing, dir, _runtime: runtime };
        cluster.start_kubelet();
        cluster
    }

    /// The kubeconfig for clients of the API server.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    /// The kubelet's directory, which replaces `/var/lib/kubelet`.
    #[must_use]
    pub fn kubelet_dir(&self) -> PathBuf {
        self.dir.path().join("kubelet")
    }

    /// The API server of the cluster.
    #[must_use]
    pub fn api_server(&self) -> &ApiServer {
        &self.api_server
    }

    /// The API server's objects.
    #[must_use]
    pub fn store(&self) -> Store {
        self.api_server.store()
    }

    /// The kubelet.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn kubelet(&self) -> &Kubelet {
        self.kubelet.as_ref().expect("the kubelet runs")
    }

    /// Ends the kubelet as if it were killed. Its containers keep running.
    pub fn kill_kubelet(&mut self) {
        self.kubelet = None;
    }

    /// Starts a kubelet, after [`Cluster::kill_kubelet`].
    ///
    /// # Panics
    /// If it runs already.
    pub fn start_kubelet(&mut self) {
        assert!(self.kubelet.is_none(), "the kubelet runs already");
        let settings = Settings { node_name: NODE_NAME.to_owned(), directory: self.kubelet_dir(), timing: self.timing };
        self.kubelet = Some(Kubelet::start(settings, self.store(), Arc::clone(&self.containers)));
    }

    /// Makes an object of this resource.
    ///
    /// # Panics
    /// If the API server refuses the object.
    #[track_caller]
    pub fn create(&self, resource: &'static Resource, object: Value) -> Value {
        let namespace = if resource.namespaced { NAMESPACE } else { "" };
        let created = self.store().create(resource, namespace, object);
        created.unwrap_or_else(|failure| panic!("cannot make {}: {failure}", resource.plural))
    }

    /// Makes a pod with this specification.
    ///
    /// # Panics
    /// If the API server refuses it.
    #[track_caller]
    pub fn create_pod(&self, name: &str, spec: &Value) -> Pod {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
        serde_json::from_value(self.create(&PODS, pod)).expect("what was made is a pod")
    }

    /// The present state of the pod; `None` if it does not exist.
    #[must_use]
    pub fn pod(&self, name: &str) -> Option<Pod> {
        self.store().get(&PODS, NAMESPACE, name).ok()
    }

    /// Waits until the pod is in `phase`. Fails the test if the pod ends in another phase.
    ///
    /// # Panics
    /// If the pod does not reach the phase.
    #[track_caller]
    pub fn wait_for_phase(&self, name: &str, phase: &str) -> Pod {
        wait::until(&format!("pod {name} is {phase}"), || {
            let pod = self.pod(name)?;
            let status = pod.status.clone().unwrap_or_default();
            let now = status.phase.clone().unwrap_or_default();
            let ended = ["Succeeded", "Failed"].contains(&now.as_str());
            assert!(now == phase || !ended, "pod {name} is {now}, not {phase}: {status:?}\n{}", self.output(&pod));
            (now == phase).then_some(pod)
        })
    }

    /// Waits until the pod has an error that contains `words`.
    ///
    /// # Panics
    /// If no such error comes.
    #[track_caller]
    pub fn wait_for_error(&self, name: &str, words: &str) -> String {
        let pod = self.pod(name).expect("the pod is there");
        wait::until(&format!("pod {name} has an error with {words:?}"), || {
            let conditions = self.pod(name)?.status?.conditions.unwrap_or_default();
            let unscheduled = conditions.into_iter().find_map(|condition| condition.message);
            let error = self.kubelet().pod_error(&uid_of(&pod)).or(unscheduled)?;
            error.contains(words).then_some(error)
        })
    }

    /// Deletes a pod, and waits until its kubelet has cleaned up.
    ///
    /// # Panics
    /// If the pod does not exist, or stays.
    #[track_caller]
    pub fn delete_pod(&self, name: &str) {
        self.store().delete(&PODS, NAMESPACE, name, false).expect("the pod is there");
        wait::until_true(&format!("pod {name} is gone"), || self.pod(name).is_none());
    }

    /// The standard output of a pod's containers.
    #[must_use]
    pub fn output(&self, pod: &Pod) -> String {
        let ids = containers_of(pod).iter().map(|container| format!("k8s_{}_{}", container.name, uid_of(pod)));
        ids.map(|id| self.containers.output(&id)).collect()
    }

    /// The standard output of one container of a pod, which may be an init container.
    #[must_use]
    pub fn output_of(&self, pod: &Pod, container: &str) -> String {
        self.containers.output(&format!("k8s_{container}_{}", uid_of(pod)))
    }

    /// The events of both groups, as `reason: message`.
    #[must_use]
    pub fn events(&self) -> Vec<String> {
        let store = self.store();
        let core = store.list::<CoreEvent>(&CORE_EVENTS).into_iter().map(|event| (event.reason, event.message));
        let newer = store.list::<Event>(&EVENTS).into_iter().map(|event| (event.reason, event.note));
        let line = |(reason, message): (Option<String>, Option<String>)| {
            format!("{}: {}", reason.unwrap_or_default(), message.unwrap_or_default())
        };
        core.chain(newer).map(line).collect()
    }

    /// The keys of a manager's configuration, in the table `kubernetes`, with which it finds this cluster.
    #[must_use]
    pub fn manager_settings(&self, mode: &str) -> String {
        format!(
            "[kubernetes]\nmode = {mode:?}\nnode_name = {NODE_NAME:?}\nkubelet_dir = {:?}\nkubeconfig = {:?}\n",
            self.kubelet_dir(),
            self.kubeconfig(),
        )
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let pods = self.store().list::<Pod>(&PODS);
        self.kubelet = None;
        for pod in pods {
            for container in all_containers_of(&pod) {
                self.containers.remove(&format!("k8s_{}_{}", container.name, uid_of(&pod)));
            }
        }
    }
}
