//! The API server has objects reviewed when they are made: what could never be given is refused at once, with the
//! container, the value and the remedy, and what users leave out is filled in.
//!
//! | request | what is reviewed |
//! | --- | --- |
//! | `POST /validate` | pods, ResourceClaims, their templates, and DeviceClasses ([`pods`], [`claims`]) |
//! | `POST /default` | pods: what is left out is filled in ([`defaults`]) |
//! | `POST /schedule` | pods of namespaces whose pods with devices are Aliquot's: the scheduler is named, too |
//!
//! Every replica answers, whether it leads or not. An answer depends only on the object, and on the names of queues and
//! policies. Nothing is written, so a trial (`dryRun`) is reviewed like all else. What is filled in already is not
//! changed again.
//!
//! The replicas share a certificate, which they make and renew themselves ([`trust`]).

mod claims;
mod defaults;
mod known;
mod pods;
mod review;
mod trust;

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_api_server::Client;
use aliquot_telemetry::Capped;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::StreamExt;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tracing::debug;

use crate::certificates::Keeper;
use crate::serve::Config;
use crate::telemetry::Status;
use crate::tls::TlsListener;
pub(crate) use defaults::filled_in;
use known::Known;
use review::{Answer, Request, Review};
use trust::Trust;

/// The longest body, in bytes. Objects have less than 2 MiB, and a review has the old one beside the new one.
const BODY_MAX: usize = 8 << 20;
/// The bytes of all bodies that are here at the same time, at most: clients can be strangers.
const BODIES_MAX: usize = 128 << 20;
/// The time in which a body must arrive. The API server sends it at once, and waits five seconds for the answer.
const BODY_WITHIN: Duration = Duration::from_secs(4);

/// The webhook of one replica: it answers reviews, and keeps the certificate that it is served with.
pub(crate) struct Webhook {
    desk: Desk,
    keeper: Keeper<Trust>,
    client: Client,
}

#[derive(Clone)]
struct Desk {
    scheduler: Arc<str>,
    stands_in_for: Arc<[String]>,
    status: Arc<Status>,
    known: Known,
    /// The bytes that bodies may still take.
    room: Arc<Semaphore>,
}

impl Webhook {
    pub(crate) fn new(client: Client, config: &Config, status: Arc<Status>) -> Webhook {
        let Config { name: scheduler, namespace, stands_in_for, .. } = config;
        let trust = Trust::new(client.clone(), namespace, Arc::clone(&status));
        let keeper = Keeper::new(client.clone(), namespace, trust);
        let (scheduler, stands_in_for) = (scheduler.as_str().into(), stands_in_for.as_slice().into());
        let (known, room) = (Known::default(), Arc::new(Semaphore::new(BODIES_MAX)));
        Webhook { desk: Desk { scheduler, stands_in_for, status, known, room }, keeper, client }
    }

    /// Serves until its runtime ends.
    pub(crate) async fn serve(self, listener: TcpListener) {
        let Webhook { desk, keeper, client } = self;
        let known = desk.known.clone();
        let certificate = keeper.first().await;
        let current = certificate.clone();
        let listener = Capped::new(TlsListener::new(listener, move || current.borrow().clone()));
        tokio::join!(
            async { _ = axum::serve(listener, router(desk)).await },
            keeper.keep(&certificate),
            known.watch(client),
        );
    }
}

fn router(desk: Desk) -> Router {
    Router::new()
        .route("/validate", post(validate))
        .route("/default", post(default))
        .route("/schedule", post(schedule))
        .with_state(desk)
}

async fn validate(State(desk): State<Desk>, body: Body) -> Response {
    desk.answer("validate", body, |desk, request| match request.resource.resource.as_str() {
        "pods" => pods::judge(&request.object, &desk.scheduler, &desk.known),
        _ => claims::judge(&request.object),
    })
    .await
}

async fn default(State(desk): State<Desk>, body: Body) -> Response {
    desk.answer("default", body, |desk, request| desk.fill_in(request, false)).await
}

async fn schedule(State(desk): State<Desk>, body: Body) -> Response {
    desk.answer("schedule", body, |desk, request| desk.fill_in(request, true)).await
}

impl Desk {
    fn fill_in(&self, request: &Request, is_namespace_ours: bool) -> Result<Answer, String> {
        defaults::fill_in(&request.object, &self.scheduler, is_namespace_ours, &self.stands_in_for)
    }

    /// Answers a review, and counts it.
    async fn answer(
        &self,
        webhook: &'static str,
        body: Body,
        judge: impl FnOnce(&Desk, &Request) -> Result<Answer, String>,
    ) -> Response {
        let began = Instant::now();
        // Any client can be slow, so none waits for another.
        let mut taken = None;
        let reviewed = match read(body, &self.room, &mut taken).await {
            Ok(review) => review.request.ok_or_else(|| "the review has no request".to_owned()),
            Err(why) => Err(why),
        };
        let answered = reviewed.and_then(|request| Ok((judge(self, &request)?, request.uid)));
        let (outcome, reason) = match &answered {
            Ok((answer, _)) => answer.words(),
            Err(_) => ("failed", "unreadable"),
        };
        self.status.reviews().note(webhook, outcome, reason, began.elapsed());
        match answered {
            Ok((answer, uid)) => answer.response(&uid),
            Err(why) => {
                debug!(webhook, why, "a review cannot be answered");
                (StatusCode::BAD_REQUEST, why).into_response()
            }
        }
    }
}

/// Reads a review. `taken` is the room that its body has until it is dropped.
async fn read<'a>(body: Body, room: &'a Semaphore, taken: &mut Option<SemaphorePermit<'a>>) -> Result<Review, String> {
    let (mut frames, mut bytes) = (body.into_data_stream(), Vec::new());
    let arrive = async {
        while let Some(frame) = frames.next().await {
            let frame = frame.map_err(|error| format!("the body cannot be read: {error}"))?;
            if bytes.len() + frame.len() > BODY_MAX {
                return Err(format!("the body is longer than {BODY_MAX} bytes"));
            }
            let more = u32::try_from(frame.len()).ok().and_then(|length| room.try_acquire_many(length).ok());
            let more = more.ok_or("too many reviews arrive at the same time; try again later")?;
            match taken {
                Some(taken) => taken.merge(more),
                None => *taken = Some(more),
            }
            bytes.extend_from_slice(&frame);
        }
        Ok(())
    };
    match timeout(BODY_WITHIN, arrive).await {
        Ok(arrived) => arrived?,
        Err(_) => return Err(format!("the body did not arrive within {} s", BODY_WITHIN.as_secs())),
    }
    serde_json::from_slice(&bytes).map_err(|error| format!("the body is not a request of the API server: {error}"))
}

#[cfg(test)]
mod tests {
    use aliquot_telemetry::CONNECTIONS_MAX;
    use axum::body::Bytes;
    use futures_util::stream;
    use serde_json::{Value, json};

    use super::*;

    fn desk() -> Desk {
        Desk {
            scheduler: "aliquot".into(),
            stands_in_for: [].into(),
            status: Arc::default(),
            known: Known::default(),
            room: Arc::new(Semaphore::new(BODIES_MAX)),
        }
    }

    fn a_review() -> Body {
        let request = json!({"uid": "u", "resource": {"resource": "pods"}, "object": {"metadata": {}, "spec": {}}});
        Body::from(
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string(),
        )
    }

    /// A body of which so many bytes come, and no end.
    fn endless(bytes: usize) -> Body {
        let start = stream::iter([Ok::<_, std::io::Error>(Bytes::from(vec![b' '; bytes]))]);
        Body::from_stream(start.chain(stream::pending()))
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_take_little_memory_together() {
        let desk = desk();
        assert_eq!(validate(State(desk.clone()), endless(BODY_MAX + 1)).await.status(), StatusCode::BAD_REQUEST);
        let endless =
            (0..20).map(|_| tokio::spawn(validate(State(desk.clone()), endless(BODY_MAX)))).collect::<Vec<_>>();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(desk.room.available_permits(), 0);
        assert_eq!(endless.iter().filter(|of| of.is_finished()).count(), 20 - BODIES_MAX / BODY_MAX);
        assert_eq!(validate(State(desk.clone()), a_review()).await.status(), StatusCode::BAD_REQUEST);
        tokio::time::sleep(BODY_WITHIN).await;
        assert_eq!(validate(State(desk.clone()), a_review()).await.status(), StatusCode::OK);
        assert_eq!(desk.room.available_permits(), BODIES_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_clients_hold_up_no_review() {
        let desk = desk();
        for _ in 0..CONNECTIONS_MAX {
            tokio::spawn(validate(State(desk.clone()), endless(1)));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        let answered = timeout(Duration::from_secs(1), validate(State(desk), a_review())).await;
        assert!(answered.is_ok_and(|answer| answer.status() == StatusCode::OK));
    }

    /// The places of all values in an object, as pointers.
    fn places(value: &Value, at: &str, found: &mut Vec<String>) {
        found.push(at.to_owned());
        let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
        match value {
            Value::Object(fields) => {
                fields.iter().for_each(|(key, field)| places(field, &format!("{at}/{}", escaped(key)), found));
            }
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(index, item)| places(item, &format!("{at}/{index}"), found));
            }
            _ => {}
        }
    }

    #[test]
    fn whatever_stands_in_an_object_it_is_answered() {
        let limits = json!({"limits": {"nvidia.com/gpumem": "1024"}, "requests": {"aliquot.dev/gpu-core": "30"}});
        let containers = json!([{"name": "main", "resources": limits}]);
        let metadata = json!({
            "labels": {"aliquot.dev/queue": "q"}, "ownerReferences": [],
            "annotations": {"aliquot.dev/gang": "g", "aliquot.dev/gang-size": "2", "aliquot.dev/gpu-core-limit": "50"},
        });
        let spec = json!({"schedulerName": "aliquot", "containers": containers, "initContainers": containers});
        let parameters =
            json!({"apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "SliceConfig", "coreLimitPercent": 80});
        let config = json!([{"requests": ["gpu"], "opaque": {"driver": "gpu.aliquot.dev", "parameters": parameters}}]);
        let exactly = json!({"deviceClassName": "gpu.aliquot.dev", "capacity": {"requests": {"core": "30"}}});
        let devices = json!({"requests": [{"name": "gpu", "exactly": exactly}], "config": config});
        for object in [
            json!({"kind": "Pod", "metadata": metadata, "spec": spec}),
            json!({"kind": "ResourceClaim", "metadata": {}, "spec": {"devices": devices}}),
            json!({"kind": "ResourceClaimTemplate", "metadata": {}, "spec": {"spec": {"devices": devices}}}),
            json!({"kind": "DeviceClass", "metadata": {}, "spec": {"config": config}}),
        ] {
            let mut found = Vec::new();
            places(&object, "", &mut found);
            assert!(found.len() > 9, "{found:?}");
            let others = [json!(null), json!(-7), json!(true), json!("x"), json!([7]), json!({"x": 7})];
            for (place, other) in found.iter().flat_map(|place| others.iter().map(move |other| (place, other))) {
                let mut changed = object.clone();
                *changed.pointer_mut(place).unwrap() = other.clone();
                // Whether it is refused or no such object at all, it is said and nothing ends.
                _ = pods::judge(&changed, "aliquot", &Known::default());
                _ = claims::judge(&changed);
                for is_namespace_ours in [false, true] {
                    _ = defaults::fill_in(&changed, "aliquot", is_namespace_ours, &[]);
                }
            }
        }
    }
}
