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

/// Clients that are served, in the order in which they came.
#[derive(Debug)]
pub struct Crowd {
    max: usize,
    clients: Vec<(IpAddr, oneshot::Sender<()>)>,
}

impl Crowd {
    /// A crowd of at most `max` clients.
    #[must_use]
    pub fn new(max: usize) -> Crowd {
        Crowd { max, clients: Vec::new() }
    }

    /// Takes one more client. If there are too many then, one is told to leave: the oldest of the address that has the
    /// most. So an address with many clients sends its own away.
    pub fn admit(&mut self, from: IpAddr) -> Stay {
        let (leave, told) = oneshot::channel();
        self.clients.retain(|(_, leave)| !leave.is_closed());
        self.clients.push((from, leave));
        if self.clients.len() > self.max {
            let mut numbers: BTreeMap<IpAddr, usize> = BTreeMap::new();
            self.clients.iter().for_each(|(of, _)| *numbers.entry(*of).or_default() += 1);
            let most = numbers.values().max();
            if let Some(place) = self.clients.iter().position(|(of, _)| numbers.get(of) == most) {
                _ = self.clients.remove(place).1.send(());
            }
        }
        Stay(Some(told))
    }
}

/// A client's place in a [`Crowd`], until this is dropped. The future ends when the client has to leave.
#[derive(Debug)]
pub struct Stay(Option<oneshot::Receiver<()>>);

impl Future for Stay {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let told = self.0.as_mut().map(|told| Pin::new(told).poll(context));
        match told {
            Some(Poll::Ready(Ok(()))) => Poll::Ready(()),
            // The crowd is gone, and nobody will tell this client to leave.
            Some(Poll::Ready(Err(_))) => {
                self.0 = None;
                Poll::Pending
            }
            Some(Poll::Pending) | None => Poll::Pending,
        }
    }
}

/// A listener of which at most so many connections are open.
#[derive(Debug)]
pub struct Capped<L> {
    listener: L,
    open: Crowd,
}

impl<L> Capped<L> {
    /// A listener with at most [`CONNECTIONS_MAX`] connections.
    #[must_use]
    pub fn new(listener: L) -> Capped<L> {
        Capped { listener, open: Crowd::new(CONNECTIONS_MAX) }
    }
}

impl<L: Listener<Addr = SocketAddr>> Listener for Capped<L> {
    type Io = CappedIo<L::Io>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        let (io, from) = self.listener.accept().await;
        let stay = Some(self.open.admit(from.ip()));
        (CappedIo { io, stay }, from)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when there are too many.
#[derive(Debug)]
pub struct CappedIo<I> {
    io: I,
    /// `None`: it had to end.
    stay: Option<Stay>,
}

impl<I> CappedIo<I> {
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.stay.as_mut().is_some_and(|stay| Pin::new(stay).poll(context).is_pending()) {
            return Ok(());
        }
        self.stay = None;
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
    use std::task::Waker;

    use super::*;

    /// Whether the client of this place has been told to leave.
    fn has_to_leave(stay: &mut Stay) -> bool {
        Pin::new(stay).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn an_address_with_many_clients_sends_its_own_away() {
        let mut crowd = Crowd::new(3);
        let mut come = |number: u8| crowd.admit(IpAddr::from([10, 0, 0, number]));
        let (mut a, mut b, mut c) = (come(1), come(2), come(2));
        assert!(![&mut a, &mut b, &mut c].into_iter().any(has_to_leave));
        let mut d = come(3);
        assert!(has_to_leave(&mut b) && !has_to_leave(&mut a) && !has_to_leave(&mut c));
        let mut e = come(2);
        assert!(has_to_leave(&mut c) && !has_to_leave(&mut d) && !has_to_leave(&mut e));
        let mut f = come(4);
        assert!(has_to_leave(&mut a), "the oldest of all where no address has more");
        drop((d, e));
        let mut g = come(4);
        let mut h = come(4);
        assert!(![&mut f, &mut g, &mut h].into_iter().any(has_to_leave), "who has gone does not count");
        drop(crowd);
        assert!(![&mut f, &mut g, &mut h].into_iter().any(has_to_leave), "who is served when the crowd ends stays");
    }
}
