//! Calls a webhook over TLS.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::admissionregistration::v1::WebhookClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::forward::Forwards;

/// The port of a service whose configuration names none.
const HTTPS: i32 = 443;

/// Calls a webhook. Answers its response, or why there is none.
pub(super) async fn ask(
    services: &Forwards,
    client: &WebhookClientConfig,
    seconds: u64,
    request: &Value,
) -> Result<Value, String> {
    match timeout(Duration::from_secs(seconds), asked(services, client, request)).await {
        Ok(answered) => answered,
        Err(_) => Err("context deadline exceeded".to_owned()),
    }
}

async fn asked(services: &Forwards, client: &WebhookClientConfig, request: &Value) -> Result<Value, String> {
    let service = client.service.as_ref().ok_or("only services are asked here")?;
    let port = u16::try_from(service.port.unwrap_or(HTTPS)).map_err(|error| error.to_string())?;
    let address = services.of(&service.namespace, &service.name, port);
    let address = address.ok_or_else(|| format!("service {:?} not found", service.name))?;
    let name = format!("{}.{}.svc", service.name, service.namespace);

    let tcp = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let server_name = name.clone().try_into().map_err(|_| format!("{name:?} is no name of a server"))?;
    let tls = connector(client)?.connect(server_name, tcp).await.map_err(|error| error.to_string())?;
    let (mut sender, connection) = handshake(TokioIo::new(tls)).await.map_err(|error| error.to_string())?;
    tokio::spawn(connection);

    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
    let post = Request::post(service.path.as_deref().unwrap_or("/"))
        .header(HOST, name)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(review.to_string())))
        .map_err(|error| error.to_string())?;
    let answer = sender.send_request(post).await.map_err(|error| error.to_string())?;
    let status = answer.status();
    let body = answer.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
    if !status.is_success() {
        return Err(format!("{status}: {}", String::from_utf8_lossy(&body)));
    }
    let mut review: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
    let response = review["response"].take();
    match response["uid"] == request["uid"] {
        true => Ok(response),
        false => Err(format!("expected response.uid={}, got {}", request["uid"], response["uid"])),
    }
}

/// A TLS connector that trusts the authorities in the configuration.
fn connector(client: &WebhookClientConfig) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    let bundle = client.ca_bundle.as_ref().map(|bundle| bundle.0.as_slice()).unwrap_or_default();
    for authority in CertificateDer::pem_slice_iter(bundle) {
        let authority = authority.map_err(|error| error.to_string())?;
        roots.add(authority).map_err(|error| error.to_string())?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(TlsConnector::from(Arc::new(config.with_root_certificates(roots).with_no_client_auth())))
}
