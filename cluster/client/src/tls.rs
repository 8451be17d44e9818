//! Whom a client believes, and who it says it is: from memory, or from files that are read anew when they change.
//!
//! Once the files hold something else that is a whole, the next call goes over a connection of its own; calls and streams that are under way
//! end on the one that they have.
//!
//! A server must be a coordinator by its certificate, unless the options say otherwise: the
//! authority of a cluster also signs for readers, and a reader's certificate may name any host. It
//! is judged before anything is sent.

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

/// How long a connection may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the other end may take to show who it is.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Whom a client believes to be the ledger's server, and who it says it is. All is PEM.
#[derive(Clone)]
pub enum Tls {
    /// As it is.
    Pem {
        /// The authorities that the server's certificate may come from.
        ca: Vec<u8>,
        /// The client's certificate and private key, where the server asks for them.
        identity: Option<(Vec<u8>, Vec<u8>)>,
    },
    /// The same in files. When they change, the next calls use what they hold then.
    Files {
        /// The authorities.
        ca: PathBuf,
        /// The certificate and the private key.
        identity: Option<(PathBuf, PathBuf)>,
    },
}

/// Without the key.
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

/// Authorities, certificates or keys that are none, or do not fit each other.
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
                Ok(Live::fixed(client(&ca, identity)?))
            }
            Self::Files { ca, identity } => {
                let paths =
                    std::iter::once(ca).chain(identity.into_iter().flat_map(|(cert, key)| [cert, key])).collect();
                Live::keep(paths, |contents| match contents {
                    [ca, certificate, key] => client(ca, Some((certificate, key))),
                    [ca] => client(ca, None),
                    _ => unreachable!("one file is kept, or three"),
                })
            }
        }
    }
}

/// What a connection is made with.
fn client(ca: &[u8], identity: Option<(&[u8], &[u8])>) -> Result<secure::Client, Unfit> {
    let identity = identity
        .map(|(certificate, key)| Ok::<_, String>((secure::certificates(certificate)?, secure::private_key(key)?)));
    let made = secure::roots(ca).and_then(|roots| secure::Client::new(roots, identity.transpose()?));
    made.map_err(Unfit)
}

/// A connection that is made with its first call, to what is expected at the endpoint.
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

/// A channel that connects with its first call, and anew with the first call after the settings have changed.
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
    /// The newest connection, and what it was made with.
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
