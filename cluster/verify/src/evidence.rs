//! Evidence files: two signed notes that no honest ledger signs (`docs/verification.md` section
//! 20).
//!
//! The file is text, and a stranger judges it offline with the ledger's public key alone. It proves
//! one of two things. *Contradiction*: the logs of two checkpoints differ in entries that both
//! have. *Late*: a key signed a checkpoint of more entries than the log had when the key was
//! replaced.
//!
//! Nothing else is evidence: not a smaller checkpoint, not silence, not a refused proof, and no
//! prune, rollback or key change that the log has.
//!
//! **Invariants**: a decoded file encodes to the same bytes. A verdict convicts only keys that
//! signed: without the private key, nobody makes a file that convicts it.

mod text;
mod verdict;

use alloc::{borrow::Cow, vec::Vec};

use coppice_types::Digest;

pub use self::verdict::{Cosigner, Failure, Ground, Signed, Step, UnknownCosigner, Verdict, verify};
use crate::{
    checkpoint::Checkpoint,
    header::{Body, Header},
    keys::KeyChange,
    note::{self, VerifierKey},
    proof::{HeaderPart, LogPart, StandingProof},
};

/// Longest evidence file, in bytes.
pub const EVIDENCE_BYTES_MAX: usize = 256 << 10;
/// Most hashes of the path: a consistency path has one more than a log of 2^63 entries has levels.
pub const PATH_MAX: usize = 64;

/// A decoded evidence file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence<'a> {
    /// The key changes between a trusted key and the keys of the notes. Each but the first has a
    /// key of one before it.
    pub key_changes: Vec<KeyChange>,
    /// What is shown of the log of note B.
    pub shown: Shown<'a>,
    /// Consistency or inclusion path to the root of note B.
    pub path: Vec<Digest>,
    /// Note A: the checkpoint that the shown part of B's log contradicts.
    pub a: Cow<'a, [u8]>,
    /// Note B.
    pub b: Cow<'a, [u8]>,
}

/// What an evidence file shows of the log of note B.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown<'a> {
    /// The log had another root than A's at A's size.
    Root {
        /// Size of A.
        size: u64,
        /// Root of the first `size` entries of B's log.
        root: Digest,
    },
    /// The log has an entry that replaces A's key, and A has more entries than come before it.
    KeyChange {
        /// Index of the entry.
        index: u64,
        /// The header: canonical bytes of the entry.
        entry: Cow<'a, [u8]>,
    },
}

/// The error that evidence does not fit an evidence file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl core::fmt::Display for TooLong {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the evidence does not fit an evidence file")
    }
}

impl core::error::Error for TooLong {}

impl<'a> Evidence<'a> {
    /// The evidence in a saved note and a standing proof that begins at its size, or has it: the
    /// proof's log does not extend the note, or had replaced the note's key before. `None` if they
    /// do not contradict each other.
    ///
    /// `keys` are those that may have signed the note. Nothing else is verified here.
    #[must_use]
    pub fn from_standing(saved: &'a [u8], keys: &[VerifierKey], proof: &StandingProof<'a>) -> Option<Self> {
        let (old, new) = (Checkpoint::claimed(saved).ok()?, Checkpoint::claimed(&proof.log.checkpoint).ok()?);
        let key_changes = key_changes(&proof.log);
        let whole = |shown, path| Self {
            key_changes: key_changes.iter().map(|(_, _, change)| change.clone()).collect(),
            shown,
            path,
            a: Cow::Borrowed(saved),
            b: proof.log.checkpoint.clone(),
        };
        let known = if old.size == new.size {
            Some((new.root, Vec::new()))
        } else {
            (old.size == proof.old_size).then(|| (proof.old_root, proof.path.clone()))
        };
        if let Some((root, path)) = known.filter(|(root, _)| old.size > 0 && *root != old.root) {
            return Some(whole(Shown::Root { size: old.size, root }, path));
        }
        let signed = |key: &[u8; 32]| keys.iter().any(|it| it.public_key() == *key && note::open(saved, it).is_ok());
        let (index, part, _) =
            key_changes.iter().find(|(index, _, change)| *index < old.size && signed(&change.old))?;
        Some(whole(Shown::KeyChange { index: *index, entry: part.header.clone() }, part.path.clone()))
    }
}

/// The key changes of a log part, with the index of each.
fn key_changes<'p, 'a>(log: &'p LogPart<'a>) -> Vec<(u64, &'p HeaderPart<'a>, KeyChange)> {
    let change = |part: &'p HeaderPart<'a>| match Header::decode(&part.header).ok()? {
        Header { body: Body::Key(change), sequence, .. } => Some((sequence.0, part, change)),
        _ => None,
    };
    log.key_changes.iter().filter_map(change).collect()
}
