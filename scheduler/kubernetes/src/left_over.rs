//! Gives back what is allocated for pods that were not bound, and deletes the claims that were made for extended
//! resources of such pods. They are left over if a leader died between its writes, or could not undo the writes that
//! come before a binding.

use std::sync::Arc;
use std::time::Duration;

use aliquot_api_server::{Client, message};
use futures_util::{StreamExt, TryStreamExt, future, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::time::{interval, timeout};
use tracing::{debug, info};

use crate::dra::ClaimFacts;
use crate::mirror::LeftOver;
use crate::reservation;
use crate::serve::Shared;

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// Pods of a claim that are written at the same time, at most.
const AT_ONCE: usize = 16;

/// Gives back what is left over, for as long as this replica leads.
pub(crate) async fn run(client: Client, shared: Arc<Shared>) {
    let mut looks = interval(LOOK);
    loop {
        looks.tick().await;
        let now_ms = Timestamp::now().as_millisecond();
        let overdue = shared.read(|mirror| mirror.newly_overdue(now_ms));
        if !overdue.is_empty() {
            shared.change(|mirror| mirror.note_overdue(overdue));
        }
        for of in shared.read(|mirror| mirror.left_over_claims()) {
            let named = format!("{}/{}", of.claim.namespace, of.claim.name);
            match give_back(&client, &of, &shared).await {
                Ok(true) => info!(claim = named, "an allocation was given back: no pod was bound with it"),
                Ok(false) => {}
                Err(error) => debug!(claim = named, error = message(&error), "cannot give back an allocation"),
            }
        }
    }
}

/// Gives back one allocation. Returns whether it was given back. A binding that is still on its way names a version of
/// its pod, so the pods are changed first: then the bindings come too late.
async fn give_back(client: &Client, of: &LeftOver, shared: &Shared) -> kube::Result<bool> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &of.claim.namespace);
    let are_unbound = stream::iter(&of.pods)
        .map(|(name, uid)| while_leading(shared, is_kept_unbound(&pods, name, uid, &of.claim)))
        .buffer_unordered(AT_ONCE);
    let are_unbound = are_unbound.try_all(|is_unbound| future::ready(is_unbound == Some(true))).await?;
    if !are_unbound {
        return Ok(false);
    }
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), &of.claim.namespace);
    let given_back = while_leading(shared, async {
        match of.claim.is_of_extended_resources {
            true => reservation::remove(&claims, &of.claim, shared).await,
            false => reservation::take_back(&claims, &of.claim, &of.users, true, shared).await,
        }
    });
    Ok(given_back.await?.is_some())
}

/// What comes of a write; `None`: this replica did not lead for so long.
async fn while_leading<T>(shared: &Shared, write: impl Future<Output = kube::Result<T>>) -> kube::Result<Option<T>> {
    let Some(left) = shared.fence.left() else { return Ok(None) };
    timeout(left, write).await.ok().transpose()
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
