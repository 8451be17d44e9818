//! Making applied commands durable, and finding them again.
//!
//! A flush goes in this order, each step synced before the next:
//! 1. records are appended to the journal;
//! 2. full tiles, bundles and indexes are written under a temporary name and renamed;
//! 3. now and then the whole state is saved as a new file;
//! 4. the superblock is replaced by one that names the raft position, the journal's end and the newest saved state;
//! 5. the saved state before is removed, unless a snapshot pins it.
//!
//! A crash before step 4 leaves the state of the flush before, with more bytes behind the journal's end and more files than it
//! names; a crash after it leaves at most an old saved state too much. Opening cuts and removes all of that. It loads the saved state and applies
//! the journal's records after it, by the function that applied them first; the result must have the log's size and root that the
//! superblock names.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
};

use coppice_env::Storage;
use coppice_types::{
    Digest,
    codec::{self, Reader, Writer},
};
use twox_hash::XxHash3_64;

use crate::{
    Error, Manifest, Outcome, RaftPosition, Root,
    cache::Cache,
    chunk::checked,
    command::Command,
    journal::{self, End, Journal, journal_path},
    state::State,
    store::{self, Store, TEMPORARY},
};

/// The file that names everything else.
pub(crate) const SUPERBLOCK: &str = "superblock";
/// The file whose lock keeps others out.
pub(crate) const LOCK: &str = "lock";
/// First bytes of the superblock.
const MAGIC: &[u8; 8] = b"copsup01";
/// Length of the superblock.
const SUPERBLOCK_BYTES: usize = 8 + 8 + 16 + 8 + 48 + 40 + 8;

// As docs/FORMAT.md says.
const _: () = assert!(SUPERBLOCK_BYTES == 136);
const _: () = assert!(journal::RECORD_HEAD_BYTES == 12);
const _: () = assert!(crate::tiles::TILE_BYTES == 8192);

/// What may be chosen at each start.
#[derive(Clone, Debug)]
pub struct Options {
    /// The state is saved when the journal grew by this much since, and by more than the state's own size: opening reads no more.
    pub save_after_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { save_after_bytes: 1 << 20 }
    }
}

/// What is durable.
#[derive(Debug)]
pub(crate) struct Durable {
    options: Options,
    pub(crate) superblock: Superblock,
    /// Journal bytes since the state was saved, and the size of that save.
    unsaved_bytes: u64,
    saved_bytes: u64,
    /// Snapshots that are being read.
    pub(crate) pins: BTreeMap<u64, Manifest>,
    lock: Option<Lock>,
}

/// Keeps others out of the directory.
pub(crate) struct Lock {
    _guard: Box<dyn Send + Sync>,
}

impl std::fmt::Debug for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lock")
    }
}

/// Takes the directory's lock.
pub(crate) fn lock(storage: &dyn Storage) -> Result<Lock, Error> {
    let guard = storage.lock(LOCK).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => Error::InUse,
        _ => Error::io(LOCK, "lock")(error),
    })?;
    Ok(Lock { _guard: guard })
}

/// The root of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Counts flushes from 1; 0 is a new directory.
    pub(crate) generation: u64,
    /// The raft entries up to here are covered.
    pub(crate) position: RaftPosition,
    /// Generation of the newest saved state; 0 for none.
    pub(crate) saved: u64,
    pub(crate) journal: End,
    pub(crate) log_size: u64,
    pub(crate) log_root: Digest,
}

/// File of a saved state.
pub(crate) fn state_path(generation: u64) -> String {
    format!("state/{generation:020}")
}

impl Superblock {
    fn new() -> Self {
        Self {
            generation: 0,
            position: RaftPosition::default(),
            saved: 0,
            journal: End::of_chunk(0),
            log_size: 0,
            log_root: coppice_verify::merkle::empty_root(),
        }
    }

    pub(crate) fn file(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.raw(MAGIC);
        out.u64(self.generation);
        out.u64(self.position.index);
        out.u64(self.position.term);
        out.u64(self.saved);
        out.u64(self.journal.chunk);
        out.u64(self.journal.len);
        out.digest(&self.journal.chain);
        out.u64(self.log_size);
        out.digest(&self.log_root);
        let mut bytes = out.into_bytes();
        let checksum = XxHash3_64::oneshot(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        assert_eq!(bytes.len(), SUPERBLOCK_BYTES, "the superblock has a fixed length");
        bytes
    }

    pub(crate) fn from_file(bytes: &[u8]) -> Result<Self, Error> {
        let damaged = |what: &str| Error::corrupted(SUPERBLOCK, what);
        let body = checked(bytes).ok_or_else(|| damaged("the checksum differs"))?;
        let decode = || -> Result<Self, codec::Error> {
            let mut input = Reader::new(body);
            if input.take(MAGIC.len())? != MAGIC {
                return Err(codec::Error::Malformed("magic"));
            }
            let superblock = Self {
                generation: input.u64()?,
                position: RaftPosition { index: input.u64()?, term: input.u64()? },
                saved: input.u64()?,
                journal: End { chunk: input.u64()?, len: input.u64()?, chain: input.digest()? },
                log_size: input.u64()?,
                log_root: input.digest()?,
            };
            input.finish()?;
            Ok(superblock)
        };
        decode().map_err(|error| damaged(&error.to_string()))
    }

    /// The superblock of a directory; that of a new one if there is none.
    pub(crate) fn read(storage: &dyn Storage) -> Result<Self, Error> {
        match storage.open(SUPERBLOCK, coppice_env::OpenMode::Existing) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::new()),
            _ => Self::from_file(&store::read_file(storage, SUPERBLOCK)?),
        }
    }
}

impl Root {
    /// Opens a replica's directory: an empty one is a new replica, else everything flushed is there again.
    /// Its lock is held until the machine is dropped.
    ///
    /// # Errors
    /// If the directory is in use, or a file can't be read or is damaged.
    pub fn open(storage: Arc<dyn Storage>) -> Result<Self, Error> {
        Self::open_with(storage, Options::default())
    }

    /// As [`Root::open`], with options.
    ///
    /// # Errors
    /// If a file can't be read, or is damaged.
    pub fn open_with(storage: Arc<dyn Storage>, options: Options) -> Result<Self, Error> {
        storage.create_dir_all("").map_err(Error::io("", "create"))?;
        let guard = lock(&*storage)?;
        // A process that was killed may have renamed the superblock, but not made that durable.
        storage.sync_dir("").map_err(Error::io("", "sync"))?;
        let superblock = Superblock::read(&*storage)?;
        let mut root = Self::load(storage, superblock, options)?;
        root.durable.lock = Some(guard);
        root.remove_leftovers()?;
        Ok(root)
    }

    /// Reads the durable state that a superblock names; writes nothing.
    pub(crate) fn load(storage: Arc<dyn Storage>, superblock: Superblock, options: Options) -> Result<Self, Error> {
        let mut saved_bytes = 0;
        let (state, end) = if superblock.saved == 0 {
            (State::new(), End::of_chunk(0))
        } else {
            let name = state_path(superblock.saved);
            let bytes = store::read_file(&*storage, &name)?;
            saved_bytes = bytes.len() as u64;
            State::from_file(&name, &bytes)?
        };
        let mut root = Self::from_parts(storage, state, end, options);
        root.durable.saved_bytes = saved_bytes;
        root.durable.superblock = superblock;
        root.replay(|_| Ok(()))?;
        root.journal.forget_unwritten();
        drop(root.store.take_pending());
        Ok(root)
    }

    pub(crate) fn from_parts(storage: Arc<dyn Storage>, state: State, end: End, options: Options) -> Self {
        Self {
            store: Store::new(storage),
            journal: Journal::new(end),
            state,
            applied: 0,
            chunks: Cache::new(crate::CHUNKS_CACHED_MAX),
            durable: Durable {
                options,
                superblock: Superblock::new(),
                unsaved_bytes: 0,
                saved_bytes: 0,
                pins: BTreeMap::new(),
                lock: None,
            },
        }
    }

    /// Applies the journal's records from this machine's end to the superblock's; `each` is called after every file.
    pub(crate) fn replay(&mut self, mut each: impl FnMut(&mut Self) -> Result<(), Error>) -> Result<(), Error> {
        let goal = self.durable.superblock.clone();
        while self.journal.end().chunk <= goal.journal.chunk {
            let start = self.journal.end();
            self.replay_file(start, &goal)?;
            each(self)?;
            if self.journal.end().chunk == start.chunk {
                break;
            }
        }
        let found = (self.journal.end(), self.log_size(), self.log_root());
        if found != (goal.journal, goal.log_size, goal.log_root) {
            return Err(Error::corrupted("journal", "it does not lead to the state that the superblock names"));
        }
        if self.applied > goal.position.index {
            return Err(Error::corrupted(SUPERBLOCK, "the raft position is before the journal's end"));
        }
        self.applied = goal.position.index;
        Ok(())
    }

    /// Applies the records of one file from `start` on.
    fn replay_file(&mut self, start: End, goal: &Superblock) -> Result<(), Error> {
        let name = journal_path(start.chunk);
        if start == goal.journal {
            return Ok(());
        }
        let bytes = store::read_file(self.store.storage(), &name)?;
        let len = if start.chunk == goal.journal.chunk { goal.journal.len } else { bytes.len() as u64 };
        let len = usize::try_from(len).map_err(|_| Error::corrupted(&name, "too long for memory"))?;
        let bytes = bytes.get(..len).ok_or_else(|| Error::corrupted(&name, "ends early"))?;
        let mut at = usize::try_from(start.len).map_err(|_| Error::corrupted(&name, "too long for memory"))?;
        while at < len {
            let record = journal::parse(start.chunk, at as u64, &bytes[at..])?;
            at += usize::try_from(record.place.len).expect("the record is in memory");
            self.replay_record(&name, record.index, record.command)?;
            if self.journal.end().chunk != start.chunk && at < len {
                return Err(Error::corrupted(&name, "records follow the last header of the file"));
            }
        }
        Ok(())
    }

    fn replay_record(&mut self, name: &str, index: u64, command: &[u8]) -> Result<(), Error> {
        if index <= self.applied {
            return Err(Error::corrupted(name, "records are out of order"));
        }
        let decoded = Command::decode(command).map_err(|error| Error::corrupted(name, error.to_string()))?;
        match self.execute(index, &decoded, command)? {
            Outcome::Refused(why) => {
                Err(Error::corrupted(name, format!("raft entry {index} was accepted once: {why}")))
            }
            _ => {
                self.applied = index;
                self.durable.unsaved_bytes += command.len() as u64;
                Ok(())
            }
        }
    }

    /// Makes everything applied so far durable. `position` is that of the newest raft entry applied, or of a later one that
    /// carried no command.
    ///
    /// # Errors
    /// If the storage fails, for example because it is full. Nothing is lost in memory then, and a later flush may succeed.
    pub fn flush(&mut self, position: RaftPosition) -> Result<(), Error> {
        self.flush_and_save(position, false)
    }

    pub(crate) fn flush_and_save(&mut self, position: RaftPosition, save: bool) -> Result<(), Error> {
        if position.index < self.applied || position < self.durable.superblock.position {
            return Err(Error::OutOfOrder { index: position.index, applied: self.applied });
        }
        let appended = self.journal.unwritten_bytes();
        self.journal.persist(&self.store)?;
        self.durable.unsaved_bytes += appended;
        self.store.persist()?;
        let before = self.durable.superblock.clone();
        let generation = before.generation.checked_add(1).expect("flushes are never 2^64");
        let due = self.durable.unsaved_bytes >= self.durable.options.save_after_bytes.max(self.durable.saved_bytes);
        let saved = if save || due { self.save(generation)? } else { before.saved };
        let superblock = Superblock {
            generation,
            position,
            saved,
            journal: self.journal.end(),
            log_size: self.log_size(),
            log_root: self.log_root(),
        };
        store::write_file(self.store.storage(), SUPERBLOCK, &superblock.file())?;
        store::sync_parents(self.store.storage(), [SUPERBLOCK].into_iter())?;
        self.durable.superblock = superblock;
        self.applied = position.index;
        if saved != before.saved {
            self.durable.unsaved_bytes = 0;
            self.remove_saved(before.saved);
        }
        Ok(())
    }

    fn save(&mut self, generation: u64) -> Result<u64, Error> {
        let bytes = self.state.file(&self.journal.end());
        let name = state_path(generation);
        store::write_file(self.store.storage(), &name, &bytes)?;
        store::sync_parents(self.store.storage(), [name.as_str()].into_iter())?;
        self.durable.saved_bytes = bytes.len() as u64;
        Ok(generation)
    }

    /// Removes a saved state that nothing names any more. One that can't be removed is left to the next opening.
    pub(crate) fn remove_saved(&self, generation: u64) {
        let named = generation == self.durable.superblock.saved || self.durable.pins.contains_key(&generation);
        if generation != 0 && !named {
            drop(self.store.storage().remove(&state_path(generation)));
        }
    }

    /// The position up to which everything is durable: raft may forget the entries up to there.
    #[must_use]
    pub fn durable_position(&self) -> RaftPosition {
        self.durable.superblock.position
    }

    /// Bytes that the next flush writes.
    #[must_use]
    pub fn unflushed_bytes(&self) -> u64 {
        self.journal.unwritten_bytes() + self.store.pending_bytes()
    }

    /// Bytes of all files of the directory.
    ///
    /// # Errors
    /// If the storage fails.
    pub fn disk_usage(&self) -> Result<u64, Error> {
        let storage = self.store.storage();
        store::walk(storage, "")?.iter().try_fold(0, |sum: u64, name| {
            let len = store::open_existing(storage, name)?.len().map_err(Error::io(name, "measure"))?;
            Ok(sum.saturating_add(len))
        })
    }

    /// The files that the superblock names, directly or not; without itself.
    pub(crate) fn named_files(&self) -> BTreeSet<String> {
        let superblock = &self.durable.superblock;
        let mut names: BTreeSet<String> = self.state.sealed.iter().map(crate::chunk::Sealed::name).collect();
        if superblock.saved > 0 {
            names.insert(state_path(superblock.saved));
        }
        if superblock.journal.len > 0 {
            names.insert(journal_path(superblock.journal.chunk));
        }
        names
    }

    /// Cuts and removes what flushes that did not end have left.
    fn remove_leftovers(&self) -> Result<(), Error> {
        let storage = self.store.storage();
        let named = self.named_files();
        let found = store::walk(storage, "")?;
        if let Some(missing) = named.iter().find(|name| found.binary_search(name).is_err()) {
            return Err(Error::corrupted(missing, "missing"));
        }
        for name in found.iter().filter(|name| is_ours(name) && !named.contains(*name)) {
            storage.remove(name).map_err(Error::io(name, "remove"))?;
        }
        let end = self.durable.superblock.journal;
        if end.len > 0 {
            let name = journal_path(end.chunk);
            let file = store::open_existing(storage, &name)?;
            if file.len().map_err(Error::io(&name, "measure"))? > end.len {
                file.set_len(end.len).map_err(Error::io(&name, "cut"))?;
                file.sync_data().map_err(Error::io(&name, "sync"))?;
            }
        }
        Ok(())
    }
}

/// Files that this crate makes; others in the directory (a lock) are not touched.
pub(crate) fn is_ours(name: &str) -> bool {
    name == TEMPORARY || ["tile/", "index/", "journal/", "state/"].iter().any(|prefix| name.starts_with(prefix))
}
