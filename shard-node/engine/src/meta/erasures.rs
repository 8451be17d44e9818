//! Keys whose values are erased.
//!
//! A staged version may erase values. The erasure counts from the moment that the version is
//! decided, and then for every version: a key that may be erased has one value in its life. So the
//! set only grows, and a rollback takes nothing out of it. The disk follows later. The table has
//! the version up to which all erasures are done on the disk.

use std::collections::BTreeMap;

use coppice_types::{
    Version,
    codec::{Error as CodecError, Reader, Writer},
};

use super::record::{VersionId, decode_keys, decode_list, encode_keys, encode_list};

/// Limit on the erased keys of a shard, those of staged versions included.
const ERASED_MAX: usize = 1 << 20;

/// The version that erased a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Eraser {
    id: VersionId,
    version: Version,
}

/// The erased keys of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Erasures {
    decided: BTreeMap<Box<[u8]>, Eraser>,
    /// Keys that staged versions erase, ascending.
    staged: BTreeMap<VersionId, Vec<Vec<u8>>>,
    /// Erasures by versions with numbers up to this one are done in the directory.
    done: VersionId,
    /// Decided versions that erased keys, with the number of these. Not stored.
    erasers: BTreeMap<VersionId, (Version, usize)>,
    /// The first generation whose superblock covers all decided erasures. Not stored.
    covered_at: u64,
}

impl Erasures {
    /// Whether the value of a key is erased.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        !self.decided.is_empty() && self.decided.contains_key(key)
    }

    /// Whether the value of a key was erased by a version with a number up to this one.
    pub(crate) fn has_by(&self, key: &[u8], id: VersionId) -> bool {
        self.decided.get(key).is_some_and(|eraser| eraser.id <= id)
    }

    /// Whether no byte of the key's value is in the directory any more.
    pub(crate) fn is_done(&self, key: &[u8]) -> bool {
        self.has_by(key, self.done)
    }

    /// Whether a staged version erases the value of a key.
    pub(crate) fn is_staged(&self, id: VersionId, key: &[u8]) -> bool {
        self.staged.get(&id).is_some_and(|keys| keys.binary_search_by(|erased| erased.as_slice().cmp(key)).is_ok())
    }

    /// Number of erased keys, those of staged versions included.
    pub(crate) fn count(&self) -> usize {
        self.decided.len() + self.staged.values().map(Vec::len).sum::<usize>()
    }

    /// Number of keys that further versions may erase.
    pub(crate) fn left(&self) -> u64 {
        ERASED_MAX.saturating_sub(self.count()) as u64
    }

    /// Whether there is nothing to store.
    pub(super) fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// The number of the last decided version that erased a key; 0 if there is none.
    pub(crate) fn last(&self) -> VersionId {
        self.erasers.last_key_value().map_or(0, |(id, _)| *id)
    }

    /// Whether a decided erasure is not done in the directory.
    pub(crate) fn is_open(&self) -> bool {
        self.last() > self.done
    }

    /// Number of keys whose erasure is decided and not done, where nothing counts as done that
    /// follows this version's number. Also the lowest version that erased one of them.
    pub(crate) fn open(&self, cleared: VersionId) -> (usize, Option<Version>) {
        let open = self.erasers.range(self.done.min(cleared).saturating_add(1)..).map(|(_, eraser)| *eraser);
        open.fold((0, None), |(all, lowest), (version, keys)| {
            (all + keys, Some(lowest.map_or(version, |lowest: Version| lowest.min(version))))
        })
    }

    pub(crate) fn covered_at(&self) -> u64 {
        self.covered_at
    }

    /// Notes that the next superblock has this generation, since a flush was cancelled.
    pub(super) fn cover_at_most(&mut self, next: u64) {
        self.covered_at = self.covered_at.min(next);
    }

    /// Decides the erasures of a version. `covered_at` is the next generation.
    pub(super) fn settle(&mut self, id: VersionId, version: Version, covered_at: u64) {
        let Some(keys) = self.staged.remove(&id) else { return };
        let mut count = 0;
        for key in keys {
            // A staged version may erase what its base erases, too.
            self.decided.entry(key.into()).or_insert_with(|| {
                count += 1;
                Eraser { id, version }
            });
        }
        if count > 0 {
            self.erasers.insert(id, (version, count));
            self.covered_at = covered_at;
        }
    }

    /// Forgets what a dropped version would have erased.
    pub(super) fn forget(&mut self, id: VersionId) {
        self.staged.remove(&id);
    }

    /// The keys that decided versions erase.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.decided.keys().map(AsRef::as_ref)
    }

    /// Notes what a staged version erases; `false` if it is noted already.
    pub(super) fn stage(&mut self, id: VersionId, keys: Vec<Vec<u8>>) -> bool {
        self.staged.insert(id, keys).is_none()
    }

    /// Notes that the erasures of versions up to a number are done; `false` if they were before.
    pub(super) fn end(&mut self, through: VersionId) -> bool {
        let is_open = through > self.done;
        self.done = self.done.max(through);
        is_open
    }

    /// Whether no decided version has a number or version from a limit on, all staged ones are
    /// known, and there are not too many keys.
    pub(super) fn is_sound(&self, next_id: VersionId, number_max: u64, is_staged: impl Fn(&VersionId) -> bool) -> bool {
        let known = |eraser: &Eraser| eraser.id < next_id && eraser.version.0 < number_max;
        let decided = self.decided.values().all(known) && self.done < next_id;
        decided && self.staged.keys().all(is_staged) && self.count() <= ERASED_MAX
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        out.u64(self.done);
        encode_list(&self.decided.iter().collect::<Vec<_>>(), out, |(key, eraser), out| {
            out.str16(key);
            out.u64(eraser.id);
            out.u64(eraser.version.0);
        });
        encode_list(&self.staged.iter().collect::<Vec<_>>(), out, |(id, keys), out| {
            out.u64(**id);
            encode_keys(keys, out);
        });
    }

    /// Decodes the bytes that [`Self::encode`] wrote into a table of this generation.
    pub(super) fn decode(input: &mut Reader<'_>, generation: u64) -> Result<Self, CodecError> {
        let done = input.u64()?;
        let decided = decode_list(input, |input| {
            let key: Box<[u8]> = input.str16()?.into();
            Ok((key, Eraser { id: input.u64()?, version: Version(input.u64()?) }))
        })?;
        let staged = decode_list(input, |input| Ok((input.u64()?, decode_keys(input)?)))?;
        let ascend = decided.is_sorted_by(|a, b| a.0 < b.0) && staged.is_sorted_by(|a, b| a.0 < b.0);
        if !ascend || decided.is_empty() && staged.is_empty() {
            return Err(CodecError::Malformed("erased keys"));
        }
        let mut erasers: BTreeMap<VersionId, (Version, usize)> = BTreeMap::new();
        for (_, eraser) in &decided {
            erasers.entry(eraser.id).or_insert((eraser.version, 0)).1 += 1;
        }
        let (decided, staged) = (decided.into_iter().collect(), staged.into_iter().collect());
        // The table was written for the generation after its own.
        Ok(Self { decided, staged, done, erasers, covered_at: generation.saturating_add(1) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(names: &[&str]) -> Vec<Vec<u8>> {
        names.iter().map(|name| name.as_bytes().to_vec()).collect()
    }

    #[test]
    fn a_key_is_erased_once_its_version_is_decided_and_never_again_otherwise() {
        let mut erasures = Erasures::default();
        erasures.staged.insert(3, keys(&["a", "b"]));
        erasures.staged.insert(4, keys(&["b", "c"]));
        erasures.staged.insert(5, keys(&["d"]));
        assert!(erasures.is_staged(3, b"a") && !erasures.is_staged(3, b"c") && !erasures.has(b"a"));
        erasures.settle(3, Version(7), 2);
        erasures.settle(4, Version(8), 2);
        erasures.forget(5);
        assert!([b"a", b"b", b"c"].iter().all(|key| erasures.has(*key)) && !erasures.has(b"d"));
        assert_eq!((erasures.count(), erasures.open(9), erasures.is_open()), (3, (3, Some(Version(7))), true));
        assert_eq!((erasures.last(), erasures.covered_at()), (4, 2));
        erasures.done = 3;
        assert_eq!([3, 2].map(|cleared| erasures.open(cleared)), [(1, Some(Version(8))), (3, Some(Version(7)))]);
        erasures.done = 0;
        assert!(erasures.has_by(b"b", 3) && !erasures.has_by(b"c", 3) && !erasures.is_done(b"b"));
    }

    #[test]
    fn erased_keys_are_read_back_and_no_prefix_of_them_is_a_list() {
        let mut erasures = Erasures::default();
        erasures.staged.insert(3, keys(&["a", "b"]));
        erasures.staged.insert(4, keys(&["c"]));
        erasures.settle(3, Version(7), 6);
        let mut out = Writer::new();
        erasures.encode(&mut out);
        let bytes = out.into_bytes();
        assert_eq!(Erasures::decode(&mut Reader::new(&bytes), 5), Ok(erasures));
        assert!((0..bytes.len()).all(|end| Erasures::decode(&mut Reader::new(&bytes[..end]), 5).is_err()));
    }
}
