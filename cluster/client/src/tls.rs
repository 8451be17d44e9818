//! Whom a client believes, and who it says it is: from memory, or from files that are read anew when they change.
//!
//! Once the files hold something else that is a whole, the next call goes over a connection of its own; calls and streams that are under way
//! end on the one that they have.

use std::{
    fmt,
    future::poll_fn,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use coppice_proto::{
    Channel, HttpRequest, HttpResponse,
    live::{Live, Unreadable},
};
use coppice_types::chain;
use tonic::{
    codegen::{BoxFuture, Service, StdError},
    transport::{self, Certificate, ClientTlsConfig, Endpoint, Identity},
};

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
    pub(crate) fn live(self) -> Result<Live<ClientTlsConfig>, Unfit> {
        match self {
            Self::Pem { ca, identity } => {
                let identity = identity.as_ref().map(|(certificate, key)| (&certificate[..], &key[..]));
                Ok(Live::fixed(config(&ca, identity)?))
            }
            Self::Files { ca, identity } => {
                let paths =
                    std::iter::once(ca).chain(identity.into_iter().flat_map(|(cert, key)| [cert, key])).collect();
                Live::keep(paths, |contents| match contents {
                    [ca, certificate, key] => config(ca, Some((certificate, key))),
                    [ca] => config(ca, None),
                    _ => unreachable!("one file is kept, or three"),
                })
            }
        }
    }
}

/// Settings that a connection can be made with.
fn config(ca: &[u8], identity: Option<(&[u8], &[u8])>) -> Result<ClientTlsConfig, Unfit> {
    let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
    if let Some((certificate, key)) = identity {
        config = config.identity(Identity::from_pem(certificate, key));
    }
    secured(&Endpoint::from_static("https://ledger:1"), &config)?;
    Ok(config)
}

fn secured(endpoint: &Endpoint, config: &ClientTlsConfig) -> Result<Endpoint, Unfit> {
    let endpoint = endpoint.clone().tls_config(config.clone());
    endpoint.map_err(|error| Unfit(chain(&error)))
}

/// A channel that connects with its first call, and anew with the first call after the settings have changed.
pub(crate) fn channel(endpoint: Endpoint, live: Live<ClientTlsConfig>) -> Result<Channel, Unfit> {
    let config = live.now();
    let first = secured(&endpoint, &config)?.connect_lazy();
    Ok(Channel::new(Renewed { endpoint, live, newest: Arc::new(Mutex::new((config, first))) }))
}

#[derive(Clone)]
struct Renewed {
    endpoint: Endpoint,
    live: Live<ClientTlsConfig>,
    /// The newest connection, and what it was made with.
    newest: Arc<Mutex<(Arc<ClientTlsConfig>, transport::Channel)>>,
}

impl Renewed {
    fn connection(&self) -> Result<transport::Channel, Unfit> {
        let config = self.live.now();
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&newest.0, &config) {
            let connection = secured(&self.endpoint, &config)?.connect_lazy();
            *newest = (config, connection);
        }
        Ok(newest.1.clone())
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
        let connection = self.connection();
        Box::pin(async move {
            let mut connection = connection.map_err(|Unfit(message)| message)?;
            poll_fn(|task| connection.poll_ready(task)).await?;
            Ok(connection.call(request).await?)
        })
    }
}
