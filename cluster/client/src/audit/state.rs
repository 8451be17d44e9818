//! The replayed state. Versions arrive in parts, are checked against what the log commits to, and
//! are then applied to the state.

use std::collections::BTreeMap;

use coppice_proto::v1;
use coppice_types::{Digest, ShardId, Version};
use coppice_verify::{
    audit::{self, Author, Broken},
    hash::{self, RecordBody},
    journal::{self, Entry},
    replay::LiveForest,
    shard_map::{Shard, StateLeaf, state_root},
};

use super::{
    book::{Founding, Line, Versions},
    finding::{Difference, Stop},
};
use crate::Error;

/// Forests by shard, with the version of each shard.
pub type Forests = BTreeMap<ShardId, (Version, LiveForest)>;
type Operations = Vec<(Vec<u8>, RecordBody)>;
/// Inputs and output of merges.
type Merges = Vec<(Vec<Digest>, Digest)>;

/// All shards at the version that was replayed last.
pub struct State {
    shards: BTreeMap<ShardId, ShardState>,
    order: Vec<ShardId>,
    pending: Option<Pending>,
}

struct ShardState {
    shard: Shard,
    version: Version,
    forest: LiveForest,
    digest: Digest,
}

/// A version with parts still to come.
struct Pending {
    version: Version,
    /// For each shard, the batches that have an operation list there, in order: the batch's place
    /// in the journal, and the hash of its list.
    wanted: BTreeMap<ShardId, Vec<(usize, Author, Digest)>>,
    /// Bytes of keys and values of each batch, in the lists that have come.
    bytes: BTreeMap<usize, u64>,
    merges: BTreeMap<ShardId, Merges>,
    lists: BTreeMap<ShardId, Operations>,
}

fn differs(line: &Line, shard: Option<ShardId>, what: impl Into<String>) -> Stop {
    Stop::Differs(Difference { stamp: line.stamp, shard, what: what.into() })
}

fn breaks(line: &Line, broken: Broken) -> Stop {
    differs(line, broken.shard, broken.rule)
}

impl State {
    /// The empty state of genesis.
    pub fn new(founding: &Founding) -> Self {
        let shards = founding.shard_map.shards();
        let state = |shard: &Shard| {
            let forest = LiveForest::new(&founding.params);
            (shard.id, ShardState { shard: shard.clone(), version: Version(0), digest: forest.digest(), forest })
        };
        let order = shards.iter().map(|shard| shard.id).collect();
        Self { shards: shards.iter().map(state).collect(), order, pending: None }
    }

    /// The state made of these forests; `None` if they are not the forests of all shards.
    pub fn at(founding: &Founding, mut forests: Forests) -> Option<Self> {
        let mut state = Self::new(founding);
        for (id, shard) in &mut state.shards {
            let (version, forest) = forests.remove(id)?;
            (shard.version, shard.digest, shard.forest) = (version, forest.digest(), forest);
        }
        forests.is_empty().then_some(state)
    }

    /// Number of records in all trees.
    pub fn records(&self) -> u64 {
        self.shards.values().map(|shard| shard.forest.records()).sum()
    }

    /// The state leaves, in key order.
    pub fn leaves(&self) -> Vec<StateLeaf> {
        let leaf = |id: &ShardId| {
            let ShardState { shard, version, digest, .. } = &self.shards[id];
            let (low, high) = (shard.low.clone(), shard.high.clone());
            StateLeaf { shard: shard.id, low, high, version: *version, digest: *digest }
        };
        self.order.iter().map(leaf).collect()
    }

    /// Drops a version whose parts have not all come, because the stream begins again.
    pub fn forget_pending(&mut self) {
        self.pending = None;
    }

    /// Compares the state root with the log's.
    pub fn compare(&self, line: &Line) -> Result<(), Stop> {
        let root = state_root(&self.leaves());
        if root == line.state_root {
            return Ok(());
        }
        Err(differs(line, None, format!("its state root is {}, its batches give {root}", line.state_root)))
    }

    /// Takes the next message of the stream; `next` is the version that must come next. If the
    /// message completes the version, applies it and returns its number.
    pub fn take(
        &mut self,
        versions: &Versions,
        next: Version,
        message: v1::JournalResponse,
    ) -> Result<Option<Version>, Stop> {
        if message.header.is_empty() {
            self.take_lists(versions, message)?;
        } else {
            self.begin(versions, next, message)?;
        }
        let complete = self.pending.as_ref().is_some_and(|pending| pending.wanted.len() == pending.lists.len());
        if !complete {
            return Ok(None);
        }
        let pending = self.pending.take().expect("it is complete");
        self.apply(versions, &pending)?;
        Ok(Some(pending.version))
    }

    fn begin(&mut self, versions: &Versions, next: Version, message: v1::JournalResponse) -> Result<(), Stop> {
        if self.pending.is_some() {
            return Err(Error::Malformed("a version with a missing part").into());
        }
        let (header, entries) = versions.entries(next, &message)?;
        let version = header.stamp.version;
        let line = versions.line(version);
        audit::check_entries(&versions.founding.params, &versions.founding.shard_map, &entries)
            .map_err(|broken| breaks(line, broken))?;
        let mut pending = Pending {
            version,
            wanted: BTreeMap::new(),
            bytes: BTreeMap::new(),
            merges: BTreeMap::new(),
            lists: BTreeMap::new(),
        };
        for (at, entry) in entries.into_iter().enumerate() {
            let author = Author::of(&entry);
            for (shard, hash) in entry.writes().into_iter().flatten() {
                pending.wanted.entry(*shard).or_default().push((at, author, *hash));
            }
            if let Entry::Merge(merge) = entry {
                pending.merges.entry(merge.shard).or_default().push((merge.inputs, merge.output));
            }
        }
        self.pending = Some(pending);
        Ok(())
    }

    fn take_lists(&mut self, versions: &Versions, message: v1::JournalResponse) -> Result<(), Stop> {
        let shard = ShardId(message.shard);
        let unasked = || Stop::Failed(Error::Malformed("operation lists that no version waits for"));
        let pending = self.pending.as_mut().ok_or_else(unasked)?;
        if pending.lists.contains_key(&shard) {
            return Err(unasked());
        }
        let wanted = pending.wanted.get(&shard).ok_or_else(unasked)?;
        let line = versions.line(pending.version);
        if message.lists.len() != wanted.len() {
            let what = format!("it keeps {} operation lists, not {}", message.lists.len(), wanted.len());
            return Err(differs(line, Some(shard), what));
        }
        let mut operations = Operations::new();
        for (at, (list, (entry, author, wanted))) in message.lists.iter().zip(wanted).enumerate() {
            let list = journal::decode_operations(list);
            let list = list.map_err(|_| differs(line, Some(shard), format!("operation list {at} is malformed")))?;
            let found = hash::operation_list_hash(list.iter().map(|(key, body)| (key.as_slice(), *body)));
            if found != *wanted {
                return Err(differs(
                    line,
                    Some(shard),
                    format!("operation list {at} is not the one that was committed"),
                ));
            }
            let bytes =
                audit::check_operations(&versions.founding.params, &versions.founding.shard_map, shard, *author, &list);
            let bytes = bytes.map_err(|broken| breaks(line, broken))?;
            if *author == Author::Batch {
                let sum = pending.bytes.entry(*entry).or_default();
                *sum += bytes;
                audit::check_batch(&versions.founding.params, *sum).map_err(|broken| breaks(line, broken))?;
            }
            operations.extend(list);
        }
        pending.lists.insert(shard, operations);
        Ok(())
    }

    fn apply(&mut self, versions: &Versions, pending: &Pending) -> Result<(), Stop> {
        let line = versions.line(pending.version);
        let none = (Merges::new(), Operations::new());
        for id in &self.order {
            let merges = pending.merges.get(id);
            let operations = pending.lists.get(id);
            if merges.is_none() && operations.is_none() {
                continue;
            }
            let state = self.shards.get_mut(id).expect("the order is of the shards");
            let operations = operations.unwrap_or(&none.1).iter().map(|(key, body)| (key.as_slice(), *body));
            let done = state.forest.prepare(line.stamp, merges.unwrap_or(&none.0), operations);
            done.map_err(|error| differs(line, Some(*id), error.to_string()))?;
            let trees = audit::check_trees(&versions.founding.params, *id, state.forest.trees());
            trees.map_err(|broken| breaks(line, broken))?;
            state.version = line.stamp.version;
            state.digest = state.forest.digest();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use coppice_types::{Change, ClusterId, Operation, Params};
    use coppice_verify::{
        replay::{Commit, Ledger},
        shard_map::ShardMap,
    };

    use super::{super::book::Book, *};

    #[test]
    fn a_stream_of_journals_has_every_version_once() {
        let map = ShardMap::from_splits(&[]).expect("no split");
        let mut ledger = Ledger::new("model", ClusterId([7; 16]), &[1; 32], &Params::default(), map);
        let operations = vec![Operation { key: b"a".to_vec().into(), change: Change::Put(b"1".to_vec().into()) }];
        let commit = Commit { operations, ..Commit::default() };
        let write = |ledger: &mut Ledger| ledger.commit(std::slice::from_ref(&commit)).expect("a batch");
        let stamps: Vec<_> = (0..3).map(|_| write(&mut ledger)).collect();
        ledger.prune(Version(1));
        ledger.roll_back(Version(2));
        let again = write(&mut ledger);
        let book = Book::of(&ledger.headers, ledger.key.verifier()).expect("the model follows the rules");
        let begin = |next: u64, stamp| {
            let version = &ledger.versions[&stamp];
            let header = version.header.encode().into();
            let entries = version.journal.iter().map(|entry| entry.encode().into()).collect();
            let message = v1::JournalResponse { header, entries, ..v1::JournalResponse::default() };
            State::new(&book.founding).take(&book, Version(next), message)
        };
        for (next, stamp) in [(1, stamps[0]), (2, stamps[1]), (3, again)] {
            assert!(matches!(begin(next, stamp), Ok(None)), "{stamp} waits for its lists");
        }
        let genesis = ledger.headers[0].stamp;
        for (next, stamp) in [(1, genesis), (1, stamps[1]), (2, again), (2, stamps[0]), (3, stamps[1])] {
            assert!(matches!(begin(next, stamp), Err(Stop::Failed(Error::Malformed(_)))), "{stamp} instead of {next}");
        }
        assert!(matches!(begin(3, stamps[2]), Err(Stop::Failed(Error::Untrusted(_)))), "it was rolled back");
    }
}
