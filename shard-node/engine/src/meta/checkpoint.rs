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
        self.erasures.cover_at_most(self.generation + 1);
    }

    /// Removes the segments that neither the superblock `oldest` nor a later one needs.
    pub(super) fn bury_segments(&mut self, oldest: u64) {
        self.segments.retain(|segment, known| {
            let dead_at = known.dead_at.filter(|at| *at <= oldest);
            if let Some(dead_at) = dead_at {
                let reserved = self.reserved_values.remove(segment).unwrap_or(0);
                assert_eq!(reserved, 0, "no work in progress has values in a dead segment");
                self.dead_segments.push(DeadSegment { segment: *segment, end: known.end, dead_at });
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

    /// Segments whose files wait for a pin to end.
    pub(crate) fn dead_segments(&self) -> &[DeadSegment] {
        &self.dead_segments
    }

    /// The oldest pinned generation.
    pub(crate) fn oldest_pin(&self) -> Option<u64> {
        self.pins.first().map(|pin| pin.0)
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

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;

    use super::*;
    use crate::{
        meta::{Delta, MetaOp, VersionId},
        place::{
            page::{PageFile, Pid},
            refs::Segment,
        },
        testing::{commit, create, put, small, stage},
    };

    /// A table at generation 1 with a staged version, which has a patch and a value in segment 0.
    fn staged() -> (Meta, VersionId) {
        let mut engine = create(&SimStorage::new(), small());
        commit(&mut engine, 1, vec![put("a", 5)]);
        stage(&mut engine, 2, vec![put("b", 100)]);
        let id = *engine.meta.staged.first().expect("one");
        assert_eq!(engine.meta.generation, 1);
        (engine.meta, id)
    }

    fn checkpoint(meta: &mut Meta, ends: &[(u32, u64)], dead: &[u32]) -> Result<(), Inconsistent> {
        meta.begin_checkpoint(meta.generation + 1, ends, dead)?;
        meta.end_checkpoint(ends)
    }

    fn limbo(meta: &Meta) -> u64 {
        PageFile::ALL.iter().map(|file| meta.space(*file).limbo_pages()).sum()
    }

    fn dead(meta: &mut Meta) -> Vec<u32> {
        meta.take_dead_segments().iter().map(|dead| dead.segment).collect()
    }

    #[test]
    fn generations_ascend() {
        let (mut meta, _) = staged();
        for generation in [0, 1, u64::MAX] {
            assert!(meta.begin_checkpoint(generation, &[], &[]).is_err(), "{generation}");
        }
        assert_eq!(meta.begin_checkpoint(5, &[], &[]), Ok(()));
    }

    #[test]
    fn a_segment_is_dead_once_and_only_without_live_bytes() {
        for (segment, what) in
            [(0, "a segment is dead that has live bytes, or was dead"), (7, "an unknown segment is dead")]
        {
            assert_eq!(checkpoint(&mut staged().0, &[], &[segment]), Err(Inconsistent(what)));
        }
        let (mut meta, id) = staged();
        meta.apply(MetaOp::DropVersion(id)).expect("it is staged");
        assert_eq!(checkpoint(&mut meta, &[], &[0]), Ok(()));
        assert!(checkpoint(&mut meta, &[], &[0]).is_err(), "it is dead already");
    }

    #[test]
    fn a_page_that_no_superblock_names_is_free_at_once() {
        let (mut meta, id) = staged();
        let before = meta.space(PageFile::Data).used_pages();
        let pid = meta.allocate(PageFile::Data, 2);
        meta.discard(pid);
        meta.apply(MetaOp::DropVersion(id)).expect("it is staged");
        assert_eq!((meta.space(PageFile::Data).used_pages(), limbo(&meta)), (before, 0));
    }

    /// A merge's pages; those of a small version are patches on a shared page.
    fn with_pages(meta: &mut Meta, pages: usize) -> (VersionId, Pid) {
        let pid = meta.allocate(PageFile::Data, pages);
        let staged = *meta.staged.first().expect("one");
        let mut record = meta.versions[&staged].clone();
        (record.id, record.parent) = (meta.next_id(), staged);
        record.delta = Delta { allocated: vec![pid], ..Delta::default() };
        let id = record.id;
        meta.apply(MetaOp::AddVersion(record)).expect("it follows");
        (id, pid)
    }

    #[test]
    fn a_flushed_page_is_free_when_the_older_superblock_does_not_name_it_either() {
        let (mut meta, _) = staged();
        let (id, _) = with_pages(&mut meta, 3);
        checkpoint(&mut meta, &[], &[]).expect("generation 2 names it");
        meta.apply(MetaOp::DropVersion(id)).expect("it is staged");
        assert_eq!(limbo(&meta), 3);
        checkpoint(&mut meta, &[], &[]).expect("generation 3 does not");
        assert_eq!(limbo(&meta), 3, "2 is the older one");
        checkpoint(&mut meta, &[], &[]).expect("generation 4 does not");
        assert_eq!(limbo(&meta), 0);
    }

    #[test]
    fn a_copied_superblock_frees_what_only_the_older_one_named() {
        let (mut meta, _) = staged();
        let (id, _) = with_pages(&mut meta, 3);
        checkpoint(&mut meta, &[], &[]).expect("it ascends");
        meta.apply(MetaOp::DropVersion(id)).expect("it is staged");
        checkpoint(&mut meta, &[], &[]).expect("it ascends");
        meta.apply(MetaOp::Copied).expect("the newest is durable");
        assert_eq!(limbo(&meta), 0);
    }

    #[test]
    fn a_page_freed_during_a_checkpoint_that_names_it_waits_for_the_one_after_the_next() {
        let (mut meta, _) = staged();
        let (id, _) = with_pages(&mut meta, 3);
        meta.begin_checkpoint(2, &[], &[]).expect("it ascends");
        meta.apply(MetaOp::DropVersion(id)).expect("it is staged");
        assert_eq!(limbo(&meta), 3);
        meta.end_checkpoint(&[]).expect("it began");
        assert_eq!(limbo(&meta), 3);
        for left in [3, 0] {
            checkpoint(&mut meta, &[], &[]).expect("it ascends");
            assert_eq!(limbo(&meta), left, "after generation {}", meta.generation);
        }
    }

    #[test]
    fn a_cancelled_checkpoint_leaves_no_trace_but_what_was_freed_meanwhile_waits() {
        let (mut meta, first) = staged();
        let (second, _) = with_pages(&mut meta, 3);
        let (third, _) = with_pages(&mut meta, 2);
        meta.segments.insert(5, Segment { end: 9, ..Segment::default() });
        meta.begin_checkpoint(2, &[(0, 116)], &[5]).expect("it ascends");
        meta.apply(MetaOp::DropVersion(third)).expect("it is staged");
        meta.cancel_checkpoint();
        assert_eq!((meta.generation, meta.segments[&5].dead_at, meta.segments[&0].end), (1, None, 0));
        assert_eq!(limbo(&meta), 2, "a superblock of unknown fate may name it");
        // No superblock names what the cancelled checkpoint would have covered.
        meta.apply(MetaOp::DropVersion(second)).expect("it is staged");
        assert_eq!(limbo(&meta), 2);
        meta.apply(MetaOp::DropVersion(first)).expect("it is staged");
        checkpoint(&mut meta, &[(0, 116)], &[0, 5]).expect("the same number again");
        checkpoint(&mut meta, &[], &[]).expect("it ascends");
        assert_eq!((limbo(&meta), dead(&mut meta)), (0, vec![0, 5]));
    }

    #[test]
    fn a_dead_segment_is_given_for_deletion_once_no_superblock_needs_it() {
        let (mut meta, id) = staged();
        checkpoint(&mut meta, &[(0, 116)], &[]).expect("generation 2 needs it");
        meta.apply(MetaOp::DropVersion(id)).expect("it is staged");
        checkpoint(&mut meta, &[], &[0]).expect("generation 3 does not");
        assert_eq!(dead(&mut meta), [0; 0]);
        checkpoint(&mut meta, &[], &[]).expect("generation 4 does not");
        assert!(!meta.segments.contains_key(&0));
        assert_eq!((dead(&mut meta), dead(&mut meta)), (vec![0], vec![]));
    }

    #[test]
    fn a_pin_holds_no_segment_that_its_superblock_has_given_up() {
        for (pinned, given) in [(2, vec![]), (3, vec![0])] {
            let (mut meta, id) = staged();
            checkpoint(&mut meta, &[(0, 116)], &[]).expect("generation 2 needs it");
            meta.apply(MetaOp::DropVersion(id)).expect("it is staged");
            checkpoint(&mut meta, &[], &[0]).expect("generation 3 does not");
            meta.pin(pinned, 1);
            checkpoint(&mut meta, &[], &[]).expect("generation 4 does not");
            assert_eq!(dead(&mut meta), given, "generation {pinned} is pinned");
        }
    }

    #[test]
    fn pins_hold_pages_and_segments_of_their_generation() {
        let (mut meta, first) = staged();
        let (second, _) = with_pages(&mut meta, 3);
        checkpoint(&mut meta, &[(0, 116)], &[]).expect("it ascends");
        meta.pin(2, 1);
        meta.pin(2, 2);
        meta.apply(MetaOp::DropVersion(second)).expect("it is staged");
        meta.apply(MetaOp::DropVersion(first)).expect("it is staged");
        checkpoint(&mut meta, &[], &[0]).expect("it ascends");
        (0..3).for_each(|_| checkpoint(&mut meta, &[], &[]).expect("it ascends"));
        let held = limbo(&meta);
        assert!(held >= 3 && meta.is_pinned());
        assert_eq!(dead(&mut meta), [0; 0]);
        meta.unpin(1);
        assert_eq!((limbo(&meta), dead(&mut meta)), (held, vec![]));
        meta.unpin(2);
        assert_eq!((limbo(&meta), dead(&mut meta), meta.is_pinned()), (0, vec![0], false));
    }

    #[test]
    fn a_segment_dies_that_nothing_needs_and_that_takes_no_records() {
        let (mut meta, _) = staged();
        meta.segments.insert(1, Segment { end: 50, ..Segment::default() });
        meta.segments.insert(2, Segment { end: 50, ..Segment::default() });
        meta.segments.insert(3, Segment { end: 50, dead_at: Some(1), ..Segment::default() });
        meta.reserve_value(2, 9);
        // Segment 4 is new; 0 has live bytes.
        assert_eq!(meta.dying_segments(&[(4, 30)], &[]), [1, 4]);
        assert_eq!(meta.dying_segments(&[(4, 30)], &[4, 1]), [0; 0]);
    }

    #[test]
    fn segments_are_as_long_as_their_unflushed_end() {
        let (mut meta, _) = staged();
        meta.segments.insert(0, Segment { end: 50, live: 10, dead_at: None });
        let unflushed = [(0, 80), (2, 30)];
        assert_eq!([0, 1, 2].map(|id| meta.segment_end(id, &unflushed)), [80, 0, 30]);
        assert_eq!((meta.segment_bytes(&[]), meta.segment_bytes(&unflushed)), (50, 110));
        let used = meta.waiting_bytes(&unflushed, &[2]).1;
        let (waiting, still_used) = meta.waiting_bytes(&unflushed, &[]);
        assert_eq!((waiting, used - still_used), (30, 30), "segment 2 has no live bytes");
    }
}
