//! Counts what others ask a replica: kube-scheduler its extender, and the API server its webhook.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aliquot_telemetry::Level;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::extender::VERBS;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfVerb {
    verb: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfCall {
    verb: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfReview {
    webhook: &'static str,
    outcome: &'static str,
    reason: &'static str,
}

/// What became of a question to the extender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    Answered,
    /// What was asked for cannot be done, or makes no sense.
    Refused,
    /// This replica does not lead.
    SentToLeader,
    /// This replica cannot answer now.
    Failed,
}

impl CallOutcome {
    const ALL: [CallOutcome; 4] =
        [CallOutcome::Answered, CallOutcome::Refused, CallOutcome::SentToLeader, CallOutcome::Failed];

    fn word(self) -> &'static str {
        match self {
            CallOutcome::Answered => "answered",
            CallOutcome::Refused => "refused",
            CallOutcome::SentToLeader => "sent-to-leader",
            CallOutcome::Failed => "failed",
        }
    }
}

/// The questions to the extender.
#[derive(Debug)]
pub(crate) struct Calls {
    outcomes: Family<OfCall, Counter>,
    times: Family<OfVerb, Histogram>,
}

impl Default for Calls {
    fn default() -> Calls {
        // From 1 ms to 1 min.
        let histogram: fn() -> Histogram = || Histogram::new(exponential_buckets(0.001, 3.0, 11));
        let calls = Calls { outcomes: Family::default(), times: Family::new_with_constructor(histogram) };
        // The counters begin at 0, so that there is a rate of what has not happened yet.
        for (verb, outcome) in VERBS.into_iter().flat_map(|verb| CallOutcome::ALL.map(|outcome| (verb, outcome))) {
            let _ = calls.outcomes.get_or_create(&OfCall { verb, outcome: outcome.word() });
        }
        calls
    }
}

impl Calls {
    pub(crate) fn note(&self, verb: &'static str, outcome: CallOutcome, took: Duration) {
        self.outcomes.get_or_create(&OfCall { verb, outcome: outcome.word() }).inc();
        self.times.get_or_create(&OfVerb { verb }).observe(took.as_secs_f64());
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("extender");
        registry.register("calls", "Questions of kube-scheduler to the extender", self.outcomes.clone());
        registry.register_with_unit(
            "call",
            "Time from such a question until its answer",
            Unit::Seconds,
            self.times.clone(),
        );
    }
}

/// The objects that the API server has had reviewed.
#[derive(Debug)]
pub(crate) struct Reviews {
    outcomes: Family<OfReview, Counter>,
    times: Histogram,
    /// When the certificate ends, in seconds since 1970; 0: there is none.
    certificate_end_s: AtomicI64,
}

impl Default for Reviews {
    fn default() -> Reviews {
        // From 0.1 ms to 2 s.
        let times = Histogram::new(exponential_buckets(0.0001, 3.0, 10));
        Reviews { outcomes: Family::default(), times, certificate_end_s: AtomicI64::new(0) }
    }
}

impl Reviews {
    /// An object was reviewed. The reason says in one word why it is not simply admitted.
    pub(crate) fn note(&self, webhook: &'static str, outcome: &'static str, reason: &'static str, took: Duration) {
        self.outcomes.get_or_create(&OfReview { webhook, outcome, reason }).inc();
        self.times.observe(took.as_secs_f64());
    }

    pub(crate) fn certificate_ends(&self, at: SystemTime) {
        let since = at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.certificate_end_s.store(i64::try_from(since).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let end: Level = Gauge::default();
        end.set(self.certificate_end_s.load(Ordering::Relaxed));
        registry.register("admissions", "Objects that the webhook has reviewed", self.outcomes.clone());
        registry.register_with_unit(
            "admission",
            "Time in which the webhook reviews an object",
            Unit::Seconds,
            self.times.clone(),
        );
        registry.register_with_unit(
            "webhook_certificate_end",
            "When the certificate of the webhook ends, since 1970; 0: there is none",
            Unit::Seconds,
            end,
        );
    }
}
