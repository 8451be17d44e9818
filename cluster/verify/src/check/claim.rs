//! What a verification gives: the claim that a proof file makes, and all that it was checked against.

use alloc::{borrow::Cow, vec::Vec};

use coppice_types::{ClusterId, Digest, Stamp};

use crate::{checkpoint::Checkpoint, epochs::Epochs, header::Header, journal::BatchEntry, keys::Keys};

/// What a proof file proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified<'a> {
    /// The ledger.
    pub cluster: ClusterId,
    /// The checkpoint in the file.
    pub checkpoint: Checkpoint,
    /// The newest header at that checkpoint.
    pub newest: Header,
    /// What is known of the ledger's keys now: it begins with the trusted one, or before it.
    pub keys: Keys,
    /// What holds at that checkpoint.
    pub claim: Claim<'a>,
    /// The newer checkpoint, if one was given, by which the version still stands.
    pub newer: Option<Checkpoint>,
}

/// What holds at the checkpoint of a proof file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim<'a> {
    /// What keys or a range held at a version that stood.
    Query(QueryClaim<'a>),
    /// A batch was committed in a version that stood.
    Receipt(ReceiptClaim),
    /// The checkpoint extends an older one.
    Standing(StandingClaim),
}

/// The answer to a query at a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryClaim<'a> {
    /// Header of the version.
    pub header: Header,
    /// What was asked and found.
    pub answer: Answer<'a>,
}

/// What was asked and found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// For each key in ascending order its record, or that it has none.
    Keys(Vec<(Cow<'a, [u8]>, Option<Record<'a>>)>),
    /// All records with `low <= key < high`, without high to the end, in ascending order.
    Range {
        /// The lowest key.
        low: Cow<'a, [u8]>,
        /// The key above the highest.
        high: Option<Cow<'a, [u8]>>,
        /// These and no others.
        records: Vec<Record<'a>>,
    },
}

/// A live record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its key.
    pub key: Cow<'a, [u8]>,
    /// The commit that wrote it.
    pub stamp: Stamp,
    /// Length of the value.
    pub value_len: u32,
    /// SHA-256 of the value.
    pub value_hash: Digest,
    /// The value, if the file has it.
    pub value: Option<Cow<'a, [u8]>>,
}

/// A batch that was committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptClaim {
    /// Header of the version.
    pub header: Header,
    /// Index of the batch in the journal of the version.
    pub index: u32,
    /// The batch.
    pub batch: BatchEntry,
}

/// A checkpoint that extends an older one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandingClaim {
    /// Size of the older one.
    pub old_size: u64,
    /// Root of the older one.
    pub old_root: Digest,
    /// What stands at the newer one.
    pub epochs: Epochs,
}

impl Verified<'_> {
    /// The version that the claim is about; none for a standing proof.
    #[must_use]
    pub fn header(&self) -> Option<&Header> {
        match &self.claim {
            Claim::Query(claim) => Some(&claim.header),
            Claim::Receipt(claim) => Some(&claim.header),
            Claim::Standing(_) => None,
        }
    }
}
