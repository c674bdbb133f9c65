//! Keeps up to date the node's description besides the units that kubelet hands out: the amounts that only the
//! scheduler counts, and the inventory. Kubelet leaves amounts that no plugin serves in the node's status, unless the
//! machine was restarted, and other programs may change annotations. So both are written again and again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_api_server::Inventory;
use aliquot_node::Devices;
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use super::cluster::Cluster;

/// Time after which unchanged content is written again.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);
/// The pause after the first failure. It doubles with each further failure, up to the interval.
const FIRST_PAUSE: Duration = Duration::from_secs(2);

/// Writes content that is new, or that was written long ago.
pub(super) struct Publisher {
    cluster: Arc<dyn Cluster>,
    has_seen_devices: bool,
    amounts: Pacing<BTreeMap<&'static str, u64>>,
    inventory: Pacing<Inventory>,
}

impl Publisher {
    pub(super) fn new(cluster: Arc<dyn Cluster>) -> Publisher {
        Publisher { cluster, has_seen_devices: false, amounts: Pacing::new(), inventory: Pacing::new() }
    }

    /// Writes these amounts of these devices, and their inventory. Before it has seen a device it writes nothing: the
    /// driver may not answer yet, and kubelet does not take back pods that run on a node without any.
    pub(super) async fn publish(
        &mut self,
        devices: &Devices,
        amounts: BTreeMap<&'static str, u64>,
        inventory: Inventory,
    ) {
        self.has_seen_devices |= !devices.devices.is_empty();
        if !self.has_seen_devices {
            return;
        }
        if !amounts.is_empty() && self.amounts.is_due(&amounts) {
            let outcome = self.cluster.count(&amounts).await;
            self.amounts.note(amounts, outcome, "write the resources of other systems into the node's status");
        }
        if self.inventory.is_due(&inventory) {
            let outcome = self.cluster.describe(Some(&inventory)).await;
            self.inventory.note(inventory, outcome, "say in an annotation of the node which devices it has");
        }
    }
}

/// Removes the inventory of a node that the plugin does not serve any more.
pub(super) async fn withdraw_inventory(cluster: &dyn Cluster) {
    let mut withdrawal = Pacing::new();
    while withdrawal.written.is_none() {
        if let Some(due) = withdrawal.due {
            sleep_until(due).await;
        }
        let outcome = cluster.describe(None).await;
        withdrawal.note((), outcome, "remove the annotation of the node that says which devices it has");
    }
}

/// Decides when content is written.
struct Pacing<T> {
    /// The content written last; `None` if the write failed.
    written: Option<T>,
    /// The time at which the content is written again.
    due: Option<Instant>,
    /// The pause after the next failure.
    pause: Duration,
}

impl<T: PartialEq> Pacing<T> {
    fn new() -> Pacing<T> {
        Pacing { written: None, due: None, pause: FIRST_PAUSE }
    }

    fn is_due(&self, content: &T) -> bool {
        let is_new = self.written.as_ref().is_some_and(|written| written != content);
        is_new || self.due.is_none_or(|due| Instant::now() >= due)
    }

    /// Records the outcome of writing `content`. `what` names the action in the warning about a failure.
    fn note(&mut self, content: T, outcome: Result<(), String>, what: &str) {
        match outcome {
            Ok(()) => {
                (self.written, self.pause) = (Some(content), FIRST_PAUSE);
                self.due = Some(Instant::now() + REPEAT_INTERVAL);
            }
            Err(reason) => {
                if self.pause == FIRST_PAUSE {
                    warn!("cannot {what}, will try again: {reason}");
                }
                self.written = None;
                self.due = Some(Instant::now() + self.pause);
                self.pause = REPEAT_INTERVAL.min(self.pause * 2);
            }
        }
    }
}
