//! The free bytes of one DPU's memory for pages.

use std::collections::BTreeMap;

/// Free runs of a memory by their addresses. No two runs touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    free: BTreeMap<u32, u32>,
    free_bytes: u64,
    all_bytes: u64,
}

impl Space {
    /// All bytes from `start` to `end` are free.
    pub(crate) fn new(start: u32, end: u32) -> Self {
        assert!(start <= end && start.is_multiple_of(8) && end.is_multiple_of(8), "a memory of whole words");
        let free: BTreeMap<u32, u32> = (start < end).then_some((start, end - start)).into_iter().collect();
        let all_bytes = u64::from(end - start);
        Self { free, free_bytes: all_bytes, all_bytes }
    }

    /// Bytes that it has when nothing is taken.
    pub(crate) fn all_bytes(&self) -> u64 {
        self.all_bytes
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Takes bytes from the first run that has them. `None` if none has.
    pub(crate) fn take(&mut self, bytes: u32) -> Option<u32> {
        assert!(bytes > 0 && bytes.is_multiple_of(8), "pages are whole words");
        let (at, len) = self.free.iter().find(|(_, len)| **len >= bytes).map(|(at, len)| (*at, *len))?;
        self.free.remove(&at);
        if len > bytes {
            self.free.insert(at + bytes, len - bytes);
        }
        self.free_bytes -= u64::from(bytes);
        Some(at)
    }

    /// Gives bytes back that were taken.
    ///
    /// # Panics
    /// If some of them are free.
    pub(crate) fn give(&mut self, at: u32, bytes: u32) {
        let (mut start, mut len) = (at, bytes);
        if let Some((before, before_len)) = self.free.range(..at).next_back().map(|(at, len)| (*at, *len)) {
            assert!(before + before_len <= at, "the bytes are taken");
            if before + before_len == at {
                self.free.remove(&before);
                (start, len) = (before, before_len + bytes);
            }
        }
        if let Some((after, after_len)) = self.free.range(at..).next().map(|(at, len)| (*at, *len)) {
            assert!(at + bytes <= after, "the bytes are taken");
            if at + bytes == after {
                self.free.remove(&after);
                len += after_len;
            }
        }
        self.free.insert(start, len);
        self.free_bytes += u64::from(bytes);
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::{Rng, SimRng};

    use super::*;

    #[test]
    fn what_is_given_back_makes_the_memory_whole_again() {
        let mut rng = SimRng::new(1);
        let whole = Space::new(64, 64 + 8 * 1000);
        let mut space = whole.clone();
        let mut taken: Vec<(u32, u32)> = Vec::new();
        for _ in 0..10_000 {
            if rng.chance(500) {
                let bytes = 8 * (1 + rng.below(40) as u32);
                let before = space.clone();
                match space.take(bytes) {
                    Some(at) => {
                        assert!(at >= 64 && at + bytes <= 8064);
                        assert!(taken.iter().all(|(other, len)| other + len <= at || at + bytes <= *other));
                        taken.push((at, bytes));
                    }
                    None => assert_eq!(space, before),
                }
            } else if !taken.is_empty() {
                let (at, bytes) = taken.swap_remove(rng.below(taken.len() as u64) as usize);
                space.give(at, bytes);
            }
            let used: u64 = taken.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
            assert_eq!(space.free_bytes(), 8000 - used);
        }
        taken.into_iter().for_each(|(at, bytes)| space.give(at, bytes));
        assert_eq!(space, whole);
    }

    #[test]
    #[should_panic(expected = "the bytes are taken")]
    fn nothing_is_given_back_twice() {
        let mut space = Space::new(0, 64);
        let at = space.take(16).expect("room");
        space.give(at, 16);
        space.give(at, 16);
    }
}
