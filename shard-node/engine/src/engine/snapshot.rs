//! Pins of flushed states, and reads of their files.

use std::{collections::BTreeMap, sync::Arc};

use coppice_env::OpenMode;

use crate::{
    Engine, Error, Manifest, Result,
    check::check_superblock,
    files::{meta_log, values},
    place::{page::PageFile, refs::Segment},
    snapshot::Pin,
};

impl Engine {
    /// Pins the state of the newest superblock until [`Engine::unpin_snapshot`].
    ///
    /// # Errors
    /// If the storage fails.
    pub fn pin_snapshot(&mut self) -> Result<Manifest> {
        let mut files = BTreeMap::new();
        for file in PageFile::ALL {
            files.insert(file.name().to_owned(), self.store.page_file_bytes(file)?);
        }
        files.insert(meta_log::file_name(self.superblock.meta_file), self.superblock.meta_len);
        // A dead segment is still in the table, but its file may be deleted at any time. It is
        // needed only if the flush in progress is the first without it.
        let generation = self.superblock.generation;
        let needed = |segment: &Segment| segment.end > 0 && segment.dead_at.is_none_or(|at| at > generation);
        for (id, segment) in self.meta.segments.iter().filter(|(_, segment)| needed(segment)) {
            files.insert(values::file_name(*id), segment.end);
        }
        let id = self.next_pin();
        let superblock = self.superblock.clone();
        assert!(self.pins.iter().all(|pin| pin.id < id), "numbers of snapshots ascend");
        self.meta.pin(superblock.generation, id);
        let manifest = Manifest {
            id,
            position: superblock.position,
            files: files.iter().map(|(name, len)| (name.clone(), *len)).collect(),
            superblock: superblock.clone(),
        };
        self.pins.push(Pin { id, superblock, files });
        Ok(manifest)
    }

    /// Up to `len` bytes of a pinned file that begin at an offset; none at the file's end.
    ///
    /// # Errors
    /// `SnapshotMissing`, or a failure of the storage.
    pub fn read_snapshot(&self, id: u64, file: &str, offset: u64, len: usize) -> Result<Vec<u8>> {
        let missing = || Error::SnapshotMissing { id, file: file.to_owned() };
        let pin = self.pins.iter().find(|pin| pin.id == id).ok_or_else(missing)?;
        let end = *pin.files.get(file).ok_or_else(missing)?;
        let len = end.saturating_sub(offset).min(len as u64) as usize;
        let mut bytes = vec![0; len];
        if len > 0 {
            let handle = match values::file_number(file) {
                Some(segment) => self.store.values.open(segment, OpenMode::Existing)?,
                None => self.storage.open(file, OpenMode::Existing).map_err(Error::io("open", file))?,
            };
            handle.read_exact_at(&mut bytes, offset).map_err(Error::io("read", file))?;
        }
        Ok(bytes)
    }

    /// Returns a function that checks every hash of a pinned snapshot, as its receiver does; it may
    /// run on another thread. The snapshot must stay pinned until then. The function returns
    /// `Corrupted` for damage.
    ///
    /// # Errors
    /// `SnapshotMissing`.
    pub fn check_of_snapshot(&self, id: u64) -> Result<impl FnOnce() -> Result<()> + Send + use<>> {
        let pin = self.pins.iter().find(|pin| pin.id == id);
        let pin = pin.ok_or_else(|| Error::SnapshotMissing { id, file: String::new() })?;
        let (storage, superblock) = (Arc::clone(&self.storage), pin.superblock.clone());
        Ok(move || check_superblock(&storage, &superblock).verdict())
    }

    /// Releases the pages and files of a snapshot.
    pub fn unpin_snapshot(&mut self, id: u64) {
        self.pins.retain(|pin| pin.id != id);
        self.meta.unpin(id);
        self.clean_up();
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;
    use coppice_types::{Params, Version};

    use super::*;
    use crate::{
        Options,
        testing::{commit, create, create_with, damage, deletes, flush, open, options, puts, send, small},
    };

    fn missing<T>(found: Result<T>) -> bool {
        matches!(found, Err(Error::SnapshotMissing { .. }))
    }

    #[test]
    fn a_snapshot_is_the_flushed_state_whatever_comes_after() {
        let (sim, to) = (SimStorage::new(), SimStorage::new());
        let mut engine = create(&sim, Params { capacity: 1000, ..small() });
        commit(&mut engine, 1, puts(0..20, 100));
        flush(&mut engine, 1);
        let flushed = engine.decided();
        commit(&mut engine, 2, puts(0..20, 90));
        let manifest = engine.pin_snapshot().expect("readable");
        assert_eq!((manifest.position.index, manifest.machine_state()), (1, &b""[..]));
        engine.prune(Version(2)).expect("usable");
        for index in 2..6 {
            commit(&mut engine, 1 + index, puts(0..20, 80));
            engine.prune(Version(1 + index)).expect("usable");
            flush(&mut engine, index);
        }
        engine.check_of_snapshot(manifest.id).expect("it is pinned")().expect("sound");
        send(&engine, &manifest, to.storage()).finish(|key| Some(key.to_vec())).expect("sound");
        let received = open(&to);
        assert_eq!((received.decided(), received.durable_position()), (flushed, manifest.position));
        let page = received.view(&flushed).expect("decided").range(b"", None, 99, true).expect("sound pages");
        assert!(page.records.len() == 20 && page.records.iter().all(|it| it.value == Some(vec![100; 100])));
    }

    #[test]
    fn a_snapshot_pinned_during_a_flush_has_the_segments_that_the_flush_gives_up() {
        let (sim, to) = (SimStorage::new(), SimStorage::new());
        let mut engine = create_with(&sim, small(), Options { segment_bytes_max: 200, ..options() });
        commit(&mut engine, 1, puts(0..1, 101));
        flush(&mut engine, 1);
        let flushed = engine.decided();
        commit(&mut engine, 2, puts(0..1, 102));
        engine.prune(Version(2)).expect("usable");
        let mut writes = engine.begin_flush(crate::Position { index: 2, term: 1 }, b"").expect("usable");
        let manifest = engine.pin_snapshot().expect("readable");
        assert!(manifest.files.iter().any(|(name, _)| name == "values-0"), "{:?}", manifest.files);
        writes.run();
        engine.end_writes(writes).expect("room");
        (3..6).for_each(|index| flush(&mut engine, index));
        send(&engine, &manifest, to.storage()).finish(|key| Some(key.to_vec())).expect("sound");
        assert_eq!(open(&to).decided(), flushed);
        engine.unpin_snapshot(manifest.id);
        let manifest = engine.pin_snapshot().expect("readable");
        assert!(!manifest.files.iter().any(|(name, _)| name == "values-0"), "{:?}", manifest.files);
    }

    #[test]
    fn what_is_not_pinned_cannot_be_read_or_checked() {
        let mut engine = create(&SimStorage::new(), small());
        let pin = engine.pin_snapshot().expect("readable").id;
        assert!(missing(engine.read_snapshot(pin + 1, "data", 0, 1)));
        assert!(missing(engine.read_snapshot(pin, "superblock", 0, 1)), "it is in the manifest");
        assert!(missing(engine.check_of_snapshot(pin + 1)));
        engine.unpin_snapshot(pin);
        assert!(missing(engine.read_snapshot(pin, "data", 0, 1)) && missing(engine.check_of_snapshot(pin)));
    }

    #[test]
    fn a_file_is_read_up_to_its_pinned_end() {
        let mut engine = create(&SimStorage::new(), small());
        commit(&mut engine, 1, puts(0..3, 100));
        flush(&mut engine, 1);
        let manifest = engine.pin_snapshot().expect("readable");
        commit(&mut engine, 2, puts(0..3, 90));
        flush(&mut engine, 2);
        let (name, len) = manifest.files.last().expect("a segment");
        assert_eq!((name.as_str(), *len), ("values-0", 3 * 116));
        let read = |offset, bytes| engine.read_snapshot(manifest.id, name, offset, bytes).expect("it is pinned").len();
        assert_eq!(
            [read(0, 100), read(300, 100), read(*len, 100), read(u64::MAX, 100), read(0, 0)],
            [100, 48, 0, 0, 0]
        );
    }

    #[test]
    fn pinned_pages_wait_until_their_last_pin_is_gone() {
        let mut engine = create(&SimStorage::new(), Params { capacity: 1000, ..small() });
        commit(&mut engine, 1, puts(0..20, 5));
        flush(&mut engine, 1);
        let pins = [(); 2].map(|()| engine.pin_snapshot().expect("readable").id);
        assert_ne!(pins[0], pins[1]);
        commit(&mut engine, 2, deletes(0..20));
        engine.prune(Version(2)).expect("usable");
        (2..6).for_each(|index| flush(&mut engine, index));
        let waiting = |engine: &Engine| engine.disk_usage().expect("readable").waiting_bytes;
        let held = waiting(&engine);
        engine.unpin_snapshot(pins[0]);
        assert!(held > 0 && waiting(&engine) == held);
        engine.unpin_snapshot(pins[1]);
        assert_eq!(waiting(&engine), 0);
    }

    #[test]
    fn pinned_files_stay_until_the_pin_is_gone() {
        let sim = SimStorage::new();
        let short = Options { segment_bytes_max: 200, meta_compaction_bytes_min: 0, ..options() };
        let mut engine = create_with(&sim, small(), short);
        commit(&mut engine, 1, puts(0..2, 100));
        flush(&mut engine, 1);
        let manifest = engine.pin_snapshot().expect("readable");
        for index in 2..40 {
            commit(&mut engine, index, puts(0..2, 90));
            engine.prune(Version(index)).expect("usable");
            flush(&mut engine, index);
        }
        let gone = ["meta-1", "values-0", "values-1"];
        let has = |sim: &SimStorage, name: &str| sim.files().iter().any(|file| file == name);
        assert!(gone.iter().all(|name| has(&sim, name)));
        engine.unpin_snapshot(manifest.id);
        assert!(!gone.iter().any(|name| has(&sim, name)), "{:?}", sim.files());
    }

    #[test]
    fn a_sender_finds_damage_in_a_pinned_snapshot() {
        let sim = SimStorage::new();
        let mut engine = create(&sim, Params::default());
        commit(&mut engine, 1, puts(0..1000, 9));
        flush(&mut engine, 1);
        let pin = engine.pin_snapshot().expect("readable").id;
        let check = engine.check_of_snapshot(pin).expect("it is pinned");
        damage(&sim, "data");
        assert!(matches!(check(), Err(Error::Corrupted { file, .. }) if file == "data"));
    }
}
