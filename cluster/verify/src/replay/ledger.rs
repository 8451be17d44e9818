//! A whole ledger in memory: its log, its states by version, and the proof files that a coordinator
//! would make.

use alloc::{borrow::Cow, collections::BTreeMap, string::String, vec::Vec};

use coppice_types::{
    Change, ClusterId, Digest, Epoch, LedgerId, Operation, Params, SessionId, ShardId, Stamp, Version as Number,
};

use super::forest::{Error, Forest};
use crate::{
    anchor::{Anchor, Stamps, Token},
    checkpoint::{self, Checkpoint},
    epochs::Epochs,
    hash::{self, RecordBody},
    header::{Body, Genesis, Header, Prune, Rollback},
    journal::{self, BatchEntry, Entry, MergeEntry},
    keys::KeyChange,
    merkle,
    note::SignerKey,
    proof::{
        EpochPart, HeaderPart, IntervalProof, LogPart, Proof, ProofFile, Query, QueryProof, ReceiptProof, ShardPart,
        StandingProof, TimeProof,
    },
    shard_map::{ShardMap, StateLeaf, state_root},
};

/// A batch to commit.
#[derive(Clone, Debug, Default)]
pub struct Commit {
    /// The session in which the batch is sent, and its number there.
    pub session: Option<(SessionId, u64)>,
    /// The operations, in order.
    pub operations: Vec<Operation>,
    /// The metadata.
    pub metadata: Vec<u8>,
}

/// A committed version.
#[derive(Clone, Debug)]
pub struct Version {
    /// Header of its commit.
    pub header: Header,
    /// The states of the shards, in order of their lows.
    pub forests: Vec<Forest>,
    /// The state leaves of the shards.
    pub leaves: Vec<StateLeaf>,
    /// The journal.
    pub journal: Vec<Entry>,
}

/// A ledger with all its versions.
#[derive(Debug)]
pub struct Ledger {
    /// The key that signs now. Its name is the origin.
    pub key: SignerKey,
    /// The earlier keys, oldest first, each with the sequence of the header that replaced it.
    pub old_keys: Vec<(SignerKey, u64)>,
    /// Id of the ledger.
    pub cluster: ClusterId,
    /// The shards.
    pub shard_map: ShardMap,
    /// The log.
    pub headers: Vec<Header>,
    /// The epochs now.
    pub epochs: Epochs,
    /// The epochs after each entry of the log.
    pub epochs_at: Vec<Epochs>,
    /// Every version that was ever committed, by its stamp.
    pub versions: BTreeMap<Stamp, Version>,
    /// Every value that was ever put, by its hash.
    pub values: BTreeMap<Digest, Vec<u8>>,
    /// Hashes of the leaves of each ledger of members, also of those that a purge has swept.
    pub leaf_hashes: BTreeMap<LedgerId, Vec<Digest>>,
}

impl Ledger {
    /// A new ledger whose first key has this seed.
    ///
    /// # Panics
    /// If the prefix can't begin an origin.
    #[must_use]
    pub fn new(prefix: &str, cluster: ClusterId, seed: &[u8; 32], params: &Params, shard_map: ShardMap) -> Self {
        let key = SignerKey::from_seed(&checkpoint::origin(prefix, &cluster), seed).expect("the prefix is a name");
        let leaves = shard_map.genesis_leaves();
        let epochs = Epochs::new();
        let genesis = Genesis {
            prefix: String::from(prefix),
            public_key: key.verifier().public_key(),
            params: params.clone(),
            shard_map: shard_map.clone(),
        };
        let header = Header::genesis(cluster, 1_700_000_000_000, genesis);
        let forests = leaves.iter().map(|_| Forest::new(params)).collect();
        let version = Version { header: header.clone(), forests, leaves, journal: Vec::new() };
        Self {
            key,
            old_keys: Vec::new(),
            cluster,
            shard_map,
            headers: Vec::from([header]),
            epochs_at: Vec::from([epochs.clone()]),
            epochs,
            versions: BTreeMap::from([(Stamp::default(), version)]),
            values: BTreeMap::new(),
            leaf_hashes: BTreeMap::new(),
        }
    }

    /// The newest header.
    ///
    /// # Panics
    /// Never: a log begins with genesis.
    #[must_use]
    pub fn newest(&self) -> &Header {
        self.headers.last().expect("a log begins with genesis")
    }

    /// Stamp of the newest header.
    #[must_use]
    pub fn head(&self) -> Stamp {
        self.newest().stamp
    }

    /// The version at the head, by the stamp under which it stands.
    #[must_use]
    pub fn head_version(&self) -> &Version {
        &self.versions[&self.epochs.stamp_of(self.head().version)]
    }

    /// Commits a version of these batches, with every merge that the tier rule asks for.
    ///
    /// # Errors
    /// If a merge does not apply, which would be a bug of the model.
    pub fn commit(&mut self, batches: &[Commit]) -> Result<Stamp, Error> {
        let journal = batches.iter().map(|batch| self.journal_entry(batch)).collect();
        let operations: Vec<&Operation> = batches.iter().flat_map(|batch| &batch.operations).collect();
        self.write(journal, &operations)
    }

    /// The timestamp of the next header, in milliseconds.
    #[must_use]
    pub fn next_time_ms(&self) -> u64 {
        self.newest().timestamp_ms + 1000
    }

    /// The stamp of the next version.
    #[must_use]
    pub fn next_stamp(&self) -> Stamp {
        Stamp { epoch: self.head().epoch, version: self.head().version.next() }
    }

    /// Commits a version with these entries and operations, and the merges behind them. Tests use
    /// it to make versions that no ledger makes.
    ///
    /// # Errors
    /// If a merge does not apply.
    pub fn write(&mut self, mut journal: Vec<Entry>, operations: &[&Operation]) -> Result<Stamp, Error> {
        let before = self.head_version();
        let stamp = self.next_stamp();
        let (mut forests, mut leaves) = (before.forests.clone(), before.leaves.clone());
        for (index, forest) in forests.iter_mut().enumerate() {
            let merges: Vec<_> = forest.planned_merge().into_iter().collect();
            let all = operations.iter().copied();
            let own: Vec<_> = all.filter(|operation| self.shard_map.index_of(&operation.key) == index).collect();
            if merges.is_empty() && own.is_empty() {
                continue;
            }
            let operations = own.iter().map(|own| (own.key.as_ref(), RecordBody::of(&own.change)));
            forest.prepare(stamp, &merges, operations)?;
            (leaves[index].version, leaves[index].digest) = (stamp.version, forest.digest());
            let shard = leaves[index].shard;
            let events = merges.into_iter().map(|(inputs, output)| Entry::Merge(MergeEntry { shard, inputs, output }));
            journal.extend(events);
        }
        for operation in operations {
            if let Change::Put(value) = &operation.change {
                self.values.insert(hash::sha256(value), value.to_vec());
            }
        }
        let header = self.next_header(stamp, state_root(&leaves), &journal, Body::Commit);
        self.versions.insert(stamp, Version { header: header.clone(), forests, leaves, journal });
        self.append(header);
        Ok(stamp)
    }

    /// Rolls back to a version that stands.
    ///
    /// # Panics
    /// If it is above head.
    pub fn roll_back(&mut self, target: Number) {
        let head_before = self.head();
        assert!(target <= head_before.version, "a rollback goes back");
        let target = self.epochs.stamp_of(target);
        let stamp = Stamp { epoch: head_before.epoch.next(), version: target.version };
        let root = self.versions[&target].header.state_root;
        self.epochs.roll_back(stamp.epoch, target.version);
        let (principal, reason) = (String::from("model"), String::from("rollback"));
        let body = Body::Rollback(Rollback { target, head_before, principal, reason });
        let header = self.next_header(stamp, root, &[], body);
        self.append(header);
    }

    /// Appends a prune to the log. The model keeps all versions.
    pub fn prune(&mut self, boundary: Number) {
        let (principal, reason) = (String::from("model"), String::from("prune"));
        let body = Body::Prune(Prune { boundary, principal, reason });
        let header = self.next_header(self.head(), self.newest().state_root, &[], body);
        self.append(header);
    }

    /// Changes the key to the one of this seed.
    ///
    /// # Panics
    /// Never: the name of the old key is valid.
    pub fn rotate(&mut self, seed: &[u8; 32]) {
        let new = SignerKey::from_seed(self.key.name(), seed).expect("the name of a key is one");
        let number = self.old_keys.len() as u32 + 1;
        let change = KeyChange {
            principal: String::from("model"),
            reason: String::from("rotation"),
            ..KeyChange::sign(number, &self.cluster, &self.key, &new)
        };
        let header = self.next_header(self.head(), self.newest().state_root, &[], Body::Key(change));
        let old = core::mem::replace(&mut self.key, new);
        self.old_keys.push((old, header.sequence.0));
        self.append(header);
    }

    /// The key that signs the checkpoint of `size` entries.
    #[must_use]
    pub fn key_at(&self, size: u64) -> &SignerKey {
        self.old_keys.iter().find(|(_, change)| size <= *change).map_or(&self.key, |(key, _)| key)
    }

    /// Appends a header of a kind that this code does not know.
    pub fn append_unknown(&mut self, kind: u8, bytes: Vec<u8>) {
        let header = self.next_header(self.head(), self.newest().state_root, &[], Body::Other { kind, bytes });
        self.append(header);
    }

    /// Appends an anchor that stamps the first `size` entries by these tokens.
    pub fn anchor(&mut self, size: u64, tokens: Vec<Token>) {
        let root = merkle::mth(&self.headers[..size as usize].iter().map(Header::hash).collect::<Vec<_>>());
        let body = Body::Anchor(Anchor::Stamps(Stamps { size, root, tokens }));
        let header = self.next_header(self.head(), self.newest().state_root, &[], body);
        self.append(header);
    }

    /// Appends any header, so that tests can make logs that no ledger makes.
    pub fn append(&mut self, header: Header) {
        self.headers.push(header);
        self.epochs_at.push(self.epochs.clone());
    }

    /// The header that would come next.
    #[must_use]
    pub fn next_header(&self, stamp: Stamp, state_root: Digest, journal: &[Entry], body: Body) -> Header {
        let before = self.newest();
        let admin = matches!(body, Body::Rollback(_) | Body::Prune(_));
        Header {
            sequence: before.sequence.next(),
            stamp,
            timestamp_ms: self.next_time_ms(),
            state_root,
            journal_root: journal::journal_root(journal),
            journal_leaves: journal.len() as u32,
            epochs_root: self.epochs.root(),
            epoch_pairs: self.epochs.pairs().len() as u32,
            admin_sequence: before.admin_sequence + u64::from(admin),
            key_changes: before.key_changes_until(&body),
            previous: before.hash(),
            body,
            ..before.clone()
        }
    }

    fn journal_entry(&self, batch: &Commit) -> Entry {
        let (session, metadata) = (batch.session, hash::metadata_hash(&batch.metadata));
        Entry::Batch(BatchEntry { session, metadata, shards: self.lists(&batch.operations) })
    }

    /// The shards that operations touch, with the hash of the operations there.
    #[must_use]
    pub fn lists(&self, operations: &[Operation]) -> Vec<(ShardId, Digest)> {
        let mut shards: BTreeMap<ShardId, Vec<(&[u8], RecordBody)>> = BTreeMap::new();
        for operation in operations {
            let own = shards.entry(self.shard_map.shard_of(&operation.key).id).or_default();
            own.push((&operation.key, RecordBody::of(&operation.change)));
        }
        shards.into_iter().map(|(shard, own)| (shard, hash::operation_list_hash(own))).collect()
    }

    /// Value of a key in a version; `None` if it has none.
    #[must_use]
    pub fn value(&self, stamp: Stamp, key: &[u8]) -> Option<&[u8]> {
        let forest = &self.versions[&stamp].forests[self.shard_map.index_of(key)];
        match forest.get(key)?.body {
            RecordBody::Put { value_hash, .. } => Some(&self.values[&value_hash]),
            RecordBody::Tombstone => None,
        }
    }

    fn entries(&self, size: u64) -> Vec<Digest> {
        self.headers[..size as usize].iter().map(Header::hash).collect()
    }

    /// The checkpoint of the first `size` entries.
    #[must_use]
    pub fn checkpoint(&self, size: u64) -> Checkpoint {
        Checkpoint { origin: String::from(self.key.name()), size, root: merkle::mth(&self.entries(size)) }
    }

    /// The log part for the first `size` entries.
    ///
    /// # Panics
    /// If the log is shorter, or `size` is 0.
    #[must_use]
    pub fn log_part(&self, size: u64) -> LogPart<'static> {
        let note = self.checkpoint(size).sign(self.key_at(size)).expect("the key is named after the log");
        let entries = self.entries(size);
        let changes = self.old_keys.iter().map(|(_, sequence)| *sequence).filter(|sequence| *sequence < size);
        let key_changes = changes.map(|sequence| HeaderPart {
            header: Cow::Owned(self.headers[sequence as usize].encode()),
            path: merkle::inclusion_path(&entries, sequence),
        });
        LogPart {
            key_changes: key_changes.collect(),
            checkpoint: Cow::Owned(note.into_bytes()),
            newest_header: Cow::Owned(self.headers[size as usize - 1].encode()),
            path: merkle::inclusion_path(&entries, size - 1),
        }
    }

    /// The header part for the version of a stamp.
    #[must_use]
    pub fn header_part(&self, stamp: Stamp, size: u64) -> HeaderPart<'static> {
        let header = &self.versions[&stamp].header;
        let path = merkle::inclusion_path(&self.entries(size), header.sequence.0);
        HeaderPart { header: Cow::Owned(header.encode()), path }
    }

    /// The epoch part for a version that stands at the first `size` entries.
    ///
    /// # Panics
    /// If the version does not stand.
    #[must_use]
    pub fn epoch_part(&self, stamp: Stamp, size: u64) -> EpochPart {
        EpochPart::new(&self.epochs_at[size as usize - 1], stamp).expect("the version stands")
    }

    /// A proof of keys at a version, at the newest checkpoint.
    #[must_use]
    pub fn prove_keys(&self, stamp: Stamp, keys: &[&[u8]], want_values: bool) -> ProofFile<'static> {
        let mut keys: Vec<&[u8]> = keys.to_vec();
        keys.sort_unstable();
        keys.dedup();
        let version = &self.versions[&stamp];
        let mut parts = Vec::new();
        for (index, shard) in self.shard_map.shards().iter().enumerate() {
            let own: Vec<&[u8]> = keys.iter().filter(|key| shard.holds(key)).copied().collect();
            if !own.is_empty() {
                parts.push((index, version.forests[index].prove_keys(&own)));
            }
        }
        let found = keys.iter().filter_map(|key| version.forests[self.shard_map.index_of(key)].get(key));
        let values = want_values.then(|| self.values_of(found.map(|record| record.body)));
        let keys = keys.iter().map(|key| Cow::Owned(key.to_vec())).collect();
        self.query_proof(stamp, Query::Keys(keys), parts, values)
    }

    /// A proof of a range at a version, at the newest checkpoint.
    #[must_use]
    pub fn prove_range(&self, stamp: Stamp, low: &[u8], high: Option<&[u8]>, want_values: bool) -> ProofFile<'static> {
        let version = &self.versions[&stamp];
        let mut parts = Vec::new();
        let mut found = Vec::new();
        for (index, shard) in self.shard_map.shards().iter().enumerate() {
            let begins = high.is_none_or(|high| shard.low.as_slice() < high);
            if begins && shard.high.as_ref().is_none_or(|end| low < end.as_slice()) {
                let from = low.max(&shard.low);
                let to = [high, shard.high.as_deref()].into_iter().flatten().min();
                parts.push((index, version.forests[index].prove_range(from, to)));
                let live = version.forests[index].live();
                let inside = |key: &[u8]| from <= key && to.is_none_or(|to| key < to);
                found.extend(live.into_iter().filter(|record| inside(&record.key)).map(|record| record.body));
            }
        }
        let values = want_values.then(|| self.values_of(found));
        let query = Query::Range { low: Cow::Owned(low.to_vec()), high: high.map(|high| Cow::Owned(high.to_vec())) };
        self.query_proof(stamp, query, parts, values)
    }

    fn values_of(&self, bodies: impl IntoIterator<Item = RecordBody>) -> Vec<Cow<'static, [u8]>> {
        let value = |body| match body {
            RecordBody::Put { value_hash, .. } => Some(Cow::Owned(self.values[&value_hash].clone())),
            RecordBody::Tombstone => None,
        };
        bodies.into_iter().filter_map(value).collect()
    }

    fn query_proof(
        &self,
        stamp: Stamp,
        query: Query<'static>,
        parts: Vec<(usize, crate::proof::TreeList<'static>)>,
        values: Option<Vec<Cow<'static, [u8]>>>,
    ) -> ProofFile<'static> {
        let size = self.headers.len() as u64;
        let leaves = &self.versions[&stamp].leaves;
        let hashes: Vec<Digest> = leaves.iter().map(StateLeaf::hash).collect();
        let indices: Vec<u64> = parts.iter().map(|(index, _)| *index as u64).collect();
        let shards = parts.into_iter().map(|(index, trees)| ShardPart {
            index: index as u32,
            shard: leaves[index].shard,
            low: Cow::Owned(leaves[index].low.clone()),
            high: leaves[index].high.clone().map(Cow::Owned),
            version: leaves[index].version,
            trees,
        });
        let proof = QueryProof {
            log: self.log_part(size),
            header: self.header_part(stamp, size),
            epoch: self.epoch_part(stamp, size),
            query,
            shards: shards.collect(),
            state_hashes: merkle::list_proof(&hashes, &indices),
            values,
        };
        ProofFile { cluster: self.cluster, proof: Proof::Query(proof) }
    }

    /// A receipt for entry `index` of a version's journal, at the newest checkpoint.
    #[must_use]
    pub fn receipt(&self, stamp: Stamp, index: u32) -> ProofFile<'static> {
        let size = self.headers.len() as u64;
        let journal = &self.versions[&stamp].journal;
        let hashes: Vec<Digest> = journal.iter().map(Entry::hash).collect();
        let proof = ReceiptProof {
            log: self.log_part(size),
            header: self.header_part(stamp, size),
            epoch: self.epoch_part(stamp, size),
            index,
            entry: Cow::Owned(journal[index as usize].encode()),
            hashes: merkle::list_proof(&hashes, &[u64::from(index)]),
        };
        ProofFile { cluster: self.cluster, proof: Proof::Receipt(proof) }
    }

    /// A proof of the anchors at these sequences around the entry at `sequence`.
    ///
    /// # Panics
    /// If one of those above is no anchor with stamps of a log that holds the entry.
    #[must_use]
    pub fn interval(&self, sequence: u64, below: &[u64], above: &[u64]) -> ProofFile<'static> {
        let size = self.headers.len() as u64;
        let entries = self.entries(size);
        let part = |at: u64| {
            let header = Cow::Owned(self.headers[at as usize].encode());
            HeaderPart { header, path: merkle::inclusion_path(&entries, at) }
        };
        let above = above.iter().map(|at| {
            let Body::Anchor(Anchor::Stamps(stamps)) = &self.headers[*at as usize].body else { panic!("no stamps") };
            (part(*at), merkle::inclusion_path(&entries[..stamps.size as usize], sequence))
        });
        let proof = IntervalProof {
            log: self.log_part(size),
            header: part(sequence),
            below: below.iter().map(|at| part(*at)).collect(),
            above: above.collect(),
        };
        ProofFile { cluster: self.cluster, proof: Proof::Interval(proof) }
    }

    /// A standing proof from the first `old` entries to the first `size`.
    #[must_use]
    pub fn standing(&self, old: u64, size: u64) -> ProofFile<'static> {
        let proof = StandingProof {
            log: self.log_part(size),
            old_size: old,
            old_root: self.checkpoint(old).root,
            path: merkle::consistency_path(&self.entries(size), old),
            pairs: self.epochs_at[size as usize - 1].pairs().to_vec(),
        };
        ProofFile { cluster: self.cluster, proof: Proof::Standing(proof) }
    }

    /// A proof of the newest version at a time, at the newest checkpoint. The search is naive.
    ///
    /// # Panics
    /// If the time is before genesis.
    #[must_use]
    pub fn prove_time(&self, time_ms: u64) -> ProofFile<'static> {
        let size = self.headers.len() as u64;
        let standing = |stamp: &&Stamp| self.epochs.stands(**stamp);
        let past = |stamp: &&Stamp| self.versions[*stamp].header.timestamp_ms <= time_ms;
        let newest = self.versions.keys().filter(standing).filter(past).max_by_key(|stamp| stamp.version);
        let stamp = *newest.expect("genesis is not later");
        let next = stamp.version.next();
        let next = (next <= self.head().version).then(|| self.epochs.stamp_of(next));
        let proof = TimeProof {
            log: self.log_part(size),
            header: self.header_part(stamp, size),
            epoch: self.epoch_part(stamp, size),
            time_ms,
            next: next.map(|next| self.header_part(next, size)),
        };
        ProofFile { cluster: self.cluster, proof: Proof::Time(proof) }
    }

    /// The newest epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epochs.current()
    }
}
