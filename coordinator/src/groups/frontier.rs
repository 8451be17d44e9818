//! The root of a growing log, computed from the hashes of its entries alone, so that no replica has
//! to be believed.
//!
//! Invariant: `peaks` are the roots of the complete subtrees of the log of `size` entries, largest
//! first.

use coppice_types::Digest;
use coppice_verify::{hash::list_node_hash, merkle};

/// The part of a log of at least one entry that is needed to add entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frontier {
    size: u64,
    newest: Digest,
    peaks: Vec<Digest>,
    /// The newest entry's inclusion path. Its nodes all lie to the left of the entry.
    path: Vec<Digest>,
}

impl Frontier {
    /// The frontier of a log of `size` entries with this root. `newest` is the hash of the last
    /// entry, and `path` proves its place.
    ///
    /// # Errors
    /// If the path does not prove it.
    pub fn new(size: u64, newest: Digest, path: Vec<Digest>, root: &Digest) -> Result<Self, merkle::Error> {
        let last = size.checked_sub(1).ok_or(merkle::Error::OutOfRange)?;
        merkle::verify_inclusion(last, size, &newest, &path, root)?;
        // The last peak is complete, so the path begins with the entry's neighbours in it.
        let inside = size.trailing_zeros() as usize;
        let (inside, outside) = path.split_at_checked(inside).ok_or(merkle::Error::Short)?;
        let peak = inside.iter().fold(newest, |right, left| list_node_hash(left, &right));
        let peaks = outside.iter().rev().copied().chain([peak]).collect();
        Ok(Self { size, newest, peaks, path })
    }

    /// The log with one more entry.
    #[must_use]
    pub fn push(&self, entry: Digest) -> Self {
        let (mut peaks, mut peak, mut rest) = (self.peaks.clone(), entry, self.size);
        while rest & 1 == 1 {
            let left = peaks.pop().expect("a log has a peak for each bit of its size");
            peak = list_node_hash(&left, &peak);
            rest >>= 1;
        }
        peaks.push(peak);
        let path = self.peaks.iter().rev().copied().collect();
        Self { size: self.size + 1, newest: entry, peaks, path }
    }

    /// Entries of the log.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The hash of the newest entry.
    pub fn newest(&self) -> Digest {
        self.newest
    }

    /// The newest entry's inclusion path.
    pub fn path(&self) -> &[Digest] {
        &self.path
    }

    /// The root of all entries.
    pub fn root(&self) -> Digest {
        let joined = self.peaks.iter().rev().copied().reduce(|right, left| list_node_hash(&left, &right));
        joined.expect("a log has at least one peak")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_grows_has_the_root_and_paths_of_its_list() {
        let entries: Vec<Digest> = (0..70).map(|at| Digest([at; 32])).collect();
        let path = |size: usize| merkle::inclusion_path(&entries[..size], size as u64 - 1);
        let mut grown = Frontier::new(1, entries[0], path(1), &merkle::mth(&entries[..1])).expect("one entry");
        for size in 2..=entries.len() {
            grown = grown.push(entries[size - 1]);
            let (root, newest) = (merkle::mth(&entries[..size]), entries[size - 1]);
            assert_eq!((grown.size(), grown.root(), grown.path()), (size as u64, root, &path(size)[..]), "{size}");
            assert_eq!(Frontier::new(size as u64, newest, path(size), &root).as_ref(), Ok(&grown), "{size}");
            let wrong = Frontier::new(size as u64, newest, path(size), &Digest([99; 32]));
            assert_eq!(wrong, Err(merkle::Error::Mismatch), "{size}");
        }
        assert!(Frontier::new(0, entries[0], Vec::new(), &merkle::empty_root()).is_err());
    }
}
