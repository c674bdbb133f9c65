//! Connections of whoever reaches a port: how many there may be, and which of them ends when there are too many.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

/// Connections to one port, at most.
pub const CONNECTIONS_MAX: usize = 256;

/// What clients have begun, in its order.
#[derive(Debug)]
pub struct Crowd<T>(Vec<(IpAddr, T)>);

impl<T> Default for Crowd<T> {
    fn default() -> Crowd<T> {
        Crowd(Vec::new())
    }
}

impl<T> Crowd<T> {
    /// Forgets what has ended.
    pub fn retain(&mut self, mut is_open: impl FnMut(&T) -> bool) {
        self.0.retain(|(_, one)| is_open(one));
    }

    /// Takes one more. If these are more than `max`, returns the one that has to end: the oldest of the address that has
    /// the most. So a client that begins many ends its own.
    pub fn add(&mut self, from: IpAddr, one: T, max: usize) -> Option<T> {
        self.0.push((from, one));
        if self.0.len() <= max {
            return None;
        }
        let mut numbers: BTreeMap<IpAddr, usize> = BTreeMap::new();
        self.0.iter().for_each(|(of, _)| *numbers.entry(*of).or_default() += 1);
        let most = numbers.values().max().copied();
        let place = self.0.iter().position(|(of, _)| numbers.get(of).copied() == most)?;
        Some(self.0.remove(place).1)
    }
}

/// A listener of which at most so many connections are open.
#[derive(Debug)]
pub struct Capped<L> {
    listener: L,
    max: usize,
    open: Crowd<oneshot::Sender<()>>,
}

impl<L> Capped<L> {
    /// A listener with at most [`CONNECTIONS_MAX`] connections.
    #[must_use]
    pub fn new(listener: L) -> Capped<L> {
        Capped { listener, max: CONNECTIONS_MAX, open: Crowd::default() }
    }
}

impl<L: Listener<Addr = SocketAddr>> Listener for Capped<L> {
    type Io = CappedIo<L::Io>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        let (io, from) = self.listener.accept().await;
        let (end, ended) = oneshot::channel();
        self.open.retain(|of| !of.is_closed());
        drop(self.open.add(from.ip(), end, self.max));
        (CappedIo { io, ended: Some(ended) }, from)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when there are too many.
#[derive(Debug)]
pub struct CappedIo<I> {
    io: I,
    /// It is told when its sender is dropped; `None`: it was told.
    ended: Option<oneshot::Receiver<()>>,
}

impl<I> CappedIo<I> {
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.ended.as_mut().is_some_and(|ended| Pin::new(ended).poll(context).is_pending()) {
            return Ok(());
        }
        self.ended = None;
        Err(io::ErrorKind::ConnectionAborted.into())
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for CappedIo<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for CappedIo<I> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_begins_many_ends_their_own() {
        let address = |number: u8| IpAddr::from([10, 0, 0, number]);
        let mut crowd = Crowd::default();
        for (from, one) in [(1, "a"), (2, "b"), (2, "c")] {
            assert_eq!(crowd.add(address(from), one, 3), None);
        }
        assert_eq!(crowd.add(address(3), "d", 3), Some("b"));
        assert_eq!(crowd.add(address(2), "e", 3), Some("c"));
        assert_eq!(crowd.add(address(4), "f", 3), Some("a"), "the oldest of all where none has more");
        crowd.retain(|one| *one == "f");
        assert_eq!(crowd.add(address(4), "g", 2), None);
    }
}
