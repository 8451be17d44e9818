//! Moves of old segments to the cold directory, see `files::values::tier`.

use std::sync::Arc;

use crate::{ColdStep, Engine, Error, Result, files::values::tier::is_live};

impl Engine {
    /// Bytes of the segments in the cold directory.
    pub(crate) fn cold_bytes(&self) -> u64 {
        let Some(tier) = self.store.values.tier() else { return 0 };
        self.meta.segments.iter().filter(|(id, _)| tier.has(**id)).map(|(_, segment)| segment.end).sum()
    }

    /// Whether a segment should move to the cold directory and no step is in progress.
    #[must_use]
    pub fn cold_behind(&self) -> bool {
        self.next_cold().is_some()
    }

    /// The next segment to move, its end, and the length copied so far.
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

    /// Begins the next step of a segment's move, of about `bytes` bytes. `None` if nothing is to be
    /// moved or a step is in progress. A step changes nothing that a flush, a snapshot or a read
    /// depends on.
    pub fn begin_cold_step(&mut self, bytes: u64) -> Option<ColdStep> {
        let next = self.next_cold()?;
        let hot = Arc::clone(&self.storage);
        Some(self.store.values.tier_mut()?.begin(hot, next, bytes))
    }

    /// Takes back a step that [`Engine::begin_cold_step`] returned.
    ///
    /// # Errors
    /// If the step failed. Nothing is lost: the segment stays where it was, and the next step
    /// begins the move again.
    ///
    /// # Panics
    /// If the step belongs to another engine.
    pub fn end_cold_step(&mut self, step: ColdStep) -> Result<()> {
        let (segment, bytes) = (step.segment(), step.len_bytes());
        let Some(tier) = self.store.values.tier_mut() else {
            return Err(Error::Invalid("a step of a move without a cold directory"));
        };
        let ended = tier.end(step);
        // The next read opens the file at its present place.
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
