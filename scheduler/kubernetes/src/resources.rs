//! How much a pod asks for, beside devices: what kubelet counts when it admits the pod.

use std::collections::BTreeMap;

use aliquot_dialects::quantity;
use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, NodeAllocatableResourceClaimStatus, PodSpec, PodStatus, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::one_per_node;

/// CPU, in thousandths of a core.
const CPU: &str = "cpu";
/// Memory, in bytes.
const MEMORY: &str = "memory";
/// Number of pods: each pod counts as one.
const PODS: &str = "pods";

/// Refuses devices for an init container that ends before others of these containers start: a node gives such a
/// container and those after it the same units one after the other, and decisions are about units that are held
/// together.
///
/// # Errors
/// An init container that ends asks for devices beside another container. The text names both.
pub(crate) fn check_devices_of_init<'a>(
    spec: &PodSpec,
    with_devices: impl Iterator<Item = &'a str> + Clone,
) -> Result<(), String> {
    let ends = |name: &str| {
        let mut init = spec.init_containers.iter().flatten();
        init.any(|container| container.name == name && container.restart_policy.as_deref() != Some("Always"))
    };
    let Some(first) = with_devices.clone().find(|name| ends(name)) else { return Ok(()) };
    match with_devices.into_iter().find(|name| *name != first) {
        None => Ok(()),
        Some(other) => Err(format!(
            "init container {first:?} and container {other:?} ask for devices; Aliquot's scheduler gives devices to an \
             init container that ends only if no other container of the pod asks for some"
        )),
    }
}

/// Raises what a pod asks for to what kubelet has set aside for it and to what its containers have: all this differs
/// while a running pod is resized in place. If kubelet finds the new requests impossible on the node, they do not
/// count.
///
/// Source: `PodRequests` of Kubernetes' component helpers, with `UseStatusResources`.
pub(crate) fn count_what_is_held(spec: &mut PodSpec, status: &PodStatus) {
    let conditions = status.conditions.iter().flatten();
    let is_impossible = conditions
        .filter(|condition| condition.type_ == "PodResizePending" && condition.status == "True")
        .any(|condition| condition.reason.as_deref() == Some("Infeasible"));
    let raise =
        |asked: &mut ResourceRequirements, reserved: Option<&Quantities>, has: Option<&ResourceRequirements>| {
            let has = has.and_then(|has| has.requests.as_ref());
            if let (true, Some(requests)) = (is_impossible, &mut asked.requests) {
                requests.retain(|name, _| ![reserved, has].into_iter().flatten().any(|held| held.contains_key(name)));
            }
            for (name, amount) in reserved.into_iter().chain(has).flatten() {
                let requests = asked.requests.get_or_insert_default();
                if requests.get(name).is_none_or(|least| is_less(least, amount)) {
                    requests.insert(name.clone(), amount.clone());
                }
            }
        };
    let raise_all = |containers: &mut [Container], statuses: Option<&Vec<ContainerStatus>>| {
        for status in statuses.into_iter().flatten() {
            let container = containers.iter_mut().find(|container| container.name == status.name);
            if let Some(asked) = container.and_then(|container| container.resources.as_mut()) {
                raise(asked, status.allocated_resources.as_ref(), status.resources.as_ref());
            }
        }
    };
    raise_all(&mut spec.containers, status.container_statuses.as_ref());
    raise_all(spec.init_containers.as_deref_mut().unwrap_or_default(), status.init_container_statuses.as_ref());
    if let Some(asked) = &mut spec.resources {
        raise(asked, status.allocated_resources.as_ref(), status.resources.as_ref());
    }
    let of_claims: Vec<(String, Quantity)> =
        status.node_allocatable_resource_claim_statuses.iter().flatten().flat_map(of_claim).collect();
    for (name, amount) in of_claims {
        let overhead = spec.overhead.get_or_insert_default().entry(name).or_default();
        *overhead = sum(overhead, &amount);
    }
}

/// What a pod holds of its node by devices of a claim that stand for resources of the node: for each resource
/// `mapping + perPod + perContainer × containers`. It is counted beside all that the pod asks for.
///
/// Source: the field's description in Kubernetes 1.37.
fn of_claim(of: &NodeAllocatableResourceClaimStatus) -> impl Iterator<Item = (String, Quantity)> {
    let containers = of.containers.as_ref().map_or(0, Vec::len);
    let mapping = of.mapping.iter().flatten().map(|of| (of.name.clone(), of.quantity.clone()));
    let overhead = of.overhead.iter().flatten().flat_map(move |of| {
        let each = of.per_container.iter().flat_map(move |each| std::iter::repeat_n(each, containers));
        of.per_pod.iter().chain(each).map(|amount| (of.name.clone(), amount.clone()))
    });
    mapping.chain(overhead)
}

/// The sum of two quantities. One that cannot be read stays, so that what reads the sum names it.
fn sum(one: &Quantity, other: &Quantity) -> Quantity {
    let thousandths = |of: &Quantity| if of.0.is_empty() { Ok(0) } else { quantity::thousandths(&of.0) };
    match (thousandths(one), thousandths(other)) {
        (Ok(one), Ok(other)) => Quantity(format!("{}m", one.saturating_add(other))),
        (Err(_), _) => one.clone(),
        (_, Err(_)) => other.clone(),
    }
}

type Quantities = BTreeMap<String, Quantity>;

fn is_less(one: &Quantity, other: &Quantity) -> bool {
    match (quantity::thousandths(&one.0), quantity::thousandths(&other.0)) {
        (Ok(one), Ok(other)) => one < other,
        _ => false,
    }
}

/// Amounts of a node's resources, those of a pod or all that there is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amounts {
    pub(crate) cpu_millis: u64,
    pub(crate) memory_bytes: u64,
    /// All others, by name, in whole units.
    pub(crate) counted: BTreeMap<String, u64>,
}

impl Amounts {
    /// What a node says of itself. `is_counted` chooses among the resources besides CPU and memory.
    ///
    /// # Errors
    /// A quantity cannot be read.
    pub(crate) fn of_node(
        allocatable: &BTreeMap<String, Quantity>,
        is_counted: impl Fn(&str) -> bool,
    ) -> Result<Amounts, String> {
        Amounts::read(allocatable.iter(), is_counted)
    }

    /// What a pod asks for, as Kubernetes adds it up: of CPU, memory and huge pages what the pod says as a whole, if it
    /// does; else `max(containers + sidecars, each init container + the sidecars before it) + overhead`.
    ///
    /// # Errors
    /// A quantity cannot be read.
    pub(crate) fn of_pod(spec: &PodSpec, is_counted: impl Fn(&str) -> bool + Copy) -> Result<Amounts, String> {
        let mut all = Amounts::default();
        for container in &spec.containers {
            all.add(&Amounts::of_container(container, is_counted)?);
        }
        let (mut sidecars, mut most) = (Amounts::default(), Amounts::default());
        for container in spec.init_containers.iter().flatten() {
            let asked = Amounts::of_container(container, is_counted)?;
            if container.restart_policy.as_deref() == Some("Always") {
                sidecars.add(&asked);
                most.raise(&sidecars);
            } else {
                let mut with_sidecars = sidecars.clone();
                with_sidecars.add(&asked);
                most.raise(&with_sidecars);
            }
        }
        all.add(&sidecars);
        all.raise(&most);
        if let Some(of_pod) = &spec.resources {
            let asked = Amounts::read(asked(of_pod.requests.as_ref(), of_pod.limits.as_ref()).into_iter(), is_counted)?;
            all.replace_by(&asked, of_pod.requests.iter().chain(&of_pod.limits).flat_map(|of| of.keys()));
        }
        all.add(&Amounts::read(spec.overhead.iter().flatten(), is_counted)?);
        all.counted.insert(PODS.to_owned(), 1);
        all.counted.extend(one_per_node::of_pod(spec).map(|name| (name, 1)));
        Ok(all)
    }

    /// Adds each of these resources once.
    pub(crate) fn add_one_each<'a>(&mut self, names: impl Iterator<Item = &'a String>) {
        self.counted.extend(names.map(|name| (name.clone(), 1)));
    }

    /// What an instance holds beside devices.
    pub(crate) fn of_instance(amounts: &aliquot_scheduler_engine::Amounts) -> Amounts {
        Amounts { cpu_millis: amounts.cpu.get(), memory_bytes: amounts.memory.get(), counted: amounts.counted.clone() }
    }

    fn of_container(container: &Container, is_counted: impl Fn(&str) -> bool) -> Result<Amounts, String> {
        let Some(resources) = &container.resources else { return Ok(Amounts::default()) };
        Amounts::read(asked(resources.requests.as_ref(), resources.limits.as_ref()).into_iter(), is_counted)
    }

    fn read<'a>(
        quantities: impl Iterator<Item = (&'a String, &'a Quantity)>,
        is_counted: impl Fn(&str) -> bool,
    ) -> Result<Amounts, String> {
        let mut amounts = Amounts::default();
        for (name, quantity) in quantities {
            let thousandths = quantity::thousandths(&quantity.0)
                .map_err(|error| format!("{name} is {:?}; it must be {error}", quantity.0))?;
            let whole = || u64::try_from(thousandths.div_ceil(1000)).unwrap_or(u64::MAX);
            match name.as_str() {
                CPU => amounts.cpu_millis = u64::try_from(thousandths).unwrap_or(u64::MAX),
                MEMORY => amounts.memory_bytes = whole(),
                other if is_counted(other) && thousandths > 0 => _ = amounts.counted.insert(other.to_owned(), whole()),
                _ => {}
            }
        }
        Ok(amounts)
    }

    pub(crate) fn add(&mut self, other: &Amounts) {
        self.cpu_millis = self.cpu_millis.saturating_add(other.cpu_millis);
        self.memory_bytes = self.memory_bytes.saturating_add(other.memory_bytes);
        for (name, amount) in &other.counted {
            let sum = self.counted.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*amount);
        }
    }

    /// How much more CPU and memory this is than `other`.
    pub(crate) fn cpu_and_memory_beyond(&self, other: &Amounts) -> Amounts {
        Amounts {
            cpu_millis: self.cpu_millis.saturating_sub(other.cpu_millis),
            memory_bytes: self.memory_bytes.saturating_sub(other.memory_bytes),
            counted: BTreeMap::new(),
        }
    }

    /// Subtracts what is held.
    pub(crate) fn take(&mut self, held: &Amounts) {
        self.cpu_millis = self.cpu_millis.saturating_sub(held.cpu_millis);
        self.memory_bytes = self.memory_bytes.saturating_sub(held.memory_bytes);
        for (name, amount) in &mut self.counted {
            *amount = amount.saturating_sub(held.counted.get(name).copied().unwrap_or(0));
        }
    }

    /// Raises each amount to that of `other`, if it is less.
    pub(crate) fn raise(&mut self, other: &Amounts) {
        self.cpu_millis = self.cpu_millis.max(other.cpu_millis);
        self.memory_bytes = self.memory_bytes.max(other.memory_bytes);
        for (name, amount) in &other.counted {
            let most = self.counted.entry(name.clone()).or_default();
            *most = (*most).max(*amount);
        }
    }

    fn replace_by<'a>(&mut self, other: &Amounts, names: impl Iterator<Item = &'a String>) {
        for name in names {
            match name.as_str() {
                CPU => self.cpu_millis = other.cpu_millis,
                MEMORY => self.memory_bytes = other.memory_bytes,
                _ => match other.counted.get(name) {
                    Some(amount) => _ = self.counted.insert(name.clone(), *amount),
                    None => _ = self.counted.remove(name),
                },
            }
        }
    }
}

/// What is asked for: the requests, and the limits of what no request names.
fn asked<'a>(
    requests: Option<&'a BTreeMap<String, Quantity>>,
    limits: Option<&'a BTreeMap<String, Quantity>>,
) -> BTreeMap<&'a String, &'a Quantity> {
    limits.into_iter().flatten().chain(requests.into_iter().flatten()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(spec: serde_json::Value) -> Amounts {
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        Amounts::of_pod(&spec, |name| name != "example.com/gpu").unwrap()
    }

    fn container(requests: serde_json::Value) -> serde_json::Value {
        json!({"name": "c", "resources": {"requests": requests}})
    }

    #[test]
    fn containers_add_up_and_a_pod_counts_as_one() {
        let limits = json!({"name": "c", "resources": {"limits": {"cpu": "1", "example.com/gpu": 3, "rdma/hca": 1}}});
        let found = of(json!({"containers": [container(json!({"cpu": "0.1", "memory": "1Gi"})), limits]}));
        assert_eq!((found.cpu_millis, found.memory_bytes), (1100, 1 << 30));
        assert_eq!(found.counted, BTreeMap::from([("pods".to_owned(), 1), ("rdma/hca".to_owned(), 1)]));
    }

    #[test]
    fn init_containers_count_where_they_ask_for_more() {
        let sidecar = json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "200m"}}});
        let (big, small) = (container(json!({"cpu": "2"})), container(json!({"cpu": "1"})));
        let found =
            |init: Vec<&serde_json::Value>| of(json!({"containers": [small], "initContainers": init})).cpu_millis;
        assert_eq!(found(vec![&sidecar]), 1200);
        assert_eq!(found(vec![&big]), 2000);
        assert_eq!(found(vec![&sidecar, &big]), 2200);
        assert_eq!(found(vec![&big, &sidecar]), 2000);
    }

    #[test]
    fn what_a_pod_says_as_a_whole_goes_before_its_containers() {
        let spec = json!({
            "containers": [container(json!({"cpu": "3", "memory": "1Gi"}))],
            "resources": {"requests": {"cpu": "2"}},
            "overhead": {"cpu": "100m"},
        });
        let found = of(spec);
        assert_eq!((found.cpu_millis, found.memory_bytes), (2100, 1 << 30));
    }

    #[test]
    fn a_quantity_that_cannot_be_read_is_named() {
        let spec: PodSpec = serde_json::from_value(json!({"containers": [container(json!({"cpu": "-1"}))]})).unwrap();
        assert!(Amounts::of_pod(&spec, |_| true).unwrap_err().starts_with("cpu is \"-1\""));
    }
}
