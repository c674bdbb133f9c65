//! What pods say of themselves: their resources and annotations, from the API server.

use std::collections::BTreeMap;

use aliquot_dialects::{Container, Pod};
use k8s_openapi::api::core::v1 as core;
use kube::{Api, Client};

use crate::api_server::message;

/// Where pods are looked up.
#[tonic::async_trait]
pub trait Pods: Send + Sync + 'static {
    /// The pod of that name; the error says why it is not known.
    async fn get(&self, namespace: &str, name: &str) -> Result<Pod, String>;
}

#[tonic::async_trait]
impl Pods for Client {
    async fn get(&self, namespace: &str, name: &str) -> Result<Pod, String> {
        let pods: Api<core::Pod> = Api::namespaced(self.clone(), namespace);
        pods.get(name).await.map(translated).map_err(|error| message(&error))
    }
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
        let found = translated(pod);
        let names: Vec<&str> = found.containers.iter().map(|container| container.name.as_str()).collect();
        assert_eq!(names, ["main", "sidecar"]);
        assert_eq!(found.containers[0].resources["aliquot.dev/gpu-core"], "30");
        assert_eq!(found.annotations["a"], "b");
        assert_eq!(translated(core::Pod::default()), Pod::default());
    }
}
