//! TLS settings: whom a client trusts, and which certificate it shows. They come from memory, or
//! from files that are read again when they change.
//!
//! Once changed files form a valid whole, the next call opens a new connection. Calls and streams
//! that are under way end on the old one.
//!
//! The server's certificate must be a coordinator's, unless the options say otherwise. The
//! authority of a cluster also signs certificates of readers, and a reader's certificate may name
//! any host. The certificate is judged before anything is sent.

use std::{
    fmt,
    future::poll_fn,
    io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use coppice_proto::{
    Channel, HttpRequest, HttpResponse,
    live::{Live, Unreadable},
    secure,
};
pub use coppice_proto::{certificate::Role, secure::Expected};
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use tokio::time::timeout;
use tonic::{
    codegen::{BoxFuture, Service, StdError},
    transport::{self, Endpoint, Uri},
};
use tower::ServiceExt;

/// Longest time to open a TCP connection.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time for the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The authorities that a client trusts, and its own certificate. All contents are PEM.
#[derive(Clone)]
pub enum Tls {
    /// Fixed contents.
    Pem {
        /// The authorities that may have issued the server's certificate.
        ca: Vec<u8>,
        /// The client's certificate and private key, if the server asks for them.
        identity: Option<(Vec<u8>, Vec<u8>)>,
    },
    /// Contents of files. When the files change, the next calls use the new contents.
    Files {
        /// The file of the authorities.
        ca: PathBuf,
        /// The files of the certificate and the private key.
        identity: Option<(PathBuf, PathBuf)>,
    },
}

/// Leaves out the key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pem { identity, .. } => {
                f.debug_struct("Pem").field("identity", &identity.is_some()).finish_non_exhaustive()
            }
            Self::Files { ca, identity } => {
                f.debug_struct("Files").field("ca", ca).field("identity", identity).finish()
            }
        }
    }
}

/// Unusable authorities, certificates or keys, or ones that do not fit each other.
pub(crate) struct Unfit(pub String);

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Unreadable> for Unfit {
    fn from(file: Unreadable) -> Self {
        Self(file.to_string())
    }
}

impl Tls {
    pub(crate) fn live(self) -> Result<Live<secure::Client>, Unfit> {
        match self {
            Self::Pem { ca, identity } => {
                let identity = identity.as_ref().map(|(certificate, key)| (&certificate[..], &key[..]));
                Ok(Live::fixed(settings(&ca, identity)?))
            }
            Self::Files { ca, identity } => {
                let paths =
                    std::iter::once(ca).chain(identity.into_iter().flat_map(|(cert, key)| [cert, key])).collect();
                Live::keep(paths, |contents| match contents {
                    [ca, certificate, key] => settings(ca, Some((certificate, key))),
                    [ca] => settings(ca, None),
                    _ => unreachable!("one file is kept, or three"),
                })
            }
        }
    }
}

/// The settings of a TLS client, from PEM.
fn settings(ca: &[u8], identity: Option<(&[u8], &[u8])>) -> Result<secure::Client, Unfit> {
    let identity = identity
        .map(|(certificate, key)| Ok::<_, String>((secure::certificates(certificate)?, secure::private_key(key)?)));
    let made = secure::roots(ca).and_then(|roots| secure::Client::new(roots, identity.transpose()?));
    made.map_err(Unfit)
}

/// A connection that is made with its first call, to the process that is expected at the endpoint.
fn connect(endpoint: &Endpoint, client: &Arc<secure::Client>, expected: &Expected) -> transport::Channel {
    let mut sockets = HttpConnector::new();
    sockets.set_nodelay(true);
    sockets.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let (client, expected) = (Arc::clone(client), Arc::new(expected.clone()));
    endpoint.connect_with_connector_lazy(tower::service_fn(move |place: Uri| {
        let (sockets, client, expected) = (sockets.clone(), Arc::clone(&client), Arc::clone(&expected));
        async move {
            let host = place.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
            let socket = sockets.oneshot(place).await.map_err(io::Error::other)?.into_inner();
            let handshake = timeout(HANDSHAKE_TIMEOUT, client.connect(expected, &host, socket)).await;
            let late = || io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long");
            Ok::<_, io::Error>(TokioIo::new(handshake.map_err(|_| late())??))
        }
    }))
}

/// A channel that connects with its first call, and again with the first call after the settings
/// changed.
pub(crate) fn channel(endpoint: Endpoint, live: Live<secure::Client>, expected: Expected) -> Channel {
    let client = live.now();
    let first = connect(&endpoint, &client, &expected);
    Channel::new(Renewed { endpoint, live, expected, newest: Arc::new(Mutex::new((client, first))) })
}

#[derive(Clone)]
struct Renewed {
    endpoint: Endpoint,
    live: Live<secure::Client>,
    expected: Expected,
    /// The newest connection, with the settings that it was made with.
    newest: Arc<Mutex<(Arc<secure::Client>, transport::Channel)>>,
}

impl Renewed {
    fn connection(&self) -> transport::Channel {
        let client = self.live.now();
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&newest.0, &client) {
            let connection = connect(&self.endpoint, &client, &self.expected);
            *newest = (client, connection);
        }
        newest.1.clone()
    }
}

impl Service<HttpRequest> for Renewed {
    type Response = HttpResponse;
    type Error = StdError;
    type Future = BoxFuture<HttpResponse, StdError>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest) -> Self::Future {
        let mut connection = self.connection();
        Box::pin(async move {
            poll_fn(|task| connection.poll_ready(task)).await?;
            Ok(connection.call(request).await?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn unusable_certificates_are_refused_before_the_first_call() {
        let pem = |ca: &[u8], identity| Tls::Pem { ca: ca.to_vec(), identity };
        for tls in [pem(b"", None), pem(b"no PEM", None), pem(b"", Some((b"certificate".to_vec(), b"key".to_vec())))] {
            let shown = format!("{tls:?}");
            assert!(tls.live().is_err(), "{shown}");
        }
        let files = Tls::Files { ca: "/nowhere/ca.pem".into(), identity: None };
        let Err(Unfit(why)) = files.live() else { panic!("there is no such file") };
        assert!(why.contains("/nowhere/ca.pem"), "{why}");
    }

    #[test]
    fn the_private_key_is_never_shown() {
        let tls = Tls::Pem { ca: b"authority".to_vec(), identity: Some((b"certificate".to_vec(), b"secret".to_vec())) };
        assert_eq!(format!("{tls:?}"), "Pem { identity: true, .. }");
    }
}
