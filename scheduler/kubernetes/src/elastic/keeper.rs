//! Writes what is planned for claims and parts, for as long as this replica leads.

use std::sync::Arc;
use std::time::Duration;

use aliquot_api_server::{Client, is_conflict, is_not_found, message};
use jiff::Timestamp;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;
use tokio::time::{interval, timeout};
use tracing::{debug, info};

use super::plan::Subject;
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
    let mut last = None;
    loop {
        looks.tick().await;
        let steps = shared.read(|mirror| mirror.elastic_steps(Timestamp::now()));
        for step in next(steps, &mut last) {
            let Some(left) = shared.fence.left() else { break };
            match timeout(left, carry_out(&client, &shared, &step)).await {
                // Another writer was faster. The next look plans with what it wrote.
                Ok(Err(error)) if is_not_found(&error) || is_conflict(&error) => {}
                Ok(Err(error)) => {
                    shared.status.write_failed(Written::ElasticGpu);
                    debug!(?step, error = message(&error), "cannot write the status of an ElasticGPUClaim");
                }
                Ok(Ok(())) | Err(_) => {}
            }
        }
    }
}

/// The writes of this look. It begins behind the last one, so writes that fail again and again hold up no others.
fn next(mut steps: Vec<Step>, last: &mut Option<Subject>) -> Vec<Step> {
    let done = last.as_ref().map_or(0, |last| steps.partition_point(|step| step.subject() <= *last));
    steps.rotate_left(done);
    steps.truncate(AT_A_LOOK);
    *last = steps.last().map(Step::subject);
    steps
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_claim_waits_for_others_that_fail_at_each_look() {
        let step = |number: usize| Step::Finalizers {
            claim: ("ns".into(), format!("{number:03}")),
            resource_version: String::new(),
            finalizers: Vec::new(),
        };
        let all: Vec<Step> = (0..AT_A_LOOK + 2).map(step).collect();
        let mut last = None;
        assert_eq!(next(all.clone(), &mut last), all[..AT_A_LOOK]);
        let second = next(all.clone(), &mut last);
        assert_eq!(second[..3], [step(AT_A_LOOK), step(AT_A_LOOK + 1), step(0)]);
        assert_eq!(second.len(), AT_A_LOOK);
        assert_eq!(next(vec![step(0)], &mut last), [step(0)]);
        assert_eq!(next(Vec::new(), &mut last), []);
    }
}
