//! Moves of old segments to the cold directory (`files::values::tier`).

use std::sync::Arc;

use crate::{ColdStep, Engine, Result, files::values::tier::is_live};

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
        if let Some(moving) = tier.moving() {
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
        let next = self.next_cold()?;
        let hot = Arc::clone(&self.storage);
        Some(self.store.values.tier_mut()?.begin(hot, next, bytes))
    }

    /// Takes back what [`Engine::begin_cold_step`] gave.
    ///
    /// # Errors
    /// If it failed. Nothing is lost; the segment stays here, and its move begins anew with the next step.
    ///
    /// # Panics
    /// If it is not this engine's.
    pub fn end_cold_step(&mut self, step: ColdStep) -> Result<()> {
        let (segment, bytes) = (step.segment(), step.len_bytes());
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
