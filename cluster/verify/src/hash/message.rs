//! Messages to hash: SHA-256 fed with encoded values (`docs/verification.md` section 1).

use alloc::vec::Vec;

use coppice_types::{Change, Digest, Stamp};
use sha2::{Digest as _, Sha256};

use crate::sha256::{BLOCK_BYTES, LANES, PADDING_BYTES_MIN, digest_each, message_each, pad};

/// The content of a record or an operation: all of it but the key, and for a record its stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordBody {
    /// The key has a value.
    Put {
        /// Length of the value in bytes.
        value_len: u32,
        /// SHA-256 of the value.
        value_hash: Digest,
    },
    /// The key has no value. In a tree, the record hides the key's records in older trees.
    Tombstone,
}

impl RecordBody {
    /// The body that a put of this value leaves.
    ///
    /// # Panics
    /// If the value has 4 GiB or more.
    #[must_use]
    pub fn put(value: &[u8]) -> Self {
        Self::Put { value_len: len32(value), value_hash: sha256(value) }
    }

    /// The body that a change leaves.
    ///
    /// # Panics
    /// If it puts a value of 4 GiB or more.
    #[must_use]
    pub fn of(change: &Change) -> Self {
        match change {
            Change::Put(value) => Self::put(value),
            Change::Delete => Self::Tombstone,
        }
    }

    /// Length of the value in bytes; `None` for a tombstone.
    #[must_use]
    pub fn value_len(&self) -> Option<u32> {
        match self {
            Self::Put { value_len, .. } => Some(*value_len),
            Self::Tombstone => None,
        }
    }
}

/// SHA-256 of the bytes, without a tag.
#[must_use]
pub fn sha256(bytes: &[u8]) -> Digest {
    let [hash] = message_each([bytes]);
    hash
}

/// [`sha256`] of several messages, in their order. Blocks that four neighbours have in common are
/// hashed side by side.
#[must_use]
pub fn sha256_each(messages: &[&[u8]]) -> Vec<Digest> {
    let (fours, rest) = messages.as_chunks::<LANES>();
    let mut out = Vec::with_capacity(messages.len());
    fours.iter().for_each(|four| out.extend(message_each(*four)));
    out.extend(rest.iter().map(|message| sha256(message)));
    out
}

pub(super) fn len16(len: usize) -> u16 {
    u16::try_from(len).expect("nodes and keys are small")
}

pub(super) fn len32(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("values and metadata are limited")
}

/// Longest padded message that is hashed on the stack. It fits a record with a key of 127 bytes.
const SHORT_BYTES_MAX: usize = 3 * BLOCK_BYTES;

/// SHA-256 fed with encoded values.
///
/// Nearly all messages of a tree have two blocks. They are padded in the buffer in which they were
/// built and hashed at once, which takes half the time of a streaming hasher. They are built in
/// place, since moving one costs as much as hashing a block.
pub(super) struct Hasher {
    short: [u8; SHORT_BYTES_MAX],
    len: usize,
    /// The streaming hasher with all input so far, once the message outgrew `short`.
    long: Option<Sha256>,
}

impl Hasher {
    #[inline]
    pub(super) const fn new() -> Self {
        Self { short: [0; SHORT_BYTES_MAX], len: 0, long: None }
    }

    #[inline]
    pub(super) fn tagged(tag: u8) -> Self {
        let mut hasher = Self::new();
        hasher.short[0] = tag;
        hasher.len = 1;
        hasher
    }

    #[inline]
    pub(super) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        let end = self.len + bytes.len();
        if end + PADDING_BYTES_MIN <= SHORT_BYTES_MAX && self.long.is_none() {
            self.short[self.len..end].copy_from_slice(bytes);
            self.len = end;
        } else {
            self.stream(bytes);
        }
        self
    }

    /// Appends bytes to a message that is too long for the stack.
    fn stream(&mut self, bytes: &[u8]) {
        let begun = &self.short[..self.len];
        self.long.get_or_insert_with(|| Sha256::new_with_prefix(begun)).update(bytes);
    }

    #[inline]
    pub(super) fn u8(&mut self, value: u8) -> &mut Self {
        self.raw(&[value])
    }

    #[inline]
    pub(super) fn u16(&mut self, value: u16) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    #[inline]
    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    #[inline]
    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    #[inline]
    pub(super) fn stamp(&mut self, stamp: Stamp) -> &mut Self {
        self.u64(stamp.epoch.0).u64(stamp.version.0)
    }

    #[inline]
    pub(super) fn str16(&mut self, bytes: &[u8]) -> &mut Self {
        self.u16(len16(bytes.len())).raw(bytes)
    }

    pub(super) fn opt_str16(&mut self, bytes: Option<&[u8]>) -> &mut Self {
        match bytes {
            None => self.u8(0),
            Some(bytes) => self.u8(1).str16(bytes),
        }
    }

    #[inline]
    pub(super) fn digest(&mut self, digest: &Digest) -> &mut Self {
        self.raw(&digest.0)
    }

    #[inline]
    pub(super) fn record(&mut self, key: &[u8], stamp: Stamp, body: &RecordBody) -> &mut Self {
        match body {
            RecordBody::Put { value_len, value_hash } => {
                self.u8(0x10).u8(0).stamp(stamp).str16(key).u32(*value_len).digest(value_hash)
            }
            RecordBody::Tombstone => self.u8(0x10).u8(1).stamp(stamp).str16(key),
        }
    }

    #[inline]
    pub(super) fn leaf_node(&mut self, count: u16, list: &Digest) -> &mut Self {
        self.u8(0x11).u16(count).digest(list)
    }

    #[inline]
    pub(super) fn entry(&mut self, separator: &[u8], child: &Digest) -> &mut Self {
        self.u8(0x12).str16(separator).digest(child)
    }

    #[inline]
    pub(super) fn inner_node(&mut self, level: u8, count: u16, list: &Digest) -> &mut Self {
        self.u8(0x1c).u8(level).u16(count).digest(list)
    }

    #[inline]
    pub(super) fn filter_key(&mut self, key: &[u8]) -> &mut Self {
        self.u8(0x15).raw(key)
    }

    pub(super) fn operations<'a>(
        &mut self,
        operations: impl ExactSizeIterator<Item = (&'a [u8], RecordBody)>,
    ) -> &mut Self {
        let count = u32::try_from(operations.len()).expect("batches are limited");
        operations.fold(self.u32(count), |hasher, (key, body)| match body {
            RecordBody::Put { value_len, value_hash } => hasher.u8(0).str16(key).u32(value_len).digest(&value_hash),
            RecordBody::Tombstone => hasher.u8(1).str16(key),
        })
    }

    #[inline]
    pub(super) fn finish(&mut self) -> Digest {
        if let Some(long) = self.long.take() {
            return Digest(long.finalize().into());
        }
        let [hash] = digest_each([pad(&mut self.short, self.len, self.len)]);
        hash
    }

    /// Hashes one message for each item, as `write` writes it, several side by side.
    #[inline]
    pub(super) fn each<T>(mut items: impl ExactSizeIterator<Item = T>, write: impl Fn(&mut Self, T)) -> Vec<Digest> {
        let mut out = Vec::with_capacity(items.len());
        while items.len() >= LANES {
            let mut hashers = [const { Self::new() }; LANES];
            hashers.iter_mut().zip(&mut items).for_each(|(hasher, item)| write(hasher, item));
            out.extend(Self::finish_each(&mut hashers));
        }
        out.extend(items.map(|item| {
            let mut hasher = Self::new();
            write(&mut hasher, item);
            hasher.finish()
        }));
        out
    }

    /// [`Hasher::finish`] of several messages side by side.
    #[inline]
    pub(super) fn finish_each<const N: usize>(hashers: &mut [Self; N]) -> [Digest; N] {
        if hashers.iter().any(|hasher| hasher.long.is_some()) {
            return hashers.each_mut().map(Self::finish);
        }
        digest_each(hashers.each_mut().map(|hasher| pad(&mut hasher.short, hasher.len, hasher.len)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 by the streaming hasher of another crate.
    fn expected(message: &[u8]) -> Digest {
        Digest(Sha256::digest(message).into())
    }

    /// Bytes without repetition, so that a wrong offset gives a different hash.
    fn bytes(len: usize) -> Vec<u8> {
        (0..len as u32).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 13) as u8).collect()
    }

    #[test]
    fn messages_of_every_length_and_cut_are_hashed_as_sha256_says() {
        let bytes = bytes(400);
        for len in 0..bytes.len() {
            let message = &bytes[..len];
            assert_eq!(sha256(message), expected(message), "{len} bytes");
            for cut in [0, len / 3, len.saturating_sub(1)] {
                let hash = Hasher::new().raw(&message[..cut]).raw(&message[cut..]).finish();
                assert_eq!(hash, expected(message), "{len} bytes cut at {cut}");
            }
        }
    }

    #[test]
    fn messages_side_by_side_are_hashed_as_each_alone_whatever_their_lengths() {
        let bytes = bytes(4000);
        let lengths = [0, 1, 55, 56, 63, 64, 65, 119, 120, 128, 1024, 3000];
        for seed in 0..600 {
            // A step of 0 gives messages of equal length.
            let step = seed / lengths.len();
            let messages: Vec<&[u8]> = (0..seed % 10)
                .map(|at| &bytes[37 * at + seed % 5..][..lengths[(seed + at * step) % lengths.len()]])
                .collect();
            let alone: Vec<Digest> = messages.iter().map(|message| expected(message)).collect();
            assert_eq!(sha256_each(&messages), alone);
        }
    }
}
