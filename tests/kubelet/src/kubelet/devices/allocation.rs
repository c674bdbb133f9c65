//! Which devices a container gets: decided when its pod is admitted, told to the plugin again before it starts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use aliquot_proto::kubelet::device_plugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerPreferredAllocationRequest, PreStartContainerRequest,
    PreferredAllocationRequest,
};
use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Value, json};

use super::{Endpoint, Given, HEALTHY, Owner, Shared, shuffled};
use crate::kubelet::checkpoint::Checkpoint;
use crate::pod::{containers_of, extended_resources, uid_of};

/// What a container gets for its devices.
#[derive(Debug, Default)]
pub(in super::super) struct Admitted {
    pub(in super::super) cdi_devices: Vec<String>,
    pub(in super::super) environment: BTreeMap<String, String>,
    /// Path in the container, path on the node, whether read only.
    pub(in super::super) mounts: Vec<(String, String, bool)>,
}

/// Gives the pod's containers their devices, or none of them anything.
pub(in super::super) async fn allocate(shared: &Shared, pod: &Pod) -> Result<(), String> {
    let _one_at_a_time = shared.devices.admission.lock().await;
    for container in containers_of(pod) {
        if let Err(reason) = allocate_container(shared, pod, container).await {
            shared.devices.release(&uid_of(pod));
            return Err(reason);
        }
    }
    Ok(())
}

async fn allocate_container(shared: &Shared, pod: &Pod, container: &Container) -> Result<(), String> {
    let uid = uid_of(pod);
    let owner = (uid.clone(), container.name.clone());
    let asked = extended_resources(container);
    // The real kubelet goes through a map, whose order changes from one time to the next.
    for resource in shuffled(asked.keys().cloned(), &uid) {
        let count = asked[&resource];
        if count == 0 || shared.devices.of_container(&uid, &container.name).contains_key(&resource) {
            continue;
        }
        let (client, chosen) = choose(shared, &resource, count, &uid).await?;
        let ids = shuffled(chosen.iter().cloned(), &uid);
        let request = AllocateRequest { container_requests: vec![ContainerAllocateRequest { device_ids: ids }] };
        let begin = Instant::now();
        let answer = client.clone().allocate(request).await;
        let answer = answer.map_err(|status| format!("Allocate failed due to {status}, which is unexpected"))?;
        shared.took("Allocate", begin.elapsed());
        let answer = answer.into_inner().container_responses.into_iter().next();
        let answer = answer.ok_or("no containers return in allocation response")?;
        let mut state = shared.devices.lock();
        state.given.entry(owner.clone()).or_default().insert(resource, Given { ids: chosen, answer });
        write(&shared.devices.checkpoint, &state.given);
    }
    Ok(())
}

type Client =
    aliquot_proto::kubelet::device_plugin::device_plugin_client::DevicePluginClient<tonic::transport::Channel>;

/// Chooses `count` devices, as the plugin prefers.
async fn choose(
    shared: &Shared,
    resource: &str,
    count: usize,
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
    if available.len() < count {
        let free = available.len();
        return Err(format!(
            "requested number of devices unavailable for {resource}. Requested: {count}, Available: {free}"
        ));
    }
    let mut chosen = BTreeSet::new();
    // Where all are needed there is nothing to prefer.
    if options.get_preferred_allocation_available && count < available.len() {
        let request = ContainerPreferredAllocationRequest {
            available_device_ids: shuffled(available.iter().cloned(), seed),
            must_include_device_ids: Vec::new(),
            allocation_size: i32::try_from(count).map_err(|error| error.to_string())?,
        };
        let request = PreferredAllocationRequest { container_requests: vec![request] };
        let answer = client.get_preferred_allocation(request).await.map_err(|status| status.to_string())?.into_inner();
        let preferred =
            answer.container_responses.into_iter().next().map(|answer| answer.device_ids).unwrap_or_default();
        let distinct: BTreeSet<String> = preferred.iter().cloned().collect();
        if distinct.len() != preferred.len() || distinct.len() > count || !distinct.is_subset(&available) {
            shared.complain(format!("{resource}: {count} devices, the plugin prefers {preferred:?} of {available:?}"));
        }
        chosen = distinct.intersection(&available).take(count).cloned().collect();
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

/// Tells the plugins that a container is about to start, and says what it gets.
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
        called.map_err(|_| failed("deadline exceeded".to_owned()))?.map_err(|status| failed(status.to_string()))?;
        shared.took("PreStartContainer", begin.elapsed());
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

/// What the checkpoint says that containers have.
pub(super) fn read(checkpoint: &Checkpoint) -> BTreeMap<Owner, BTreeMap<String, Given>> {
    let entries: Vec<Value> = checkpoint.read();
    let mut all: BTreeMap<Owner, BTreeMap<String, Given>> = BTreeMap::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for entry in entries {
        let answer: Vec<u8> = serde_json::from_value(entry["answer"].clone()).unwrap_or_default();
        let given = Given {
            ids: entry["ids"].as_array().into_iter().flatten().map(text).collect(),
            answer: prost::Message::decode(answer.as_slice()).unwrap_or_default(),
        };
        let owner = (text(&entry["pod"]), text(&entry["container"]));
        all.entry(owner).or_default().insert(text(&entry["resource"]), given);
    }
    all
}

pub(super) fn write(checkpoint: &Checkpoint, all: &BTreeMap<Owner, BTreeMap<String, Given>>) {
    let entries = all.iter().flat_map(|((pod, container), given)| {
        given.iter().map(move |(resource, Given { ids, answer })| {
            let answer: Vec<u8> = prost::Message::encode_to_vec(answer);
            json!({"pod": pod, "container": container, "resource": resource, "ids": ids, "answer": answer})
        })
    });
    checkpoint.write(&entries.collect::<Vec<Value>>());
}
