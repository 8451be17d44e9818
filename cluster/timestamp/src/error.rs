//! The rules that a token can break.

use std::fmt;

use const_oid::ObjectIdentifier;
use coppice_types::escape::escape;

/// Most bytes of a refusal's text that are kept, before they are escaped.
const TEXT_BYTES_MAX: usize = 256;

/// The reason why a token, an authority or a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are no nonce.
    #[error("a nonce of {bytes} bytes, it may have 8 to 32")]
    NonceSize {
        /// The number of bytes.
        bytes: usize,
    },
    /// The certificates configured for an authority, or found in a token, are not readable.
    #[error("certificates are not readable: {problem}")]
    Certificates {
        /// A description of the fault.
        problem: &'static str,
    },
    /// Two authorities have a root in common, so that one token could count for both.
    #[error("authorities {first} and {second} have a root in common")]
    SharedRoot {
        /// The index of one authority.
        first: usize,
        /// The index of the other.
        second: usize,
    },

    /// The token or the response is too long.
    #[error("{bytes} bytes, a time stamp may have 16384")]
    TooLong {
        /// The number of bytes.
        bytes: usize,
    },
    /// The bytes are not the DER of a time stamp.
    #[error("malformed {field}")]
    Malformed {
        /// The field whose bytes or value are not as they must be.
        field: &'static str,
    },
    /// The authority granted no token.
    #[error("the authority refused: {0}")]
    Refused(Refusal),
    /// The authority granted a token, and sent none.
    #[error("a response that grants a token holds none")]
    NoToken,
    /// A token has exactly one signer.
    #[error("{count} signers, a time stamp has one")]
    Signers {
        /// The number of signers.
        count: usize,
    },
    /// A signed attribute is missing, stands twice, or has several values.
    #[error("{count} values of the signed attribute {attribute}, there must be one")]
    Attribute {
        /// The name of the attribute.
        attribute: &'static str,
        /// The number of values.
        count: usize,
    },
    /// The token has an extension that has to be understood, and is not.
    #[error("critical extension {extension}")]
    CriticalExtension {
        /// The identifier of the extension.
        extension: ObjectIdentifier,
    },

    /// The token stamps other bytes.
    #[error("the token stamps another imprint")]
    Imprint,
    /// The token answers another request, or none.
    #[error("the token has another nonce than the request, or none")]
    Nonce,
    /// The authority may not stamp by this policy.
    #[error("policy {policy} is not allowed")]
    Policy {
        /// The token's policy.
        policy: ObjectIdentifier,
    },
    /// The token names no accuracy, and none is configured.
    #[error("the token names no accuracy, and none is configured for its authority")]
    AccuracyUnknown,
    /// The signature is for content of another type.
    #[error("the signed content type is not that of a time stamp")]
    ContentType,
    /// The signed digest is not that of the content.
    #[error("the signed digest is not that of the token's content")]
    MessageDigest,
    /// Neither the authority nor the token has the certificate that the signature names.
    #[error("no certificate has the hash that the token's signature names")]
    SignerUnknown,
    /// The signer's certificate is not the one that the token names by issuer and serial number.
    #[error("the token names another signer than its signature does")]
    SignerIdentity,
    /// The token is signed, or its signer named, by an algorithm that is not supported.
    #[error("algorithm {algorithm} is not supported for {purpose}")]
    Algorithm {
        /// Its identifier.
        algorithm: ObjectIdentifier,
        /// The purpose of the algorithm.
        purpose: &'static str,
    },
    /// The signature is wrong.
    #[error("the signature does not verify")]
    Signature,
    /// The extended key usage of the signer's certificate is missing, not critical, or not time
    /// stamps alone.
    #[error("the signer's certificate is not critically for time stamps, and for them alone")]
    KeyPurpose,
    /// The signer's certificate is not for signatures alone.
    #[error("the key usage of the signer's certificate is not signatures alone")]
    KeyUsage,
    /// The signer's certificate leads to none of the authority's roots, at the stamped time.
    #[error("no chain to the authority's roots that is valid at the stamped time: {problem}")]
    Chain {
        /// The reason why the last attempt failed.
        problem: String,
    },
}

/// An authority's answer if it grants no token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    status: u32,
    failure: Option<u32>,
    text: String,
}

impl Refusal {
    /// A refusal with the texts of the authority, which may be anything.
    pub(crate) fn new(status: u32, failure: Option<u32>, texts: &[&[u8]]) -> Self {
        let mut text = texts.join(&b"; "[..]);
        let is_cut = text.len() > TEXT_BYTES_MAX;
        if is_cut {
            // A character that is cut apart would be shown as damage.
            let mut end = TEXT_BYTES_MAX;
            while end > TEXT_BYTES_MAX - 4 && text[end] & 0xc0 == 0x80 {
                end -= 1;
            }
            text.truncate(end);
        }
        Self { status, failure, text: format!("{}{}", escape(&text), if is_cut { "..." } else { "" }) }
    }

    /// The authority's `PKIStatus`, from 2 on.
    #[must_use]
    pub fn status(&self) -> u32 {
        self.status
    }

    /// The number of the first bit of the authority's `PKIFailureInfo`, if it has one.
    #[must_use]
    pub fn failure(&self) -> Option<u32> {
        self.failure
    }

    /// The authority's text, escaped and cut off after 256 bytes.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            2 => write!(formatter, "rejection")?,
            3 => write!(formatter, "waiting")?,
            4 => write!(formatter, "revocation is imminent")?,
            5 => write!(formatter, "revocation has occurred")?,
            other => write!(formatter, "status {other}")?,
        }
        match self.failure {
            None => {}
            Some(0) => write!(formatter, ", unknown algorithm")?,
            Some(2) => write!(formatter, ", bad request")?,
            Some(5) => write!(formatter, ", wrong format")?,
            Some(14) => write!(formatter, ", no time available")?,
            Some(15) => write!(formatter, ", policy not accepted")?,
            Some(16) => write!(formatter, ", extension not accepted")?,
            Some(17) => write!(formatter, ", information not available")?,
            Some(25) => write!(formatter, ", system failure")?,
            Some(other) => write!(formatter, ", failure {other}")?,
        }
        if self.text.is_empty() { Ok(()) } else { write!(formatter, ": {}", self.text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_authorities_say_is_escaped_and_cut() {
        let refusal = Refusal::new(2, Some(15), &[b"no\x1b[2J", "\u{202e}evil".as_bytes(), b"\xff"]);
        assert_eq!(refusal.to_string(), "rejection, policy not accepted: no\\x1b[2J; \\u{202e}evil; \\xff");
        let long = "\u{e9}".repeat(10_000);
        let refusal = Refusal::new(3, None, &[b"x", long.as_bytes()]);
        assert!(refusal.text().ends_with("\u{e9}...") && refusal.text().len() < 300, "{refusal}");
        assert_eq!(Refusal::new(9, Some(31), &[]).to_string(), "status 9, failure 31");
        // Bytes that continue a character without end are cut too.
        assert!(Refusal::new(2, None, &[&[0x80; 5_000]]).text().len() < 1_100);
    }
}
