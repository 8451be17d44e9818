//! Results of a verification: the claim that a proof file proves (`docs/verification.md` section
//! 14), and the checkpoint and keys under which it holds.

use alloc::{borrow::Cow, vec::Vec};

use coppice_types::{ClusterId, Digest, LedgerId, Sequence, Stamp};

use crate::{
    anchor::Stamps,
    checkpoint::Checkpoint,
    epochs::Epochs,
    header::Header,
    journal::BatchEntry,
    keys::Keys,
    ledgers::{Envelope, Leaf, Signed},
};

/// A verified proof file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified<'a> {
    /// Id of the ledger.
    pub cluster: ClusterId,
    /// The checkpoint in the file.
    pub checkpoint: Checkpoint,
    /// The newest header at that checkpoint.
    pub newest: Header,
    /// The known keys of the ledger: those that the caller knew, and those that the file's key
    /// changes lead to.
    pub keys: Keys,
    /// The statement that holds at that checkpoint.
    pub claim: Claim<'a>,
    /// The newer checkpoint at which the version still stands; `None` if none was given.
    pub newer: Option<Checkpoint>,
}

/// A statement that holds at the checkpoint of a proof file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim<'a> {
    /// Keys or a range had these records at a version that stood.
    Query(QueryClaim<'a>),
    /// A batch was committed in a version that stood.
    Receipt(ReceiptClaim),
    /// The checkpoint extends an older one.
    Standing(StandingClaim),
    /// A ledger held these journals.
    Journals(JournalsClaim),
    /// This was the newest version at a time.
    Time(TimeClaim),
    /// These were all journals with a clue, or the newest of them.
    Lineage(LineageClaim),
    /// These anchors lie around an entry of the log.
    Interval(IntervalClaim),
}

/// The answer to a query at a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryClaim<'a> {
    /// Header of the version.
    pub header: Header,
    /// The question and the records that were found.
    pub answer: Answer<'a>,
}

/// The question of a query proof and the records that were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The keys in ascending order, each with its record; `None` if the key has no value.
    Keys(Vec<(Cow<'a, [u8]>, Option<Record<'a>>)>),
    /// All records with `low <= key < high`; without `high`, to the end of the key space.
    Range {
        /// The lowest key.
        low: Cow<'a, [u8]>,
        /// The key above the range; `None` for the end of the key space.
        high: Option<Cow<'a, [u8]>>,
        /// These records and no others, in key order.
        records: Vec<Record<'a>>,
    },
}

/// A record of a key that has a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The key.
    pub key: Cow<'a, [u8]>,
    /// Stamp of the commit that wrote the value.
    pub stamp: Stamp,
    /// Length of the value in bytes.
    pub value_len: u32,
    /// SHA-256 of the value.
    pub value_hash: Digest,
    /// The value; `None` if the file does not contain values.
    pub value: Option<Cow<'a, [u8]>>,
}

/// A batch that was committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptClaim {
    /// Header of the version.
    pub header: Header,
    /// Index of the batch in the journal of the version.
    pub index: u32,
    /// The journal entry of the batch.
    pub batch: BatchEntry,
}

/// A journal of a ledger that was proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    /// The journal's leaf in the ledger's list.
    pub leaf: Leaf,
    /// The author's request; `None` if the file does not show it. The signature was verified
    /// under the leaf's key.
    pub signed: Option<Signed>,
    /// Payload, clues and nonce; `None` if the file does not show them.
    pub envelope: Option<Envelope>,
}

/// Journals that a ledger held in a version that stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalsClaim {
    /// Header of the version.
    pub header: Header,
    /// Id of the ledger.
    pub ledger: LedgerId,
    /// Number of its journals after the version.
    pub size: u64,
    /// Root of its list.
    pub root: Digest,
    /// An earlier size and root of which the list is a continuation; `None` if none was asked for.
    pub known: Option<(u64, Digest)>,
    /// The journals, in ascending order.
    pub journals: Vec<Journal>,
}

/// The newest version that stood at the checkpoint and is not later than a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeClaim {
    /// Header of the version.
    pub header: Header,
    /// The time, in milliseconds since 1970.
    pub time_ms: u64,
    /// Stamp and time of the version after it, which is later than the time; `None` if the version
    /// is head.
    pub next: Option<(Stamp, u64)>,
    /// Time of the log's newest header.
    pub newest_ms: u64,
}

impl TimeClaim {
    /// Whether no later commit can change the answer: a header of the log is later than the time,
    /// and times never decrease along the log.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.newest_ms > self.time_ms
    }
}

/// The journals with a clue in a version that stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineageClaim {
    /// Header of the version.
    pub header: Header,
    /// Id of the ledger.
    pub ledger: LedgerId,
    /// Hash of the clue.
    pub clue: Digest,
    /// Number of all journals with the clue.
    pub count: u64,
    /// Number of the oldest journals with the clue that were not asked for; 0 for a complete
    /// lineage.
    pub after: u64,
    /// Number of the oldest journals with the clue that a purge has swept. Those of them that it
    /// has kept are among the journals.
    pub gone: u64,
    /// The journals, newest first.
    pub journals: Vec<Journal>,
}

/// A checkpoint that extends an older one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandingClaim {
    /// Size of the older checkpoint.
    pub old_size: u64,
    /// Root of the older checkpoint.
    pub old_root: Digest,
    /// The epochs at the newer checkpoint: they tell which versions stand there.
    pub epochs: Epochs,
}

/// Anchors around an entry of the log. The tokens are not judged here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntervalClaim {
    /// The entry.
    pub header: Header,
    /// Anchors before the entry, in the order of the log.
    pub below: Vec<AnchorClaim>,
    /// Anchors whose stamped log holds the entry, in the order of the log.
    pub above: Vec<AnchorClaim>,
}

/// An anchor that is in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnchorClaim {
    /// The anchor's own place in the log.
    pub sequence: Sequence,
    /// The time in the anchor's header, by the ledger's clock.
    pub timestamp_ms: u64,
    /// The imprint that each token must have.
    pub imprint: Digest,
    /// The tokens.
    pub stamps: Stamps,
}

impl Verified<'_> {
    /// Header of the version that the claim is about; `None` for a standing proof.
    #[must_use]
    pub fn header(&self) -> Option<&Header> {
        match &self.claim {
            Claim::Query(claim) => Some(&claim.header),
            Claim::Receipt(claim) => Some(&claim.header),
            Claim::Standing(_) => None,
            Claim::Journals(claim) => Some(&claim.header),
            Claim::Time(claim) => Some(&claim.header),
            Claim::Lineage(claim) => Some(&claim.header),
            Claim::Interval(claim) => Some(&claim.header),
        }
    }
}
