//! Rust client of a Coppice ledger.
//!
//! A [`Client`] calls the coordinators of one ledger. If one fails, it asks another. It repeats
//! what may be repeated, for a bounded time, and every answer has a deadline. A [`Session`] numbers
//! its batches, so a commit whose answer was lost can be sent again and is still applied at most
//! once. A client that knows the ledger's public key ([`Options::trust`]) accepts no commit and no
//! read of keys or ranges without a proof.
//!
//! ```no_run
//! use coppice_client::{Client, Options};
//! use coppice_proto::v1;
//! use coppice_types::{Batch, Change, Operation, SessionId};
//!
//! # async fn first_program() -> Result<(), coppice_client::Error> {
//! // `coppice dev` prints this endpoint.
//! let client = Client::new(Options::new("http://127.0.0.1:7401"))?;
//!
//! // Use a random id, and keep it to find the session again after a restart.
//! let mut session = client.open_session(SessionId([7; 16])).await?;
//! let put = Operation { key: "alice".into(), change: Change::Put("100".into()) };
//! let batch = Batch { operations: vec![put], ..Batch::default() };
//! let committed = session.commit(coppice_client::batch(batch), false).await?;
//! println!("committed as {:?}", committed.stamp);
//!
//! let request = v1::GetRequest { key: "alice".into(), read: None };
//! if let Some(record) = client.get(request).await?.record {
//!     println!("found: {}, {} bytes", record.found, record.value.len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Invariants: a batch outside of a session is sent again only if the server said that it did
//! nothing, or was never reached. Every wait and every repetition has a bound. One place turns a
//! status into an [`Error`].

#![warn(missing_docs)]

pub mod answers;
pub mod audit;
mod bounds;
mod call;
mod client;
mod commit_stream;
mod convert;
mod endpoint;
mod error;
#[cfg(test)]
mod fake;
pub mod ledgers;
#[cfg(feature = "model")]
pub mod model;
mod options;
mod queries;
mod routes;
mod rules;
mod session;
pub mod state;
mod stream;
mod times;
mod tls;
mod trust;
mod witness;

pub use bounds::RANGE_BYTES_MAX;
pub use client::Client;
pub use commit_stream::{Answer, CommitStream};
pub use convert::header;
pub use coppice_proto::convert::to_batch as batch;
pub use error::Error;
pub use options::Options;
pub use queries::{KeyState, QueryAnswer, QueryFailure, QueryPart, QueryStream};
pub use session::Session;
pub use stream::Stream;
pub use tls::{Expected, Role, Tls};
