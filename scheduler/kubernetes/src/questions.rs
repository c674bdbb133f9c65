//! Answers what operators ask: see [`aliquot_api_server::questions`].

mod explain;
mod usage;
mod what_if;

use std::sync::Arc;

use aliquot_api_server::questions::{Problem, Queue, QueueAmounts, Queues, Reason, WhatIf};
use aliquot_scheduler_core::explain as core;
use aliquot_scheduler_engine::{Snapshots, View};
use aliquot_telemetry::{ResourceUse, queue_uses, tier_word};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::serve::Shared;
use crate::telemetry::Status;

/// Questions that are worked on at the same time, at most: each takes as much of a core as a cycle does.
const AT_ONCE: usize = 2;

#[derive(Clone)]
struct Office {
    status: Arc<Status>,
    places: Arc<Semaphore>,
    /// Whether the webhook fills in what pods leave out.
    fills_in: bool,
    snapshots: Snapshots,
}

/// Serves until its runtime ends. `fills_in`: this replica has the webhook, too.
pub(crate) async fn serve(listener: TcpListener, status: Arc<Status>, fills_in: bool, snapshots: Snapshots) {
    let router = Router::new()
        .route("/v1/queues", get(queues))
        .route("/v1/pods/{namespace}/{name}", get(pod))
        .route("/v1/usage", get(usage))
        .route("/v1/snapshot", get(snapshot))
        .route("/v1/what-if", post(what_if));
    let office = Office { status, places: Arc::new(Semaphore::new(AT_ONCE)), fills_in, snapshots };
    let _ = axum::serve(listener, router.with_state(office)).await;
}

/// Why there is no answer.
#[derive(Debug)]
struct Refusal(StatusCode, String);

impl Refusal {
    fn not_found(why: String) -> Refusal {
        Refusal(StatusCode::NOT_FOUND, why)
    }

    fn senseless(why: impl Into<String>) -> Refusal {
        Refusal(StatusCode::UNPROCESSABLE_ENTITY, why.into())
    }

    fn broken(why: String) -> Refusal {
        Refusal(StatusCode::INTERNAL_SERVER_ERROR, why)
    }

    fn not_now(why: &str) -> Refusal {
        Refusal(StatusCode::SERVICE_UNAVAILABLE, why.to_owned())
    }
}

impl Office {
    /// Computes an answer outside the runtime's threads, from what a leader knows.
    async fn answer<T: Serialize + Send + 'static>(
        &self,
        answer: impl FnOnce(&Shared, &View) -> Result<T, Refusal> + Send + 'static,
    ) -> Response {
        match self.compute(answer).await {
            Ok(answer) => json(StatusCode::OK, &answer),
            Err(refusal) => refusal.into_response(),
        }
    }

    async fn compute<T: Send + 'static>(
        &self,
        answer: impl FnOnce(&Shared, &View) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let leading = self.status.leading().ok_or_else(|| Refusal::not_now("this replica does not lead"))?;
        let view = leading.shown.get();
        let view = view.ok_or_else(|| Refusal::not_now("this replica leads, and has not read the cluster yet"))?;
        // The semaphore is never closed.
        let _place = self.places.acquire().await;
        let done = tokio::task::spawn_blocking(move || answer(&leading.shared, &view)).await;
        done.unwrap_or_else(|error| Err(Refusal::broken(error.to_string())))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Refusal(status, problem) = self;
        json(status, &Problem { problem })
    }
}

fn json(status: StatusCode, answer: &impl Serialize) -> Response {
    match serde_json::to_vec(answer) {
        Ok(text) => (status, [(CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn queues(State(office): State<Office>) -> Response {
    office.answer(|_, view| Ok(Queues { queues: all_queues(view) })).await
}

/// A text that is JSON already.
async fn snapshot(State(office): State<Office>) -> Response {
    let snapshots = office.snapshots.clone();
    match office.compute(move |_, view| snapshots.text_of(view).map_err(Refusal::broken)).await {
        Ok(text) => (StatusCode::OK, [(CONTENT_TYPE, "application/json")], text).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

async fn usage(State(office): State<Office>) -> Response {
    office.answer(|shared, _| Ok(usage::answer(shared))).await
}

async fn pod(State(office): State<Office>, Path((namespace, name)): Path<(String, String)>) -> Response {
    office.answer(move |shared, view| explain::pod(shared, view, &namespace, &name)).await
}

async fn what_if(State(office): State<Office>, body: Bytes) -> Response {
    let question = serde_json::from_slice::<WhatIf>(&body);
    let fills_in = office.fills_in;
    office
        .answer(move |shared, view| {
            let question = question.map_err(|error| Refusal::senseless(error.to_string()))?;
            what_if::answer(shared, view, question, fills_in).map_err(Refusal::senseless)
        })
        .await
}

fn all_queues(view: &View) -> Vec<Queue> {
    let queues = queue_uses(view).into_iter().map(|queue| {
        let (first, first_waits_because) = queue.head.map(|head| (head.name, head.reason)).unzip();
        Queue {
            name: queue.name,
            parent: queue.parent,
            depth: queue.depth,
            quota_gpu_millis: queue.gpu.quota,
            limit_gpu_millis: queue.gpu.limit,
            fair_share_gpu_millis: queue.gpu.fair_share,
            past_usage_ppm: queue.past_usage_ppm,
            held_gpu_millis: queue.gpu.held,
            pending_gpu_millis: queue.gpu.pending,
            cpu_millis: Some(amounts(queue.cpu)),
            memory_bytes: Some(amounts(queue.memory)),
            running: queue.running,
            waiting: queue.waiting,
            first,
            first_waits_because,
        }
    });
    queues.collect()
}

fn amounts(of: ResourceUse) -> QueueAmounts {
    let ResourceUse { quota, limit, fair_share, held, pending } = of;
    QueueAmounts { quota, limit, fair_share, held, pending }
}

fn reasons(explanation: &core::Explanation) -> Vec<Reason> {
    let reason = |reason: &core::Reason| Reason { tier: tier_word(reason.tier()).into(), text: reason.to_string() };
    explanation.reasons.iter().map(reason).collect()
}

/// The answer about a pod; `None`: there is no such pod.
#[cfg(test)]
pub(crate) fn about_pod(
    shared: &Shared,
    view: &View,
    namespace: &str,
    name: &str,
) -> Option<aliquot_api_server::questions::PodAnswer> {
    explain::pod(shared, view, namespace, name).ok()
}
