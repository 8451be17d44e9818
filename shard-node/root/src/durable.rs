//! How applied commands become durable, and how they are recovered.
//!
//! A flush takes these steps, and syncs each before the next:
//! 1. It appends the records of accepted commands to the journal.
//! 2. It writes full tiles, bundles and indexes under a temporary name and renames them.
//! 3. Now and then it saves the whole state as a new file.
//! 4. It replaces the superblock by one that names the raft position, the journal's end and the
//!    newest saved state.
//! 5. It removes the previous saved state, unless a snapshot pins it.
//!
//! A crash before step 4 leaves the state of the previous flush, with more bytes beyond the
//! journal's end and more files than the superblock names. A crash after step 4 leaves at most one
//! saved state too many. Opening cuts and removes all of that.
//!
//! Opening loads the saved state and executes the journal's records after it, with the function
//! that first executed them. The result must have the log size and root that the superblock names.

use std::{collections::BTreeSet, sync::Arc};

use coppice_env::Storage;

use crate::{
    Command, Error, Options, Outcome, Position, Root,
    codec::to_usize,
    flush::Flush,
    journal::{self, End, journal_path},
    sealed::Sealed,
    state::State,
    store::{self, is_ours},
    superblock::{SUPERBLOCK, Superblock, state_path},
};

impl Root {
    /// Opens a replica's directory. An empty directory is a new replica; otherwise everything
    /// flushed is recovered. The directory's lock is held until the machine is dropped.
    ///
    /// # Errors
    /// If the directory is in use, or a file can't be read or is damaged.
    pub fn open(storage: Arc<dyn Storage>) -> Result<Self, Error> {
        Self::open_with(storage, Options::default())
    }

    /// Like [`Root::open`], with options.
    ///
    /// # Errors
    /// Those of [`Root::open`].
    pub fn open_with(storage: Arc<dyn Storage>, options: Options) -> Result<Self, Error> {
        storage.create_dir_all("").map_err(Error::io("", "create"))?;
        let guard = store::lock(&*storage)?;
        // A process that was killed may have renamed the superblock without syncing the directory.
        storage.sync_dir("").map_err(Error::io("", "sync"))?;
        let superblock = Superblock::read(&*storage)?;
        let mut root = Self::load(storage, superblock, options)?;
        root.durable.lock = Some(guard);
        root.remove_leftovers()?;
        Ok(root)
    }

    /// Reads the durable state that a superblock names. Writes nothing.
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

    /// Executes the journal's records from this machine's end to the superblock's, and calls `each`
    /// after every file.
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

    /// Executes the records of one file, beginning at `start`.
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
            at += to_usize(record.place.len);
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

    /// Makes everything applied so far durable. `position` is that of the newest raft entry
    /// applied, or of a later one that carried no command.
    ///
    /// # Errors
    /// If the storage fails, for example because it is full. Nothing is lost in memory then, and a
    /// later flush may succeed.
    pub fn flush(&mut self, position: Position) -> Result<(), Error> {
        self.flush_and_save(position, false)
    }

    pub(crate) fn flush_and_save(&mut self, position: Position, save: bool) -> Result<(), Error> {
        let mut flush = self.begin(position, save)?;
        flush.run();
        self.end_flush(flush)
    }

    /// Begins what [`Root::flush`] does. The caller runs the writes, on any thread, and ends the
    /// flush; commands are applied meanwhile.
    ///
    /// # Errors
    /// If `position` is before the newest entry applied.
    pub fn begin_flush(&mut self, position: Position) -> Result<Flush, Error> {
        self.begin(position, false)
    }

    fn begin(&mut self, position: Position, save: bool) -> Result<Flush, Error> {
        let before = &self.durable.superblock;
        if position.index < self.applied || position < before.position {
            return Err(Error::OutOfOrder { index: position.index, applied: self.applied });
        }
        assert!(!self.durable.flushing, "one flush at a time names the next superblock");
        let used_up = || Error::corrupted(SUPERBLOCK, "the newest generation has no successor");
        let generation = before.generation.checked_add(1).ok_or_else(used_up)?;
        let unsaved_bytes = self.durable.unsaved_bytes + self.journal.unwritten_bytes();
        let due = unsaved_bytes >= self.durable.options.save_after_bytes.max(self.durable.saved_bytes);
        let saves = save || due;
        let superblock = Superblock {
            generation,
            position,
            saved: if saves { generation } else { before.saved },
            journal: self.journal.end(),
            log_size: self.log_size(),
            log_root: self.log_root(),
        };
        assert!(superblock.log_size >= before.log_size, "the log never shrinks");
        assert!(superblock.journal.chunk >= before.journal.chunk, "the journal goes on");
        assert!(generation > before.saved, "the newest saved state is never written over");
        self.durable.flushing = true;
        self.applied = position.index;
        Ok(Flush {
            storage: self.store.shared(),
            journal: self.journal.begin_write(),
            files: self.store.pending().clone(),
            state: saves.then(|| self.state.file(&self.journal.end())),
            superblock,
            outcome: None,
        })
    }

    /// Ends a flush that was begun here, after its writes have run.
    ///
    /// # Errors
    /// Those of [`Root::flush`].
    ///
    /// # Panics
    /// If its writes did not run, or another flush ended since it began.
    pub fn end_flush(&mut self, flush: Flush) -> Result<(), Error> {
        let before = &self.durable.superblock;
        assert_eq!(flush.superblock.generation, before.generation + 1, "a flush ends once, in its order");
        let saved_before = before.saved;
        self.durable.flushing = false;
        flush.outcome.expect("the writes of a flush run before its end")?;
        self.durable.unsaved_bytes += flush.journal.iter().map(|part| part.len()).sum::<u64>();
        self.journal.note_written();
        self.store.note_written(&flush.files);
        self.durable.superblock = flush.superblock;
        if let Some(state) = flush.state {
            (self.durable.saved_bytes, self.durable.unsaved_bytes) = (state.len() as u64, 0);
            self.remove_saved(saved_before);
        }
        Ok(())
    }

    /// Removes a saved state that nothing names any more. If that fails, the next opening removes
    /// it.
    pub(crate) fn remove_saved(&self, generation: u64) {
        let named = generation == self.durable.superblock.saved || self.durable.pins.contains_key(&generation);
        if generation != 0 && !named {
            drop(self.store.storage().remove(&state_path(generation)));
        }
    }

    /// The position up to which everything is durable. Raft may forget the entries up to there.
    #[must_use]
    pub fn durable_position(&self) -> Position {
        self.durable.superblock.position
    }

    /// Bytes that the next flush writes.
    #[must_use]
    pub fn unflushed_bytes(&self) -> u64 {
        self.journal.unwritten_bytes() + self.store.pending_bytes()
    }

    /// Bytes of all files in the directory.
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

    /// The files that the superblock names, directly or through the state, without the superblock.
    pub(crate) fn named_files(&self) -> BTreeSet<String> {
        let superblock = &self.durable.superblock;
        let mut names: BTreeSet<String> = self.state.sealed.iter().map(Sealed::name).collect();
        if superblock.saved > 0 {
            names.insert(state_path(superblock.saved));
        }
        if superblock.journal.len > 0 {
            names.insert(journal_path(superblock.journal.chunk));
        }
        names
    }

    /// Cuts and removes the leftovers of interrupted flushes.
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
