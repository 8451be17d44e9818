//! A naive model of a shard's forest, of the whole ledger, and of its prover (`docs/verification.md` sections 4 to 12).
//!
//! Written from the page's text, with plain lists and recursion, nothing cached and nothing shared with the engine but hash functions and
//! [`crate::rules`]: an oracle for tests. It keeps everything in memory and hashes a whole forest for each digest. [`LiveForest`] does the
//! same for the newest state at the cost of what changes, and is the core of an audit.

mod audit;
mod forest;
mod gather;
mod ledger;
mod live;
mod prove;
mod tree;

pub use self::{
    audit::{Audited, Finding, audit},
    forest::{Error, Forest, Frozen},
    gather::Gathered,
    ledger::{Commit, Ledger, Version},
    live::LiveForest,
    prove::part,
    tree::{Change, Node, Record, Tree},
};
