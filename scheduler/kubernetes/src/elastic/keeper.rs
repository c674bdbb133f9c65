//! Writes what is planned for claims and parts, for as long as this replica leads.

use std::sync::Arc;
use std::time::Duration;

use aliquot_api_server::{Client, Events, is_conflict, is_not_found};
use jiff::Timestamp;
use kube::Resource;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;
use tokio::time::interval;
use tracing::info;

use super::plan::WAITS_FOR_POD;
use super::{ElasticGpu, ElasticGpuClaim, Name, Step};
use crate::condition::Condition;
use crate::mirror::Mirror;
use crate::serve::Shared;
use crate::telemetry::Written;

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// Looks after which the books are asked again for the room of parts that have none.
const LOOKS_FOR_ROOM: u64 = 10;
/// Writes at a look, at most. The writes of the last claim may exceed it by a few.
const AT_A_LOOK: usize = 50;

/// Carries out at each look what is due for claims of which something has changed. Nothing is written once the lease is
/// over.
///
/// The mirror learns of a write by the watch, and never by its answer: that can come later than the news that the
/// object was changed again, or is gone.
pub(crate) async fn run(client: Client, shared: Arc<Shared>, events: Events) {
    let mut looks = interval(LOOK);
    let mut last = None;
    for look in 1_u64.. {
        looks.tick().await;
        if shared.fence.left().is_none() {
            continue;
        }
        if look.is_multiple_of(LOOKS_FOR_ROOM) {
            shared.change(Mirror::look_for_room_again);
        }
        for (claim, steps) in due(&shared, &mut last) {
            for step in steps {
                let is_settled = match shared.fence.within(carry_out(&client, &step)).await {
                    Some(Ok(said)) => {
                        if let Some(said) = said {
                            shared.fence.within(tell(&events, &said)).await;
                        }
                        true
                    }
                    // Another writer was faster. The watch reports what it wrote.
                    Some(Err(error)) if is_conflict(&error) => true,
                    // The object is gone, which the watch reports. Of one that is created it means that the resource is gone.
                    Some(Err(error)) if is_not_found(&error) && !matches!(step, Step::Make(_)) => true,
                    Some(Err(error)) => {
                        let (namespace, name) = &claim;
                        shared.status.write_refused(Written::ElasticGpu, &format!("{namespace}/{name}"), &error);
                        false
                    }
                    // The lease was over first.
                    None => false,
                };
                if !is_settled {
                    shared.change(|mirror| mirror.elastic_gpu_claim_is_due(&claim));
                }
            }
        }
    }
}

/// The writes of this look. It begins behind the last claim of the look before, so writes that fail again and again hold
/// up no others. The lock of the mirror is held for some claims at a time.
fn due(shared: &Shared, last: &mut Option<Name>) -> Vec<(Name, Vec<Step>)> {
    let (mut due, mut writes) = (Vec::new(), 0);
    while writes < AT_A_LOOK {
        let Some(planned) = shared.change(|mirror| mirror.elastic_steps(last, AT_A_LOOK - writes, Timestamp::now()))
        else {
            break;
        };
        writes += planned.iter().map(|(_, steps)| steps.len()).sum::<usize>();
        due.extend(planned);
    }
    due
}

/// Carries out one write. Returns the claim whose status was written.
async fn carry_out(client: &Client, step: &Step) -> kube::Result<Option<ElasticGpuClaim>> {
    let claims = |namespace: &str| Api::<ElasticGpuClaim>::namespaced(client.clone(), namespace);
    let gpus: Api<ElasticGpu> = Api::all(client.clone());
    let params = PatchParams::default();
    match step {
        Step::Make(gpu) => {
            gpus.create(&PostParams::default(), gpu).await?;
            let of = gpu.spec.claim_ref.clone().unwrap_or_default();
            info!(claim = %format_args!("{}/{}", of.namespace, of.name), node = gpu.spec.node_name, "a part was bound");
        }
        Step::Bind { gpu, resource_version, claim } => {
            let patch = json!({"metadata": {"resourceVersion": resource_version}, "spec": {"claimRef": claim}});
            gpus.patch(gpu, &params, &Patch::Merge(patch)).await?;
            info!(gpu, claim = %format_args!("{}/{}", claim.namespace, claim.name), "a part was bound");
        }
        Step::Delete { gpu, uid } => {
            let preconditions = Preconditions { uid: Some(uid.clone()), resource_version: None };
            gpus.delete(gpu, &DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }).await?;
        }
        Step::Finalizers { claim: (namespace, name), resource_version, finalizers } => {
            let patch = json!({"metadata": {"resourceVersion": resource_version, "finalizers": finalizers}});
            claims(namespace).patch(name, &params, &Patch::Merge(patch)).await?;
        }
        Step::SayOfClaim((namespace, name), status) => {
            let patch = Patch::Merge(json!({"status": status}));
            return claims(namespace).patch_status(name, &params, &patch).await.map(Some);
        }
        Step::SayOfGpu(name, status) => {
            gpus.patch_status(name, &params, &Patch::Merge(json!({"status": status}))).await?;
        }
    }
    Ok(None)
}

/// Says in an event what a claim's condition says.
async fn tell(events: &Events, claim: &ElasticGpuClaim) {
    let conditions = claim.status.iter().flat_map(|status| &status.conditions);
    for Condition { status, reason, message, .. } in conditions {
        let about = claim.object_ref(&());
        match status == "True" || reason == WAITS_FOR_POD {
            true => events.note(about, reason, message).await,
            false => events.warn(about, reason, message).await,
        }
    }
}
