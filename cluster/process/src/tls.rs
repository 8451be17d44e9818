//! Mutual TLS inside of a cluster, and TLS towards clients: rustls with ring, keys and certificates from PEM files.
//!
//! A cluster has a certificate authority of its own. Every process shows a certificate of it, and
//! believes only such. Whoever dials also demands the role and the name of what it expects to
//! answer ([`Expected`]); whoever accepts asks for roles and names call by call
//! ([`access`](crate::access)).
//!
//! The files are looked at now and then ([`Live`]). New ones count from the next connection on, and
//! open connections are judged again by them: one ends if the other end's certificate was
//! withdrawn, is of an authority that is not believed any more, or has ended ([`Watch`]). What is
//! in force is always a whole: certificate, key, authorities and withdrawals of one moment, checked
//! against each other.
//!
//! Sessions are not resumed, at either end: a resumed one would not be judged.

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

use crate::{
    Failure,
    access::{AccessLog, Denial, Identity},
};
use calling::Calling;
pub use coppice_proto::{live::Live, secure::Expected};
pub use watch::Watch;
pub use withdrawn::Withdrawn;

/// The certificates of one process of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The cluster's certificate authority: PEM, one or more certificates.
    pub ca: PathBuf,
    /// This process's certificate, with those between it and the authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The list of certificates that are believed no more ([`Withdrawn`]); none, if nothing is
    /// said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn: Option<PathBuf>,
}

/// How a service shows itself to clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerTls {
    /// The certificate, with those between it and its authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// If given, clients must show a certificate of this authority.
    pub client_ca: Option<PathBuf>,
}

/// Whose certificates a listener believes.
#[derive(Clone, Debug, Default)]
pub struct Believed {
    /// The files of the authorities; if there are none, nobody shows a certificate.
    pub authorities: Vec<PathBuf>,
    /// The list of what is believed no more.
    pub withdrawn: Option<PathBuf>,
}

/// What is spoken over TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// gRPC.
    Grpc,
    /// HTTP/1.1.
    Http,
}

impl Protocol {
    fn name(self) -> &'static [u8] {
        match self {
            Self::Grpc => GRPC,
            Self::Http => b"http/1.1",
        }
    }
}

/// What a listener needs. Clones are the same.
#[derive(Clone, Debug)]
pub struct Acceptor {
    live: Live<Accepting>,
    log: AccessLog,
}

/// What is in force at a listener.
#[derive(Debug)]
struct Accepting {
    config: Arc<ServerConfig>,
    /// `None`: nobody shows a certificate.
    calling: Option<Arc<Calling>>,
}

impl Acceptor {
    /// Shows a client who we are, and sees who it is if that is asked for. The second part ends
    /// when the client is believed no more.
    ///
    /// # Errors
    /// If the client does not believe us, or we do not believe it.
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

    /// Takes note of a connection that was not accepted.
    pub(crate) fn refused(&self, address: SocketAddr, why: &str) {
        self.log.record(&Denial { why, method: None, address: Some(address), identity: None });
    }
}

/// The certificates that the other end of a connection has shown.
fn shown_by<IO>(stream: &TlsStream<IO>) -> Vec<CertificateDer<'static>> {
    stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec()
}

/// What connections to other processes need. Clones are the same.
#[derive(Clone, Debug)]
pub struct Connector {
    live: Live<Dialing>,
    /// Roles and names are asked for.
    demanding: bool,
}

/// What is in force for connections to other processes.
#[derive(Clone, Debug)]
struct Dialing {
    client: secure::Client,
    withdrawn: Arc<Withdrawn>,
}

/// Judges what answers: as expected, and not withdrawn.
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
    /// Sees that the other end is what is expected, at `host`, and shows it who we are. The second
    /// part ends when the other end is believed no more.
    ///
    /// # Errors
    /// If we do not believe it, or it does not believe us or speaks something else than gRPC.
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
    /// For a listener that takes calls only from processes of the cluster. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If a file cannot be read or holds something else.
    pub fn acceptor(&self, log: AccessLog) -> Result<Acceptor, Failure> {
        let believed = Believed { authorities: vec![self.ca.clone()], withdrawn: self.withdrawn.clone() };
        self.server().acceptor(Protocol::Grpc, believed, log)
    }

    /// How a service shows itself by the same certificate.
    #[must_use]
    pub fn server(&self) -> ServerTls {
        ServerTls { cert: self.cert.clone(), key: self.key.clone(), client_ca: None }
    }

    /// Who this process is by its certificate.
    ///
    /// # Errors
    /// If the file cannot be read or holds no certificate.
    pub fn identity(&self) -> Result<Identity, Failure> {
        let contents = std::fs::read(&self.cert).map_err(|error| Failure::file(&self.cert, &error))?;
        Ok(Identity::of(&certificates(&self.cert, &contents)?[0]))
    }

    /// For connections to other processes of the cluster, by a process that is `own`; one that is
    /// [`Expected::Anybody`] asks nobody for roles and names. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// If a file cannot be read or holds something else, or the certificate is another process's.
    pub fn client(&self, own: Expected) -> Result<Connector, Failure> {
        let demanding = own != Expected::Anybody;
        let files = self.clone();
        let paths = [&self.ca, &self.cert, &self.key].into_iter().chain(&self.withdrawn).cloned().collect();
        let live = Live::keep(paths, move |contents| files.dialing(&own, contents))?;
        Ok(Connector { live, demanding })
    }

    /// `contents` are those of `ca`, `cert`, `key`, and `withdrawn` if there is such a list.
    fn dialing(&self, own: &Expected, contents: &[Vec<u8>]) -> Result<Dialing, Failure> {
        let [ca, cert, key, list @ ..] = contents else { unreachable!("three files are kept at least") };
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
    /// For a listener, where clients must show a certificate that is believed, or none if there is
    /// no authority. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If a file cannot be read or holds something else.
    pub fn acceptor(&self, protocol: Protocol, believed: Believed, log: AccessLog) -> Result<Acceptor, Failure> {
        let files = self.clone();
        let theirs = believed.authorities.iter().chain(&believed.withdrawn);
        let paths: Vec<PathBuf> = [&self.cert, &self.key].into_iter().chain(theirs).cloned().collect();
        let live = Live::keep(paths, move |contents| files.accepting(protocol, &believed, contents))?;
        Ok(Acceptor { live, log })
    }

    /// `contents` are those of `cert`, `key`, the authorities, and the list of what was withdrawn
    /// if there is one.
    fn accepting(
        &self,
        protocol: Protocol,
        Believed { authorities, withdrawn: list }: &Believed,
        contents: &[Vec<u8>],
    ) -> Result<Accepting, Failure> {
        let [cert, key, theirs @ ..] = contents else { unreachable!("two files are kept at least") };
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
        config.alpn_protocols = vec![protocol.name().to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Accepting { config: Arc::new(config), calling })
    }
}

/// The list in a file, if there is one.
fn withdrawn(path: Option<&Path>, list: Option<&Vec<u8>>) -> Result<Withdrawn, Failure> {
    let (Some(path), Some(list)) = (path, list) else { return Ok(Withdrawn::default()) };
    Withdrawn::parse(list).map_err(|why| Failure::usage(format!("{}: {why}", path.display())))
}

/// Sees that a private key is that of a certificate.
///
/// # Errors
/// If it is not.
pub(crate) fn check_pair((cert, cert_pem): (&Path, &[u8]), (key, key_pem): (&Path, &[u8])) -> Result<(), Failure> {
    let (chain, private) = (certificates(cert, cert_pem)?, private_key(key, key_pem)?);
    let pair = CertifiedKey::from_der(chain, private, &rustls::crypto::ring::default_provider());
    pair.map(drop).map_err(|error| unfit(cert, key, &error))
}

fn unfit(cert: &Path, key: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::usage(format!("{} and {}: {error}", cert.display(), key.display()))
}

/// The certificates in a file's content.
///
/// # Errors
/// If there is none.
pub(crate) fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Failure> {
    secure::certificates(pem).map_err(in_file(path))
}

/// The private key in a file's content.
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
