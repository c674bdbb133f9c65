//! Writes to resource claims what a pod gets by them, before the pod is bound, and takes it back if that fails.
//!
//! The order makes it safe to die anywhere: a claim that is allocated for a pod that is not bound is found again, and
//! [given back](crate::left_over).

mod extended;

use std::collections::BTreeSet;

use aliquot_api_server::{Client, is_conflict, is_not_found, message};
use jiff::Timestamp;
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim, ResourceClaimConsumerReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::{Value, json};
use tokio::time::{Duration, sleep, timeout};
use tracing::{debug, warn};

use crate::dra::{self, ClaimFacts, FINALIZER};
use crate::mirror::{Binding, Reservation, is_worthless};
use crate::serve::Shared;

/// Times that a claim is written if it changes meanwhile, or if an answer is lost.
const TRIES: usize = 5;
/// The pause before a look at what became of a write.
const PAUSE: Duration = Duration::from_secs(1);

/// Reserves all claims of a pod for it or for its PodGroup. The mirror knows afterwards what was written, whether this
/// fails or not. Returns the version of the pod if it has changed by this.
///
/// # Errors
/// Why a claim is not reserved. Claims that are reserved stay so until [`give_back`].
pub(crate) async fn reserve(client: &Client, binding: &Binding, shared: &Shared) -> Result<Option<String>, String> {
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), &binding.namespace);
    let mut resource_version = None;
    for reservation in &binding.reservations {
        let name = &reservation.claim.name;
        let of_claim = |why: String| format!("ResourceClaim {name:?}: {why}");
        let is_new = reservation.allocation.is_some();
        let written = |of| as_written(of, Timestamp::now());
        let allocation = reservation.allocation.clone().map(written).transpose().map_err(of_claim)?;
        let made = match &reservation.to_make {
            Some(asked) => {
                Some(extended::make(&claims, binding, &reservation.claim, asked, shared).await.map_err(of_claim)?)
            }
            None => None,
        };
        let claim = made.as_ref().unwrap_or(&reservation.claim);
        reserve_one(&claims, claim, &reservation.user, allocation, shared).await.map_err(of_claim)?;
        // Another scheduler may have given the same devices to another claim. An allocation that was there before stays
        // whatever becomes of this pod.
        let too_much = || shared.read(|mirror| mirror.has_too_much(&binding.namespace, name));
        if let Some(why) = is_new.then(too_much).flatten() {
            return Err(of_claim(why));
        }
        if let Some(asked) = &reservation.to_make {
            resource_version = Some(extended::tell(client, binding, name, asked, shared).await?);
        }
    }
    Ok(resource_version)
}

/// Takes back what was written for a pod that is not bound, and never will be by this binding.
pub(crate) async fn give_back(client: &Client, binding: &Binding, shared: &Shared) {
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), &binding.namespace);
    // What a PodGroup has is given back when none of its pods has it: see `left_over`.
    for reservation in binding.reservations.iter().filter(|of| !dra::is_group(&of.user)) {
        let name = &reservation.claim.name;
        let Some(left) = shared.fence.left() else { return };
        let done = timeout(left, async {
            let claim = claims.get(name).await?;
            if reservation.to_make.is_some() {
                return match ClaimFacts::of(claim).filter(|facts| extended::is_for(facts, &binding.uid)) {
                    Some(facts) => remove(&claims, &facts, shared).await,
                    None => Ok(()),
                };
            }
            let Some(facts) = ClaimFacts::of(claim).filter(|facts| facts.uid == reservation.claim.uid) else {
                return Ok(());
            };
            let is_over = reservation.allocation.is_some() || is_worthless(&facts, Timestamp::now().as_millisecond());
            take_back(&claims, &facts, &[binding.uid.clone()].into(), is_over, shared).await
        });
        match done.await {
            Ok(Ok(())) | Err(_) => {}
            // The search for allocations that are left over tries again.
            Ok(Err(error)) => debug!(claim = name, error = message(&error), "cannot give back an allocation"),
        }
    }
}

/// Takes pods and PodGroups, by UID, from the users of a claim. If no user is left and `is_over`, its devices are given
/// back: they were allocated for these users, or nobody can use them.
///
/// # Errors
/// The API server has not done it, or has not said so.
pub(crate) async fn take_back(
    claims: &Api<ResourceClaim>,
    claim: &ClaimFacts,
    gone: &BTreeSet<String>,
    is_over: bool,
    shared: &Shared,
) -> kube::Result<()> {
    let users: Vec<&ResourceClaimConsumerReference> =
        claim.reserved_for.iter().filter(|user| !gone.contains(&user.uid)).collect();
    if users.len() == claim.reserved_for.len() {
        return Ok(());
    }
    let mut status = json!({"reservedFor": users});
    if users.is_empty() {
        status["reservedFor"] = Value::Null;
        if is_over {
            status["allocation"] = Value::Null;
            // What drivers say of devices may not outlive their allocation.
            status["devices"] = Value::Null;
        }
    }
    let patch = json!({"metadata": version_of(claim), "status": status});
    let patched = claims.patch_status(&claim.name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    show(patched, shared);
    Ok(())
}

/// Deletes a claim that was made for extended resources of a pod that is not bound, with what is allocated to it.
///
/// # Errors
/// The API server has not done it, or has not said so.
pub(crate) async fn remove(claims: &Api<ResourceClaim>, claim: &ClaimFacts, shared: &Shared) -> kube::Result<()> {
    if claim.finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        let mut metadata = version_of(claim);
        metadata["finalizers"] = claim.finalizers.iter().filter(|of| *of != FINALIZER).map(String::as_str).collect();
        let patch = json!({"metadata": metadata});
        let patched = claims.patch(&claim.name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        // Without a finalizer a claim that is being deleted is gone, and the watch may have said so already.
        if patched.metadata.deletion_timestamp.is_none() {
            show(patched, shared);
        }
    }
    let preconditions = Preconditions { uid: Some(claim.uid.clone()), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match claims.delete(&claim.name, &params).await {
        Err(error) if !is_not_found(&error) => Err(error),
        _ => Ok(()),
    }
}

/// The version of a claim that a write is meant for.
fn version_of(claim: &ClaimFacts) -> Value {
    json!({"uid": claim.uid, "resourceVersion": claim.resource_version})
}

fn show(claim: ResourceClaim, shared: &Shared) -> Option<ClaimFacts> {
    let facts = ClaimFacts::of(claim)?;
    shared.change(|mirror| mirror.resource_claim(facts.clone()));
    Some(facts)
}

/// An allocation with what it gets when it is written: each share has a name that no other share has, and if devices must
/// be ready before the pod is bound, it says since when they are awaited.
///
/// # Errors
/// The system has no random numbers.
pub(crate) fn as_written(mut allocation: AllocationResult, now: Timestamp) -> Result<AllocationResult, String> {
    allocation.allocation_timestamp = dra::must_be_ready(&allocation).then_some(Time(now));
    for result in allocation.devices.iter_mut().flat_map(|devices| devices.results.iter_mut().flatten()) {
        if let Some(consumed) = &result.consumed_capacity {
            result.share_id = Some(random_uuid()?);
            // A device without capacities has shares, too.
            if consumed.is_empty() {
                result.consumed_capacity = None;
            }
        }
    }
    Ok(allocation)
}

/// A random UUID (version 4).
fn random_uuid() -> Result<String, String> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).map_err(|error| format!("cannot name a share: {error}"))?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let number = u128::from_be_bytes(bytes);
    let text = format!("{number:032x}");
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| text.get(range).unwrap_or_default());
    Ok(parts.join("-"))
}

async fn reserve_one(
    claims: &Api<ResourceClaim>,
    decided: &ClaimFacts,
    user: &ResourceClaimConsumerReference,
    allocation: Option<AllocationResult>,
    shared: &Shared,
) -> Result<(), String> {
    let mut claim = decided.clone();
    for _ in 0..TRIES {
        let left = shared.fence.left().ok_or("this replica is no longer the leader")?;
        let error = match timeout(left, write(claims, &claim, user, allocation.as_ref(), shared)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => return Err("the lease ended".into()),
        };
        match &error {
            kube::Error::Api(status) if status.code < 500 && !is_conflict(&error) && status.code != 408 => {
                return Err(message(&error));
            }
            error if is_conflict(error) => {}
            error => {
                warn!(claim = claim.name, error = message(error), "cannot reserve a claim; looking again");
                sleep(PAUSE).await;
            }
        }
        let left = shared.fence.left().ok_or("this replica is no longer the leader")?;
        let found = timeout(left, claims.get(&claim.name)).await.map_err(|_| "the lease ended")?;
        claim = match found {
            Ok(found) => show(found, shared).ok_or("it has no name")?,
            Err(error) if is_not_found(&error) => return Err("it is gone".into()),
            Err(_) => continue,
        };
        if claim.uid != decided.uid {
            return Err("there is another one of its name now".into());
        }
        // The write whose answer was lost has arrived.
        if claim.has_user(&user.uid) {
            return Ok(());
        }
        match (&allocation, &claim.allocation) {
            (Some(_), Some(_)) => return Err("it was allocated by another scheduler meanwhile".into()),
            (None, None) => return Err("it is not allocated any more".into()),
            _ => {}
        }
    }
    Err("it changes all the time, or the API server does not answer".into())
}

/// Protects a claim from being deleted, and then writes its allocation and its new user in one step.
async fn write(
    claims: &Api<ResourceClaim>,
    claim: &ClaimFacts,
    user: &ResourceClaimConsumerReference,
    allocation: Option<&AllocationResult>,
    shared: &Shared,
) -> kube::Result<()> {
    let mut claim = claim.clone();
    if allocation.is_some() && !claim.finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        let mut metadata = version_of(&claim);
        let finalizers = claim.finalizers.iter().map(String::as_str).chain([FINALIZER]);
        metadata["finalizers"] = finalizers.collect::<Vec<&str>>().into();
        let patch = json!({"metadata": metadata});
        let patched = claims.patch(&claim.name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        claim = show(patched, shared).unwrap_or(claim);
    }
    let mut status = json!({"reservedFor": Reservation::users_with(&claim.reserved_for, user)});
    if let Some(allocation) = allocation {
        status["allocation"] = json!(allocation);
    }
    let patch = json!({"metadata": version_of(&claim), "status": status});
    let patched = claims.patch_status(&claim.name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    show(patched, shared);
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::lease::Fence;
    use crate::played;

    #[tokio::test]
    async fn a_claim_that_is_gone_does_not_come_back_by_an_answer() {
        let shared = played::leader(Fence::until(Instant::now() + Duration::from_secs(3600)));
        let claim = |version: &str, finalizers: &[&str]| {
            json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {},
                "metadata": {
                    "name": "c", "namespace": "default", "uid": "c", "resourceVersion": version,
                    "finalizers": finalizers, "deletionTimestamp": "2026-01-01T00:00:00Z",
                },
            })
        };
        let facts = ClaimFacts::of(serde_json::from_value(claim("1", &[FINALIZER])).unwrap()).unwrap();
        shared.change(|mirror| mirror.resource_claim(facts.clone()));
        let (of_shared, gone) = (std::sync::Arc::clone(&shared), claim("2", &[]));
        let client = played::client(move |call| {
            // The watch is faster than the answer.
            of_shared.change(|mirror| mirror.resource_claim_gone("default", "c"));
            let answer = if call.method == "PATCH" { (200, gone.clone()) } else { played::failure(404, "NotFound") };
            async move { answer }
        });
        remove(&Api::namespaced(client, "default"), &facts, &shared).await.unwrap();
        assert_eq!(shared.read(|mirror| mirror.resource_claim_names().count()), 0);
    }

    #[test]
    fn names_of_shares_are_uuids_and_differ() {
        let (one, other) = (random_uuid().unwrap(), random_uuid().unwrap());
        assert_ne!(one, other);
        let lengths: Vec<usize> = one.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!(one.as_bytes()[14], b'4');
    }
}
