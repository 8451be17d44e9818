//! Rust client of a ledger.
//!
//! A [`Client`] asks a coordinator, and another one when that fails; it tries again, for a bounded time, what may be tried again,
//! and gives every answer a deadline. A [`Session`] numbers its batches, so that a commit whose answer was lost can be sent again and is still
//! applied at most once. A client that was given the ledger's public key believes no read that comes without a proof.
//!
//! Invariants: a batch outside of a session is sent once, unless the server said that it did nothing; no wait and no
//! repetition is without a bound; a status is turned into an [`Error`] in one place.

#![warn(missing_docs)]

pub mod answers;
pub mod audit;
mod bounds;
mod call;
mod client;
mod convert;
mod error;
mod routes;
mod rules;
mod session;
mod stream;
mod tls;
mod trust;

pub use client::{Client, Options, RANGE_BYTES_MAX, Stream};
pub use convert::{batch, header};
pub use error::Error;
pub use session::Session;
pub use stream::{Answer, CommitStream};
pub use tls::{Expected, Role, Tls};
