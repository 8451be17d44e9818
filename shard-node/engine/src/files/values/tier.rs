//! The cold tier: old segments of the value log in a second directory, on a cheaper disk.
//!
//! Segments that nothing is added to any more are copied there while the engine goes on, the oldest first, until those that are left
//! have no more bytes than [`crate::Options::hot_value_bytes_max`]. A segment never comes back; a merge that writes a live value anew
//! writes it here. Where a segment lies is stored nowhere: whoever wants it looks here first, then there.
//!
//! Invariants: a segment has its name in the cold directory only when it is complete and durable there, and it leaves this one after
//! that name is durable. So if both have it, both are right, unless the cold one is of an engine that was here before: this one
//! counts. An engine that is made, or received, empties the cold directory first.
//!
//! What a crash leaves: before the rename, a file with a temporary name; between the rename and the removal, the segment twice. The
//! next `open` removes the one and the cold copy of the other. The empty file [`MARKER_FILE`] is durable before the first segment
//! leaves: with it, a segment that is nowhere lies on a disk that is not there, and is not damage.

use std::{collections::BTreeSet, io::ErrorKind, sync::Arc};

use coppice_env::{OpenMode, Storage};

use super::record::{file_name, file_number as segment_number};
use crate::{Error, Result, meta::Meta, place::refs::Segment};

/// Says that segments may lie in the cold directory.
pub(crate) const MARKER_FILE: &str = "cold";

/// Most bytes that are read and written at once.
const COPY_BYTES: usize = 256 << 10;

fn temporary_name(segment: u32) -> String {
    format!("{}.new", file_name(segment))
}

/// The number in the name of a file of the cold directory, and whether it has its last name.
pub(crate) fn file_number(name: &str) -> Option<(u32, bool)> {
    match name.strip_suffix(".new") {
        Some(temporary) => segment_number(temporary).map(|number| (number, false)),
        None => segment_number(name).map(|number| (number, true)),
    }
}

/// Names in a cold directory; none if it does not exist.
pub(crate) fn list(cold: &dyn Storage) -> Result<Option<Vec<String>>> {
    match cold.list("") {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        listed => listed.map(Some).map_err(Error::io("list", "the cold directory")),
    }
}

/// Removes files of a cold directory, durably.
pub(crate) fn clear(storage: &dyn Storage, kept: impl Fn(&str) -> bool) -> Result<()> {
    let Some(cold) = storage.cold() else { return Ok(()) };
    let gone: Vec<String> = list(&*cold)?.unwrap_or_default().into_iter().filter(|name| !kept(name)).collect();
    for name in gone.iter().filter(|name| file_number(name).is_some()) {
        cold.remove(name).map_err(Error::io("remove", name))?;
    }
    if gone.is_empty() { Ok(()) } else { cold.sync_dir("").map_err(Error::io("sync", "the cold directory")) }
}

/// Makes the cold directory and notes here that segments may lie in it.
pub(crate) fn begin(storage: &dyn Storage, cold: &dyn Storage) -> Result<()> {
    cold.create_dir_all("").map_err(Error::io("create", "the cold directory"))?;
    storage.open(MARKER_FILE, OpenMode::OpenOrCreate).map_err(Error::io("create", MARKER_FILE))?;
    storage.sync_dir("").map_err(Error::io("sync", "the directory"))
}

pub(crate) fn is_live(segment: &Segment) -> bool {
    segment.end > 0 && segment.dead_at.is_none()
}

/// Finds the segments that are in the cold directory alone.
///
/// # Errors
/// `ColdMissing` if a segment must be there and no such directory is; `Corrupted` if there is one and it is not in it.
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

/// The segments of one engine that are in the cold directory, and the one that is on its way.
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
    /// It is copied, and durable, up to here.
    pub(crate) at: u64,
    /// A step is at work.
    pub(crate) out: bool,
    /// The segment is not needed any more.
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

    /// The move that is going on.
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
        self.moving = Some(Moving { segment, end, at: from, out: true, dead: false });
        let to = from.saturating_add(bytes.max(1)).min(end);
        ColdStep { hot, cold: Arc::clone(&self.storage), segment, from, to, end, done: None }
    }

    /// True if the segment of the step lies there from now on.
    pub(crate) fn end(&mut self, step: ColdStep) -> Result<bool> {
        let mut moving = self.moving.take().expect("a step is at work");
        assert!(moving.out && moving.segment == step.segment, "the step is of this move");
        moving.out = false;
        let (name, temporary) = (file_name(step.segment), temporary_name(step.segment));
        if moving.dead {
            return [temporary, name].iter().try_for_each(|name| remove(&*self.storage, name)).map(|()| false);
        }
        match step.done {
            // Nobody has run it.
            None => {}
            Some(Ok(())) => moving.at = step.to,
            Some(Err(error)) => {
                // What there is of it would take space, perhaps the last. It is removed by its own name only if it is seen to be here, too.
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

    /// The segment is deleted here: what there is of it there goes, too.
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

/// Removes a file that may be gone already.
fn remove(storage: &dyn Storage, name: &str) -> Result<()> {
    match storage.remove(name) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", name)(error)),
        _ => Ok(()),
    }
}

/// A part of a segment's move, which may be done beside the engine, on another thread: [`crate::Engine::begin_cold_step`] gives it,
/// [`ColdStep::run`] does it, [`crate::Engine::end_cold_step`] takes it back.
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

    pub(crate) fn len_bytes(&self) -> u64 {
        self.to - self.from
    }

    /// Copies and syncs; the last step gives the segment its name there, and removes it here.
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
