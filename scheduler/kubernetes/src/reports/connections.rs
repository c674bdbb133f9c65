//! The connections of managers: how many there may be, and for how long. Any client that reaches the port can connect,
//! so connections without a certificate are few and short.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use axum::serve::Listener as _;
use futures_util::Stream;
use futures_util::stream::unfold;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;
use tracing::warn;

use crate::certificates::client_of;
use crate::tls::TlsListener;

/// Connections without a certificate, at most: a manager has one for the moment in which it joins.
const STRANGERS_MAX: u32 = 256;
/// Connections by certificates of one node, at most.
const PER_NODE_MAX: u32 = 4;
/// A connection without a certificate ends after that time.
const STRANGER_LIFE: Duration = Duration::from_secs(30);

/// Counts connections by their nodes; `None` counts those without a certificate.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections(Arc<Mutex<BTreeMap<Option<String>, u32>>>);

/// The client of a connection.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    /// The node that the certificate names; `None`: there is no certificate.
    pub(super) node: Option<String>,
}

/// A connection's place among all, until it is dropped.
#[derive(Debug)]
struct Place {
    all: Connections,
    node: Option<String>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.all.0.lock();
        if let Some(count) = counts.get_mut(&self.node) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.node);
            }
        }
    }
}

impl Connections {
    /// The connections that are kept. Connections beyond the limits are closed.
    pub(super) fn of(self, listener: TlsListener) -> impl Stream<Item = io::Result<Connection>> {
        unfold((self, listener), |(all, mut listener)| async move {
            loop {
                let (stream, from) = listener.accept().await;
                match all.keep(stream) {
                    Ok(connection) => return Some((Ok(connection), (all, listener))),
                    Err(why) => warn!(%from, why, "a connection for reports is refused"),
                }
            }
        })
    }

    fn keep(&self, stream: TlsStream<TcpStream>) -> Result<Connection, String> {
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let (node, life) = match certificate.and_then(|certificate| client_of(certificate)) {
            Some((node, end)) => (Some(node), end.duration_since(SystemTime::now()).unwrap_or_default()),
            None => (None, STRANGER_LIFE),
        };
        let place = self.place(node)?;
        Ok(Connection { stream, place, end: Box::pin(tokio::time::sleep(life)) })
    }

    /// A place for one more connection, or why there is none.
    fn place(&self, node: Option<String>) -> Result<Place, String> {
        let mut counts = self.0.lock();
        let max = if node.is_some() { PER_NODE_MAX } else { STRANGERS_MAX };
        let count = counts.entry(node.clone()).or_default();
        if *count >= max {
            return Err(match node {
                Some(node) => format!("there are {max} connections of node {node} already"),
                None => format!("there are {max} connections without a certificate already"),
            });
        }
        *count += 1;
        Ok(Place { all: self.clone(), node })
    }
}

/// A connection, which ends with its certificate.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TlsStream<TcpStream>,
    place: Place,
    end: Pin<Box<Sleep>>,
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        Caller { node: self.place.node.clone() }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.end.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_a_node_nor_strangers_take_the_place_of_others() {
        let all = Connections::default();
        let node = |name: &str| Some(name.to_owned());
        let mut places: Vec<Place> = (0..PER_NODE_MAX).map(|_| all.place(node("a")).unwrap()).collect();
        assert!(all.place(node("a")).unwrap_err().contains("node a already"));
        let strangers: Vec<Place> = (0..STRANGERS_MAX).map(|_| all.place(None).unwrap()).collect();
        assert!(all.place(None).unwrap_err().contains("without a certificate"));
        places.push(all.place(node("b")).unwrap());
        drop((places, strangers));
        all.place(node("a")).unwrap();
        assert!(all.0.lock().is_empty());
    }
}
