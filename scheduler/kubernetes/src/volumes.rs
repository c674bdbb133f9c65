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
        match claims.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(written) => return Ok(written.metadata.resource_version.unwrap_or_default()),
            Err(error) if is_refusal(&error) => return Err(message(&error)),
            // Something else of the claim has changed, such as a finalizer, or the answer was lost.
            Err(_) => {}
        }
        let found = claims.get(name).await.map_err(|error| message(&error))?.metadata;
        if found.uid.as_ref() != Some(uid) {
            return Err("it was deleted, and there is another one of its name".to_owned());
        }
        resource_version = found.resource_version.unwrap_or_default();
        match found.annotations.and_then(|mut annotations| annotations.remove(SELECTED_NODE)) {
            Some(selected) if selected == node => return Ok(resource_version),
            Some(other) => return Err(format!("its volume is made on node {other}")),
            None => {}
        }
    }
    Err("the claim changes all the time".to_owned())
}

/// Whether the API server will never do what it was asked for.
fn is_refusal(error: &kube::Error) -> bool {
    let is_final = |code: u16| (400..500).contains(&code) && code != 408;
    !is_conflict(error) && matches!(error, kube::Error::Api(status) if is_final(status.code))
}
