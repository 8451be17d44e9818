//! The keys that the newest versions wrote.

use std::collections::{HashSet, VecDeque};

use bytes::Bytes;

/// Most versions whose keys are remembered. An answer about an older version fills the cache up to
/// that version alone.
pub(super) const VERSIONS_MAX: usize = 128;
/// Most keys that these versions may have together.
pub(super) const KEYS_MAX: usize = 1 << 16;

/// A version with the keys that it wrote.
#[derive(Debug)]
struct Touched {
    version: u64,
    keys: HashSet<Bytes>,
}

/// The keys that the newest versions wrote. Those above the floor are all there.
#[derive(Debug, Default)]
pub(super) struct Window {
    floor: u64,
    versions: VecDeque<Touched>,
    keys: usize,
}

impl Window {
    /// Knows nothing of versions up to a floor.
    pub(super) fn forget(&mut self, floor: u64) {
        *self = Self { floor, ..Self::default() };
    }

    /// Takes the version after the newest one.
    pub(super) fn add(&mut self, version: u64, keys: HashSet<Bytes>) {
        self.keys += keys.len();
        self.versions.push_back(Touched { version, keys });
        while self.versions.len() > VERSIONS_MAX || self.keys > KEYS_MAX {
            let Some(oldest) = self.versions.pop_front() else { break };
            self.floor = oldest.version;
            self.keys -= oldest.keys.len();
        }
    }

    /// Drops the versions above a base.
    pub(super) fn roll_back(&mut self, base: u64) {
        while let Some(newest) = self.versions.back().filter(|newest| newest.version > base) {
            self.keys -= newest.keys.len();
            self.versions.pop_back();
        }
        self.floor = self.floor.min(base);
    }

    /// Whether certainly no version behind this one wrote a key.
    pub(super) fn is_untouched(&self, key: &[u8], version: u64) -> bool {
        let newer = self.versions.iter().rev().take_while(|touched| touched.version > version);
        version >= self.floor && !newer.into_iter().any(|touched| touched.keys.contains(key))
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize, u64) {
        (self.versions.len(), self.keys, self.floor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollback_forgets_what_its_versions_wrote() {
        let mut window = Window::default();
        window.forget(1);
        for version in 2..=5_u64 {
            window.add(version, HashSet::from([Bytes::from(version.to_string())]));
        }
        window.roll_back(3);
        for (key, expected) in [("2", true), ("3", false), ("4", true), ("5", true)] {
            assert_eq!(window.is_untouched(key.as_bytes(), 2), expected, "{key}");
        }
        assert_eq!(window.size(), (2, 2, 1));
        assert!(!window.is_untouched(b"2", 0), "the floor is above");
        window.forget(9);
        window.roll_back(7);
        assert!(!window.is_untouched(b"x", 6) && window.is_untouched(b"x", 7));
    }
}
