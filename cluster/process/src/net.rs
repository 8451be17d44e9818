//! Connections between processes: listening and connecting over TCP, plain or by TLS.
//!
//! Every socket sends small messages at once and is probed by keep-alives, so that a peer that vanished is noticed. A connection is made when it is
//! first used and again whenever it broke, with the address and the certificates of that moment; callers pause between their attempts.
//!
//! Whoever dials says what it expects to answer. An address is only a hint where that may be: by
//! TLS, nothing is sent before the other end has shown that it is the process that is dialed.

mod answers;
mod budget;
pub mod calls;
mod incoming;
mod lines;
mod requests;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use coppice_proto::telemetry::Served;
use coppice_types::chain;
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tonic::{
    codegen::http,
    transport::{Channel, Endpoint, Server, Uri},
};
use tower::{ServiceExt, layer::util::Stack};

use self::calls::{Bounded, Party};
pub use crate::connection::Connection;
use crate::{
    Code, Failure,
    access::Peer,
    connection::Secured,
    tls::{Connector, Expected},
};

pub use incoming::{Accepted, incoming, incoming_within};
pub use lines::{Bounds, GRPC, Used};

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
/// Bytes of the headers of a request.
const HEADERS_BYTES_MAX: u32 = 16 << 10;
/// Streams of a connection that its other end has reset before they were looked at, and that this
/// end has reset for errors. A connection with more is closed.
const RESETS_PENDING_MAX: usize = 20;
const ERROR_RESETS_MAX: usize = 256;
/// Calls in progress on one connection: more wait with a client that keeps to HTTP/2, and are shed from any other.
pub const CALLS_PER_CONNECTION_MAX: u32 = 1024;

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

    /// A channel to what is expected at an address, which connects when first used and again
    /// whenever its connection breaks.
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

/// A gRPC server with the bounds that all processes have, which counts and traces its calls. Must
/// be called within a tokio runtime.
#[must_use]
pub fn server() -> Server<Stack<Bounded, Stack<Served, tower::layer::util::Identity>>> {
    server_within(calls::Limits::default())
}

/// As [`server`], with these bounds on its calls.
fn server_within(limits: calls::Limits) -> Server<Stack<Bounded, Stack<Served, tower::layer::util::Identity>>> {
    Server::builder()
        .max_concurrent_streams(CALLS_PER_CONNECTION_MAX)
        .concurrency_limit_per_connection(CALLS_PER_CONNECTION_MAX as usize)
        .load_shed(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(2 * WINDOW_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .http2_max_header_list_size(HEADERS_BYTES_MAX)
        .http2_max_pending_accept_reset_streams(Some(RESETS_PENDING_MAX))
        .http2_max_local_error_reset_streams(Some(ERROR_RESETS_MAX))
        .layer(Served::new())
        .layer(Bounded::new(limits))
}

/// Whom a request is for, as far as bounds are concerned.
fn party_of(request: &http::Extensions) -> Party {
    request.get::<Peer>().map_or(Party::Inside, Peer::party)
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
