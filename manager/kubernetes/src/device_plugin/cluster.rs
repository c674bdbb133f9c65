//! The API server, as far as the plugin needs it: what pods say of themselves, and where it says what it refuses.

use std::collections::BTreeMap;
use std::time::Duration;

use aliquot_dialects::{Container, Pod};
use k8s_openapi::api::core::v1::{self as core, ObjectReference};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::timeout;
use tracing::warn;

use crate::api_server::{Patience, is_not_found, message};
use crate::events::{Events, NOT_READ, pod_reference};
use crate::node::Consumer;

/// Who says it in events.
const COMPONENT: &str = "aliquot.dev/device-plugin";
/// Units are not offered meanwhile.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// What the plugin needs of a cluster.
#[tonic::async_trait]
pub trait Cluster: Send + Sync + 'static {
    /// The pod of that name; `None` if there is none.
    ///
    /// # Errors
    /// Why it is not known.
    async fn pod(&self, namespace: &str, name: &str) -> Result<Option<KnownPod>, String>;

    /// Whether the pod of that name has gone or ended; `None` if that is not known now. It is not asked for twice.
    async fn has_gone(&self, namespace: &str, name: &str) -> Option<bool>;

    /// Says why a container of the pod with this UID gets no slice.
    async fn refused(&self, container: &Consumer, pod_uid: &str, reason: &str);

    /// Says why a pod gets no room here, and ends it, if a controller makes another one in its place.
    async fn evict(&self, container: &Consumer, pod_uid: &str, reason: &str);

    /// Says what of the pod with this UID, of which `container` is one, is not read though it was meant to be.
    async fn not_read(&self, container: &Consumer, pod_uid: &str, text: &str);

    /// Says in the node's status how much of these resources it has.
    ///
    /// # Errors
    /// Why it does not say so.
    async fn count(&self, amounts: &BTreeMap<&'static str, u64>) -> Result<(), String>;

    /// Says why the node offers no units of a resource.
    async fn not_offered(&self, reason: &str);
}

/// A pod of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownPod {
    /// Its UID.
    pub uid: String,
    /// What it says.
    pub pod: Pod,
}

/// The cluster behind an API server.
pub struct ApiServer {
    client: Client,
    events: Events,
    node_name: String,
}

impl ApiServer {
    /// As `node_name` sees it.
    #[must_use]
    pub fn new(client: Client, node_name: String) -> ApiServer {
        ApiServer { events: Events::new(client.clone(), COMPONENT, node_name.clone()), client, node_name }
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
            Ok(Ok(pod)) => Some(has_ended(&pod)),
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
        if !is_replaced(&pod) {
            return;
        }
        let about = pod_reference(namespace, name, pod_uid);
        self.events
            .warn(about, "Evicted", &format!("it is deleted, so that its successor can go elsewhere: {reason}"))
            .await;
        let preconditions = Preconditions { uid: Some(pod_uid.to_owned()), resource_version: None };
        let this_one = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        if let Err(error) = pods.delete(name, &this_one).await {
            warn!(namespace, pod = name, error = message(&error), "cannot evict a pod that waits for room");
        }
    }

    async fn not_read(&self, container: &Consumer, pod_uid: &str, text: &str) {
        let about = pod_reference(&container.namespace, &container.pod, pod_uid);
        self.events.warn(about, NOT_READ, text).await;
    }

    async fn count(&self, amounts: &BTreeMap<&'static str, u64>) -> Result<(), String> {
        let nodes: Api<core::Node> = Api::all(self.client.clone());
        let quantities: BTreeMap<&str, String> =
            amounts.iter().map(|(resource, amount)| (*resource, amount.to_string())).collect();
        // Kubelet makes the latter of the former, up to ten seconds later.
        let status = json!({"status": {"capacity": quantities, "allocatable": quantities}});
        let patch = Patch::Merge(status);
        let params = PatchParams::default();
        match timeout(LOOK_TIMEOUT, nodes.patch_status(&self.node_name, &params, &patch)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(message(&error)),
            Err(late) => Err(late.to_string()),
        }
    }

    async fn not_offered(&self, reason: &str) {
        self.events.warn(self.events.node(), "ResourceNotOffered", reason).await;
    }
}

/// Whether none of its containers runs or will run.
fn has_ended(pod: &core::Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase.is_some_and(|phase| ["Succeeded", "Failed"].contains(&phase))
}

/// Whether a controller makes another one in its place.
fn is_replaced(pod: &core::Pod) -> bool {
    pod.metadata.owner_references.iter().flatten().any(|owner| owner.controller == Some(true))
}

fn known(pod: core::Pod) -> KnownPod {
    KnownPod { uid: pod.metadata.uid.clone().unwrap_or_default(), pod: translated(pod) }
}

/// Init containers stand behind the others: what other systems say of containers by their place does not mean them.
fn translated(pod: core::Pod) -> Pod {
    let spec = pod.spec.unwrap_or_default();
    let containers = spec.containers.into_iter().chain(spec.init_containers.unwrap_or_default());
    Pod { annotations: pod.metadata.annotations.unwrap_or_default(), containers: containers.map(container).collect() }
}

fn container(container: core::Container) -> Container {
    let limits: BTreeMap<_, _> = container.resources.and_then(|resources| resources.limits).unwrap_or_default();
    let resources = limits.into_iter().map(|(name, quantity)| (name, quantity.0)).collect();
    Container { name: container.name, resources }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

    use super::*;

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
        pod.metadata.uid = Some("u".into());
        let KnownPod { uid, pod: found } = known(pod);
        assert_eq!(uid, "u");
        let names: Vec<&str> = found.containers.iter().map(|container| container.name.as_str()).collect();
        assert_eq!(names, ["main", "sidecar"]);
        assert_eq!(found.containers[0].resources["aliquot.dev/gpu-core"], "30");
        assert_eq!(found.annotations["a"], "b");
        assert_eq!(known(core::Pod::default()), KnownPod::default());
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
