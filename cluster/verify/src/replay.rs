//! A naive model of a shard's forest, of a whole ledger, and of its prover (`docs/verification.md`
//! sections 4 to 12): an oracle for tests and audits.
//!
//! It is written from the text of the page, with plain lists and recursion. It caches nothing, and
//! shares only hash functions and [`crate::rules`] with the engine. It keeps everything in memory
//! and hashes a whole forest for each digest. [`LiveForest`] follows the same rules for the newest
//! state, and is the core of an audit. The cost of a version depends only on its changes.
//!
//! ```text
//!        journals           ledgers of members
//!          |
//!  audit  ledger           the rules of an audit; a ledger with its log and proofs
//!     |    |   |
//!     |    | prove    live -- gather     a prover; the newest state, also from proofs of ranges
//!     |    |   |       |        |
//!     +--forest--------+--------+        one shard
//!          |
//!         tree                           one tree
//! ```

mod audit;
mod forest;
mod gather;
mod journals;
mod ledger;
mod live;
mod prove;
mod tree;

pub use self::{
    audit::{Audited, Finding, audit},
    forest::{Error, Forest, Frozen},
    gather::Gathered,
    journals::Shown,
    ledger::{Commit, Ledger, Version},
    live::LiveForest,
    prove::part,
    tree::{Change, Node, Record, Tree},
};
