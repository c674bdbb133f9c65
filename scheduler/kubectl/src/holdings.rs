//! The parts of devices that pods hold, as objects of the cluster say it.

use std::collections::BTreeMap;

use aliquot_api_server::{INVENTORY, Inventory, is_forbidden, message};
use aliquot_dialects::{DECISION, Decision, quantity};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim, ResourceSlice};
use kube::api::{Api, ListParams};
use serde::Serialize;

use crate::cluster::{Cluster, cannot};
use crate::failure::Failure;

/// The name of the managers' driver.
const DRIVER: &str = "gpu.aliquot.dev";

/// A part of a device that a container has.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Holding {
    pub(crate) node: String,
    /// The UUID of the device; if that is not known, its name in its node's pool.
    pub(crate) device: String,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    /// The name of the container; empty: the part belongs to a claim.
    pub(crate) container: String,
    pub(crate) claim: Option<String>,
    pub(crate) core_thousandths: Option<u32>,
    pub(crate) memory_bytes: Option<u64>,
}

/// A device that exists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Known {
    pub(crate) node: String,
    pub(crate) index: Option<u32>,
    pub(crate) model: String,
    pub(crate) memory_bytes: u64,
    pub(crate) problem: Option<String>,
}

/// The facts that were read from the objects.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) holdings: Vec<Holding>,
    /// The devices by their UUIDs.
    pub(crate) devices: BTreeMap<String, Known>,
    /// UUIDs of devices by their pool and their name in it.
    pub(crate) names: BTreeMap<(String, String), String>,
    /// The unread objects, with the reasons.
    pub(crate) notes: Vec<String>,
}

/// Reads the objects about the pods of one namespace, or of all.
///
/// # Errors
/// If the pods cannot be read.
pub(crate) async fn read(cluster: &Cluster, all_namespaces: bool) -> Result<Objects, Failure> {
    let client = || cluster.client.clone();
    let (pods, claims): (Api<Pod>, Api<ResourceClaim>) = match all_namespaces {
        true => (Api::all(client()), Api::all(client())),
        false => (Api::namespaced(client(), &cluster.namespace), Api::namespaced(client(), &cluster.namespace)),
    };
    let everything = ListParams::default();
    let pods = pods.list(&everything).await.map_err(|error| cannot("list the pods", &error))?.items;
    let mut objects = Objects::default();
    let nodes = Api::<Node>::all(client()).list(&everything).await;
    match nodes {
        Ok(nodes) => nodes.items.iter().for_each(|node| inventory(node, &mut objects)),
        Err(error) => objects.notes.push(format!("the models of devices are not known: {}", message(&error))),
    }
    let claims = match claims.list(&everything).await {
        Ok(claims) => claims.items,
        // A cluster without that API has no claims.
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(error) => {
            objects.notes.push(format!("the parts of claims are not known: {}", message(&error)));
            Vec::new()
        }
    };
    if claims.iter().any(|claim| results(claim).next().is_some()) {
        match Api::<ResourceSlice>::all(client()).list(&everything).await {
            Ok(slices) => published(&slices.items, &mut objects),
            Err(error) if is_forbidden(&error) => {
                objects.notes.push(format!("the UUIDs of claims' devices are not known: {}", message(&error)))
            }
            Err(error) => return Err(cannot("list the resource slices", &error)),
        }
    }
    let placed: BTreeMap<(&str, &str), &Pod> = pods.iter().filter(holds).filter_map(named).collect();
    for pod in placed.values() {
        of_decision(pod, &mut objects.holdings);
    }
    for claim in &claims {
        of_claim(claim, &placed, &objects.names, &mut objects.holdings);
    }
    objects.holdings.sort();
    Ok(objects)
}

fn named(pod: &Pod) -> Option<((&str, &str), &Pod)> {
    Some(((pod.metadata.namespace.as_deref()?, pod.metadata.name.as_deref()?), pod))
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|node| !node.is_empty())
}

fn holds(pod: &&Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    node_of(pod).is_some() && !phase.is_some_and(|phase| ["Succeeded", "Failed"].contains(&phase))
}

fn inventory(node: &Node, objects: &mut Objects) {
    let name = node.metadata.name.clone().unwrap_or_default();
    let text = node.metadata.annotations.as_ref().and_then(|annotations| annotations.get(INVENTORY));
    let Some(text) = text else { return };
    match serde_json::from_str::<Inventory>(text) {
        Ok(inventory) => objects.devices.extend(inventory.devices.into_iter().map(|device| {
            let known = Known {
                node: name.clone(),
                index: Some(device.index),
                model: device.model,
                memory_bytes: device.memory_bytes,
                problem: device.problem,
            };
            (device.uuid, known)
        })),
        Err(error) => objects.notes.push(format!("the inventory of node {name} cannot be read: {error}")),
    }
}

/// Adds the devices that are published in resource slices.
fn published(slices: &[ResourceSlice], objects: &mut Objects) {
    for spec in slices.iter().map(|slice| &slice.spec).filter(|spec| spec.driver == DRIVER) {
        for device in spec.devices.iter().flatten() {
            let text = |name: &str| {
                let attributes = device.attributes.as_ref()?;
                attributes.get(name)?.string.clone().filter(|text| !text.is_empty())
            };
            let memory = device.capacity.as_ref().and_then(|capacity| capacity.get("memory"));
            let known = Known {
                node: spec.pool.name.clone(),
                model: text("productName").unwrap_or_default(),
                memory_bytes: memory.and_then(|of| quantity::whole(&of.value.0).ok()).unwrap_or(0),
                ..Known::default()
            };
            let uuid = text("uuid").unwrap_or_else(|| device.name.clone());
            objects.names.insert((spec.pool.name.clone(), device.name.clone()), uuid.clone());
            objects.devices.insert(uuid, known);
        }
    }
}

fn of_decision(pod: &Pod, holdings: &mut Vec<Holding>) {
    let annotation = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(DECISION));
    let Some(decision) = annotation.and_then(|text| text.parse::<Decision>().ok()) else { return };
    let ((namespace, name), node) = (named(pod).map(|(name, _)| name).unwrap_or_default(), node_of(pod));
    for (container, parts) in decision.containers {
        holdings.extend(parts.into_iter().map(|part| Holding {
            node: node.unwrap_or_default().to_owned(),
            device: part.uuid,
            namespace: namespace.to_owned(),
            pod: name.to_owned(),
            container: container.clone(),
            claim: None,
            core_thousandths: Some(part.core_thousandths),
            memory_bytes: Some(part.memory_bytes),
        }));
    }
}

/// The allocation of a claim from this driver's devices.
fn results(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    let results = devices.and_then(|devices| devices.results.as_ref()).into_iter().flatten();
    results.filter(|result| result.driver == DRIVER)
}

/// The parts of a claim, once for each pod that uses them.
fn of_claim(
    claim: &ResourceClaim,
    placed: &BTreeMap<(&str, &str), &Pod>,
    names: &BTreeMap<(String, String), String>,
    holdings: &mut Vec<Holding>,
) {
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    let users = claim.status.as_ref().and_then(|status| status.reserved_for.as_ref()).into_iter().flatten();
    let users: Vec<&str> = users.filter(|user| user.resource == "pods").map(|user| user.name.as_str()).collect();
    for result in results(claim) {
        let amount = |name: &str| result.consumed_capacity.as_ref().and_then(|capacity| capacity.get(name));
        let core = amount("core").and_then(|of| quantity::thousandths(&of.0).ok());
        let holding = |pod: &str| Holding {
            node: placed.get(&(namespace, pod)).and_then(|pod| node_of(pod)).unwrap_or(&result.pool).to_owned(),
            device: names.get(&(result.pool.clone(), result.device.clone())).unwrap_or(&result.device).clone(),
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            container: String::new(),
            claim: claim.metadata.name.clone(),
            // This capacity is a percentage.
            core_thousandths: core.and_then(|thousandths| u32::try_from(thousandths / 100).ok()),
            memory_bytes: amount("memory").and_then(|of| quantity::whole(&of.0).ok()),
        };
        match users.as_slice() {
            [] => holdings.push(holding("")),
            users => holdings.extend(users.iter().map(|user| holding(user))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_and_decisions_say_who_has_what() {
        let pod = |name: &str, annotation: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "team", "annotations": {"aliquot.dev/devices": annotation}},
                "spec": {"containers": [], "nodeName": "n"},
            }))
            .unwrap()
        };
        let claim: ResourceClaim = serde_json::from_value(json!({
            "metadata": {"name": "gpu", "namespace": "team"}, "spec": {},
            "status": {
                "allocation": {"devices": {"results": [
                    {"driver": DRIVER, "pool": "n", "device": "gpu-0", "request": "gpu",
                     "consumedCapacity": {"core": "25", "memory": "8Gi"}},
                    {"driver": "other", "pool": "n", "device": "x", "request": "net"},
                ]}},
                "reservedFor": [{"resource": "pods", "name": "b", "uid": "u"}],
            },
        }))
        .unwrap();
        let pods = [pod("a", "main=GPU-1/300/1073741824"), pod("b", "")];
        let placed: BTreeMap<_, _> = pods.iter().filter(holds).filter_map(named).collect();
        let mut holdings = Vec::new();
        placed.values().for_each(|pod| of_decision(pod, &mut holdings));
        let names = BTreeMap::from([(("n".to_owned(), "gpu-0".to_owned()), "GPU-1".to_owned())]);
        of_claim(&claim, &placed, &names, &mut holdings);
        let found: Vec<_> = holdings
            .iter()
            .map(|of| (of.pod.as_str(), of.device.as_str(), of.core_thousandths, of.memory_bytes))
            .collect();
        assert_eq!(found, [("a", "GPU-1", Some(300), Some(1 << 30)), ("b", "GPU-1", Some(250), Some(8 << 30))]);
        assert!(holdings.iter().all(|of| of.node == "n"));
    }
}
