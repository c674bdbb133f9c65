//! The controllers and the scheduler of the cluster: they make claims from templates, allocate devices, reserve claims
//! for pods, and bind pods. They release and delete unused claims.

mod claims;
mod extended_resources;
mod scheduler;

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::pod::name_of;
use aliquot_test_api_server::{PODS, Store};
use claims::ClaimController;
use scheduler::Scheduler;

/// The finalizer that keeps a claim with devices from being deleted.
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// Changes within this time are handled together.
const TOGETHER: Duration = Duration::from_millis(30);

/// Runs the controllers for `node` at each change.
pub(crate) async fn run(store: Store, node: String) {
    let mut changes = store.changes();
    let mut claims = ClaimController::new(store.clone());
    let mut scheduler = Scheduler::new(store.clone(), node);
    loop {
        changes.mark_unchanged();
        claims.collect();
        for pod in scheduler.waiting() {
            let outcome = claims.make(&pod).and_then(|pod| scheduler.schedule(&pod));
            note(&store, &pod, outcome);
        }
        if changes.changed().await.is_err() {
            return;
        }
        tokio::time::sleep(TOGETHER).await;
    }
}

/// Writes into the pod's status whether it is scheduled, and if not, why.
fn note(store: &Store, pod: &Pod, outcome: Result<(), String>) {
    let (namespace, name) = name_of(pod);
    let condition = match &outcome {
        Ok(()) => json!({"type": "PodScheduled", "status": "True"}),
        Err(reason) => {
            json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": reason})
        }
    };
    // The pod may have been deleted.
    let _ = store.merge(&PODS, &namespace, &name, true, &json!({"status": {"conditions": [condition]}}));
}
