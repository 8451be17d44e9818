//! The commit planner: which batches form the next version, and the bytes that follow from it.
//!
//! The planner is pure and synchronous: no I/O, no tasks, no clock. The states of keys and the time
//! are its arguments, so every decision can be repeated, and a test can make any of them. The
//! execution (`crate::write`) carries out the decisions and reports the results back.
//!
//! ```text
//! Request (waiting) ─ form ─► Draft: a verdict for each
//!                               │
//!                             Plan: one prepare for each touched shard
//!                               │ digests
//!                             Commit: the header, and all that the root group is told
//! ```

mod appends;
mod commit;
mod epochs;
mod form;
mod map;
mod refusal;
mod request;
mod session;

#[cfg(test)]
mod tests;

pub use appends::{Part, check_append};
pub use commit::{Admin, Commit, LogTail, Plan, ShardLists, ShardPlan};
pub use epochs::resolve;
pub use form::{
    Blocked, Draft, Ground, KeyState, KeysRead, Overlay, Verdict, form, in_reach, keys_to_read, numbers_to_ask,
    values_to_read,
};
pub use map::{Leaves, state_of};
pub use refusal::Refusal;
pub use request::{Put, Request, Write, check_key, check_open};
pub use session::{Done, NumberStanding, Sessions};
