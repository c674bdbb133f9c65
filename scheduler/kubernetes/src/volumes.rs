//! Has volumes made on the node that was chosen for a pod, before the pod is bound to it.

use std::time::Duration;

use aliquot_api_server::{is_not_found, message};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use crate::mirror::SELECTED_NODE;
use crate::serve::Shared;

/// The longest wait for a volume, as in kube-scheduler.
pub(crate) const LONGEST: Duration = Duration::from_secs(600);
/// Time between two looks at a claim.
const PAUSE: Duration = Duration::from_secs(1);

/// Says for which node volumes are to be made, and waits until the claims are bound.
///
/// # Errors
/// Why a claim is not bound.
pub(crate) async fn make(
    claims: &Api<PersistentVolumeClaim>,
    names: &[String],
    node: &str,
    shared: &Shared,
) -> Result<(), String> {
    let end = Instant::now() + LONGEST;
    for name in names {
        let selected = json!({"metadata": {"annotations": {SELECTED_NODE: node}}});
        let left = shared.fence.left().ok_or("this replica is no longer the leader")?;
        match timeout(left, claims.patch(name, &PatchParams::default(), &Patch::Merge(&selected))).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(format!("cannot have a volume made for claim {name:?}: {}", message(&error))),
            Err(_) => return Err("this replica is no longer the leader".into()),
        }
    }
    for name in names {
        while !is_bound(claims, name, node).await? {
            if Instant::now() >= end {
                return Err(format!(
                    "no volume was made for the PersistentVolumeClaim {name:?} on node {node} in time"
                ));
            }
            if shared.fence.left().is_none() {
                return Err("this replica is no longer the leader".into());
            }
            sleep(PAUSE).await;
        }
    }
    Ok(())
}

async fn is_bound(claims: &Api<PersistentVolumeClaim>, name: &str, node: &str) -> Result<bool, String> {
    let claim = match claims.get(name).await {
        Ok(claim) => claim,
        Err(error) if is_not_found(&error) => return Err(format!("there is no PersistentVolumeClaim {name:?}")),
        Err(error) => {
            warn!(claim = name, error = message(&error), "cannot look at a claim");
            return Ok(false);
        }
    };
    if claim.status.and_then(|status| status.phase).as_deref() == Some("Bound") {
        return Ok(true);
    }
    // The provisioner removes the annotation if it cannot make a volume for that node.
    let selected = claim.metadata.annotations.and_then(|annotations| annotations.get(SELECTED_NODE).cloned());
    match selected.as_deref() == Some(node) {
        true => Ok(false),
        false => Err(format!("no volume can be made for the PersistentVolumeClaim {name:?} on node {node}")),
    }
}
