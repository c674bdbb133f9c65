//! Kube-scheduler keeps its pods and asks this scheduler about devices: its extender protocol, JSON over HTTP.
//!
//! | request | what it asks | decided |
//! | --- | --- | --- |
//! | `POST /filter` | which nodes have room for a pod's devices | on what readers see |
//! | `POST /prioritize` | which of these suits best | the same |
//! | `POST /preempt` | on which nodes evictions would help | the same |
//! | `POST /bind` | choose devices on this node, and bind the pod | by the engine, with what is free at that moment |
//! | `GET /inspect`, `GET /inspect/NODE` | the devices and their holders, in `GPUShare`'s words | on what readers see |
//!
//! All of them are also below `/gpushare-scheduler`, where `GPUShare` has them.
//!
//! Both ways share the same books: a pod that kube-scheduler has bound in this way is a claim there, like a pod that
//! names this scheduler. `/bind` decides, whatever `/filter` said before: a pod that does not fit any more is refused,
//! and kube-scheduler tries again.
//!
//! Only the leader answers. A replica that stands by sends the client to the leader with the status 307, which
//! kube-scheduler follows. The Lease says where the leader answers.

mod bind;
mod fit;
mod inspect;
mod preempt;
mod protocol;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_scheduler_engine::View;
use aliquot_telemetry::Capped;
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::header::{CONNECTION, CONTENT_TYPE, LOCATION};
use axum::http::{StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::serve::{ServeError, Shared};
use crate::telemetry::{CallOutcome, Leading, Status};
use crate::tls::{FromFiles, TlsFiles, TlsListener};
use protocol::{BindingArgs, BindingResult, ExtenderArgs, PreemptionArgs, Wrong};

pub(crate) use bind::Waiters;

/// Where `GPUShare` has all of its paths.
const BELOW: &str = "/gpushare-scheduler";
/// The questions, as they stand at the beginning of paths.
pub(crate) const VERBS: [&str; 5] = ["filter", "prioritize", "preempt", "bind", "inspect"];

/// The longest body, in bytes: 5000 nodes with all that they say of themselves take some 50 MiB.
const BODY_MAX: usize = 128 << 20;
/// The time in which a body must arrive. Kube-scheduler sends it at once.
const BODY_WITHIN: Duration = Duration::from_secs(10);
/// Questions that are read and worked on at the same time, at most. Kube-scheduler asks one after another.
const AT_ONCE: usize = 4;
/// The longest body of a request to bind a pod, in bytes. It has only names.
const BINDING_MAX: usize = 64 << 10;

/// Serves until its runtime ends.
///
/// # Errors
/// The certificate cannot be used.
pub(crate) fn serve(
    listener: TcpListener,
    tls: Option<TlsFiles>,
    status: Arc<Status>,
) -> Result<impl Future<Output = ()> + Send + 'static, ServeError> {
    let tls = tls.map(FromFiles::new).transpose().map_err(ServeError::Certificate)?;
    let router = router(status);
    Ok(async move {
        let _ = match tls {
            None => axum::serve(Capped::new(listener), router).await,
            Some(mut tls) => axum::serve(Capped::new(TlsListener::new(listener, move || tls.config())), router).await,
        };
    })
}

fn router(status: Arc<Status>) -> Router {
    let desk = Desk { status: Arc::clone(&status), places: Arc::new(Semaphore::new(AT_ONCE)) };
    let mut router = Router::new();
    for below in ["", BELOW] {
        router = router
            .route(&format!("{below}/filter"), post(filter))
            .route(&format!("{below}/prioritize"), post(prioritize))
            .route(&format!("{below}/preempt"), post(preempt))
            .route(&format!("{below}/bind"), post(bind))
            .route(&format!("{below}/inspect"), get(inspect_all))
            .route(&format!("{below}/inspect/{{node}}"), get(inspect_one));
    }
    router.route_layer(from_fn_with_state(status, count)).with_state(desk)
}

/// Counts a call, and how long it took.
async fn count(State(status): State<Arc<Status>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let verb = path.strip_prefix(BELOW).unwrap_or(path).split('/').nth(1).unwrap_or_default();
    let verb = VERBS.into_iter().find(|known| *known == verb);
    let began = Instant::now();
    let response = next.run(request).await;
    let outcome = match response.status().as_u16() {
        200 => response.extensions().get().copied().unwrap_or(CallOutcome::Answered),
        307 => CallOutcome::SentToLeader,
        500.. => CallOutcome::Failed,
        _ => CallOutcome::Refused,
    };
    if let Some(verb) = verb {
        status.calls().note(verb, outcome, began.elapsed());
    }
    response
}

#[derive(Clone)]
struct Desk {
    status: Arc<Status>,
    places: Arc<Semaphore>,
}

/// Why there is no answer of the protocol.
enum Refusal {
    /// Another replica leads, and answers there.
    Elsewhere(String),
    Because(StatusCode, String),
}

impl Refusal {
    fn not_now(why: &str) -> Refusal {
        Refusal::Because(StatusCode::SERVICE_UNAVAILABLE, why.to_owned())
    }

    fn senseless(why: String) -> Refusal {
        Refusal::Because(StatusCode::BAD_REQUEST, why)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            // The client connects anew for its next request, which may then reach the leader at once.
            Refusal::Elsewhere(url) => {
                (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, url), (CONNECTION, "close".to_owned())]).into_response()
            }
            Refusal::Because(status, error) => {
                let mut response = json(&Wrong { error });
                *response.status_mut() = status;
                response
            }
        }
    }
}

impl Desk {
    /// What the leader knows, if this replica leads.
    fn leading(&self, uri: &Uri) -> Result<(Leading, Arc<View>), Refusal> {
        let Some(leading) = self.status.leading() else {
            return Err(match self.status.extender_of_leader() {
                Some(url) => Refusal::Elsewhere(format!("{}{}", url.trim_end_matches('/'), uri.path())),
                None => Refusal::not_now("this replica does not lead, and does not know where the leader answers"),
            });
        };
        let view = leading.shown.get();
        let view = view.ok_or_else(|| Refusal::not_now("this replica leads, and has not read the cluster yet"))?;
        Ok((leading, view))
    }

    /// Computes an answer outside the runtime's threads, from what a leader knows.
    async fn answer<Q, T>(
        &self,
        uri: &Uri,
        body: Body,
        answer: impl FnOnce(&Shared, &View, Q) -> Result<T, String> + Send + 'static,
    ) -> Result<Response, Refusal>
    where
        Q: DeserializeOwned,
        T: Serialize,
    {
        // A question is not read before there is time for it: bodies are large. The semaphore is never closed.
        let _place = self.places.acquire().await;
        let body = read(body, BODY_MAX).await?;
        let (leading, view) = self.leading(uri)?;
        let answered = tokio::task::spawn_blocking(move || {
            let question = understood(&body)?;
            answer(&leading.shared, &view, question).map(|answer| json(&answer)).map_err(Refusal::senseless)
        });
        answered.await.unwrap_or_else(|error| {
            Err(Refusal::Because(StatusCode::INTERNAL_SERVER_ERROR, format!("the question was not worked on: {error}")))
        })
    }
}

async fn read(body: Body, longest: usize) -> Result<Bytes, Refusal> {
    match timeout(BODY_WITHIN, to_bytes(body, longest)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) => Err(Refusal::Because(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body cannot be read, or is longer than {longest} bytes: {error}"),
        )),
        Err(_) => Err(Refusal::Because(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not arrive within {} s", BODY_WITHIN.as_secs()),
        )),
    }
}

fn understood<Q: DeserializeOwned>(body: &[u8]) -> Result<Q, Refusal> {
    serde_json::from_slice(body)
        .map_err(|error| Refusal::senseless(format!("the body is not a request of kube-scheduler: {error}")))
}

fn json(answer: &impl Serialize) -> Response {
    match serde_json::to_vec(answer) {
        Ok(text) => (StatusCode::OK, [(CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn filter(State(desk): State<Desk>, uri: Uri, body: Body) -> Result<Response, Refusal> {
    desk.answer(&uri, body, |shared, view, args: ExtenderArgs| Ok(fit::filter(shared, view, args))).await
}

async fn prioritize(State(desk): State<Desk>, uri: Uri, body: Body) -> Result<Response, Refusal> {
    desk.answer(&uri, body, |shared, view, args: ExtenderArgs| fit::prioritize(shared, view, &args)).await
}

async fn preempt(State(desk): State<Desk>, uri: Uri, body: Body) -> Result<Response, Refusal> {
    desk.answer(&uri, body, |shared, view, args: PreemptionArgs| preempt::answer(shared, view, args)).await
}

/// Kube-scheduler shows what was wrong only if the status is 200.
async fn bind(State(desk): State<Desk>, uri: Uri, body: Body) -> Result<Response, Refusal> {
    let (leading, _) = desk.leading(&uri)?;
    let args: BindingArgs = understood(&read(body, BINDING_MAX).await?)?;
    // The client may go away. A binding that was begun is still finished, or given up in time.
    let bound = tokio::spawn(bind::bind(leading.shared, args)).await;
    let error = match bound {
        Ok(Ok(())) => String::new(),
        Ok(Err(why)) => why,
        Err(error) => format!("the binding was not finished: {error}"),
    };
    let outcome = if error.is_empty() { CallOutcome::Answered } else { CallOutcome::Refused };
    let mut response = json(&BindingResult { error: error.into() });
    response.extensions_mut().insert(outcome);
    Ok(response)
}

async fn inspect_all(State(desk): State<Desk>, uri: Uri) -> Result<Response, Refusal> {
    let (leading, view) = desk.leading(&uri)?;
    Ok(json(&inspect::all(&leading.shared, &view)))
}

async fn inspect_one(State(desk): State<Desk>, uri: Uri, Path(node): Path<String>) -> Result<Response, Refusal> {
    let (leading, view) = desk.leading(&uri)?;
    inspect::one(&leading.shared, &view, &node).map(|answer| json(&answer)).ok_or_else(|| {
        Refusal::Because(StatusCode::NOT_FOUND, format!("there is no node {node:?}, or the scheduler has not seen it"))
    })
}
