//! The connections of managers: how many there may be, and for how long. Any client that reaches the port can connect,
//! so connections without a certificate are few and short.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use aliquot_telemetry::{Crowd, Stay};
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

/// Connections without a certificate, at most: a manager has one for the moment in which it joins. If there are more, one
/// of the address that has the most is closed.
const STRANGERS_MAX: usize = 256;
/// Connections by certificates of one node, at most.
const PER_NODE_MAX: u32 = 4;
/// A connection without a certificate ends after that time.
const STRANGER_LIFE: Duration = Duration::from_secs(30);

/// The connections that there are.
#[derive(Clone, Debug)]
pub(super) struct Connections(Arc<Mutex<Open>>);

#[derive(Debug)]
struct Open {
    /// How many connections have certificates of each node.
    of_nodes: BTreeMap<String, u32>,
    strangers: Crowd,
}

impl Default for Connections {
    fn default() -> Connections {
        let open = Open { of_nodes: BTreeMap::new(), strangers: Crowd::new(STRANGERS_MAX) };
        Connections(Arc::new(Mutex::new(open)))
    }
}

/// The client of a connection.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    /// The node that the certificate names; `None`: there is no certificate.
    pub(super) node: Option<String>,
}

/// A connection's place among all, until it is dropped.
#[derive(Debug)]
enum Place {
    Node { all: Connections, node: String },
    Stranger(Stay),
}

impl Drop for Place {
    fn drop(&mut self) {
        let Place::Node { all, node } = self else { return };
        let mut open = all.0.lock();
        if let Some(count) = open.of_nodes.get_mut(node) {
            *count -= 1;
            if *count == 0 {
                open.of_nodes.remove(node);
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
                match all.keep(stream, from.ip()) {
                    Ok(connection) => return Some((Ok(connection), (all, listener))),
                    Err(why) => warn!(%from, why, "a connection for reports is refused"),
                }
            }
        })
    }

    fn keep(&self, stream: TlsStream<TcpStream>, from: IpAddr) -> Result<Connection, String> {
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let (place, life) = match certificate.and_then(|certificate| client_of(certificate)) {
            Some((node, end)) => (self.of_node(node)?, end.duration_since(SystemTime::now()).unwrap_or_default()),
            None => (Place::Stranger(self.0.lock().strangers.admit(from)), STRANGER_LIFE),
        };
        Ok(Connection { stream, place, end: Box::pin(tokio::time::sleep(life)) })
    }

    /// A place for one more connection of a node, or why there is none.
    fn of_node(&self, node: String) -> Result<Place, String> {
        let mut open = self.0.lock();
        let count = open.of_nodes.entry(node.clone()).or_default();
        if *count >= PER_NODE_MAX {
            return Err(format!("there are {PER_NODE_MAX} connections of node {node} already"));
        }
        *count += 1;
        Ok(Place::Node { all: self.clone(), node })
    }
}

/// A connection, which ends with its certificate.
#[derive(Debug)]
pub(super) struct Connection<S = TlsStream<TcpStream>> {
    stream: S,
    place: Place,
    end: Pin<Box<Sleep>>,
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        let node = match &self.place {
            Place::Node { node, .. } => Some(node.clone()),
            Place::Stranger(_) => None,
        };
        Caller { node }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let has_to_leave = match &mut self.place {
            Place::Stranger(stay) => Pin::new(stay).poll(context).is_ready(),
            Place::Node { .. } => false,
        };
        if has_to_leave || self.end.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
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
    use tokio::io::{AsyncReadExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn strangers_keep_no_manager_away() {
        let all = Connections::default();
        let stranger = |address: [u8; 4]| {
            let (far, stream) = duplex(1);
            let stay = all.0.lock().strangers.admit(address.into());
            (far, Connection { stream, place: Place::Stranger(stay), end: Box::pin(tokio::time::sleep(STRANGER_LIFE)) })
        };
        let (far, mut manager) = stranger([10, 0, 0, 1]);
        let mut others: Vec<_> = (0..STRANGERS_MAX).map(|_| stranger([10, 0, 0, 2])).collect();
        let begun = tokio::time::Instant::now();
        assert_eq!(others[0].1.read_u8().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun.elapsed(), Duration::ZERO, "the oldest ends at once");
        drop(far);
        assert_eq!(manager.read_u8().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_node_does_not_take_the_place_of_another() {
        let all = Connections::default();
        let of_node = |name: &str| all.of_node(name.to_owned());
        let mut places: Vec<Place> = (0..PER_NODE_MAX).map(|_| of_node("a").unwrap()).collect();
        assert!(of_node("a").unwrap_err().contains("node a already"));
        places.push(of_node("b").unwrap());
        drop(places);
        of_node("a").unwrap();
        assert!(all.0.lock().of_nodes.is_empty());
    }
}
