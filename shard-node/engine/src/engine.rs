//! The engine of one shard, the owner of its data directory.
//!
//! Staging, settling, aborting, prune and rollback change memory only. [`Engine::flush`] makes the
//! whole state durable at once, together with the raft position that it follows from. After a crash
//! the engine opens in the state of a flush, and the raft log replays the rest. [`Engine::flush`]
//! documents the order of durability.

mod checkpoint;
mod cold;
mod decide;
mod erase;
mod flush;
pub(crate) mod journals;
mod merge;
mod snapshot;
mod stage;
pub(crate) mod writes;

use std::{collections::BTreeSet, sync::Arc};

use coppice_env::{File, OpenMode, Storage};
use coppice_types::{Epoch, Params, ShardId, Stamp, Version};
use coppice_verify::hash;

use crate::{
    Counters, DiskUsage, Error, ForestShape, MergeName, Options, Position, PrepareId, Result, ShardState, StagedInfo,
    View,
    check::scrub::Scrub,
    files::{
        dir::{is_ours, lock},
        meta_log::{self, MetaLog, Operations},
        superblock::{self, Superblock},
        values::{self, tier},
    },
    meta::{Delta, Meta, MetaOp, Tree, VersionId, VersionRecord, rows::Row},
    place::{
        page::{PAGE_BYTES, PageFile},
        space::FreeRanges,
    },
    snapshot::{MANIFEST_FILE, Pin},
    store::{Store, line::Line},
    tree::{active::ActiveKeys, merge::MergeTask},
};

/// The state of one shard: a forest for each retained version and each staged one.
pub struct Engine {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) options: Options,
    pub(crate) meta: Meta,
    pub(crate) store: Store,
    pub(crate) active_keys: ActiveKeys,
    pub(crate) merge: Option<MergeTask>,
    /// Whether versions were dropped, so that there may be merges that no version can install.
    merges_lost: bool,
    /// Records that should be merged to keep pace with writes.
    pub(crate) merge_owed: u64,
    /// The target for a merge that must end before the next freeze: it should have read its inputs
    /// while the active tree still has this much free capacity.
    pub(crate) merge_until: Option<u64>,
    log: MetaLog,
    /// Changes of the Meta table that no superblock covers.
    operations: Operations,
    super_file: Arc<dyn File>,
    pub(crate) superblock: Superblock,
    older: Option<Superblock>,
    /// Free pages whose space was given back to the file system. After a restart this is unknown,
    /// and they may be given back again.
    discarded: [FreeRanges; 3],
    /// Numbers of the meta log files in the directory.
    meta_files: BTreeSet<u64>,
    pub(crate) pins: Vec<Pin>,
    next_pin: u64,
    poisoned: bool,
    /// Whether much space waits for a flush. It is computed after each change, since it is read
    /// after each step of a merge.
    much_waits: bool,
    /// Length of the meta log when its last rewrite found no room; 0 if there was none.
    log_tried_len: u64,
    pub(crate) scrub: Scrub,
    /// The erasure of values in progress.
    erasing: Option<erase::Round>,
    /// Whether the slot of the older superblock may hold a part of a copy.
    slot_unknown: bool,
    /// Whether writes run on another thread.
    pub(crate) writing: bool,
    /// The prune boundary at the last two flushes of this process.
    pub(crate) flushed_boundaries: [Option<Version>; 2],
    pub(crate) lock: Arc<dyn Send + Sync>,
}

// Several threads read behind a lock that a writer takes exclusively.
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

impl Engine {
    /// Whether the directory holds a completed engine.
    ///
    /// # Errors
    /// If the storage fails.
    pub fn exists(storage: &dyn Storage) -> Result<bool> {
        superblock::exists(storage)
    }

    /// Creates a data directory with version 0, which is empty. Files of a crashed attempt are
    /// replaced.
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
            if is_ours(&name) || name == MANIFEST_FILE {
                storage.remove(&name).map_err(Error::io("remove", &name))?;
            }
        }
        tier::clear(&*storage, |_| false)?;
        let mut meta = Meta::new(shard, params, genesis());
        let store = Store::open(&storage, &options, &meta, OpenMode::CreateNew)?;
        let mut log = MetaLog::create(&*storage, 1, &meta_log::snapshot(&meta))?;
        let mut operations = Operations::default();
        let checkpoint = MetaOp::Checkpoint { generation: 1, segment_ends: Vec::new(), dead_segments: Vec::new() };
        operations.push(&checkpoint);
        let end = log.append_operations(&operations)?;
        log.sync()?;
        log.advance(end);
        assert_eq!(meta.apply(checkpoint), Ok(()), "generation 1 follows 0");
        storage.sync_dir("").map_err(Error::io("sync", "the directory"))?;
        let first = Superblock {
            generation: 1,
            position: Position::default(),
            meta_file: 1,
            meta_len: log.len,
            meta_chain: log.chain,
            machine_state: Arc::default(),
        };
        superblock::publish(&*storage, &first)?;
        Self::assemble(storage, options, guard, (meta, store, log), (first, None))
    }

    /// Opens a data directory in the state of its newest superblock. Files that a crash left are
    /// deleted.
    ///
    /// # Errors
    /// `Missing`, `Locked`, `OtherFormat`, `Corrupted`, `ColdMissing`, or a failure of the storage.
    pub fn open(storage: Arc<dyn Storage>, options: Options) -> Result<Self> {
        if !superblock::exists(&*storage)? {
            return Err(Error::Missing);
        }
        let guard = lock(&*storage)?;
        let file = storage.open(superblock::FILE, OpenMode::Existing).map_err(Error::io("open", superblock::FILE))?;
        let (newest, older) = superblock::newest(superblock::read_slots(&*file)?)?;
        // After a crash or a failed sync, a superblock may be readable without being durable. Space
        // that it does not name is reused below, so it is made durable first.
        superblock::republish(&*storage, &*file, &newest)?;
        let (log, mut meta) = MetaLog::open(&*storage, &newest)?;
        meta.take_dead_segments();
        let cold = tier::find(&*storage, &meta)?;
        tier::clear(&*storage, |name| tier::file_number(name).is_some_and(|(id, last)| last && cold.contains(&id)))?;
        let mut store = Store::open(&storage, &options, &meta, OpenMode::Existing)?;
        store.values.set_cold(cold);
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
        assert_eq!(meta.generation, newest.generation, "the table is that of the newest superblock");
        assert_eq!(log.number, newest.meta_file, "the log is that of the newest superblock");
        let ascends = |older: &Superblock| older.generation < newest.generation;
        assert!(older.as_ref().is_none_or(ascends), "the older superblock has a lower generation");
        let super_file =
            storage.open(superblock::FILE, OpenMode::Existing).map_err(Error::io("open", superblock::FILE))?;
        // The filters only save time. A page that cannot be read is reported to the read that needs
        // it.
        let active_keys = ActiveKeys::read(&store, &meta).unwrap_or_default();
        let meta_files = older.iter().map(|older| older.meta_file).chain([newest.meta_file]).collect();
        Ok(Self {
            storage,
            options,
            meta,
            store,
            active_keys,
            merge: None,
            merges_lost: false,
            merge_owed: 0,
            merge_until: None,
            log,
            operations: Operations::default(),
            super_file,
            superblock: newest,
            older,
            discarded: Default::default(),
            meta_files,
            pins: Vec::new(),
            next_pin: 1,
            poisoned: false,
            much_waits: false,
            log_tried_len: 0,
            scrub: Scrub::default(),
            erasing: None,
            slot_unknown: false,
            writing: false,
            flushed_boundaries: [None; 2],
            lock: guard.into(),
        })
    }

    /// Deletes files that no superblock names.
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

    /// Changes the Meta table, now and with the next flush.
    pub(crate) fn apply(&mut self, operation: MetaOp) {
        self.apply_one_of_many(operation);
        self.forget_freed();
        self.measure_waiting();
    }

    /// Like [`Engine::apply`], without the steps that follow once after many operations.
    pub(crate) fn apply_one_of_many(&mut self, operation: MetaOp) {
        self.operations.push(&operation);
        let applied = self.meta.apply(operation);
        assert_eq!(applied, Ok(()), "a live operation fits the table");
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

    /// The decided state of a cluster version: the newest one at or below it.
    ///
    /// # Errors
    /// `Pruned` below the boundary, `Corrupted`, or a failure of the storage.
    pub fn decided_at(&self, version: Version) -> Result<ShardState> {
        self.row_at(version).map(|row| row.state())
    }

    fn row_at(&self, version: Version) -> Result<Row<'_>> {
        let pruned = Error::Pruned { boundary: self.meta.boundary };
        if version < self.meta.boundary {
            return Err(pruned);
        }
        self.line().decided_at(version)?.ok_or(pruned)
    }

    pub(crate) fn line(&self) -> Line<'_> {
        Line { meta: &self.meta, store: &self.store }
    }

    /// The oldest cluster version that is retained.
    #[must_use]
    pub fn boundary(&self) -> Version {
        self.meta.boundary
    }

    /// The epoch of the last rollback. Stamps of new versions must not be below it.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.meta.epoch
    }

    /// All staged versions, in the order of staging.
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
    ///
    /// # Errors
    /// `Corrupted`, or a failure of the storage.
    pub fn has(&self, state: &ShardState) -> Result<bool> {
        Ok(self.line().find(state)?.is_some())
    }

    pub(crate) fn find(&self, state: &ShardState) -> Result<Row<'_>> {
        self.line().find(state)?.ok_or(Error::StateMissing(*state))
    }

    /// The trees of a state, and the built merges that can be installed on it.
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
        ForestShape {
            entries: trees.iter().map(|tree| tree.entries).collect(),
            ready: ready.collect(),
            erasures_left: self.meta.erasures.left(),
        }
    }

    /// A view of one state, decided or staged.
    ///
    /// # Errors
    /// `StateMissing`.
    pub fn view(&self, state: &ShardState) -> Result<View<'_>> {
        Ok(self.view_of(self.find(state)?))
    }

    /// A view of the decided state of a cluster version.
    ///
    /// # Errors
    /// `Pruned` below the boundary, `Corrupted`, or a failure of the storage.
    pub fn view_at(&self, version: Version) -> Result<View<'_>> {
        Ok(self.view_of(self.row_at(version)?))
    }

    fn view_of<'e>(&'e self, row: Row<'e>) -> View<'e> {
        View { line: self.line(), active: &self.active_keys, row }
    }

    /// A number for a new snapshot.
    pub(crate) fn next_pin(&mut self) -> u64 {
        self.next_pin += 1;
        self.next_pin - 1
    }

    /// Reads and checks about this many durable bytes. The next call continues there.
    ///
    /// # Errors
    /// `Corrupted`, or a failure of the storage. The next call returns to the same place.
    pub fn scrub(&mut self, bytes: u64) -> Result<()> {
        self.scrub.step(Line { meta: &self.meta, store: &self.store }, bytes)
    }

    // Statistics.

    /// The counters since the engine was opened.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.store.counters.snapshot()
    }

    /// Bytes by file kind.
    ///
    /// # Errors
    /// If the storage fails.
    pub fn disk_usage(&self) -> Result<DiskUsage> {
        // Bytes of a file and of its free pages. Pages that died before a flush may lie beyond the
        // end of the file. Pages given back to the file system take no space.
        let bytes = |file: PageFile| {
            let space = self.meta.space(file);
            let mut discarded = self.discarded[file as usize].clone();
            discarded.keep_common(&space.free);
            let [free, gone] =
                [space.free.pages() + space.limbo_pages(), discarded.pages()].map(|n| n * PAGE_BYTES as u64);
            self.store.page_file_bytes(file).map(|len| (len.saturating_sub(gone), free.saturating_sub(gone).min(len)))
        };
        let (index_bytes, index_free_bytes) = bytes(PageFile::Index)?;
        let (data_bytes, data_free_bytes) = bytes(PageFile::Data)?;
        let (patch_bytes, patch_free_bytes) = bytes(PageFile::Patches)?;
        let waiting: u64 = PageFile::ALL.iter().map(|file| self.meta.space(*file).limbo_pages()).sum();
        let (young_cache_bytes, old_cache_bytes) = self.store.cache_bytes();
        Ok(DiskUsage {
            index_bytes,
            index_free_bytes,
            data_bytes,
            data_free_bytes,
            patch_bytes,
            patch_free_bytes,
            waiting_bytes: waiting * PAGE_BYTES as u64,
            value_bytes: self.meta.segment_bytes(&self.store.values.unflushed_ends()),
            value_live_bytes: self.meta.segments.values().map(|segment| segment.live).sum(),
            cold_value_bytes: self.cold_bytes(),
            meta_bytes: self.log.len,
            young_cache_bytes: young_cache_bytes as u64,
            old_cache_bytes: old_cache_bytes as u64,
            hash_cache_bytes: self.store.list_bytes() as u64,
            filter_bytes: (self.store.filter_bytes() + self.active_keys.size_bytes()) as u64,
            versions: self.meta.version_count(),
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

#[cfg(test)]
mod tests;
