//! Tokens by real authorities: OpenSSL's, by the command `openssl`, and sigstore's server.
//!
//! Each token that is accepted here must also satisfy `openssl ts -verify`.

mod bench;
mod hostile;
mod openssl;
mod sigstore;
