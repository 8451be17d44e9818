//! Mutual TLS inside of a cluster, and TLS towards clients: rustls with ring, keys and certificates from PEM files.
//!
//! A cluster has a certificate authority of its own. Every process shows a certificate of it, and believes only such; what else a
//! certificate says counts only for the name of the host that is connected to. Files are read once, at the start.

use std::{path::Path, path::PathBuf, sync::Arc};

use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use serde::{Deserialize, Serialize};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::Failure;

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

/// What a listener needs.
pub type Acceptor = tokio_rustls::TlsAcceptor;

impl Tls {
    /// For a listener that takes calls only from processes of the cluster.
    ///
    /// # Errors
    /// If a file cannot be read or holds something else.
    pub fn acceptor(&self) -> Result<Acceptor, Failure> {
        self.server().acceptor(Protocol::Grpc)
    }

    /// How a service that takes calls only from processes of the cluster shows itself.
    #[must_use]
    pub fn server(&self) -> ServerTls {
        ServerTls { cert: self.cert.clone(), key: self.key.clone(), client_ca: Some(self.ca.clone()) }
    }

    /// For connections to other processes of the cluster.
    ///
    /// # Errors
    /// If a file cannot be read or holds something else.
    pub fn client(&self) -> Result<ClientTlsConfig, Failure> {
        // Parsed here so that a wrong file is named at the start, and not by the first connection.
        roots(&self.ca)?;
        certificates(&self.cert)?;
        private_key(&self.key)?;
        let identity = Identity::from_pem(read(&self.cert)?, read(&self.key)?);
        Ok(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&self.ca)?)).identity(identity))
    }
}

impl ServerTls {
    /// For a listener.
    ///
    /// # Errors
    /// If a file cannot be read or holds something else.
    pub fn acceptor(&self, protocol: Protocol) -> Result<Acceptor, Failure> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| Failure::usage(format!("tls: {error}")))?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(path)?), provider)
                    .build()
                    .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder
            .with_single_cert(certificates(&self.cert)?, private_key(&self.key)?)
            .map_err(|error| Failure::usage(format!("{} and {}: {error}", self.cert.display(), self.key.display())))?;
        config.alpn_protocols = match protocol {
            Protocol::Grpc => vec![b"h2".to_vec()],
            Protocol::Http => vec![b"http/1.1".to_vec()],
        };
        Ok(Arc::new(config).into())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| {
        Failure::file(path, &error).hint("scripts/certificates.sh makes certificates; docs/OPERATIONS.md says which.")
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    match parsed {
        Ok(list) if list.is_empty() => Err(Failure::usage(format!("{}: holds no PEM certificate", path.display()))),
        Ok(list) => Ok(list),
        Err(error) => Err(Failure::usage(format!("{}: {error}", path.display()))),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Failure> {
    let wrong = |error| Failure::usage(format!("{}: no PEM private key: {error}", path.display()));
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(wrong)
}

fn roots(path: &Path) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    }
    Ok(roots)
}
