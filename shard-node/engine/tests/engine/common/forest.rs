//! The oracle for digests and proofs: `coppice_verify::replay`, with cached digests of its trees.

use std::sync::Arc;

use coppice_types::{Digest, Operation, Params, Stamp};
use coppice_verify::{
    hash::{self, RecordBody},
    replay,
};

/// A shard's forest. Clones share their content.
#[derive(Clone, Debug)]
pub struct Forest {
    model: Arc<replay::Forest>,
    digests: Vec<Digest>,
    entries: Vec<u64>,
}

impl Forest {
    pub fn new(params: &Params) -> Self {
        Self::of(replay::Forest::new(params))
    }

    fn of(model: replay::Forest) -> Self {
        let trees = model.trees();
        let entries = trees.iter().map(|tree| tree.records().len() as u64).collect();
        Self { digests: trees.iter().map(|tree| tree.digest()).collect(), entries, model: Arc::new(model) }
    }

    pub fn digest(&self) -> Digest {
        hash::shard_digest(&self.digests)
    }

    /// Entries of the trees, the active one first.
    pub fn entries(&self) -> &[u64] {
        &self.entries
    }

    /// Digests of the frozen trees, youngest first.
    pub fn frozen(&self) -> &[Digest] {
        &self.digests[1..]
    }

    /// Index of these adjacent trees among the frozen ones.
    pub fn find(&self, inputs: &[Digest]) -> Option<usize> {
        let frozen = self.frozen();
        (0..frozen.len()).find(|at| frozen[*at..].starts_with(inputs)).filter(|_| inputs.len() >= 2)
    }

    /// The forest after a merge of these frozen trees.
    pub fn merge(&self, at: usize, count: usize) -> Self {
        let mut model = (*self.model).clone();
        let output = replay::Frozen::new(&model.params, model.merge(at, count));
        model.frozen.splice(at..at + count, [output]);
        Self::of(model)
    }

    /// The forest after these operations, and after a freeze if one is due.
    pub fn write(&self, stamp: Stamp, operations: &[Operation]) -> Self {
        let mut model = (*self.model).clone();
        let bodies = operations.iter().map(|own| (own.key.as_ref(), RecordBody::of(&own.change)));
        model.prepare(stamp, &[], bodies).expect("there are no merges to refuse");
        Self::of(model)
    }

    /// The list of trees that proves keys.
    pub fn prove_keys(&self, keys: &[&[u8]]) -> Vec<u8> {
        self.model.prove_keys(keys).encode()
    }

    /// The list of trees that proves a range.
    pub fn prove_range(&self, low: &[u8], high: Option<&[u8]>) -> Vec<u8> {
        self.model.prove_range(low, high).encode()
    }
}
