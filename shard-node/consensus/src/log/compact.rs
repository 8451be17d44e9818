//! Dropping entries that the state machine no longer needs from the log.
//!
//! Both functions replace `meta` first and remove files afterwards. A crash in between leaves files
//! that `meta` no longer counts, and opening the log removes them.

use std::sync::Arc;

use super::{
    Log,
    batch::HardState,
    meta::Meta,
    segment::{Segment, file_name},
    slot::Slot,
    slot_of,
};
use crate::{
    Membership, Position,
    error::{Error, Result},
};

impl Log {
    /// Drops the entries up to `to`, as far as whole segments can be dropped.
    pub(crate) fn compact(&mut self, to: u64) -> Result<()> {
        let last = self.last();
        let to = to.min(last.index);
        if to <= self.meta.base.index {
            return Ok(());
        }
        assert!(to <= self.hard_state.commit, "only committed entries are dropped");
        let skip = slot_of(self.meta.base, to) + 1;
        let live = self.slots.iter().skip(skip).filter_map(Slot::place).map(|place| place.segment).min();
        let (Some(oldest), Some(active)) = (self.segments.front(), self.segments.back()) else { return Ok(()) };
        let first_segment = live.unwrap_or(active.id).min(active.id);
        if first_segment <= oldest.id || self.slots.iter().take(skip).any(|slot| slot.place().is_none()) {
            return Ok(());
        }
        let base = Position { index: to, term: self.slots[skip - 1].term };
        let membership = self.membership_at(to).clone();
        let meta = Meta {
            base,
            membership: membership.clone(),
            hard_state: self.hard_state,
            first_segment,
            manifest: None,
            ..self.meta.clone()
        };
        meta.store(&*self.storage)?;
        self.meta = meta;
        for slot in self.slots.drain(..skip) {
            self.cached_bytes -= slot.cached_bytes();
        }
        self.cached_from = self.cached_from.max(to + 1);
        self.memberships.retain(|(from, _)| *from > to);
        self.memberships.insert(0, (to, membership));
        assert_eq!(self.last(), last, "the log still ends where it ended");
        self.drop_segments(first_segment)
    }

    /// Drops the segments before `first`. Some of their files are kept for later segments.
    fn drop_segments(&mut self, first: u64) -> Result<()> {
        // Otherwise a file that a large batch made larger than usual would stay large.
        let usual = self.segment_blocks().next_multiple_of(self.fill_blocks());
        let mut reusable = 0;
        while let Some(dropped) = self.pop_segment_before(first) {
            if dropped.filled_blocks <= usual {
                self.dropped.push(dropped);
                reusable += 1;
            } else {
                self.remove(&dropped)?;
            }
        }
        assert!(!self.segments.is_empty(), "the newest segment stays");
        let kept = reusable.max(std::mem::replace(&mut self.dropped_last, reusable));
        while self.dropped.len() > kept
            && let Some(dropped) = self.dropped.pop()
        {
            self.remove(&dropped)?;
        }
        Ok(())
    }

    /// Takes the oldest segment out of the log, if it lies before `first`.
    fn pop_segment_before(&mut self, first: u64) -> Option<Segment> {
        self.segments.front().filter(|oldest| oldest.id < first)?;
        self.segments.pop_front()
    }

    fn remove(&self, segment: &Segment) -> Result<()> {
        self.storage.remove(&file_name(segment.id)).map_err(Error::io("remove a segment"))
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
        meta.store(&*self.storage)?;
        let empty = Self::empty(Arc::clone(&self.storage), self.sizes, meta);
        let old = std::mem::replace(self, Self { sequence_next: self.sequence_next, ..empty });
        assert_eq!(self.last(), base, "the log ends where the snapshot does");
        for segment in old.segments.iter().chain(&old.spare).chain(&old.dropped) {
            self.remove(segment)?;
        }
        Ok(())
    }
}
