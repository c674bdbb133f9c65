//! Extended resources that stand for a device class: the scheduler makes one claim for all containers of a pod, with
//! requests for each container, and writes into the pod's status which request belongs to which container.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::api::resource::v1::DeviceClass;
use serde_json::{Value, json};

use crate::pod::{all_containers_of, extended_resources, init_containers_of, is_sidecar, name_of, uid_of};

/// The names of classes by the extended resources that stand for them.
pub(super) fn by_resource<'a>(classes: impl Iterator<Item = &'a DeviceClass>) -> BTreeMap<String, String> {
    let mut resources = BTreeMap::new();
    for class in classes {
        let name = class.metadata.name.clone().unwrap_or_default();
        resources.insert(format!("deviceclass.resource.kubernetes.io/{name}"), name.clone());
        let resource = class.spec.as_ref().and_then(|spec| spec.extended_resource_name.clone());
        resources.extend(resource.map(|resource| (resource, name)));
    }
    resources
}

/// The claim for the pod's extended resources, with the container of each request; `None` if the pod asks for none.
pub(super) fn claim(pod: &Pod, by_resource: &BTreeMap<String, String>) -> Option<(Value, Vec<Value>)> {
    let mut asked = Asked::default();
    for (resource, class) in by_resource {
        asked.add(pod, resource, class);
    }
    if asked.requests.is_empty() {
        return None;
    }
    let (_, name) = name_of(pod);
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {
            "generateName": format!("{name}-extended-resources-"),
            "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid_of(pod), "controller": true},
            ],
        },
        "spec": {"devices": {"requests": asked.requests}},
    });
    Some((claim, asked.mappings))
}

#[derive(Default)]
struct Asked {
    requests: Vec<Value>,
    mappings: Vec<Value>,
}

impl Asked {
    /// Adds the requests of the pod's containers for one resource. Init containers that end before the others start use
    /// the devices of the later containers. Only their need beyond that becomes a request of its own, for all of them
    /// together.
    fn add(&mut self, pod: &Pod, resource: &str, class: &str) {
        let containers: Vec<&Container> = all_containers_of(pod).collect();
        let counts = containers.iter().map(|container| extended_resources(container).remove(resource).unwrap_or(0));
        let counts: Vec<usize> = counts.collect();
        let ends = |at: usize| at < init_containers_of(pod).len() && !is_sidecar(containers[at]);
        for at in (0..containers.len()).filter(|at| counts[*at] > 0 && !ends(*at)) {
            self.request(containers[at], at, resource, class, counts[at]);
            self.map(containers[at], resource, &request_name(containers[at], at, resource));
        }
        let mut lacking = Vec::new();
        for at in (0..containers.len()).filter(|at| ends(*at)) {
            let mut missing = counts[at];
            for later in (at + 1..containers.len()).filter(|later| counts[*later] > 0 && !ends(*later)) {
                if missing > 0 {
                    self.map(containers[at], resource, &request_name(containers[later], later, resource));
                    missing = missing.saturating_sub(counts[later]);
                }
            }
            lacking.extend((missing > 0).then_some((missing, at)));
        }
        let Some(&(most, owner)) = lacking.iter().max() else { return };
        self.request(containers[owner], owner, resource, class, most);
        for (_, at) in lacking {
            self.map(containers[at], resource, &request_name(containers[owner], owner, resource));
        }
    }

    fn request(&mut self, container: &Container, at: usize, resource: &str, class: &str, count: usize) {
        let exactly = json!({"deviceClassName": class, "allocationMode": "ExactCount", "count": count});
        self.requests.push(json!({"name": request_name(container, at, resource), "exactly": exactly}));
    }

    fn map(&mut self, container: &Container, resource: &str, request: &str) {
        self.mappings.push(json!({"containerName": container.name, "resourceName": resource, "requestName": request}));
    }
}

/// `container-A-request-B`: A is the index of the container in the pod, B that of the resource among all that the
/// container asks for.
fn request_name(container: &Container, at: usize, resource: &str) -> String {
    let all = container.resources.iter().flat_map(|resources| resources.limits.iter().flatten());
    let place = all.map(|(name, _)| name).position(|name| name == resource);
    format!("container-{at}-request-{}", place.unwrap_or_default())
}
