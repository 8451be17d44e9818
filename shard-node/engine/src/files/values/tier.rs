//! The cold tier: old segments of the value log in a second directory, on a cheaper disk.
//!
//! Segments that take no more records are copied there while the engine keeps working. The oldest
//! goes first, until the remaining ones have at most [`crate::Options::hot_value_bytes_max`] bytes.
//! A segment never comes back; a merge that appends a live value again writes it to the data
//! directory. No file says where a segment lies: a read looks in the data directory first, then in
//! the cold one.
//!
//! Invariants: a segment has its final name in the cold directory only when it is complete and
//! durable there, and it leaves the data directory only after that name is durable. If both
//! directories have it, the data directory counts. Both copies are equal, unless the cold one
//! belonged to an earlier engine. An engine that is created or received empties the cold directory
//! first.
//!
//! A crash before the rename leaves a file with a temporary name. A crash between rename and
//! removal leaves the segment in both directories. The next `open` removes the temporary file and
//! the cold copy. The empty file [`MARKER_FILE`] is durable before the first segment leaves. If the
//! marker exists, a segment that is in neither directory is on a missing disk, and is not damage.

use std::{collections::BTreeSet, io::ErrorKind, sync::Arc};

use coppice_env::{OpenMode, Storage};

use super::record::{file_name, file_number as segment_number};
use crate::{Error, Result, meta::Meta, place::refs::Segment};

/// Marks a data directory whose segments may lie in the cold directory.
pub(crate) const MARKER_FILE: &str = "cold";

/// Limit on the bytes in one read and write.
const COPY_BYTES: usize = 256 << 10;

fn temporary_name(segment: u32) -> String {
    format!("{}.new", file_name(segment))
}

/// The segment number in a cold directory's file name, and whether the name is the final one.
pub(crate) fn file_number(name: &str) -> Option<(u32, bool)> {
    match name.strip_suffix(".new") {
        Some(temporary) => segment_number(temporary).map(|number| (number, false)),
        None => segment_number(name).map(|number| (number, true)),
    }
}

/// Names in a cold directory; `None` if it does not exist.
pub(crate) fn list(cold: &dyn Storage) -> Result<Option<Vec<String>>> {
    match cold.list("") {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        listed => listed.map(Some).map_err(Error::io("list", "the cold directory")),
    }
}

/// Durably removes the files of a cold directory that are not kept.
pub(crate) fn clear(storage: &dyn Storage, kept: impl Fn(&str) -> bool) -> Result<()> {
    let Some(cold) = storage.cold() else { return Ok(()) };
    let gone: Vec<String> = list(&*cold)?.unwrap_or_default().into_iter().filter(|name| !kept(name)).collect();
    for name in gone.iter().filter(|name| file_number(name).is_some()) {
        cold.remove(name).map_err(Error::io("remove", name))?;
    }
    if gone.is_empty() { Ok(()) } else { cold.sync_dir("").map_err(Error::io("sync", "the cold directory")) }
}

/// Creates the cold directory, and the marker in the data directory.
pub(crate) fn begin(storage: &dyn Storage, cold: &dyn Storage) -> Result<()> {
    cold.create_dir_all("").map_err(Error::io("create", "the cold directory"))?;
    storage.open(MARKER_FILE, OpenMode::OpenOrCreate).map_err(Error::io("create", MARKER_FILE))?;
    storage.sync_dir("").map_err(Error::io("sync", "the directory"))
}

pub(crate) fn is_live(segment: &Segment) -> bool {
    segment.end > 0 && segment.dead_at.is_none()
}

/// Returns the segments that only the cold directory has.
///
/// # Errors
/// `ColdMissing` if a needed segment must be in a cold directory that does not exist; `Corrupted`
/// if that directory exists and does not have it.
pub(crate) fn find(storage: &dyn Storage, meta: &Meta) -> Result<BTreeSet<u32>> {
    let here: BTreeSet<String> = storage.list("").map_err(Error::io("list", "the directory"))?.into_iter().collect();
    let there = storage.cold().map(|cold| list(&*cold)).transpose()?.flatten();
    let mut found = BTreeSet::new();
    for (id, segment) in &meta.segments {
        let file = file_name(*id);
        if here.contains(&file) {
            continue;
        }
        match &there {
            Some(names) if names.contains(&file) => {
                found.insert(*id);
            }
            None if is_live(segment) && here.contains(MARKER_FILE) => return Err(Error::ColdMissing { file }),
            Some(_) if is_live(segment) && here.contains(MARKER_FILE) => {
                return Err(Error::corrupted(file, None, "it is neither here nor in the cold directory"));
            }
            _ => {}
        }
    }
    Ok(found)
}

/// The engine's segments in the cold directory, and the one that is being moved.
#[derive(Debug)]
pub(crate) struct Tier {
    pub(crate) storage: Arc<dyn Storage>,
    segments: BTreeSet<u32>,
    moving: Option<Moving>,
}

#[derive(Debug)]
pub(crate) struct Moving {
    pub(crate) segment: u32,
    pub(crate) end: u64,
    /// The copy is durable up to this offset.
    pub(crate) at: u64,
    /// Whether a step is in progress.
    pub(crate) out: bool,
    /// Whether the segment is no longer needed.
    dead: bool,
}

impl Tier {
    pub(crate) fn new(storage: Arc<dyn Storage>) -> Self {
        Self { storage, segments: BTreeSet::new(), moving: None }
    }

    pub(crate) fn set(&mut self, segments: BTreeSet<u32>) {
        self.segments = segments;
    }

    pub(crate) fn has(&self, segment: u32) -> bool {
        self.segments.contains(&segment)
    }

    /// The move in progress, if any.
    pub(crate) fn moving(&self) -> Option<&Moving> {
        self.moving.as_ref()
    }

    /// Begins the next step of a move, of about this many bytes.
    pub(crate) fn begin(
        &mut self,
        hot: Arc<dyn Storage>,
        (segment, end, from): (u32, u64, u64),
        bytes: u64,
    ) -> ColdStep {
        assert!(from < end, "a step of a move has bytes to copy");
        assert!(!self.segments.contains(&segment), "a segment moves to the cold directory once");
        assert!(self.moving.as_ref().is_none_or(|moving| !moving.out), "one step of a move is in progress at a time");
        self.moving = Some(Moving { segment, end, at: from, out: true, dead: false });
        let to = from.saturating_add(bytes.max(1)).min(end);
        ColdStep { hot, cold: Arc::clone(&self.storage), segment, from, to, end, done: None }
    }

    /// Ends a move that has no step in progress, and removes its copy.
    pub(crate) fn cancel(&mut self) -> Result<()> {
        let Some(moving) = &self.moving else { return Ok(()) };
        assert!(!moving.out, "a move is cancelled between its steps");
        remove(&*self.storage, &temporary_name(moving.segment))?;
        self.moving = None;
        Ok(())
    }

    /// Ends a step. Returns `true` if the segment is now in the cold directory.
    pub(crate) fn end(&mut self, step: ColdStep) -> Result<bool> {
        let Some(mut moving) = self.moving.take() else {
            return Err(Error::Invalid("a step of a move that is not in progress"));
        };
        assert!(moving.out && moving.segment == step.segment, "the step is of this move");
        assert_eq!(moving.at, step.from, "a step goes on where the one before ended");
        moving.out = false;
        let (name, temporary) = (file_name(step.segment), temporary_name(step.segment));
        if moving.dead {
            return [temporary, name].iter().try_for_each(|name| remove(&*self.storage, name)).map(|()| false);
        }
        match step.done {
            // The step was never run.
            None => {}
            Some(Ok(())) => moving.at = step.to,
            Some(Err(error)) => {
                // The partial copy would take space, perhaps the last that is free. The final name
                // is removed only if the segment is still in the data directory.
                let left: &[String] = match step.hot.open(&name, OpenMode::Existing) {
                    Err(lost) if lost.kind() == ErrorKind::NotFound => {
                        self.segments.insert(step.segment);
                        &[]
                    }
                    Err(_) => &[temporary],
                    Ok(_) => &[temporary, name],
                };
                left.iter().for_each(|name| drop(self.storage.remove(name)));
                return Err(error);
            }
        }
        let moved = moving.at == step.end;
        if moved {
            self.segments.insert(step.segment);
        } else {
            self.moving = Some(moving);
        }
        Ok(moved)
    }

    /// Deletes the files of a deleted segment from the cold directory.
    pub(crate) fn delete(&mut self, segment: u32) -> Result<()> {
        let mut names = Vec::new();
        if self.segments.remove(&segment) {
            names.push(file_name(segment));
        }
        if let Some(moving) = self.moving.as_mut().filter(|moving| moving.segment == segment) {
            moving.dead = true;
            if !moving.out {
                self.moving = None;
                names.push(temporary_name(segment));
            }
        }
        names.iter().try_for_each(|name| remove(&*self.storage, name))
    }
}

/// Removes a file if it exists.
fn remove(storage: &dyn Storage, name: &str) -> Result<()> {
    match storage.remove(name) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", name)(error)),
        _ => Ok(()),
    }
}

/// One step of a segment's move. It may run on another thread: [`crate::Engine::begin_cold_step`]
/// returns it, [`ColdStep::run`] does the work, and [`crate::Engine::end_cold_step`] takes it back.
#[derive(Debug)]
#[must_use = "the engine waits for its end"]
pub struct ColdStep {
    hot: Arc<dyn Storage>,
    cold: Arc<dyn Storage>,
    segment: u32,
    from: u64,
    to: u64,
    end: u64,
    done: Option<Result<()>>,
}

impl ColdStep {
    pub(crate) fn segment(&self) -> u32 {
        self.segment
    }

    /// The bytes that the step has copied; 0 if it failed or was not run.
    pub(crate) fn written_bytes(&self) -> u64 {
        if matches!(self.done, Some(Ok(()))) { self.to - self.from } else { 0 }
    }

    /// Copies and syncs. The last step also gives the copy its final name and removes the segment
    /// from the data directory.
    pub fn run(&mut self) {
        self.done = Some(self.copy().and_then(|()| if self.to == self.end { self.publish() } else { Ok(()) }));
    }

    fn copy(&self) -> Result<()> {
        let (name, temporary) = (file_name(self.segment), temporary_name(self.segment));
        let source = self.hot.open(&name, OpenMode::Existing).map_err(Error::io("open", &name))?;
        if self.from == 0 {
            begin(&*self.hot, &*self.cold)?;
        }
        let target = self.cold.open(&temporary, OpenMode::OpenOrCreate).map_err(Error::io("create", &temporary))?;
        if self.from == 0 {
            target.set_len(0).map_err(Error::io("write", &temporary))?;
        }
        let mut buffer = vec![0; COPY_BYTES];
        let mut at = self.from;
        while at < self.to {
            let part = &mut buffer[..(self.to - at).min(COPY_BYTES as u64) as usize];
            source.read_exact_at(part, at).map_err(Error::io("read", &name))?;
            target.write_all_at(part, at).map_err(Error::io("write", &temporary))?;
            at += part.len() as u64;
        }
        target.sync_data().map_err(Error::io("sync", &temporary))
    }

    fn publish(&self) -> Result<()> {
        let name = file_name(self.segment);
        self.cold.rename(&temporary_name(self.segment), &name).map_err(Error::io("rename", &name))?;
        self.cold.sync_dir("").map_err(Error::io("sync", "the cold directory"))?;
        self.hot.remove(&name).map_err(Error::io("remove", &name))
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::{SimStorage, TieredStorage};

    use super::*;
    use crate::testing::{create, small};

    fn tiered(sim: &SimStorage) -> TieredStorage {
        let dir = |name| sim.subdir(name).expect("a path");
        TieredStorage::new(dir("hot"), dir("cold"))
    }

    /// A table with segments 0 to 2. Segment 1 is dead.
    fn meta() -> Meta {
        let mut engine = create(&SimStorage::new(), small());
        for segment in 0..3 {
            let dead_at = (segment == 1).then_some(1);
            engine.meta.segments.insert(segment, Segment { end: 100, live: 0, dead_at });
        }
        engine.meta
    }

    fn touch(sim: &SimStorage, names: &[&str]) {
        for name in names {
            let dir = name.split('/').next().expect("a directory");
            sim.create_dir_all(dir).expect("room");
            sim.open(name, OpenMode::CreateNew).expect("a new file");
        }
    }

    #[test]
    fn names_in_a_cold_directory_are_final_or_temporary() {
        assert_eq!(file_number("values-7"), Some((7, true)));
        assert_eq!(file_number(&temporary_name(7)), Some((7, false)));
        assert_eq!(["values-", "values-7.new.new", "meta-7", "values-x.new"].map(file_number), [None; 4]);
    }

    #[test]
    fn a_segment_is_cold_if_only_the_cold_directory_has_it() {
        let sim = SimStorage::new();
        touch(&sim, &["hot/values-2", "cold/values-0", "cold/values-2", "cold/values-9"]);
        assert_eq!(find(&tiered(&sim), &meta()).expect("readable"), BTreeSet::from([0]));
    }

    #[test]
    fn a_lost_segment_is_damage_only_if_the_disk_that_should_have_it_is_there() {
        let sim = SimStorage::new();
        touch(&sim, &["hot/values-0", "hot/cold"]);
        let missing = |sim: &SimStorage| find(&tiered(sim), &meta());
        assert!(matches!(missing(&sim), Err(Error::ColdMissing { file }) if file == "values-2"), "no directory");
        touch(&sim, &["cold/values-0"]);
        assert!(matches!(missing(&sim), Err(Error::Corrupted { file, .. }) if file == "values-2"), "another directory");
        touch(&sim, &["cold/values-2"]);
        assert_eq!(missing(&sim).expect("it is there"), BTreeSet::from([2]));
    }

    #[test]
    fn without_the_marker_a_lost_segment_is_left_to_the_check_of_its_values() {
        let sim = SimStorage::new();
        touch(&sim, &["hot/values-0"]);
        assert_eq!(find(&tiered(&sim), &meta()).expect("readable"), BTreeSet::new());
    }

    #[test]
    fn a_cold_directory_is_cleared_of_segments_alone_and_durably() {
        let sim = SimStorage::new();
        touch(&sim, &["cold/values-0", "cold/values-1", "cold/values-1.new", "cold/notes"]);
        sim.sync_dir("cold").and_then(|()| sim.sync_dir("")).expect("a sound disk");
        clear(&tiered(&sim), |name| name == "values-0").expect("a sound disk");
        assert_eq!(sim.power_loss(1).files(), ["cold/notes", "cold/values-0"]);
        clear(&sim, |_| false).expect("there is no cold directory");
        clear(&tiered(&SimStorage::new()), |_| false).expect("it does not exist");
    }

    #[test]
    fn the_marker_is_durable_before_anything_moves() {
        let sim = SimStorage::new();
        sim.create_dir_all("hot").and_then(|()| sim.sync_dir("")).expect("a sound disk");
        let storage = tiered(&sim);
        begin(&storage, &*storage.cold().expect("there is one")).expect("room");
        assert_eq!(sim.power_loss(1).files(), ["hot/cold"]);
    }

    #[test]
    fn a_deleted_segment_takes_its_cold_file_and_its_unfinished_copy_with_it() {
        let sim = SimStorage::new();
        touch(&sim, &["hot/values-1", "cold/values-0"]);
        let hot = sim.subdir("hot").expect("a path");
        hot.open("values-1", OpenMode::Existing).and_then(|file| file.set_len(100)).expect("room");
        let mut tier = Tier::new(sim.subdir("cold").expect("a path"));
        tier.set(BTreeSet::from([0]));
        let mut step = tier.begin(hot, (1, 100, 0), 60);
        assert_eq!((step.segment(), step.written_bytes()), (1, 0));
        step.run();
        assert_eq!(step.written_bytes(), 60);
        assert!(!tier.end(step).expect("room"));
        assert_eq!(tier.moving().map(|moving| (moving.segment, moving.at)), Some((1, 60)));
        (0..2).for_each(|segment| tier.delete(segment).expect("a sound disk"));
        assert!(!tier.has(0) && tier.moving().is_none());
        assert_eq!(sim.files(), ["hot/cold", "hot/values-1"]);
        tier.delete(7).expect("there is nothing of it");
    }
}
