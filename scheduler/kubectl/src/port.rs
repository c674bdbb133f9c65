//! HTTP to a port of a pod, through the API server.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use tokio::time::timeout;

/// The longest wait for an answer. A cycle of the largest clusters takes a few seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// A port of a pod, reached through the API server.
pub(crate) struct Port<'a> {
    pub(crate) pods: &'a Api<Pod>,
    pub(crate) pod: &'a str,
    pub(crate) port: u16,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Unreached {
    /// The API server does not forward the port.
    NotForwarded(Box<kube::Error>),
    /// The port is forwarded, but nothing answers there.
    Silent(String),
}

impl Unreached {
    pub(crate) fn why(&self) -> String {
        match self {
            Unreached::NotForwarded(error) => aliquot_api_server::message(error),
            Unreached::Silent(why) => why.clone(),
        }
    }
}

impl Port<'_> {
    /// Sends a request, and answers the status and the body of the response. It is a POST if it has a body, else a GET.
    pub(crate) async fn ask(&self, path: &str, body: Option<Vec<u8>>) -> Result<(u16, Vec<u8>), Unreached> {
        let answered = timeout(ANSWER_TIMEOUT, self.ask_now(path, body)).await;
        answered.unwrap_or_else(|_| Err(Unreached::Silent(format!("no answer in {} s", ANSWER_TIMEOUT.as_secs()))))
    }

    async fn ask_now(&self, path: &str, body: Option<Vec<u8>>) -> Result<(u16, Vec<u8>), Unreached> {
        let forwarded = self.pods.portforward(self.pod, &[self.port]).await;
        let mut forwarded = forwarded.map_err(|error| Unreached::NotForwarded(Box::new(error)))?;
        let silent = |why: String| Unreached::Silent(why);
        let (Some(stream), Some(error)) = (forwarded.take_stream(self.port), forwarded.take_error(self.port)) else {
            return Err(silent("the API server forwards another port".to_owned()));
        };
        let asked = async {
            let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            let method = if body.is_some() { Method::POST } else { Method::GET };
            let mut request = Request::new(Full::new(Bytes::from(body.unwrap_or_default())));
            *request.method_mut() = method;
            // The path consists of fixed text and names that the API server has accepted.
            *request.uri_mut() = path.parse().unwrap_or_default();
            request.headers_mut().insert(hyper::header::HOST, hyper::header::HeaderValue::from_static("pod"));
            let response = sender.send_request(request).await?;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await?.to_bytes().to_vec();
            Ok::<(u16, Vec<u8>), hyper::Error>((status, body))
        };
        let answer = match asked.await {
            Ok(answer) => Ok(answer),
            Err(broken) => {
                // The connection has ended, and the forwarding may have reported the reason.
                let said = timeout(Duration::from_secs(1), error).await.ok().flatten();
                Err(silent(said.unwrap_or_else(|| broken.to_string())))
            }
        };
        forwarded.abort();
        answer
    }
}
