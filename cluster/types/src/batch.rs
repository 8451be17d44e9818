//! A client's batch: its operations, and the preconditions under which it is applied.

use alloc::vec::Vec;

use bytes::Bytes;

use crate::{
    Digest, Stamp,
    codec::{Error, Reader, Writer},
};

/// The new state of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key has this value from this version on.
    Put(Bytes),
    /// The key has no value from this version on.
    Delete,
}

/// A change of one key. Key and value may be parts of a message or of a log entry, which they keep
/// in memory: a clone copies no bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The key, of 1 to 512 bytes.
    pub key: Bytes,
    /// The new state of the key.
    pub change: Change,
}

impl Operation {
    /// Whether the key gets a value.
    #[must_use]
    pub fn is_put(&self) -> bool {
        matches!(self.change, Change::Put(_))
    }
}

/// A condition that one key must meet for a batch to be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The key has a live value, and its last change has this stamp.
    LastChanged(Stamp),
    /// The key has no live value.
    Absent,
    /// The key has a live value with this SHA-256.
    ValueHash(Digest),
}

/// A condition on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Precondition {
    /// The key, of 1 to 512 bytes.
    pub key: Vec<u8>,
    /// The condition that the key must meet.
    pub condition: Condition,
}

/// A set of changes by one client, applied in all shards or in none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The changes, applied in order. If a key occurs more than once, its last change wins.
    pub operations: Vec<Operation>,
    /// The preconditions. Unless all of them hold, nothing is applied.
    pub preconditions: Vec<Precondition>,
    /// The newest sequenced stamp before the batch; `None` if the batch accepts any.
    pub expected_head: Option<Stamp>,
    /// The batch does not share its version with any other batch.
    pub exclusive: bool,
    /// Application data. The journal commits to its hash.
    pub metadata: Vec<u8>,
}

impl Operation {
    /// Appends the full encoding: `docs/verification.md` section 8, with the value in place of its
    /// hash.
    pub fn encode(&self, out: &mut Writer) {
        match &self.change {
            Change::Put(value) => {
                out.u8(0);
                out.str16(&self.key);
                out.str32(value);
            }
            Change::Delete => {
                out.u8(1);
                out.str16(&self.key);
            }
        }
    }

    /// Returns the number of bytes that `encode` appends.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        let value = match &self.change {
            Change::Put(value) => 4 + value.len(),
            Change::Delete => 0,
        };
        1 + 2 + self.key.len() + value
    }

    /// Reads what `encode` wrote. `own` makes a key or value of its bytes: it copies them, or takes
    /// a slice of the [`Bytes`] that `input` reads.
    ///
    /// # Errors
    /// If the bytes are not an operation.
    pub fn decode(input: &mut Reader<'_>, own: impl Fn(&[u8]) -> Bytes) -> Result<Self, Error> {
        let kind = input.u8()?;
        let key = own(input.str16()?);
        let change = match kind {
            0 => Change::Put(own(input.str32()?)),
            1 => Change::Delete,
            _ => return Err(Error::Malformed("operation kind")),
        };
        Ok(Self { key, change })
    }
}

impl Precondition {
    /// Appends the encoding that a batch hash covers.
    pub fn encode(&self, out: &mut Writer) {
        out.str16(&self.key);
        match &self.condition {
            Condition::LastChanged(stamp) => {
                out.u8(0);
                out.stamp(*stamp);
            }
            Condition::Absent => out.u8(1),
            Condition::ValueHash(hash) => {
                out.u8(2);
                out.digest(hash);
            }
        }
    }
}
