//! Serves the metrics: `GET /metrics`, and nothing else.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use aliquot_node::aside;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tracing::debug;

use crate::manager::Manager;
use crate::metrics;

/// Maximum connections at a time: enough for a few scrapers.
const CONNECTIONS_MAX: usize = 16;
/// A client that takes longer to send its request is disconnected.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// A client that takes longer for a request and its answer is disconnected. Otherwise a client that does not read could
/// keep others out for ever.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves metrics on `listener` until it is dropped.
pub(crate) async fn serve(listener: TcpListener, manager: Arc<Manager>) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                debug!(%error, "cannot accept a connection for metrics");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let manager = Arc::clone(&manager);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(request, Arc::clone(&manager)));
            let mut http = http1::Builder::new();
            // Each connection serves one request. An idle connection would take the place of another client.
            http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).keep_alive(false);
            let served = http.serve_connection(TokioIo::new(stream), service);
            match tokio::time::timeout(CONNECTION_TIMEOUT, served).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(%error, "a connection for metrics failed"),
                Err(_) => debug!("a client took too long to read the metrics"),
            }
            drop(permit);
        });
    }
}

async fn answer(request: Request<Incoming>, manager: Arc<Manager>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, header, body) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => match aside(move || metrics::text(&manager)).await {
            Ok(text) => (StatusCode::OK, (CONTENT_TYPE, metrics::CONTENT_TYPE), text),
            Err(error) => {
                let why = format!("the manager gets no thread: {error}\n");
                (StatusCode::SERVICE_UNAVAILABLE, (CONTENT_TYPE, "text/plain"), why)
            }
        },
        (_, "/metrics") => (StatusCode::METHOD_NOT_ALLOWED, (ALLOW, "GET, HEAD"), String::new()),
        _ => (StatusCode::NOT_FOUND, (CONTENT_TYPE, "text/plain"), "metrics are at /metrics\n".into()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    if let Ok(value) = header.1.parse() {
        response.headers_mut().insert(header.0, value);
    }
    Ok(response)
}
