//! The object identifiers of time stamps.

use const_oid::ObjectIdentifier;

const fn oid(text: &str) -> ObjectIdentifier {
    ObjectIdentifier::new_unwrap(text)
}

pub(crate) const SIGNED_DATA: ObjectIdentifier = oid("1.2.840.113549.1.7.2");
pub(crate) const TST_INFO: ObjectIdentifier = oid("1.2.840.113549.1.9.16.1.4");

pub(crate) const CONTENT_TYPE: ObjectIdentifier = oid("1.2.840.113549.1.9.3");
pub(crate) const MESSAGE_DIGEST: ObjectIdentifier = oid("1.2.840.113549.1.9.4");
pub(crate) const SIGNING_CERTIFICATE_V2: ObjectIdentifier = oid("1.2.840.113549.1.9.16.2.47");

pub(crate) const SHA_256: ObjectIdentifier = oid("2.16.840.1.101.3.4.2.1");
pub(crate) const SHA_384: ObjectIdentifier = oid("2.16.840.1.101.3.4.2.2");
pub(crate) const SHA_512: ObjectIdentifier = oid("2.16.840.1.101.3.4.2.3");

pub(crate) const RSA: ObjectIdentifier = oid("1.2.840.113549.1.1.1");
pub(crate) const RSA_SHA_256: ObjectIdentifier = oid("1.2.840.113549.1.1.11");
pub(crate) const RSA_SHA_384: ObjectIdentifier = oid("1.2.840.113549.1.1.12");
pub(crate) const RSA_SHA_512: ObjectIdentifier = oid("1.2.840.113549.1.1.13");
pub(crate) const ECDSA_SHA_256: ObjectIdentifier = oid("1.2.840.10045.4.3.2");
pub(crate) const ECDSA_SHA_384: ObjectIdentifier = oid("1.2.840.10045.4.3.3");

/// The purpose `timeStamping`, as bytes of the identifier.
pub(crate) const TIME_STAMPING: ObjectIdentifier = oid("1.3.6.1.5.5.7.3.8");
