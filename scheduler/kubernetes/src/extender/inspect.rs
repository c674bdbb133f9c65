//! The devices of nodes and the pods that have them, in `GPUShare`'s format. Its amounts of memory are in its unit,
//! which is GiB unless nodes are configured otherwise. Further fields, which it does not have, give the exact amounts.

use std::collections::BTreeMap;

use aliquot_scheduler_core::Node as Books;
use aliquot_scheduler_engine::View;
use serde::Serialize;

use crate::serve::Shared;

#[derive(Debug, Serialize)]
pub(super) struct Inspection {
    nodes: Vec<Node>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    name: String,
    #[serde(rename = "totalGPU")]
    total: u64,
    #[serde(rename = "usedGPU")]
    used: u64,
    devs: Vec<Device>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    id: usize,
    #[serde(rename = "totalGPU")]
    total: u64,
    #[serde(rename = "usedGPU")]
    used: u64,
    pods: Vec<Pod>,
    uuid: String,
    memory_bytes: u64,
    used_memory_bytes: u64,
    used_core_thousandths: u32,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Pod {
    name: String,
    namespace: String,
    #[serde(rename = "usedGPU")]
    used: u64,
    used_memory_bytes: u64,
    used_core_thousandths: u32,
}

/// The pods that have parts of a device, by node and UUID of the device.
type Holders = BTreeMap<(String, String), Vec<Pod>>;

/// All nodes that have devices.
pub(super) fn all(shared: &Shared, view: &View) -> Inspection {
    let (mut holders, unit_bytes) = holders(shared);
    let nodes = view.cluster().nodes().filter(|(_, node)| !node.spec().devices.is_empty());
    Inspection { nodes: nodes.map(|(_, node)| of_node(node, &mut holders, unit_bytes)).collect() }
}

/// One node; `None`: it is not known.
pub(super) fn one(shared: &Shared, view: &View, name: &str) -> Option<Inspection> {
    let node = view.cluster().node(view.cluster().node_named(name)?)?;
    let (mut holders, unit_bytes) = holders(shared);
    Some(Inspection { nodes: vec![of_node(node, &mut holders, unit_bytes)] })
}

fn holders(shared: &Shared) -> (Holders, u64) {
    let mut holders = Holders::new();
    let unit_bytes = shared.read(|mirror| {
        for (facts, node, part) in mirror.parts() {
            let pod = Pod {
                name: facts.name.clone(),
                namespace: facts.namespace.clone(),
                used: part.memory.get(),
                used_memory_bytes: part.memory.get(),
                used_core_thousandths: part.core.get(),
            };
            holders.entry((node.to_owned(), part.uuid.clone())).or_default().push(pod);
        }
        mirror.gpushare_unit_bytes().max(1)
    });
    holders.values_mut().flatten().for_each(|pod| pod.used = pod.used.div_ceil(unit_bytes));
    (holders, unit_bytes)
}

fn of_node(node: &Books, holders: &mut Holders, unit_bytes: u64) -> Node {
    let name = node.spec().name.clone();
    let mut devs = Vec::with_capacity(node.devices().len());
    for (id, of) in aliquot_telemetry::device_uses(node).enumerate() {
        let pods = holders.remove(&(name.clone(), of.uuid.clone())).unwrap_or_default();
        // The books are published a moment after a pod is bound.
        let used_memory_bytes = of.memory_given_bytes.max(pods.iter().map(|pod| pod.used_memory_bytes).sum());
        let used_core_thousandths = of.core_given_millis.max(pods.iter().map(|pod| pod.used_core_thousandths).sum());
        devs.push(Device {
            id,
            total: of.memory_bytes / unit_bytes,
            used: used_memory_bytes.div_ceil(unit_bytes),
            pods,
            memory_bytes: of.memory_bytes,
            used_memory_bytes,
            used_core_thousandths,
            uuid: of.uuid,
        });
    }
    let sum = |amount: fn(&Device) -> u64| devs.iter().map(amount).sum();
    Node { name, total: sum(|of| of.total), used: sum(|of| of.used), devs }
}
