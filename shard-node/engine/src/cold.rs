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

use crate::{
    Engine, Error, Result,
    meta::{Meta, Segment},
    values,
};

/// Says that segments may lie in the cold directory.
pub(crate) const MARKER_FILE: &str = "cold";

/// Most bytes that are read and written at once.
const COPY_BYTES: usize = 256 << 10;

fn temporary_name(segment: u32) -> String {
    format!("{}.new", values::file_name(segment))
}

/// The number in the name of a file of the cold directory, and whether it has its last name.
pub(crate) fn file_number(name: &str) -> Option<(u32, bool)> {
    match name.strip_suffix(".new") {
        Some(temporary) => values::file_number(temporary).map(|number| (number, false)),
        None => values::file_number(name).map(|number| (number, true)),
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

fn is_live(segment: &Segment) -> bool {
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
        let file = values::file_name(*id);
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
struct Moving {
    segment: u32,
    end: u64,
    /// It is copied, and durable, up to here.
    at: u64,
    /// A step is at work.
    out: bool,
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

    /// True if the segment of the step lies there from now on.
    fn end(&mut self, step: ColdStep) -> Result<bool> {
        let mut moving = self.moving.take().expect("a step is at work");
        assert!(moving.out && moving.segment == step.segment, "the step is of this move");
        moving.out = false;
        let (name, temporary) = (values::file_name(step.segment), temporary_name(step.segment));
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
            names.push(values::file_name(segment));
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

/// A part of a segment's move, which may be done beside the engine, on another thread: [`Engine::begin_cold_step`] gives it,
/// [`ColdStep::run`] does it, [`Engine::end_cold_step`] takes it back.
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
    /// Copies and syncs; the last step gives the segment its name there, and removes it here.
    pub fn run(&mut self) {
        self.done = Some(self.copy().and_then(|()| if self.to == self.end { self.publish() } else { Ok(()) }));
    }

    fn copy(&self) -> Result<()> {
        let (name, temporary) = (values::file_name(self.segment), temporary_name(self.segment));
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
        let name = values::file_name(self.segment);
        self.cold.rename(&temporary_name(self.segment), &name).map_err(Error::io("rename", &name))?;
        self.cold.sync_dir("").map_err(Error::io("sync", "the cold directory"))?;
        self.hot.remove(&name).map_err(Error::io("remove", &name))
    }
}

impl Engine {
    /// Bytes of the segments that are in the cold directory.
    pub(crate) fn cold_bytes(&self) -> u64 {
        let Some(tier) = self.store.values.tier() else { return 0 };
        self.meta.segments.iter().filter(|(id, _)| tier.has(**id)).map(|(_, segment)| segment.end).sum()
    }

    /// Whether segments wait to go to the cold directory, and nobody moves them now.
    #[must_use]
    pub fn cold_behind(&self) -> bool {
        self.next_cold().is_some()
    }

    /// The segment to go on with, where it ends, and how far it is.
    fn next_cold(&self) -> Option<(u32, u64, u64)> {
        let tier = self.store.values.tier()?;
        if let Some(moving) = &tier.moving {
            return (!moving.out).then_some((moving.segment, moving.end, moving.at));
        }
        let taking = self.store.values.taking();
        let mut here = self.meta.segments.iter().filter(|(id, _)| !tier.has(**id));
        let bytes: u64 = here.clone().map(|(_, segment)| segment.end).sum();
        let sealed = |id: u32| !taking.contains(&id) && !self.store.values.has_tail(id);
        let (id, segment) = here.find(|(id, segment)| is_live(segment) && sealed(**id))?;
        (bytes > self.options.hot_value_bytes_max).then_some((*id, segment.end, 0))
    }

    /// The next part of moving a segment to the cold directory, of about so many bytes, if there is something to move and no part is
    /// at work. It changes nothing that a flush, a snapshot or a read depends on.
    pub fn begin_cold_step(&mut self, bytes: u64) -> Option<ColdStep> {
        let (segment, end, from) = self.next_cold()?;
        let hot = Arc::clone(&self.storage);
        let tier = self.store.values.tier_mut()?;
        tier.moving = Some(Moving { segment, end, at: from, out: true, dead: false });
        let to = from.saturating_add(bytes.max(1)).min(end);
        Some(ColdStep { hot, cold: Arc::clone(&tier.storage), segment, from, to, end, done: None })
    }

    /// Takes back what [`Engine::begin_cold_step`] gave.
    ///
    /// # Errors
    /// If it failed. Nothing is lost; the segment stays here, and its move begins anew with the next step.
    ///
    /// # Panics
    /// If it is not this engine's.
    pub fn end_cold_step(&mut self, step: ColdStep) -> Result<()> {
        let (segment, bytes) = (step.segment, step.to - step.from);
        let tier = self.store.values.tier_mut().expect("the step is of this tier");
        let ended = tier.end(step);
        // Who reads it next opens it where it is now.
        self.store.values.close(segment);
        let counters = &self.store.counters;
        match ended {
            Ok(moved) => {
                counters.cold_write_bytes.add(bytes);
                counters.cold_segments.add(moved.into());
                Ok(())
            }
            Err(error) => {
                counters.cold_failures.one();
                Err(error)
            }
        }
    }
}
