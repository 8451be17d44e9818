//! Dropping entries that the state machine no longer needs from the log.
//!
//! `meta` is replaced first, and files are removed afterwards. A crash in between leaves files that
//! `meta` no longer counts, and opening the log removes them.

use std::sync::{Arc, Mutex, PoisonError};

use coppice_env::{
    Storage,
    bug::{Bug, planted},
};

use super::{
    Log,
    batch::HardState,
    meta::Meta,
    segment::{Segment, file_id, file_name},
    slot::Slot,
};
use crate::{
    Membership, Position,
    error::{Error, Result},
    output::Beside,
    width::to_usize,
};

/// A `meta` that counts fewer segments. Another thread may store it, while the log takes entries.
///
/// A file system may make a change of names wait for data of other files, which takes tens of
/// milliseconds.
#[derive(Debug)]
pub struct Cut {
    storage: Arc<dyn Storage>,
    meta: Meta,
    /// Becomes false if the log needs another `meta` meanwhile.
    valid: Arc<Mutex<bool>>,
    stored: bool,
}

impl Cut {
    /// Calls `before`, then makes the new `meta` durable. Does neither if the log has stored
    /// another one since.
    ///
    /// # Errors
    /// That of `before`, or if the storage fails. The log stays as long as it is.
    pub fn run<E: From<Error>>(
        &mut self,
        before: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let valid = self.valid.lock().unwrap_or_else(PoisonError::into_inner);
        if *valid {
            before()?;
            self.meta.store(&*self.storage)?;
            self.stored = true;
        }
        Ok(())
    }
}

/// Files of dropped segments. Another thread may remove them, which takes tens of milliseconds for
/// a large file.
#[derive(Debug)]
pub struct Garbage {
    storage: Arc<dyn Storage>,
    files: Vec<String>,
}

impl Garbage {
    /// Whether there is nothing to remove.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Removes the files. The next start removes those that stay after an error or a crash.
    ///
    /// # Errors
    /// If the storage fails.
    pub fn remove(self) -> Result<()> {
        self.files.iter().try_for_each(|name| self.storage.remove(name).map_err(Error::io("remove a segment")))
    }
}

impl Log {
    /// Begins to drop the entries up to `to`, if whole segments can be dropped with them. Nothing
    /// is dropped before [`Log::end_cut`]. `None` if there is nothing to drop, or another cut has
    /// begun.
    pub(crate) fn begin_cut(&mut self, to: u64) -> Option<Cut> {
        // Without entries to drop, there may still be a segment: the newest one stays at each cut.
        let to = to.min(self.last().index).max(self.meta.base.index);
        if self.cut.is_some() {
            return None;
        }
        assert!(to <= self.hard_state.commit, "only committed entries are dropped");
        let skip = to_usize(to - self.meta.base.index);
        let live = self.slots.iter().skip(skip).filter_map(Slot::place).map(|place| place.segment).min();
        let (oldest, active) = (self.segments.front()?, self.segments.back()?);
        let first_segment = live.unwrap_or(active.id).min(active.id);
        if first_segment <= oldest.id || self.slots.iter().take(skip).any(|slot| slot.place().is_none()) {
            return None;
        }
        let meta = Meta {
            base: Position { index: to, term: self.term(to).expect("the log holds the entry, or starts there") },
            membership: self.membership_at(to).clone(),
            hard_state: self.hard_state,
            first_segment,
            manifest: None,
            ..self.meta.clone()
        };
        let valid = Arc::new(Mutex::new(true));
        self.cut = Some(Arc::clone(&valid));
        Some(Cut { storage: Arc::clone(&self.storage), meta, valid, stored: false })
    }

    /// Ends a cut. Returns the files that nothing counts any more. Drops nothing if its `meta` was
    /// not stored, or was replaced since.
    pub(crate) fn end_cut(&mut self, cut: Cut) -> Garbage {
        let mut garbage = Garbage { storage: Arc::clone(&self.storage), files: Vec::new() };
        let is_current = self.cut.take_if(|valid| Arc::ptr_eq(valid, &cut.valid)).is_some();
        if !is_current || !cut.stored {
            return garbage;
        }
        let (last, base, first_segment) = (self.last(), cut.meta.base, cut.meta.first_segment);
        for slot in self.slots.drain(..to_usize(base.index - self.meta.base.index)) {
            self.cached_bytes -= slot.cached_bytes();
        }
        self.cached_from = self.cached_from.max(base.index + 1);
        self.memberships.retain(|(from, _)| *from > base.index);
        self.memberships.insert(0, (base.index, cut.meta.membership.clone()));
        self.meta = cut.meta;
        assert_eq!(self.last(), last, "the log still ends where it ended");
        garbage.files = self.drop_segments(first_segment);
        garbage
    }

    /// Makes sure that a cut which has begun stores nothing from now on. Another `meta` is stored
    /// next.
    pub(super) fn forget_cut(&mut self) {
        if let Some(valid) = self.cut.take() {
            *valid.lock().unwrap_or_else(PoisonError::into_inner) = false;
        }
    }

    /// Drops the segments before `first`. Some of their files are kept for later segments; returns
    /// the others.
    fn drop_segments(&mut self, first: u64) -> Vec<String> {
        // Otherwise a file that a large batch made larger than usual would stay large.
        let usual = self.segment_blocks().next_multiple_of(self.fill_blocks_max());
        let (mut reusable, mut garbage) = (0, Vec::new());
        while let Some(dropped) = self.pop_segment_before(first) {
            if dropped.filled_blocks <= usual && dropped.id >= self.clean_from {
                self.dropped.push(dropped);
                reusable += 1;
            } else {
                garbage.push(file_name(dropped.id));
            }
        }
        assert!(!self.segments.is_empty(), "the newest segment stays");
        let kept = reusable.max(std::mem::replace(&mut self.dropped_last, reusable));
        while self.dropped.len() > kept
            && let Some(dropped) = self.dropped.pop()
        {
            garbage.push(file_name(dropped.id));
        }
        garbage
    }

    /// Takes the oldest segment out of the log, if it lies before `first`.
    fn pop_segment_before(&mut self, first: u64) -> Option<Segment> {
        self.segments.front().filter(|oldest| oldest.id < first)?;
        self.segments.pop_front()
    }

    /// Begins a segment in a new file, durably. Everything that the log had so far lies in older
    /// files, which are removed once their entries are dropped, and never used again.
    pub(crate) fn renew(&mut self) -> Result<()> {
        if planted(Bug::SegmentsKept) {
            return Ok(());
        }
        let files: Vec<String> = self.dropped.drain(..).chain(self.spare.take()).map(|it| file_name(it.id)).collect();
        Garbage { storage: Arc::clone(&self.storage), files }.remove()?;
        self.renews = true;
        self.pending.hard_state = true;
        Beside::alone(|beside| self.flush(beside))?;
        assert!(!self.renews, "the batch began a segment");
        self.clean_from = self.segments.back().map_or(0, |newest| newest.id);
        Ok(())
    }

    /// Durably removes the files of segments before the last [`Self::renew`]. Returns whether all
    /// of them are gone.
    pub(crate) fn clear(&self) -> Result<bool> {
        if self.segments.front().is_some_and(|oldest| oldest.id < self.clean_from) || self.cut.is_some() {
            return Ok(false);
        }
        for name in self.storage.list("").map_err(Error::io("list its directory"))? {
            if file_id(&name).is_some_and(|id| id < self.clean_from) {
                match self.storage.remove(&name) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(Error::io("remove a segment")(error));
                    }
                    _ => {}
                }
            }
        }
        self.storage.sync_dir("").map_err(Error::io("sync its directory"))?;
        Ok(true)
    }

    /// Drops all entries: the log starts after the snapshot at `base`, whose manifest is kept until
    /// the state machine has switched to it. Durable when this returns, with `hard_state`.
    pub(crate) fn reset(
        &mut self,
        base: Position,
        membership: Membership,
        manifest: Vec<u8>,
        hard_state: HardState,
    ) -> Result<()> {
        assert!(hard_state.commit >= base.index, "a snapshot is committed");
        assert!(hard_state.term >= self.hard_state.term, "terms never fall");
        let newest = self.spare.as_ref().or(self.segments.back()).map(|segment| segment.id);
        let meta = Meta {
            base,
            membership,
            hard_state,
            first_segment: newest.map_or(self.meta.first_segment, |id| id + 1),
            manifest: Some(manifest),
            ..self.meta.clone()
        };
        self.forget_cut();
        meta.store(&*self.storage)?;
        let empty = Self::empty(Arc::clone(&self.storage), self.sizes, meta);
        let old = std::mem::replace(self, Self { sequence_next: self.sequence_next, ..empty });
        assert_eq!(self.last(), base, "the log ends where the snapshot does");
        let segments = old.segments.iter().chain(&old.spare).chain(&old.dropped);
        let files = segments.map(|segment| file_name(segment.id)).collect();
        Garbage { storage: Arc::clone(&self.storage), files }.remove()
    }
}
