//! Connections between processes: listening and connecting over TCP, plain or by TLS.
//!
//! Every socket sends small messages at once and is probed by keep-alives, so that a peer that vanished is noticed. A connection is made when it is
//! first used and again whenever it broke, with the address and the certificates of that moment; callers pause between their attempts.
//!
//! Whoever dials says what it expects to answer. An address is only a hint where that may be: by TLS, nothing is sent
//! before the other end has shown that it is the process that is dialed.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use coppice_types::chain;
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use rustix::io::Errno;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Server, Uri};
use tower::ServiceExt;

pub use crate::connection::Connection;
use crate::{
    Code, Failure,
    connection::Secured,
    tls::{Acceptor, Connector, Expected},
};

/// How long a connection may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the other end may take to show who it is.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often an open connection is probed, and how long the answer may take.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Probes of the operating system, for connections on which nothing is under way.
const TCP_PROBES_MAX: u32 = 3;
/// HTTP/2 flow control windows, so that one large message does not wait for several round trips.
const WINDOW_BYTES: u32 = 2 << 20;
/// Handshakes under way at a time; further connections wait to be accepted.
const HANDSHAKES_MAX: usize = 128;
/// Connections that wait to be served.
const ACCEPTED_MAX: usize = 64;
/// Calls in progress on one connection: more wait with a client that keeps to HTTP/2, and are shed from any other.
pub const CALLS_PER_CONNECTION_MAX: u32 = 1024;
/// First and longest pause after the system could not accept a connection, for instance for want of descriptors.
const ACCEPT_PAUSE_MIN: Duration = Duration::from_millis(50);
const ACCEPT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Connects to other processes.
#[derive(Clone, Debug)]
pub struct Dialer {
    from: String,
    tls: Option<Connector>,
}

impl Dialer {
    /// Connects as `from`, which servers see as the user agent; by TLS if certificates are given.
    #[must_use]
    pub fn new(from: &str, tls: Option<Connector>) -> Self {
        Self { from: from.to_owned(), tls }
    }

    /// A channel to what is expected at an address, which connects when first used and again whenever its connection
    /// breaks.
    ///
    /// # Errors
    /// If the address is none.
    pub fn channel(&self, address: &str, expected: Expected) -> Result<Channel, Failure> {
        self.channel_by(Arc::new(address.to_owned()), expected)
    }

    /// The same, at the address that is the right one at the time of each connection.
    ///
    /// # Errors
    /// If the one of now is none.
    pub fn channel_by(&self, place: Arc<dyn Place>, expected: Expected) -> Result<Channel, Failure> {
        let endpoint = self.endpoint(&place.address())?;
        let (sockets, tls) = (sockets(), self.tls.clone());
        Ok(endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
            let (place, address) = (Arc::clone(&place), place.address());
            let (sockets, tls, expected) = (sockets.clone(), tls.clone(), expected.clone());
            async move {
                let connected = open(sockets, tls, &address, expected).await;
                connected.map(TokioIo::new).inspect_err(|error| {
                    tracing::debug!(address, %error, "no connection");
                    place.failed(&address);
                })
            }
        })))
    }

    /// Checks that a channel to an address can be made.
    ///
    /// # Errors
    /// If the address is none.
    pub fn check(&self, address: &str) -> Result<(), Failure> {
        self.endpoint(address).map(drop)
    }

    /// The connector does TLS, so that the transport sees a plain connection.
    fn endpoint(&self, address: &str) -> Result<Endpoint, Failure> {
        let wrong = |error: tonic::transport::Error| Failure::usage(format!("{address}: {}", chain(&error)));
        let mut endpoint = Endpoint::from(uri(address).map_err(|error| Failure::usage(error.to_string()))?);
        if self.tls.is_some() {
            let origin = format!("https://{address}").parse::<Uri>();
            endpoint = endpoint.origin(origin.map_err(|error| Failure::usage(format!("{address}: {error}")))?);
        }
        let endpoint = endpoint.user_agent(format!("coppice/{}", self.from)).map_err(wrong)?;
        Ok(endpoint
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(2 * WINDOW_BYTES))
    }
}

/// Where a process may be.
pub trait Place: Send + Sync {
    /// `HOST:PORT`, for the next connection.
    fn address(&self) -> String;

    /// What was expected could not be reached at this address.
    fn failed(&self, _address: &str) {}
}

impl Place for String {
    fn address(&self) -> String {
        self.clone()
    }
}

/// Opens a connection to what is expected at an address.
async fn open(
    sockets: HttpConnector,
    tls: Option<Connector>,
    address: &str,
    expected: Expected,
) -> io::Result<Connection> {
    let socket = sockets.oneshot(uri(address)?).await.map_err(io::Error::other)?.into_inner();
    let Some(tls) = tls else { return Ok(Connection::Plain(socket)) };
    let handshake = timeout(HANDSHAKE_TIMEOUT, tls.connect(expected, host(address), socket)).await;
    let late = || io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long");
    let (stream, watch) = handshake.map_err(|_| late())??;
    Ok(Connection::Tls(Box::new(Secured::new(stream, watch))))
}

/// Opens sockets as [`prepare`] makes them.
fn sockets() -> HttpConnector {
    let mut sockets = HttpConnector::new();
    sockets.set_nodelay(true);
    sockets.set_keepalive(Some(KEEPALIVE_INTERVAL));
    sockets.set_connect_timeout(Some(CONNECT_TIMEOUT));
    sockets
}

fn uri(address: &str) -> io::Result<Uri> {
    let wrong = |error: String| io::Error::new(io::ErrorKind::InvalidInput, error);
    check_address(address).map_err(wrong)?;
    format!("http://{address}").parse().map_err(|error| wrong(format!("{address}: {error}")))
}

/// The host of an address, as certificates name it.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Checks that an address is `HOST:PORT`.
///
/// # Errors
/// Says what is wrong with it.
pub fn check_address(address: &str) -> Result<(), String> {
    let parts = address.rsplit_once(':').filter(|(host, _)| !host.is_empty() && !host.contains('/'));
    match parts.and_then(|(_, port)| port.parse::<u16>().ok()) {
        Some(port) if port > 0 => Ok(()),
        _ => Err(format!("{address:?} is not HOST:PORT")),
    }
}

/// A gRPC server with the bounds that all processes have.
#[must_use]
pub fn server() -> Server {
    Server::builder()
        .max_concurrent_streams(CALLS_PER_CONNECTION_MAX)
        .concurrency_limit_per_connection(CALLS_PER_CONNECTION_MAX as usize)
        .load_shed(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(2 * WINDOW_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
}

/// Listens on an address.
///
/// # Errors
/// If it cannot be had.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        let failure = Failure::new(Code::Refused, format!("cannot listen on {address}: {error}"));
        failure.hint("Another process may have the port: `listen` takes another address.")
    })
}

/// The connections that a listener takes, until this is dropped. By TLS, only those whose other end has shown who it is.
#[must_use]
pub fn incoming(listener: TcpListener, tls: Option<Acceptor>) -> ReceiverStream<io::Result<Connection>> {
    let (accepted, connections) = mpsc::channel(ACCEPTED_MAX);
    tokio::spawn(async move {
        tokio::select! {
            () = accept(&listener, tls, &accepted) => {}
            () = accepted.closed() => {}
        }
    });
    ReceiverStream::new(connections)
}

async fn accept(listener: &TcpListener, tls: Option<Acceptor>, accepted: &mpsc::Sender<io::Result<Connection>>) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    let mut pause = ACCEPT_PAUSE_MIN;
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(connection) => {
                pause = ACCEPT_PAUSE_MIN;
                connection
            }
            Err(error) => {
                pause = rest_after(&error, pause).await;
                continue;
            }
        };
        if let Err(error) = prepare(&stream) {
            tracing::debug!(%from, %error, "a connection broke at once");
            continue;
        }
        let Some(tls) = tls.clone() else {
            if accepted.send(Ok(Connection::Plain(stream))).await.is_err() {
                return;
            }
            continue;
        };
        let Ok(permit) = handshakes.clone().acquire_owned().await else { return };
        let accepted = accepted.clone();
        tokio::spawn(async move {
            let _permit = permit;
            match timeout(HANDSHAKE_TIMEOUT, tls.accept(Some(from), stream)).await {
                Ok(Ok((stream, watch))) => {
                    // Nobody takes it if the service has ended.
                    drop(accepted.send(Ok(Connection::Tls(Box::new(Secured::new(stream, watch))))).await);
                }
                Ok(Err(error)) => tls.refused(from, &error.to_string()),
                Err(_) => tls.refused(from, "the handshake took too long"),
            }
        });
    }
}

/// Waits as long as an error of a listener wants. Connections stay in the system's queue meanwhile. Gives the pause after the next error.
async fn rest_after(error: &io::Error, pause: Duration) -> Duration {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    if matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted) {
        // It was of one connection, which is gone.
        return pause;
    }
    tracing::warn!(%error, "a connection could not be accepted");
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    if errno.is_some_and(|errno| [Errno::BADF, Errno::INVAL, Errno::NOTSOCK].contains(&errno)) {
        crate::health::cannot_recover(&format!("a listener is lost: {error}"));
    }
    tokio::time::sleep(pause).await;
    (2 * pause).min(ACCEPT_PAUSE_MAX)
}

/// Small messages go at once; a peer that vanished is noticed.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let probes = TcpKeepalive::new()
        .with_time(KEEPALIVE_INTERVAL)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(TCP_PROBES_MAX);
    SockRef::from(stream).set_tcp_keepalive(&probes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_listener_without_descriptors_rests_ever_longer_and_not_for_a_connection_that_broke() {
        let raw = |errno: Errno| io::Error::from_raw_os_error(errno.raw_os_error());
        let mut pause = ACCEPT_PAUSE_MIN;
        let began = tokio::time::Instant::now();
        for _ in 0..100 {
            pause = rest_after(&raw(Errno::CONNABORTED), pause).await;
        }
        assert_eq!((pause, began.elapsed()), (ACCEPT_PAUSE_MIN, Duration::ZERO));
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::MFILE, Errno::MFILE] {
            let began = tokio::time::Instant::now();
            let next = rest_after(&raw(errno), pause).await;
            assert!(began.elapsed() >= pause, "{errno}");
            pause = next;
        }
        assert_eq!(pause, ACCEPT_PAUSE_MAX);
    }

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for good in ["localhost:1", "127.0.0.1:65535", "[::1]:80", "node-1.nodes:7400"] {
            assert_eq!(check_address(good), Ok(()), "{good}");
            assert!(uri(good).is_ok(), "{good}");
        }
        assert_eq!([host("[::1]:80"), host("node-1.nodes:7400")], ["::1", "node-1.nodes"]);
        for bad in ["", ":1", "localhost", "localhost:0", "localhost:65536", "http://localhost:1", "a:b"] {
            assert!(check_address(bad).is_err(), "{bad}");
        }
    }
}
