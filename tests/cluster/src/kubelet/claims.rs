//! The claims of pods: which are prepared, by which drivers, and for which pods.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Instant;

use aliquot_proto::kubelet::dra::dra_plugin_client::DraPluginClient;
use aliquot_proto::kubelet::dra::{Claim, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::checkpoint::Checkpoint;
use super::{DriverCall, Shared};
use crate::pod::{claim_names, extended_claim, is_user, uid_of};
use aliquot_test_api_server::CLAIMS;

/// The claims that this node's pods use.
#[derive(Debug)]
pub(super) struct ClaimManager {
    checkpoint: Checkpoint,
    known: Mutex<BTreeMap<ClaimKey, KnownClaim>>,
}

/// The key of a claim: `namespace/name`.
type ClaimKey = String;

/// A claim that a pod uses or has used.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct KnownClaim {
    pub(super) namespace: String,
    pub(super) name: String,
    uid: String,
    pods: BTreeSet<String>,
    prepared: bool,
    /// The prepared devices, by driver.
    pub(super) devices: BTreeMap<String, Vec<PreparedDevice>>,
}

/// A device as its driver has prepared it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PreparedDevice {
    pub(super) pool: String,
    pub(super) device: String,
    pub(super) share_id: Option<String>,
    requests: Vec<String>,
    pub(super) cdi_devices: Vec<String>,
}

impl ClaimManager {
    pub(super) fn open(file: PathBuf) -> ClaimManager {
        let checkpoint = Checkpoint::at(file);
        let known = Mutex::new(checkpoint.read());
        ClaimManager { checkpoint, known }
    }

    /// The claims that a container uses, with all their prepared devices, whichever requests the container has.
    pub(super) async fn of_container(&self, pod: &Pod, container: &Container) -> Vec<KnownClaim> {
        let used = used(pod, container).unwrap_or_default();
        let known = self.known.lock().await;
        let names: BTreeSet<String> = used.into_iter().map(|(claim, _)| claim).collect();
        names.into_iter().filter_map(|name| known.get(&key(pod, &name)).cloned()).collect()
    }

    /// The CDI devices that a container gets for its claims.
    pub(super) async fn cdi_devices(&self, pod: &Pod, container: &Container) -> Result<Vec<String>, String> {
        let used = used(pod, container)?;
        let known = self.known.lock().await;
        let mut devices = Vec::new();
        for (name, request) in &used {
            let claim = known.get(&key(pod, name)).ok_or_else(|| format!("unable to get claim info for {name}"))?;
            for device in claim.devices.values().flatten() {
                let names = &device.requests;
                if request.is_empty() || names.is_empty() || names.contains(request) {
                    devices.extend(device.cdi_devices.iter().cloned());
                }
            }
        }
        Ok(devices)
    }
}

/// The claims that a container uses, each with the container's request in it; an empty request means all.
fn used(pod: &Pod, container: &Container) -> Result<Vec<(String, String)>, String> {
    let names = claim_names(pod)?;
    let mut used = Vec::new();
    for claim in container.resources.iter().flat_map(|resources| resources.claims.iter().flatten()) {
        let name = names.get(&claim.name).ok_or_else(|| format!("no claim for {:?}", claim.name))?;
        used.push((name.clone(), claim.request.clone().unwrap_or_default()));
    }
    if let Some((claim, mappings)) = extended_claim(pod) {
        let requests = mappings.into_iter().filter(|(of, _)| *of == container.name);
        used.extend(requests.map(|(_, request)| (claim.to_owned(), request.to_owned())));
    }
    Ok(used)
}

fn key(pod: &Pod, name: &str) -> ClaimKey {
    format!("{}/{name}", pod.metadata.namespace.as_deref().unwrap_or_default())
}

/// Has the pod's claims prepared, unless they are already. All claims of a driver go in one call.
pub(super) async fn prepare(shared: &Shared, pod: &Pod) -> Result<(), String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut claims = Vec::new();
    let extended = extended_claim(pod).map(|(claim, _)| claim.to_owned());
    for name in claim_names(pod)?.into_values().chain(extended) {
        let found = shared.store.get::<ResourceClaim>(&CLAIMS, namespace, &name);
        let claim = found.map_err(|failure| format!("fetch ResourceClaim {name}: {failure}"))?;
        let drivers = drivers_of(&claim, pod)?;
        // It is better to fail now than to keep a claim that no driver could unprepare.
        for driver in &drivers {
            shared.plugins.driver(driver)?;
        }
        claims.push((claim, drivers));
    }

    let mut batches: BTreeMap<String, Vec<Claim>> = BTreeMap::new();
    {
        let mut known = shared.claims.known.lock().await;
        for (claim, drivers) in &claims {
            let name = claim.metadata.name.clone().unwrap_or_default();
            let uid = claim.metadata.uid.clone().unwrap_or_default();
            let entry = known.entry(key(pod, &name)).or_insert_with(|| KnownClaim {
                namespace: namespace.to_owned(),
                name: name.clone(),
                uid: uid.clone(),
                pods: BTreeSet::new(),
                prepared: false,
                devices: drivers.iter().map(|driver| (driver.clone(), Vec::new())).collect(),
            });
            if entry.uid != uid {
                return Err(format!(
                    "old ResourceClaim with same name {name} and different UID {} still exists",
                    entry.uid
                ));
            }
            entry.pods.insert(uid_of(pod));
            if !entry.prepared {
                for driver in drivers {
                    let claim = Claim { namespace: namespace.to_owned(), uid: uid.clone(), name: name.clone() };
                    batches.entry(driver.clone()).or_default().push(claim);
                }
            }
        }
        shared.claims.checkpoint.write(&*known);
    }

    for (driver, claims) in &batches {
        prepare_by(shared, driver, claims).await?;
    }

    let mut known = shared.claims.known.lock().await;
    for claim in batches.values().flatten() {
        if let Some(entry) = known.get_mut(&key(pod, &claim.name)) {
            entry.prepared = true;
        }
    }
    shared.claims.checkpoint.write(&*known);
    Ok(())
}

async fn prepare_by(shared: &Shared, driver: &str, claims: &[Claim]) -> Result<(), String> {
    let begin = Instant::now();
    let mut client = DraPluginClient::new(shared.plugins.driver(driver)?);
    let call = client.node_prepare_resources(NodePrepareResourcesRequest { claims: claims.to_vec() });
    let answered = tokio::time::timeout(shared.settings.timing.driver_call, call).await;
    let answered = answered.map_err(|_| "NodePrepareResources: deadline exceeded".to_owned())?;
    let answer = answered.map_err(|status| format!("NodePrepareResources: {status}"))?.into_inner();
    let call = DriverCall::since(begin);
    let mut known = shared.claims.known.lock().await;
    for (uid, result) in &answer.claims {
        let claim = claims.iter().find(|claim| claim.uid == *uid);
        let claim = claim.ok_or_else(|| format!("NodePrepareResources returned result for unknown claim UID {uid}"))?;
        if !result.error.is_empty() {
            return Err(format!("NodePrepareResources failed for ResourceClaim {}: {}", claim.name, result.error));
        }
        let devices = result.devices.iter().map(|device| PreparedDevice {
            pool: device.pool_name.clone(),
            device: device.device_name.clone(),
            share_id: device.share_id.clone(),
            requests: device.request_names.clone(),
            cdi_devices: device.cdi_device_ids.clone(),
        });
        if let Some(entry) = known.get_mut(&format!("{}/{}", claim.namespace, claim.name)) {
            entry.devices.insert(driver.to_owned(), devices.collect());
        }
    }
    if answer.claims.len() != claims.len() {
        return Err(format!("NodePrepareResources skipped {} ResourceClaims", claims.len() - answer.claims.len()));
    }
    shared.note_call("NodePrepareResources", call);
    Ok(())
}

/// Has those of the pod's claims unprepared that no other pod uses.
pub(super) async fn unprepare(shared: &Shared, pod: &Pod) -> Result<(), String> {
    let mut batches: BTreeMap<String, Vec<Claim>> = BTreeMap::new();
    let mut unused = Vec::new();
    {
        let mut known = shared.claims.known.lock().await;
        let uid = uid_of(pod);
        for (key, claim) in known.iter_mut().filter(|(_, claim)| claim.pods.contains(&uid)) {
            if claim.pods.len() > 1 {
                claim.pods.remove(&uid);
                continue;
            }
            unused.push(key.clone());
            for driver in claim.devices.keys() {
                let (namespace, uid, name) = (claim.namespace.clone(), claim.uid.clone(), claim.name.clone());
                batches.entry(driver.clone()).or_default().push(Claim { namespace, uid, name });
            }
        }
    }
    for (driver, claims) in batches {
        let begin = Instant::now();
        let mut client = DraPluginClient::new(shared.plugins.driver(&driver)?);
        let call = client.node_unprepare_resources(NodeUnprepareResourcesRequest { claims: claims.clone() });
        let answered = tokio::time::timeout(shared.settings.timing.driver_call, call).await;
        let answered = answered.map_err(|_| "NodeUnprepareResources: deadline exceeded".to_owned())?;
        let answer = answered.map_err(|status| format!("NodeUnprepareResources: {status}"))?.into_inner();
        for claim in &claims {
            let result = answer.claims.get(&claim.uid);
            let result =
                result.ok_or_else(|| format!("NodeUnprepareResources skipped ResourceClaim {}", claim.name))?;
            if !result.error.is_empty() {
                return Err(format!(
                    "NodeUnprepareResources failed for ResourceClaim {}: {}",
                    claim.name, result.error
                ));
            }
        }
        if answer.claims.len() != claims.len() {
            return Err("NodeUnprepareResources returned result for unknown claims".to_owned());
        }
        shared.note_call("NodeUnprepareResources", DriverCall::since(begin));
    }
    let mut known = shared.claims.known.lock().await;
    for key in unused {
        known.remove(&key);
    }
    shared.claims.checkpoint.write(&*known);
    Ok(())
}

/// The drivers of a claim's devices, if the pod may use it.
fn drivers_of(claim: &ResourceClaim, pod: &Pod) -> Result<BTreeSet<String>, String> {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let status = claim.status.clone().unwrap_or_default();
    let allocation = status.allocation.ok_or_else(|| format!("ResourceClaim {name}: not allocated"))?;
    if !is_user(pod, claim) {
        let pod = pod.metadata.name.as_deref().unwrap_or_default();
        return Err(format!("pod {pod} is not allowed to use ResourceClaim {name}"));
    }
    let results = allocation.devices.and_then(|devices| devices.results).unwrap_or_default();
    Ok(results.into_iter().map(|result| result.driver).collect())
}
