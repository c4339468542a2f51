//! Connections: their other ends, their number, and timeouts for sending a request and reading the
//! answer.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::caller::Peer;

/// What connections are counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    User(u32),
    Address(IpAddr),
}

impl Peer {
    fn key(self) -> Key {
        match self {
            Self::Process { user, .. } => Key::User(user),
            Self::Network(address) => Key::Address(address.ip()),
        }
    }
}

/// Limits of the connections of one listener.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Connections at once.
    pub all: usize,
    /// How many of them are reserved for root and the daemon's own user.
    pub kept: usize,
    /// Connections of another user at once. Over TCP, where no user is known yet, of an address.
    pub each: usize,
    /// How long a connection can be idle between two requests, and how long a client can leave an
    /// answer unread.
    pub idle: Duration,
    /// The same while more than half of all connections are in use.
    pub idle_when_crowded: Duration,
    /// How long from the first byte of a request to its last.
    pub request: Duration,
}

impl Limits {
    /// `request`: how long from the first byte of a request to its last.
    pub fn new(request: Duration) -> Self {
        Self {
            all: 1024,
            kept: 128,
            each: 256,
            idle: Duration::from_secs(75),
            idle_when_crowded: Duration::from_secs(5),
            request,
        }
    }
}

/// A source of connections.
pub(super) trait Source: Send + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn next(&mut self) -> impl Future<Output = io::Result<(Self::Stream, Peer)>> + Send;
}

impl Source for UnixListener {
    type Stream = UnixStream;

    async fn next(&mut self) -> io::Result<(UnixStream, Peer)> {
        let (stream, _) = UnixListener::accept(self).await?;
        let peer = stream.peer_cred()?;
        Ok((stream, Peer::Process { user: peer.uid(), pid: peer.pid() }))
    }
}

impl Source for TcpListener {
    type Stream = TcpStream;

    async fn next(&mut self) -> io::Result<(TcpStream, Peer)> {
        let (stream, address) = TcpListener::accept(self).await?;
        // An answer is one write.
        stream.set_nodelay(true)?;
        Ok((stream, Peer::Network(address)))
    }
}

/// Existing connections, by user.
#[derive(Debug, Default)]
struct Counts {
    all: usize,
    each: HashMap<Key, usize>,
}

/// A listener that counts.
pub(super) struct Guarded<L> {
    source: L,
    limits: Limits,
    /// The daemon's own user.
    owner: u32,
    counts: Arc<Mutex<Counts>>,
}

impl<L> Guarded<L> {
    pub fn new(source: L, limits: Limits, owner: u32) -> Self {
        Self { source, limits, owner, counts: Arc::default() }
    }

    fn admit(&self, peer: Peer) -> Option<Place> {
        let key = peer.key();
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let of_key = counts.each.get(&key).copied().unwrap_or_default();
        let is_full = if peer.is_root_or(self.owner) {
            counts.all >= self.limits.all
        } else {
            counts.all >= self.limits.all - self.limits.kept || of_key >= self.limits.each
        };
        if is_full {
            return None;
        }
        counts.all += 1;
        counts.each.insert(key, of_key + 1);
        Some(Place { key, counts: Arc::clone(&self.counts) })
    }
}

impl<L: Source> Guarded<L> {
    /// The next connection that there is room for.
    pub async fn accept(&mut self) -> (Connection<L::Stream>, Peer) {
        loop {
            match self.source.next().await {
                Ok((stream, peer)) => match self.admit(peer) {
                    Some(place) => return (Connection::new(stream, self.limits, place), peer),
                    None => tracing::warn!(?peer, "a connection is refused: there are too many"),
                },
                // The client left before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Out of descriptors, most likely; some connections will end.
                    tracing::error!(%error, "no connection can be accepted");
                    sleep(Duration::from_millis(200)).await;
                }
            }
        }
    }
}

/// A place among the connections, free again when this is dropped.
pub(super) struct Place {
    key: Key,
    counts: Arc<Mutex<Counts>>,
}

impl Place {
    fn is_crowded(&self, limits: &Limits) -> bool {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).all > limits.all / 2
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.all -= 1;
        if let Some(count) = counts.each.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.each.remove(&self.key);
            }
        }
    }
}

/// What the client is to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// Begin a request.
    Idle,
    /// Send the rest of one. Bytes that arrive do not prolong it.
    Request,
    /// Read the answer.
    Answer,
}

/// A connection that ends when its client is too slow. The time in which an answer is made does not
/// count.
pub(super) struct Connection<S> {
    stream: S,
    limits: Limits,
    waits: Waits,
    since: Instant,
    deadline: Pin<Box<Sleep>>,
    place: Place,
}

impl<S> Connection<S> {
    fn new(stream: S, limits: Limits, place: Place) -> Self {
        let since = Instant::now();
        let deadline = Box::pin(sleep_until(since));
        let mut connection = Self { stream, limits, waits: Waits::Idle, since, deadline, place };
        connection.wait(Waits::Idle);
        connection
    }

    /// The stream alone, without a deadline, and the place that it has among the connections.
    pub fn into_parts(self) -> (S, Place) {
        (self.stream, self.place)
    }

    fn wait(&mut self, waits: Waits) {
        self.waits = waits;
        self.since = Instant::now();
        let limit = match waits {
            // Earlier than may be needed, to see whether there are many connections by then.
            Waits::Idle | Waits::Answer => self.limits.idle_when_crowded.min(self.limits.idle),
            Waits::Request => self.limits.request,
        };
        self.deadline.as_mut().reset(self.since + limit);
    }

    /// Pending until the client is too slow, then an error.
    fn check(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            ready!(self.deadline.as_mut().poll(context));
            let end = self.since + self.limits.idle;
            let now = Instant::now();
            if self.waits == Waits::Request || now >= end || self.place.is_crowded(&self.limits) {
                return Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "the client is too slow"));
            }
            self.deadline.as_mut().reset(end.min(now + self.limits.idle_when_crowded));
        }
    }

    /// The result of a write.
    fn written(
        &mut self,
        context: &mut Context<'_>,
        done: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if done.is_ready() {
            self.wait(Waits::Idle);
            return done;
        }
        if self.waits != Waits::Answer {
            self.wait(Waits::Answer);
        }
        self.check(context).map(Err)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Ready(Ok(())) => {
                if buffer.filled().len() > before && self.waits == Waits::Idle {
                    self.wait(Waits::Request);
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.check(context).map(Err),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.written(context, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const OWNER: u32 = 5;
    const LIMITS: Limits = Limits {
        all: 6,
        kept: 2,
        each: 3,
        idle: Duration::from_secs(10),
        idle_when_crowded: Duration::from_secs(4),
        request: Duration::from_secs(2),
    };

    fn connection() -> (tokio::io::DuplexStream, Connection<tokio::io::DuplexStream>) {
        let (client, server) = tokio::io::duplex(4);
        let guarded = Guarded::new((), LIMITS, OWNER);
        let place = guarded.admit(Peer::Process { user: 7, pid: None }).unwrap();
        (client, Connection::new(server, LIMITS, place))
    }

    #[test]
    fn users_leave_room_for_others_and_all_of_them_for_root_and_the_owner() {
        let guarded = Guarded::new((), LIMITS, OWNER);
        let of = |user| guarded.admit(Peer::Process { user, pid: Some(1) });
        let mut of_7 = vec![of(7).unwrap(), of(7).unwrap(), of(7).unwrap()];
        assert!(of(7).is_none(), "a user has three");
        let of_8 = of(8).unwrap();
        assert!(of(8).is_none() && of(9).is_none(), "two are kept");
        let (root, owner) = (of(0).unwrap(), of(OWNER).unwrap());
        assert!(of(0).is_none() && of(OWNER).is_none(), "there are no more than six");
        drop((of_7.pop(), of_8, root, owner));
        assert!(of(7).is_some());
    }

    #[test]
    fn addresses_leave_room_for_others() {
        let guarded = Guarded::new((), LIMITS, OWNER);
        let of = |address: &str| guarded.admit(Peer::Network(address.parse().unwrap()));
        let _held = [of("10.0.0.1:1"), of("10.0.0.1:2"), of("10.0.0.1:3")].map(Option::unwrap);
        assert!(of("10.0.0.1:4").is_none());
        assert!(of("10.0.0.2:1").is_some());
    }

    #[tokio::test]
    async fn idle_connections_end_earlier_when_there_are_many() {
        tokio::time::pause();
        let guarded = Guarded::new((), LIMITS, OWNER);
        let place = |user| guarded.admit(Peer::Process { user, pid: None }).unwrap();
        let (_client, server) = tokio::io::duplex(4);
        let mut server = Connection::new(server, LIMITS, place(7));
        let begin = Instant::now();
        let crowd = tokio::spawn({
            let places = [place(8), place(8), place(8)];
            async move {
                sleep(Duration::from_secs(6)).await;
                drop(places);
            }
        });
        assert_eq!(server.read(&mut [0; 8]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(begin.elapsed().as_secs(), 4);
        crowd.await.unwrap();
    }

    #[tokio::test]
    async fn a_request_that_comes_byte_by_byte_is_cut_off_all_the_same() {
        tokio::time::pause();
        let (mut client, mut server) = connection();
        let begin = Instant::now();
        let trickle = tokio::spawn(async move {
            while client.write_all(b"x").await.is_ok() {
                sleep(Duration::from_millis(500)).await;
            }
        });
        let error = server.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begin.elapsed() < Duration::from_secs(3));
        drop(server);
        trickle.await.unwrap();
    }

    #[tokio::test]
    async fn an_answer_begins_the_idle_time_and_must_be_read() {
        tokio::time::pause();
        let (mut client, mut server) = connection();
        client.write_all(b"ask").await.unwrap();
        assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 3);
        sleep(Duration::from_secs(1)).await;
        server.write_all(b"ok").await.unwrap();
        let begin = Instant::now();
        assert_eq!(server.read(&mut [0; 8]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(begin.elapsed().as_secs(), 10);
        // There is no reader.
        let error = server.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(client);
    }
}
