//! Connections: who is at the other end, how many there are, and how long a request may take to arrive and to be answered.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A process of this machine, as the kernel says.
    Process {
        /// Its user.
        user: u32,
        /// Its number.
        pid: Option<i32>,
    },
    /// Somebody on the network, who has to show a token.
    Network(SocketAddr),
}

impl Peer {
    /// What connections are counted by: nobody keeps the others out.
    fn key(self) -> Option<u32> {
        match self {
            Self::Process { user, .. } => Some(user),
            Self::Network(_) => None,
        }
    }
}

/// Limits of the connections of one listener.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once.
    pub connections_max: usize,
    /// Connections of one user at once; root has no limit but the other one. All that come over TCP count as one user.
    pub connections_of_user_max: usize,
    /// How long a connection may lie idle between two requests.
    pub idle: Duration,
    /// How long from the first byte of a request to the first byte of its answer, and how long a client may leave an answer unread.
    pub request: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 1024,
            connections_of_user_max: 512,
            idle: Duration::from_secs(75),
            request: Duration::from_secs(60),
        }
    }
}

/// Something that connections come from.
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

type Counts = Arc<Mutex<HashMap<Option<u32>, usize>>>;

/// A listener that counts.
pub(super) struct Guarded<L> {
    source: L,
    limits: Limits,
    counts: Counts,
}

impl<L> Guarded<L> {
    pub fn new(source: L, limits: Limits) -> Self {
        Self { source, limits, counts: Counts::default() }
    }

    fn admit(&self, peer: Peer) -> Option<Place> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = counts.values().sum();
        let of_user = counts.entry(peer.key()).or_default();
        let limit = if peer.key() == Some(0) { usize::MAX } else { self.limits.connections_of_user_max };
        if all >= self.limits.connections_max || *of_user >= limit {
            return None;
        }
        *of_user += 1;
        Some(Place { key: peer.key(), counts: Arc::clone(&self.counts) })
    }
}

impl<L: Source> Listener for Guarded<L> {
    type Io = Connection<L::Stream>;
    type Addr = Peer;

    async fn accept(&mut self) -> (Self::Io, Peer) {
        loop {
            match self.source.next().await {
                Ok((stream, peer)) => match self.admit(peer) {
                    Some(place) => return (Connection::new(stream, self.limits, place), peer),
                    None => tracing::warn!(?peer, "a connection is refused: there are too many"),
                },
                // The client went before it was looked at.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Out of descriptors, most likely; some connections will end.
                    tracing::error!(%error, "no connection can be taken");
                    sleep(Duration::from_millis(200)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Peer> {
        // Only what logs would show.
        Ok(Peer::Process { user: rustix::process::geteuid().as_raw(), pid: None })
    }
}

impl<L: Source> Connected<IncomingStream<'_, Guarded<L>>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Guarded<L>>) -> Self {
        *stream.remote_addr()
    }
}

/// A place among the connections, free again when this is dropped.
struct Place {
    key: Option<u32>,
    counts: Counts,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

/// What the time limit of a connection is about now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// For a request to begin.
    Idle,
    /// For the answer to one that has begun. Bytes that arrive do not prolong it.
    Request,
}

/// A connection that ends when its client is too slow.
pub(super) struct Connection<S> {
    stream: S,
    limits: Limits,
    waits: Waits,
    deadline: Pin<Box<Sleep>>,
    _place: Place,
}

impl<S> Connection<S> {
    fn new(stream: S, limits: Limits, place: Place) -> Self {
        let deadline = Box::pin(sleep_until(Instant::now() + limits.idle));
        Self { stream, limits, waits: Waits::Idle, deadline, _place: place }
    }

    fn wait(&mut self, waits: Waits) {
        self.waits = waits;
        let limit = match waits {
            Waits::Idle => self.limits.idle,
            Waits::Request => self.limits.request,
        };
        self.deadline.as_mut().reset(Instant::now() + limit);
    }

    /// Pending until the deadline, then an error.
    fn check(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        ready!(self.deadline.as_mut().poll(context));
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "the client is too slow"))
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
        match Pin::new(&mut self.stream).poll_write(context, bytes) {
            Poll::Ready(done) => {
                self.wait(Waits::Idle);
                Poll::Ready(done)
            }
            Poll::Pending => self.check(context).map(Err),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write_vectored(context, bytes) {
            Poll::Ready(done) => {
                self.wait(Waits::Idle);
                Poll::Ready(done)
            }
            Poll::Pending => self.check(context).map(Err),
        }
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

    const LIMITS: Limits = Limits {
        connections_max: 3,
        connections_of_user_max: 2,
        idle: Duration::from_secs(10),
        request: Duration::from_secs(2),
    };

    fn connection() -> (tokio::io::DuplexStream, Connection<tokio::io::DuplexStream>) {
        let (client, server) = tokio::io::duplex(4);
        let guarded = Guarded::new((), LIMITS);
        let place = guarded.admit(Peer::Process { user: 7, pid: None }).unwrap();
        (client, Connection::new(server, LIMITS, place))
    }

    #[test]
    fn one_user_leaves_room_for_others() {
        let guarded = Guarded::new((), LIMITS);
        let of = |user| guarded.admit(Peer::Process { user, pid: Some(1) });
        let (first, _second) = (of(7).unwrap(), of(7).unwrap());
        assert!(of(7).is_none());
        let root = of(0).unwrap();
        assert!(of(8).is_none(), "three are there");
        drop((first, root));
        assert!(of(7).is_some());
    }

    #[tokio::test]
    async fn who_sends_a_byte_now_and_then_is_cut_off_all_the_same() {
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
        // Nobody reads.
        let error = server.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(client);
    }
}
