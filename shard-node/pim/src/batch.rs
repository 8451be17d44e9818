//! Collects queries until a batch is worth a launch, or the oldest one has waited long enough.

use std::time::Duration;

use crate::{Error, Query, Result};

/// Bounds of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatcherOptions {
    /// A batch is due with this many queries.
    pub queries_min: usize,
    /// A batch is due when its first query has waited this long.
    pub wait_max: Duration,
    /// More queries are refused.
    pub queries_max: usize,
}

impl Default for BatcherOptions {
    fn default() -> Self {
        Self { queries_min: 4096, wait_max: Duration::from_millis(2), queries_max: 1 << 16 }
    }
}

/// Queries that wait, each with what its caller needs to find the answer.
#[derive(Debug)]
pub struct Batcher<T> {
    options: BatcherOptions,
    waiting: Vec<(Query, T)>,
    /// When the first of them came.
    since: Duration,
}

impl<T> Batcher<T> {
    /// No queries.
    ///
    /// # Errors
    /// `Setting` if a batch could never be due.
    pub fn new(options: BatcherOptions) -> Result<Self> {
        if options.queries_min == 0 || options.queries_min > options.queries_max {
            return Err(Error::Setting("a batch needs queries, and may have as many"));
        }
        Ok(Self { options, waiting: Vec::new(), since: Duration::ZERO })
    }

    /// Adds a query. `now` is the time of a clock that never goes back.
    ///
    /// # Errors
    /// `Overloaded` with too many waiting.
    pub fn push(&mut self, query: Query, tag: T, now: Duration) -> Result<()> {
        if self.waiting.len() >= self.options.queries_max {
            return Err(Error::Overloaded);
        }
        if self.waiting.is_empty() {
            self.since = now;
        }
        self.waiting.push((query, tag));
        Ok(())
    }

    /// When the next batch is due; `None` without queries.
    #[must_use]
    pub fn due_at(&self) -> Option<Duration> {
        let full = self.waiting.len() >= self.options.queries_min;
        let waited = if full { Duration::ZERO } else { self.options.wait_max };
        (!self.waiting.is_empty()).then(|| self.since.saturating_add(waited))
    }

    /// The waiting queries, if they are due.
    pub fn take_due(&mut self, now: Duration) -> Option<(Vec<Query>, Vec<T>)> {
        let due = self.due_at().is_some_and(|due| due <= now);
        due.then(|| std::mem::take(&mut self.waiting).into_iter().unzip())
    }
}

#[cfg(test)]
mod tests {
    use coppice_engine::ShardState;
    use coppice_types::{Digest, Version};

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn query(key: u8) -> Query {
        Query { state: ShardState { version: Version(1), digest: Digest::default() }, key: vec![key] }
    }

    #[test]
    fn a_batch_is_due_by_its_size_or_its_age_and_never_exceeds_its_bound() {
        let options = BatcherOptions { queries_min: 3, wait_max: ms(5), queries_max: 4 };
        let mut batcher = Batcher::new(options).expect("sound options");
        assert_eq!((batcher.due_at(), batcher.take_due(ms(99))), (None, None));
        batcher.push(query(1), 'a', ms(10)).expect("room");
        batcher.push(query(2), 'b', ms(14)).expect("room");
        assert_eq!((batcher.due_at(), batcher.take_due(ms(14))), (Some(ms(15)), None));
        assert_eq!(batcher.take_due(ms(15)), Some((vec![query(1), query(2)], vec!['a', 'b'])));
        for key in 0..4 {
            batcher.push(query(key), 'c', ms(20)).expect("room");
        }
        assert!(matches!(batcher.push(query(4), 'd', ms(20)), Err(Error::Overloaded)));
        assert_eq!(batcher.take_due(ms(20)).map(|(queries, _)| queries.len()), Some(4));
        batcher.push(query(5), 'e', ms(21)).expect("there is room again");
    }

    #[test]
    fn bounds_that_never_let_a_batch_go_are_refused() {
        for (queries_min, queries_max) in [(0, 4), (5, 4)] {
            let options = BatcherOptions { queries_min, queries_max, ..BatcherOptions::default() };
            assert!(matches!(Batcher::<()>::new(options), Err(Error::Setting(_))));
        }
    }
}
