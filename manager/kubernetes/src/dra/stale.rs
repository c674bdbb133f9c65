//! Unprepares claims that kubelet has forgotten: their objects are gone, or have no device of this node any more, and
//! kubelet does not unprepare them, for example because its state was deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use aliquot_node::{Slice, blocking};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Client;
use kube::api::Api;
use tokio::sync::watch;
use tracing::{info, warn};

use super::allocation::{described, is_allocated};
use super::claims::Claims;
use super::names::ClaimUid;
use aliquot_api_server::{is_not_found, message};

/// Time between two looks. Kubelet itself unprepares a claim within seconds, so a claim that has nothing here at two
/// looks is forgotten.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);

/// Looks until `end` is true. The first look is at once, because kubelet forgets most while the driver is away.
pub(super) async fn run(claims: Arc<Claims>, client: Client, mut end: watch::Receiver<bool>) {
    let mut suspects = BTreeSet::new();
    loop {
        suspects = look(&claims, &client, &suspects).await;
        tokio::select! {
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
            // An error means that the sender is gone, which is the end as well.
            _ = end.wait_for(|end| *end) => return,
        }
    }
}

/// Unprepares the claims that were suspects `before` and still are. Returns the present suspects. If kubelet says that
/// a container has a slice of a claim, the claim is no suspect, and the API server is not asked about it. So two
/// hundred running pods cost the API server nothing.
pub(super) async fn look(claims: &Arc<Claims>, client: &Client, before: &BTreeSet<ClaimUid>) -> BTreeSet<ClaimUid> {
    let slices = blocking(claims.node(), |node| node.list()).await;
    let mut of_claims: BTreeMap<ClaimUid, Vec<&Slice>> = BTreeMap::new();
    for slice in &slices {
        if let Some(uid) = ClaimUid::of_slice(&slice.content.name) {
            of_claims.entry(uid).or_default().push(slice);
        }
    }
    let mut named = claims.known();
    // The slices of a claim whose record cannot be read are found by their names, and their descriptions name the
    // claim.
    for (uid, slices) in &of_claims {
        if let Some(name) = slices.iter().find_map(|slice| described(&slice.content.description)) {
            named.entry(uid.clone()).or_insert(name);
        }
    }
    let mut suspects = BTreeSet::new();
    for (uid, (namespace, name)) in named {
        let slices = of_claims.get(&uid).map(Vec::as_slice).unwrap_or_default();
        if slices.iter().any(|slice| !slice.consumers.is_empty()) {
            continue;
        }
        match is_gone(client, &namespace, &name, &uid, claims.pool()).await {
            Ok(false) => continue,
            Ok(true) => {}
            Err(error) => {
                warn!(error = message(&error), "cannot look for claims that are gone");
                // Without an answer the suspects stay the same.
                return before.clone();
            }
        }
        let processes: usize = slices.iter().map(|slice| slice.processes).sum();
        if !before.contains(&uid) {
            suspects.insert(uid);
        } else if processes > 0 {
            warn!(claim = %uid, namespace, name, processes, "a claim is gone, but not its processes: its slices stay");
            suspects.insert(uid);
        } else {
            info!(claim = %uid, namespace, name, "a claim is gone");
            if let Err(error) = claims.unprepare(uid.as_str()).await {
                warn!(claim = %uid, %error, "cannot give up a claim that is gone");
                suspects.insert(uid);
            } else if claims.known().contains_key(&uid) {
                // The GPU of its MIG instance does not answer.
                suspects.insert(uid);
            }
        }
    }
    suspects
}

/// Whether there is no such claim any more, or none that has a device of `pool`.
async fn is_gone(
    client: &Client,
    namespace: &str,
    name: &str,
    uid: &ClaimUid,
    pool: &str,
) -> Result<bool, kube::Error> {
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), namespace);
    match claims.get(name).await {
        Ok(found) => Ok(found.metadata.uid.as_deref() != Some(uid.as_str()) || !is_allocated(&found, pool)),
        Err(error) if is_not_found(&error) => Ok(true),
        Err(error) => Err(error),
    }
}
