//! Reports in events of the node which of its devices have a problem, and which have recovered.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_node::{Device, Devices, Node};
use kube::Client;

use aliquot_api_server::Events;

/// The name of the reporter in events.
const COMPONENT: &str = "aliquot.dev/manager";

/// Reports until this is dropped, or the node is gone.
pub async fn tell(node: Arc<dyn Node>, client: Client, node_name: String) {
    let events = Events::new(client, COMPONENT, node_name);
    let mut devices = node.devices();
    let mut told = BTreeMap::new();
    loop {
        let now = Arc::clone(&devices.borrow_and_update());
        let problems = problems(&now);
        for (uuid, problem) in problems.iter().filter(|(uuid, problem)| told.get(*uuid) != Some(*problem)) {
            let text = format!("device {uuid} gets nothing new: {problem}");
            events.warn(events.node(), "DeviceUnhealthy", &text).await;
        }
        let is_well = |uuid: &&String| now.get(uuid).is_some_and(|device| device.problem.is_none());
        for uuid in told.keys().filter(is_well) {
            events.note(events.node(), "DeviceRecovered", &format!("device {uuid} can be given out again")).await;
        }
        told = problems;
        if devices.changed().await.is_err() {
            return;
        }
    }
}

/// The problem of each device that has one. If a GPU has a problem, its instances are left out.
fn problems(devices: &Devices) -> BTreeMap<String, String> {
    let is_ill = |uuid: &str| devices.get(uuid).is_some_and(|gpu| gpu.problem.is_some());
    let has_it_from_gpu =
        |device: &&Device| device.mig_instance.as_ref().is_some_and(|instance| is_ill(&instance.gpu_uuid));
    let own = devices.devices.iter().filter(|device| !has_it_from_gpu(device));
    own.filter_map(|device| Some((device.uuid.clone(), device.problem.clone()?))).collect()
}
