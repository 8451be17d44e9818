//! The steps of a flush after nodes and values are durable: the meta log, file names and the
//! superblock.
//!
//! The comment of [`crate::Engine::flush`] says what a crash at each step leaves.

use std::sync::Arc;

use coppice_env::{File, Storage};
use coppice_types::{ErrorKind, Version};

use crate::{
    Error, Result,
    files::{
        meta_log::{self, MetaLog, Operations},
        superblock::{self, Superblock},
    },
    meta::MetaOp,
};

/// The input of these steps.
#[derive(Debug)]
pub(super) struct Checkpoint {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) super_file: Arc<dyn File>,
    /// Whether new files need a sync of the directory.
    pub(super) names_changed: bool,
    /// The log to append to; afterwards the log in use.
    pub(super) log: MetaLog,
    /// The first block of a new log, if one is to be written and there is room.
    pub(super) snapshot: Option<Vec<u8>>,
    /// Operations since the last flush.
    pub(super) operations: Operations,
    /// Segments that have grown, and their ends.
    pub(super) segment_ends: Vec<(u32, u64)>,
    pub(super) dead_segments: Vec<u32>,
    /// The next superblock; its reference to the meta log is set in [`Self::write`].
    pub(super) next: Superblock,
    /// Whether the content of the older superblock's slot is unknown.
    pub(super) slot_touched: bool,
    pub(super) boundary: Version,
}

impl Checkpoint {
    /// Runs steps 2 to 4 of a flush.
    pub(super) fn write(&mut self) -> Result<()> {
        let begun = match self.begin_log() {
            Some(Err(error)) if error.kind() == ErrorKind::Exhausted => {
                // There may still be room for the new operations. The log then becomes longer than
                // it should be.
                let _ = self.storage.remove(&meta_log::file_name(self.next.generation));
                self.snapshot = None;
                None
            }
            begun => begun.transpose()?,
        };
        self.log = match begun {
            Some(log) => log,
            None => self.append_to(self.log.clone(), self.operations.clone())?,
        };
        if self.names_changed || self.snapshot.is_some() {
            self.storage.sync_dir("").map_err(Error::io("sync", "the directory"))?;
        }
        let MetaLog { number, len, chain, .. } = self.log;
        (self.next.meta_file, self.next.meta_len, self.next.meta_chain) = (number, len, chain);
        self.slot_touched = true;
        let written = superblock::write_slot(&*self.super_file, &self.next);
        written.and_then(|()| self.super_file.sync_data()).map_err(Error::io("write", superblock::FILE))
    }

    /// Begins a new log, if there is to be one.
    fn begin_log(&self) -> Option<Result<MetaLog>> {
        let snapshot = self.snapshot.as_ref()?;
        let log = MetaLog::create(&*self.storage, self.next.generation, snapshot);
        Some(log.and_then(|log| self.append_to(log, Operations::default())))
    }

    /// Appends the operations and the checkpoint, durably.
    fn append_to(&self, mut log: MetaLog, mut operations: Operations) -> Result<MetaLog> {
        operations.push(&MetaOp::Checkpoint {
            generation: self.next.generation,
            segment_ends: self.segment_ends.clone(),
            dead_segments: self.dead_segments.clone(),
        });
        let end = log.append_operations(&operations)?;
        log.sync()?;
        log.advance(end);
        Ok(log)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use coppice_env::{Fault, Operation, SimStorage};
    use coppice_types::Version;

    use super::*;
    use crate::{
        Engine, Options, Position, fsck,
        testing::{commit, create_with, flush, open, options, put, small},
    };

    /// An engine whose next flush rewrites the meta log, and the name of that log.
    fn before_a_rewrite(sim: &SimStorage) -> (Engine, String) {
        let mut engine = create_with(sim, small(), Options { meta_compaction_bytes_min: 0, ..options() });
        let mut version = 0;
        while !engine.log.is_long(0) {
            version += 1;
            commit(&mut engine, version, vec![put("a", 5)]);
            engine.prune(Version(version)).expect("usable");
            flush(&mut engine, version);
        }
        let name = meta_log::file_name(engine.superblock.generation + 1);
        (engine, name)
    }

    const NEXT: Position = Position { index: 1000, term: 1 };

    fn fault(operation: Operation, path: &str, kind: io::ErrorKind) -> Fault {
        Fault { operation, path_part: path.to_owned(), skip: 0, kind }
    }

    #[test]
    fn a_log_without_room_for_its_rewrite_is_appended_to_and_leaves_no_file() {
        for (operation, skip) in [(Operation::Name, 0), (Operation::Write, 1), (Operation::Write, 2)] {
            let sim = SimStorage::new();
            let (mut engine, new) = before_a_rewrite(&sim);
            let old = engine.superblock.clone();
            sim.inject(Fault { skip, ..fault(operation, &new, io::ErrorKind::StorageFull) });
            engine.flush(NEXT, b"").expect("room for the operations");
            assert_eq!(engine.superblock.meta_file, old.meta_file);
            assert!(engine.superblock.meta_len > old.meta_len);
            assert!(!sim.files().contains(&new), "{operation:?}");
            let decided = engine.decided();
            assert_eq!(open(&sim.power_loss(1)).decided(), decided);
        }
    }

    #[test]
    fn a_rewrite_that_found_no_room_is_tried_again_when_the_log_has_grown_by_a_quarter() {
        let sim = SimStorage::new();
        let (mut engine, new) = before_a_rewrite(&sim);
        let tried = engine.log.len;
        sim.inject(fault(Operation::Name, &new, io::ErrorKind::StorageFull));
        engine.flush(NEXT, b"").expect("room for the operations");
        let old = engine.superblock.meta_file;
        while engine.log.len < tried / 4 * 5 {
            flush(&mut engine, 1000);
            assert_eq!(engine.superblock.meta_file, old);
        }
        flush(&mut engine, 1000);
        assert_eq!(engine.superblock.meta_file, engine.superblock.generation);
    }

    #[test]
    fn another_failure_of_a_rewrite_fails_the_flush_which_can_be_repeated() {
        let sim = SimStorage::new();
        let (mut engine, new) = before_a_rewrite(&sim);
        let before = engine.superblock.clone();
        sim.inject(fault(Operation::Sync, &new, io::ErrorKind::TimedOut));
        assert!(matches!(engine.flush(NEXT, b""), Err(Error::Io { file, .. }) if file == new));
        assert_eq!(engine.superblock, before);
        engine.flush(NEXT, b"").expect("a sound disk");
        assert_eq!(engine.superblock.position, NEXT);
        drop(engine);
        assert!(fsck(sim.storage()).expect("a directory").is_clean());
    }

    /// The slot of the new superblock is the only thing that cannot be written twice.
    #[test]
    fn a_failure_before_the_superblock_has_not_touched_its_slot() {
        let sim = SimStorage::new();
        let new = before_a_rewrite(&sim).1;
        for (operation, path, touched) in [
            (Operation::Sync, new.as_str(), false),
            (Operation::SyncDir, "", false),
            (Operation::Write, superblock::FILE, true),
        ] {
            let sim = SimStorage::new();
            let mut engine = before_a_rewrite(&sim).0;
            sim.inject(fault(operation, path, io::ErrorKind::TimedOut));
            let mut writes = engine.begin_flush(NEXT, b"").expect("usable");
            writes.run();
            assert!(engine.end_writes(writes).is_err());
            assert_eq!(engine.check_usable().is_err(), touched, "{operation:?} {path}");
        }
    }
}
