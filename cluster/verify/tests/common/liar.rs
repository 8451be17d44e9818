//! A ledger whose journals say anything. It applies operations to the shards that it names,
//! whatever their range, and signs the outcome. All hashes and state roots fit each other.

use std::collections::BTreeMap;

use coppice_types::{Params, SessionId, ShardId, Stamp};
use coppice_verify::{
    hash::{self, RecordBody},
    header::{Body, Header},
    journal::{BatchEntry, Entry, MergeEntry},
    replay::{Audited, Ledger, Version},
    shard_map::{ShardMap, state_root},
};

use super::{cluster, lies::operation_list, params};

pub type Operations = Vec<(Vec<u8>, RecordBody)>;

/// A batch as the journal describes it: its operations by shard.
#[derive(Clone, Debug, Default)]
pub struct Told {
    pub session: Option<(SessionId, u64)>,
    pub shards: Vec<(u32, Operations)>,
}

impl Told {
    pub fn of(shard: u32, keys: &[&[u8]]) -> Self {
        let operations = keys.iter().map(|key| (key.to_vec(), RecordBody::put(b"v"))).collect();
        Self { session: None, shards: vec![(shard, operations)] }
    }
}

pub struct Liar {
    pub ledger: Ledger,
    /// For each entry of the log, the parts that the ledger keeps in addition to the header.
    kept: Vec<Audited>,
}

/// Limits that a few bytes reach.
pub fn limits() -> Params {
    Params { value_bytes_max: 64, batch_bytes_max: 100, message_bytes_max: 1000, journals_kept: true, ..params() }
}

impl Liar {
    /// A ledger of two shards, which meet at `m`.
    pub fn new() -> Self {
        let map = ShardMap::from_splits(&[b"m".to_vec()]).expect("one split");
        let ledger = Ledger::new("ledger.example", cluster(), &[7; 32], &limits(), map);
        Self { ledger, kept: vec![Audited::default()] }
    }

    /// Commits these batches without merges. `edit` may change the journal before it is hashed.
    pub fn commit(&mut self, batches: &[Told], edit: impl FnOnce(&mut Vec<Entry>)) {
        self.commit_merging(batches, false, edit);
    }

    /// [`Liar::commit`] with every merge that is due.
    pub fn commit_merging(&mut self, batches: &[Told], merging: bool, edit: impl FnOnce(&mut Vec<Entry>)) {
        let before = self.ledger.head_version();
        let stamp = Stamp { epoch: self.ledger.head().epoch, version: self.ledger.head().version.next() };
        let (mut forests, mut leaves) = (before.forests.clone(), before.leaves.clone());
        let mut journal: Vec<Entry> = batches.iter().map(entry).collect();
        let mut lists: BTreeMap<ShardId, Vec<Vec<u8>>> = BTreeMap::new();
        for (index, forest) in forests.iter_mut().enumerate() {
            let shard = ShardId(index as u32);
            let told = batches.iter().flat_map(|batch| &batch.shards).filter(|(told, _)| *told == shard.0);
            let told: Vec<&Operations> = told.map(|(_, operations)| operations).collect();
            let merges: Vec<_> = forest.planned_merge().filter(|_| merging).into_iter().collect();
            if told.is_empty() && merges.is_empty() {
                continue;
            }
            let operations = told.iter().flat_map(|list| list.iter()).map(|(key, body)| (key.as_slice(), *body));
            forest.prepare(stamp, &merges, operations).expect("the merges follow");
            (leaves[index].version, leaves[index].digest) = (stamp.version, forest.digest());
            journal
                .extend(merges.into_iter().map(|(inputs, output)| Entry::Merge(MergeEntry { shard, inputs, output })));
            lists.insert(shard, told.iter().map(|list| kept(list)).collect());
        }
        lists.retain(|_, lists| !lists.is_empty());
        edit(&mut journal);
        let header = self.ledger.next_header(stamp, state_root(&leaves), &journal, Body::Commit);
        let bytes = journal.iter().map(Entry::encode).collect();
        self.ledger.versions.insert(stamp, Version { header: header.clone(), forests, leaves, journal });
        self.ledger.append(header);
        self.kept.push(Audited { journal: bytes, lists, ..Audited::default() });
    }

    /// Appends a header of a different kind.
    pub fn append(&mut self, header: impl FnOnce(&Ledger) -> Header) {
        let header = header(&self.ledger);
        self.ledger.append(header);
        self.kept.push(Audited::default());
    }

    /// Lets the model append headers by its own rules.
    pub fn honestly(&mut self, act: impl FnOnce(&mut Ledger)) {
        act(&mut self.ledger);
        self.kept.resize(self.ledger.headers.len(), Audited::default());
    }

    /// The journal and operation lists of the newest version.
    pub fn newest(&mut self) -> &mut Audited {
        self.kept.last_mut().expect("genesis is kept")
    }

    /// Everything that an auditor reads.
    pub fn log(&self) -> Vec<Audited> {
        let headers = self.ledger.headers.iter().map(Header::encode);
        headers.zip(&self.kept).map(|(header, kept)| Audited { header, ..kept.clone() }).collect()
    }
}

fn kept(list: &Operations) -> Vec<u8> {
    let list: Vec<(&[u8], RecordBody)> = list.iter().map(|(key, body)| (key.as_slice(), *body)).collect();
    operation_list(&list)
}

fn entry(batch: &Told) -> Entry {
    let list = |(shard, list): &(u32, Operations)| {
        let list = list.iter().map(|(key, body)| (key.as_slice(), *body));
        (ShardId(*shard), hash::operation_list_hash(list))
    };
    let shards = batch.shards.iter().map(list).collect();
    Entry::Batch(BatchEntry { session: batch.session, metadata: hash::metadata_hash(b""), shards })
}
