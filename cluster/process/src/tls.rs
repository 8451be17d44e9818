//! Mutual TLS inside a cluster, and TLS for clients: rustls with ring, keys and certificates from
//! PEM files.
//!
//! A cluster has a certificate authority of its own. Every process shows a certificate of that
//! authority and accepts no others. The dialing end also demands the role and the name of the
//! process that it expects ([`Expected`]). The accepting end checks roles and names for each call
//! ([`access`](crate::access)).
//!
//! The files are checked for changes at intervals ([`Live`]). New files are used from the next
//! connection on. Open connections are judged again: one ends if its peer's certificate was
//! withdrawn, is of an authority that is no longer trusted, or has expired ([`Watch`]). The files
//! in force always fit together: certificate, key, authorities and withdrawals of one moment are
//! checked against each other.
//!
//! Sessions are not resumed at either end, because a resumed session would not be judged.

mod calling;
mod watch;
mod withdrawn;

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use coppice_proto::secure::{self, GRPC, Judge, Refused};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime},
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::CertifiedKey,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsStream};

use self::calling::Calling;
use crate::{
    Failure,
    access::{AccessLog, Denial},
    identity::Identity,
};

pub use self::{watch::Watch, withdrawn::Withdrawn};
pub use coppice_proto::{live::Live, secure::Expected};

/// The certificates of one process of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The cluster's certificate authority: PEM, one or more certificates.
    pub ca: PathBuf,
    /// This process's certificate, with those between it and the authority.
    pub cert: PathBuf,
    /// The private key of that certificate.
    pub key: PathBuf,
    /// The list of withdrawn certificates ([`Withdrawn`]); `None` if there is no list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn: Option<PathBuf>,
}

/// The certificate that a service shows to clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerTls {
    /// The certificate, with those between it and its authority.
    pub cert: PathBuf,
    /// The private key of that certificate.
    pub key: PathBuf,
    /// If set, clients must show a certificate of this authority.
    pub client_ca: Option<PathBuf>,
}

/// The certificates that a listener trusts.
#[derive(Clone, Debug, Default)]
pub struct Believed {
    /// The files of the authorities. If there are none, clients are not asked for a certificate.
    pub authorities: Vec<PathBuf>,
    /// The list of withdrawn certificates.
    pub withdrawn: Option<PathBuf>,
}

/// The protocols that are spoken over TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Grpc,
    /// gRPC, and HTTP/1.1 beside it.
    Api,
    Http,
}

impl Protocol {
    /// The names of the protocols, the preferred one first.
    fn names(self) -> Vec<Vec<u8>> {
        let http = || b"http/1.1".to_vec();
        match self {
            Self::Grpc => vec![GRPC.to_vec()],
            Self::Api => vec![GRPC.to_vec(), http()],
            Self::Http => vec![http()],
        }
    }
}

/// The TLS state of a listener. Clones share it.
#[derive(Clone, Debug)]
pub struct Acceptor {
    live: Live<Accepting>,
    log: AccessLog,
}

/// The files in force at a listener.
#[derive(Debug)]
struct Accepting {
    config: Arc<ServerConfig>,
    /// `None` if clients are not asked for a certificate.
    calling: Option<Arc<Calling>>,
}

impl Acceptor {
    /// Does the handshake with a client. If clients must show certificates, the returned watch ends
    /// when the client is no longer trusted.
    ///
    /// # Errors
    /// If one end does not trust the other.
    pub async fn accept<IO>(&self, address: Option<SocketAddr>, io: IO) -> io::Result<(TlsStream<IO>, Watch)>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let mut live = self.live.clone();
        let now = live.take();
        let stream = TlsStream::from(TlsAcceptor::from(Arc::clone(&now.config)).accept(io).await?);
        if now.calling.is_none() {
            return Ok((stream, Watch::never()));
        }
        let shown = shown_by(&stream);
        let (judged, log) = (shown.clone(), self.log.clone());
        let watch = Watch::new(live, shown, move |now: &Accepting| {
            let Some(calling) = &now.calling else { return Ok(()) };
            calling.verify(&judged, UnixTime::now()).inspect_err(|why| {
                let identity = judged.first().map(Identity::of);
                log.record(&Denial { why, method: None, address, identity: identity.as_ref() });
            })
        });
        Ok((stream, watch))
    }

    /// Records a connection that was refused.
    pub(crate) fn refused(&self, address: SocketAddr, why: &str) {
        self.log.record(&Denial { why, method: None, address: Some(address), identity: None });
    }
}

/// The certificates that the peer has shown.
fn shown_by<IO>(stream: &TlsStream<IO>) -> Vec<CertificateDer<'static>> {
    stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec()
}

/// The TLS state for connections to other processes. Clones share it.
#[derive(Clone, Debug)]
pub struct Connector {
    live: Live<Dialing>,
    /// Whether the peer must have the expected role and name.
    demanding: bool,
}

/// The files in force for connections to other processes.
#[derive(Clone, Debug)]
struct Dialing {
    client: secure::Client,
    withdrawn: Arc<Withdrawn>,
}

/// Accepts the expected process, unless its certificate was withdrawn.
#[derive(Debug)]
struct Wanted {
    expected: Expected,
    withdrawn: Arc<Withdrawn>,
}

impl Judge for Wanted {
    fn judge(&self, certificate: &CertificateDer<'_>) -> Result<(), Refused> {
        self.expected.check(certificate)?;
        self.withdrawn.check(certificate)
    }
}

impl Connector {
    /// Does the handshake with the expected process at `host`. The returned watch ends when that
    /// process is no longer trusted.
    ///
    /// # Errors
    /// If one end does not trust the other, or the other does not speak gRPC.
    pub async fn connect<IO>(&self, expected: Expected, host: &str, io: IO) -> io::Result<(TlsStream<IO>, Watch)>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let expected = if self.demanding { expected } else { Expected::Anybody };
        let mut live = self.live.clone();
        let now = live.take();
        let wanted = Wanted { expected: expected.clone(), withdrawn: Arc::clone(&now.withdrawn) };
        let stream = TlsStream::from(now.client.connect(Arc::new(wanted), host, io).await?);
        let (shown, host) = (shown_by(&stream), host.to_owned());
        let judged = shown.clone();
        let watch = Watch::new(live, shown, move |now: &Dialing| {
            let wanted = Wanted { expected: expected.clone(), withdrawn: Arc::clone(&now.withdrawn) };
            now.client.verify(&wanted, &host, &judged, UnixTime::now())
        });
        Ok((stream, watch))
    }
}

impl Tls {
    /// The TLS state of a listener that only accepts processes of the cluster. Must be called
    /// within a tokio runtime.
    ///
    /// # Errors
    /// If a file can't be read or has the wrong content.
    pub fn acceptor(&self, log: AccessLog) -> Result<Acceptor, Failure> {
        let believed = Believed { authorities: vec![self.ca.clone()], withdrawn: self.withdrawn.clone() };
        self.server().acceptor(Protocol::Grpc, believed, log)
    }

    /// The same certificate, for a service that shows it to clients.
    #[must_use]
    pub fn server(&self) -> ServerTls {
        ServerTls { cert: self.cert.clone(), key: self.key.clone(), client_ca: None }
    }

    /// The identity in this process's certificate.
    ///
    /// # Errors
    /// If the file can't be read or holds no certificate.
    pub fn identity(&self) -> Result<Identity, Failure> {
        let contents = std::fs::read(&self.cert).map_err(|error| Failure::file(&self.cert, &error))?;
        Ok(Identity::of(&certificates(&self.cert, &contents)?[0]))
    }

    /// The TLS state for connections to other processes of the cluster, made by the process `own`.
    /// If that is [`Expected::Anybody`], roles and names of peers are not checked. Must be called
    /// within a tokio runtime.
    ///
    /// # Errors
    /// If a file can't be read or has the wrong content, or the certificate is for another process.
    pub fn client(&self, own: Expected) -> Result<Connector, Failure> {
        let demanding = own != Expected::Anybody;
        let files = self.clone();
        let paths = [&self.ca, &self.cert, &self.key].into_iter().chain(&self.withdrawn).cloned().collect();
        let live = Live::keep(paths, move |contents| files.dialing(&own, contents))?;
        Ok(Connector { live, demanding })
    }

    /// `contents` are those of `ca`, `cert` and `key`, and of `withdrawn` if there is a list.
    fn dialing(&self, own: &Expected, contents: &[Vec<u8>]) -> Result<Dialing, Failure> {
        let [ca, cert, key, list @ ..] = contents else { unreachable!("at least three files are kept") };
        let shown = certificates(&self.cert, cert)?;
        own.check(&shown[0]).map_err(|error| {
            let failure = Failure::usage(format!("{}: {error}", self.cert.display()));
            failure.hint("Make one with its role and name: scripts/certificates.sh DIR NAME ROLE HOST...")
        })?;
        let client = secure::Client::new(roots(&self.ca, ca)?, Some((shown, private_key(&self.key, key)?)));
        let client = client.map_err(|error| unfit(&self.cert, &self.key, &error))?;
        let withdrawn = withdrawn(self.withdrawn.as_deref(), list.first())?;
        Ok(Dialing { client, withdrawn: Arc::new(withdrawn) })
    }
}

impl ServerTls {
    /// The TLS state of a listener. If there are authorities, clients must show a certificate of
    /// one of them. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If a file can't be read or has the wrong content.
    pub fn acceptor(&self, protocol: Protocol, believed: Believed, log: AccessLog) -> Result<Acceptor, Failure> {
        let files = self.clone();
        let theirs = believed.authorities.iter().chain(&believed.withdrawn);
        let paths: Vec<PathBuf> = [&self.cert, &self.key].into_iter().chain(theirs).cloned().collect();
        let live = Live::keep(paths, move |contents| files.accepting(protocol, &believed, contents))?;
        Ok(Acceptor { live, log })
    }

    /// `contents` are those of `cert`, `key` and the authorities, and of the list of withdrawn
    /// certificates if there is one.
    fn accepting(
        &self,
        protocol: Protocol,
        Believed { authorities, withdrawn: list }: &Believed,
        contents: &[Vec<u8>],
    ) -> Result<Accepting, Failure> {
        let [cert, key, theirs @ ..] = contents else { unreachable!("at least two files are kept") };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let wrong = |error: &dyn std::fmt::Display| Failure::usage(format!("tls: {error}"));
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(&error))?;
        let mut believed = RootCertStore::empty();
        for (path, pem) in authorities.iter().zip(theirs) {
            believed.roots.extend(roots(path, pem)?.roots);
        }
        let withdrawn = withdrawn(list.as_deref(), theirs.get(authorities.len()))?;
        let (builder, calling) = if authorities.is_empty() {
            (builder.with_no_client_auth(), None)
        } else {
            let chain = WebPkiClientVerifier::builder_with_provider(Arc::new(believed), provider).build();
            let calling = Arc::new(Calling::new(chain.map_err(|error| wrong(&error))?, withdrawn));
            let verifier: Arc<dyn ClientCertVerifier> = calling.clone();
            (builder.with_client_cert_verifier(verifier), Some(calling))
        };
        let mut config = builder
            .with_single_cert(certificates(&self.cert, cert)?, private_key(&self.key, key)?)
            .map_err(|error| unfit(&self.cert, &self.key, &error))?;
        config.alpn_protocols = protocol.names();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Accepting { config: Arc::new(config), calling })
    }
}

/// Reads the list, if there is one.
fn withdrawn(path: Option<&Path>, list: Option<&Vec<u8>>) -> Result<Withdrawn, Failure> {
    let (Some(path), Some(list)) = (path, list) else { return Ok(Withdrawn::default()) };
    Withdrawn::parse(list).map_err(|why| Failure::usage(format!("{}: {why}", path.display())))
}

/// Checks that a private key belongs to a certificate.
///
/// # Errors
/// If it does not.
pub(crate) fn check_pair((cert, cert_pem): (&Path, &[u8]), (key, key_pem): (&Path, &[u8])) -> Result<(), Failure> {
    let (chain, private) = (certificates(cert, cert_pem)?, private_key(key, key_pem)?);
    let pair = CertifiedKey::from_der(chain, private, &rustls::crypto::ring::default_provider());
    pair.map(drop).map_err(|error| unfit(cert, key, &error))
}

fn unfit(cert: &Path, key: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::usage(format!("{} and {}: {error}", cert.display(), key.display()))
}

/// The certificates in the content of a file.
///
/// # Errors
/// If there is none.
pub(crate) fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Failure> {
    secure::certificates(pem).map_err(in_file(path))
}

/// The private key in the content of a file.
///
/// # Errors
/// If there is none, or others may read the file.
pub(crate) fn private_key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, Failure> {
    coppice_env::check_secret(path).map_err(|error| Failure::file(path, &error))?;
    secure::private_key(pem).map_err(in_file(path))
}

fn roots(path: &Path, pem: &[u8]) -> Result<RootCertStore, Failure> {
    secure::roots(pem).map_err(in_file(path))
}

fn in_file(path: &Path) -> impl FnOnce(String) -> Failure + '_ {
    move |error| Failure::usage(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests;
