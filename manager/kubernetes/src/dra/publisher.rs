//! Keeps the node's resource slices as the node's devices are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node as NodeObject;
use k8s_openapi::api::resource::v1::{Device, ResourcePool, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams, Preconditions};
use tokio::sync::watch;
use tracing::{info, warn};

use super::names::DRIVER;
use super::resource_slices::{DEVICES_MAX, Unhealthy, devices};
use crate::api_server::{is_not_found, message};
use crate::node::{Devices, Node};

/// Between two looks at what others may have done to the resource slices.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// Until the first try after one that failed; each further one waits twice as long, up to the interval above.
const RETRY_MIN: Duration = Duration::from_secs(1);

/// Writes the resource slices of one node.
pub(super) struct Publisher {
    slices: Api<ResourceSlice>,
    nodes: Api<NodeObject>,
    node_name: String,
    /// What was written last, and as what the API server keeps it. Fields that it does not know it drops, so what it
    /// answers is not always what was written.
    written: Option<Written>,
    unhealthy: Unhealthy,
}

struct Written {
    devices: Vec<Device>,
    /// Resource versions by name.
    versions: BTreeMap<String, Option<String>>,
}

impl Publisher {
    /// Of the node with that name.
    #[must_use]
    pub(super) fn new(client: Client, node_name: String) -> Publisher {
        Publisher {
            slices: Api::all(client.clone()),
            nodes: Api::all(client),
            node_name,
            written: None,
            unhealthy: Unhealthy::Taint,
        }
    }

    /// Keeps them until `end` is true. They stay when it ends: kubelet removes those of a driver that stays away.
    pub(super) async fn run(mut self, node: &dyn Node, mut end: watch::Receiver<bool>) {
        let mut known = node.devices();
        let mut retry = RETRY_MIN;
        loop {
            let now = known.borrow_and_update().clone();
            let wait = match self.publish(&now).await {
                Ok(()) => {
                    retry = RETRY_MIN;
                    LOOK_INTERVAL
                }
                Err(error) => {
                    warn!(error = message(&error), retry_s = retry.as_secs(), "cannot publish the node's devices");
                    let wait = retry;
                    retry = (retry * 2).min(LOOK_INTERVAL);
                    wait
                }
            };
            tokio::select! {
                changed = known.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(wait) => {}
                // An error says that the sender is gone, which is the end as well.
                _ = end.wait_for(|end| *end) => return,
            }
        }
    }

    /// Has the API server's resource slices say what `node` says.
    async fn publish(&mut self, node: &Devices) -> Result<(), kube::Error> {
        let found = self.list().await?;
        let wanted = devices(node, self.unhealthy);
        if self.is_written(&wanted, &found) {
            return Ok(());
        }
        let written = self.write(&wanted, &found).await?;
        if self.unhealthy == Unhealthy::Taint && drops_taints(&wanted, &written) {
            info!("the API server knows no device taints: devices that are not healthy are left out");
            self.unhealthy = Unhealthy::LeaveOut;
            let wanted = devices(node, self.unhealthy);
            self.write(&wanted, &written).await?;
        }
        Ok(())
    }

    /// The driver's resource slices of this node.
    async fn list(&self) -> Result<Vec<ResourceSlice>, kube::Error> {
        let params = ListParams::default().fields(&format!("spec.driver={DRIVER},spec.nodeName={}", self.node_name));
        Ok(self.slices.list(&params).await?.items)
    }

    fn is_written(&self, wanted: &[Device], found: &[ResourceSlice]) -> bool {
        match &self.written {
            Some(written) => written.devices == wanted && written.versions == versions(found),
            // A former life has written them, if anybody.
            None => says(found, wanted),
        }
    }

    /// Writes all resource slices of the pool in a new generation. While they are written, schedulers see that the
    /// pool is not complete, and wait.
    async fn write(&mut self, wanted: &[Device], found: &[ResourceSlice]) -> Result<Vec<ResourceSlice>, kube::Error> {
        self.written = None;
        let owner = self.owner().await?;
        let specs = specs(&self.node_name, wanted, next_generation(found));
        let mut written = Vec::new();
        for (at, spec) in specs.into_iter().enumerate() {
            let name = format!("{}-{DRIVER}-{at}", self.node_name);
            let before = found.iter().find(|slice| slice.metadata.name.as_ref() == Some(&name));
            let slice = ResourceSlice {
                metadata: ObjectMeta {
                    name: Some(name.clone()),
                    resource_version: before.and_then(|slice| slice.metadata.resource_version.clone()),
                    owner_references: Some(vec![owner.clone()]),
                    ..ObjectMeta::default()
                },
                spec,
            };
            written.push(match before {
                Some(_) => self.slices.replace(&name, &PostParams::default(), &slice).await?,
                None => self.slices.create(&PostParams::default(), &slice).await?,
            });
        }
        let kept: BTreeSet<Option<String>> = written.iter().map(|slice| slice.metadata.name.clone()).collect();
        for slice in found.iter().filter(|slice| !kept.contains(&slice.metadata.name)) {
            self.remove(slice).await?;
        }
        info!(devices = wanted.len(), "published the node's devices");
        self.written = Some(Written { devices: wanted.to_vec(), versions: versions(&written) });
        Ok(written)
    }

    async fn remove(&self, slice: &ResourceSlice) -> Result<(), kube::Error> {
        let Some(name) = slice.metadata.name.as_deref() else { return Ok(()) };
        let preconditions = Preconditions { uid: slice.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match self.slices.delete(name, &params).await {
            Err(error) if is_not_found(&error) => Ok(()),
            other => other.map(drop),
        }
    }

    /// The node's object, with which its resource slices go.
    async fn owner(&self) -> Result<OwnerReference, kube::Error> {
        let node = self.nodes.get(&self.node_name).await?;
        Ok(OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: self.node_name.clone(),
            uid: node.metadata.uid.unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: None,
        })
    }
}

fn versions(slices: &[ResourceSlice]) -> BTreeMap<String, Option<String>> {
    let metadata = slices.iter().map(|slice| &slice.metadata);
    metadata.map(|of| (of.name.clone().unwrap_or_default(), of.resource_version.clone())).collect()
}

/// One more than any that was there. It never begins anew while there are resource slices.
fn next_generation(found: &[ResourceSlice]) -> i64 {
    found.iter().map(|slice| slice.spec.pool.generation).max().map_or(1, |newest| newest.saturating_add(1))
}

/// The devices in as many resource slices as they need; at least one, which says that there is no device.
fn specs(node_name: &str, wanted: &[Device], generation: i64) -> Vec<ResourceSliceSpec> {
    let count = wanted.len().div_ceil(DEVICES_MAX).max(1);
    (0..count)
        .map(|at| ResourceSliceSpec {
            driver: DRIVER.into(),
            node_name: Some(node_name.into()),
            pool: ResourcePool {
                generation,
                name: node_name.into(),
                resource_slice_count: i64::try_from(count).unwrap_or(i64::MAX),
            },
            devices: Some(wanted.iter().skip(at * DEVICES_MAX).take(DEVICES_MAX).cloned().collect()),
            ..ResourceSliceSpec::default()
        })
        .collect()
}

/// Whether the resource slices are a whole pool with exactly these devices.
fn says(found: &[ResourceSlice], wanted: &[Device]) -> bool {
    let Some(first) = found.first() else { return false };
    let is_whole = usize::try_from(first.spec.pool.resource_slice_count).is_ok_and(|count| count == found.len());
    let is_one = found.iter().all(|slice| slice.spec.pool == first.spec.pool);
    let mut told: Vec<&Device> = found.iter().flat_map(|slice| slice.spec.devices.iter().flatten()).collect();
    let mut wanted: Vec<&Device> = wanted.iter().collect();
    told.sort_by_key(|device| &device.name);
    wanted.sort_by_key(|device| &device.name);
    is_whole && is_one && told == wanted
}

fn drops_taints(wanted: &[Device], written: &[ResourceSlice]) -> bool {
    let has_taint = |device: &Device| device.taints.as_ref().is_some_and(|taints| !taints.is_empty());
    let keeps = written.iter().flat_map(|slice| slice.spec.devices.iter().flatten()).any(has_taint);
    wanted.iter().any(has_taint) && !keeps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: impl IntoIterator<Item = usize>) -> Vec<Device> {
        names.into_iter().map(|at| Device { name: format!("gpu-{at:03}"), ..Device::default() }).collect()
    }

    fn slices(devices: &[Device], generation: i64) -> Vec<ResourceSlice> {
        let specs = specs("node-1", devices, generation);
        specs.into_iter().map(|spec| ResourceSlice { spec, ..ResourceSlice::default() }).collect()
    }

    #[test]
    fn devices_are_spread_over_as_many_resource_slices_as_they_need() {
        for (count, expected) in [(0, vec![0]), (1, vec![1]), (64, vec![64]), (65, vec![64, 1]), (130, vec![64, 64, 2])]
        {
            let specs = specs("node-1", &named(0..count), 3);
            let sizes: Vec<usize> = specs.iter().map(|spec| spec.devices.iter().flatten().count()).collect();
            assert_eq!(sizes, expected);
            let whole = |spec: &ResourceSliceSpec| {
                spec.pool.generation == 3 && spec.pool.resource_slice_count == expected.len() as i64
            };
            assert!(specs.iter().all(whole));
        }
    }

    #[test]
    fn a_pool_is_taken_over_only_if_it_is_whole_and_says_the_same() {
        let wanted = named(0..100);
        let found = slices(&wanted, 7);
        assert!(says(&found, &wanted));
        assert!(!says(&[], &wanted));
        assert!(!says(&found[..1], &wanted));
        assert!(!says(&found, &named(0..99)));
        let mut mixed = found.clone();
        mixed[1].spec.pool.generation = 8;
        assert!(!says(&mixed, &wanted));
        assert_eq!((next_generation(&found), next_generation(&[])), (8, 1));
    }

    #[test]
    fn an_api_server_that_drops_taints_is_noticed() {
        let taint = k8s_openapi::api::resource::v1::DeviceTaint::default();
        let mut tainted = named(0..2);
        tainted[1].taints = Some(vec![taint]);
        assert!(drops_taints(&tainted, &slices(&named(0..2), 1)));
        assert!(!drops_taints(&tainted, &slices(&tainted, 1)));
        assert!(!drops_taints(&named(0..2), &slices(&named(0..2), 1)));
    }
}
