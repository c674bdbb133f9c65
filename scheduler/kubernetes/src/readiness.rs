//! Waits until drivers have made a pod's devices and volumes ready, before the pod is bound.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use aliquot_api_server::{Client, Events, message, pod_reference};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::mirror::{Binding, DeviceId, LONGEST_MS, Readiness};
use crate::report::NOMINATED;
use crate::serve::Shared;

/// Time between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// A device that did not become ready is not given out for so long by this leader.
const SHUNNED: Duration = Duration::from_secs(300);
/// The reason of the event that says what a pod waits for, without and with volumes that are to be made.
const REASONS: [&str; 2] = ["DevicesNotReady", "VolumesNotReady"];

/// The longest wait, also for devices of which it is not known when they were allocated.
pub(crate) const LONGEST: Duration = Duration::from_millis(LONGEST_MS.unsigned_abs());

/// Waits until the devices and the volumes of a pod are ready whose claims are reserved for it.
///
/// # Errors
/// Why the pod is not to be bound.
pub(crate) async fn wait(
    client: &Client,
    binding: &Binding,
    shared: &Arc<Shared>,
    events: &Events,
) -> Result<(), String> {
    let end = Instant::now() + LONGEST;
    let mut is_said = false;
    loop {
        let (now_ms, is_last) = (Timestamp::now().as_millisecond(), Instant::now() >= end);
        // Most looks find nothing new. Only the others have the engine told.
        let waits = shared.read(|mirror| mirror.still_waits(binding, now_ms));
        let found = match waits.filter(|_| !is_last) {
            Some(why) => Readiness::Waits(why),
            None => shared.change(|mirror| mirror.readiness(binding, now_ms, is_last)),
        };
        let why = match found {
            Readiness::Ready => return Ok(()),
            Readiness::GivenUp { why, devices } => {
                shun(devices, shared);
                return Err(why);
            }
            Readiness::Waits(why) => why,
        };
        if shared.fence.left().is_none() {
            return Err("this replica is no longer the leader".into());
        }
        if !std::mem::replace(&mut is_said, true) {
            say(client, binding, shared, events, &why).await;
        }
        sleep(PAUSE).await;
    }
}

/// Says on which node a pod will be, and why it is not there yet.
async fn say(client: &Client, binding: &Binding, shared: &Shared, events: &Events, why: &str) {
    let has_volumes = !binding.volume_claims.is_empty();
    // A pod with volumes was nominated before these were asked for.
    if !has_volumes {
        nominate(client, binding, shared).await;
    }
    let what = if has_volumes { "volumes" } else { "devices" };
    let text = format!("the pod is bound to node {} as soon as its {what} are ready: {why}", binding.node);
    let pod = pod_reference(&binding.namespace, &binding.name, &binding.uid);
    shared.fence.within(events.note(pod, REASONS[usize::from(has_volumes)], &text)).await;
}

/// Says in a pod's status on which node it will be, because its binding takes long. What has failed is said anew with the
/// reason for which the pod waits then.
pub(crate) async fn nominate(client: &Client, binding: &Binding, shared: &Shared) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &binding.namespace);
    let status = json!({"metadata": {"uid": binding.uid}, "status": {NOMINATED: binding.node}});
    let (params, patch) = (PatchParams::default(), Patch::Strategic(status));
    let write = pods.patch_status(&binding.name, &params, &patch);
    if let Some(Err(error)) = shared.fence.within(write).await {
        warn!(pod = binding.name, error = message(&error), "cannot say for which node the pod waits");
    }
}

fn shun(devices: BTreeSet<DeviceId>, shared: &Arc<Shared>) {
    if devices.is_empty() {
        return;
    }
    shared.change(|mirror| mirror.shun_devices(devices.clone()));
    let shared = Arc::downgrade(shared);
    tokio::spawn(async move {
        sleep(SHUNNED).await;
        if let Some(shared) = shared.upgrade() {
            shared.change(|mirror| mirror.shun_devices_no_more(devices));
        }
    });
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tokio::time::timeout;

    use super::*;
    use crate::lease::Fence;
    use crate::played::{self, Call};

    #[tokio::test(start_paused = true)]
    async fn no_event_is_written_after_the_end_of_the_lease() {
        let shared = played::leader(Fence::until(Instant::now() + Duration::from_secs(3)));
        let calls: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = Arc::clone(&calls);
        // The API server does not answer.
        let client = played::client(move |call: Call| {
            seen.lock().push(call.method);
            std::future::pending()
        });
        let events = Events::new(client.clone(), "aliquot-scheduler", "replica-1".into());
        let binding = played::binding();
        let said = timeout(Duration::from_secs(60), say(&client, &binding, &shared, &events, "it is cold")).await;
        assert!(said.is_ok() && *calls.lock() == ["PATCH"], "{calls:?}");
    }
}
