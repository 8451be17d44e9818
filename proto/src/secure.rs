//! TLS for the dialing end: an answer is accepted only from the expected role and name.
//!
//! The chain and the host name are verified first, as usual. They only show that the authority
//! knows the holder. An authority of a cluster also signs for readers, and a reader's certificate
//! may name any host. So the certificate must also have the expected role and, inside the cluster,
//! the expected name ([`Expected`]). All of this is part of the handshake: until it has succeeded,
//! no byte of a call is sent, and the caller does not show its certificate.
//!
//! Sessions are not resumed, because a resumed session would skip the verification.

use std::{fmt, io, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::certificate::{Role, Roles, Said};

/// The name of gRPC's protocol in the handshake (ALPN).
pub const GRPC: &[u8] = b"h2";

/// The process that is expected to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Any holder of a certificate of the authority that names the host.
    Anybody,
    /// A process of this role, whatever its name.
    Any(Role),
    /// The process of this role and name.
    Process(Role, String),
}

impl Expected {
    /// Checks whether a certificate is that of the expected process.
    ///
    /// # Errors
    /// Names what was expected and what was shown.
    pub fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Refused> {
        let (role, name) = match self {
            Self::Anybody => return Ok(()),
            Self::Any(role) => (*role, None),
            Self::Process(role, name) => (*role, Some(name)),
        };
        let said = Said::of(certificate).ok_or_else(|| Refused("it cannot be read".to_owned()))?;
        let shown = || format!("the certificate of {:?} (serial {})", said.subject, said.serial);
        if !said.roles.meets(Roles::of(&[role])) {
            let has = if said.roles == Roles::NONE { "none".to_owned() } else { said.roles.to_string() };
            return Err(Refused(format!("a {} is expected; {} has the roles: {has}", role.name(), shown())));
        }
        match name {
            Some(name) if said.name.as_ref() != Some(name) => {
                let has = said.name.as_deref().map_or("names no process".to_owned(), |name| format!("is for {name}"));
                Err(Refused(format!("{} {name} is expected; {} {has}", role.name(), shown())))
            }
            _ => Ok(()),
        }
    }
}

/// The reason why a certificate is refused although the authority signed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        Self::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(refused))))
    }
}

/// Judges a certificate whose chain and host name are verified.
pub trait Judge: fmt::Debug + Send + Sync {
    /// Checks whether the certificate's holder may be at the other end.
    ///
    /// # Errors
    /// Says why it may not.
    fn judge(&self, certificate: &CertificateDer<'_>) -> Result<(), Refused>;
}

impl Judge for Expected {
    fn judge(&self, certificate: &CertificateDer<'_>) -> Result<(), Refused> {
        self.check(certificate)
    }
}

/// Verifies the chain and the host name, then asks a judge.
#[derive(Debug)]
struct Answering {
    chain: Arc<WebPkiServerVerifier>,
    judge: Arc<dyn Judge>,
}

impl ServerCertVerifier for Answering {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        self.judge.judge(end_entity)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// The authorities that a dialing process trusts, and the certificate that it shows.
#[derive(Clone, Debug)]
pub struct Client {
    chain: Arc<WebPkiServerVerifier>,
    /// Its own verifier is never used: each connection gets one with the judge for that connection.
    config: ClientConfig,
}

impl Client {
    /// A client that trusts these authorities, and shows a certificate if there is one.
    ///
    /// # Errors
    /// If there is no authority, or certificate and key don't fit together.
    pub fn new(
        roots: RootCertStore,
        identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    ) -> Result<Self, String> {
        let provider: Arc<CryptoProvider> = Arc::new(rustls::crypto::ring::default_provider());
        let chain = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build();
        let chain = chain.map_err(|error| error.to_string())?;
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| error.to_string())?.with_webpki_verifier(Arc::clone(&chain));
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some((certificates, key)) => {
                builder.with_client_auth_cert(certificates, key).map_err(|error| error.to_string())?
            }
        };
        config.alpn_protocols = vec![GRPC.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Self { chain, config })
    }

    /// Does a handshake. Once the other end has shown a certificate for `host` that the judge
    /// accepts, this end shows its own.
    ///
    /// # Errors
    /// If the other end fails that, does not trust this end, or does not speak gRPC.
    pub async fn connect<IO>(&self, judge: Arc<dyn Judge>, host: &str, io: IO) -> io::Result<TlsStream<IO>>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let mut config = self.config.clone();
        let verifier = Answering { chain: Arc::clone(&self.chain), judge };
        config.dangerous().set_certificate_verifier(Arc::new(verifier));
        let stream = TlsConnector::from(Arc::new(config)).connect(name, io).await?;
        if stream.get_ref().1.alpn_protocol() != Some(GRPC) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the other end does not speak gRPC"));
        }
        Ok(stream)
    }

    /// Judges the certificates of an open connection to `host` again, by their chain and the time.
    ///
    /// # Errors
    /// Says why they are no longer trusted.
    pub fn verify(
        &self,
        judge: &dyn Judge,
        host: &str,
        shown: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), String> {
        let (end_entity, intermediates) = shown.split_first().ok_or("it showed no certificate")?;
        let name = ServerName::try_from(host).map_err(|error| error.to_string())?;
        let verified = self.chain.verify_server_cert(end_entity, intermediates, &name, &[], now);
        verified.map_err(|error| error.to_string())?;
        judge.judge(end_entity).map_err(|refused| refused.to_string())
    }
}

/// The authorities in PEM.
///
/// # Errors
/// If there is none, or one is not an authority.
pub fn roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    Ok(roots)
}

/// The certificates in PEM.
///
/// # Errors
/// If there is none.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match parsed {
        Ok(list) if list.is_empty() => Err("holds no PEM certificate".to_owned()),
        Ok(list) => Ok(list),
        Err(error) => Err(error.to_string()),
    }
}

/// The private key in PEM.
///
/// # Errors
/// If there is none.
pub fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| format!("no PEM private key: {error}"))
}
