//! Parts of a process that count the same: one that is a node and a coordinator has two listeners
//! for gRPC, for example. A metric shows their sum.

use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The living parts of one kind.
#[derive(Debug)]
pub(crate) struct Parts<T>(Mutex<Vec<Weak<T>>>);

impl<T> Parts<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    pub(crate) fn add(&self, part: &Arc<T>) {
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        parts.retain(|part| part.strong_count() > 0);
        parts.push(Arc::downgrade(part));
    }

    /// The sum over the parts that `count` counts; `None` if there are none.
    pub(crate) fn sum(&self, count: impl Fn(&T) -> Option<usize>) -> Option<u64> {
        let parts = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let counts = parts.iter().filter_map(Weak::upgrade).filter_map(|part| count(&part));
        counts.map(|count| count as u64).reduce(|one, other| one + other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_that_live_and_count_are_summed() {
        static PARTS: Parts<usize> = Parts::new();
        let even = |part: &usize| part.is_multiple_of(2).then_some(*part);
        assert_eq!(PARTS.sum(even), None);
        let [two, three, four] = [2, 3, 4].map(Arc::new);
        [&two, &three, &four].into_iter().for_each(|part| PARTS.add(part));
        assert_eq!(PARTS.sum(even), Some(6));
        drop((two, three));
        assert_eq!(PARTS.sum(even), Some(4));
        PARTS.add(&Arc::new(8));
        assert_eq!(PARTS.sum(even), Some(4), "it has ended at once");
    }
}
