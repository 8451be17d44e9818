//! The leader's work: carries out the decisions of the planner.
//!
//! Durability is up to the groups: a coordinator keeps nothing that it could not learn again. If it
//! stops at any point, it leaves staged versions, which the next leader's adoption drops or keeps,
//! and possibly a header whose append is unfinished.
//!
//! ```text
//! retention   leader ─► fitness
//!                │
//!            sequencer (round, admin, staging, questions)
//!                │
//!         head   shard_links   stages
//!                │
//!             answer
//!                │
//!        command   trace   resources
//! ```

pub mod command;
pub mod leader;
pub mod resources;
pub mod retention;
pub mod trace;

mod answer;
mod fitness;
mod head;
mod sequencer;
mod shard_links;
mod stages;
