//! Gives back what is allocated for pods that were not bound, and deletes the claims that were made for extended
//! resources of such pods. They are left over if a leader died between its writes, or could not undo the writes that
//! come before a binding.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_api_server::{Client, message};
use futures_util::{FutureExt, StreamExt, TryStreamExt, future, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::time::{Instant, interval};
use tracing::{debug, info};

use crate::dra::ClaimFacts;
use crate::mirror::LeftOver;
use crate::reservation;
use crate::serve::Shared;

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// The longest pause before an allocation that could not be given back is tried again. Each try changes its pods.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Pods of a claim that are written at the same time, at most.
const AT_ONCE: usize = 16;

/// Gives back what is left over, for as long as this replica leads.
pub(crate) async fn run(client: Client, shared: Arc<Shared>) {
    let mut looks = interval(LOOK);
    // By UID, the claims that could not be given back: when that is tried again, and the pause before it.
    let mut failed: BTreeMap<String, (Instant, Duration)> = BTreeMap::new();
    loop {
        looks.tick().await;
        let now_ms = Timestamp::now().as_millisecond();
        let overdue = shared.read(|mirror| mirror.newly_overdue(now_ms));
        if !overdue.is_empty() {
            shared.change(|mirror| mirror.note_overdue(overdue));
        }
        let left_over = shared.read(|mirror| mirror.left_over_claims());
        failed.retain(|uid, _| left_over.iter().any(|of| of.claim.uid == *uid));
        for of in left_over {
            let last = failed.get(&of.claim.uid).copied();
            if last.is_some_and(|(due, _)| Instant::now() < due) {
                continue;
            }
            let named = format!("{}/{}", of.claim.namespace, of.claim.name);
            match give_back(&client, &of, &shared).await {
                Ok(true) => info!(claim = named, "an allocation was given back: no pod was bound with it"),
                Ok(false) => {}
                Err(error) => {
                    debug!(claim = named, error = message(&error), "cannot give back an allocation");
                    let pause = last.map_or(LOOK, |(_, pause)| (2 * pause).min(PAUSE_MAX));
                    failed.insert(of.claim.uid, (Instant::now() + pause, pause));
                    continue;
                }
            }
            failed.remove(&of.claim.uid);
        }
    }
}

/// Gives back one allocation. Returns whether it was given back. A binding that is still on its way names a version of
/// its pod, so the pods are changed first: then the bindings come too late.
async fn give_back(client: &Client, of: &LeftOver, shared: &Shared) -> kube::Result<bool> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &of.claim.namespace);
    let are_unbound = stream::iter(&of.pods)
        .map(|(name, uid)| shared.fence.within(is_kept_unbound(&pods, name, uid, &of.claim)).map(Option::transpose))
        .buffer_unordered(AT_ONCE);
    let are_unbound = are_unbound.try_all(|is_unbound| future::ready(is_unbound == Some(true))).await?;
    if !are_unbound {
        return Ok(false);
    }
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), &of.claim.namespace);
    let given_back = shared.fence.within(async {
        match of.claim.is_of_extended_resources {
            true => reservation::remove(&claims, &of.claim, shared).await,
            false => reservation::take_back(&claims, &of.claim, &of.users, true, shared).await,
        }
    });
    Ok(given_back.await.transpose()?.is_some())
}

/// Changes a pod, so that a binding that is on its way comes too late. Returns `false` if the pod is bound already: only
/// the answer tells.
async fn is_kept_unbound(pods: &Api<Pod>, name: &str, uid: &str, claim: &ClaimFacts) -> kube::Result<bool> {
    let text = match claim.is_of_extended_resources {
        true => format!("ResourceClaim {:?} was made for it, but the pod was not bound; it is deleted", claim.name),
        false => format!("ResourceClaim {:?} is allocated, but the pod was not bound; it is given back", claim.name),
    };
    let condition = json!({"metadata": {"uid": uid}, "status": {"conditions": [{
        "type": "PodScheduled",
        "status": "False",
        "reason": "SchedulerError",
        "message": text,
        "lastTransitionTime": Timestamp::now(),
    }]}});
    if is_bound(&pods.get(name).await?) {
        return Ok(false);
    }
    let pod = pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(condition)).await?;
    Ok(!is_bound(&pod))
}

fn is_bound(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()).is_some_and(|node| !node.is_empty())
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::lease::Fence;
    use crate::played;
    use crate::pod::PodFacts;

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_given_back_is_tried_again_after_longer_pauses() {
        let shared = played::leader(Fence::until(Instant::now() + Duration::from_secs(3600)));
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "namespace": "default", "uid": "a", "resourceVersion": "1"},
            "spec": {
                "schedulerName": "aliquot", "containers": [{"name": "main"}],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}],
            },
        });
        let result = json!({"driver": "gpu.aliquot.dev", "pool": "n", "device": "gpu-0", "request": "gpu"});
        let claim = json!({
            "metadata": {"name": "c", "namespace": "default", "uid": "c", "resourceVersion": "1"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.aliquot.dev"}}]}},
            "status": {
                "allocation": {"devices": {"results": [result]}},
                "reservedFor": [{"resource": "pods", "name": "a", "uid": "a"}],
            },
        });
        let (to_engine, _inbox) = std::sync::mpsc::channel();
        shared.begin(to_engine);
        let facts = ClaimFacts::of(serde_json::from_value(claim).unwrap()).unwrap();
        shared.change(|mirror| {
            mirror.pod(PodFacts::of(serde_json::from_value(pod.clone()).unwrap(), "aliquot").unwrap());
            mirror.resource_claim(facts);
        });
        let tries = Arc::<Mutex<Vec<Duration>>>::default();
        let (began, noted) = (Instant::now(), Arc::clone(&tries));
        let client = played::client(move |call| {
            let answer = match call.method.as_str() {
                "GET" => (200, pod.clone()),
                _ => {
                    noted.lock().push(began.elapsed());
                    played::failure(403, "Forbidden")
                }
            };
            async move { answer }
        });
        _ = tokio::time::timeout(Duration::from_secs(600), run(client, Arc::clone(&shared))).await;
        let tries = tries.lock().clone();
        assert!((10..=20).contains(&tries.len()), "{tries:?}");
        assert!(tries.windows(2).all(|pair| pair[1] - pair[0] <= PAUSE_MAX + 2 * LOOK), "{tries:?}");
    }
}
