//! Mutual TLS inside of a cluster, and TLS towards clients: rustls with ring, keys and certificates from PEM files.
//!
//! A cluster has a certificate authority of its own. Every process shows a certificate of it, and believes only such; what else a
//! certificate says counts only for the name of the host that is connected to.
//!
//! The files are looked at now and then, and new ones count from the next connection on ([`Live`]); open connections go on under what they began
//! with. What the next connection uses is always a whole: certificate, key and authorities of one moment, checked against each other.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    server::WebPkiClientVerifier,
    sign::CertifiedKey,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::{
    Failure,
    access::{AccessLog, Denial, Identity},
};
pub use coppice_proto::live::Live;

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
            Self::Grpc => b"h2",
            Self::Http => b"http/1.1",
        }
    }
}

/// What a listener needs. Clones are the same.
#[derive(Clone, Debug)]
pub struct Acceptor {
    live: Live<ServerConfig>,
    log: AccessLog,
}

impl Acceptor {
    /// Shows a client who we are, and sees who it is if that is asked for.
    ///
    /// # Errors
    /// If the client does not believe us, or we do not believe it.
    pub async fn accept<IO>(&self, io: IO) -> io::Result<TlsStream<IO>>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        TlsAcceptor::from(self.live.now()).accept(io).await.map(TlsStream::from)
    }

    /// Takes note of a connection that was not accepted.
    pub(crate) fn refused(&self, address: SocketAddr, why: &str) {
        self.log.record(&Denial { why, method: None, address: Some(address), identity: None });
    }
}

/// What connections to other processes need. Clones are the same.
#[derive(Clone, Debug)]
pub struct Connector(Live<ClientConfig>);

impl Connector {
    /// Sees that the other end is `host`, and shows it who we are.
    ///
    /// # Errors
    /// If we do not believe it, or it does not believe us or speaks something else than gRPC.
    pub async fn connect<IO>(&self, host: &str, io: IO) -> io::Result<TlsStream<IO>>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let stream = TlsConnector::from(self.0.now()).connect(name, io).await?;
        if stream.get_ref().1.alpn_protocol() != Some(Protocol::Grpc.name()) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the other end does not speak gRPC"));
        }
        Ok(stream.into())
    }
}

impl Tls {
    /// For a listener that takes calls only from processes of the cluster. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If a file cannot be read or holds something else.
    pub fn acceptor(&self, log: AccessLog) -> Result<Acceptor, Failure> {
        self.server().acceptor(Protocol::Grpc, &[&self.ca], log)
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

    /// For connections to other processes of the cluster. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If a file cannot be read or holds something else.
    pub fn client(&self) -> Result<Connector, Failure> {
        let files = self.clone();
        let paths = vec![self.ca.clone(), self.cert.clone(), self.key.clone()];
        Live::keep(paths, move |contents| files.client_config(contents)).map(Connector)
    }

    /// `contents` are those of `ca`, `cert` and `key`.
    fn client_config(&self, contents: &[Vec<u8>]) -> Result<ClientConfig, Failure> {
        let [ca, cert, key] = contents else { unreachable!("three files are kept") };
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| Failure::usage(format!("tls: {error}")))?;
        let mut config = builder
            .with_root_certificates(roots(&self.ca, ca)?)
            .with_client_auth_cert(certificates(&self.cert, cert)?, private_key(&self.key, key)?)
            .map_err(|error| unfit(&self.cert, &self.key, &error))?;
        config.alpn_protocols = vec![Protocol::Grpc.name().to_vec()];
        Ok(config)
    }
}

impl ServerTls {
    /// For a listener, where clients must show a certificate of one of these authorities, or none if there is no authority. Must be called
    /// within a tokio runtime.
    ///
    /// # Errors
    /// If a file cannot be read or holds something else.
    pub fn acceptor(&self, protocol: Protocol, authorities: &[&PathBuf], log: AccessLog) -> Result<Acceptor, Failure> {
        let files = self.clone();
        let paths: Vec<PathBuf> =
            [&self.cert, &self.key].iter().chain(authorities).map(|path| (*path).clone()).collect();
        let kept = paths.clone();
        let live = Live::keep(paths, move |contents| files.server_config(protocol, &kept[2..], contents))?;
        Ok(Acceptor { live, log })
    }

    /// `contents` are those of `cert`, `key`, and the authorities.
    fn server_config(
        &self,
        protocol: Protocol,
        authorities: &[PathBuf],
        contents: &[Vec<u8>],
    ) -> Result<ServerConfig, Failure> {
        let [cert, key, theirs @ ..] = contents else { unreachable!("two files are kept at least") };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| Failure::usage(format!("tls: {error}")))?;
        let mut believed = RootCertStore::empty();
        for (path, pem) in authorities.iter().zip(theirs) {
            believed.roots.extend(roots(path, pem)?.roots);
        }
        let builder = if authorities.is_empty() {
            builder.with_no_client_auth()
        } else {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(believed), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| Failure::usage(format!("tls: {error}")))?)
        };
        let mut config = builder
            .with_single_cert(certificates(&self.cert, cert)?, private_key(&self.key, key)?)
            .map_err(|error| unfit(&self.cert, &self.key, &error))?;
        config.alpn_protocols = vec![protocol.name().to_vec()];
        Ok(config)
    }
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

fn unfit(cert: &Path, key: &Path, error: &rustls::Error) -> Failure {
    Failure::usage(format!("{} and {}: {error}", cert.display(), key.display()))
}

/// The certificates in a file's content.
///
/// # Errors
/// If there is none.
pub(crate) fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match parsed {
        Ok(list) if list.is_empty() => Err(Failure::usage(format!("{}: holds no PEM certificate", path.display()))),
        Ok(list) => Ok(list),
        Err(error) => Err(Failure::usage(format!("{}: {error}", path.display()))),
    }
}

/// The private key in a file's content.
///
/// # Errors
/// If there is none, or others may read the file.
pub(crate) fn private_key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, Failure> {
    coppice_env::check_secret(path).map_err(|error| Failure::file(path, &error))?;
    let wrong = |error| Failure::usage(format!("{}: no PEM private key: {error}", path.display()));
    PrivateKeyDer::from_pem_slice(pem).map_err(wrong)
}

fn roots(path: &Path, pem: &[u8]) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, pem)? {
        roots.add(certificate).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    }
    Ok(roots)
}

#[cfg(test)]
mod tests;
