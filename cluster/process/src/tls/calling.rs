//! The verifier of a listener's callers: an authority that is trusted must have signed their
//! certificate, and it must not be withdrawn.

use std::sync::Arc;

use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};

use super::withdrawn::Withdrawn;

/// Verifies the chain of a caller, then looks it up in the list of withdrawn certificates.
#[derive(Debug)]
pub(super) struct Calling {
    chain: Arc<dyn ClientCertVerifier>,
    withdrawn: Withdrawn,
}

impl Calling {
    pub(super) fn new(chain: Arc<dyn ClientCertVerifier>, withdrawn: Withdrawn) -> Self {
        Self { chain, withdrawn }
    }

    /// Judges the certificates of an open connection again.
    pub(super) fn verify(&self, shown: &[CertificateDer<'_>], now: UnixTime) -> Result<(), String> {
        let (end_entity, intermediates) = shown.split_first().ok_or("it showed no certificate")?;
        self.verify_client_cert(end_entity, intermediates, now).map(drop).map_err(|error| error.to_string())
    }
}

impl ClientCertVerifier for Calling {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        self.withdrawn.check(end_entity)?;
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
