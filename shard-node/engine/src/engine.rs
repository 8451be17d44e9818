//! The engine of one shard: owner of its data directory.
//!
//! Staging, settling, aborting, prune and rollback change memory alone. [`Engine::flush`] makes the whole state durable at once, under
//! the raft position that it follows from; after a crash the engine opens in the state of a flush and the raft log
//! replays the rest. The order of durability stands in `flush`.

use std::{collections::BTreeSet, sync::Arc};

use coppice_env::{File, OpenMode, Storage};
use coppice_types::{Epoch, Params, ShardId, Stamp, Version};
use coppice_verify::hash;

use crate::{
    Counters, DiskUsage, Error, ForestShape, MergeName, MergeProgress, Options, PrepareId, RaftPosition, Result,
    ShardState, StagedInfo, View,
    merge::MergeTask,
    meta::{Delta, Meta, MetaOp, Tree, VersionId, VersionRecord},
    meta_log::{self, MetaLog, Operations},
    page::PageFile,
    snapshot::{self, Pin},
    store::Store,
    superblock::{self, MACHINE_STATE_BYTES_MAX, Superblock},
    values,
};

const LOCK_FILE: &str = "lock";

/// One shard's state: a forest at every retained version, and the staged ones.
pub struct Engine {
    pub(crate) storage: Arc<dyn Storage>,
    options: Options,
    pub(crate) meta: Meta,
    pub(crate) store: Store,
    pub(crate) merge: Option<MergeTask>,
    log: MetaLog,
    /// Changes of the Meta table that no superblock covers.
    operations: Operations,
    super_file: Arc<dyn File>,
    pub(crate) superblock: Superblock,
    older: Option<Superblock>,
    /// Meta log files in the directory.
    meta_files: BTreeSet<u64>,
    pub(crate) pins: Vec<Pin>,
    next_pin: u64,
    poisoned: bool,
    _lock: Box<dyn Send + Sync>,
}

// Reads go on from several threads behind a lock that writes take alone.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Engine>();
};

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("shard", &self.meta.shard)
            .field("decided", &self.decided())
            .field("durable", &self.superblock.position)
            .finish_non_exhaustive()
    }
}

pub(crate) fn lock(storage: &dyn Storage) -> Result<Box<dyn Send + Sync>> {
    match storage.lock(LOCK_FILE) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Err(Error::Locked),
        other => other.map_err(Error::io("lock", LOCK_FILE)),
    }
}

/// Files of a data directory that are numbered or paged: what a crashed create may leave.
pub(crate) fn is_ours(name: &str) -> bool {
    let paged = PageFile::ALL.iter().any(|file| file.name() == name);
    paged || meta_log::file_number(name).is_some() || values::file_number(name).is_some()
}

impl Engine {
    /// Whether a data directory was completed here.
    ///
    /// # Errors
    /// If the storage fails.
    pub fn exists(storage: &dyn Storage) -> Result<bool> {
        superblock::exists(storage)
    }

    /// Makes a data directory: version 0, empty. What a crashed attempt left is replaced.
    ///
    /// # Errors
    /// `AlreadyExists`, `Locked`, `Invalid` parameters, or a failure of the storage.
    pub fn create(storage: Arc<dyn Storage>, shard: ShardId, params: Params, options: Options) -> Result<Self> {
        params.check().map_err(|error| Error::Invalid(error.0))?;
        storage.create_dir_all("").map_err(Error::io("create", "the directory"))?;
        let guard = lock(&*storage)?;
        if superblock::exists(&*storage)? {
            return Err(Error::AlreadyExists);
        }
        for name in storage.list("").map_err(Error::io("list", "the directory"))? {
            if is_ours(&name) || name == snapshot::MANIFEST_FILE {
                storage.remove(&name).map_err(Error::io("remove", &name))?;
            }
        }
        let mut meta = Meta::new(shard, params, genesis());
        let store = Store::open(&storage, &options, &meta, OpenMode::CreateNew)?;
        let mut log = MetaLog::create(&*storage, 1, &meta)?;
        let mut operations = Operations::default();
        let checkpoint = MetaOp::Checkpoint { generation: 1, segment_ends: Vec::new(), dead_segments: Vec::new() };
        operations.push(&checkpoint);
        let end = log.append_operations(&operations)?;
        log.sync()?;
        log.advance(end);
        meta.apply(checkpoint).expect("generation 1 follows on 0");
        storage.sync_dir("").map_err(Error::io("sync", "the directory"))?;
        let first = Superblock {
            generation: 1,
            position: RaftPosition::default(),
            meta_file: 1,
            meta_len: log.len,
            meta_chain: log.chain,
            machine_state: Arc::default(),
        };
        superblock::publish(&*storage, &first)?;
        Self::assemble(storage, options, guard, (meta, store, log), (first, None))
    }

    /// Opens a data directory in the state of its newest superblock; what a crash left beside it is deleted.
    ///
    /// # Errors
    /// `Missing`, `Locked`, `Corrupted`, or a failure of the storage.
    pub fn open(storage: Arc<dyn Storage>, options: Options) -> Result<Self> {
        if !superblock::exists(&*storage)? {
            return Err(Error::Missing);
        }
        let guard = lock(&*storage)?;
        let file = storage.open(superblock::FILE, OpenMode::Existing).map_err(Error::io("open", superblock::FILE))?;
        let (newest, older) = superblock::newest(superblock::read_slots(&*file)?)?;
        let (log, mut meta) = MetaLog::open(&*storage, &newest)?;
        meta.take_dead_segments();
        let store = Store::open(&storage, &options, &meta, OpenMode::Existing)?;
        let mut engine = Self::assemble(storage, options, guard, (meta, store, log), (newest, older))?;
        engine.remove_orphans()?;
        Ok(engine)
    }

    fn assemble(
        storage: Arc<dyn Storage>,
        options: Options,
        guard: Box<dyn Send + Sync>,
        (meta, store, log): (Meta, Store, MetaLog),
        (newest, older): (Superblock, Option<Superblock>),
    ) -> Result<Self> {
        let super_file =
            storage.open(superblock::FILE, OpenMode::Existing).map_err(Error::io("open", superblock::FILE))?;
        let meta_files = older.iter().map(|older| older.meta_file).chain([newest.meta_file]).collect();
        Ok(Self {
            storage,
            options,
            meta,
            store,
            merge: None,
            log,
            operations: Operations::default(),
            super_file,
            superblock: newest,
            older,
            meta_files,
            pins: Vec::new(),
            next_pin: 1,
            poisoned: false,
            _lock: guard,
        })
    }

    /// Deletes files that neither superblock names.
    fn remove_orphans(&mut self) -> Result<()> {
        for name in self.storage.list("").map_err(Error::io("list", "the directory"))? {
            let meta_orphan = meta_log::file_number(&name).is_some_and(|number| !self.meta_files.contains(&number));
            let orphan = |segment: u32| !self.meta.segments.contains_key(&segment);
            if meta_orphan || values::file_number(&name).is_some_and(orphan) {
                self.storage.remove(&name).map_err(Error::io("remove", &name))?;
            }
        }
        Ok(())
    }

    pub(crate) fn check_usable(&self) -> Result<()> {
        if self.poisoned { Err(Error::Poisoned) } else { Ok(()) }
    }

    /// Changes the Meta table, now and in the next flush.
    pub(crate) fn apply(&mut self, operation: MetaOp) {
        self.operations.push(&operation);
        let applied = self.meta.apply(operation);
        assert_eq!(applied, Ok(()), "a live operation fits the table");
        self.forget_freed();
    }

    pub(crate) fn forget_freed(&mut self) {
        let freed = self.meta.take_freed();
        self.store.forget(&freed);
    }

    // Names.

    /// The shard that the directory belongs to.
    #[must_use]
    pub fn shard(&self) -> ShardId {
        self.meta.shard
    }

    /// The parameters of the genesis header.
    #[must_use]
    pub fn params(&self) -> &Params {
        &self.meta.params
    }

    /// The newest decided state.
    #[must_use]
    pub fn decided(&self) -> ShardState {
        self.meta.tip().state()
    }

    /// The decided state of a cluster version: the newest at or below it.
    ///
    /// # Errors
    /// `Pruned` below the boundary.
    pub fn decided_at(&self, version: Version) -> Result<ShardState> {
        self.record_at(version).map(VersionRecord::state)
    }

    fn record_at(&self, version: Version) -> Result<&VersionRecord> {
        let pruned = Error::Pruned { boundary: self.meta.boundary };
        if version < self.meta.boundary {
            return Err(pruned);
        }
        self.meta.decided_at(version).ok_or(pruned)
    }

    /// Oldest cluster version that prunes have kept.
    #[must_use]
    pub fn boundary(&self) -> Version {
        self.meta.boundary
    }

    /// Epoch that the last rollback began; stamps of new versions are not below.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.meta.epoch
    }

    /// All staged versions, in the order in which they were staged.
    #[must_use]
    pub fn staged(&self) -> Vec<StagedInfo> {
        let info = |id: &VersionId| {
            let record = &self.meta.versions[id];
            StagedInfo {
                stamp: record.stamp,
                prepare_id: record.prepare_id,
                base: self.meta.versions[&record.parent].state(),
                state: record.state(),
            }
        };
        self.meta.staged.iter().map(info).collect()
    }

    /// Whether a decided or staged version has this name.
    #[must_use]
    pub fn has(&self, state: &ShardState) -> bool {
        self.meta.find(state).is_some()
    }

    pub(crate) fn find(&self, state: &ShardState) -> Result<&VersionRecord> {
        self.meta.find(state).ok_or(Error::StateMissing(*state))
    }

    /// The trees of a state, and the merges that are built here and can be installed on it.
    ///
    /// # Errors
    /// `StateMissing`.
    pub fn shape(&self, state: &ShardState) -> Result<ForestShape> {
        Ok(self.shape_of(&self.find(state)?.trees))
    }

    pub(crate) fn shape_of(&self, trees: &[Tree]) -> ForestShape {
        let ready = self.meta.ready_merges(trees).map(|merge| MergeName {
            inputs: merge.inputs.iter().map(|input| input.digest).collect(),
            output: merge.output.digest,
        });
        ForestShape { entries: trees.iter().map(|tree| tree.entries).collect(), ready: ready.collect() }
    }

    /// Reads of one state, decided or staged.
    ///
    /// # Errors
    /// `StateMissing`.
    pub fn view(&self, state: &ShardState) -> Result<View<'_>> {
        Ok(View::new(self, self.find(state)?))
    }

    /// Reads of the decided state of a cluster version.
    ///
    /// # Errors
    /// `Pruned` below the boundary.
    pub fn view_at(&self, version: Version) -> Result<View<'_>> {
        Ok(View::new(self, self.record_at(version)?))
    }

    // Deciding.

    /// Makes a staged version and those that it builds on permanent. Its siblings go; what builds on it stays. Nothing
    /// happens if it is decided already.
    ///
    /// # Errors
    /// `StateMissing`.
    pub fn settle(&mut self, state: &ShardState) -> Result<()> {
        let record = self.find(state)?;
        if record.decided {
            return Ok(());
        }
        let mut line = vec![record.id];
        let mut parent = record.parent;
        while !self.meta.versions[&parent].decided {
            line.push(parent);
            parent = self.meta.versions[&parent].parent;
        }
        for id in line.iter().rev() {
            self.apply(MetaOp::Settle(*id));
        }
        let kept = self.meta.with_descendants(line[0]);
        let dropped = self.meta.staged.iter().copied().filter(|id| !kept.contains(id)).collect();
        self.drop_versions(dropped);
        Ok(())
    }

    /// [`Engine::settle`], then every other staged version is dropped.
    ///
    /// # Errors
    /// `StateMissing`; nothing is dropped then.
    pub fn adopt(&mut self, state: &ShardState) -> Result<()> {
        self.settle(state)?;
        self.abort_all_staged();
        Ok(())
    }

    /// Drops a staged version and all that builds on it; says how many that were.
    pub fn abort(&mut self, version: Version, prepare_id: PrepareId) -> usize {
        let named = |id: &&VersionId| {
            let record = &self.meta.versions[*id];
            record.stamp.version == version && record.prepare_id == prepare_id
        };
        let Some(id) = self.meta.staged.iter().find(named).copied() else { return 0 };
        let family = self.meta.with_descendants(id);
        let count = family.len();
        self.drop_versions(family);
        count
    }

    /// Drops every staged version; says how many that were.
    pub fn abort_all_staged(&mut self) -> usize {
        let all: Vec<VersionId> = self.meta.staged.iter().copied().collect();
        let count = all.len();
        self.drop_versions(all);
        count
    }

    fn drop_versions(&mut self, ids: Vec<VersionId>) {
        for id in ids {
            self.apply(MetaOp::DropVersion(id));
        }
        for id in self.meta.needless_merges() {
            self.apply(MetaOp::DropMerge(id));
        }
        let meta = &self.meta;
        let tips = || meta.staged.iter().map(|id| &meta.versions[id]).chain([meta.tip()]);
        let lost = self.merge.take_if(|task| !tips().any(|tip| task.stands_in(&tip.trees)));
        if let Some(task) = lost {
            self.meta.discard_all(&task.delta);
            self.forget_freed();
        }
    }

    /// Drops every staged version and every decided one above `to`; gives the new tip. A frozen tree that was active there
    /// is active again, since versions list their trees.
    ///
    /// # Errors
    /// `Pruned` below the boundary; nothing is dropped then.
    pub fn rollback(&mut self, to: Version, epoch: Epoch) -> Result<ShardState> {
        self.check_usable()?;
        let target = self.decided_at(to)?;
        let decided = self.meta.decided.range(to.next()..).map(|(_, id)| *id);
        let dropped = self.meta.staged.iter().copied().chain(decided).collect();
        self.drop_versions(dropped);
        self.apply(MetaOp::SetEpoch(epoch.max(self.meta.epoch)));
        assert_eq!(self.decided(), target);
        Ok(target)
    }

    /// Drops the decided versions below the newest one at or below `before`. Staged versions are not touched.
    ///
    /// # Errors
    /// If a failed superblock write has made the engine unusable.
    pub fn prune(&mut self, before: Version) -> Result<()> {
        self.check_usable()?;
        if before > self.meta.boundary {
            self.apply(MetaOp::Prune(before));
        }
        Ok(())
    }

    // Durability.

    /// Raft entries up to here need not be replayed after `open`.
    #[must_use]
    pub fn durable_position(&self) -> RaftPosition {
        self.superblock.position
    }

    /// Raft entries above here are needed if the newest superblock is damaged.
    #[must_use]
    pub fn fallback_position(&self) -> RaftPosition {
        self.older.as_ref().unwrap_or(&self.superblock).position
    }

    /// The caller's bytes as of [`Engine::durable_position`].
    #[must_use]
    pub fn machine_state(&self) -> &[u8] {
        &self.superblock.machine_state
    }

    /// How much the next flush would write, roughly.
    #[must_use]
    pub fn unflushed_bytes(&self) -> u64 {
        self.store.unflushed_bytes() + self.operations.bytes.len() as u64
    }

    /// Makes the whole state durable, as what follows from raft entries up to `position`.
    ///
    /// Order, and what a crash after each step leaves: (1) nodes and values in places that no superblock refers to, (2) the meta log behind the
    /// length that a superblock names, (3) names of new files: until here the old superblocks hold and nothing they refer to was touched;
    /// (4) the slot of the older superblock: torn, the newer one holds; whole, the new state. Then what became free is reused and files that
    /// no superblock names are deleted; a crash before leaves them to the next `open`.
    ///
    /// # Errors
    /// A failure of the storage (a full disk, say). Up to step 3 the state is intact and a later flush may succeed, after a prune perhaps;
    /// in step 4 the engine becomes unusable for changes (`Poisoned`) until it is opened anew.
    pub fn flush(&mut self, position: RaftPosition, machine_state: &[u8]) -> Result<()> {
        self.check_usable()?;
        if machine_state.len() > MACHINE_STATE_BYTES_MAX {
            return Err(Error::Invalid("machine state length"));
        }
        assert!(position.index >= self.superblock.position.index, "raft positions never go back");
        let generation = self.superblock.generation + 1;
        let segment_ends = self.store.values.unflushed_ends();
        let dead_segments = self.meta.dying_segments(&segment_ends);
        let mut names_changed = self.store.write()?;
        let checkpoint = MetaOp::Checkpoint { generation, segment_ends, dead_segments };
        let new_log = self.write_meta(&checkpoint)?;
        names_changed |= new_log.0.is_some();
        if names_changed {
            self.storage.sync_dir("").map_err(Error::io("sync", "the directory"))?;
        }
        let (file, end) = new_log;
        let meta_file = file.as_ref().map_or(self.log.number, |log| log.number);
        let next = Superblock {
            generation,
            position,
            meta_file,
            meta_len: end.0,
            meta_chain: end.1,
            machine_state: machine_state.into(),
        };
        self.write_superblock(&next)?;
        if let Some(log) = file {
            self.meta_files.insert(log.number);
            self.log = log;
        }
        self.log.advance(end);
        self.operations = Operations::default();
        self.older = Some(std::mem::replace(&mut self.superblock, next));
        self.store.flushed();
        self.meta.apply(checkpoint).expect("generations ascend");
        self.store.counters.flushes.one();
        self.clean_up();
        Ok(())
    }

    /// Step 2 of a flush: appends to the log, or begins a new one. Gives the new log and where it ends.
    fn write_meta(&mut self, checkpoint: &MetaOp) -> Result<(Option<MetaLog>, (u64, u64))> {
        let generation = self.superblock.generation + 1;
        if self.log.is_long(self.options.meta_compaction_bytes_min) {
            let log = MetaLog::create(&*self.storage, generation, &self.meta)?;
            let mut operations = Operations::default();
            operations.push(checkpoint);
            let end = log.append_operations(&operations)?;
            log.sync()?;
            self.store.counters.meta_write_bytes.add(end.0);
            return Ok((Some(log), end));
        }
        let mut operations = self.operations.clone();
        operations.push(checkpoint);
        let end = self.log.append_operations(&operations)?;
        self.log.sync()?;
        self.store.counters.meta_write_bytes.add(end.0 - self.log.len);
        Ok((None, end))
    }

    /// Step 4 of a flush. A slot of unknown content may name pages that memory would give away, so a failure is final.
    fn write_superblock(&mut self, next: &Superblock) -> Result<()> {
        let written = superblock::write_slot(&*self.super_file, next).and_then(|()| self.super_file.sync_data());
        self.store.counters.meta_write_bytes.add(superblock::SLOT_BYTES as u64);
        written.map_err(|error| {
            self.poisoned = true;
            Error::io("write", superblock::FILE)(error)
        })
    }

    /// Deletes files that nothing refers to any more. What fails is left to the next `open`.
    pub(crate) fn clean_up(&mut self) {
        for dead in self.meta.take_dead_segments() {
            let _ = self.store.values.delete(dead.segment);
        }
        let named: BTreeSet<u64> = [self.superblock.meta_file]
            .into_iter()
            .chain(self.older.iter().map(|older| older.meta_file))
            .chain(self.pins.iter().map(|pin| pin.superblock.meta_file))
            .collect();
        for number in self.meta_files.difference(&named) {
            let _ = self.storage.remove(&meta_log::file_name(*number));
        }
        self.meta_files = named;
        if self.store.filters_cached() > self.options.filters_cached_max {
            let trees = self.meta.versions.values().flat_map(|version| &version.trees);
            let outputs = self.meta.merges.values().map(|merge| &merge.output);
            let places: BTreeSet<_> = trees.chain(outputs).filter_map(|tree| tree.filter).map(|blob| blob.at).collect();
            self.store.retain_filters(|at| places.contains(at));
        }
    }

    /// A number for a snapshot.
    pub(crate) fn next_pin(&mut self) -> u64 {
        self.next_pin += 1;
        self.next_pin - 1
    }

    // Merges.

    /// Works on the merge that the tier rule asks for in the decided state, for about `budget` records.
    ///
    /// # Errors
    /// What reading pages gives; the merge begins anew with the next call.
    pub fn merge_step(&mut self, budget: usize) -> Result<MergeProgress> {
        self.check_usable()?;
        if self.merge.is_none() {
            let tip = self.meta.tip();
            let frozen: Vec<u64> = tip.trees[1..].iter().map(|tree| tree.entries).collect();
            let Some(count) = coppice_verify::rules::plan_merge(&self.meta.params, &frozen) else {
                return Ok(MergeProgress::Idle);
            };
            if self.meta.find_merge(&tip.trees, 1, count).is_some() {
                return Ok(MergeProgress::Idle);
            }
            self.merge = Some(MergeTask::new(&self.store, &self.meta, &self.meta.params, &tip.trees, 1, count)?);
        }
        let mut task = self.merge.take().expect("it was begun above");
        match task.step(&mut self.store, &mut self.meta, budget) {
            Ok(false) => {
                self.merge = Some(task);
                Ok(MergeProgress::Working)
            }
            Ok(true) => {
                let params = self.meta.params.clone();
                let record = task.finish(&mut self.store, &mut self.meta, &params);
                let inputs = record.inputs.iter().map(|input| input.digest).collect();
                let name = MergeName { inputs, output: record.output.digest };
                self.apply(MetaOp::AddMerge(record));
                Ok(MergeProgress::Built(name))
            }
            Err(error) => {
                self.meta.discard_all(&task.delta);
                self.forget_freed();
                Err(error)
            }
        }
    }

    /// Merges that are built here and can be installed on the decided state.
    #[must_use]
    pub fn built_merges(&self) -> Vec<MergeName> {
        self.shape_of(&self.meta.tip().trees).ready
    }

    // Counting.

    /// What was counted since the engine was opened.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.store.counters.snapshot()
    }

    /// Bytes by file kind.
    ///
    /// # Errors
    /// If the storage fails.
    pub fn disk_usage(&self) -> Result<DiskUsage> {
        // Pages that died before they were flushed may lie beyond the end of the file.
        let bytes = |file: PageFile| self.store.page_file_bytes(file);
        let free = |file: PageFile| {
            let space = self.meta.space(file);
            let free = (space.free.pages() + space.limbo_pages()) * crate::page::PAGE_BYTES as u64;
            bytes(file).map(|bytes| free.min(bytes))
        };
        let (young_cache_bytes, old_cache_bytes) = self.store.cache_bytes();
        Ok(DiskUsage {
            index_bytes: bytes(PageFile::Index)?,
            index_free_bytes: free(PageFile::Index)?,
            data_bytes: bytes(PageFile::Data)?,
            data_free_bytes: free(PageFile::Data)?,
            value_bytes: self.meta.segments.values().map(|segment| segment.end).sum(),
            value_live_bytes: self.meta.segments.values().map(|segment| segment.live).sum(),
            meta_bytes: self.log.len,
            young_cache_bytes: young_cache_bytes as u64,
            old_cache_bytes: old_cache_bytes as u64,
            versions: self.meta.versions.len() as u64,
        })
    }
}

fn genesis() -> VersionRecord {
    VersionRecord {
        id: 0,
        parent: 0,
        decided: true,
        stamp: Stamp::default(),
        prepare_id: PrepareId::default(),
        digest: hash::empty_shard_digest(),
        trees: vec![Tree::empty()],
        freezes: 0,
        installs: Vec::new(),
        delta: Delta::default(),
    }
}
