//! Extended resources of pods for which device classes stand. The scheduler makes one claim for all that a pod asks for
//! in this way, with requests for each container. The pod's status says which container has which requests.

use std::collections::BTreeMap;

use aliquot_dialects::quantity;
use k8s_openapi::api::core::v1::{Container, ContainerExtendedResourceRequest, PodSpec};
use k8s_openapi::api::resource::v1::{DeviceRequest, ExactDeviceRequest};

/// The annotation that marks such a claim by the value `true`.
pub(crate) const ANNOTATION: &str = "resource.kubernetes.io/extended-resource-claim";

/// Every class stands for the resource that is named by this prefix and the class's name.
const IMPLICIT: &str = "deviceclass.resource.kubernetes.io/";
/// Other resources of this domain are not extended resources.
const NATIVE: &str = "kubernetes.io/";

/// What a pod asks for by extended resources that classes stand for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Extended {
    pub(crate) requests: Vec<DeviceRequest>,
    /// Which of the requests each container has.
    pub(crate) mappings: Vec<ContainerExtendedResourceRequest>,
}

/// The resource that a class stands for in any case.
pub(crate) fn implicit_resource(class: &str) -> String {
    format!("{IMPLICIT}{class}")
}

/// Whether a class can stand for a resource of this name.
fn is_extended(resource: &str) -> bool {
    resource.starts_with(IMPLICIT) || resource.contains('/') && !resource.contains(NATIVE)
}

/// Whether a pod asks for resources that a class could stand for.
pub(crate) fn may_ask(spec: &PodSpec) -> bool {
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    containers.flat_map(asked).any(|(name, _)| is_extended(name))
}

/// What a container asks for, by resource. For extended resources, requests and limits are equal, and the API server
/// fills in the one that is left out.
fn asked(container: &Container) -> BTreeMap<&str, &str> {
    let resources = container.resources.iter();
    let both = resources.flat_map(|of| of.requests.iter().chain(&of.limits).flatten());
    both.map(|(name, quantity)| (name.as_str(), quantity.0.as_str())).collect()
}

/// A container, and how many devices of a class it asks for.
struct Asking<'a> {
    name: &'a str,
    /// The name of the container's request, if it has one of its own.
    request: String,
    count: i64,
    /// The container ends before the containers after it start, so they can have its devices.
    ends: bool,
}

impl Extended {
    /// What a pod asks for of the classes that stand for these resources.
    ///
    /// # Errors
    /// A number of devices cannot be read.
    pub(crate) fn of(spec: &PodSpec, classes: &BTreeMap<String, String>) -> Result<Extended, String> {
        let mut extended = Extended::default();
        for (resource, class) in classes.iter().filter(|(resource, _)| is_extended(resource)) {
            extended.add(resource, class, &asking(spec, resource)?);
        }
        extended.requests.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(extended)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Each container that stays has a request of its own. A container that ends uses the requests of the containers
    /// after it. If these are not enough, it uses one more request, which all containers that end share: they never run
    /// at the same time.
    fn add(&mut self, resource: &str, class: &str, containers: &[Asking<'_>]) {
        let stay = |at: usize| containers.iter().skip(at).filter(|of| of.count > 0 && !of.ends);
        for container in stay(0) {
            self.request(container, class, container.count);
            self.map(resource, container, container);
        }
        let mut lacking = Vec::new();
        for (at, container) in containers.iter().enumerate().filter(|(_, of)| of.ends) {
            let mut missing = container.count;
            for later in stay(at) {
                if missing > 0 {
                    self.map(resource, container, later);
                    missing -= later.count;
                }
            }
            lacking.extend((missing > 0).then_some((missing, container)));
        }
        // Of equals the first: `max_by_key` takes the last one.
        let most = lacking.iter().rev().max_by_key(|(missing, _)| *missing);
        let Some((count, owner)) = most.map(|(count, owner)| (*count, *owner)) else { return };
        self.request(owner, class, count);
        lacking.into_iter().for_each(|(_, container)| self.map(resource, container, owner));
    }

    fn request(&mut self, of: &Asking<'_>, class: &str, count: i64) {
        let exactly = ExactDeviceRequest {
            device_class_name: class.to_owned(),
            allocation_mode: Some("ExactCount".to_owned()),
            count: Some(count),
            ..ExactDeviceRequest::default()
        };
        self.requests.push(DeviceRequest { name: of.request.clone(), exactly: Some(exactly), first_available: None });
    }

    fn map(&mut self, resource: &str, container: &Asking<'_>, has: &Asking<'_>) {
        self.mappings.push(ContainerExtendedResourceRequest {
            container_name: container.name.to_owned(),
            resource_name: resource.to_owned(),
            request_name: has.request.clone(),
        });
    }
}

/// What the containers of a pod ask for of a resource, in the order in which they start. Requests have the names that
/// kube-scheduler gives them: by the places of the container and of the resource among all that it asks for.
fn asking<'a>(spec: &'a PodSpec, resource: &str) -> Result<Vec<Asking<'a>>, String> {
    let init = spec.init_containers.iter().flatten();
    let init = init.map(|of| (of, of.restart_policy.as_deref() != Some("Always")));
    let all = init.chain(spec.containers.iter().map(|of| (of, false)));
    all.enumerate()
        .map(|(at, (container, ends))| {
            let asked = asked(container);
            let place = asked.keys().position(|name| *name == resource).unwrap_or_default();
            let count = asked.get(resource).map_or(Ok(0), |text| whole(text));
            let count = count.map_err(|error| format!("container {:?}: {resource}: {error}", container.name))?;
            Ok(Asking { name: &container.name, request: format!("container-{at}-request-{place}"), count, ends })
        })
        .collect()
}

fn whole(text: &str) -> Result<i64, String> {
    let of_text = quantity::thousandths(text).map_err(|error| format!("it is {text:?}; it must be {error}"))?;
    let whole = (of_text % 1000 == 0).then(|| i64::try_from(of_text / 1000).ok()).flatten();
    whole.ok_or_else(|| format!("it is {text:?}; it must be a whole number of devices"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn container(name: &str, units: u32) -> Value {
        json!({"name": name, "resources": {"limits": {"cpu": "1", "example.com/gpu": units.to_string()}}})
    }

    fn of(spec: Value) -> Result<Extended, String> {
        let classes = [("example.com/gpu", "units"), ("deviceclass.resource.kubernetes.io/whole", "whole")];
        let classes = classes.map(|(resource, class)| (resource.to_owned(), class.to_owned())).into();
        Extended::of(&serde_json::from_value(spec).unwrap(), &classes)
    }

    fn requests(extended: &Extended) -> Vec<(&str, &str, i64)> {
        let request = |of: &'_ DeviceRequest| of.exactly.as_ref().and_then(|exactly| exactly.count);
        let all =
            extended.requests.iter().filter_map(|of| Some((of.name.as_str(), of.exactly.as_ref()?, request(of)?)));
        all.map(|(name, exactly, count)| (name, exactly.device_class_name.as_str(), count)).collect()
    }

    fn mappings(extended: &Extended) -> Vec<(&str, &str)> {
        extended.mappings.iter().map(|of| (of.container_name.as_str(), of.request_name.as_str())).collect()
    }

    #[test]
    fn each_container_that_stays_has_a_request() {
        let mut sidecar = container("sidecar", 1);
        sidecar["restartPolicy"] = "Always".into();
        let mut both = container("b", 2);
        both["resources"]["requests"] = json!({"deviceclass.resource.kubernetes.io/whole": "1"});
        let found = of(json!({"initContainers": [sidecar], "containers": [container("a", 0), both]})).unwrap();
        // Sorted by their names, the resources of "b" are cpu, the class's own, and the other one.
        let expected = [
            ("container-0-request-1", "units", 1),
            ("container-2-request-1", "whole", 1),
            ("container-2-request-2", "units", 2),
        ];
        assert_eq!(requests(&found), expected);
        let expected = ["container-2-request-1", "container-0-request-1", "container-2-request-2"];
        assert_eq!(mappings(&found), [("b", expected[0]), ("sidecar", expected[1]), ("b", expected[2])]);
    }

    #[test]
    fn containers_that_end_have_what_others_have_after_them() {
        let init = [container("i", 1), container("j", 4), container("k", 5)];
        let found = of(json!({"initContainers": init, "containers": [container("a", 1), container("b", 2)]})).unwrap();
        let [a, b, k] = ["container-3-request-1", "container-4-request-1", "container-2-request-1"];
        assert_eq!(requests(&found), [(k, "units", 2), (a, "units", 1), (b, "units", 2)]);
        let init = [("i", a), ("j", a), ("j", b), ("k", a), ("k", b), ("j", k), ("k", k)];
        assert_eq!(mappings(&found), [[("a", a), ("b", b)].as_slice(), &init].concat());
    }

    #[test]
    fn other_resources_are_none_of_it() {
        let asks = json!({"cpu": "1", "nvidia.com/gpu": "1", "kubernetes.io/x": "1", "hugepages-2Mi": "2Mi"});
        let spec = json!({"containers": [{"name": "a", "resources": {"limits": asks}}]});
        assert!(of(spec.clone()).unwrap().is_empty());
        assert!(may_ask(&serde_json::from_value(spec).unwrap()), "a class could stand for one of them");
        let native = json!({"cpu": "1", "kubernetes.io/x": "1"});
        let spec = json!({"containers": [{"name": "a", "resources": {"limits": native}}]});
        assert!(!may_ask(&serde_json::from_value(spec).unwrap()));
        let part = json!({"containers": [{"name": "a", "resources": {"limits": {"example.com/gpu": "500m"}}}]});
        assert!(of(part).unwrap_err().contains("whole number"));
    }
}
