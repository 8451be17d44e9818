//! Erasing values: from the decision on in all reads, and then on the disk.
//!
//! The version that erases a value is staged like any other one, and nothing is destroyed before it
//! is decided ([`crate::StageRequest::erases`]). Then values are overwritten in rounds. A round
//!
//! 1. begins once both superblocks, and every pinned one, know the erased keys. Otherwise a
//!    recovery, a check or a receiver that follows such a superblock would find damage;
//! 2. reads every segment up to its end, and overwrites the values of all records that bear the
//!    name of such a key. So copies that merges left behind are found, too. Rests of writes that a
//!    crash cut off, behind the end, are cut off. Every segment is synced;
//! 3. removes files that no superblock names;
//! 4. notes in the Meta table that the erasures are done.
//!
//! A crash loses the round. The next one begins again, and finds records in any state between the
//! two writes of [`crate::files::values`]. No segment moves to the cold directory during a round.

use std::collections::{BTreeMap, BTreeSet};

use coppice_types::Version;

use crate::{
    Engine, ErasureProgress, Error, Result,
    files::values::{self, Residue, ScrubPlace, tier},
    meta::{MetaOp, VersionId},
    tree::{self, found::FoundBody},
};

/// A round in progress.
#[derive(Debug)]
pub(crate) struct Round {
    /// The number of the last version whose erasures are part of it.
    through: VersionId,
    /// The segments with their ends at the beginning. No later record has a value that the round
    /// erases.
    ends: BTreeMap<u32, u64>,
    place: ScrubPlace,
    /// Segments that were read and not cut, since they take new records.
    uncut: BTreeSet<u32>,
}

impl Round {
    /// The segment that the walk is in, or the next one, and its end.
    fn next(&mut self) -> Option<(u32, u64)> {
        loop {
            let (id, end) = self.ends.range(self.place.segment..).next().map(|(id, end)| (*id, *end))?;
            if id != self.place.segment {
                self.place = ScrubPlace::of_segment(id);
            }
            if self.place.offset < end {
                return Some((id, end));
            }
            self.place = ScrubPlace::of_segment(id.checked_add(1)?);
        }
    }

    fn is_walked(&self) -> bool {
        let (at, offset) = (self.place.segment, self.place.offset);
        !self.ends.range(at..).any(|(id, end)| *id > at || offset < *end)
    }
}

impl Engine {
    /// The number of the last decided version that erased a value; 0 if there is none. Numbers are
    /// those of this directory.
    #[must_use]
    pub fn last_eraser(&self) -> u64 {
        self.meta.erasures.last()
    }

    /// Whether the value of a key is erased.
    #[must_use]
    pub fn is_erased(&self, key: &[u8]) -> bool {
        self.meta.erasures.has(key)
    }

    /// Whether values may still be in the directory though their erasure is decided.
    #[must_use]
    pub fn is_erasing(&self) -> bool {
        self.meta.erasures.is_open()
    }

    /// How far erasures have come, where copies outside the directory are gone for versions with
    /// numbers up to `cleared`.
    #[must_use]
    pub fn erasures(&self, cleared: u64) -> ErasureProgress {
        let (open, from) = self.meta.erasures.open(cleared);
        let decided = self.decided().version;
        let through = from.map_or(decided, |from| Version(from.0.saturating_sub(1)).min(decided));
        ErasureProgress { open, through }
    }

    /// Whether an erasure waits for a flush.
    #[must_use]
    pub fn erasure_wants_flush(&self) -> bool {
        let erasures = &self.meta.erasures;
        self.erasing.is_none() && erasures.is_open() && self.superblock.generation < erasures.covered_at()
    }

    /// Whether an erasure waits for a snapshot that was pinned before it to end.
    #[must_use]
    pub fn erasure_wants_unpin(&self) -> bool {
        let erasures = &self.meta.erasures;
        let is_older = |pin| pin < erasures.covered_at();
        self.erasing.is_none() && erasures.is_open() && self.meta.oldest_pin().is_some_and(is_older)
    }

    /// Whether [`Engine::erase_step`] has something to do now.
    #[must_use]
    pub fn erasure_due(&self) -> bool {
        let moves = || self.store.values.tier().and_then(|tier| tier.moving()).is_some_and(|moving| moving.out);
        let is_due = match &self.erasing {
            Some(round) => !round.is_walked() || !self.writing,
            None => {
                let waits = self.erasure_wants_flush() || self.erasure_wants_unpin() || self.writing || moves();
                self.meta.erasures.is_open() && !waits
            }
        };
        is_due && !self.poisoned
    }

    /// Reads about this many bytes of the value log, and overwrites the erased values among them.
    /// Does nothing if nothing is due.
    ///
    /// # Errors
    /// `Corrupted`, or a failure of the storage. The next call returns to the same place.
    pub fn erase_step(&mut self, bytes: u64) -> Result<()> {
        if !self.erasure_due() {
            return Ok(());
        }
        let mut round = match self.erasing.take() {
            Some(round) => round,
            None => self.begin_round()?,
        };
        let mut done = self.walk(&mut round, bytes);
        let ends = done.is_ok() && round.is_walked() && !self.writing;
        if ends {
            done = self.end_round(&round);
        }
        if !ends || done.is_err() {
            self.erasing = Some(round);
        }
        done
    }

    fn begin_round(&mut self) -> Result<Round> {
        let erasures = &self.meta.erasures;
        let (through, covered_at) = (erasures.last(), erasures.covered_at());
        assert!(self.superblock.generation >= covered_at, "the newest superblock knows what is erased");
        let is_known = self.older.as_ref().is_none_or(|older| older.generation >= covered_at);
        if !is_known || self.slot_unknown {
            self.copy_superblock()?;
        }
        if let Some(tier) = self.store.values.tier_mut() {
            tier.cancel()?;
        }
        let live = self.meta.segments.iter().map(|(id, segment)| (*id, segment.end));
        let dead = self.meta.dead_segments().iter().map(|dead| (dead.segment, dead.end));
        let ends = live.chain(dead).filter(|(_, end)| *end > 0).collect();
        Ok(Round { through, ends, place: ScrubPlace::default(), uncut: BTreeSet::new() })
    }

    fn walk(&self, round: &mut Round, bytes: u64) -> Result<()> {
        let mut left = bytes;
        while left > 0
            && let Some((segment, end)) = round.next()
        {
            if !self.has_file(segment)? {
                round.place = ScrubPlace::of_segment(segment.saturating_add(1));
                continue;
            }
            let (from, mut found) = (round.place.offset, Vec::new());
            let is_erased = |key: &[u8]| self.meta.erasures.has_by(key, round.through);
            let read = self.store.values.scrub(&mut round.place, end, left, &is_erased, &mut found);
            let erased = self.check_torn(&found).and_then(|()| self.store.values.erase(&found));
            if let Err(error) = erased {
                round.place = ScrubPlace::of_record(segment, from);
                return Err(error);
            }
            left = left.saturating_sub(read?);
            if round.place.offset >= end {
                self.end_segment(round, segment).inspect_err(|_| {
                    round.place = ScrubPlace::of_record(segment, from);
                })?;
            }
        }
        Ok(())
    }

    /// Checks records with a wrong checksum before they are overwritten: their names or lengths may
    /// be damaged, and then they are other keys' records, or cover some. The record of the newest
    /// value is known by its place. Any other must have zeroes in its value, as an erasure leaves
    /// them that a crash cut off.
    fn check_torn(&self, found: &[Residue]) -> Result<()> {
        for residue in found.iter().filter(|residue| !residue.is_sound) {
            let damage =
                || Error::corrupted(values::file_name(residue.at.segment), Some(residue.at.offset.into()), "checksum");
            let (stamp, key, len) = residue.parts().ok_or_else(damage)?;
            let known = tree::get(&self.store, &self.meta.tip().trees, None, key)?;
            let is_sound = match known.map(|known| (known.stamp, known.body)) {
                Some((known, FoundBody::Stored { value, .. })) if value.blob.at == residue.at => {
                    known == stamp && value.len == len
                }
                _ => self.store.values.is_partly_zero(residue)?,
            };
            if !is_sound {
                return Err(damage());
            }
        }
        Ok(())
    }

    /// Cuts a segment that was read, now or at the end of the round.
    fn end_segment(&self, round: &mut Round, segment: u32) -> Result<()> {
        if self.store.values.has_tail(segment) {
            round.uncut.insert(segment);
            return Ok(());
        }
        self.cut(round, segment)
    }

    fn cut(&self, round: &Round, segment: u32) -> Result<()> {
        // It may have grown since the round began.
        let end = self.meta.segments.get(&segment).map_or(round.ends[&segment], |known| known.end);
        self.store.values.trim(segment, end)
    }

    /// Whether the segment's file is still there. That of a dead segment may be gone although the
    /// table has the segment: it is deleted before a superblock says so.
    fn has_file(&self, segment: u32) -> Result<bool> {
        match self.meta.segments.get(&segment) {
            Some(known) if known.dead_at.is_none() => Ok(true),
            _ if !self.has_segment(segment) => Ok(false),
            _ => self.store.values.is_there(segment),
        }
    }

    /// Whether a superblock or a pin may need the segment.
    fn has_segment(&self, segment: u32) -> bool {
        self.meta.segments.contains_key(&segment)
            || self.meta.dead_segments().iter().any(|dead| dead.segment == segment)
    }

    fn end_round(&mut self, round: &Round) -> Result<()> {
        assert!(!self.writing, "nothing is written while files are cut");
        for id in &round.uncut {
            if self.has_file(*id)? {
                self.cut(round, *id)?;
            }
        }
        self.remove_strangers()?;
        self.apply(MetaOp::Erased(round.through));
        Ok(())
    }

    /// Durably removes segments that the table does not name, and files that a failed move left in
    /// the cold directory.
    fn remove_strangers(&self) -> Result<()> {
        let here = self.storage.list("").map_err(Error::io("list", "the directory"))?;
        for name in &here {
            let unknown = |segment: u32| !self.has_segment(segment) && !self.store.values.has_tail(segment);
            if values::file_number(name).is_some_and(unknown) {
                self.storage.remove(name).map_err(Error::io("remove", name))?;
            }
        }
        self.storage.sync_dir("").map_err(Error::io("sync", "the directory"))?;
        let Some(tier) = self.store.values.tier() else { return Ok(()) };
        // A segment that only the cold directory has stays, whatever the tier knows of it.
        let here: BTreeSet<&str> = here.iter().map(String::as_str).collect();
        let is_kept = |name: &str, id: u32| tier.has(id) || (self.has_segment(id) && !here.contains(name));
        tier::clear(&*self.storage, |name| {
            tier::file_number(name).is_some_and(|(id, last)| last && is_kept(name, id))
        })?;
        // Files of segments that were deleted before are not gone for good without this.
        match tier::list(&*tier.storage)? {
            Some(_) => tier.storage.sync_dir("").map_err(Error::io("sync", "the cold directory")),
            None => Ok(()),
        }
    }
}
