//! The commit planner: which batches form the next version, and the bytes that follow from it.
//!
//! Pure and synchronous: no I/O, no tasks, no clock. What it needs to know of keys was read before, what the time is was
//! asked before; so every decision can be made again, and a test can make any of them. The execution around it
//! (`crate::exec`) only carries out what is decided here, and comes back with what happened.
//!
//! A version goes through types: waiting [`Request`]s, a [`Draft`] that says what becomes of each, a [`Plan`] with one
//! prepare per touched shard, and a [`Commit`] with the header and all that the root group is told.

mod commit;
mod epochs;
mod form;
mod map;
mod refusal;
mod request;
mod session;

#[cfg(test)]
mod tests;

pub use commit::{Admin, BuiltMerge, Commit, LogTail, Plan, ShardPlan};
pub use epochs::resolve;
pub use form::{Blocked, Draft, Ground, KeyState, Overlay, Verdict, form, in_reach, keys_to_read, numbers_to_ask};
pub use map::{Leaves, ShardState};
pub use refusal::Refusal;
pub use request::{Put, Request, Write, check_key};
pub use session::{Done, Sessions, Standing as SessionStanding};
