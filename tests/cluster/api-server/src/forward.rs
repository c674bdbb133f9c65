//! Forwards a port of a pod, as the API server and kubelet do together: a WebSocket carries the data of a connection to
//! the pod. Pods have no network here, so a test sets the address of each port.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use futures_util::{SinkExt, StreamExt};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE as UPGRADE_HEADER,
};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::request::Query;
use super::status::Failure;

/// The protocol of the WebSocket.
const PROTOCOL: &str = "v4.channel.k8s.io";
/// The channel of the port's data, in both directions.
const DATA: u8 = 0;
/// The channel of the port's errors.
const ERROR: u8 = 1;

/// The addresses of the ports of pods or services, by namespace, name and port.
#[derive(Debug, Default)]
pub(super) struct Forwards(Mutex<BTreeMap<(String, String, u16), SocketAddr>>);

impl Forwards {
    pub(super) fn set(&self, namespace: &str, pod: &str, port: u16, to: SocketAddr) {
        let key = (namespace.to_owned(), pod.to_owned(), port);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, to);
    }

    pub(super) fn of(&self, namespace: &str, pod: &str, port: u16) -> Option<SocketAddr> {
        let key = (namespace.to_owned(), pod.to_owned(), port);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied()
    }

    /// Answers a request for a port of an existing pod.
    pub(super) fn begin(
        &self,
        parts: &mut Parts,
        query: &Query,
        namespace: &str,
        pod: &str,
    ) -> Result<Response<BoxBody<Bytes, Infallible>>, Failure> {
        let port = query.number("ports").and_then(|port| u16::try_from(port).ok());
        let port = port.ok_or_else(|| Failure::bad_request("one port is forwarded at a time here"))?;
        let header = |name| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if !header(SEC_WEBSOCKET_PROTOCOL).split(", ").any(|offered| offered == PROTOCOL) {
            return Err(Failure::bad_request(format!("the client does not speak {PROTOCOL}")));
        }
        let accept = derive_accept_key(header(SEC_WEBSOCKET_KEY).as_bytes());
        let upgrade = parts.extensions.remove::<OnUpgrade>();
        let upgrade = upgrade.ok_or_else(|| Failure::bad_request("the connection cannot be upgraded"))?;
        let to = self.of(namespace, pod, port);
        tokio::spawn(async move {
            // A broken connection is left to its client.
            if let Ok(upgraded) = upgrade.await {
                let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
                let _ = carry(socket, port, to).await;
            }
        });
        let response = Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE_HEADER, "websocket")
            .header(SEC_WEBSOCKET_ACCEPT, accept)
            .header(SEC_WEBSOCKET_PROTOCOL, PROTOCOL);
        Ok(response.body(BodyExt::boxed(Empty::new())).expect("a valid response"))
    }
}

type Socket = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

async fn carry(
    mut socket: Socket,
    port: u16,
    to: Option<SocketAddr>,
) -> Result<(), tokio_tungstenite::tungstenite::Error> {
    let frame = |channel: u8, bytes: &[u8]| Message::binary([&[channel], bytes].concat());
    for channel in [DATA, ERROR] {
        socket.send(frame(channel, &port.to_le_bytes())).await?;
    }
    let connected = match to {
        Some(to) => TcpStream::connect(to).await.map_err(|error| error.to_string()),
        None => Err("nothing listens there".to_owned()),
    };
    let mut connection = match connected {
        Ok(connection) => connection,
        Err(error) => {
            let text = format!("an error occurred forwarding {port}: {error}");
            socket.send(frame(ERROR, text.as_bytes())).await?;
            return socket.close(None).await;
        }
    };
    let (mut from_pod, mut to_pod) = connection.split();
    let mut read = [0; 16 << 10];
    loop {
        tokio::select! {
            count = from_pod.read(&mut read) => match count {
                Ok(count) if count > 0 => socket.send(frame(DATA, &read[..count])).await?,
                _ => return socket.close(None).await,
            },
            message = socket.next() => match message.transpose()? {
                Some(Message::Binary(bytes)) if bytes.first() == Some(&DATA) => to_pod.write_all(&bytes[1..]).await?,
                Some(Message::Close(_)) | None => return Ok(()),
                Some(_) => {}
            },
        }
    }
}
