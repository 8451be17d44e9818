//! The forest of one shard, as `docs/verification.md` section 6 describes it.

use alloc::{collections::BTreeMap, vec, vec::Vec};
use core::fmt;

use coppice_types::{Digest, Params, Stamp};

use super::tree::{Change, Record, Tree};
use crate::{
    hash::{self, RecordBody},
    rules::{self, Filter},
};

/// The reason why a Prepare does not apply to a state, or gathered parts of trees do not form a
/// state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The inputs of a merge are not two or more neighbouring frozen trees.
    Inputs,
    /// A merge gives a tree other than the recorded one.
    Output {
        /// The recorded digest.
        recorded: Digest,
        /// The digest by the rules.
        computed: Digest,
    },
    /// Parts of trees are not of one forest, or do not make a whole one; says why.
    Parts(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inputs => f.write_str("the merged trees are not neighbouring frozen trees"),
            Self::Parts(what) => write!(f, "the parts of the trees are not those of one whole forest: {what}"),
            Self::Output { recorded, computed } => write!(f, "a merge gives {computed}, recorded is {recorded}"),
        }
    }
}

impl core::error::Error for Error {}

/// A frozen tree and the filter over its keys.
#[derive(Clone, Debug)]
pub struct Frozen {
    /// The tree.
    pub tree: Tree,
    /// Filter over the keys of all records, tombstones included.
    pub filter: Filter,
}

impl Frozen {
    /// Freezes a tree.
    #[must_use]
    pub fn new(params: &Params, tree: Tree) -> Self {
        let records = tree.records();
        let mut filter = Filter::new(params, records.len() as u64);
        records.iter().for_each(|record| filter.insert(&record.key));
        Self { tree, filter }
    }
}

/// The state of one shard.
#[derive(Clone, Debug)]
pub struct Forest {
    /// The genesis parameters.
    pub params: Params,
    /// The tree that takes writes.
    pub active: Tree,
    /// The frozen trees, youngest first.
    pub frozen: Vec<Frozen>,
}

impl Forest {
    /// The state of a new shard.
    #[must_use]
    pub fn new(params: &Params) -> Self {
        Self { params: params.clone(), active: Tree::empty(), frozen: Vec::new() }
    }

    /// All trees, youngest first.
    #[must_use]
    pub fn trees(&self) -> Vec<&Tree> {
        core::iter::once(&self.active).chain(self.frozen.iter().map(|frozen| &frozen.tree)).collect()
    }

    /// The shard digest.
    #[must_use]
    pub fn digest(&self) -> Digest {
        hash::shard_digest(&self.trees().iter().map(|tree| tree.digest()).collect::<Vec<_>>())
    }

    /// Applies the Prepare of the version `stamp`: the merges, then a freeze if one is due, then
    /// the operations of the version's batches in their order.
    ///
    /// # Errors
    /// If a merge does not apply to the state, which is then unchanged.
    pub fn prepare<'a>(
        &mut self,
        stamp: Stamp,
        merges: &[(Vec<Digest>, Digest)],
        operations: impl IntoIterator<Item = (&'a [u8], RecordBody)>,
    ) -> Result<(), Error> {
        let mut next = self.clone();
        for (inputs, output) in merges {
            next.install(inputs, *output)?;
        }
        // The last operation on a key wins.
        let folded: BTreeMap<&[u8], RecordBody> = operations.into_iter().collect();
        if !folded.is_empty() && next.active.records().len() as u64 >= u64::from(next.params.capacity) {
            let active = core::mem::replace(&mut next.active, Tree::empty());
            next.frozen.insert(0, Frozen::new(&next.params, active));
        }
        let changes: Vec<_> = folded
            .into_iter()
            .filter_map(|(key, body)| next.change(key, stamp, body).map(|change| (key.to_vec(), change)))
            .collect();
        next.active = next.active.apply(&next.params, &changes);
        *self = next;
        Ok(())
    }

    /// The change that an operation makes to the active tree; `None` for a delete of a key without
    /// a value.
    fn change(&self, key: &[u8], stamp: Stamp, body: RecordBody) -> Option<Change> {
        let record = Record { key: key.to_vec(), stamp, body };
        if matches!(body, RecordBody::Put { .. }) {
            return Some(Change::Set(record));
        }
        self.get(key)?;
        let excluded = self.frozen.iter().all(|frozen| !frozen.filter.admits(key));
        let held = self.active.records().iter().any(|record| record.key == key);
        Some(if held && excluded { Change::Remove } else { Change::Set(record) })
    }

    /// The record of the youngest tree that has the key.
    #[must_use]
    pub fn newest(&self, key: &[u8]) -> Option<Record> {
        self.trees().iter().find_map(|tree| tree.records().into_iter().find(|record| record.key == key).cloned())
    }

    /// The record of a key that has a value; `None` if it has none.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<Record> {
        self.newest(key).filter(|record| record.body != RecordBody::Tombstone)
    }

    /// The records of all keys that have a value, in key order.
    #[must_use]
    pub fn live(&self) -> Vec<Record> {
        let mut records = newest_of(&self.trees());
        records.retain(|_, record| record.body != RecordBody::Tombstone);
        records.into_values().collect()
    }

    /// The output of a merge of `count` frozen trees from index `from` on.
    ///
    /// # Panics
    /// If there are fewer trees.
    #[must_use]
    pub fn merge(&self, from: usize, count: usize) -> Tree {
        let inputs: Vec<&Tree> = self.frozen[from..from + count].iter().map(|frozen| &frozen.tree).collect();
        let older = &self.frozen[from + count..];
        let mut records = newest_of(&inputs);
        records.retain(|key, record| {
            record.body != RecordBody::Tombstone || older.iter().any(|frozen| frozen.filter.admits(key))
        });
        Tree::pack(&self.params, records.into_values().collect())
    }

    /// The merge that the tier rule asks for now, as inputs and output of an event.
    #[must_use]
    pub fn planned_merge(&self) -> Option<(Vec<Digest>, Digest)> {
        let entries: Vec<u64> = self.frozen.iter().map(|frozen| frozen.tree.records().len() as u64).collect();
        let count = rules::plan_merge(&self.params, &entries)?;
        let inputs = self.frozen[..count].iter().map(|frozen| frozen.tree.digest()).collect();
        Some((inputs, self.merge(0, count).digest()))
    }

    fn install(&mut self, inputs: &[Digest], recorded: Digest) -> Result<(), Error> {
        let digests: Vec<Digest> = self.frozen.iter().map(|frozen| frozen.tree.digest()).collect();
        let neighbours = |from: &usize| digests[*from..].starts_with(inputs);
        let from = (0..digests.len()).find(neighbours).filter(|_| inputs.len() >= 2).ok_or(Error::Inputs)?;
        let output = self.merge(from, inputs.len());
        let computed = output.digest();
        if computed != recorded {
            return Err(Error::Output { recorded, computed });
        }
        self.frozen.splice(from..from + inputs.len(), vec![Frozen::new(&self.params, output)]);
        Ok(())
    }
}

/// For each key, the record of the first tree that has it.
fn newest_of(trees: &[&Tree]) -> BTreeMap<Vec<u8>, Record> {
    let mut records = BTreeMap::new();
    for tree in trees {
        for record in tree.records() {
            records.entry(record.key.clone()).or_insert_with(|| record.clone());
        }
    }
    records
}
