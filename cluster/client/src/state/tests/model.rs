//! A ledger in memory, with true journals. Its headers are chained by hashes, but nothing is
//! signed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard},
};

use bytes::Bytes;
use coppice_proto::v1;
use coppice_types::{ClusterId, Digest, Epoch, Params, Reason, ShardId, Stamp, Version, codec::Writer};
use coppice_verify::{
    hash::{self, RecordBody},
    header::{Body, Header, Prune, Rollback},
    journal::{self, BatchEntry, Entry},
    replay,
    shard_map::ShardMap,
};
use tokio::sync::{Notify, watch};

use super::super::{
    error::Error,
    ledger::{Got, Grown, Head, Headed, Heads, Journal, Ledger, Shows},
};

/// The writes of a version, in words.
pub(super) type Words = BTreeMap<String, Option<String>>;

/// A version that stands.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelVersion {
    pub stamp: Stamp,
    /// The value of each key, and its last change.
    pub values: BTreeMap<String, (String, Stamp)>,
}

/// Holds a read.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// Woken when the read has its answer.
    pub begun: Notify,
    /// Lets the read go.
    pub open: Notify,
}

type Lie<T> = Option<Box<dyn FnMut(&mut T) + Send>>;

/// See the head of this file.
pub(super) struct State {
    /// Version v is at index v.
    pub versions: Vec<ModelVersion>,
    pub epoch: u64,
    pub boundary: u64,
    /// Second names of versions.
    aliases: BTreeSet<Stamp>,
    pub log: Vec<Headed>,
    /// Number of headers that the stream shows.
    pub shown: usize,
    /// Whether the connection is broken.
    pub cut: bool,
    /// Number of open streams, and of those that wait for the next header.
    pub streams: usize,
    pub waiting: usize,
    pub gates: HashMap<String, Arc<Gate>>,
    /// Number of reads that meet a coordinator which does not know the version yet.
    pub behind: u32,
    /// Numbers of heads and checkpoints from a coordinator that does not know the newest header.
    pub old_heads: u32,
    pub old_checkpoints: u32,
    /// Sequence numbers of versions whose operation lists are gone.
    pub lists_gone: BTreeSet<usize>,
    /// Changes answers that need no proof.
    pub lie: Lie<Got>,
    pub on_heads: Lie<Headed>,
    pub refuse_proofs: bool,
    /// The parts of commits that the newest stream shows.
    pub watched: Shows,
    /// Most keys of an answer that is not too large.
    pub keys_max: usize,
    pub reads: usize,
    /// Most keys of one read.
    pub largest: usize,
}

#[derive(Clone)]
pub(super) struct Model {
    state: Arc<Mutex<State>>,
    moved: watch::Sender<()>,
}

const SHARD: ShardId = ShardId(7);

pub(super) fn refused(reason: Reason) -> Error {
    let (message, kind) = ("by the model".to_owned(), reason.kind());
    crate::Error::Refused { reason: Some(reason), kind, message, outcome_unknown: false }.into()
}

fn broken() -> Error {
    refused(Reason::Unavailable)
}

/// An operation list in canonical bytes.
pub(super) fn encoded_list(operations: &[(&[u8], RecordBody)]) -> Bytes {
    let mut out = Writer::new();
    out.u32(u32::try_from(operations.len()).expect("a few"));
    for (key, body) in operations {
        out.u8(u8::from(*body == RecordBody::Tombstone));
        out.str16(key);
        if let RecordBody::Put { value_len, value_hash } = body {
            out.u32(*value_len);
            out.digest(value_hash);
        }
    }
    out.into_bytes().into()
}

impl State {
    pub(super) fn head(&self) -> &ModelVersion {
        self.versions.last().expect("genesis is a version")
    }

    /// The newest name of head.
    pub(super) fn present(&self) -> Stamp {
        Stamp { epoch: Epoch(self.epoch), ..self.head().stamp }
    }

    fn push(&mut self, body: Body, journal: Option<(Vec<Entry>, Journal)>, changes: Vec<v1::Record>) {
        let before = self.log.last().expect("a log begins with genesis");
        let entries: &[Entry] = journal.as_ref().map_or(&[], |(entries, _)| entries);
        let header = Header {
            sequence: before.header.sequence.next(),
            stamp: self.present(),
            journal_root: journal::journal_root(entries),
            journal_leaves: u32::try_from(entries.len()).expect("a few"),
            previous: before.header.hash(),
            body,
            ..before.header.clone()
        };
        let (encoded, journal) = (header.encode().into(), journal.map(|(_, journal)| journal));
        self.log.push(Headed { header, encoded, changes, rolled_back: false, journal, lists_gone: false });
    }

    pub(super) fn commit(&mut self, writes: &Words) -> Stamp {
        let stamp = Stamp { epoch: Epoch(self.epoch), version: self.head().stamp.version.next() };
        let mut values = self.head().values.clone();
        let (mut operations, mut changes): (Vec<(&[u8], RecordBody)>, Vec<v1::Record>) = (Vec::new(), Vec::new());
        for (key, value) in writes {
            let body = value.as_ref().map_or(RecordBody::Tombstone, |value| RecordBody::put(value.as_bytes()));
            operations.push((key.as_bytes(), body));
            match value {
                Some(value) => drop(values.insert(key.clone(), (value.clone(), stamp))),
                None => drop(values.remove(key)),
            }
            let value = value.clone().unwrap_or_default();
            let found = body != RecordBody::Tombstone;
            changes.push(v1::Record { key: key.clone().into(), found, value: value.into(), last_changed: None });
        }
        let shards = vec![(SHARD, hash::operation_list_hash(operations.iter().copied()))];
        let entry = Entry::Batch(BatchEntry { session: None, metadata: hash::metadata_hash(&[]), shards });
        let lists = BTreeMap::from([(SHARD, vec![encoded_list(&operations)])]);
        let journal = Journal { entries: vec![entry.encode().into()], lists };
        self.versions.push(ModelVersion { stamp, values });
        self.push(Body::Commit, Some((vec![entry], journal)), changes);
        stamp
    }

    pub(super) fn roll_back(&mut self, base: u64) -> Stamp {
        let head_before = self.present();
        self.versions.truncate(usize::try_from(base).expect("a few") + 1);
        self.epoch += 1;
        self.aliases.retain(|alias| alias.version.0 < base);
        self.aliases.insert(self.present());
        let target = self.head().stamp;
        let body = Rollback { target, head_before, principal: String::new(), reason: String::new() };
        self.push(Body::Rollback(body), None, Vec::new());
        self.present()
    }

    pub(super) fn prune(&mut self, boundary: u64) {
        self.boundary = boundary;
        let body = Prune { boundary: Version(boundary), principal: String::new(), reason: String::new() };
        self.push(Body::Prune(body), None, Vec::new());
    }

    /// A version, or the ledger's refusal.
    pub(super) fn find(&self, at: Stamp) -> Result<&ModelVersion, Reason> {
        let head = self.present();
        if at > head {
            return Err(Reason::NotYet);
        }
        let version = self.versions.get(usize::try_from(at.version.0).expect("a few")).ok_or(Reason::RolledBack)?;
        if version.stamp != at && !self.aliases.contains(&at) {
            return Err(Reason::RolledBack);
        }
        if at.version.0 < self.boundary { Err(Reason::Pruned) } else { Ok(version) }
    }

    fn read(&mut self, keys: &[Bytes], at: Stamp, proven: bool) -> Result<Got, Error> {
        self.reads += 1;
        self.largest = self.largest.max(keys.len());
        if self.behind > 0 {
            self.behind -= 1;
            return Err(refused(Reason::NotYet));
        }
        if keys.len() > self.keys_max {
            return Err(refused(Reason::LimitExceeded));
        }
        if self.refuse_proofs && proven {
            return Err(refused(Reason::Unavailable));
        }
        let version = self.find(at).map_err(refused)?;
        let record = |key: &Bytes| {
            let (value, changed) = version.values.get(std::str::from_utf8(key).expect("words"))?;
            Some((Bytes::from(value.clone()), *changed))
        };
        let proof = if proven { Bytes::from_static(b"a proof") } else { Bytes::new() };
        let mut got = Got { records: keys.iter().map(record).collect(), proof };
        if let Some(lie) = self.lie.as_mut().filter(|_| !proven) {
            lie(&mut got);
        }
        Ok(got)
    }

    /// A header as the stream shows it now.
    fn see(&mut self, sequence: usize, shows: Shows) -> Result<Headed, Error> {
        let mut headed = self.log[sequence].clone();
        if headed.header.body == Body::Commit && shows != Shows::default() {
            match self.find(headed.header.stamp) {
                Err(Reason::RolledBack | Reason::NotYet) => {
                    (headed.rolled_back, headed.journal, headed.changes) = (true, None, Vec::new());
                }
                _ if headed.header.stamp.version.0 - 1 < self.boundary => return Err(refused(Reason::Pruned)),
                _ if self.lists_gone.contains(&sequence) => {
                    headed.lists_gone = true;
                    headed.journal.iter_mut().for_each(|journal| journal.lists.clear());
                }
                _ => {}
            }
        }
        if !shows.keys {
            headed.changes = Vec::new();
        }
        if !shows.values {
            headed.changes.iter_mut().for_each(|record| record.value = Bytes::new());
        }
        if !shows.journal {
            (headed.journal, headed.lists_gone) = (None, false);
        }
        if let Some(lie) = &mut self.on_heads {
            lie(&mut headed);
        }
        Ok(headed)
    }
}

impl Model {
    pub(super) fn new() -> Self {
        let map = ShardMap::from_splits(&[]).expect("one shard");
        let ledger = replay::Ledger::new("model", ClusterId([7; 16]), &[1; 32], &Params::default(), map);
        let header = ledger.headers[0].clone();
        let encoded = header.encode().into();
        let genesis =
            Headed { header, encoded, changes: Vec::new(), rolled_back: false, journal: None, lists_gone: false };
        let state = State {
            versions: vec![ModelVersion::default()],
            epoch: 0,
            boundary: 0,
            aliases: BTreeSet::new(),
            log: vec![genesis],
            shown: 1,
            cut: false,
            streams: 0,
            waiting: 0,
            gates: HashMap::new(),
            behind: 0,
            old_heads: 0,
            old_checkpoints: 0,
            lists_gone: BTreeSet::new(),
            lie: None,
            on_heads: None,
            refuse_proofs: false,
            watched: Shows::default(),
            keys_max: usize::MAX,
            reads: 0,
            largest: 0,
        };
        Self { state: Arc::new(Mutex::new(state)), moved: watch::Sender::new(()) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    /// Lets the stream show all headers.
    pub(super) fn show(&self) {
        let mut state = self.lock();
        state.shown = state.log.len();
        self.moved.send_replace(());
    }

    /// Breaks the connection, or heals it.
    pub(super) fn cut(&self, cut: bool) {
        self.lock().cut = cut;
        self.moved.send_replace(());
    }
}

/// The size of the log, as one of the coordinators knows it.
fn known(size: usize, old: &mut u32) -> usize {
    if *old == 0 || size == 1 {
        return size;
    }
    *old -= 1;
    size - 1
}

#[tonic::async_trait]
impl Ledger for Model {
    /// Waits while the connection is cut.
    async fn head(&self) -> Result<Head, Error> {
        let mut moved = self.moved.subscribe();
        while self.lock().cut {
            moved.changed().await.expect("the model lives");
        }
        let state = &mut *self.lock();
        let log_size = known(state.log.len(), &mut state.old_heads) as u64;
        Ok(Head { stamp: state.present(), log_size, boundary: state.boundary })
    }

    async fn grown(&self, _: Option<&Grown>) -> Result<Grown, Error> {
        let state = &mut *self.lock();
        let size = known(state.log.len(), &mut state.old_checkpoints);
        let newest = hash::log_entry_hash(&state.log[size - 1].encoded);
        let proof = Bytes::from_static(b"a signed checkpoint");
        Ok(Grown { size: size as u64, root: Digest::default(), newest, proof })
    }

    async fn batch_get(&self, keys: &[Bytes], at: Stamp, proven: bool) -> Result<Got, Error> {
        let (got, gate) = {
            let mut state = self.lock();
            let gate = state.gates.get(std::str::from_utf8(&keys[0]).expect("words")).cloned();
            (state.read(keys, at, proven), gate)
        };
        if let Some(gate) = gate {
            gate.begun.notify_one();
            gate.open.notified().await;
        }
        got
    }

    async fn watch(&self, from: u64, shows: Shows) -> Result<Box<dyn Heads>, Error> {
        let next = usize::try_from(from).expect("a small log");
        {
            let mut state = self.lock();
            state.streams += 1;
            state.watched = shows;
        }
        Ok(Box::new(Showing { model: self.clone(), next, shows, moved: self.moved.subscribe(), waits: false }))
    }
}

/// A stream of the model.
struct Showing {
    model: Model,
    next: usize,
    shows: Shows,
    moved: watch::Receiver<()>,
    /// Whether it waits for the next header.
    waits: bool,
}

impl Drop for Showing {
    fn drop(&mut self) {
        let mut state = self.model.lock();
        state.streams -= 1;
        state.waiting -= usize::from(self.waits);
    }
}

#[tonic::async_trait]
impl Heads for Showing {
    async fn next(&mut self) -> Result<Option<Headed>, Error> {
        loop {
            {
                let mut state = self.model.lock();
                state.waiting -= usize::from(std::mem::take(&mut self.waits));
                if state.cut {
                    return Err(broken());
                }
                if self.next < state.shown {
                    self.next += 1;
                    return state.see(self.next - 1, self.shows).map(Some);
                }
                state.waiting += 1;
                self.waits = true;
            }
            self.moved.changed().await.expect("the model lives");
        }
    }
}
