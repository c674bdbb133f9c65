//! Serves `/metrics` for Prometheus, and `/healthz` and `/readyz` for probes.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use crate::Level;

/// The media type of what [`page`] returns.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

/// The metrics and the health of a scheduler.
pub trait Telemetry: Send + Sync + 'static {
    /// Registers all metrics with their present values. Their names get the prefix `aliquot_scheduler_`.
    fn register(&self, registry: &mut Registry);

    /// Whether the process works.
    ///
    /// # Errors
    /// The reason why the process must be restarted.
    fn health(&self) -> Result<(), String>;

    /// Whether the process can do its task, or can take it over when it must.
    ///
    /// # Errors
    /// The reason why it cannot do so now.
    fn readiness(&self) -> Result<(), String>;
}

/// The present metrics in the format for Prometheus.
#[must_use]
pub fn page(telemetry: &dyn Telemetry) -> String {
    let mut registry = Registry::with_prefix("aliquot_scheduler");
    telemetry.register(&mut registry);
    let build = Family::<Build, Level>::default();
    build.get_or_create(&Build { version: env!("CARGO_PKG_VERSION") }).set(1);
    registry.register("build_info", "The scheduler's version; the value is 1", build);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

/// Serves until its runtime ends.
pub async fn serve(listener: TcpListener, telemetry: Arc<dyn Telemetry>) {
    let router = Router::new()
        .route("/metrics", get(scrape))
        .route("/healthz", get(async |State(of): State<Arc<dyn Telemetry>>| answer(of.health())))
        .route("/readyz", get(async |State(of): State<Arc<dyn Telemetry>>| answer(of.readiness())));
    let _ = axum::serve(listener, router.with_state(telemetry)).await;
}

async fn scrape(State(telemetry): State<Arc<dyn Telemetry>>) -> Result<impl IntoResponse, StatusCode> {
    let text = tokio::task::spawn_blocking(move || page(&*telemetry)).await;
    Ok(([(CONTENT_TYPE, OPENMETRICS)], text.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?))
}

fn answer(state: Result<(), String>) -> (StatusCode, String) {
    match state {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}
