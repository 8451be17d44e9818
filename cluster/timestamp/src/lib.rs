//! Time stamps of RFC 3161, by authorities that have no part in a ledger: requests for them, the
//! judgement on them, and what they say of the entries of a log.
//!
//! ```no_run
//! use coppice_timestamp::{Authority, Nonce, Request, Token, verify};
//!
//! # fn post(_: &str, _: &[u8]) -> Vec<u8> { Vec::new() }
//! # fn random() -> [u8; 16] { [0; 16] }
//! # fn stamp(imprint: [u8; 32], roots: &[u8]) -> Result<(), coppice_timestamp::Error> {
//! let request = Request::new(imprint, Nonce::new(&random())?);
//! // By POST, with the media type `QUERY_MEDIA_TYPE`.
//! let answer = post("https://tsa.example", &request.to_der());
//! let token = Token::parse(&answer)?;
//! let stamped = verify(&token, &Authority::new(roots)?, &imprint, Some(request.nonce()))?;
//! println!("{} by at most {}", stamped.time, stamped.accuracy);
//! # Ok(())
//! # }
//! ```
//!
//! A token is CMS signed data over a `TSTInfo`. [`verify`] demands all of these; each has an
//! [`Error`] of its own:
//!
//! 1. The authority granted it ([`Token::parse`]).
//! 2. `TSTInfo` has version 1, the imprint in question by SHA-256, the request's nonce, an allowed
//!    policy, no critical extension, and an accuracy unless one is configured.
//! 3. There is one signer. The signed attributes have, once each, the type of the content, the
//!    digest of the content, and the name of the signer's certificate by a hash of the SHA-2 family
//!    (`ESSCertIDv2`). The name by SHA-1 (`ESSCertID`) alone is refused.
//! 4. The certificate with that hash agrees with all else that names the signer.
//! 5. The certificate's key made the signature over the signed attributes.
//! 6. The certificate's extended key usage is critical and `timeStamping` alone; its key usage, if
//!    it has one, is for signatures alone.
//! 7. Certificates that are all valid at the stamped time lead from it to a root of the given
//!    authority. The system's store of roots plays no part.
//!
//! Signatures of tokens and certificates may be RSA with PKCS #1 v1.5, with keys of 2048 bits or
//! more and SHA-256, SHA-384 or SHA-512, and ECDSA over P-256 and P-384 with SHA-256 or SHA-384.
//! Ed25519 is refused, since `openssl ts -verify` refuses it too; so are RSA-PSS, P-521 and SHA-1.
//! Tokens are DER throughout, and name their signer by issuer and serial number. Certificates need
//! X.509 version 3; a signer whose own certificate is the root is refused, since it may not issue
//! certificates.
//!
//! [`interval`] says when an entry of a log was sequenced, from stamps over the log by several
//! authorities. Certificates name authorities, so [`Authority::distinct`] refuses those with a
//! common root.
//!
//! The crate has no clock, no randomness and no network: the caller provides them. Bytes of any
//! kind give an error, never a panic.

mod authority;
mod der;
mod digest;
mod error;
mod info;
pub mod interval;
mod moment;
mod oids;
mod request;
mod token;

pub use authority::{Authority, Stamped, claimed_signer, verify};
pub use const_oid::ObjectIdentifier;
pub use error::{Error, Refusal};
pub use info::Info;
pub use moment::{Accuracy, Moment};
pub use request::{NONCE_BYTES_MAX, NONCE_BYTES_MIN, Nonce, Request};
pub use token::Token;

/// The bytes of an imprint: a SHA-256.
pub const IMPRINT_BYTES: usize = 32;
/// Most bytes of a token, or of the response that holds it.
pub const TOKEN_BYTES_MAX: usize = 16 * 1024;
/// The media type of a request over HTTP.
pub const QUERY_MEDIA_TYPE: &str = "application/timestamp-query";
/// The media type of a response over HTTP.
pub const REPLY_MEDIA_TYPE: &str = "application/timestamp-reply";
