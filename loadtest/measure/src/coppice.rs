//! Our engine, driven as a replica with one voter drives it. A batch is an entry of the raft log.
//! While the entry is synced, the batch is staged, which computes the shard digest; then it is
//! settled. Merges, writes ahead and flushes follow the rules of `coppice-shard-node`.

use std::{
    borrow::Cow,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use coppice_consensus::{Beside, Group, Options as RaftOptions, Payload, RaftId, Role, Writing};
use coppice_engine::{
    ACTIVE_HASH_BYTES, Engine, MergePace, MergeProgress, Options, Position, PrepareId, StageRequest, Staged, View,
    Writes,
};
use coppice_env::{Clock, DiskStorage, SimRng, Storage, SystemClock, TieredStorage, Workers};
use coppice_types::{Change, ClusterId, GroupId, Operation, Params, ShardId, Stamp, Term, Version, codec::Writer};
use coppice_verify::{
    check::{Answer, verify_trees},
    proof::{Query, TreeList},
};

use crate::{
    system::{Proofs, Reader, System},
    workload::Record,
};

/// Unflushed bytes at which a flush begins, as in a replica.
const FLUSH_BYTES: u64 = 32 << 20;
/// Records that one step of merging takes, as in a replica.
const MERGE_RECORDS_MIN: usize = 256;
const MERGE_RECORDS_MAX: usize = 1024;

/// The step that makes a batch durable before a put returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The raft log, as in a cluster. The forest is flushed later.
    Log,
    /// A flush of the forest for each batch; there is no log.
    Flush,
    /// Nothing. The forest is flushed when enough bytes wait for it. For measurements of the forest
    /// alone.
    Later,
}

/// The settings of the engine.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The genesis parameters.
    pub params: Params,
    /// Bytes of all caches together.
    pub cache_bytes: usize,
    /// The step that makes a batch durable.
    pub durability: Durability,
    /// The number of newest versions to keep; older ones are pruned. `None` prunes nothing.
    pub retain: Option<u64>,
    /// Unflushed bytes at which a flush begins.
    pub flush_bytes: u64,
    /// The value of [`Options::waiting_percent_max`].
    pub waiting_percent: u32,
    /// Bytes of values that stay in the first directory; with `None` there is no second directory
    /// for values.
    pub hot_value_bytes: Option<u64>,
    /// Whether nothing will be written, so that no hashes have to be kept for changes.
    pub only_reads: bool,
}

impl Settings {
    /// The defaults of a cluster, with every version kept.
    #[must_use]
    pub fn new(cache_bytes: usize) -> Self {
        Self {
            params: Params::default(),
            cache_bytes,
            durability: Durability::Log,
            retain: None,
            flush_bytes: FLUSH_BYTES,
            waiting_percent: Options::default().waiting_percent_max,
            hot_value_bytes: None,
            only_reads: false,
        }
    }

    /// These settings without a log and with a different cache size, for reads.
    fn for_reads(&self, cache_bytes: usize) -> Self {
        Self { cache_bytes, durability: Durability::Later, only_reads: true, ..self.clone() }
    }

    /// The division of the caches. The active tree's nodes get a quarter (an eighth without
    /// writes), but no more than they can use. Hashes get at most a quarter, and in any case those
    /// of the active tree. Nodes of frozen trees get the rest.
    #[must_use]
    pub fn options(&self) -> Options {
        let defaults = Options::default();
        // Without writes, filters keep most gets away from the active tree.
        let young = (self.cache_bytes / if self.only_reads { 8 } else { 4 }).min(defaults.young_cache_bytes);
        // Hashes of the active tree are kept only for writes.
        let (active, hashes) = if self.only_reads {
            (0, 0)
        } else {
            let active = self.params.capacity as usize * ACTIVE_HASH_BYTES;
            (active, (self.cache_bytes / 4).saturating_sub(active).min(defaults.hash_cache_bytes))
        };
        Options {
            young_cache_bytes: young,
            hash_cache_bytes: hashes,
            old_cache_bytes: (self.cache_bytes - young).saturating_sub(active + hashes),
            waiting_percent_max: self.waiting_percent,
            hot_value_bytes_max: self.hot_value_bytes.unwrap_or(defaults.hot_value_bytes_max),
            ..defaults
        }
    }

    fn storage(&self, dir: &Path) -> Result<Arc<dyn Storage>> {
        let storage: Arc<dyn Storage> = DiskStorage::new(dir).subdir("engine")?;
        let cold = || Ok::<_, anyhow::Error>(DiskStorage::new(dir).subdir("cold")?);
        Ok(if self.hot_value_bytes.is_some() { Arc::new(TieredStorage::new(storage, cold()?)) } else { storage })
    }
}

/// One shard's engine and its log.
#[derive(Debug)]
pub struct Coppice {
    // The writer comes before the engine, so that its writes end first.
    writer: Option<JoinHandle<Writes>>,
    engine: Engine,
    /// Only puts use the log, and they have exclusive access. The mutex is there because a `Group`
    /// can't be shared between threads.
    log: Option<Mutex<Group>>,
    settings: Settings,
    /// The worker threads of the engine.
    workers: Workers,
    applied: Position,
}

impl Coppice {
    /// Makes a store in a directory.
    ///
    /// # Errors
    /// If the directory can't be written to.
    pub fn create(dir: &Path, settings: Settings) -> Result<Self> {
        let storage: Arc<dyn Storage> = Arc::new(DiskStorage::new(dir));
        let options = settings.options();
        let workers = options.workers;
        let engine = Engine::create(settings.storage(dir)?, ShardId(0), settings.params.clone(), options)?;
        let log = (settings.durability == Durability::Log).then(|| lone_voter(&*storage)).transpose()?;
        let applied = Position { index: 1, term: 1 };
        Ok(Self { writer: None, engine, log: log.map(Mutex::new), settings, workers, applied })
    }

    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The engine, for operations that no batch performs.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// The newest version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.engine.decided().version
    }

    /// Waits for writes in the background, and makes the forest durable.
    ///
    /// # Errors
    /// If the storage fails.
    pub fn flush(&mut self) -> Result<()> {
        self.begin_flush()?;
        self.end_writes()
    }

    fn begin_flush(&mut self) -> Result<()> {
        self.end_writes()?;
        let position = Position { index: self.applied.index, term: self.applied.term };
        let flush = self.engine.begin_flush(position, b"")?;
        self.begin_writes(flush)
    }

    /// The part of a budget in bytes that remains for the caches of an engine opened for reads,
    /// after the filters that gets load into memory.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn caches_within(&self, budget: u64) -> Result<usize> {
        let mut trees = self.engine.shape(&self.engine.decided())?.entries.into_iter().skip(1);
        let filter = |records: u64| records * u64::from(self.engine.params().filter_bits) / 8;
        let oldest = trees.next_back().map_or(0, filter);
        let beside_younger = usize::try_from(budget.saturating_sub(trees.map(filter).sum()))?;
        let beside_all = beside_younger.saturating_sub(usize::try_from(oldest)?);
        // Gets don't load the oldest tree's filter if it is larger than the cache.
        let old_cache = self.settings.for_reads(beside_younger).options().old_cache_bytes;
        Ok(if old_cache as u64 >= oldest { beside_all } else { beside_younger })
    }

    /// Opens the engine again for reads, with caches of the given size, which are empty at first.
    ///
    /// # Errors
    /// If the storage fails.
    pub fn reopen(mut self, dir: &Path, cache_bytes: usize) -> Result<Self> {
        self.flush()?;
        let settings = self.settings.for_reads(cache_bytes);
        let (workers, applied) = (self.workers, self.applied);
        drop(self);
        let engine = Engine::open(settings.storage(dir)?, settings.options())?;
        Ok(Self { writer: None, engine, log: None, settings, workers, applied })
    }

    /// Flushes, closes and opens the engine again. Returns it with the seconds that opening took.
    ///
    /// # Errors
    /// If the storage fails, or the store has a log.
    pub(crate) fn open_again(mut self, dir: &Path, clock: &dyn Clock) -> Result<(Self, f64)> {
        ensure!(self.log.is_none(), "a log stays open");
        self.flush()?;
        let (settings, workers, applied) = (self.settings.clone(), self.workers, self.applied);
        drop(self);
        let begin = clock.now();
        let engine = Engine::open(settings.storage(dir)?, settings.options())?;
        let took = (clock.now() - begin).as_secs_f64();
        Ok((Self { writer: None, engine, log: None, settings, workers, applied }, took))
    }

    /// Appends a batch to the log and stages it while it is written, as a replica does. If the
    /// write of the log takes longer than that, steps of merging fill the time. When the entry is
    /// committed, and so synced, the version is settled.
    fn commit(&mut self, operations: &[Operation]) -> Result<()> {
        let Some(log) = &mut self.log else {
            self.applied.index += 1;
            let staged = stage(&mut self.engine, operations)?;
            return self.settle_version(&staged);
        };
        let group = log.get_mut().unwrap_or_else(PoisonError::into_inner);
        let position = group.propose(encode(operations))?;
        let (engine, mut staged, mut merged) = (&mut self.engine, None, Ok(()));
        let committed = advance(group, |committed| committed == position, self.workers, &mut |writing| {
            staged = Some(stage(engine, operations));
            while merged.is_ok() && (writing.goes_on)() {
                let records = match engine.merge_pace() {
                    MergePace::Idle | MergePace::Waiting => break,
                    _ => records_behind(engine).unwrap_or(MERGE_RECORDS_MIN),
                };
                merged = engine.merge_step(records).map(|_| ());
            }
        });
        merged?;
        self.applied = committed?;
        group.applied(self.applied.index);
        let staged = staged.unwrap_or_else(|| stage(engine, operations))?;
        self.settle_version(&staged)
    }

    fn settle_version(&mut self, staged: &Staged) -> Result<()> {
        self.engine.settle(&staged.state)?;
        if let Some(retain) = self.settings.retain {
            self.engine.prune(Version(staged.state.version.0.saturating_sub(retain)))?;
        }
        Ok(())
    }

    /// Merges until merging is no longer behind. If the engine would refuse the next version, this
    /// completes the merge, as a leader would wait for it.
    fn merge_if_behind(&mut self) -> Result<()> {
        while let Some(records) = records_behind(&self.engine) {
            self.merge_step(records)?;
        }
        let params = self.engine.params();
        let shape = self.engine.shape(&self.engine.decided())?;
        let full = shape.entries.first().is_some_and(|active| *active >= u64::from(params.capacity));
        if full && shape.entries.len() >= usize::from(params.tree_limit) && shape.ready.is_empty() {
            while self.merge_step(MERGE_RECORDS_MAX)? == MergeProgress::Working {}
        }
        Ok(())
    }

    /// Whether there is something to merge.
    #[must_use]
    pub fn has_merges(&self) -> bool {
        self.engine.merge_pace() != MergePace::Idle
    }

    /// Merges a little, as an idle replica does. Returns whether there was something to merge.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn merge_a_little(&mut self) -> Result<bool> {
        let some = self.has_merges();
        if some {
            self.merge_step(MERGE_RECORDS_MIN)?;
        }
        Ok(some)
    }

    /// Does one step of a merge, and flushes or writes ahead if that is due. This bounds the memory
    /// for unflushed output of merges, as it does for that of puts.
    fn merge_step(&mut self, records: usize) -> Result<MergeProgress> {
        let progress = self.engine.merge_step(records)?;
        self.flush_if_due()?;
        Ok(progress)
    }

    fn flush_if_due(&mut self) -> Result<()> {
        let (bytes, flush_bytes) = (self.engine.unflushed_bytes(), self.settings.flush_bytes);
        if bytes >= 2 * flush_bytes {
            return self.begin_flush();
        }
        if self.writer.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return Ok(());
        }
        self.end_writes()?;
        if self.engine.unflushed_bytes() >= flush_bytes || self.engine.much_waits() {
            self.begin_flush()
        } else if self.engine.behind_bytes() > self.engine.ahead_bytes_min(flush_bytes) {
            let ahead = self.engine.begin_ahead();
            self.begin_writes(ahead)
        } else {
            Ok(())
        }
    }

    fn begin_writes(&mut self, mut writes: Writes) -> Result<()> {
        let run = move || {
            writes.run();
            writes
        };
        self.writer = Some(std::thread::Builder::new().name("disk-writer".to_owned()).spawn(run)?);
        Ok(())
    }

    /// Waits for writes in the background, and truncates the log after a flush.
    fn end_writes(&mut self) -> Result<()> {
        let Some(thread) = self.writer.take() else { return Ok(()) };
        let before = self.engine.fallback_position().index;
        self.engine.end_writes(thread.join().expect("writes break no invariant"))?;
        let floor = self.engine.fallback_position().index;
        if let Some(log) = self.log.as_mut().filter(|_| floor > before) {
            let log = log.get_mut().unwrap_or_else(PoisonError::into_inner);
            if let Some(mut cut) = log.begin_cut(floor)? {
                cut.run::<coppice_consensus::Error>(|| Ok(()))?;
                log.end_cut(cut).remove()?;
            }
        }
        Ok(())
    }

    /// Makes and verifies a proof for each key at an old version.
    ///
    /// # Errors
    /// If a proof can't be made, or does not verify.
    pub fn prove_at(&self, version: Version, keys: &[Vec<u8>]) -> Result<Proofs> {
        let view = self.engine.view_at(version)?;
        let clock = SystemClock::new();
        let mut files = Vec::with_capacity(keys.len());
        let begin = clock.now();
        for key in keys {
            files.push(view.prove_keys(&[key])?);
        }
        let made_in = clock.now() - begin;
        let begin = clock.now();
        for (key, file) in keys.iter().zip(&files) {
            ensure!(is_proven(&view, key, file)?, "a key that was written has no record");
        }
        let verified_in = clock.now() - begin;
        let bytes = files.iter().map(|file| file.len() as f64).collect();
        Ok(Proofs { bytes, made_in, verified_in })
    }
}

impl Drop for Coppice {
    fn drop(&mut self) {
        if let Some(thread) = self.writer.take() {
            // A directory that is opened again must have no other writer.
            let _ = thread.join();
        }
    }
}

/// Stages the version after the decided one.
fn stage(engine: &mut Engine, operations: &[Operation]) -> Result<Staged, coppice_engine::Error> {
    let version = engine.decided().version.next();
    // A leader plans one merge for each version.
    let merges: Vec<_> = engine.built_merges().into_iter().take(1).collect();
    engine.stage(&StageRequest {
        stamp: Stamp { epoch: engine.epoch(), version },
        prepare_id: PrepareId { term: Term(1), attempt: version.0 },
        base: engine.decided(),
        merges: &merges,
        operations,
        erases: &[],
    })
}

/// The number of records for the next step of a merge; `None` if merging is not behind.
fn records_behind(engine: &Engine) -> Option<usize> {
    let MergePace::Behind(owed) = engine.merge_pace() else { return None };
    let records = usize::try_from(owed).unwrap_or(MERGE_RECORDS_MAX);
    Some(records.clamp(MERGE_RECORDS_MIN, MERGE_RECORDS_MAX))
}

/// A raft group of one replica, which leads.
fn lone_voter(storage: &dyn Storage) -> Result<Group> {
    let id = RaftId::new(1, 1);
    let options = RaftOptions::new(ClusterId([7; 16]), GroupId::Shard(ShardId(0)), id);
    storage.create_dir_all("raft")?;
    let mut group = Group::create(storage.subdir("raft")?, options, Box::new(SimRng::new(1)), &[id])?;
    group.campaign()?;
    let position = advance(&mut group, |_| true, Workers::Inline, &mut |_| {})?;
    group.applied(position.index);
    ensure!(group.status().role == Role::Leader, "a lone voter leads");
    Ok(group)
}

/// Advances the group until an awaited entry is committed. `meanwhile` runs while a large entry is
/// written.
fn advance(
    group: &mut Group,
    awaited: impl Fn(Position) -> bool,
    workers: Workers,
    meanwhile: &mut dyn FnMut(&Writing<'_>),
) -> Result<Position> {
    while group.has_ready() {
        let output = group.advance_beside(&mut |_| {}, Beside { workers, meanwhile, writes: &|_| {} })?;
        let committed = output.committed.iter().filter(|entry| !matches!(entry.payload, Payload::Membership(_)));
        if let Some(entry) = committed.into_iter().find(|entry| awaited(entry.position)) {
            return Ok(entry.position);
        }
    }
    anyhow::bail!("the entry was not committed, though there is nobody else to wait for")
}

/// Encodes a batch for the log: about as long as a replica's command.
fn encode(operations: &[Operation]) -> Bytes {
    let mut out = Writer::with_room(4 + operations.iter().map(Operation::encoded_bytes).sum::<usize>());
    out.u32(operations.len() as u32);
    operations.iter().for_each(|operation| operation.encode(&mut out));
    out.into_bytes().into()
}

fn is_proven(view: &View<'_>, key: &[u8], file: &[u8]) -> Result<bool> {
    let trees = TreeList::decode(file).map_err(|error| anyhow::anyhow!("an unreadable proof: {error}"))?;
    let query = Query::Keys(vec![Cow::Borrowed(key)]);
    let answer = verify_trees(trees, &view.state().digest, view.stamp(), &query);
    let answer = answer.map_err(|failure| anyhow::anyhow!("a proof fails: {failure}"))?;
    Ok(matches!(answer, Answer::Keys(keys) if keys.iter().all(|(_, record)| record.is_some())))
}

impl System for Coppice {
    fn put(&mut self, batch: Vec<Record>) -> Result<()> {
        let operation = |record: Record| Operation { key: record.key.into(), change: Change::Put(record.value.into()) };
        let mut operations: Vec<Operation> = batch.into_iter().map(operation).collect();
        operations.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        // Do the merges that were due after the last batch but did not fit into its time.
        self.merge_if_behind()?;
        self.commit(&operations)?;
        if self.settings.durability == Durability::Flush { self.flush() } else { self.flush_if_due() }
    }

    /// Merges everything that the tier rule asks for; each output is installed by an empty version.
    fn settle(&mut self) -> Result<()> {
        loop {
            while self.merge_step(MERGE_RECORDS_MAX)? == MergeProgress::Working {}
            if self.engine.built_merges().is_empty() {
                return self.flush().context("after the last merge");
            }
            self.commit(&[])?;
        }
    }

    fn reader(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(self.engine.view(&self.engine.decided())?))
    }

    fn prove(&self, keys: &[Vec<u8>]) -> Result<Option<Proofs>> {
        self.prove_at(self.version(), keys).map(Some)
    }
}

impl Reader for View<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let Some(found) = View::get(self, key, true)?.and_then(|record| record.value) else { return Ok(false) };
        *value = found;
        Ok(true)
    }

    fn range(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<Option<usize>> {
        let page = View::range(self, from, None, limit, true)?;
        for record in &page.records {
            visit(&record.key, record.value.as_deref().unwrap_or_default());
        }
        Ok(Some(page.records.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Workload, key};

    fn small(durability: Durability) -> Settings {
        let params = Params { capacity: 64, ..Params::default() };
        Settings { params, durability, ..Settings::new(1 << 20) }
    }

    fn value(store: &Coppice, number: u64) -> Vec<u8> {
        let mut value = Vec::new();
        let mut reader = store.reader().expect("reads");
        assert!(reader.get(&key(number), &mut value).expect("reads"));
        value
    }

    #[test]
    fn merges_go_on_over_many_puts() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut store = Coppice::create(dir.path(), small(Durability::Later)).expect("creates");
        let mut workload = Workload::new(4000, 10, 0.0, 1);
        let mut unfinished = 0;
        for numbers in workload.order(false).chunks(8) {
            let batch = workload.batch(numbers);
            store.put(batch).expect("puts");
            let shape = store.engine().shape(&store.engine().decided()).expect("it is there");
            let full = shape.entries.len() == usize::from(store.engine().params().tree_limit);
            unfinished += u32::from(full && shape.ready.is_empty());
        }
        assert!(unfinished > 10, "{unfinished}");
    }

    #[test]
    fn what_was_put_is_read_and_proven_by_every_durability() {
        for durability in [Durability::Log, Durability::Flush, Durability::Later] {
            let dir = tempfile::tempdir().expect("a directory");
            let mut store = Coppice::create(dir.path(), small(durability)).expect("creates");
            let mut workload = Workload::new(1000, 200, 0.0, 1);
            for numbers in workload.order(false).chunks(50) {
                let batch = workload.batch(numbers);
                store.put(batch).expect("puts");
            }
            let updated = workload.record(7);
            store.put(vec![updated.clone()]).expect("puts");
            assert_eq!(value(&store, 7), updated.value);
            store.settle().expect("merges");
            assert_eq!(value(&store, 7), updated.value);
            let keys: Vec<Vec<u8>> = (0..1000).map(key).collect();
            let proofs = store.prove(&keys).expect("proves").expect("it can");
            assert_eq!(proofs.bytes.len(), 1000);
            let mut found = Vec::new();
            let mut reader = store.reader().expect("reads");
            let count = reader.range(&[], 2000, &mut |key, _| found.push(key.to_vec())).expect("reads");
            assert_eq!((count, found.is_sorted()), (Some(1000), true));
        }
    }

    #[test]
    fn merges_keep_the_number_of_trees_small() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut store = Coppice::create(dir.path(), small(Durability::Later)).expect("creates");
        let mut workload = Workload::new(5000, 20, 0.0, 1);
        for numbers in workload.order(false).chunks(40) {
            let batch = workload.batch(numbers);
            store.put(batch).expect("puts");
            let trees = store.engine.shape(&store.engine.decided()).expect("stands").entries.len();
            assert!(trees <= usize::from(store.settings.params.tree_limit), "{trees} trees");
        }
    }

    #[test]
    fn a_reopened_store_has_everything_and_caches_only_the_active_tree() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut store = Coppice::create(dir.path(), small(Durability::Log)).expect("creates");
        let mut workload = Workload::new(300, 200, 0.0, 1);
        let batch = workload.batch(&workload.order(true));
        store.put(batch).expect("puts");
        let before = value(&store, 7);
        let store = store.reopen(dir.path(), 1 << 20).expect("opens");
        let (usage, reads) = (store.engine.disk_usage().expect("readable"), store.engine.counters().span_reads);
        assert!(reads > 0 && usage.young_cache_bytes > 0 && usage.old_cache_bytes == 0, "{reads} reads, {usage:?}");
        assert_eq!(value(&store, 7), before);
        assert_eq!(store.engine.counters().span_reads, reads);
    }

    #[test]
    fn only_the_versions_to_retain_are_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let settings = Settings { retain: Some(5), ..small(Durability::Later) };
        let mut store = Coppice::create(dir.path(), settings).expect("creates");
        let mut workload = Workload::new(10, 20, 0.0, 1);
        for _ in 0..20 {
            let batch = workload.updates(3);
            store.put(batch).expect("puts");
        }
        assert_eq!((store.version(), store.engine.boundary()), (Version(20), Version(15)));
    }
}
