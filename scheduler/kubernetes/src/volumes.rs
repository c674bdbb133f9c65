//! Has volumes made on the node that was chosen for a pod, before the pod is bound to it.

use aliquot_api_server::{is_conflict, message};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::time::timeout;

use crate::mirror::{Binding, SELECTED_NODE, Unmade};
use crate::serve::Shared;

/// Times that a claim is written if it changes meanwhile.
const TRIES: usize = 5;

/// Says for which node volumes are to be made.
///
/// # Errors
/// Why no volume is asked for.
pub(crate) async fn ask_for(
    claims: &Api<PersistentVolumeClaim>,
    binding: &Binding,
    shared: &Shared,
) -> Result<(), String> {
    for unmade in &binding.unmade {
        let left = shared.fence.left().ok_or("this replica is no longer the leader")?;
        let asked = timeout(left, ask_for_one(claims, unmade, &binding.node)).await;
        let version = asked.map_err(|_| "this replica is no longer the leader")?;
        let why = |why| format!("cannot have a volume made for the PersistentVolumeClaim {:?}: {why}", unmade.name);
        let version = version.map_err(why)?;
        shared.change(|mirror| mirror.volume_asked_for(binding, &unmade.name, version));
    }
    Ok(())
}

/// Returns the version of the claim that names the node.
async fn ask_for_one(claims: &Api<PersistentVolumeClaim>, unmade: &Unmade, node: &str) -> Result<String, String> {
    let Unmade { name, uid, resource_version } = unmade;
    let mut resource_version = resource_version.clone();
    for _ in 0..TRIES {
        let patch = json!({"metadata": {
            "uid": uid, "resourceVersion": resource_version, "annotations": {SELECTED_NODE: node},
        }});
        let failed = match claims.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(written) => return Ok(written.metadata.resource_version.unwrap_or_default()),
            Err(error) => error,
        };
        if !is_conflict(&failed) {
            return Err(message(&failed));
        }
        // Something else of the claim has changed, such as a finalizer.
        let found = claims.get(name).await.map_err(|error| message(&error))?;
        let selected = found.metadata.annotations.as_ref().and_then(|annotations| annotations.get(SELECTED_NODE));
        if found.metadata.uid.as_ref() != Some(uid) {
            return Err("it was deleted, and there is another one of its name".to_owned());
        }
        if let Some(other) = selected.filter(|selected| *selected != node) {
            return Err(format!("its volume is made on node {other}"));
        }
        resource_version = found.metadata.resource_version.unwrap_or_default();
    }
    Err("the claim changes all the time".to_owned())
}
