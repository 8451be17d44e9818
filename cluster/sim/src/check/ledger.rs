//! The root log at the end of a run, and a naive model of every state that it made.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use coppice_engine::ShardState;
use coppice_proto::v1::{self, operation::Change};
use coppice_shard_node::{Replica, shard::decode_journal};
use coppice_types::{Digest, GroupId, Operation, Params, Sequence, ShardId, Stamp, Version};
use coppice_verify::{
    audit::{self, Author, Broken, Chain},
    epochs::Epochs,
    hash::{self, RecordBody},
    header::{Body, Header},
    journal::{AppendEntry, BatchEntry, Entry, HeadEntry, decode_operations},
    ledgers::{Checked, Closed, Leaf, Round, leaf_key},
    merkle,
    replay::Forest,
    shard_map::{Shard, ShardMap, StateLeaf, state_root},
};

use super::conditions::{self, Records};
use crate::{
    history::{Batch, BatchId, Finding, History},
    shape,
    world::World,
};

/// One entry of the log.
#[derive(Debug)]
pub struct Event {
    pub bytes: Vec<u8>,
    pub header: Header,
    /// The batches of its journal, with their index there.
    pub batches: Vec<(u32, BatchId)>,
    /// The requests of members in its journal, by hash, with the numbers of their first journals.
    pub appends: Vec<(Digest, u64)>,
    /// The epochs after the entry.
    pub epochs: Epochs,
    /// The boundary of the last prune, after the entry.
    pub boundary: Version,
    /// Stamp of the commit that made the head's state.
    pub head: Stamp,
}

/// The whole log, and the states that it made, by the stamps of their commits.
#[derive(Debug)]
pub struct Ledger {
    pub events: Vec<Event>,
    /// The content of each state.
    pub states: BTreeMap<Stamp, Records>,
    leaves: Vec<Digest>,
}

/// Headers and journals of the longest log.
type Raw = Vec<(Vec<u8>, Vec<Vec<u8>>)>;

fn read_raw(world: &World) -> Result<Raw, Finding> {
    let mut longest = Raw::new();
    for ordinal in &world.site.shape.groups[&GroupId::Root] {
        let Some(Replica::Root(replica)) = world.replica(*ordinal, GroupId::Root) else { continue };
        let read = replica.read_now(|machine| {
            let root = machine.root();
            let one = |sequence| Ok((root.header(Sequence(sequence))?, root.journal(Sequence(sequence))?));
            Ok((0..root.log_size()).map(one).collect::<Result<Raw, coppice_root::Error>>())
        });
        let log = read.map_err(|refusal| format!("log: node-{ordinal} can't tell it: {}", refusal.message));
        let log = log.and_then(|log| log.map_err(|error| format!("log: node-{ordinal} can't read it: {error}")));
        let log = match log {
            // The bad byte may be in a record that only this check reads. By the end, every disk
            // may have had one.
            Err(_) if world.machines[ordinal].rotten.contains(&GroupId::Root) => continue,
            log => log?,
        };
        let (short, long) = if log.len() > longest.len() { (longest, log) } else { (log, longest) };
        if short.iter().zip(&long).any(|(a, b)| a != b) {
            return Err(format!("log: node-{ordinal} has another one"));
        }
        longest = long;
    }
    Ok(longest)
}

/// The operation lists that shards have kept, those of each version in the order of its batches.
type Lists = BTreeMap<(ShardId, Version), VecDeque<Vec<u8>>>;

/// The kept operation lists of a ledger that keeps its journals.
struct Journals {
    lists: Lists,
    /// The epochs at the end: journals of versions that were rolled back are not kept.
    epochs: Epochs,
}

impl Journals {
    /// Reads the lists from every replica; `None` if the ledger keeps no journals.
    fn read(world: &World, epochs: Epochs) -> Result<Option<Self>, Finding> {
        if !world.site.shape.params.journals_kept {
            return Ok(None);
        }
        let mut lists = Lists::new();
        for group in world.site.shape.groups.keys() {
            let GroupId::Shard(shard) = *group else { continue };
            let mut first: Option<Lists> = None;
            for ordinal in world.site.shape.hosts(*group) {
                let read = match read_lists(world, ordinal, shard) {
                    // The bad byte may be in a journal that only this check reads.
                    Err(_) if world.machines[&ordinal].rotten.contains(group) => continue,
                    read => read?,
                };
                if first.get_or_insert_with(|| read.clone()) != &read {
                    return Err(format!("audit: {group} keeps other journals on node-{ordinal}"));
                }
            }
            lists.extend(first.unwrap_or_default());
        }
        Ok(Some(Self { lists, epochs }))
    }

    /// Takes the shard's next list of a version, which must equal the operations that were sent. If
    /// the version does not stand, returns `sent` itself.
    fn take(&mut self, shard: ShardId, stamp: Stamp, sent: Operations) -> Result<Operations, Finding> {
        if !self.epochs.stands(stamp) {
            return Ok(sent);
        }
        let list = self.lists.get_mut(&(shard, stamp.version)).and_then(VecDeque::pop_front);
        let list = list.ok_or_else(|| format!("audit: {shard} has not kept a list of {stamp}"))?;
        let kept =
            decode_operations(&list).map_err(|error| format!("audit: {shard} keeps no list of {stamp}: {error}"))?;
        if kept != sent {
            return Err(format!("audit: {shard} keeps operations of {stamp} that differ from those that were sent"));
        }
        Ok(kept)
    }

    /// Checks that every kept list is in the log.
    fn end(&self) -> Result<(), Finding> {
        match self.lists.iter().find(|(_, left)| !left.is_empty()) {
            None => Ok(()),
            Some(((shard, version), _)) => Err(format!("audit: {shard} keeps more of version {version} than was sent")),
        }
    }
}

/// The operation lists of one replica, up to the state of its shard that the root group knows.
fn read_lists(world: &World, ordinal: u32, shard: ShardId) -> Result<Lists, Finding> {
    let mut roots = world.site.shape.groups[&GroupId::Root].iter();
    let state = roots.find_map(|ordinal| match world.replica(*ordinal, GroupId::Root)? {
        Replica::Root(replica) => replica.read_now(|machine| Ok(machine.root().view().ok())).ok().flatten(),
        Replica::Shard(_) => None,
    });
    let leaf = state.and_then(|view| view.leaves.iter().find(|leaf| leaf.shard == shard).cloned());
    let leaf = leaf.ok_or_else(|| format!("audit: nobody knows the newest version of {shard}"))?;
    let state = ShardState { version: leaf.version, digest: leaf.digest };
    let failed = |why: String| format!("audit: node-{ordinal} can't tell the journals of {shard}: {why}");
    let Some(Replica::Shard(replica)) = world.replica(ordinal, GroupId::Shard(shard)) else {
        return Err(failed("it does not run".to_owned()));
    };
    let read = replica
        .read_now(|machine| Ok(machine.engine().journals(&state, Version(0), state.version, usize::MAX)))
        .map_err(|refusal| failed(refusal.message))?;
    let mut lists = Lists::new();
    for kept in read.map_err(|error| failed(error.to_string()))? {
        let list = decode_journal(&kept.bytes).map_err(|error| failed(error.to_string()))?;
        lists.insert((shard, kept.version), list.into());
    }
    Ok(lists)
}

/// The epochs after a log.
fn epochs_of(raw: &Raw) -> Epochs {
    let mut epochs = Epochs::new();
    for (bytes, _) in raw {
        // A header that does not decode is found when the log is replayed.
        if let Ok(Header { stamp, body: Body::Rollback(rollback), .. }) = Header::decode(bytes) {
            epochs.roll_back(stamp.epoch, rollback.target.version);
        }
    }
    epochs
}

/// The naive model of the newest state.
#[derive(Clone)]
struct Model {
    forests: BTreeMap<ShardId, (Forest, Version)>,
    records: Records,
    /// The timestamps of the versions' headers, in milliseconds.
    times: BTreeMap<Version, u64>,
}

type Operations = Vec<(Vec<u8>, RecordBody)>;
type Merges = Vec<(Vec<Digest>, Digest)>;

impl Ledger {
    /// Reads the log and replays it.
    pub fn read(world: &World) -> Result<Self, Finding> {
        let shape = &world.site.shape;
        let history = world.site.scribe.lock();
        let sent = Sent::new(&history, &shape.map);
        let new = || (Forest::new(&shape.params), Version(0));
        let forests = shape.map.shards().iter().map(|shard| (shard.id, new())).collect();
        let mut model = Model { forests, records: Records::new(), times: BTreeMap::new() };
        let mut models = BTreeMap::from([(Stamp::default(), model.clone())]);
        let mut ledger = Self { events: Vec::new(), states: BTreeMap::new(), leaves: Vec::new() };
        let (mut epochs, mut boundary, mut chain) = (Epochs::new(), Version(0), Chain::default());
        let raw = read_raw(world)?;
        let mut kept = Journals::read(world, epochs_of(&raw))?;
        for (sequence, (bytes, journal)) in raw.into_iter().enumerate() {
            let header = Header::decode(&bytes).map_err(|error| format!("log: entry {sequence}: {error}"))?;
            chain.take(header.clone()).map_err(|rule| format!("log: entry {sequence}: {rule}"))?;
            let entries: Result<Vec<Entry>, _> = journal.iter().map(|bytes| Entry::decode(bytes)).collect();
            let entries = entries.map_err(|error| format!("log: journal of {sequence}: {error}"))?;
            let mut batches = Vec::new();
            match &header.body {
                Body::Commit => {
                    let broken = |broken: Broken| format!("audit: {}: {}", header.stamp, broken.rule);
                    audit::check_entries(&shape.params, &shape.map, &entries).map_err(broken)?;
                    let before = ledger.events.last().map_or_else(Stamp::default, |before| before.header.stamp);
                    batches = model.apply(&header, before, &entries, &sent, kept.as_mut())?;
                }
                Body::Rollback(rollback) => {
                    epochs.roll_back(header.stamp.epoch, rollback.target.version);
                    let target = models.get(&epochs.stamp_of(rollback.target.version));
                    model = target.ok_or_else(|| format!("log: {sequence} rolls back to nothing"))?.clone();
                }
                Body::Prune(prune) => boundary = prune.boundary,
                _ => {}
            }
            model.check(&shape.map, &header)?;
            let head = epochs.stamp_of(header.stamp.version);
            ledger.states.insert(head, model.records.clone());
            models.insert(head, model.clone());
            ledger.leaves.push(hash::log_entry_hash(&bytes));
            let append = |entry: &Entry| match entry {
                Entry::Append(append) => Some((hash::sha256(&append.signed), append.first_jsn)),
                _ => None,
            };
            let appends = entries.iter().filter_map(append).collect();
            ledger.events.push(Event { bytes, header, batches, appends, epochs: epochs.clone(), boundary, head });
        }
        kept.map_or(Ok(()), |kept| kept.end())?;
        Ok(ledger)
    }

    /// Checks that each request of a member that was acknowledged stands where its author was told,
    /// and was applied once.
    pub fn check_appends(&self, history: &History) -> Result<(), Finding> {
        let mut placed: BTreeMap<Digest, (Stamp, u64)> = BTreeMap::new();
        for event in &self.events {
            for (request, first) in &event.appends {
                if placed.insert(*request, (event.header.stamp, *first)).is_some() {
                    return Err(format!(
                        "appends: a request was applied twice, the second time in {}",
                        event.header.stamp
                    ));
                }
            }
        }
        for (request, stamp, first) in &history.appended {
            match placed.get(request) {
                Some(place) if *place == (*stamp, *first) => {}
                Some(place) => return Err(format!("appends: journal {first} of {stamp} stands at {place:?}")),
                None => return Err(format!("appends: acknowledged journal {first} of {stamp} is lost")),
            }
        }
        Ok(())
    }

    /// Checks that every root that was ever shown is of a prefix of the log, and signed by the key
    /// in force there.
    pub fn check_checkpoints(&self, history: &History) -> Result<(), Finding> {
        for (&size, &root) in &history.checkpoints {
            let prefix = usize::try_from(size).ok().and_then(|size| self.leaves.get(..size));
            let prefix = prefix
                .ok_or_else(|| format!("log: a checkpoint of {size} entries, but there are {}", self.leaves.len()))?;
            if merkle::mth(prefix) != root {
                return Err(format!("log: the checkpoint of {size} entries belongs to another log"));
            }
        }
        for (size, signer) in &history.signers {
            let below = self.events.iter().take_while(|event| event.header.sequence.0 < *size);
            let changes = below.filter_map(|event| match &event.header.body {
                Body::Key(change) => Some(change.new),
                _ => None,
            });
            let in_force = changes.last().unwrap_or_else(|| shape::signing_key().verifier().public_key());
            if in_force != *signer {
                return Err(format!(
                    "log: the checkpoint of {size} entries is signed by a key that is not in force there"
                ));
            }
        }
        Ok(())
    }
}

impl Model {
    /// Applies a version's journal, with the operations that the shards have kept, or else those
    /// that were sent. Returns its batches with their index in the journal.
    fn apply(
        &mut self,
        header: &Header,
        before: Stamp,
        journal: &[Entry],
        sent: &Sent<'_>,
        mut kept: Option<&mut Journals>,
    ) -> Result<Vec<(u32, BatchId)>, Finding> {
        let mut touched: BTreeMap<ShardId, (Operations, Merges)> = BTreeMap::new();
        let mut batches = Vec::new();
        self.times.insert(header.stamp.version, header.timestamp_ms);
        let (appended, closed) = self.rejudge((header.stamp, header.timestamp_ms), journal, sent)?;
        let (mut appended, mut closed) = (appended.into_iter(), closed.into_iter());
        let alone = journal.iter().filter(|entry| matches!(entry, Entry::Batch(_))).count() == 1;
        for (index, entry) in journal.iter().enumerate() {
            match entry {
                Entry::Merge(merge) => {
                    touched.entry(merge.shard).or_default().1.push((merge.inputs.clone(), merge.output));
                }
                Entry::Append(entry) => {
                    let part =
                        appended.next().ok_or_else(|| format!("audit: {} has an append too many", header.stamp))?;
                    if *entry != part.0 {
                        return Err(format!("appends: {} applies a request in another way", header.stamp));
                    }
                    self.take_part(part.1, entry.shards.as_slice(), (header.stamp, sent.map), &mut kept, &mut touched)?;
                }
                Entry::Head(entry) => {
                    let part = closed.next().ok_or_else(|| format!("audit: {} has a head too many", header.stamp))?;
                    if *entry != part.0 {
                        return Err(format!("appends: {} ends with another head of a ledger", header.stamp));
                    }
                    self.take_part(part.1, entry.shards.as_slice(), (header.stamp, sent.map), &mut kept, &mut touched)?;
                }
                Entry::Batch(entry) => {
                    let (id, batch) = sent.find(entry, header.stamp)?;
                    let opens = batches.is_empty().then_some(before);
                    conditions::check(batch, id, &self.records, opens, alone)?;
                    for (shard, mut operations) in sent.operations(batch, entry, header.stamp)? {
                        let fits = audit::check_operations(self.params(), sent.map, shard, Author::Batch, &operations);
                        fits.map_err(|broken| format!("audit: {}: {}", header.stamp, broken.rule))?;
                        if let Some(kept) = &mut kept {
                            operations = kept.take(shard, header.stamp, operations)?;
                        }
                        touched.entry(shard).or_default().0.extend(operations);
                    }
                    batch.batch.operations.iter().for_each(|operation| self.change(operation, header.stamp));
                    batches.push((u32::try_from(index).expect("journals are short"), id));
                }
            }
        }
        for (shard, (operations, merges)) in touched {
            let Some((forest, version)) = self.forests.get_mut(&shard) else {
                return Err(format!("audit: {} touches an unknown shard", header.stamp));
            };
            let operations = operations.iter().map(|(key, body)| (key.as_slice(), *body));
            let prepared = forest.prepare(header.stamp, &merges, operations);
            prepared.map_err(|error| format!("audit: {}: {error}", header.stamp))?;
            let trees = audit::check_trees(&forest.params, shard, forest.trees().len());
            trees.map_err(|broken| format!("audit: {}: {}", header.stamp, broken.rule))?;
            *version = header.stamp.version;
        }
        Ok(batches)
    }

    /// Judges the requests of a version again, each as it was sent, and derives their entries.
    fn rejudge(&self, (stamp, now_ms): (Stamp, u64), journal: &[Entry], sent: &Sent<'_>) -> Result<Rejudged, Finding> {
        let value = |key: &[u8]| self.records.get(key).map(|(value, _)| value.clone());
        let mut round = Round::new(&value, stamp, now_ms);
        let mut appended = Vec::new();
        for entry in journal {
            let Entry::Append(entry) = entry else { continue };
            let request = sent.history.requests.get(&hash::sha256(&entry.signed));
            let request = request.ok_or_else(|| format!("appends: {stamp} has a request that nobody sent"))?;
            let done = round
                .append(&self.with_facts(request))
                .map_err(|refusal| format!("appends: {stamp} applies a request that is to be refused: {refusal}"))?;
            let entry = AppendEntry {
                ledger: done.ledger,
                signed: request.bytes.clone(),
                signature: request.signature,
                first_jsn: done.first_jsn,
                count: request.signed.items,
                leaves_root: done.leaves_root,
                shards: shards_of(&done.operations, sent.map),
            };
            appended.push((entry, done.operations));
        }
        let head = |closed: Closed| {
            let entry = HeadEntry {
                ledger: closed.ledger,
                size_before: closed.size_before,
                size: closed.size,
                root: closed.root,
                shards: shards_of(&closed.operations, sent.map),
            };
            (entry, closed.operations)
        };
        Ok((appended, round.close().into_iter().map(head).collect()))
    }

    /// A request with the leaves and times that it depends on, as a coordinator adds them.
    fn with_facts(&self, request: &Checked) -> Checked {
        let leaf = |jsn| self.records.get(&leaf_key(request.ledger, jsn)[..]);
        let leaf = |jsn| leaf(jsn).and_then(|(value, _)| Leaf::decode(value).ok());
        let mut facts = request.clone();
        facts.take_facts(leaf, |version| self.times.get(&version).copied());
        facts
    }

    /// Takes over the operations of a part of a ledger.
    fn take_part(
        &mut self,
        operations: Vec<Operation>,
        shards: &[(ShardId, Digest)],
        (stamp, map): (Stamp, &ShardMap),
        kept: &mut Option<&mut Journals>,
        touched: &mut BTreeMap<ShardId, (Operations, Merges)>,
    ) -> Result<(), Finding> {
        for (shard, _) in shards {
            let own = |operation: &&Operation| map.shard_of(&operation.key).id == *shard;
            let mut list: Operations = operations.iter().filter(own).map(body).collect();
            let fits = audit::check_operations(self.params(), map, *shard, Author::Ledger, &list);
            fits.map_err(|broken| format!("audit: {stamp}: {}", broken.rule))?;
            if let Some(kept) = kept {
                list = kept.take(*shard, stamp, list)?;
            }
            touched.entry(*shard).or_default().0.extend(list);
        }
        for Operation { key, change } in operations {
            match change {
                coppice_types::Change::Put(value) => drop(self.records.insert(key, (value, stamp))),
                coppice_types::Change::Delete => drop(self.records.remove(&key)),
            }
        }
        Ok(())
    }

    fn params(&self) -> &Params {
        let (forest, _) = self.forests.values().next().expect("a ledger has a shard");
        &forest.params
    }

    fn change(&mut self, operation: &v1::Operation, stamp: Stamp) {
        match &operation.change {
            Some(Change::Put(value)) => {
                self.records.insert(operation.key.clone(), (value.clone(), stamp));
            }
            _ => {
                self.records.remove(&operation.key);
            }
        }
    }

    /// Checks that the header has the model's state root.
    fn check(&self, map: &ShardMap, header: &Header) -> Result<(), Finding> {
        let leaf = |shard: &Shard| {
            let (forest, version) = &self.forests[&shard.id];
            let (low, high) = (shard.low.clone(), shard.high.clone());
            StateLeaf { shard: shard.id, low, high, version: *version, digest: forest.digest() }
        };
        if state_root(&map.shards().iter().map(leaf).collect::<Vec<_>>()) == header.state_root {
            return Ok(());
        }
        Err(format!("audit: the state root of {} does not follow from its batches and events", header.stamp))
    }
}

/// The entries of a version's appends and heads, with their operations.
type Rejudged = (Vec<(AppendEntry, Vec<Operation>)>, Vec<(HeadEntry, Vec<Operation>)>);

/// An operation as it is hashed.
fn body(operation: &Operation) -> (Vec<u8>, RecordBody) {
    let body = match &operation.change {
        coppice_types::Change::Put(value) => RecordBody::put(value),
        coppice_types::Change::Delete => RecordBody::Tombstone,
    };
    (operation.key.to_vec(), body)
}

/// The shards that operations touch, with the hash of each one's list.
fn shards_of(operations: &[Operation], map: &ShardMap) -> Vec<(ShardId, Digest)> {
    let mut lists: BTreeMap<ShardId, Operations> = BTreeMap::new();
    for operation in operations {
        lists.entry(map.shard_of(&operation.key).id).or_default().push(body(operation));
    }
    let hash = |list: &Operations| hash::operation_list_hash(list.iter().map(|(key, body)| (key.as_slice(), *body)));
    lists.iter().map(|(shard, list)| (*shard, hash(list))).collect()
}

/// The batches that clients have sent.
struct Sent<'a> {
    history: &'a History,
    map: &'a ShardMap,
    by_metadata: BTreeMap<Digest, BatchId>,
}

impl<'a> Sent<'a> {
    fn new(history: &'a History, map: &'a ShardMap) -> Self {
        let hash = |(id, batch): (&BatchId, &Batch)| (hash::metadata_hash(&batch.batch.metadata), *id);
        Self { history, map, by_metadata: history.batches.iter().map(hash).collect() }
    }

    /// The batch of a journal entry.
    fn find(&self, entry: &BatchEntry, stamp: Stamp) -> Result<(BatchId, &'a Batch), Finding> {
        let id = self.by_metadata.get(&entry.metadata);
        let id = *id.ok_or_else(|| format!("commits: {stamp} has a batch that nobody sent"))?;
        let batch = &self.history.batches[&id];
        let session = entry.session.map(|(session, number)| (Bytes::copy_from_slice(&session.0), number));
        if session != batch.session {
            return Err(format!("commits: batch {id:x} was committed under another session or number"));
        }
        Ok((id, batch))
    }

    /// The batch's operations by shard. The entry must name all of them and no others.
    fn operations(
        &self,
        batch: &Batch,
        entry: &BatchEntry,
        stamp: Stamp,
    ) -> Result<BTreeMap<ShardId, Operations>, Finding> {
        let mut shards: BTreeMap<ShardId, Operations> = BTreeMap::new();
        for operation in &batch.batch.operations {
            let body = match &operation.change {
                Some(Change::Put(value)) => RecordBody::put(value),
                _ => RecordBody::Tombstone,
            };
            shards.entry(self.map.shard_of(&operation.key).id).or_default().push((operation.key.to_vec(), body));
        }
        let list =
            |list: &Operations| hash::operation_list_hash(list.iter().map(|(key, body)| (key.as_slice(), *body)));
        let hashes: Vec<(ShardId, Digest)> =
            shards.iter().map(|(shard, operations)| (*shard, list(operations))).collect();
        if hashes != entry.shards {
            return Err(format!("commits: {stamp} has a batch with different operations than were sent"));
        }
        Ok(shards)
    }
}
