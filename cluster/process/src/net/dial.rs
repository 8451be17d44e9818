//! Connections to other processes.

use std::{io, sync::Arc};

use coppice_proto::secure::Expected;
use coppice_types::chain;
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::ServiceExt;

use super::{
    address::{host, uri},
    socket::{HANDSHAKE_TIMEOUT, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, WINDOW_BYTES, sockets},
};
use crate::{
    Failure,
    connection::{Connection, Secured},
    tls::Connector,
};

/// Connects to other processes.
#[derive(Clone, Debug)]
pub struct Dialer {
    from: String,
    tls: Option<Connector>,
}

impl Dialer {
    /// A dialer that servers see as the user agent `from`. It uses TLS if certificates are given.
    #[must_use]
    pub fn new(from: &str, tls: Option<Connector>) -> Self {
        Self { from: from.to_owned(), tls }
    }

    /// A channel to the expected process at an address. It connects at its first use, and again
    /// whenever its connection breaks.
    ///
    /// # Errors
    /// If the address is not valid.
    pub fn channel(&self, address: &str, expected: Expected) -> Result<Channel, Failure> {
        self.channel_by(Arc::new(address.to_owned()), expected)
    }

    /// Like [`Dialer::channel`], with the address that is right at the time of each connection.
    ///
    /// # Errors
    /// If the present address is not valid.
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
    /// If the address is not valid.
    pub fn check(&self, address: &str) -> Result<(), Failure> {
        self.endpoint(address).map(drop)
    }

    /// The connector does TLS, so the transport sees a plain connection.
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

/// A source of the address of a process.
pub trait Place: Send + Sync {
    /// `HOST:PORT` for the next connection.
    fn address(&self) -> String;

    /// Notes that the expected process could not be reached at this address.
    fn failed(&self, _address: &str) {}
}

impl Place for String {
    fn address(&self) -> String {
        self.clone()
    }
}

/// Opens a connection to the expected process at an address.
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
