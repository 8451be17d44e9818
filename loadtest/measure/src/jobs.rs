//! The jobs of the benchmarks. Each job runs in a process of its own, on a fresh directory, so that
//! memory and written bytes belong to its system.

mod beside;
mod common;
mod compare;
mod growth;
mod history;
mod plateau;
mod proofs;
mod reads;
#[cfg(test)]
mod tests;
mod versions;

pub use self::{
    beside::{beside_merges, beside_moves},
    common::{Outcome, Scale},
    compare::{compare, load, point},
    growth::{growth, growth_ours},
    history::history,
    plateau::{PlateauScale, plateau},
    proofs::{proofs, proofs_by_trees},
    reads::reads_per_get,
    versions::versions,
};
