//! The connections from other machines: how many may exist, in all and for each caller, and how long one may be idle
//! before its first call. Any program that reaches the port can connect, so a new connection counts as a stranger's.
//! From the first call with a certificate on, it counts as its caller's.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::OnceLock;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use aliquot_telemetry::{Crowd, Stay};
use axum::http::{Request, Response};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Sleep;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::transport::server::{Connected, TlsConnectInfo};
use tower::Layer;
use tracing::warn;

use crate::access::Identity;
use crate::callers;
use crate::limits::Limits;

/// The most connections of strangers. If there are more, one of the address that has the most is closed, so that a machine
/// that opens many keeps no node and no user away.
const STRANGERS_MAX: usize = 256;
/// The time that a stranger has for the handshake and a first call with a certificate.
const PATIENCE: Duration = Duration::from_secs(10);
/// Of refusals that follow each other, one in this time is written to the log.
const NOTED: Duration = Duration::from_secs(60);

/// Counts connections. All copies share the counts.
#[derive(Clone, Debug)]
pub(crate) struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: Limits,
    counts: Mutex<Counts>,
    /// Connections and calls that were refused so far.
    refused: Counter,
}

#[derive(Debug)]
struct Counts {
    all: u32,
    strangers: Crowd,
    callers: BTreeMap<Identity, u32>,
    noted: Option<Instant>,
}

/// The owner of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Holder {
    /// A user or a node.
    Caller(Identity),
    /// A standby scheduler, which carries the calls of many users.
    Scheduler,
    /// A caller that had too many connections already.
    TooMany,
}

/// One connection's place among those allowed, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    shared: Arc<Shared>,
    holder: OnceLock<Holder>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.shared.counts.lock();
        counts.all = counts.all.saturating_sub(1);
        match self.holder.get() {
            Some(Holder::Caller(caller)) => match counts.callers.get_mut(caller) {
                Some(count) if *count > 1 => *count -= 1,
                _ => _ = counts.callers.remove(caller),
            },
            Some(Holder::Scheduler | Holder::TooMany) | None => {}
        }
    }
}

impl Connections {
    pub(crate) fn new(limits: Limits, refused: Counter) -> Self {
        let counts = Counts { all: 0, strangers: Crowd::new(STRANGERS_MAX), callers: BTreeMap::new(), noted: None };
        Self(Arc::new(Shared { limits, counts: Mutex::new(counts), refused }))
    }

    /// The connections of this listener that are accepted.
    pub(crate) fn of(&self, listener: TcpListener) -> impl Stream<Item = io::Result<Connection>> + use<> {
        let connections = self.clone();
        TcpListenerStream::new(listener).filter_map(move |stream| match stream {
            Ok(stream) => connections.take(stream).map(Ok),
            Err(error) => Some(Err(error)),
        })
    }

    fn take(&self, stream: TcpStream) -> Option<Connection> {
        // A peer that has gone already has no address.
        let from = stream.peer_addr().ok()?;
        let (place, stay) = match self.place(from.ip()) {
            Ok((place, stay)) => (Arc::new(place), stay),
            Err(why) => {
                self.0.refuse(from, &why);
                return None;
            }
        };
        // Without this, small answers are delayed until more data follows.
        _ = stream.set_nodelay(true);
        let stranger = Some(Stranger { patience: Box::pin(tokio::time::sleep(PATIENCE)), stay });
        Some(Connection { stream, info: ConnectionInfo { from, place }, stranger })
    }

    /// Takes a place for one more stranger, or says why there is none.
    fn place(&self, from: IpAddr) -> Result<(Place, Stay), String> {
        let mut counts = self.0.counts.lock();
        let connections = self.0.limits.connections;
        if counts.all >= connections {
            return Err(format!(
                "there are {connections} connections already, which limits.connections allows at most"
            ));
        }
        counts.all += 1;
        let stay = counts.strangers.admit(from);
        drop(counts);
        Ok((Place { shared: Arc::clone(&self.0), holder: OnceLock::new() }, stay))
    }
}

impl Shared {
    fn refuse(&self, from: SocketAddr, why: &str) {
        self.refused.inc();
        let mut counts = self.counts.lock();
        if counts.noted.is_none_or(|noted| noted.elapsed() >= NOTED) {
            counts.noted = Some(Instant::now());
            warn!(%from, why, "a connection is refused; the metric connections_refused counts further ones");
        }
    }
}

impl Place {
    /// Notes the caller of a connection. Only its first call with a certificate counts.
    ///
    /// # Errors
    /// If the caller has the greatest allowed number of connections already.
    fn is_of(&self, claim: &callers::Claim, is_scheduler: bool) -> Result<(), Status> {
        let max = self.shared.limits.connections_per_caller;
        let holder = match (self.holder.get(), claim.identity()) {
            (Some(holder), _) => holder.clone(),
            (None, _) if is_scheduler => self.note(Holder::Scheduler),
            (None, Some(caller)) => {
                let mut counts = self.shared.counts.lock();
                let count = counts.callers.entry(caller.clone()).or_default();
                let is_one_more = *count < max;
                if is_one_more {
                    *count += 1;
                }
                drop(counts);
                self.note(if is_one_more { Holder::Caller(caller) } else { Holder::TooMany })
            }
            (None, None) => return Ok(()),
        };
        if holder != Holder::TooMany {
            return Ok(());
        }
        self.shared.refused.inc();
        Err(Status::resource_exhausted(format!(
            "there are {max} connections of this caller, such as programs that watch jobs and follow logs; end some; the \
             scheduler's configuration bounds them for each caller: limits.connections_per_caller"
        )))
    }

    fn note(&self, holder: Holder) -> Holder {
        let mut is_first = false;
        let noted = self.holder.get_or_init(|| {
            is_first = true;
            holder.clone()
        });
        if !is_first
            && let Holder::Caller(caller) = &holder
            && let Some(count) = self.shared.counts.lock().callers.get_mut(caller)
        {
            // Two calls have come at once, and both were counted.
            *count = count.saturating_sub(1);
        }
        noted.clone()
    }
}

/// The facts for the service about the connection of a call.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionInfo {
    /// The address of the peer.
    pub(crate) from: SocketAddr,
    place: Arc<Place>,
}

/// A connection, which is closed if its owner stays unknown for too long.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    info: ConnectionInfo,
    /// `None`: the owner is known.
    stranger: Option<Stranger>,
}

/// How long a connection may go on whose owner is unknown.
#[derive(Debug)]
struct Stranger {
    patience: Pin<Box<Sleep>>,
    stay: Stay,
}

impl Connected for Connection {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        self.info.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Connection { stream, info, stranger } = &mut *self;
        if info.place.holder.get().is_some_and(|holder| *holder != Holder::TooMany) {
            *stranger = None;
        }
        if let Some(Stranger { patience, stay }) = stranger {
            let seconds = PATIENCE.as_secs();
            let why = if patience.as_mut().poll(context).is_ready() {
                Some(format!("no call with a certificate has begun within {seconds} s"))
            } else if Pin::new(stay).poll(context).is_ready() {
                Some(format!(
                    "there are more than {STRANGERS_MAX} connections without a certificate, most of them from this address"
                ))
            } else {
                None
            };
            if let Some(why) = why {
                info.place.shared.refuse(info.from, &why);
                return Poll::Ready(Err(ErrorKind::TimedOut.into()));
            }
        }
        Pin::new(stream).poll_read(context, buffer)
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

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// A layer that notes at each call which caller owns the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoteCallers;

impl<S> Layer<S> for NoteCallers {
    type Service = NotesCallers<S>;

    fn layer(&self, inner: S) -> NotesCallers<S> {
        NotesCallers(inner)
    }
}

/// A service behind [`NoteCallers`].
#[derive(Clone, Debug)]
pub(crate) struct NotesCallers<S>(S);

impl<S, B> Service<Request<B>> for NotesCallers<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let connection = request.extensions().get::<TlsConnectInfo<ConnectionInfo>>();
        let noted = connection.map_or(Ok(()), |info| {
            let place = &info.get_ref().place;
            let (claim, is_scheduler) = match place.holder.get() {
                // The owner is known already.
                Some(_) => (callers::Claim::Unknown, false),
                None => callers::of_connection(request.extensions()),
            };
            place.is_of(&claim, is_scheduler)
        });
        match noted {
            Ok(()) => Box::pin(self.0.call(request)),
            Err(status) => Box::pin(async move { Ok(status.into_http()) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpSocket;

    use super::*;
    use crate::callers::Claim;

    fn connections(connections: u32, connections_per_caller: u32) -> Connections {
        let limits = Limits { connections, connections_per_caller, ..Limits::default() };
        Connections::new(limits, Counter::default())
    }

    #[test]
    fn there_are_no_more_connections_than_the_limits_say() {
        let all = connections(3, 2);
        let place = || all.place(IpAddr::from([10, 0, 0, 1])).map(|(place, _)| place);
        let mut places: Vec<Place> = (0..3).map(|_| place().unwrap()).collect();
        assert!(place().unwrap_err().contains("3 connections already"));
        let node = Claim::Node("a".to_owned());
        for place in &places[..2] {
            place.is_of(&node, false).unwrap();
            place.is_of(&Claim::Unknown, false).unwrap();
        }
        let refused = places[2].is_of(&node, false).unwrap_err();
        assert!(refused.message().contains("2 connections of this caller"), "{refused:?}");
        assert!(places[2].is_of(&Claim::Local(7), false).is_err(), "it stays refused");
        places.pop();
        let other = place().unwrap();
        other.is_of(&Claim::Local(7), false).unwrap();
        drop(other);
        places.pop();
        place().unwrap().is_of(&node, false).unwrap();
        drop(places);
        let counts = all.0.counts.lock();
        assert_eq!((counts.all, counts.callers.len()), (0, 0));
    }

    /// The address of a listener, and the connections that it accepts.
    async fn listening(all: &Connections) -> (SocketAddr, impl Stream<Item = io::Result<Connection>> + Unpin + use<>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        (listener.local_addr().unwrap(), Box::pin(all.of(listener)))
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_keep_no_caller_away() {
        let all = connections(1000, 2);
        let (address, mut incoming) = listening(&all).await;
        let (mut strangers, mut accepted) = (Vec::new(), Vec::new());
        let elsewhere = TcpSocket::new_v4().unwrap();
        elsewhere.bind(([127, 0, 0, 2], 0).into()).unwrap();
        let node = elsewhere.connect(address).await.unwrap();
        accepted.push(incoming.next().await.unwrap().unwrap());
        for _ in 0..STRANGERS_MAX {
            strangers.push(TcpStream::connect(address).await.unwrap());
            accepted.push(incoming.next().await.unwrap().unwrap());
        }
        let ended = accepted[1].read_u8().await.unwrap_err();
        assert_eq!((ended.kind(), all.0.refused.get()), (ErrorKind::TimedOut, 1), "the machine's first one");
        accepted[0].info.place.is_of(&Claim::Node("a".to_owned()), false).unwrap();
        tokio::time::sleep(2 * PATIENCE).await;
        drop(node);
        assert_eq!(accepted[0].read_u8().await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_is_cut_off_and_who_calls_is_not() {
        let all = connections(10, 2);
        let (address, mut incoming) = listening(&all).await;
        let _silent = TcpStream::connect(address).await.unwrap();
        let mut silent = incoming.next().await.unwrap().unwrap();
        let caller = TcpStream::connect(address).await.unwrap();
        let mut called = incoming.next().await.unwrap().unwrap();
        called.info.place.is_of(&Claim::Node("a".to_owned()), false).unwrap();
        let ended = silent.read_u8().await.unwrap_err();
        assert_eq!((ended.kind(), all.0.refused.get()), (ErrorKind::TimedOut, 1));
        tokio::time::sleep(2 * PATIENCE).await;
        drop(caller);
        assert_eq!(called.read_u8().await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}
