//! Allocation of devices to containers: decided when the pod is admitted, and told to the plugin again before the
//! start.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use aliquot_proto::kubelet::device_plugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerPreferredAllocationRequest, PreStartContainerRequest,
    PreferredAllocationRequest,
};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Value, json};

use super::{Endpoint, Given, HEALTHY, Owner, Shared, State, shuffled};
use crate::kubelet::DriverCall;
use crate::kubelet::checkpoint::Checkpoint;
use crate::pod::{all_containers_of, extended_resources, init_containers_of, is_sidecar, uid_of};

/// The result of the plugins' answers for a container.
#[derive(Debug, Default)]
pub(in super::super) struct Admitted {
    pub(in super::super) cdi_devices: Vec<String>,
    pub(in super::super) environment: BTreeMap<String, String>,
    /// For each mount the path in the container, the path on the node, and whether it is read-only.
    pub(in super::super) mounts: Vec<(String, String, bool)>,
}

/// Allocates the devices of all the pod's containers, or of none.
pub(in super::super) async fn allocate(shared: &Shared, pod: &Pod) -> Result<(), String> {
    let _one_at_a_time = shared.devices.admission.lock().await;
    let uid = uid_of(pod);
    // Later containers first get the devices of init containers that end before the others start.
    let mut reusable: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for container in all_containers_of(pod) {
        if let Err(reason) = allocate_container(shared, pod, container, &reusable).await {
            shared.devices.release(&uid);
            return Err(reason);
        }
        let ends = init_containers_of(pod).iter().any(|init| init.name == container.name) && !is_sidecar(container);
        for (resource, given) in shared.devices.of_container(&uid, &container.name) {
            let ids = reusable.entry(resource).or_default();
            if ends {
                ids.extend(given.ids);
            } else {
                ids.retain(|id| !given.ids.contains(id));
            }
        }
    }
    Ok(())
}

async fn allocate_container(
    shared: &Shared,
    pod: &Pod,
    container: &Container,
    reusable: &BTreeMap<String, BTreeSet<String>>,
) -> Result<(), String> {
    let uid = uid_of(pod);
    let owner = (uid.clone(), container.name.clone());
    let asked = extended_resources(container);
    // The real kubelet iterates over a map with a random order.
    for resource in shuffled(asked.keys().cloned(), &uid) {
        let count = asked[&resource];
        let has_it = shared.devices.of_container(&uid, &container.name).contains_key(&resource);
        // A resource that no plugin has ever registered is not for device plugins.
        if count == 0 || has_it || !shared.devices.lock().known.contains(&resource) {
            continue;
        }
        let reused = shuffled(reusable.get(&resource).into_iter().flatten().cloned(), &uid);
        let reused = reused.into_iter().take(count).collect();
        let (client, chosen) = choose(shared, &resource, count, reused, &uid).await?;
        let ids = shuffled(chosen.iter().cloned(), &uid);
        let request = AllocateRequest { container_requests: vec![ContainerAllocateRequest { device_ids: ids }] };
        let begin = Instant::now();
        let answer = client.clone().allocate(request).await;
        let answer = answer.map_err(|status| format!("Allocate failed due to {status}, which is unexpected"))?;
        shared.note_call("Allocate", DriverCall::since(begin));
        let answer = answer.into_inner().container_responses.into_iter().next();
        let answer = answer.ok_or("no containers return in allocation response")?;
        let mut state = shared.devices.lock();
        let by_node = state.by_node(&resource, &chosen);
        state.given.entry(owner.clone()).or_default().insert(resource, Given { ids: chosen, by_node, answer });
        write(&shared.devices.checkpoint, &state);
    }
    Ok(())
}

type Client =
    aliquot_proto::kubelet::device_plugin::device_plugin_client::DevicePluginClient<tonic::transport::Channel>;

/// Chooses `count` devices: all of `chosen`, and others as the plugin prefers.
async fn choose(
    shared: &Shared,
    resource: &str,
    count: usize,
    mut chosen: BTreeSet<String>,
    seed: &str,
) -> Result<(Client, BTreeSet<String>), String> {
    let (mut client, options, available) = {
        let state = shared.devices.lock();
        let endpoint = state.endpoints.get(resource);
        let endpoint = endpoint.ok_or_else(|| format!("cannot allocate unregistered device {resource}"))?;
        let in_use = state.in_use(resource);
        let available: BTreeSet<String> = healthy(endpoint).filter(|id| !in_use.contains(id)).collect();
        (endpoint.client.clone(), endpoint.options, available)
    };
    if chosen.len() == count {
        return Ok((client, chosen));
    }
    if chosen.len() + available.len() < count {
        let free = available.len();
        return Err(format!(
            "requested number of devices unavailable for {resource}. Requested: {count}, Available: {free}"
        ));
    }
    // If all available devices are needed, there is nothing to prefer.
    if options.get_preferred_allocation_available && count - chosen.len() < available.len() {
        let offered: BTreeSet<String> = available.union(&chosen).cloned().collect();
        let request = ContainerPreferredAllocationRequest {
            available_device_ids: shuffled(offered.iter().cloned(), seed),
            must_include_device_ids: shuffled(chosen.iter().cloned(), seed),
            allocation_size: i32::try_from(count).map_err(|error| error.to_string())?,
        };
        let request = PreferredAllocationRequest { container_requests: vec![request] };
        let answer = client.get_preferred_allocation(request).await.map_err(|status| status.to_string())?.into_inner();
        let preferred =
            answer.container_responses.into_iter().next().map(|answer| answer.device_ids).unwrap_or_default();
        let distinct: BTreeSet<String> = preferred.iter().cloned().collect();
        let is_right = distinct.len() == preferred.len() && distinct.len() <= count && distinct.is_subset(&offered);
        if !is_right || !distinct.is_superset(&chosen) {
            shared.complain(format!("{resource}: {count} devices, the plugin prefers {preferred:?} of {offered:?}"));
        }
        let more = count - chosen.len();
        chosen.extend(distinct.intersection(&available).take(more).cloned());
    }
    for id in shuffled(available, seed) {
        if chosen.len() < count {
            chosen.insert(id);
        }
    }
    Ok((client, chosen))
}

fn healthy(endpoint: &Endpoint) -> impl Iterator<Item = String> + '_ {
    endpoint.devices.iter().filter(|(_, device)| device.health == HEALTHY).map(|(id, _)| id.clone())
}

/// Tells the plugins that a container is about to start. Returns the plugins' answers for the container.
pub(in super::super) async fn pre_start(shared: &Shared, pod: &Pod, container: &Container) -> Result<Admitted, String> {
    let uid = uid_of(pod);
    let given = shared.devices.of_container(&uid, &container.name);
    for resource in shuffled(given.keys().cloned(), &format!("start of {uid}")) {
        let (mut client, options) = {
            let state = shared.devices.lock();
            let endpoint = state.endpoints.get(&resource);
            let endpoint =
                endpoint.ok_or_else(|| format!("endpoint not found in cache for a registered resource: {resource}"))?;
            (endpoint.client.clone(), endpoint.options)
        };
        if !options.pre_start_required {
            continue;
        }
        let device_ids = shuffled(given[&resource].ids.iter().cloned(), &format!("start of {uid}"));
        let begin = Instant::now();
        let call = client.pre_start_container(PreStartContainerRequest { device_ids });
        let failed = |why: String| format!("device plugin PreStartContainer rpc failed with err: {why}");
        let called = tokio::time::timeout(shared.settings.timing.pre_start, call).await;
        let answered = called.map_err(|_| failed("deadline exceeded".to_owned()))?;
        answered
            .map_err(|status| failed(format!("rpc error: code = {:?} desc = {}", status.code(), status.message())))?;
        shared.note_call("PreStartContainer", DriverCall::since(begin));
    }
    let mut admitted = Admitted::default();
    for Given { answer, .. } in given.into_values() {
        admitted.cdi_devices.extend(answer.cdi_devices.into_iter().map(|device| device.name));
        admitted.environment.extend(answer.envs);
        let mounts = answer.mounts.into_iter();
        admitted.mounts.extend(mounts.map(|mount| (mount.container_path, mount.host_path, mount.read_only)));
        if !answer.devices.is_empty() {
            shared.complain(format!("device nodes belong into CDI files: {:?}", answer.devices));
        }
    }
    Ok(admitted)
}

impl State {
    /// These ids of a resource by their NUMA nodes; -1 for devices without one.
    fn by_node(&self, resource: &str, ids: &BTreeSet<String>) -> BTreeMap<i64, Vec<String>> {
        let mut by_node: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        for id in ids {
            let device = self.endpoints.get(resource).and_then(|endpoint| endpoint.devices.get(id));
            let topology = device.and_then(|device| device.topology.clone()).unwrap_or_default();
            let nodes: Vec<i64> = topology.nodes.iter().map(|node| node.id).collect();
            for node in if nodes.is_empty() { vec![-1] } else { nodes } {
                by_node.entry(node).or_default().push(id.clone());
            }
        }
        by_node
    }
}

/// The containers' devices and the known resources in the checkpoint.
pub(super) fn read(checkpoint: &Checkpoint) -> State {
    let file: Value = checkpoint.read();
    let known = file["Data"]["RegisteredDevices"].as_object().into_iter().flatten().map(|(name, _)| name.clone());
    let mut all: BTreeMap<Owner, BTreeMap<String, Given>> = BTreeMap::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for entry in file["Data"]["PodDeviceEntries"].as_array().into_iter().flatten() {
        let answer = serde_json::from_value::<ByteString>(entry["AllocResp"].clone()).unwrap_or_default();
        let by_node: BTreeMap<i64, Vec<String>> =
            serde_json::from_value(entry["DeviceIDs"].clone()).unwrap_or_default();
        let given = Given {
            ids: by_node.values().flatten().cloned().collect(),
            by_node,
            answer: prost::Message::decode(answer.0.as_slice()).unwrap_or_default(),
        };
        let owner = (text(&entry["PodUID"]), text(&entry["ContainerName"]));
        all.entry(owner).or_default().insert(text(&entry["ResourceName"]), given);
    }
    State { given: all, known: known.collect(), ..State::default() }
}

/// Writes the checkpoint in the form of the real kubelet, except the checksum: plugins read the file, too.
pub(super) fn write(checkpoint: &Checkpoint, state: &State) {
    let entries = state.given.iter().flat_map(|((pod, container), given)| {
        given.iter().map(move |(resource, Given { by_node, answer, .. })| {
            let answer = ByteString(prost::Message::encode_to_vec(answer));
            json!({
                "PodUID": pod, "ContainerName": container, "ResourceName": resource, "DeviceIDs": by_node,
                "AllocResp": answer,
            })
        })
    });
    let entries: Vec<Value> = entries.collect();
    let registered: BTreeMap<&String, Vec<&String>> = state
        .known
        .iter()
        .map(|name| (name, state.endpoints.get(name).map(|it| it.devices.keys().collect()).unwrap_or_default()))
        .collect();
    checkpoint.write(&json!({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": registered}, "Checksum": 0}));
}
