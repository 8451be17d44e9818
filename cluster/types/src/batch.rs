//! What a client asks to have written.

use alloc::vec::Vec;

use crate::{
    Digest, Stamp,
    codec::{Error, Reader, Writer},
};

/// The new state of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key has this value from now on.
    Put(Vec<u8>),
    /// The key has no value from now on.
    Delete,
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// 1 to 512 bytes.
    pub key: Vec<u8>,
    /// What becomes of it.
    pub change: Change,
}

/// What must hold of one key for a batch to be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The key has a live value and was changed last at this stamp.
    LastChanged(Stamp),
    /// The key has no live value.
    Absent,
    /// The key has a live value with this SHA-256.
    ValueHash(Digest),
}

/// A condition on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Precondition {
    /// 1 to 512 bytes.
    pub key: Vec<u8>,
    /// What must hold of it.
    pub condition: Condition,
}

/// One client's atomic set of changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Applied in order; the last one of a key wins.
    pub operations: Vec<Operation>,
    /// All must hold, or nothing is applied.
    pub preconditions: Vec<Precondition>,
    /// The newest sequenced stamp before the batch.
    pub expected_head: Option<Stamp>,
    /// The batch is alone in its version.
    pub exclusive: bool,
    /// Committed to by hash in the journal.
    pub metadata: Vec<u8>,
}

impl Operation {
    /// Appends the full encoding (`docs/verification.md` section 8, with the value instead of its hash).
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

    /// Bytes that `encode` appends.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        let value = match &self.change {
            Change::Put(value) => 4 + value.len(),
            Change::Delete => 0,
        };
        1 + 2 + self.key.len() + value
    }

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// If the bytes are not an operation.
    pub fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        let kind = input.u8()?;
        let key = input.str16()?.to_vec();
        let change = match kind {
            0 => Change::Put(input.str32()?.to_vec()),
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
