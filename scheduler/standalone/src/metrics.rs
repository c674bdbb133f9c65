//! Metrics for Prometheus: what waits and why, what queues hold, how nodes are. All but a few counters are computed when
//! somebody asks, so they cost nothing as long as nobody does.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};

use aliquot_proto::scheduler::v1::{JobState, NodeState, Queue};
use aliquot_scheduler_core::explain::Tier;
use aliquot_scheduler_engine::{Shown, View};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use tokio::net::TcpListener;

use crate::controller::Seen;
use crate::present;
use crate::sessions::Sessions;

/// The media type of what [`Metrics::text`] returns.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The states of jobs, as the command line names them.
const JOB_STATES: [(JobState, &str); 6] = [
    (JobState::Pending, "pending"),
    (JobState::Running, "running"),
    (JobState::Stopping, "stopping"),
    (JobState::Succeeded, "succeeded"),
    (JobState::Failed, "failed"),
    (JobState::Cancelled, "cancelled"),
];

/// All tiers of reasons.
const TIERS: [Tier; 10] = [
    Tier::Members,
    Tier::Namespace,
    Tier::Quota,
    Tier::FairShare,
    Tier::Topology,
    Tier::Search,
    Tier::Waiting,
    Tier::Device,
    Tier::Model,
    Tier::Size,
];

type Level = Gauge<i64, AtomicI64>;
type Amount = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfQueue {
    queue: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfState {
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfReason {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfModel {
    model: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

/// What is counted as it happens. Copies count together.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    pub(crate) submitted: Counter,
    pub(crate) starts: Counter,
    pub(crate) stops: Counter,
    /// Seconds from the submission of a job until a task of it runs in its first attempt.
    pub(crate) start_wait: Histogram,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            submitted: Counter::default(),
            starts: Counter::default(),
            stops: Counter::default(),
            // From 10 ms to 46 hours.
            start_wait: Histogram::new(exponential_buckets(0.01, 4.0, 13)),
        }
    }
}

/// What metrics are computed from.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub(crate) counters: Counters,
    pub(crate) seen: Seen,
    pub(crate) shown: Shown,
    pub(crate) sessions: Sessions,
}

impl Metrics {
    /// The current metrics.
    fn text(&self) -> String {
        let mut registry = Registry::with_prefix("aliquot_scheduler");
        let Counters { submitted, starts, stops, start_wait } = self.counters.clone();
        registry.register("jobs_submitted", "Jobs taken in", submitted);
        registry.register("starts", "Commands to nodes to start a member of a task", starts);
        registry.register("stops", "Commands to nodes to stop a member of a task", stops);
        registry.register_with_unit(
            "start_wait",
            "Time from the submission of a job until a task of it runs in its first attempt, also while it waits for other jobs",
            Unit::Seconds,
            start_wait,
        );
        self.jobs(&mut registry);
        if let Some(view) = self.shown.get() {
            waiting(&mut registry, &view);
            queues(&mut registry, &present::queues(&view));
            self.nodes(&mut registry, &view);
        }
        let build = Family::<Build, Level>::default();
        build.get_or_create(&Build { version: env!("CARGO_PKG_VERSION") }).set(1);
        registry.register("build_info", "The scheduler's version; the value is 1", build);
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &registry);
        text
    }

    fn jobs(&self, registry: &mut Registry) {
        let jobs = Family::<OfState, Level>::default();
        for (_, state) in JOB_STATES {
            let _ = jobs.get_or_create(&OfState { state });
        }
        for entry in self.seen.book.read().entries() {
            let of = present::state(entry);
            if let Some((_, state)) = JOB_STATES.into_iter().find(|(state, _)| *state == of) {
                jobs.get_or_create(&OfState { state }).inc();
            }
        }
        registry.register("jobs", "Jobs, also those that have ended and are still listed", jobs);
    }

    fn nodes(&self, registry: &mut Registry, view: &View) {
        let states = Family::<OfState, Level>::default();
        let [devices, unhealthy] = [(); 2].map(|()| Family::<OfModel, Level>::default());
        let (given, memory_given) = (Family::<OfModel, Amount>::default(), Family::<OfModel, Amount>::default());
        for state in ["up", "silent", "cordoned"] {
            let _ = states.get_or_create(&OfState { state });
        }
        for node in present::nodes(view, &self.sessions) {
            let state = match node.state() {
                NodeState::Up => "up",
                NodeState::Cordoned => "cordoned",
                NodeState::Silent | NodeState::Unspecified => "silent",
            };
            states.get_or_create(&OfState { state }).inc();
            for device in node.devices {
                let model = OfModel { model: device.model };
                devices.get_or_create(&model).inc();
                unhealthy.get_or_create(&model).inc_by(i64::from(!device.healthy));
                given.get_or_create(&model).inc_by(f64::from(device.core_given_millis) / 1000.0);
                memory_given.get_or_create(&model).inc_by(device.memory_given_bytes as f64);
            }
        }
        registry.register("nodes", "Nodes that have joined and are known", states);
        registry.register("devices", "Devices of these nodes", devices);
        registry.register("devices_unhealthy", "Devices that take nothing new", unhealthy);
        registry.register("devices_given", "Time of devices that is given out, in devices", given);
        registry.register_with_unit(
            "device_memory_given",
            "Memory of devices that is given out",
            Unit::Bytes,
            memory_given,
        );
    }
}

fn waiting(registry: &mut Registry, view: &View) {
    let reasons = view.plan().reasons(view.cluster());
    let waiting = Family::<OfReason, Level>::default();
    // An alert on a reason that nothing waits for must see 0.
    for tier in TIERS {
        let _ = waiting.get_or_create(&OfReason { reason: word(tier) });
    }
    for number in reasons.numbers() {
        if let Some(reason) = reasons.distinct().get(*number) {
            waiting.get_or_create(&OfReason { reason: word(reason.tier()) }).inc();
        }
    }
    registry.register("waiting", "Tasks and gangs that wait for a place, by what is most in the way", waiting);
}

fn word(tier: Tier) -> &'static str {
    match tier {
        Tier::Members => "gang-incomplete",
        Tier::Namespace | Tier::Quota => "quota",
        Tier::FairShare => "fair-share",
        Tier::Topology => "topology",
        Tier::Search => "search",
        Tier::Waiting => "starts-soon",
        Tier::Device => "no-room",
        Tier::Model => "no-such-node",
        Tier::Size => "too-large",
    }
}

fn queues(registry: &mut Registry, queues: &[Queue]) {
    let gpus = |value: fn(&Queue) -> Option<u64>| {
        let family = Family::<OfQueue, Amount>::default();
        for queue in queues {
            if let Some(millis) = value(queue) {
                family.get_or_create(&OfQueue { queue: queue.name.clone() }).set(millis as f64 / 1000.0);
            }
        }
        family
    };
    let tasks = |value: fn(&Queue) -> u32| {
        let family = Family::<OfQueue, Level>::default();
        for queue in queues {
            family.get_or_create(&OfQueue { queue: queue.name.clone() }).set(value(queue).into());
        }
        family
    };
    let registry = registry.sub_registry_with_prefix("queue");
    registry.register("quota_gpus", "GPUs that a queue is guaranteed", gpus(|queue| queue.quota_gpu_millis));
    registry.register("limit_gpus", "GPUs that a queue may have at most", gpus(|queue| queue.limit_gpu_millis));
    registry.register(
        "fair_share_gpus",
        "GPUs that a queue may have now",
        gpus(|queue| Some(queue.fair_share_gpu_millis)),
    );
    registry.register("held_gpus", "GPUs that a queue has", gpus(|queue| Some(queue.held_gpu_millis)));
    registry.register("pending_gpus", "GPUs that a queue waits for", gpus(|queue| Some(queue.pending_gpu_millis)));
    registry.register("running_tasks", "Members of tasks that run", tasks(|queue| queue.running));
    registry.register("pending_tasks", "Members of tasks that wait", tasks(|queue| queue.pending));
}

/// Serves `/metrics`, and `/healthz` for probes.
pub(crate) async fn serve(listener: TcpListener, metrics: Metrics) {
    let router = Router::new().route("/metrics", get(scrape)).route("/healthz", get(health));
    // It ends with the runtime that it runs in.
    let _ = axum::serve(listener, router.with_state(Arc::new(metrics))).await;
}

async fn scrape(State(metrics): State<Arc<Metrics>>) -> Result<impl IntoResponse, StatusCode> {
    let text = tokio::task::spawn_blocking(move || metrics.text()).await;
    Ok(([(CONTENT_TYPE, OPENMETRICS)], text.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?))
}

/// The scheduler is ready when it decides: when the engine has shown what it knows.
async fn health(State(metrics): State<Arc<Metrics>>) -> (StatusCode, &'static str) {
    match metrics.shown.get() {
        Some(_) => (StatusCode::OK, "ok\n"),
        None => (StatusCode::SERVICE_UNAVAILABLE, "the scheduler has not yet read what it knows\n"),
    }
}
