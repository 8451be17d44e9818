//! A federated member's cosigner of a ledger (`docs/federation.md`).
//!
//! It mirrors the ledger's log, cosigns checkpoints that extend all it has verified (C2SP
//! `tlog-witness`), compares what coordinators and other members show, and makes evidence of a
//! fork. `coppice cosigner` runs it.
//!
//! Layers, each using only those above it:
//!
//! - `error`, `files`, [`lines`]: errors, small files, single signature lines
//! - [`record`], [`mirror`], `fetch`: what is on disk, what comes over HTTP
//! - [`tiles`], [`prove`], [`convict`]: a log in tiles, evidence of two checkpoints and a log
//! - [`config`], [`sightings`]: the folder, what was seen of others
//! - [`witness`]: the state machine, which is synchronous; [`audit`]: the replay of versions
//! - [`report`]: what both say about themselves
//! - [`follow`], then [`server`], then [`mod@run`]: tasks around it, HTTP, the process

pub mod audit;
pub mod config;
pub mod convict;
mod error;
mod fetch;
mod files;
pub mod follow;
pub mod lines;
pub mod mirror;
pub mod prove;
pub mod record;
pub mod report;
pub mod run;
pub mod server;
pub mod sightings;
pub mod tiles;
pub mod witness;

pub use error::Error;
pub use fetch::Web;
