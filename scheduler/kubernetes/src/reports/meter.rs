//! Device time that queues were given, and what of it their pods have used: counted since this replica leads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use aliquot_scheduler_engine::{Shown, View};
use aliquot_telemetry::queue_uses;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};
use tokio::time::{Instant, interval};

use crate::serve::Shared;

/// Time between two looks at what queues have.
const LOOK: Duration = Duration::from_secs(5);

/// A namespace, and a pod in it.
pub(super) type PodName = (String, String);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfQueue {
    queue: String,
}

type Seconds = Family<OfQueue, Counter<f64, AtomicU64>>;

/// The GPU time of queues, counted since the replica leads.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    given: Seconds,
    used: Seconds,
    /// The queues that there were at the last look.
    queues: Mutex<BTreeSet<String>>,
}

impl Meter {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("queue");
        let given = "GPU time that the queue's pods were given since this replica leads, in seconds of whole GPUs";
        registry.register_with_unit("given_gpu", given, Unit::Seconds, self.given.clone());
        let used = "GPU time that the queue's pods have used since then, as far as managers report it";
        registry.register_with_unit("used_gpu", used, Unit::Seconds, self.used.clone());
    }

    /// Counts what queues have now as given for this long. What was counted of queues that are gone is forgotten.
    fn given(&self, view: &View, elapsed: Duration) {
        let mut queues = BTreeSet::new();
        for queue in queue_uses(view) {
            let seconds = elapsed.as_secs_f64() * queue.gpu.held as f64 / 1000.0;
            self.given.get_or_create(&OfQueue { queue: queue.name.clone() }).inc_by(seconds);
            queues.insert(queue.name);
        }
        let mut before = self.queues.lock();
        for queue in before.difference(&queues) {
            let queue = OfQueue { queue: queue.clone() };
            self.given.remove(&queue);
            self.used.remove(&queue);
        }
        *before = queues;
    }

    /// Counts device time that pods of a queue have used. It counts for the queues above it, too.
    fn used(&self, view: &View, queue: &str, used_ns: u64) {
        let cluster = view.cluster();
        let mut next = cluster.queue_named(queue);
        while let Some(of) = next.and_then(|id| cluster.queue(id)) {
            let queue = of.spec().name.clone();
            self.used.get_or_create(&OfQueue { queue }).inc_by(used_ns as f64 / 1e9);
            next = of.parent();
        }
    }
}

/// Counts for as long as this replica leads.
pub(crate) async fn count(shared: &Shared, shown: Shown) {
    let mut looks = interval(LOOK);
    let mut looked = Instant::now();
    // Pods that are gone stay in it until their last report is counted.
    let mut queues: BTreeMap<PodName, String> = BTreeMap::new();
    loop {
        looks.tick().await;
        let elapsed = looked.elapsed();
        looked = Instant::now();
        let Some(view) = shown.get() else { continue };
        shared.meter.given(&view, elapsed);
        let now: BTreeMap<PodName, String> = shared.read(|mirror| {
            let holders = mirror.queues_of_holders();
            holders.map(|(namespace, pod, queue)| ((namespace.to_owned(), pod.to_owned()), queue)).collect()
        });
        for (pod, used_ns) in shared.reports.take_used() {
            if let Some(queue) = now.get(&pod).or_else(|| queues.get(&pod)) {
                shared.meter.used(&view, queue, used_ns);
            }
        }
        queues = now;
    }
}

#[cfg(test)]
mod tests {
    use aliquot_scheduler_engine::Observation;

    use super::*;
    use crate::played;

    #[test]
    fn a_queue_that_is_gone_is_not_counted_any_more() {
        let (meter, mut engine) = (Meter::default(), played::engine());
        let queue = aliquot_scheduler_core::QueueSpec { name: "q".into(), ..Default::default() };
        for observation in [Observation::Synced, Observation::Queue(queue)] {
            engine.handle(0, observation).unwrap();
        }
        let is_counted = |of: &Seconds, queue: &str| of.get(&OfQueue { queue: queue.into() }).is_some();
        meter.given(&engine.view(), LOOK);
        meter.used(&engine.view(), "q", 1);
        assert!(is_counted(&meter.given, "q") && is_counted(&meter.used, "q"));
        engine.handle(1, Observation::QueueRemoved("q".into())).unwrap();
        meter.given(&engine.view(), LOOK);
        assert!(!is_counted(&meter.given, "q") && !is_counted(&meter.used, "q"));
        assert!(is_counted(&meter.given, "default"));
    }
}
