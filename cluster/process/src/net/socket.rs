//! Sockets, and how their connections are kept alive.

use std::{io, net::SocketAddr, time::Duration};

use hyper_util::client::legacy::connect::HttpConnector;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};

use crate::{Code, Failure};

/// Longest time to open a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time of a TLS handshake.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause between probes of an open connection, and the longest wait for the answer.
pub(super) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
pub(super) const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Most unanswered probes of the operating system, on connections without traffic.
const TCP_PROBES_MAX: u32 = 3;
/// HTTP/2 flow control windows, so that one large message does not wait for several round trips.
pub(super) const WINDOW_BYTES: u32 = 2 << 20;

/// Listens on an address.
///
/// # Errors
/// If the system refuses.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        let failure = Failure::new(Code::Refused, format!("cannot listen on {address}: {error}"));
        failure.hint("Another process may have the port: `listen` takes another address.")
    })
}

/// Sends small messages at once, and probes the peer.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let probes = TcpKeepalive::new()
        .with_time(KEEPALIVE_INTERVAL)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(TCP_PROBES_MAX);
    SockRef::from(stream).set_tcp_keepalive(&probes)
}

/// Opens sockets with the options of [`prepare`].
pub(super) fn sockets() -> HttpConnector {
    let mut sockets = HttpConnector::new();
    sockets.set_nodelay(true);
    sockets.set_keepalive(Some(KEEPALIVE_INTERVAL));
    sockets.set_connect_timeout(Some(CONNECT_TIMEOUT));
    sockets
}
