//! Authorities as they are configured, and the judgement on their tokens.

use std::{num::NonZeroUsize, time::Duration};

use const_oid::ObjectIdentifier;
use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm, TrustAnchor, UnixTime, pem::PemObject};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert, ring as algorithms};
use x509_parser::prelude::{FromDer, ParsedExtension, X509Certificate};

use crate::{
    Accuracy, Error, IMPRINT_BYTES, Moment, Nonce, Token,
    der::{self, Reader, SEQUENCE},
    digest::Digest,
    oids,
    token::{Issued, Signed},
};

/// Most certificates that are configured for an authority.
const CERTIFICATES_MAX: usize = 32;

/// Most characters of the reason that a chain is refused for.
const PROBLEM_CHARS_MAX: usize = 120;

/// The signature algorithms of certificates: RSA with PKCS #1 v1.5 and keys of 2048 bits or more,
/// and ECDSA over P-256 and P-384.
const CHAIN_ALGORITHMS: &[&dyn SignatureVerificationAlgorithm] = &[
    algorithms::ECDSA_P256_SHA256,
    algorithms::ECDSA_P256_SHA384,
    algorithms::ECDSA_P384_SHA256,
    algorithms::ECDSA_P384_SHA384,
    algorithms::RSA_PKCS1_2048_8192_SHA256,
    algorithms::RSA_PKCS1_2048_8192_SHA384,
    algorithms::RSA_PKCS1_2048_8192_SHA512,
];

/// An authority as it is configured.
#[derive(Clone, Debug)]
pub struct Authority {
    roots: Vec<CertificateDer<'static>>,
    certificates: Vec<CertificateDer<'static>>,
    policies: Vec<ObjectIdentifier>,
    accuracy: Option<Accuracy>,
}

/// The verified statement of a token: an authority stamped the imprint at this time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamped {
    /// The stamped time.
    pub time: Moment,
    /// How far the time may be off.
    pub accuracy: Accuracy,
    /// The token's number among the authority's, as the contents of a DER INTEGER.
    pub serial: Vec<u8>,
    /// The policy by which the authority stamped.
    pub policy: ObjectIdentifier,
    /// The SHA-256 of the signer's certificate.
    pub signer: [u8; 32],
}

impl Stamped {
    /// The earliest time at which the imprint can have been stamped.
    #[must_use]
    pub fn earliest(&self) -> Moment {
        self.time.minus(self.accuracy)
    }

    /// The latest time at which the imprint can have been stamped.
    #[must_use]
    pub fn latest(&self) -> Moment {
        self.time.plus(self.accuracy)
    }
}

impl Authority {
    /// An authority whose certificates lead to one of these roots: PEM with other text between its
    /// blocks, or DER, one certificate after the other. Each root is believed without a signature,
    /// within its own period of validity.
    ///
    /// # Errors
    ///
    /// Refuses certificates that are not readable, no roots, and more than 32.
    pub fn new(roots: &[u8]) -> Result<Self, Error> {
        let roots = read_certificates(roots)?;
        Ok(Self { roots, certificates: Vec::new(), policies: Vec::new(), accuracy: None })
    }

    /// An authority that is configured by one file of certificates. Certificates that are their own
    /// issuers are its roots, and the others lie between roots and tokens. If no certificate is its
    /// own issuer, all are roots.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn from_certificates(bytes: &[u8]) -> Result<Self, Error> {
        let all = read_certificates(bytes)?;
        let is_root = |der: &CertificateDer<'_>| {
            read_certificate(der).is_ok_and(|it| it.subject().as_raw() == it.issuer().as_raw())
        };
        let (roots, certificates): (Vec<_>, Vec<_>) = all.into_iter().partition(is_root);
        if roots.is_empty() {
            return Self::new(bytes);
        }
        Ok(Self { roots, certificates, policies: Vec::new(), accuracy: None })
    }

    /// Adds to the token the missing certificates between its signer and the roots, so that others
    /// need nothing but the roots. They lie outside of the signed part.
    ///
    /// # Errors
    /// If the token is too long with them.
    pub fn complete(&self, token: &Token) -> Result<Token, Error> {
        let own = token.certificates();
        let missing = self.certificates.iter().map(|certificate| certificate.as_ref());
        let missing: Vec<&[u8]> = missing.filter(|certificate| !own.contains(certificate)).collect();
        if missing.is_empty() { Ok(token.clone()) } else { token.with_certificates(&missing) }
    }

    /// Adds certificates between the roots and tokens, those of signers included. They need no
    /// trust, and tokens may bring them instead.
    ///
    /// # Errors
    ///
    /// Refuses certificates that are not readable, none, and more than 32 in sum.
    pub fn with_certificates(mut self, certificates: &[u8]) -> Result<Self, Error> {
        self.certificates.extend(read_certificates(certificates)?);
        if self.certificates.len() > CERTIFICATES_MAX {
            return Err(Error::Certificates { problem: "there may be 32" });
        }
        Ok(self)
    }

    /// Takes tokens by these policies alone. Without this call, or with an empty list, any policy
    /// of the authority will do.
    #[must_use]
    pub fn with_policies(self, policies: &[ObjectIdentifier]) -> Self {
        Self { policies: policies.to_vec(), ..self }
    }

    /// Believes no accuracy that is finer than this, and takes it for tokens that name none.
    /// Without this call, tokens that name none are refused.
    ///
    /// Authorities that stamp whole seconds cut fractions off, so less than a second makes little
    /// sense for these.
    #[must_use]
    pub fn with_accuracy(self, accuracy: Accuracy) -> Self {
        Self { accuracy: Some(accuracy), ..self }
    }

    /// The number of authorities that is a majority of `authorities`. At least 1, also if there are
    /// none.
    #[must_use]
    pub const fn majority(authorities: usize) -> NonZeroUsize {
        NonZeroUsize::MIN.saturating_add(authorities / 2)
    }

    /// Refuses authorities that have a root, or its key, in common: one token would count for both
    /// of them.
    ///
    /// # Errors
    ///
    /// [`Error::SharedRoot`] names the first two of these.
    pub fn distinct(authorities: &[Self]) -> Result<(), Error> {
        for (second, authority) in authorities.iter().enumerate() {
            for (first, other) in authorities[..second].iter().enumerate() {
                if other.shares_a_root(authority)? {
                    return Err(Error::SharedRoot { first, second });
                }
            }
        }
        Ok(())
    }

    fn shares_a_root(&self, other: &Self) -> Result<bool, Error> {
        for root in &self.roots {
            for other in &other.roots {
                if anchor(root)?.subject_public_key_info == anchor(other)?.subject_public_key_info {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// Reads PEM or DER.
fn read_certificates(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    const UNREADABLE: Error = Error::Certificates { problem: "neither PEM nor DER" };
    let mut certificates = Vec::new();
    if bytes.windows(11).any(|window| window == b"-----BEGIN ") {
        for certificate in CertificateDer::pem_slice_iter(bytes).take(CERTIFICATES_MAX + 1) {
            certificates.push(certificate.map_err(|_| UNREADABLE)?);
        }
    } else {
        let mut reader = Reader::new(bytes, "certificates");
        while !reader.is_empty() && certificates.len() <= CERTIFICATES_MAX {
            let certificate = reader.element(SEQUENCE).map_err(|_| UNREADABLE)?;
            certificates.push(CertificateDer::from(certificate.whole.to_vec()));
        }
    }
    if certificates.is_empty() {
        return Err(Error::Certificates { problem: "there are none" });
    }
    if certificates.len() > CERTIFICATES_MAX {
        return Err(Error::Certificates { problem: "there may be 32" });
    }
    for certificate in &certificates {
        read_certificate(certificate)?;
        anchor(certificate)?;
    }
    Ok(certificates)
}

fn read_certificate(der: &[u8]) -> Result<X509Certificate<'_>, Error> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        _ => Err(Error::Certificates { problem: "one is not of X.509" }),
    }
}

fn anchor<'a>(root: &'a CertificateDer<'_>) -> Result<TrustAnchor<'a>, Error> {
    anchor_from_trusted_cert(root).map_err(|_| Error::Certificates { problem: "one is not of X.509" })
}

/// Judges a token: that `authority` stamped `imprint`, the SHA-256 of the bytes in question, in
/// answer to a request with this nonce.
///
/// The maker of the request gives its nonce. To a reader of tokens that were kept, the nonce means
/// nothing; it gives `None`.
///
/// The certificates are judged as of the stamped time: whether they are valid now does not matter.
/// Revocation is not looked at.
///
/// # Errors
///
/// The error names the rule that the token breaks.
pub fn verify(
    token: &Token,
    authority: &Authority,
    imprint: &[u8; IMPRINT_BYTES],
    nonce: Option<&Nonce>,
) -> Result<Stamped, Error> {
    let info = token.info();
    if info.imprint.as_ref() != Some(imprint) {
        return Err(Error::Imprint);
    }
    if nonce.is_some_and(|nonce| info.nonce.as_deref() != Some(nonce.integer())) {
        return Err(Error::Nonce);
    }
    if !authority.policies.is_empty() && !authority.policies.contains(&info.policy) {
        return Err(Error::Policy { policy: info.policy });
    }
    let accuracy = match (info.accuracy, authority.accuracy) {
        (Some(named), Some(configured)) => named.or_coarser(configured),
        (Some(accuracy), None) | (None, Some(accuracy)) => accuracy,
        (None, None) => return Err(Error::AccuracyUnknown),
    };

    let signed = token.signed()?;
    if signed.content_type != oids::TST_INFO {
        return Err(Error::ContentType);
    }
    if signed.digest.of(signed.content).as_ref() != signed.message_digest {
        return Err(Error::MessageDigest);
    }
    let signer = find_signer(&signed, authority)?;
    check_signature(&signed, &signer)?;
    check_purpose(&read_certificate(&signer)?)?;
    check_chain(&signed, &signer, authority, info.time)?;
    let mut hash = [0; 32];
    hash.copy_from_slice(Digest::Sha256.of(&signer).as_ref());
    Ok(Stamped { time: info.time, accuracy, serial: info.serial.clone(), policy: info.policy, signer: hash })
}

/// The name of the signer as its certificate in the token has it, unverified. `None` if the token
/// brings no such certificate. The name may hold any character.
#[must_use]
pub fn claimed_signer(token: &Token) -> Option<String> {
    let signed = token.signed().ok()?;
    let named = &signed.certificate;
    let der = signed.certificates.iter().find(|der| named.digest.of(der).as_ref() == named.hash)?;
    Some(read_certificate(der).ok()?.subject().to_string())
}

/// Finds the certificate that the signature names by its hash. Compares the other names that the
/// token has for it.
fn find_signer(signed: &Signed<'_>, authority: &Authority) -> Result<CertificateDer<'static>, Error> {
    let configured = authority.certificates.iter().chain(&authority.roots).map(|certificate| certificate.as_ref());
    let named = &signed.certificate;
    let signer = configured
        .chain(signed.certificates.iter().copied())
        .find(|certificate| named.digest.of(certificate).as_ref() == named.hash)
        .ok_or(Error::SignerUnknown)?;
    let certificate = read_certificate(signer)?;
    let is_named = |by: Issued<'_>| certificate.issuer().as_raw() == by.issuer && certificate.raw_serial() == by.serial;
    if !is_named(signed.signer) || named.issued.is_some_and(|by| !is_named(by)) {
        return Err(Error::SignerIdentity);
    }
    Ok(CertificateDer::from(signer.to_vec()))
}

/// Checks the signature over the signed attributes.
fn check_signature(signed: &Signed<'_>, signer: &CertificateDer<'_>) -> Result<(), Error> {
    let key = EndEntityCert::try_from(signer).map_err(|_| UNREADABLE_SIGNER)?;
    let unsupported = Error::Algorithm { algorithm: signed.algorithm, purpose: "signatures" };
    // The hash function that the signature algorithm names must be that of the digest.
    let candidates: &[&dyn SignatureVerificationAlgorithm] = match (signed.algorithm, signed.digest) {
        (oids::RSA | oids::RSA_SHA_256, Digest::Sha256) => &[algorithms::RSA_PKCS1_2048_8192_SHA256],
        (oids::RSA | oids::RSA_SHA_384, Digest::Sha384) => &[algorithms::RSA_PKCS1_2048_8192_SHA384],
        (oids::RSA | oids::RSA_SHA_512, Digest::Sha512) => &[algorithms::RSA_PKCS1_2048_8192_SHA512],
        (oids::ECDSA_SHA_256, Digest::Sha256) => &[algorithms::ECDSA_P256_SHA256, algorithms::ECDSA_P384_SHA256],
        (oids::ECDSA_SHA_384, Digest::Sha384) => &[algorithms::ECDSA_P384_SHA384, algorithms::ECDSA_P256_SHA384],
        _ => return Err(unsupported),
    };
    for algorithm in candidates {
        match key.verify_signature(*algorithm, &signed.attributes, signed.signature) {
            // The key is of another kind.
            Err(webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_)) => {}
            Ok(()) => return Ok(()),
            Err(_) => return Err(Error::Signature),
        }
    }
    Err(unsupported)
}

const UNREADABLE_SIGNER: Error = Error::Certificates { problem: "the signer's is not of X.509, version 3" };

/// Checks that the signer's certificate is for time stamps, and for nothing else.
fn check_purpose(certificate: &X509Certificate<'_>) -> Result<(), Error> {
    let purposes = der::element(SEQUENCE, &[&der::oid(&oids::TIME_STAMPING)]);
    let mut has_purpose = false;
    for extension in certificate.iter_extensions() {
        match extension.parsed_extension() {
            ParsedExtension::ExtendedKeyUsage(_) => {
                has_purpose = extension.critical && extension.value == purposes;
                if !has_purpose {
                    return Err(Error::KeyPurpose);
                }
            }
            ParsedExtension::KeyUsage(usage) => {
                let signatures = u16::from(usage.digital_signature()) | u16::from(usage.non_repudiation()) << 1;
                if signatures == 0 || usage.flags != signatures {
                    return Err(Error::KeyUsage);
                }
            }
            _ => {}
        }
    }
    if has_purpose { Ok(()) } else { Err(Error::KeyPurpose) }
}

/// Checks that the signer's certificate leads to a root, by certificates that are all valid at the
/// stamped time.
fn check_chain(
    signed: &Signed<'_>,
    signer: &CertificateDer<'_>,
    authority: &Authority,
    time: Moment,
) -> Result<(), Error> {
    let refused = |problem: &str| Error::Chain { problem: problem.to_owned() };
    let seconds = u64::try_from(time.seconds()).map_err(|_| refused("a time before 1970"))?;
    let mut roots = Vec::new();
    for root in &authority.roots {
        if may_issue(root, seconds) {
            roots.push(anchor(root)?);
        }
    }
    if roots.is_empty() {
        return Err(refused("no root is valid"));
    }
    let given = signed.certificates.iter().map(|der| CertificateDer::from(*der));
    let between: Vec<CertificateDer<'_>> = (authority.certificates.iter().cloned())
        .chain(given)
        .filter(|certificate| may_issue(certificate, seconds))
        .collect();
    let key = EndEntityCert::try_from(signer).map_err(|_| UNREADABLE_SIGNER)?;
    let at = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    // The signer's own purpose is judged above, more strictly.
    let purpose = KeyUsage::required_if_present(TIME_STAMPING);
    key.verify_for_usage(CHAIN_ALGORITHMS, &roots, &between, at, purpose, None, None)
        .map(|_| ())
        // Some errors list whole algorithms, byte by byte.
        .map_err(|error| refused(&format!("{error:?}").chars().take(PROBLEM_CHARS_MAX).collect::<String>()))
}

const TIME_STAMPING: &[u8] = oids::TIME_STAMPING.as_bytes();

/// Whether a certificate is valid at a time, and may issue others.
fn may_issue(certificate: &[u8], seconds: u64) -> bool {
    let Ok(certificate) = read_certificate(certificate) else { return false };
    let (from, until) = (certificate.validity().not_before.timestamp(), certificate.validity().not_after.timestamp());
    let is_valid = i64::try_from(seconds).is_ok_and(|at| from <= at && at <= until);
    let signs = certificate.key_usage().is_ok_and(|usage| usage.is_none_or(|usage| usage.value.key_cert_sign()));
    let is_issuer = certificate.basic_constraints().is_ok_and(|basic| basic.is_none_or(|basic| basic.value.ca));
    is_valid && signs && is_issuer
}

#[cfg(test)]
mod tests;
