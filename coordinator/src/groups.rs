//! Calls to the groups of replicas, and the checks of their answers.

pub mod attested;
pub mod keys;
pub mod links;
pub mod lists;
pub mod places;
pub mod root;
pub mod root_log;
pub mod shards;
pub mod survey;
pub mod wire;

mod frontier;
mod gathered;
mod voters;
