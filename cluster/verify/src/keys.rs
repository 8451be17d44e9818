//! The keys of a ledger and the changes between them (`docs/verification.md` sections 9 and 10,
//! *Which key signs*).
//!
//! A header of kind `key` changes the key that signs checkpoints: the new key signs those with more
//! entries than the header's index. Both keys sign the change. So the old key vouches for its
//! successor, and the new key for its predecessor. A verifier that trusts one of them can follow
//! the change.
//!
//! Invariant of [`Keys`]: no key appears twice, and the changes ascend.

use alloc::{string::String, vec::Vec};

use coppice_types::{
    ClusterId, Sequence,
    codec::{Error, Reader, Writer},
};

#[cfg(feature = "sign")]
use crate::note::SignerKey;
use crate::{
    header::part::{self, BrokenRule, PRINCIPAL_BYTES_MAX, REASON_BYTES_MAX},
    note::VerifierKey,
};

/// Most key changes of a ledger. Every proof file contains all changes below its checkpoint.
pub const KEY_CHANGES_MAX: usize = 256;
/// First bytes of the message that both keys sign. It begins with a control character, so no note
/// has this text.
const TAG: &[u8] = b"\x1fcoppice-key-change";

/// Body of a header of kind `key` (section 9): the key that signs checkpoints was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// Number of the change in the ledger, from 1 on.
    pub number: u32,
    /// The Ed25519 key until this header.
    pub old: [u8; 32],
    /// The Ed25519 key from this header on.
    pub new: [u8; 32],
    /// The old key's signature over cluster, number and both keys.
    pub by_old: [u8; 64],
    /// The new key's signature over the same message.
    pub by_new: [u8; 64],
    /// Name of the party that asked for the change, UTF-8 of at most [`PRINCIPAL_BYTES_MAX`] bytes.
    pub principal: String,
    /// Reason for the change, UTF-8 of at most [`REASON_BYTES_MAX`] bytes.
    pub reason: String,
}

impl KeyChange {
    /// The change from `old` to `new`, signed by both, without principal and reason.
    #[cfg(feature = "sign")]
    #[must_use]
    pub fn sign(number: u32, cluster: &ClusterId, old: &SignerKey, new: &SignerKey) -> Self {
        let (old_key, new_key) = (old.verifier().public_key(), new.verifier().public_key());
        let message = message(cluster, number, &old_key, &new_key);
        Self {
            number,
            old: old_key,
            new: new_key,
            by_old: old.sign(&message),
            by_new: new.sign(&message),
            principal: String::new(),
            reason: String::new(),
        }
    }

    /// Checks the rules that concern this change alone: two different sound keys, a number above 0,
    /// and both signatures.
    ///
    /// # Errors
    /// Names the first rule that does not hold.
    pub fn check(&self, cluster: &ClusterId) -> Result<(), BrokenRule> {
        let key = |public_key| VerifierKey::new("key", public_key).map_err(|_| BrokenRule("keys of a key change"));
        let (old, new) = (key(&self.old)?, key(&self.new)?);
        let message = message(cluster, self.number, &self.old, &self.new);
        part::check(&[
            ("number of a key change", self.number > 0),
            ("a key change to the same key", self.old != self.new),
            ("signature of the old key", old.verifies(&message, &self.by_old)),
            ("signature of the new key", new.verifies(&message, &self.by_new)),
        ])
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u32(self.number);
        out.raw(&self.old);
        out.raw(&self.new);
        out.raw(&self.by_old);
        out.raw(&self.by_new);
        out.str16(self.principal.as_bytes());
        out.str16(self.reason.as_bytes());
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            number: input.u32()?,
            old: array(input)?,
            new: array(input)?,
            by_old: array(input)?,
            by_new: array(input)?,
            principal: part::read_text(input, PRINCIPAL_BYTES_MAX, "principal")?,
            reason: part::read_text(input, REASON_BYTES_MAX, "reason")?,
        })
    }
}

fn array<const N: usize>(input: &mut Reader<'_>) -> Result<[u8; N], Error> {
    input.take(N)?.try_into().map_err(|_| Error::Truncated)
}

/// The message that both keys sign (section 9).
fn message(cluster: &ClusterId, number: u32, old: &[u8; 32], new: &[u8; 32]) -> Vec<u8> {
    let mut out = Writer::new();
    out.raw(TAG);
    out.raw(cluster.as_bytes());
    out.u32(number);
    out.raw(old);
    out.raw(new);
    out.into_bytes()
}

/// The known keys of a ledger, and which of them are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The known keys, oldest first, at least one. If changes are known, the first key is that of
    /// genesis.
    keys: Vec<VerifierKey>,
    /// `changes[i]` is the sequence of the header that changes `keys[i]` to `keys[i + 1]`.
    changes: Vec<Sequence>,
    /// Index of the oldest key that is trusted to sign checkpoints.
    trusted: usize,
}

impl Keys {
    /// The keys of a ledger with one trusted key and no known changes.
    #[must_use]
    pub fn new(key: VerifierKey) -> Self {
        Self { keys: Vec::from([key]), changes: Vec::new(), trusted: 0 }
    }

    /// The newest known key.
    ///
    /// # Panics
    /// Never: at least one key is known.
    #[must_use]
    pub fn newest(&self) -> &VerifierKey {
        self.keys.last().expect("there is a key")
    }

    /// The oldest known key. If changes are known, it is the key of genesis.
    #[must_use]
    pub fn first(&self) -> &VerifierKey {
        &self.keys[0]
    }

    /// The sequences of the known key changes, each with the key that it leads to.
    pub fn changes(&self) -> impl Iterator<Item = (Sequence, &VerifierKey)> {
        self.changes.iter().copied().zip(&self.keys[1..])
    }

    /// The key in force at this size, by the known changes: it signs the checkpoint with `size`
    /// entries.
    #[must_use]
    pub fn in_force(&self, size: u64) -> &VerifierKey {
        &self.keys[self.index(size)]
    }

    /// Whether the signature on a checkpoint of this size is enough: the key in force there is
    /// trusted, or came after a trusted one.
    #[must_use]
    pub fn believes(&self, size: u64) -> bool {
        self.index(size) >= self.trusted
    }

    fn index(&self, size: u64) -> usize {
        self.changes.partition_point(|sequence| sequence.0 < size)
    }

    /// Whether the note is signed by a known key other than the one in force at this size.
    #[must_use]
    pub fn another_signed(&self, note: &[u8], size: u64) -> bool {
        let others = self.keys.iter().filter(|key| *key != self.in_force(size));
        others.into_iter().any(|key| crate::note::open(note, key).is_ok())
    }

    /// Trusts only the newest known key and its successors.
    #[must_use]
    pub fn advanced(mut self) -> Self {
        self.trusted = self.changes.len();
        self
    }

    /// Follows the key changes of a log, which are given from the first on: the sequence of each
    /// header with its body. The caller checks, before or afterwards, that each header decodes and
    /// is in the log at its sequence.
    ///
    /// # Errors
    /// Names the rule of section 13, step `keys`, that the changes break, or says that they do not
    /// fit the known ones.
    pub fn follow<'a>(
        &self,
        headers: impl IntoIterator<Item = (Sequence, &'a KeyChange)>,
    ) -> Result<Self, &'static str> {
        let mut found: Option<Self> = None;
        for (number, (sequence, change)) in (1_u32..).zip(headers) {
            let key = |public_key| VerifierKey::new(self.first().name(), public_key).map_err(|_| "a malformed key");
            let mut chain = match found {
                Some(chain) => chain,
                None => Self::new(key(&change.old)?),
            };
            let last = chain.changes.last();
            if change.number != number
                || last.is_some_and(|last| *last >= sequence)
                || number as usize > KEY_CHANGES_MAX
            {
                return Err("the key changes are not all there, or not in order");
            }
            if chain.newest().public_key() != change.old {
                return Err("a key change from a different key than the one before");
            }
            let new = key(&change.new)?;
            if chain.keys.contains(&new) {
                return Err("a key change to an earlier key");
            }
            chain.keys.push(new);
            chain.changes.push(sequence);
            found = Some(chain);
        }
        found.map_or_else(|| Ok(self.clone()), |chain| self.join(chain))
    }

    /// Joins two sets of known keys of one ledger.
    ///
    /// # Errors
    /// If they do not fit: one of them is of a fork, or of another ledger.
    pub fn join(&self, mut chain: Self) -> Result<Self, &'static str> {
        if chain.changes.is_empty() {
            return if self.keys.contains(chain.first()) { Ok(self.clone()) } else { Err(STRANGE) };
        }
        if self.changes.is_empty() {
            chain.trusted = chain.keys.iter().position(|key| key == self.first()).ok_or(STRANGE)?;
            return Ok(chain);
        }
        let common = self.changes.len().min(chain.changes.len());
        if self.changes[..common] != chain.changes[..common] || self.keys[..=common] != chain.keys[..=common] {
            return Err("a different key change than the one that is known: keep both, they are evidence of a fork");
        }
        if self.changes.len() >= chain.changes.len() {
            return Ok(self.clone());
        }
        chain.trusted = self.trusted;
        Ok(chain)
    }
}

const STRANGE: &str = "the key changes lead neither from the trusted key nor to it: is it a key of this ledger?";

#[cfg(test)]
mod tests;
