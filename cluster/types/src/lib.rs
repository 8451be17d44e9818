//! Shared newtypes, limits, codec and error kinds.
//!
//! Everything here is `no_std` with `alloc`; nothing here does I/O, hashing or serialisation by derive.

#![no_std]
#![warn(missing_docs)]

extern crate alloc;

mod batch;
pub mod codec;
mod error;
pub mod escape;
mod ids;
mod params;
mod state;
pub mod text;

pub use batch::{Batch, Change, Condition, Operation, Precondition};
pub use error::{ErrorKind, Reason, causes, chain};
pub use ids::{
    ClusterId, Digest, Epoch, GroupId, ParseStamp, PinId, Sequence, SessionId, ShardId, Stamp, Term, Version,
};
pub use params::{InvalidParams, Params};
pub use state::{
    AdminOperation, MergeName, Position, PrepareId, RaftId, SessionBatch, SessionCommit, ShardState,
};
