//! Makes the claim for a pod's extended resources, and says in the pod's status which requests of it each container
//! has: kubelet and the node's manager read it there.

use aliquot_api_server::{Client, is_conflict, message};
use k8s_openapi::api::core::v1::{Pod, PodExtendedResourceClaimStatus};
use k8s_openapi::api::resource::v1::{DeviceClaim, ResourceClaim, ResourceClaimSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::{PAUSE, TRIES};
use crate::dra::{ClaimFacts, Extended, OF_EXTENDED_RESOURCES};
use crate::mirror::Binding;
use crate::serve::Shared;
use crate::writer::check_undecided;

/// Whether a claim was made for extended resources of this pod.
pub(super) fn is_for(claim: &ClaimFacts, pod_uid: &str) -> bool {
    claim.is_of_extended_resources && claim.owner.as_deref() == Some(pod_uid)
}

/// Makes the claim. If an answer is lost, the request is repeated: a claim of this name can be the one that was made.
///
/// # Errors
/// Why the claim is not there, or is not what it should be.
pub(super) async fn make(
    claims: &Api<ResourceClaim>,
    binding: &Binding,
    wanted: &ClaimFacts,
    asked: &Extended,
    shared: &Shared,
) -> Result<ClaimFacts, String> {
    let claim = object(binding, wanted, asked);
    for _ in 0..TRIES {
        let left = shared.fence.left().ok_or("this replica is no longer the leader")?;
        let made = async {
            match claims.create(&PostParams::default(), &claim).await {
                Err(error) if is_conflict(&error) => claims.get(&wanted.name).await,
                made => made,
            }
        };
        let error = match timeout(left, made).await.map_err(|_| "the lease ended")? {
            Ok(made) => return taken_in(made, binding, wanted, shared),
            Err(error) => error,
        };
        match &error {
            kube::Error::Api(status) if status.code < 500 && status.code != 408 => return Err(message(&error)),
            error => warn!(claim = wanted.name, error = message(error), "cannot make a claim; trying again"),
        }
        sleep(PAUSE).await;
    }
    Err("the API server does not answer".into())
}

fn taken_in(
    made: ResourceClaim,
    binding: &Binding,
    wanted: &ClaimFacts,
    shared: &Shared,
) -> Result<ClaimFacts, String> {
    let facts = ClaimFacts::of(made).ok_or("it has no name")?;
    if !is_for(&facts, &binding.uid) || facts.ask != wanted.ask || facts.is_leaving {
        return Err("there is another one of its name".into());
    }
    shared.change(|mirror| {
        mirror.claim_was_made(&facts);
        mirror.resource_claim(facts.clone());
    });
    Ok(facts)
}

fn object(binding: &Binding, wanted: &ClaimFacts, asked: &Extended) -> ResourceClaim {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: binding.name.clone(),
        uid: binding.uid.clone(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let devices = DeviceClaim { requests: Some(asked.requests.clone()), ..DeviceClaim::default() };
    ResourceClaim {
        metadata: ObjectMeta {
            name: Some(wanted.name.clone()),
            namespace: Some(binding.namespace.clone()),
            annotations: Some([(OF_EXTENDED_RESOURCES.to_owned(), "true".to_owned())].into()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(ResourceClaimSpec { devices: Some(devices) }),
        status: None,
    }
}

/// Writes into the pod's status which requests of the claim each container has. Returns the version of the pod.
///
/// # Errors
/// The API server has not done it, or has not said so.
pub(super) async fn tell(
    client: &Client,
    binding: &Binding,
    claim: &str,
    asked: &Extended,
    shared: &Shared,
) -> Result<String, String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &binding.namespace);
    let status = PodExtendedResourceClaimStatus {
        request_mappings: asked.mappings.clone(),
        resource_claim_name: claim.to_owned(),
    };
    let patch = json!({"metadata": {"uid": binding.uid}, "status": {"extendedResourceClaimStatus": status}});
    let left = shared.fence.left().ok_or("this replica is no longer the leader")?;
    let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
    let patched = timeout(left, pods.patch_status(&binding.name, &params, &patch)).await;
    let patched = patched.map_err(|_| "the lease ended")?;
    let pod = patched.map_err(|error| format!("cannot name its claim in its status: {}", message(&error)))?;
    check_undecided(&pod)?;
    Ok(pod.metadata.resource_version.unwrap_or_default())
}
