//! The scheduler's metrics beyond those of the engine's view: jobs, and the results of calls.

use std::collections::BTreeSet;

use aliquot_proto::scheduler::v1::JobState;
use aliquot_scheduler_engine::Shown;
use aliquot_telemetry::{Level, Telemetry, register_view};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::controller::Seen;
use crate::present;
use crate::sessions::Sessions;

/// The states of jobs, by the names that the command line uses.
const JOB_STATES: [(JobState, &str); 6] = [
    (JobState::Pending, "pending"),
    (JobState::Running, "running"),
    (JobState::Stopping, "stopping"),
    (JobState::Succeeded, "succeeded"),
    (JobState::Failed, "failed"),
    (JobState::Cancelled, "cancelled"),
];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfState {
    state: &'static str,
}

/// Counters that are increased as things happen. All copies share them.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    pub(crate) submitted: Counter,
    pub(crate) starts: Counter,
    pub(crate) stops: Counter,
    /// Calls that were refused because the user made too many.
    pub(crate) throttled: Counter,
    /// Connections from other machines that were refused or closed, and calls on connections beyond the caller's limit.
    pub(crate) connections_refused: Counter,
    /// Lines of the audit log that could not be written.
    pub(crate) audit_lost: Counter,
    /// Seconds from the submission of a job until a task of it runs in its first attempt.
    pub(crate) start_wait: Histogram,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            submitted: Counter::default(),
            starts: Counter::default(),
            stops: Counter::default(),
            throttled: Counter::default(),
            connections_refused: Counter::default(),
            audit_lost: Counter::default(),
            // From 10 ms to 46 hours.
            start_wait: Histogram::new(exponential_buckets(0.01, 4.0, 13)),
        }
    }
}

/// The sources from which the metrics are computed.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub(crate) counters: Counters,
    pub(crate) seen: Seen,
    pub(crate) shown: Shown,
    pub(crate) sessions: Sessions,
}

impl Telemetry for Metrics {
    fn register(&self, registry: &mut Registry) {
        let Counters { submitted, starts, stops, throttled, connections_refused, audit_lost, start_wait } =
            self.counters.clone();
        registry.register("jobs_submitted", "Jobs taken in", submitted);
        registry.register("starts", "Commands to nodes to start a member of a task", starts);
        registry.register("stops", "Commands to nodes to stop a member of a task", stops);
        registry.register("calls_throttled", "Calls that were refused because a user makes too many", throttled);
        registry.register(
            "connections_refused",
            "Connections from other machines that were too many or showed no certificate in time",
            connections_refused,
        );
        registry.register("audit_lines_lost", "Lines of the audit log that could not be written", audit_lost);
        registry.register_with_unit(
            "start_wait",
            "Time from the submission of a job until a task of it runs in its first attempt, also while it waits for other jobs",
            Unit::Seconds,
            start_wait,
        );
        self.jobs(registry);
        if let Some(view) = self.shown.get() {
            let none_searched = BTreeSet::new();
            register_view(registry, &view, &none_searched, |node| present::node_state(node, &self.sessions));
        }
    }

    fn health(&self) -> Result<(), String> {
        self.readiness()
    }

    /// The scheduler is ready when the engine has published its first view.
    fn readiness(&self) -> Result<(), String> {
        match self.shown.get() {
            Some(_) => Ok(()),
            None => Err("the scheduler has not yet loaded its state".to_owned()),
        }
    }
}

impl Metrics {
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
}
