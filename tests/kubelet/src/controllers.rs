//! What goes on in a cluster beside the node: claims are made from templates, given devices, reserved for pods, and
//! pods are bound; what nobody uses any more is taken back and deleted.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use serde_json::{Value, json};

use crate::allocator;
use crate::api_server::{CLAIM_TEMPLATES, CLAIMS, DEVICE_CLASSES, NODES, PODS, SLICES, Store};
use crate::pod::{claim_names, containers_of, extended_resources, is_terminal, name_of, uid_of};
use crate::quantity::Quantity;

/// Keeps a claim that has devices from going away.
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// Changes that come within this time are looked at together.
const TOGETHER: Duration = Duration::from_millis(30);

/// Does all this for `node`, whenever something has changed.
pub(crate) async fn run(store: Store, node: String) {
    let mut changes = store.changes();
    loop {
        changes.mark_unchanged();
        collect_claims(&store);
        for pod in store.list::<Pod>(&PODS) {
            let waits = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none());
            if waits && pod.metadata.deletion_timestamp.is_none() {
                let outcome = make_claims(&store, &pod).and_then(|pod| schedule(&store, &pod, &node));
                note(&store, &pod, outcome);
            }
        }
        if changes.changed().await.is_err() {
            return;
        }
        tokio::time::sleep(TOGETHER).await;
    }
}

/// Makes the claims that a pod has templates for.
fn make_claims(store: &Store, pod: &Pod) -> Result<Pod, String> {
    let (namespace, name) = name_of(pod);
    let made: Vec<String> = pod
        .status
        .iter()
        .flat_map(|status| status.resource_claim_statuses.iter().flatten())
        .map(|status| status.name.clone())
        .collect();
    let mut statuses: Vec<Value> = Vec::new();
    for claim in pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten()) {
        let Some(template) = claim.resource_claim_template_name.as_ref().filter(|_| !made.contains(&claim.name)) else {
            continue;
        };
        let found = store.get::<ResourceClaimTemplate>(&CLAIM_TEMPLATES, &namespace, template);
        let template = found.map_err(|failure| failure.to_string())?;
        let object = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {
                "generateName": format!("{name}-{}-", claim.name),
                "annotations": {"resource.kubernetes.io/pod-claim-name": claim.name},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid_of(pod), "controller": true},
                ],
            },
            "spec": template.spec.spec,
        });
        let object = store.create(&CLAIMS, &namespace, object).map_err(|failure| failure.to_string())?;
        statuses.push(json!({"name": claim.name, "resourceClaimName": object["metadata"]["name"]}));
    }
    if statuses.is_empty() {
        return Ok(pod.clone());
    }
    let patch = json!({"status": {"resourceClaimStatuses": statuses}});
    let patched = store.merge(&PODS, &namespace, &name, true, &patch).map_err(|failure| failure.to_string())?;
    serde_json::from_value(patched).map_err(|error| error.to_string())
}

/// Gives a pod's claims their devices and binds it, if there is room for all of it.
fn schedule(store: &Store, pod: &Pod, node: &str) -> Result<(), String> {
    let (namespace, name) = name_of(pod);
    has_extended_resources(store, pod, node)?;
    let names = claim_names(pod)?;
    let classes: BTreeMap<String, DeviceClass> = store
        .list::<DeviceClass>(&DEVICE_CLASSES)
        .into_iter()
        .map(|class| (class.metadata.name.clone().unwrap_or_default(), class))
        .collect();
    for claim_name in names.values() {
        let found = store.get::<ResourceClaim>(&CLAIMS, &namespace, claim_name);
        let mut claim = found.map_err(|failure| failure.to_string())?;
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(format!("resourceclaim {claim_name} is being deleted"));
        }
        let mut status = claim.status.clone().unwrap_or_default();
        if status.allocation.is_none() {
            let slices = store.list::<ResourceSlice>(&SLICES);
            let claims = store.list::<ResourceClaim>(&CLAIMS);
            status.allocation = Some(allocator::allocate(&claim, node, &classes, &slices, &claims)?);
            claim.metadata.finalizers.get_or_insert_default().push(FINALIZER.to_owned());
            let updated = store.update(&CLAIMS, &claim, false).map_err(|failure| failure.to_string())?;
            claim = serde_json::from_value(updated).map_err(|error| error.to_string())?;
        }
        let users = status.reserved_for.get_or_insert_default();
        if !users.iter().any(|user| user.uid == uid_of(pod)) {
            let user = json!({"resource": "pods", "name": name, "uid": uid_of(pod)});
            users.push(serde_json::from_value(user).map_err(|error| error.to_string())?);
        }
        claim.status = Some(status);
        store.update(&CLAIMS, &claim, true).map_err(|failure| failure.to_string())?;
    }
    let bound = store.merge(&PODS, &namespace, &name, false, &json!({"spec": {"nodeName": node}}));
    bound.map(drop).map_err(|failure| failure.to_string())
}

/// Whether the node has what the pod asks for of device plugins, beside what other pods have.
fn has_extended_resources(store: &Store, pod: &Pod, node: &str) -> Result<(), String> {
    let mut asked: BTreeMap<String, usize> = BTreeMap::new();
    for (resource, count) in containers_of(pod).iter().flat_map(extended_resources) {
        *asked.entry(resource).or_default() += count;
    }
    let status = store.get::<Node>(&NODES, "", node).map_err(|failure| failure.to_string())?.status.unwrap_or_default();
    let pods = store.list::<Pod>(&PODS);
    let running = pods.iter().filter(|other| {
        other.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node) && !is_terminal(other)
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

/// Says in the pod's status whether it is scheduled, and why not.
fn note(store: &Store, pod: &Pod, outcome: Result<(), String>) {
    let (namespace, name) = name_of(pod);
    let condition = match &outcome {
        Ok(()) => json!({"type": "PodScheduled", "status": "True"}),
        Err(reason) => {
            json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": reason})
        }
    };
    // It may be deleted.
    let _ = store.merge(&PODS, &namespace, &name, true, &json!({"status": {"conditions": [condition]}}));
}

/// Takes claims back from pods that have ended or are gone, and deletes those that were made for them.
fn collect_claims(store: &Store) {
    let pods: BTreeMap<String, Pod> = store.list::<Pod>(&PODS).into_iter().map(|pod| (uid_of(&pod), pod)).collect();
    let uses = |uid: &str| pods.get(uid).is_some_and(|pod| !is_terminal(pod));
    for mut claim in store.list::<ResourceClaim>(&CLAIMS) {
        let metadata = claim.metadata.clone();
        let (namespace, name) = (metadata.namespace.unwrap_or_default(), metadata.name.unwrap_or_default());
        let owner_gone = metadata.owner_references.iter().flatten().any(|owner| !pods.contains_key(&owner.uid));
        if owner_gone && metadata.deletion_timestamp.is_none() {
            let _ = store.delete(&CLAIMS, &namespace, &name, false);
            continue;
        }
        let Some(mut status) = claim.status.take().filter(|status| status.allocation.is_some()) else { continue };
        let users = status.reserved_for.take().unwrap_or_default();
        let used: Vec<_> = users.iter().filter(|user| uses(&user.uid)).cloned().collect();
        if used.len() == users.len() && !used.is_empty() {
            continue;
        }
        // Devices of a claim that nobody uses are free for others, and so is the claim to go.
        let free = used.is_empty();
        status.reserved_for = Some(used);
        if free {
            status.allocation = None;
        }
        claim.status = Some(status);
        // Whoever has changed it in between has brought it here again.
        let Ok(updated) = store.update(&CLAIMS, &claim, true) else { continue };
        if free && let Ok(mut claim) = serde_json::from_value::<ResourceClaim>(updated) {
            claim.metadata.finalizers.get_or_insert_default().retain(|finalizer| finalizer != FINALIZER);
            let _ = store.update(&CLAIMS, &claim, false);
        }
    }
}
