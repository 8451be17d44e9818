//! The keys of a ledger, one after the other (`docs/verification.md` section 10).
//!
//! A header of kind `key` changes the key that signs checkpoints: those with more entries than its index are signed by the new key. It is
//! signed by both, so whoever believes one of them believes the other, as far as this: the old one named its successor, and the new one its
//! predecessor. Invariant of [`Keys`]: no key is in it twice, and the changes ascend.

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

/// How often a ledger may change its key: every proof file holds all changes.
pub const KEY_CHANGES_MAX: usize = 256;
/// Begins what both keys sign. A control character: no note begins so.
const TAG: &[u8] = b"\x1fcoppice-key-change";

/// The key that signs checkpoints was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// Counts the ledger's key changes from 1.
    pub number: u32,
    /// The Ed25519 key until now.
    pub old: [u8; 32],
    /// The key from this header on.
    pub new: [u8; 32],
    /// Signature of the old key over number and keys.
    pub by_old: [u8; 64],
    /// Signature of the new key over the same.
    pub by_new: [u8; 64],
    /// Who asked for it.
    pub principal: String,
    /// Why.
    pub reason: String,
}

impl KeyChange {
    /// The change from one key to another, signed by both.
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

    /// Checks what concerns this change alone: two sound keys, and both signatures.
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

/// What both keys sign.
fn message(cluster: &ClusterId, number: u32, old: &[u8; 32], new: &[u8; 32]) -> Vec<u8> {
    let mut out = Writer::new();
    out.raw(TAG);
    out.raw(cluster.as_bytes());
    out.u32(number);
    out.raw(old);
    out.raw(new);
    out.into_bytes()
}

/// The keys of a ledger, as far as somebody knows them, and from which of them on they are believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// At least one; with changes, the ledger's first key is the first.
    keys: Vec<VerifierKey>,
    /// Where the header lies that leads from the key of the same index to the next.
    changes: Vec<Sequence>,
    /// Index of the oldest key that is believed by itself.
    trusted: usize,
}

impl Keys {
    /// A key that is trusted, of whose changes nothing is known.
    #[must_use]
    pub fn new(key: VerifierKey) -> Self {
        Self { keys: Vec::from([key]), changes: Vec::new(), trusted: 0 }
    }

    /// The newest key that is known.
    ///
    /// # Panics
    /// Never: there is one.
    #[must_use]
    pub fn newest(&self) -> &VerifierKey {
        self.keys.last().expect("there is a key")
    }

    /// The oldest key that is known: the ledger's first, if changes are known.
    #[must_use]
    pub fn first(&self) -> &VerifierKey {
        &self.keys[0]
    }

    /// Where the known changes lie in the log, and the keys that they lead to.
    pub fn changes(&self) -> impl Iterator<Item = (Sequence, &VerifierKey)> {
        self.changes.iter().copied().zip(&self.keys[1..])
    }

    /// The key that signs checkpoints of so many entries.
    #[must_use]
    pub fn in_force(&self, size: u64) -> &VerifierKey {
        &self.keys[self.index(size)]
    }

    /// Checkpoints of so many entries are believed by their signature alone: that key is trusted, or came after one that is.
    #[must_use]
    pub fn believes(&self, size: u64) -> bool {
        self.index(size) >= self.trusted
    }

    fn index(&self, size: u64) -> usize {
        self.changes.partition_point(|sequence| sequence.0 < size)
    }

    /// One of the keys that are known, but for that in force at this size, signed the note.
    #[must_use]
    pub fn another_signed(&self, note: &[u8], size: u64) -> bool {
        let others = self.keys.iter().filter(|key| *key != self.in_force(size));
        others.into_iter().any(|key| crate::note::open(note, key).is_ok())
    }

    /// From now on only the newest key and those to come are believed by themselves.
    #[must_use]
    pub fn advanced(mut self) -> Self {
        self.trusted = self.changes.len();
        self
    }

    /// Follows the key changes of a log, which are given from the first on. The caller has seen to it that each header decodes and is in the
    /// log at its sequence, or will.
    ///
    /// # Errors
    /// Names what is wrong with them, or that they don't fit what is known.
    pub fn follow<'a>(
        &self,
        headers: impl IntoIterator<Item = (Sequence, &'a KeyChange)>,
    ) -> Result<Self, &'static str> {
        let mut found: Option<Self> = None;
        for (number, (sequence, change)) in (1_u32..).zip(headers) {
            let key = |public_key| VerifierKey::new(self.first().name(), public_key).map_err(|_| "a key that is none");
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
                return Err("a key change from another key than the one before");
            }
            let new = key(&change.new)?;
            if chain.keys.contains(&new) {
                return Err("a key change to a key of before");
            }
            chain.keys.push(new);
            chain.changes.push(sequence);
            found = Some(chain);
        }
        found.map_or_else(|| Ok(self.clone()), |chain| self.join(chain))
    }

    /// What both know.
    ///
    /// # Errors
    /// If they don't fit: one of them is of a fork.
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
            return Err("another key change than the one that is known: keep both, they are evidence of a fork");
        }
        if self.changes.len() >= chain.changes.len() {
            return Ok(self.clone());
        }
        chain.trusted = self.trusted;
        Ok(chain)
    }
}

const STRANGE: &str = "the key changes lead neither from the trusted key nor to it: is it a key of this ledger?";
