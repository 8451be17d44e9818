//! Carrying out what the planner decides: leadership, prepares, appends, answers.
//!
//! Durability is the groups': a coordinator keeps nothing that it could not learn again. Stopped at any point, it leaves
//! staged versions that the next leader's adoption drops or keeps, and a header that is in the log or is not.

pub mod attested;
pub mod context;
pub mod keys;
pub mod links;
pub mod retention;
pub mod root;
pub mod shards;
pub mod trace;
pub mod wire;

mod admin;
mod answer;
mod fitness;
mod frontier;
mod leader;
mod registry;
mod round;
mod sequencer;
mod stages;
mod standing;
mod voters;

pub use admin::{AdminRequest, Asked, Wanted, hex};
pub use leader::lead;
pub use registry::follow;
pub use sequencer::{Command, Entry, Permit, TASKS_MAX};
pub use stages::{StageCommand, stage_id};
