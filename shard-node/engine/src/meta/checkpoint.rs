//! Checkpoints of the table: what a superblock covers, and when freed pages and dead segments can
//! be reused or deleted.
//!
//! A checkpoint begins before its superblock is written and ends when that is durable. Pages and
//! segments that it frees stay until the older of the two superblocks, and all pinned ones, no
//! longer need them.

use std::mem;

use super::{DeadSegment, Inconsistent, Meta};
use crate::place::{page::PAGE_BYTES, space::Space};

impl Meta {
    /// Begins a checkpoint; later changes belong to the next one. Pages that this one frees become
    /// free when it ends.
    pub(crate) fn begin_checkpoint(
        &mut self,
        generation: u64,
        segment_ends: &[(u32, u64)],
        dead_segments: &[u32],
    ) -> Result<(), Inconsistent> {
        if generation <= self.generation || generation == u64::MAX {
            return Err(Inconsistent("generations do not ascend"));
        }
        self.generation = generation;
        assert!(self.going.is_none(), "one checkpoint is in progress at a time");
        self.going = Some(mem::take(&mut self.fresh));
        for (segment, _) in segment_ends {
            self.segments.entry(*segment).or_default();
        }
        for id in dead_segments {
            let segment = self.segments.get_mut(id).ok_or(Inconsistent("an unknown segment is dead"))?;
            if segment.live > 0 || segment.dead_at.is_some() {
                return Err(Inconsistent("a segment is dead that has live bytes, or was dead"));
            }
            segment.dead_at = Some(generation);
        }
        Ok(())
    }

    /// Ends a checkpoint whose superblock is durable.
    pub(crate) fn end_checkpoint(&mut self, segment_ends: &[(u32, u64)]) -> Result<(), Inconsistent> {
        let going = self.going.take();
        assert!(going.is_some(), "a checkpoint that ends has begun");
        for (segment, end) in segment_ends {
            self.segments.entry(*segment).or_default().end = *end;
        }
        let older = self.generation.saturating_sub(1);
        self.bury_segments(older);
        self.settle_limbo(older)
    }

    /// Ends a checkpoint whose superblock was not written. Its changes and the later ones belong to
    /// the next checkpoint.
    pub(crate) fn cancel_checkpoint(&mut self) {
        let going = self.going.take();
        assert!(going.is_some(), "a checkpoint that is cancelled has begun");
        // Some of these places have been freed since. They wait in limbo, so they are not reused
        // before the next checkpoint clears this set.
        self.fresh.extend(going.into_iter().flatten());
        let dying = self.segments.values_mut().filter(|segment| segment.dead_at == Some(self.generation));
        dying.for_each(|segment| segment.dead_at = None);
        self.spaces.iter_mut().for_each(|space| space.reopen(self.generation));
        assert!(self.generation > 0, "a checkpoint that has begun has a generation");
        self.generation -= 1;
    }

    /// Removes the segments that neither the superblock `oldest` nor a later one needs.
    pub(super) fn bury_segments(&mut self, oldest: u64) {
        self.segments.retain(|segment, known| {
            let dead_at = known.dead_at.filter(|at| *at <= oldest);
            if let Some(dead_at) = dead_at {
                let reserved = self.reserved_values.remove(segment).unwrap_or(0);
                assert_eq!(reserved, 0, "no work in progress has values in a dead segment");
                self.dead_segments.push(DeadSegment { segment: *segment, dead_at });
            }
            dead_at.is_none()
        });
    }

    /// Bytes on disk that only superblocks need, and all other bytes in use. `unflushed` lists the
    /// segments that grew since the last flush, ascending, with their present ends; `taking` the
    /// segments that still take records.
    pub(crate) fn waiting_bytes(&self, unflushed: &[(u32, u64)], taking: &[u32]) -> (u64, u64) {
        let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0, u64::saturating_add);
        let pages = |of: fn(&Space) -> u64| sum(&mut self.spaces.iter().map(of)).saturating_mul(PAGE_BYTES as u64);
        let dead = self.segments.iter().filter(|(_, segment)| segment.dead_at.is_some()).map(|(id, _)| *id);
        let dying = self.dying_segments(unflushed, taking);
        let gone = sum(&mut dead.chain(dying).map(|id| self.segment_end(id, unflushed)));
        let all = self.segment_bytes(unflushed);
        (pages(Space::limbo_pages).saturating_add(gone), pages(Space::used_pages).saturating_add(all - gone))
    }

    /// The present end of a segment.
    pub(crate) fn segment_end(&self, id: u32, unflushed: &[(u32, u64)]) -> u64 {
        let grown = unflushed.binary_search_by_key(&id, |(id, _)| *id).map_or(0, |at| unflushed[at].1);
        self.segments.get(&id).map_or(0, |segment| segment.end).max(grown)
    }

    /// Bytes of all segments, including those that no version names yet.
    pub(crate) fn segment_bytes(&self, unflushed: &[(u32, u64)]) -> u64 {
        let known = |id: &u32| self.segments.get(id).map_or(0, |segment| segment.end);
        let grown = unflushed.iter().map(|(id, end)| end.saturating_sub(known(id)));
        self.segments.values().map(|segment| segment.end).chain(grown).fold(0, u64::saturating_add)
    }

    /// Segments without live bytes that neither a version nor a merge in progress needs, and that
    /// take no more records.
    pub(crate) fn dying_segments(&self, segment_ends: &[(u32, u64)], taking: &[u32]) -> Vec<u32> {
        let known = self.segments.iter().filter(|(id, segment)| {
            let reserved = self.reserved_values.get(id).copied().unwrap_or(0);
            segment.live == 0 && reserved == 0 && segment.dead_at.is_none() && !taking.contains(id)
        });
        // A segment that is new in this flush may be dead from the start.
        let unknown = segment_ends.iter().map(|(id, _)| id).filter(|id| {
            let reserved = self.reserved_values.get(id).copied().unwrap_or(0);
            !self.segments.contains_key(id) && reserved == 0 && !taking.contains(id)
        });
        known.map(|(id, _)| id).chain(unknown).copied().collect()
    }

    pub(crate) fn pin(&mut self, generation: u64, id: u64) {
        assert!(generation <= self.generation, "a pinned superblock has been written");
        let new = self.pins.insert((generation, id));
        assert!(new, "a number of a snapshot is given once");
    }

    pub(crate) fn unpin(&mut self, id: u64) {
        self.pins.retain(|pin| pin.1 != id);
        let durable = self.generation - u64::from(self.going.is_some());
        assert_eq!(self.settle_limbo(durable.saturating_sub(1)), Ok(()), "what waits is not free");
    }

    pub(crate) fn is_pinned(&self) -> bool {
        !self.pins.is_empty()
    }

    /// Returns the segments whose files may be deleted now.
    pub(crate) fn take_dead_segments(&mut self) -> Vec<DeadSegment> {
        let oldest = self.pins.first().map_or(u64::MAX, |pin| pin.0);
        let (gone, kept) = mem::take(&mut self.dead_segments).into_iter().partition(|dead| dead.dead_at <= oldest);
        self.dead_segments = kept;
        gone
    }

    /// Frees the pages that no pinned superblock refers to, nor `oldest`, nor a later one. `oldest`
    /// is the older of the two on disk.
    pub(super) fn settle_limbo(&mut self, oldest: u64) -> Result<(), Inconsistent> {
        let oldest = self.pins.first().map_or(u64::MAX, |pin| pin.0).min(oldest);
        if self.spaces.iter_mut().all(|space| space.settle_limbo(oldest)) {
            Ok(())
        } else {
            Err(Inconsistent("a page is freed twice"))
        }
    }
}
