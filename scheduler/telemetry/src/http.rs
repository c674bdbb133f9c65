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

use crate::{Capped, Level};

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
    let _ = axum::serve(Capped::new(listener), router.with_state(telemetry)).await;
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;
    use crate::CONNECTIONS_MAX;

    struct Well;

    impl Telemetry for Well {
        fn register(&self, _: &mut Registry) {}

        fn health(&self) -> Result<(), String> {
            Ok(())
        }

        fn readiness(&self) -> Result<(), String> {
            Ok(())
        }
    }

    #[test]
    fn idle_connections_keep_no_probe_away() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(serve(listener, Arc::new(Well)));
        let mut idle: Vec<TcpStream> = (0..CONNECTIONS_MAX).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut probe = TcpStream::connect(address).unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nhost: replica\r\nconnection: close\r\n\r\n";
        let ask = |connection: &mut TcpStream| {
            connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            _ = connection.write_all(request);
            let mut answer = String::new();
            _ = connection.read_to_string(&mut answer);
            answer
        };
        assert!(ask(&mut probe).ends_with("ok\n"));
        assert_eq!(ask(&mut idle[0]), "", "it was one too many");
        assert!(ask(&mut idle[1]).ends_with("ok\n"));
    }
}
