//! Claims from templates: they are made for pods, and deleted after the last pod that uses them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate};
use serde_json::{Value, json};

use super::FINALIZER;
use crate::pod::{is_group, is_terminal, name_of, uid_of};
use aliquot_test_api_server::{CLAIM_TEMPLATES, CLAIMS, Informer, POD_GROUPS, PODS, Store};

/// Makes claims from templates, and deletes those that are no longer used.
#[derive(Debug)]
pub(super) struct ClaimController {
    store: Store,
    pods: Informer<Pod>,
    claims: Informer<ResourceClaim>,
}

impl ClaimController {
    pub(super) fn new(store: Store) -> ClaimController {
        let (pods, claims) = (Informer::new(store.clone(), &PODS), Informer::new(store.clone(), &CLAIMS));
        ClaimController { store, pods, claims }
    }

    /// Makes the claims for a pod's templates.
    pub(super) fn make(&self, pod: &Pod) -> Result<Pod, String> {
        let (namespace, name) = name_of(pod);
        let statuses = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
        let made: Vec<String> = statuses.map(|status| status.name.clone()).collect();
        let mut statuses: Vec<Value> = Vec::new();
        for claim in pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten()) {
            let template = claim.resource_claim_template_name.as_ref().filter(|_| !made.contains(&claim.name));
            let Some(template) = template else { continue };
            let found = self.store.get::<ResourceClaimTemplate>(&CLAIM_TEMPLATES, &namespace, template);
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
                "spec": template.spec.and_then(|template| template.spec),
            });
            let object = self.store.create(&CLAIMS, &namespace, object).map_err(|failure| failure.to_string())?;
            statuses.push(json!({"name": claim.name, "resourceClaimName": object["metadata"]["name"]}));
        }
        if statuses.is_empty() {
            return Ok(pod.clone());
        }
        let patch = json!({"status": {"resourceClaimStatuses": statuses}});
        let patched =
            self.store.merge(&PODS, &namespace, &name, true, &patch).map_err(|failure| failure.to_string())?;
        serde_json::from_value(patched).map_err(|error| error.to_string())
    }

    /// Releases claims of pods that have ended or are gone and of PodGroups that are gone, and deletes those that were made
    /// for them.
    pub(super) fn collect(&mut self) {
        self.pods.refresh();
        self.claims.refresh();
        let pods: BTreeMap<&str, &Pod> =
            self.pods.objects().filter_map(|pod| Some((pod.metadata.uid.as_deref()?, pod))).collect();
        let groups = self.store.list::<Value>(&POD_GROUPS);
        let groups: BTreeSet<&str> = groups.iter().filter_map(|group| group["metadata"]["uid"].as_str()).collect();
        for claim in self.claims.objects() {
            let owner_is_gone = claim
                .metadata
                .owner_references
                .iter()
                .flatten()
                .map(|owner| owner.uid.as_str())
                .any(|uid| !pods.contains_key(uid) && !groups.contains(uid));
            if owner_is_gone && claim.metadata.deletion_timestamp.is_none() {
                let metadata = &claim.metadata;
                let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
                let _ = self.store.delete(&CLAIMS, namespace.unwrap_or_default(), name.unwrap_or_default(), false);
                continue;
            }
            let has_ended = |user: &&ResourceClaimConsumerReference| match is_group(user) {
                true => !groups.contains(user.uid.as_str()),
                false => pods.get(user.uid.as_str()).is_none_or(|pod| is_terminal(pod)),
            };
            let ended: Vec<&str> = users_of(claim).filter(has_ended).map(|user| user.uid.as_str()).collect();
            let has_users = users_of(claim).next().is_some();
            let has_devices = claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
            if !ended.is_empty() || (!has_users && (has_devices || is_protected(claim))) {
                self.release(claim.clone(), &ended);
            }
        }
    }

    /// Removes `ended` from the users for which the claim is reserved, and deallocates the claim if no user is left. If
    /// another client changes the claim in between, that change leads here again, after whichever step.
    fn release(&self, mut claim: ResourceClaim, ended: &[&str]) {
        let status = claim.status.get_or_insert_default();
        let users = status.reserved_for.get_or_insert_default();
        users.retain(|user| !ended.contains(&user.uid.as_str()));
        let is_unused = users.is_empty();
        let has_devices = status.allocation.is_some();
        if is_unused {
            // Other claims may have these devices now.
            status.allocation = None;
        }
        if !ended.is_empty() || has_devices {
            let Ok(updated) = self.store.update(&CLAIMS, &claim, true) else { return };
            claim = serde_json::from_value(updated).expect("a claim is one after it was updated");
        }
        if is_unused && is_protected(&claim) {
            claim.metadata.finalizers.get_or_insert_default().retain(|finalizer| finalizer != FINALIZER);
            let _ = self.store.update(&CLAIMS, &claim, false);
        }
    }
}

fn users_of(claim: &ResourceClaim) -> impl Iterator<Item = &ResourceClaimConsumerReference> {
    claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten())
}

fn is_protected(claim: &ResourceClaim) -> bool {
    claim.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
}
