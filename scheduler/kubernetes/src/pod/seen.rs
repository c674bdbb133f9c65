//! A pod with fields of former versions of Kubernetes, which the type of newer pods does not have. It is read in one pass
//! and without a copy, because a new leader reads all pods of a cluster before it decides anything.
//!
//! Kubernetes 1.35 has another name for a pod's group. Kubernetes 1.36 has another field for what claims take of a node.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{
    NodeAllocatableMappedResources, NodeAllocatableOverheadResources, NodeAllocatableResourceClaimStatus, Pod, PodSpec,
    PodStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, IgnoredAny, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The field of a pod's specification that names a Workload.
pub(crate) const WORKLOAD_REF: &str = "workloadRef";
/// The field of a pod's status with what its claims take of its node.
const TAKEN_BY_CLAIMS: &str = "nodeAllocatableResourceClaimStatuses";

/// A pod as the API server shows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenPod {
    pub(crate) pod: Pod,
    /// The Workload that it names.
    pub(crate) workload: Option<String>,
}

impl From<Pod> for SeenPod {
    fn from(pod: Pod) -> SeenPod {
        SeenPod { pod, workload: None }
    }
}

impl Resource for SeenPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind(of: &()) -> Cow<'_, str> {
        Pod::kind(of)
    }

    fn group(of: &()) -> Cow<'_, str> {
        Pod::group(of)
    }

    fn version(of: &()) -> Cow<'_, str> {
        Pod::version(of)
    }

    fn plural(of: &()) -> Cow<'_, str> {
        Pod::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.pod.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.pod.metadata
    }
}

impl<'de> Deserialize<'de> for SeenPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SeenPod, D::Error> {
        deserializer.deserialize_map(ReadsPod)
    }
}

struct ReadsPod;

impl<'de> Visitor<'de> for ReadsPod {
    type Value = SeenPod;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a pod")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SeenPod, A::Error> {
        let mut seen = SeenPod::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "metadata" => seen.pod.metadata = map.next_value()?,
                "spec" => {
                    let spec: Option<SeenSpec> = map.next_value()?;
                    (seen.pod.spec, seen.workload) = spec.map(|of| (Some(of.spec), of.workload)).unwrap_or_default();
                }
                "status" => {
                    let status: Option<SeenStatus> = map.next_value()?;
                    seen.pod.status = status.map(|of| of.0);
                }
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(seen)
    }
}

struct SeenSpec {
    spec: PodSpec,
    workload: Option<String>,
}

impl<'de> Deserialize<'de> for SeenSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SeenSpec, D::Error> {
        deserializer.deserialize_map(ReadsSpec)
    }
}

struct ReadsSpec;

impl<'de> Visitor<'de> for ReadsSpec {
    type Value = SeenSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the specification of a pod")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SeenSpec, A::Error> {
        let mut workload: Option<Workload> = None;
        let rest = WithoutField { map, field: WORKLOAD_REF, value: &mut workload };
        let spec = PodSpec::deserialize(MapAccessDeserializer::new(rest))?;
        Ok(SeenSpec { spec, workload: workload.map(|of| of.name) })
    }
}

#[derive(Deserialize)]
struct Workload {
    #[serde(default)]
    name: String,
}

struct SeenStatus(PodStatus);

impl<'de> Deserialize<'de> for SeenStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SeenStatus, D::Error> {
        deserializer.deserialize_map(ReadsStatus)
    }
}

struct ReadsStatus;

impl<'de> Visitor<'de> for ReadsStatus {
    type Value = SeenStatus;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the status of a pod")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SeenStatus, A::Error> {
        let mut taken: Option<Vec<TakenByClaim>> = None;
        let rest = WithoutField { map, field: TAKEN_BY_CLAIMS, value: &mut taken };
        let status = PodStatus::deserialize(MapAccessDeserializer::new(rest))?;
        let taken = taken.map(|of| of.into_iter().map(TakenByClaim::into_newest).collect());
        Ok(SeenStatus(PodStatus { node_allocatable_resource_claim_statuses: taken, ..status }))
    }
}

/// What a claim takes of a node, in the words of all versions.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TakenByClaim {
    #[serde(default)]
    resource_claim_name: String,
    containers: Option<Vec<String>>,
    mapping: Option<Vec<NodeAllocatableMappedResources>>,
    overhead: Option<Vec<NodeAllocatableOverheadResources>>,
    /// What Kubernetes 1.36 has in place of the two before.
    resources: Option<BTreeMap<String, Quantity>>,
}

impl TakenByClaim {
    fn into_newest(self) -> NodeAllocatableResourceClaimStatus {
        let TakenByClaim { resource_claim_name, containers, mapping, overhead, resources } = self;
        let former = || {
            let mapped = |(name, quantity)| NodeAllocatableMappedResources { name, quantity };
            resources.map(|of| of.into_iter().map(mapped).collect())
        };
        NodeAllocatableResourceClaimStatus {
            resource_claim_name,
            containers,
            mapping: mapping.or_else(former),
            overhead,
        }
    }
}

/// The fields of an object, except one that is read on its own.
struct WithoutField<'a, A, T> {
    map: A,
    field: &'static str,
    value: &'a mut Option<T>,
}

impl<'de, A: MapAccess<'de>, T: Deserialize<'de>> MapAccess<'de> for WithoutField<'_, A, T> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while let Some(key) = self.map.next_key::<String>()? {
            if key != self.field {
                return seed.deserialize(key.into_deserializer()).map(Some);
            }
            *self.value = self.map.next_value()?;
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_read_whole_together_with_its_workload() {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}},
            "spec": {
                "containers": [{"name": "main", "image": "none"}],
                "workloadRef": {"name": "w", "podGroup": "g"},
                "nodeName": "n",
            },
            "status": {"phase": "Pending"},
        });
        let seen: SeenPod = serde_json::from_value(pod.clone()).unwrap();
        assert_eq!(seen.workload.as_deref(), Some("w"));
        assert_eq!(seen.pod, serde_json::from_value(pod).unwrap());
        let taken =
            json!({"resourceClaimName": "c", "containers": ["main"], "mapping": [{"name": "cpu", "quantity": "2"}]});
        let of_1_36 = json!({"resourceClaimName": "c", "containers": ["main"], "resources": {"cpu": "2"}});
        for status in [taken.clone(), of_1_36] {
            let status = json!({"phase": "Running", "nodeAllocatableResourceClaimStatuses": [status]});
            let seen: SeenPod = serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap();
            let expected = json!({"phase": "Running", "nodeAllocatableResourceClaimStatuses": [taken]});
            assert_eq!(seen.pod.status, Some(serde_json::from_value(expected).unwrap()));
        }
        let nothing: SeenPod = serde_json::from_str(r#"{"metadata": {}, "status": null}"#).unwrap();
        assert_eq!(nothing.pod.status, None);
        let bare: SeenPod = serde_json::from_str(r#"{"metadata": {"name": "p"}, "spec": {"containers": []}}"#).unwrap();
        assert_eq!((bare.workload, bare.pod.metadata.name.as_deref()), (None, Some("p")));
    }
}
