//! Writes what is planned for claims and parts, for as long as this replica leads.

use std::sync::Arc;
use std::time::Duration;

use aliquot_api_server::{Client, is_conflict, is_not_found, message};
use jiff::Timestamp;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;
use tokio::time::{interval, timeout};
use tracing::{debug, info};

use super::{ElasticGpu, ElasticGpuClaim, Step};
use crate::serve::Shared;
use crate::telemetry::Written;

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// Writes at a look, at most.
const AT_A_LOOK: usize = 50;

/// Plans and carries out writes at each look. Nothing is written once the lease is over.
pub(crate) async fn run(client: Client, shared: Arc<Shared>) {
    let mut looks = interval(LOOK);
    loop {
        looks.tick().await;
        let steps = shared.read(|mirror| mirror.elastic_steps(Timestamp::now()));
        for step in steps.into_iter().take(AT_A_LOOK) {
            let Some(left) = shared.fence.left() else { break };
            match timeout(left, carry_out(&client, &shared, &step)).await {
                // Another writer was faster. The next look plans with what it wrote.
                Ok(Err(error)) if is_not_found(&error) || is_conflict(&error) => {}
                Ok(Err(error)) => {
                    shared.status.write_failed(Written::ElasticGpu);
                    debug!(?step, error = message(&error), "cannot write what is so of a claim for a part of a GPU");
                }
                Ok(Ok(())) | Err(_) => {}
            }
        }
    }
}

/// Carries out one write, and shows its answer to the mirror: the next look may come before the watch reports the
/// change.
async fn carry_out(client: &Client, shared: &Shared, step: &Step) -> kube::Result<()> {
    let claims = |namespace: &str| Api::<ElasticGpuClaim>::namespaced(client.clone(), namespace);
    let gpus: Api<ElasticGpu> = Api::all(client.clone());
    let params = PatchParams::default();
    match step {
        Step::Make(gpu) => {
            let made = gpus.create(&PostParams::default(), gpu).await?;
            let of = &made.spec.claim_ref;
            info!(claim = %format_args!("{}/{}", of.namespace, of.name), node = made.spec.node_name, "a part was bound");
            shared.change(|mirror| mirror.elastic_gpu(made));
        }
        Step::Delete { gpu, uid } => {
            let preconditions = Preconditions { uid: Some(uid.clone()), resource_version: None };
            gpus.delete(gpu, &DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }).await?;
            shared.change(|mirror| mirror.elastic_gpu_gone(gpu));
        }
        Step::Finalizers { claim: (namespace, name), resource_version, finalizers } => {
            let patch = json!({"metadata": {"resourceVersion": resource_version, "finalizers": finalizers}});
            let claim = claims(namespace).patch(name, &params, &Patch::Merge(patch)).await?;
            // A claim that is being deleted may be gone with its last finalizer. The watch reports what became of it.
            if claim.metadata.deletion_timestamp.is_none() {
                shared.change(|mirror| mirror.elastic_gpu_claim(claim));
            }
        }
        Step::SayOfClaim((namespace, name), status) => {
            let patch = Patch::Merge(json!({"status": status}));
            let claim = claims(namespace).patch_status(name, &params, &patch).await?;
            shared.change(|mirror| mirror.elastic_gpu_claim(claim));
        }
        Step::SayOfGpu(name, status) => {
            let gpu = gpus.patch_status(name, &params, &Patch::Merge(json!({"status": status}))).await?;
            shared.change(|mirror| mirror.elastic_gpu(gpu));
        }
    }
    Ok(())
}
