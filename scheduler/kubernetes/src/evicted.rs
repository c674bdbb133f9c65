//! Says why a pod is evicted, in an event that outlives it.

use std::time::Duration;

use aliquot_scheduler_core::explain::evictions;
use aliquot_scheduler_engine::ClaimUid;
use tokio::time::sleep;

use crate::serve::Shared;

/// The reason of the event, as kube-scheduler says it.
pub(crate) const REASON: &str = "Preempted";

/// Looks for the plan that a command is from: readers see it a moment after the command went out.
const LOOKS: u32 = 25;
const PAUSE: Duration = Duration::from_millis(20);

/// Why a pod is to be evicted; `None`: its plan was not shown in time.
pub(crate) async fn cause(shared: &Shared, uid: &str) -> Option<String> {
    let uid = ClaimUid::from(uid);
    let look = || {
        let view = shared.status.leading()?.shown.get()?;
        Some(evictions(view.cluster(), view.claim_id(&uid)?).first()?.cause())
    };
    for _ in 0..LOOKS {
        if let Some(cause) = look() {
            return Some(cause);
        }
        sleep(PAUSE).await;
    }
    None
}
