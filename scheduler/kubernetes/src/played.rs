//! An API server that is played by a function, for tests in virtual time.

use std::sync::Arc;

use aliquot_api_server::Client;
use aliquot_scheduler_core::placement::BestFit;
use aliquot_scheduler_engine::{Decisions, Engine, Generation, Saved, Settings};
use axum::http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use crate::lease::Fence;
use crate::mirror::Binding;
use crate::serve::{Config, Shared};
use crate::telemetry::Status;

/// A request, as the API server sees it.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) body: Value,
}

impl Call {
    /// The last part of its path before a subresource.
    pub(crate) fn name(&self) -> &str {
        self.path.trim_end_matches("/status").rsplit('/').next().unwrap_or_default()
    }
}

/// A client of an API server that answers like this: by a status code and an object.
pub(crate) fn client<F>(answer: impl Fn(Call) -> F + Clone + Send + 'static) -> Client
where
    F: Future<Output = (u16, Value)> + Send + 'static,
{
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer.clone();
        async move {
            let (head, body) = request.into_parts();
            let bytes = body.collect_bytes().await?;
            let body = serde_json::from_slice(&bytes).unwrap_or_default();
            let (method, path) = (head.method.to_string(), head.uri.path().to_owned());
            let (status, object) = answer(Call { method, path, body }).await;
            let response = Response::builder().status(status).body(Body::from(object.to_string().into_bytes()));
            Ok::<_, kube::Error>(response.expect("a status code"))
        }
    });
    Client::new(service, "default")
}

/// The answer that a request fails.
pub(crate) fn failure(code: u16, reason: &str) -> (u16, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": reason,
    });
    (code, status)
}

/// The binding of pod `a` to node `n`.
pub(crate) fn binding() -> Binding {
    Binding {
        uid: "a".into(),
        namespace: "default".into(),
        name: "a".into(),
        resource_version: "1".into(),
        node: "n".into(),
        generation: Generation { term: 1, number: 1 },
        decision: None,
        volume_claims: Vec::new(),
        unmade: Vec::new(),
        reservations: Vec::new(),
    }
}

/// A leader that may write for so long.
pub(crate) fn leader(fence: Fence) -> Arc<Shared> {
    let config = Config {
        kubeconfig: None,
        name: "aliquot".into(),
        namespace: "aliquot-system".into(),
        identity: "replica-1".into(),
        topology: Vec::new(),
        extender_url: None,
        stands_in_for: Vec::new(),
    };
    Shared::new(&config, fence, Arc::new(Status::default()), 1)
}

/// An engine for such a leader.
pub(crate) fn engine() -> Engine {
    let settings = aliquot_scheduler_core::Settings::default();
    let decisions = Decisions { policy: Box::new(BestFit), settings, usage_half_life_ms: 3_600_000 };
    Engine::new(decisions, Settings { lease: None, ..Settings::default() }, Saved::default())
}
