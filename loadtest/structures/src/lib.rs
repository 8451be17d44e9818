//! The engine's forest beside other authenticated structures, after the study of structurally invariant and reusable
//! indexes (Yue et al., SIGMOD 2020): what lookups, updates, differences and merges cost, what versions share, how large
//! proofs are. `docs/benchmarks-structures.md` has the definitions, the conditions and a run.
//!
//! Four structures of our own, small and correct rather than tuned, lie over one store of nodes by hash ([`store`],
//! [`structure`]): a Merkle Patricia trie, a Merkle bucket tree, a POS-tree and a multi-version Merkle B+-tree. [`subject`] puts
//! them and the engine behind the same questions, [`workload`] makes the data, [`measure`] asks.

pub mod bplus;
pub mod buckets;
pub mod entries;
pub mod measure;
pub mod pos;
pub mod report;
pub mod store;
pub mod structure;
pub mod subject;
pub mod trie;
pub mod workload;

use coppice_types::Digest;

/// Why a structure can't be read. A lookup in a proof that does not prove ends in one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No node of this name is there.
    #[error("node {0} is missing")]
    Missing(Digest),
    /// A node is none, or not at its place.
    #[error("malformed node: {0}")]
    Malformed(&'static str),
}

/// A result of reading nodes.
pub type Result<T> = std::result::Result<T, Error>;

/// The structures over a store of nodes.
#[must_use]
pub fn structures() -> Vec<Box<dyn structure::Structure>> {
    vec![
        Box::new(trie::PatriciaTrie),
        Box::new(buckets::BucketTree),
        Box::new(pos::PosTree),
        Box::new(bplus::BPlusTree),
    ]
}
