//! The connections that a listener accepts, within its [`Bounds`].
//!
//! **Invariants.** No action or omission of one peer can delay the connections of others.
//! Handshakes run concurrently. If there are too many silent connections, the oldest are closed.
//! Every wait for a peer has a limit: its handshake, its first bytes, its next call, and its
//! reading of what is written to it.
//!
//! A listener may take HTTP/1.1 beside gRPC. The first bytes of a connection tell which of them its
//! peer speaks: only HTTP/2 begins with its preface.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use coppice_types::Backoff;
use rustix::io::Errno;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
    time::{Sleep, interval, sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use super::socket::{HANDSHAKE_TIMEOUT, prepare};
use crate::{
    broken,
    connection::{Connection, Secured},
    peer::{
        Peer, Used,
        lines::{Bounds, GRPC, Line, Lines},
    },
    tls::Acceptor,
};

/// Most connections that wait to be served.
const ACCEPTED_MAX: usize = 64;
/// First and longest pause after the system could not accept a connection, for example because
/// there are no descriptors left.
const ACCEPT_PAUSE_MIN: Duration = Duration::from_millis(50);
const ACCEPT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Number of searches for connections without a call, within the time that such a connection may
/// last.
const LOOKS: u32 = 10;

/// The beginning of HTTP/2's preface, which no request of HTTP/1.1 has.
const HTTP2: &[u8; 3] = b"PRI";

type Sender = mpsc::Sender<io::Result<Accepted>>;

/// Where accepted connections go.
#[derive(Clone, Debug)]
struct Taken {
    grpc: Sender,
    /// `None`: all connections are for gRPC.
    http1: Option<Sender>,
}

/// The connections that a listener for gRPC and HTTP/1.1 accepts, until both are dropped.
#[derive(Debug)]
pub struct Both {
    pub grpc: ReceiverStream<io::Result<Accepted>>,
    pub http1: ReceiverStream<io::Result<Accepted>>,
}

/// The connections that a listener for both protocols accepts, until [`Both::grpc`] is dropped. By
/// TLS, only those whose peer has shown an accepted certificate.
#[must_use]
pub fn incoming_both(listener: TcpListener, tls: Option<Acceptor>) -> Both {
    let (grpc, grpc_taken) = mpsc::channel(ACCEPTED_MAX);
    let (http1, http1_taken) = mpsc::channel(ACCEPTED_MAX);
    start(listener, tls, GRPC, Taken { grpc, http1: Some(http1) });
    Both { grpc: ReceiverStream::new(grpc_taken), http1: ReceiverStream::new(http1_taken) }
}

/// The connections that a listener for gRPC accepts, until this is dropped. By TLS, only those
/// whose peer has shown an accepted certificate.
#[must_use]
pub fn incoming(listener: TcpListener, tls: Option<Acceptor>) -> ReceiverStream<io::Result<Accepted>> {
    incoming_within(listener, tls, GRPC)
}

/// Like [`incoming`], within these bounds.
#[must_use]
pub fn incoming_within(
    listener: TcpListener,
    tls: Option<Acceptor>,
    bounds: Bounds,
) -> ReceiverStream<io::Result<Accepted>> {
    let (accepted, connections) = mpsc::channel(ACCEPTED_MAX);
    start(listener, tls, bounds, Taken { grpc: accepted, http1: None });
    ReceiverStream::new(connections)
}

fn start(listener: TcpListener, tls: Option<Acceptor>, bounds: Bounds, taken: Taken) {
    tokio::spawn(async move {
        let lines = Lines::new(bounds);
        let tidy = async {
            let mut looks = interval(bounds.idle_max / LOOKS);
            loop {
                looks.tick().await;
                lines.close_idle();
            }
        };
        tokio::select! {
            () = accept(&listener, tls, &taken, &lines) => {}
            () = tidy => {}
            () = taken.grpc.closed() => {}
        }
    });
}

async fn accept(listener: &TcpListener, tls: Option<Acceptor>, taken: &Taken, lines: &Arc<Lines>) {
    let mut backoff = Backoff::new(ACCEPT_PAUSE_MIN, ACCEPT_PAUSE_MAX);
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(connection) => {
                backoff.reset();
                connection
            }
            Err(error) => {
                rest_after(&error, &mut backoff).await;
                continue;
            }
        };
        if let Err(error) = prepare(&stream) {
            tracing::debug!(%from, %error, "a connection broke at once");
            continue;
        }
        let peer = Peer { address: Some(from), ..Peer::default() };
        let Ok((line, closed)) = lines.enter(peer.party()) else {
            tracing::debug!(%from, connections = lines.count(), "a connection was refused: all others are in use");
            continue;
        };
        tokio::spawn(take(stream, line, closed, tls.clone(), taken.clone()));
    }
}

/// Pauses after an error of the listener. Connections stay in the system's queue meanwhile.
async fn rest_after(error: &io::Error, backoff: &mut Backoff) {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    if matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted) {
        // The error concerned a single connection, which is gone.
        return;
    }
    tracing::warn!(%error, "a connection could not be accepted");
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    if errno.is_some_and(|errno| [Errno::BADF, Errno::INVAL, Errno::NOTSOCK].contains(&errno)) {
        broken::cannot_recover(&format!("a listener is lost: {error}"));
    }
    sleep(backoff.next_pause()).await;
}

/// Hands a connection over to be served. By TLS, it does the handshake first.
async fn take(stream: TcpStream, line: Line, mut closed: oneshot::Receiver<()>, tls: Option<Acceptor>, taken: Taken) {
    let io = match tls {
        None => Connection::Plain(stream),
        Some(tls) => {
            let from = stream.peer_addr().ok();
            let refused = |why: &str| {
                if let Some(from) = from {
                    tls.refused(from, why);
                }
            };
            let shown = tokio::select! {
                biased;
                _ = &mut closed => return refused("its place was needed for others before its handshake ended"),
                shown = timeout(HANDSHAKE_TIMEOUT, tls.accept(from, stream)) => shown,
            };
            let io = match shown {
                Ok(Ok((stream, watch))) => Connection::Tls(Box::new(Secured::new(stream, watch))),
                Ok(Err(error)) => return refused(&error.to_string()),
                Err(_) => return refused("the handshake took too long"),
            };
            if line.is_of(io.connect_info().party()).is_err() {
                return refused("it has reached its limit of connections, and all of them are in use");
            }
            io
        }
    };
    let mut connection = Accepted::new(io, line, closed);
    let accepted = match taken.http1 {
        None => taken.grpc,
        Some(http1) => match poll_fn(|task| connection.poll_speaks_http2(task)).await {
            Ok(true) => taken.grpc,
            Ok(false) => http1,
            Err(error) => return tracing::debug!(%error, "a connection ended before its first bytes"),
        },
    };
    tokio::select! {
        biased;
        // This fails only when the service has ended.
        _ = accepted.send(Ok(connection)) => {}
        // The service accepts none at present. Waiting connections have a limit, too.
        () = sleep(HANDSHAKE_TIMEOUT) => {}
    }
}

/// A connection from a listener.
#[derive(Debug)]
pub struct Accepted {
    io: Connection,
    line: Line,
    /// Ends when the connection has to be closed.
    closed: oneshot::Receiver<()>,
    is_cut: bool,
    /// The number of first bytes still missing, and the time limit for them.
    greeting: Option<(usize, Pin<Box<Sleep>>)>,
    /// First bytes that were looked at, and that the reader has not got yet.
    ahead: Vec<u8>,
    /// The time limit for pending writes.
    writing: Option<Pin<Box<Sleep>>>,
    bounds: Bounds,
}

impl Accepted {
    fn new(io: Connection, line: Line, closed: oneshot::Receiver<()>) -> Self {
        let bounds = line.bounds();
        let greeting = Some((bounds.greeting_bytes, Box::pin(sleep(bounds.greeting_timeout))));
        Self { io, line, closed, is_cut: false, greeting, ahead: Vec::new(), writing: None, bounds }
    }

    /// Counts the calls on the connection.
    #[must_use]
    pub fn used(&self) -> Used {
        self.line.used()
    }

    /// Whether the first bytes are those of HTTP/2. They stay there for the reader.
    fn poll_speaks_http2(&mut self, task: &mut Context<'_>) -> Poll<io::Result<bool>> {
        loop {
            if !HTTP2.starts_with(&self.ahead) {
                return Poll::Ready(Ok(false));
            }
            if self.ahead.len() == HTTP2.len() {
                return Poll::Ready(Ok(true));
            }
            let mut bytes = [0; HTTP2.len()];
            let mut buf = ReadBuf::new(&mut bytes[self.ahead.len()..]);
            ready!(self.poll_io(task, &mut buf))?;
            if buf.filled().is_empty() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.ahead.extend_from_slice(buf.filled());
        }
    }

    /// Reads from the connection, within the limits on its first bytes.
    fn poll_io(&mut self, task: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.is_cut = self.is_cut || Pin::new(&mut self.closed).poll(task).is_ready();
        if self.is_cut {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "closed for another connection")));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(task, buf);
        let Some((missing, until)) = &mut self.greeting else { return read };
        *missing = missing.saturating_sub(buf.filled().len() - before);
        if *missing == 0 {
            self.greeting = None;
            self.line.has_spoken();
        } else if read.is_pending() && until.as_mut().poll(task).is_ready() {
            return Poll::Ready(Err(late("it sent nothing after it had connected")));
        }
        read
    }

    /// Judges a write: it fails if it makes no progress for too long.
    fn written<T>(&mut self, task: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.writing = None;
            return done;
        }
        let limit = self.bounds.write_timeout;
        let writing = self.writing.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(writing.as_mut().poll(task));
        Poll::Ready(Err(late("it does not read what is written to it")))
    }
}

fn late(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

impl AsyncRead for Accepted {
    fn poll_read(self: Pin<&mut Self>, task: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.ahead.is_empty() {
            let len = this.ahead.len().min(buf.remaining());
            buf.put_slice(&this.ahead[..len]);
            this.ahead.drain(..len);
            return Poll::Ready(Ok(()));
        }
        this.poll_io(task, buf)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(self: Pin<&mut Self>, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.io).poll_write(task, bytes);
        this.written(task, done)
    }

    fn poll_flush(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.io).poll_flush(task);
        this.written(task, done)
    }

    fn poll_shutdown(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.io).poll_shutdown(task);
        this.written(task, done)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.io).poll_write_vectored(task, slices);
        this.written(task, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

impl Connected for Accepted {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        Peer { line: Some(self.used()), ..self.io.connect_info() }
    }
}

#[cfg(test)]
mod tests;
