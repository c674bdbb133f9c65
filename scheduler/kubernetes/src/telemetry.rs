//! What the scheduler tells of itself: which replica leads, what it writes and how long that takes, and whether all
//! parts work.

mod calls;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_api_server::{is_forbidden, message};
use aliquot_scheduler_engine::{Phase, Shown, View, Whereabouts};
use aliquot_telemetry::{Level, NodeState, Telemetry, register_view};
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use crate::serve::Shared;

pub(crate) use calls::{CallOutcome, Calls, Reviews};

/// A replica that the API server has not answered for so long is not ready. It asks every two seconds.
const SILENCE: Duration = Duration::from_secs(15);
/// An engine that has not answered for so long hangs: the longest cycles take a few seconds.
const HANGS: Duration = Duration::from_secs(60);
/// Time after which it is said again that writes are forbidden.
const SAY_AGAIN: Duration = Duration::from_secs(60);
/// The engine is asked so often whether it answers.
const ASK: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfOutcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfWrite {
    write: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfState {
    state: &'static str,
}

/// What a replica writes, other than what has metrics of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Written {
    Condition,
    ElasticGpu,
    Lease,
    Memory,
    PodGroupStatus,
    QueueStatus,
    Suspension,
}

impl Written {
    const ALL: [Written; 7] = [
        Written::Condition,
        Written::ElasticGpu,
        Written::Lease,
        Written::Memory,
        Written::PodGroupStatus,
        Written::QueueStatus,
        Written::Suspension,
    ];

    fn word(self) -> &'static str {
        match self {
            Written::Condition => "condition",
            Written::ElasticGpu => "elastic-gpu",
            Written::Lease => "lease",
            Written::Memory => "memory",
            Written::PodGroupStatus => "pod-group-status",
            Written::QueueStatus => "queue-status",
            Written::Suspension => "suspension",
        }
    }
}

/// What is known of a replica. It outlives each of its times as a leader.
#[derive(Debug)]
pub(crate) struct Status {
    /// When the API server answered last.
    answered: Mutex<Option<Instant>>,
    leading: Mutex<Option<Leading>>,
    /// Where the leader's extender is, if another replica leads.
    extender_of_leader: Mutex<Option<String>>,
    bindings: Family<OfOutcome, Counter>,
    evictions: Family<OfOutcome, Counter>,
    failed_writes: Family<OfWrite, Counter>,
    /// When it was last said that what is written is forbidden.
    forbidden_said: Mutex<BTreeMap<&'static str, Instant>>,
    binding: Histogram,
    start_wait: Histogram,
    decision: Histogram,
    calls: Calls,
    reviews: Reviews,
}

/// What is known only of a replica that leads.
#[derive(Clone)]
pub(crate) struct Leading {
    pub(crate) shared: Arc<Shared>,
    pub(crate) shown: Shown,
    pub(crate) term: u64,
    /// Since when the engine has owed an answer.
    asked: Arc<Mutex<Option<Instant>>>,
}

impl std::fmt::Debug for Leading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leading").field("term", &self.term).finish_non_exhaustive()
    }
}

impl Default for Status {
    fn default() -> Status {
        let status = Status {
            answered: Mutex::default(),
            leading: Mutex::default(),
            extender_of_leader: Mutex::default(),
            bindings: Family::default(),
            evictions: Family::default(),
            failed_writes: Family::default(),
            forbidden_said: Mutex::default(),
            // From 1 ms to 1 min.
            binding: Histogram::new(exponential_buckets(0.001, 3.0, 11)),
            // From 10 ms to 46 hours.
            start_wait: Histogram::new(exponential_buckets(0.01, 4.0, 13)),
            // From 0.1 ms to 7 s.
            decision: Histogram::new(exponential_buckets(0.0001, 4.0, 9)),
            calls: Calls::default(),
            reviews: Reviews::default(),
        };
        // The counters begin at 0, so that there is a rate of what has not happened yet.
        for outcome in ["bound", "failed"] {
            let _ = status.bindings.get_or_create(&OfOutcome { outcome });
        }
        for outcome in ["accepted", "refused"] {
            let _ = status.evictions.get_or_create(&OfOutcome { outcome });
        }
        for written in Written::ALL {
            let _ = status.failed_writes.get_or_create(&OfWrite { write: written.word() });
        }
        status
    }
}

impl Status {
    /// The API server has answered.
    pub(crate) fn answered(&self) {
        *self.answered.lock() = Some(Instant::now());
    }

    /// This replica leads from now on; `None`: no more.
    pub(crate) fn leads(&self, leading: Option<Leading>) {
        *self.leading.lock() = leading;
    }

    /// What a leader knows; `None`: this replica stands by.
    pub(crate) fn leading(&self) -> Option<Leading> {
        self.leading.lock().clone()
    }

    /// Notes where the extender of another replica is that leads; `None`: no other replica leads, or it does not say
    /// where.
    pub(crate) fn leader_is_at(&self, url: Option<String>) {
        *self.extender_of_leader.lock() = url;
    }

    /// Where the leader's extender is, if another replica leads.
    pub(crate) fn extender_of_leader(&self) -> Option<String> {
        self.extender_of_leader.lock().clone()
    }

    /// A binding was answered after so long. `waited`: how long the pod had been there then.
    pub(crate) fn bound(&self, is_bound: bool, took: Duration, waited: Option<Duration>) {
        let outcome = if is_bound { "bound" } else { "failed" };
        self.bindings.get_or_create(&OfOutcome { outcome }).inc();
        self.binding.observe(took.as_secs_f64());
        if let Some(waited) = waited.filter(|_| is_bound) {
            self.start_wait.observe(waited.as_secs_f64());
        }
    }

    /// An eviction was answered.
    pub(crate) fn evicted(&self, is_accepted: bool) {
        let outcome = if is_accepted { "accepted" } else { "refused" };
        self.evictions.get_or_create(&OfOutcome { outcome }).inc();
    }

    /// A write has failed, and is tried again.
    pub(crate) fn write_failed(&self, written: Written) {
        self.failed_writes.get_or_create(&OfWrite { write: written.word() }).inc();
    }

    /// The API server has answered a write of `object` with an error. Most errors pass by themselves, but nothing goes
    /// on without a right.
    pub(crate) fn write_refused(&self, written: Written, object: &str, error: &kube::Error) {
        self.write_failed(written);
        let (what, is_forbidden) = (written.word(), is_forbidden(error));
        let error = message(error);
        if is_forbidden && self.is_to_say_forbidden(written) {
            let hint = "apply the scheduler's manifests, which give it the right";
            warn!(what, object, error, "a write is forbidden; trying again; {hint}");
        } else {
            debug!(what, object, error, "a write has failed; trying again");
        }
    }

    fn is_to_say_forbidden(&self, written: Written) -> bool {
        let mut said = self.forbidden_said.lock();
        let is_due = said.get(written.word()).is_none_or(|at| at.elapsed() >= SAY_AGAIN);
        if is_due {
            said.insert(written.word(), Instant::now());
        }
        is_due
    }

    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
    }

    pub(crate) fn reviews(&self) -> &Reviews {
        &self.reviews
    }

    fn register_own(&self, registry: &mut Registry, leading: Option<&Leading>) {
        let number = |value: u64| {
            let level: Level = Gauge::default();
            level.set(i64::try_from(value).unwrap_or(i64::MAX));
            level
        };
        registry.register("leader", "1 if this replica leads", number(leading.is_some().into()));
        registry.register(
            "leader_term",
            "The term of this replica as the leader; 0: it does not lead",
            number(leading.map_or(0, |leading| leading.term)),
        );
        registry.register("bindings", "Bindings of pods that were answered", self.bindings.clone());
        registry.register("evictions", "Evictions of pods that were answered", self.evictions.clone());
        registry.register(
            "failed_writes",
            "Other writes to the API server that failed; they are tried again",
            self.failed_writes.clone(),
        );
        registry.register_with_unit(
            "binding",
            "Time from the start of a binding until it was answered, volumes included",
            Unit::Seconds,
            self.binding.clone(),
        );
        registry.register_with_unit(
            "start_wait",
            "Time from the creation of a pod until it was bound",
            Unit::Seconds,
            self.start_wait.clone(),
        );
        registry.register_with_unit(
            "decision",
            "Time in which the engine takes in an observation, decides and sends what follows, asked every 5 s",
            Unit::Seconds,
            self.decision.clone(),
        );
    }
}

impl Telemetry for Status {
    fn register(&self, registry: &mut Registry) {
        let leading = self.leading();
        self.register_own(registry, leading.as_ref());
        self.calls.register(registry);
        self.reviews.register(registry);
        let Some(Leading { shared, shown, .. }) = leading else { return };
        let Some(view) = shown.get() else { return };
        let cycles: Counter = Counter::default();
        cycles.inc_by(view.cycles());
        registry.register("cycles", "Cycles in which this leader has decided", cycles);
        shared.meter.register(registry);
        let reporting: Level = Gauge::default();
        reporting.set(i64::try_from(shared.reports.fresh(|_, _, _| ()).len()).unwrap_or(i64::MAX));
        registry.register("nodes_reporting", "Nodes whose managers have reported lately", reporting);
        pods(registry, &view, shared.read(|mirror| mirror.unsupported()));
        let not_ready = shared.read(|mirror| mirror.nodes_not_ready());
        let searched = shared.read(|mirror| mirror.searched_groups(&view));
        register_view(registry, &view, &searched, |node| {
            let books = view.cluster().node_named(node.name.as_str()).and_then(|id| view.cluster().node(id));
            match books.is_some_and(|node| node.spec().cordoned) {
                _ if !node.is_up || not_ready.contains(node.name.as_str()) => NodeState::Silent,
                true => NodeState::Cordoned,
                false => NodeState::Up,
            }
        });
    }

    /// Only what a restart would mend makes a replica unhealthy: while the API server does not answer, restarts would
    /// only delay what comes after.
    fn health(&self) -> Result<(), String> {
        let since = self.leading().and_then(|leading| *leading.asked.lock());
        match since.map(|since| since.elapsed()).filter(|waited| *waited > HANGS) {
            Some(waited) => Err(format!("the engine has not answered for {} s", waited.as_secs())),
            None => Ok(()),
        }
    }

    fn readiness(&self) -> Result<(), String> {
        self.health()?;
        match self.answered.lock().map(|answered| answered.elapsed()) {
            None => return Err("the API server has not answered yet".to_owned()),
            Some(silent) if silent > SILENCE => {
                return Err(format!("the API server has not answered for {} s", silent.as_secs()));
            }
            Some(_) => {}
        }
        match self.leading().filter(|leading| leading.shown.get().is_none()) {
            Some(_) => Err("this replica leads, and has not read the cluster yet".to_owned()),
            None => Ok(()),
        }
    }
}

fn pods(registry: &mut Registry, view: &View, unsupported: usize) {
    let pods = Family::<OfState, Level>::default();
    for state in ["waiting", "placed", "binding", "bound", "leaving"] {
        let _ = pods.get_or_create(&OfState { state });
    }
    for (_, claim) in view.claims() {
        let state = match claim.whereabouts {
            Whereabouts::Refused(_) | Whereabouts::Waiting => "waiting",
            Whereabouts::Placed(_) => "placed",
            Whereabouts::There { phase: Phase::Starting, .. } => "binding",
            Whereabouts::There { phase: Phase::Running, .. } => "bound",
            Whereabouts::There { phase: Phase::Stopping, .. } => "leaving",
        };
        pods.get_or_create(&OfState { state }).inc();
    }
    let unsupported = i64::try_from(unsupported).unwrap_or(i64::MAX);
    pods.get_or_create(&OfState { state: "not-supported" }).set(unsupported);
    registry.register("pods", "Pods of this scheduler", pods);
}

impl Leading {
    pub(crate) fn new(shared: &Arc<Shared>, shown: &Shown, term: u64) -> Leading {
        Leading { shared: Arc::clone(shared), shown: shown.clone(), term, asked: Arc::default() }
    }

    /// Asks the engine again and again whether it answers, for as long as this replica leads.
    pub(crate) async fn watch_engine(&self, status: &Status) {
        loop {
            let asked = Instant::now();
            *self.asked.lock() = Some(asked);
            let (answer, answered) = oneshot::channel();
            self.shared.ask_engine(Box::new(move |_| _ = answer.send(())));
            if answered.await.is_err() {
                // The engine has ended, and never answers.
                return std::future::pending().await;
            }
            *self.asked.lock() = None;
            status.decision.observe(asked.elapsed().as_secs_f64());
            sleep(ASK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_missing_right_is_said_once_a_minute() {
        let status = Status::default();
        assert!(status.is_to_say_forbidden(Written::Condition) && status.is_to_say_forbidden(Written::ElasticGpu));
        assert!(!status.is_to_say_forbidden(Written::Condition));
        tokio::time::advance(SAY_AGAIN).await;
        assert!(status.is_to_say_forbidden(Written::Condition));
    }
}
