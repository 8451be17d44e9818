//! Shared newtypes, limits, codec and error kinds.
//!
//! This crate is `no_std` with `alloc`. It does no I/O, no hashing, and no serialisation by derive.
//!
//! Layers, each using only those above it:
//!
//! - `ids`, `error`, `backoff`, `text`
//! - `codec`, `escape`
//! - `batch`, `params`

#![no_std]
#![warn(missing_docs)]

extern crate alloc;

mod backoff;
mod batch;
pub mod codec;
mod error;
pub mod escape;
mod ids;
mod params;
mod state;
pub mod text;

pub use backoff::Backoff;
pub use batch::{Batch, Change, Condition, Operation, Precondition};
pub use bytes::Bytes;
pub use error::{ErrorKind, Reason, causes, chain};
pub use ids::{
    ClusterId, Digest, Epoch, GroupId, LedgerId, MemberId, ParseStamp, PinId, Sequence, SessionId, ShardId, Stamp,
    Term, Version,
};
pub use params::{InvalidParams, Params};
pub use state::{AdminOperation, MergeName, Position, PrepareId, RaftId, SessionBatch, SessionCommit, ShardState};
