//! Schedules pods to the only node, if the node has the requested resources.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim, ResourceSlice};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{FINALIZER, extended_resources as extended};
use crate::allocator;
use crate::pod::{claim_names, containers_of, extended_claim, extended_resources, is_terminal, name_of, uid_of};
use aliquot_test_api_server::Quantity;
use aliquot_test_api_server::{CLAIMS, DEVICE_CLASSES, Informer, NODES, PODS, SLICES, Store};

/// Allocates devices to claims, and binds pods.
#[derive(Debug)]
pub(super) struct Scheduler {
    store: Store,
    node: String,
    pods: Informer<Pod>,
    classes: Informer<DeviceClass>,
    slices: Informer<ResourceSlice>,
    claims: Informer<ResourceClaim>,
}

impl Scheduler {
    pub(super) fn new(store: Store, node: String) -> Scheduler {
        Scheduler {
            pods: Informer::new(store.clone(), &PODS),
            classes: Informer::new(store.clone(), &DEVICE_CLASSES),
            slices: Informer::new(store.clone(), &SLICES),
            claims: Informer::new(store.clone(), &CLAIMS),
            store,
            node,
        }
    }

    /// The pods that have no node yet and do not name another scheduler.
    pub(super) fn waiting(&mut self) -> Vec<Pod> {
        self.pods.refresh();
        let waits = |pod: &&Pod| {
            let is_ours = |name: &String| name == "default-scheduler";
            let is_unbound = pod
                .spec
                .as_ref()
                .is_some_and(|spec| spec.node_name.is_none() && spec.scheduler_name.as_ref().is_none_or(is_ours));
            is_unbound && pod.metadata.deletion_timestamp.is_none()
        };
        self.pods.objects().filter(waits).cloned().collect()
    }

    /// Allocates devices to a pod's claims and binds the pod, if there is room for all of it.
    pub(super) fn schedule(&mut self, pod: &Pod) -> Result<(), String> {
        let (namespace, name) = name_of(pod);
        self.pods.refresh();
        self.classes.refresh();
        let by_resource = extended::by_resource(self.classes.objects());
        self.has_extended_resources(pod, &by_resource)?;
        let to_make = extended::claim(pod, &by_resource).filter(|_| extended_claim(pod).is_none());
        if let Some((mut claim, mappings)) = to_make {
            self.claims.refresh();
            let status = json!({"allocation": self.allocate(&typed(&claim)?)?, "reservedFor": [reference(pod)]});
            claim["metadata"]["finalizers"] = json!([FINALIZER]);
            let made = self.store.create(&CLAIMS, &namespace, claim).map_err(|failure| failure.to_string())?;
            let mut made: ResourceClaim = typed(&made)?;
            made.status = Some(typed(&status)?);
            self.store.update(&CLAIMS, &made, true).map_err(|failure| failure.to_string())?;
            let status = json!({"resourceClaimName": made.metadata.name, "requestMappings": mappings});
            let patch = json!({"status": {"extendedResourceClaimStatus": status}});
            let patched = self.store.merge(&PODS, &namespace, &name, true, &patch);
            patched.map_err(|failure| failure.to_string())?;
        }
        for claim in claim_names(pod)?.values() {
            self.claims.refresh();
            let found = self.claims.get(&namespace, claim).cloned();
            let mut claim = found.ok_or_else(|| format!("resourceclaim {claim:?} not found"))?;
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(format!("resourceclaim {:?} is being deleted", claim.metadata.name.unwrap_or_default()));
            }
            let mut status = claim.status.clone().unwrap_or_default();
            if status.allocation.is_none() {
                status.allocation = Some(self.allocate(&claim)?);
                claim.metadata.finalizers.get_or_insert_default().push(FINALIZER.to_owned());
                let updated = self.store.update(&CLAIMS, &claim, false).map_err(|failure| failure.to_string())?;
                claim = serde_json::from_value(updated).map_err(|error| error.to_string())?;
            }
            let users = status.reserved_for.get_or_insert_default();
            if !users.iter().any(|user| user.uid == uid_of(pod)) {
                users.push(typed(&reference(pod))?);
            }
            claim.status = Some(status);
            self.store.update(&CLAIMS, &claim, true).map_err(|failure| failure.to_string())?;
        }
        let binding = json!({"spec": {"nodeName": self.node}});
        let bound = self.store.merge(&PODS, &namespace, &name, false, &binding);
        bound.map(drop).map_err(|failure| failure.to_string())
    }

    fn allocate(&mut self, claim: &ResourceClaim) -> Result<AllocationResult, String> {
        self.classes.refresh();
        self.slices.refresh();
        let classes = self.classes.objects().map(|class| (class.metadata.name.as_deref().unwrap_or_default(), class));
        let slices: Vec<&ResourceSlice> = self.slices.objects().collect();
        let claims: Vec<&ResourceClaim> = self.claims.objects().collect();
        allocator::allocate(claim, &self.node, &classes.collect(), &slices, &claims)
    }

    /// Whether the node has enough of the device plugins' resources for the pod, beside the other pods.
    fn has_extended_resources(&self, pod: &Pod, by_resource: &BTreeMap<String, String>) -> Result<(), String> {
        let mut asked: BTreeMap<String, usize> = BTreeMap::new();
        let all = containers_of(pod).iter().flat_map(extended_resources);
        for (resource, count) in all.filter(|(resource, _)| !by_resource.contains_key(resource)) {
            *asked.entry(resource).or_default() += count;
        }
        if asked.is_empty() {
            return Ok(());
        }
        let node = self.store.get::<Node>(&NODES, "", &self.node).map_err(|failure| failure.to_string())?;
        let status = node.status.unwrap_or_default();
        let running = self.pods.objects().filter(|other| {
            other.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&self.node) && !is_terminal(other)
        });
        for (resource, count) in asked {
            let allocatable = status.allocatable.as_ref().and_then(|allocatable| allocatable.get(&resource));
            let there = allocatable.and_then(|text| Quantity::parse(&text.0)).map_or(0, Quantity::units);
            let of_others =
                running.clone().flat_map(containers_of).filter_map(|it| extended_resources(it).remove(&resource));
            let used: usize = of_others.sum();
            if there < (used + count) as i128 {
                return Err(format!("Insufficient {resource}: {count} wanted, {used} of {there} used"));
            }
        }
        Ok(())
    }
}

/// The reference to the pod with which a claim is reserved for it.
fn reference(pod: &Pod) -> Value {
    json!({"resource": "pods", "name": name_of(pod).1, "uid": uid_of(pod)})
}

fn typed<T: DeserializeOwned>(object: &Value) -> Result<T, String> {
    serde_json::from_value(object.clone()).map_err(|error| error.to_string())
}
