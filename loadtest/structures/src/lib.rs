//! Compares the engine's forest with other authenticated structures, after the study of
//! structurally invariant and reusable indexes (Yue et al., SIGMOD 2020): the costs of lookups,
//! updates, differences and merges, the sharing between versions, and the sizes of proofs.
//! `docs/benchmarks.md` has the definitions, the conditions and a run.
//!
//! Four structures, small and correct rather than tuned, are implemented over one store of nodes by
//! hash ([`store`], [`structure`]): a Merkle Patricia trie, a Merkle bucket tree, a POS-tree and a
//! multi-version Merkle B+-tree. [`subject`] is the common interface of these and of the engine,
//! [`workload`] makes the data, [`measure`] takes the measurements.

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

/// The reason why a structure can't be read. A lookup with an invalid proof ends in one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no node with this name.
    #[error("node {0} is missing")]
    Missing(Digest),
    /// The bytes are not a node, or the node does not belong at this place.
    #[error("malformed node: {0}")]
    Malformed(&'static str),
}

pub type Result<T> = std::result::Result<T, Error>;

/// All structures over a store of nodes.
#[must_use]
pub fn structures() -> Vec<Box<dyn structure::Structure>> {
    vec![
        Box::new(trie::PatriciaTrie),
        Box::new(buckets::BucketTree),
        Box::new(pos::PosTree),
        Box::new(bplus::BPlusTree),
    ]
}
