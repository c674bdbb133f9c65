//! What goes on in a cluster beside the node: claims are made from templates, given devices, reserved for pods, and
//! pods are bound; what nobody uses any more is taken back and deleted.

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

/// Keeps a claim that has devices from going away.
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// Changes that come within this time are looked at together.
const TOGETHER: Duration = Duration::from_millis(30);

/// Does all this for `node`, whenever something has changed.
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

/// Says in the pod's status whether it is scheduled, and why not.
fn note(store: &Store, pod: &Pod, outcome: Result<(), String>) {
    let (namespace, name) = name_of(pod);
    let condition = match &outcome {
        Ok(()) => json!({"type": "PodScheduled", "status": "True"}),
        Err(reason) => {
            json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": reason})
        }
    };
    // It may be deleted.
    let _ = store.merge(&PODS, &namespace, &name, true, &json!({"status": {"conditions": [condition]}}));
}
