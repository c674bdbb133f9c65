//! The part of the API server that the plugin needs: the contents of pods, and the places where the plugin reports
//! refusals.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aliquot_dialects::{Container, Pod};
use aliquot_node::Consumer;
use k8s_openapi::api::core::v1::{self as core, ContainerStatus, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use tracing::warn;

use aliquot_api_server::{Events, INVENTORY, Inventory, NOT_READ, Patience, is_not_found, message, pod_reference};

/// The name of the reporter in events.
const COMPONENT: &str = "aliquot.dev/device-plugin";
/// The time limit for one look. Units are not offered meanwhile.
pub(super) const LOOK_TIMEOUT: Duration = Duration::from_secs(2);
/// Time after an eviction in which no second pod of the same owner is evicted. A smaller offer does not keep every
/// successor away: for some resources the offer says only how many containers a device takes.
const EVICTION_PAUSE: Duration = Duration::from_secs(3600);
/// The controllers that replace a deleted pod by one for whichever node has room, and do not count the deletion as a
/// failure: the group of their API, and their kind. A job counts the deletion. A daemon set makes the new pod for the
/// same node.
const REPLACING: [(&str, &str); 3] = [("apps", "ReplicaSet"), ("apps", "StatefulSet"), ("", "ReplicationController")];

/// The functions of a cluster that the plugin needs.
#[tonic::async_trait]
pub trait Cluster: Send + Sync + 'static {
    /// The pod of that name; `None` if there is none.
    ///
    /// # Errors
    /// The pod is not known; the error says why.
    async fn pod(&self, namespace: &str, name: &str) -> Result<Option<KnownPod>, String>;

    /// Whether the pod of that name that was on this node has gone or ended; `None` if that is not known now. It does
    /// not try a second time.
    async fn has_gone(&self, namespace: &str, name: &str) -> Option<bool>;

    /// Reports why a container of the pod with this UID gets no slice.
    async fn refused(&self, container: &Consumer, pod_uid: &str, reason: &str);

    /// Evicts a pod that gets no room here, and reports why. It does so only while the container waits, and only if the
    /// pod's controller makes another one that can go to another node.
    async fn evict(&self, container: &Consumer, pod_uid: &str, reason: &str);

    /// Reports a part of the pod with this UID that was ignored although it was meant to be read. `container` is one of
    /// the pod's.
    async fn not_read(&self, container: &Consumer, pod_uid: &str, text: &str);

    /// Writes the node's amounts of these resources into its status.
    ///
    /// # Errors
    /// The status was not written; the error says why.
    async fn count(&self, amounts: &BTreeMap<&'static str, u64>) -> Result<(), String>;

    /// Writes the node's devices into an annotation of the node; `None` removes the annotation.
    ///
    /// # Errors
    /// The annotation was not written; the error says why.
    async fn describe(&self, inventory: Option<&Inventory>) -> Result<(), String>;

    /// Reports why the node offers no units of a resource.
    async fn not_offered(&self, reason: &str);
}

/// A pod of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownPod {
    /// The UID of the pod.
    pub uid: String,
    /// Its annotations and requests.
    pub pod: Pod,
}

/// The cluster behind an API server.
pub struct ApiServer {
    client: Client,
    events: Events,
    node_name: String,
    /// The time of the last eviction, by the UID of the pods' owner.
    evictions: Mutex<BTreeMap<String, Instant>>,
}

impl ApiServer {
    /// The cluster, for the node `node_name`.
    #[must_use]
    pub fn new(client: Client, node_name: String) -> ApiServer {
        let events = Events::new(client.clone(), COMPONENT, node_name.clone());
        ApiServer { client, events, node_name, evictions: Mutex::default() }
    }

    /// Whether a pod of this owner may be evicted now. If so, that counts as an eviction.
    fn may_evict_of(&self, owner_uid: &str) -> bool {
        let mut evictions = self.evictions();
        evictions.retain(|_, at| at.elapsed() < EVICTION_PAUSE);
        let is_first = !evictions.contains_key(owner_uid);
        if is_first {
            evictions.insert(owner_uid.to_owned(), Instant::now());
        }
        is_first
    }

    fn evictions(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.evictions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the node's status and annotations with one kind of request. A program that may write the status may
    /// write the annotations with it.
    async fn patch_node(&self, patch: Value) -> Result<(), String> {
        let nodes: Api<core::Node> = Api::all(self.client.clone());
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        match timeout(LOOK_TIMEOUT, nodes.patch_status(&self.node_name, &params, &patch)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(message(&error)),
            Err(late) => Err(late.to_string()),
        }
    }
}

#[tonic::async_trait]
impl Cluster for ApiServer {
    async fn pod(&self, namespace: &str, name: &str) -> Result<Option<KnownPod>, String> {
        let pods: Api<core::Pod> = Api::namespaced(self.client.clone(), namespace);
        match Patience::begin().ask(|| pods.get(name)).await {
            Ok(pod) => Ok(Some(known(pod))),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(message(&error)),
        }
    }

    async fn has_gone(&self, namespace: &str, name: &str) -> Option<bool> {
        let pods: Api<core::Pod> = Api::namespaced(self.client.clone(), namespace);
        match timeout(LOOK_TIMEOUT, pods.get(name)).await {
            Ok(Ok(pod)) => Some(has_ended(&pod) || !is_on(&pod, &self.node_name)),
            Ok(Err(error)) if is_not_found(&error) => Some(true),
            Ok(Err(_)) | Err(_) => None,
        }
    }

    async fn refused(&self, container: &Consumer, pod_uid: &str, reason: &str) {
        let about = ObjectReference {
            field_path: Some(format!("spec.containers{{{}}}", container.container)),
            ..pod_reference(&container.namespace, &container.pod, pod_uid)
        };
        self.events.warn(about, "SliceRefused", reason).await;
    }

    async fn evict(&self, container: &Consumer, pod_uid: &str, reason: &str) {
        let Consumer { namespace, pod: name, .. } = container;
        let pods: Api<core::Pod> = Api::namespaced(self.client.clone(), namespace);
        let Ok(pod) = pods.get(name).await else { return };
        let Some(owner) = replacing_owner(&pod) else { return };
        if !is_waiting(&pod, pod_uid, &container.container) || !self.may_evict_of(&owner.uid) {
            return;
        }
        let preconditions = Preconditions { uid: Some(pod_uid.to_owned()), resource_version: None };
        let this_one = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        if let Err(error) = pods.delete(name, &this_one).await {
            self.evictions().remove(&owner.uid);
            warn!(namespace, pod = name, error = message(&error), "cannot evict a pod that waits for room");
            return;
        }
        let text = format!("it was deleted, so that its successor can go elsewhere: {reason}");
        self.events.warn(pod_reference(namespace, name, pod_uid), "Evicted", &text).await;
    }

    async fn not_read(&self, container: &Consumer, pod_uid: &str, text: &str) {
        let about = pod_reference(&container.namespace, &container.pod, pod_uid);
        self.events.warn(about, NOT_READ, text).await;
    }

    async fn count(&self, amounts: &BTreeMap<&'static str, u64>) -> Result<(), String> {
        let quantities: BTreeMap<&str, String> =
            amounts.iter().map(|(resource, amount)| (*resource, amount.to_string())).collect();
        // Kubelet derives `allocatable` from `capacity`, up to ten seconds later. So both are written.
        self.patch_node(json!({"status": {"capacity": quantities, "allocatable": quantities}})).await
    }

    async fn describe(&self, inventory: Option<&Inventory>) -> Result<(), String> {
        let text = inventory.map(serde_json::to_string).transpose().map_err(|error| error.to_string())?;
        self.patch_node(json!({"metadata": {"annotations": {INVENTORY: text}}})).await
    }

    async fn not_offered(&self, reason: &str) {
        self.events.warn(self.events.node(), "ResourceNotOffered", reason).await;
    }
}

/// Whether none of the pod's containers runs or will run.
fn has_ended(pod: &core::Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase.is_some_and(|phase| ["Succeeded", "Failed"].contains(&phase))
}

/// Whether the pod is bound to this node. A bound pod never moves to another node. So a pod of the same name that is on
/// another node, or on none yet, is not the one that was here.
fn is_on(pod: &core::Pod, node_name: &str) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_deref() == Some(node_name))
}

/// The controller that makes another pod in place of this one if it is deleted, and lets that go to another node.
fn replacing_owner(pod: &core::Pod) -> Option<&OwnerReference> {
    let owner = pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    REPLACING.contains(&(group, owner.kind.as_str())).then_some(owner)
}

/// Whether the pod has this UID, and its container has not started yet.
fn is_waiting(pod: &core::Pod, uid: &str, container: &str) -> bool {
    let status = pod.status.clone().unwrap_or_default();
    let mut all = [status.container_statuses, status.init_container_statuses].into_iter().flatten().flatten();
    let is_running = |status: &ContainerStatus| status.state.as_ref().is_some_and(|state| state.running.is_some());
    pod.metadata.uid.as_deref() == Some(uid)
        && pod.metadata.deletion_timestamp.is_none()
        && !all.any(|status| status.name == container && is_running(&status))
}

fn known(pod: core::Pod) -> KnownPod {
    KnownPod { uid: pod.metadata.uid.clone().unwrap_or_default(), pod: translated(pod) }
}

/// Init containers come after the others: where other systems name containers by position, they do not mean init
/// containers.
fn translated(pod: core::Pod) -> Pod {
    let spec = pod.spec.unwrap_or_default();
    let containers = spec.containers.into_iter().chain(spec.init_containers.unwrap_or_default());
    Pod {
        labels: pod.metadata.labels.unwrap_or_default(),
        annotations: pod.metadata.annotations.unwrap_or_default(),
        containers: containers.map(container).collect(),
    }
}

fn container(container: core::Container) -> Container {
    let limits: BTreeMap<_, _> = container.resources.and_then(|resources| resources.limits).unwrap_or_default();
    let resources = limits.into_iter().map(|(name, quantity)| (name, quantity.0)).collect();
    Container { name: container.name, resources }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use kube::client::Body;
    use serde_json::Value;
    use tonic::codegen::http::{Method, Request, Response};

    use super::*;

    /// A server that has one pod, under any name.
    #[derive(Default)]
    struct Server {
        pod: Mutex<Value>,
        refuses_deletions: AtomicBool,
        /// The requests that it got, except reads.
        changes: Mutex<Vec<Method>>,
    }

    impl Server {
        fn answer(&self, request: &Request<Body>) -> Response<Body> {
            if *request.method() != Method::GET {
                self.changes.lock().unwrap().push(request.method().clone());
            }
            let (code, answer) = match *request.method() {
                Method::POST => (201, json!({"metadata": {}, "involvedObject": {}})),
                Method::DELETE if self.refuses_deletions.load(Ordering::Relaxed) => {
                    (409, json!({"kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409}))
                }
                _ => (200, self.pod.lock().unwrap().clone()),
            };
            Response::builder().status(code).body(Body::from(answer.to_string().into_bytes())).unwrap()
        }

        /// The cluster, as the plugin sees it.
        fn cluster(self: &Arc<Self>) -> ApiServer {
            let server = Arc::clone(self);
            let service = tower::service_fn(move |request: Request<Body>| {
                let answer = server.answer(&request);
                async move { Ok::<_, Infallible>(answer) }
            });
            ApiServer::new(Client::new(service, "default"), "node".into())
        }

        /// The requests by which `cluster` evicts this pod.
        async fn evicts(&self, cluster: &ApiServer, pod: &Value) -> Vec<Method> {
            *self.pod.lock().unwrap() = pod.clone();
            let container = Consumer { namespace: "default".into(), pod: "p".into(), container: "main".into() };
            cluster.evict(&container, "u", "no room").await;
            std::mem::take(&mut *self.changes.lock().unwrap())
        }
    }

    /// A pod that waits, of this owner.
    fn pod_of(api_version: &str, kind: &str, owner_uid: &str) -> Value {
        let owner = json!({"apiVersion": api_version, "kind": kind, "name": "o", "uid": owner_uid, "controller": true});
        json!({"metadata": {"name": "p", "uid": "u", "ownerReferences": [owner]}})
    }

    const NOTHING: [Method; 0] = [];
    const DELETED_AND_TOLD: [Method; 2] = [Method::DELETE, Method::POST];

    #[tokio::test]
    async fn only_pods_that_are_replaced_on_any_node_are_evicted() {
        for (api_version, kind, is_evicted) in [
            ("apps/v1", "ReplicaSet", true),
            ("apps/v1", "StatefulSet", true),
            ("v1", "ReplicationController", true),
            ("batch/v1", "Job", false),
            ("apps/v1", "DaemonSet", false),
            ("v1", "Node", false),
            ("argoproj.io/v1alpha1", "Workflow", false),
            ("example.com/v1", "ReplicaSet", false),
        ] {
            let server = Arc::new(Server::default());
            let done = server.evicts(&server.cluster(), &pod_of(api_version, kind, "o")).await;
            let expected: &[Method] = if is_evicted { &DELETED_AND_TOLD } else { &NOTHING };
            assert_eq!(done, expected, "{api_version} {kind}");
        }
        let server = Arc::new(Server::default());
        let mut without_controller = pod_of("apps/v1", "ReplicaSet", "o");
        without_controller["metadata"]["ownerReferences"][0]["controller"] = false.into();
        assert_eq!(server.evicts(&server.cluster(), &without_controller).await, NOTHING);
        let alone = json!({"metadata": {"name": "p", "uid": "u"}});
        assert_eq!(server.evicts(&server.cluster(), &alone).await, NOTHING);
    }

    #[tokio::test]
    async fn a_pod_that_waits_no_more_is_not_evicted() {
        let pod = pod_of("apps/v1", "ReplicaSet", "o");
        let with = |path: &[&str], value: Value| {
            let mut pod = pod.clone();
            *path.iter().fold(&mut pod, |field, key| &mut field[*key]) = value;
            pod
        };
        let status = |name: &str, state: &str| json!([{"name": name, "state": {state: {}}}]);
        let (containers, init_containers) = (["status", "containerStatuses"], ["status", "initContainerStatuses"]);
        let others = [
            with(&["metadata", "uid"], "another".into()),
            with(&["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z".into()),
            with(&containers, status("main", "running")),
            with(&init_containers, status("main", "running")),
        ];
        let server = Arc::new(Server::default());
        let cluster = server.cluster();
        for other in others {
            assert_eq!(server.evicts(&cluster, &other).await, NOTHING, "{other}");
        }
        for state in [status("main", "waiting"), status("another", "running")] {
            let pod = with(&containers, state);
            assert_eq!(server.evicts(&server.cluster(), &pod).await, DELETED_AND_TOLD, "{pod}");
        }
    }

    #[tokio::test]
    async fn a_failed_eviction_is_not_told_and_is_tried_again() {
        let server = Arc::new(Server::default());
        let (cluster, pod) = (server.cluster(), pod_of("apps/v1", "ReplicaSet", "o"));
        server.refuses_deletions.store(true, Ordering::Relaxed);
        assert_eq!(server.evicts(&cluster, &pod).await, [Method::DELETE]);
        server.refuses_deletions.store(false, Ordering::Relaxed);
        assert_eq!(server.evicts(&cluster, &pod).await, DELETED_AND_TOLD);
    }

    #[tokio::test(start_paused = true)]
    async fn one_pod_of_an_owner_is_evicted_in_an_hour() {
        let server = Arc::new(Server::default());
        let cluster = server.cluster();
        let [one, other] = ["one", "other"].map(|owner| pod_of("apps/v1", "ReplicaSet", owner));
        assert_eq!(server.evicts(&cluster, &one).await, DELETED_AND_TOLD);
        tokio::time::advance(EVICTION_PAUSE - Duration::from_secs(1)).await;
        assert_eq!(server.evicts(&cluster, &one).await, NOTHING);
        assert_eq!(server.evicts(&cluster, &other).await, DELETED_AND_TOLD);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(server.evicts(&cluster, &one).await, DELETED_AND_TOLD);
        assert_eq!(server.evicts(&cluster, &other).await, NOTHING);
    }

    #[test]
    fn limits_and_annotations_are_what_counts() {
        let container = |name: &str, core: &str| core::Container {
            name: name.into(),
            resources: Some(core::ResourceRequirements {
                limits: Some(BTreeMap::from([("aliquot.dev/gpu-core".to_owned(), Quantity(core.into()))])),
                ..core::ResourceRequirements::default()
            }),
            ..core::Container::default()
        };
        let mut pod = core::Pod {
            spec: Some(core::PodSpec {
                containers: vec![container("main", "30")],
                init_containers: Some(vec![container("sidecar", "10")]),
                ..core::PodSpec::default()
            }),
            ..core::Pod::default()
        };
        pod.metadata.annotations = Some(BTreeMap::from([("a".to_owned(), "b".to_owned())]));
        pod.metadata.labels = Some(BTreeMap::from([("aliyun.com/gpu-count".to_owned(), "2".to_owned())]));
        pod.metadata.uid = Some("u".into());
        let KnownPod { uid, pod: found } = known(pod);
        assert_eq!(uid, "u");
        let names: Vec<&str> = found.containers.iter().map(|container| container.name.as_str()).collect();
        assert_eq!(names, ["main", "sidecar"]);
        assert_eq!(found.containers[0].resources["aliquot.dev/gpu-core"], "30");
        assert_eq!(found.annotations["a"], "b");
        assert_eq!(found.labels["aliyun.com/gpu-count"], "2");
        assert_eq!(known(core::Pod::default()), KnownPod::default());
    }

    #[tokio::test]
    async fn a_pod_has_gone_when_the_one_of_its_name_is_not_on_this_node() {
        let server = Arc::new(Server::default());
        let cluster = server.cluster();
        for (node_name, has_gone) in [("node".into(), false), ("other".into(), true), (Value::Null, true)] {
            let spec = json!({"nodeName": node_name, "containers": []});
            *server.pod.lock().unwrap() = json!({"metadata": {"name": "p"}, "spec": spec});
            assert_eq!(cluster.has_gone("default", "p").await, Some(has_gone), "{node_name}");
        }
    }

    #[test]
    fn a_pod_has_ended_when_its_phase_says_so() {
        let in_phase = |phase: &str| {
            let status = core::PodStatus { phase: Some(phase.into()), ..core::PodStatus::default() };
            core::Pod { status: Some(status), ..core::Pod::default() }
        };
        for (phase, ended) in
            [("Pending", false), ("Running", false), ("Unknown", false), ("Succeeded", true), ("Failed", true)]
        {
            assert_eq!(has_ended(&in_phase(phase)), ended, "{phase}");
        }
        assert!(!has_ended(&core::Pod::default()));
    }
}
