//! Waits until drivers have made a pod's devices ready, before the pod is bound.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use aliquot_api_server::{Events, pod_reference};
use jiff::Timestamp;
use tokio::time::{Instant, sleep};

use crate::mirror::{Binding, DeviceId, LONGEST_MS, Readiness};
use crate::serve::Shared;

/// Time between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// A device that did not become ready is not given out for so long by this leader.
const SHUNNED: Duration = Duration::from_secs(300);
/// The reason of the event that says what a pod waits for.
const REASON: &str = "DevicesNotReady";

/// The longest wait, also for devices of which it is not known when they were allocated.
pub(crate) const LONGEST: Duration = Duration::from_millis(LONGEST_MS.unsigned_abs());

/// Waits until the devices of a pod are ready whose claims are reserved for it.
///
/// # Errors
/// Why the pod is not to be bound.
pub(crate) async fn wait(binding: &Binding, shared: &Arc<Shared>, events: &Events) -> Result<(), String> {
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
            let text = format!("the pod is bound to node {} as soon as its devices are ready: {why}", binding.node);
            events.note(pod_reference(&binding.namespace, &binding.name, &binding.uid), REASON, &text).await;
        }
        sleep(PAUSE).await;
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
