//! The judgement of an evidence file: steps `format`, `keys`, `notes`, `proof` and `conflict`.

use alloc::{borrow::ToOwned, string::String, vec::Vec};
use core::fmt;

use coppice_types::Digest;

use super::{Evidence, Shown, text};
use crate::{
    check::Cause,
    checkpoint::{Checkpoint, cluster_of},
    hash::log_entry_hash,
    header::{Body, Header},
    keys::KeyChange,
    merkle,
    note::{self, VerifierKey, split_line, split_note},
    policy::{Cosigned, Policy},
};

/// The steps of the judgement, in order (`docs/verification.md` section 20).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// The file parses.
    Format,
    /// The key changes lead from the trusted key.
    Keys,
    /// Both notes are checkpoints of the ledger, signed by known keys.
    Notes,
    /// What is shown is in the log of note B.
    Proof,
    /// It contradicts note A.
    Conflict,
}

impl Step {
    /// All steps in order.
    pub const ALL: &'static [Step] = &[Self::Format, Self::Keys, Self::Notes, Self::Proof, Self::Conflict];

    /// The name in messages and documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Format => "format",
            Self::Keys => "keys",
            Self::Notes => "notes",
            Self::Proof => "proof",
            Self::Conflict => "conflict",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The reason why a file is no evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The step that failed.
    pub step: Step,
    /// The cause.
    pub cause: Cause,
}

impl Failure {
    pub(super) fn rule(step: Step, rule: &'static str) -> Self {
        Self { step, cause: Cause::Rule(rule) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step, self.cause)
    }
}

impl core::error::Error for Failure {}

fn fail<C: Into<Cause>>(step: Step) -> impl Fn(C) -> Failure {
    move |cause| Failure { step, cause: cause.into() }
}

fn ensure(holds: bool, step: Step, rule: &'static str) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::rule(step, rule)) }
}

/// What an evidence file proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What contradicts note A.
    pub ground: Ground,
    /// Note A.
    pub a: Signed,
    /// Note B.
    pub b: Signed,
    /// The witnesses of the policy that cosigned both notes. Each is convicted, whoever holds the
    /// ledger's key. Empty unless the ground is [`Ground::Contradiction`].
    pub cosigners: Vec<Cosigner>,
    /// Names of signature lines on both notes that are of no known key. They prove nothing: anybody
    /// can add a line.
    pub unknown: Vec<UnknownCosigner>,
}

impl Verdict {
    /// Whether one key signed both notes. Its holder is convicted then. With two keys, at least one
    /// of the two holders is, and the file does not say which.
    #[must_use]
    pub fn is_one_key(&self) -> bool {
        self.a.key == self.b.key
    }
}

/// What contradicts note A.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ground {
    /// The log of B had another root at the size of A.
    Contradiction {
        /// The root of B's log at the size of A.
        root: Digest,
    },
    /// The key of A had been replaced.
    Late {
        /// Index of the key change in the log of B, below the size of A.
        index: u64,
        /// The key that replaced A's.
        new: VerifierKey,
    },
}

impl Ground {
    /// The word for it in files and reports.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Contradiction { .. } => text::CONTRADICTION,
            Self::Late { .. } => text::LATE,
        }
    }
}

/// A checkpoint, and the key that signed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// A key of the ledger that signed it.
    pub key: VerifierKey,
}

/// A witness of the policy that cosigned both notes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cosigner {
    /// Its newest line on note A.
    pub a: Cosigned,
    /// Its newest line on note B.
    pub b: Cosigned,
}

/// The name on signature lines of an unknown key. Nobody has verified them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownCosigner {
    /// The name.
    pub key_name: String,
    /// The key id.
    pub key_id: [u8; 4],
}

/// Judges an evidence file under a trusted key of the ledger. The policy names the witnesses to be
/// judged; its logs do not matter.
///
/// # Errors
/// Names the step that failed. Then the file proves nothing.
pub fn verify(file: &[u8], key: &VerifierKey, policy: Option<&Policy>) -> Result<Verdict, Failure> {
    let evidence = Evidence::decode(file)?;
    let keys = known_keys(&evidence.key_changes, key)?;
    let a = open(&evidence.a, &keys)?;
    let b = open(&evidence.b, &keys)?;
    let (ground, key_a) = match &evidence.shown {
        Shown::Root { size, root } => {
            let fits = *size == a.checkpoint.size && a.checkpoint.size <= b.checkpoint.size;
            ensure(fits, Step::Notes, "the size is not that of note a, or note b is smaller")?;
            let (new_size, new_root) = (b.checkpoint.size, b.checkpoint.root);
            merkle::verify_consistency(*size, new_size, root, &new_root, &evidence.path).map_err(fail(Step::Proof))?;
            ensure(*root != a.checkpoint.root, Step::Conflict, "the log of note b goes on from that of note a")?;
            let key = a.by.iter().find(|key| b.by.contains(key)).or(a.by.first());
            (Ground::Contradiction { root: *root }, key)
        }
        Shown::KeyChange { index, entry } => {
            let change = key_change(*index, entry, &evidence.path, &b.checkpoint)?;
            ensure(a.checkpoint.size > *index, Step::Conflict, "note a is from before the key change")?;
            let replaced = a.by.iter().find(|key| key.public_key() == change.old);
            ensure(replaced.is_some(), Step::Conflict, "the key change does not replace the key of note a")?;
            let new = VerifierKey::new(key.name(), &change.new).map_err(fail(Step::Proof))?;
            (Ground::Late { index: *index, new }, replaced)
        }
    };
    let nobody = Failure::rule(Step::Notes, "no known key has signed");
    let key_a = key_a.ok_or(nobody)?.clone();
    let key_b = b.by.iter().find(|key| **key == key_a).or(b.by.first()).ok_or(nobody)?.clone();
    let both = policy.filter(|_| matches!(ground, Ground::Contradiction { .. }));
    let cosigners = both.map_or_else(Vec::new, |policy| policy.cosigned_both(&evidence.a, &evidence.b));
    Ok(Verdict {
        ground,
        cosigners: cosigners.into_iter().map(|(a, b)| Cosigner { a, b }).collect(),
        unknown: unknown(&evidence, &keys, policy),
        a: Signed { checkpoint: a.checkpoint, key: key_a },
        b: Signed { checkpoint: b.checkpoint, key: key_b },
    })
}

/// The keys of the ledger, the trusted one first. The old key of a change vouches for the new one,
/// and the new key for the old one, so all keys of changes that hang together are known if one is.
fn known_keys(changes: &[KeyChange], trusted: &VerifierKey) -> Result<Vec<VerifierKey>, Failure> {
    let mut keys: Vec<VerifierKey> = Vec::new();
    for change in changes {
        let unnamed = Failure::rule(Step::Keys, "the key's name ends in no cluster id");
        change
            .check(&cluster_of(trusted.name()).ok_or(unnamed)?)
            .map_err(|broken| Failure::rule(Step::Keys, broken.0))?;
        let ends = [&change.old, &change.new].map(|key| VerifierKey::new(trusted.name(), key));
        let [Ok(old), Ok(new)] = ends else { return Err(Failure::rule(Step::Keys, "keys of a key change")) };
        let joined = keys.is_empty() || keys.contains(&old) || keys.contains(&new);
        ensure(joined, Step::Keys, "a key change that has no key of those before it")?;
        for key in [old, new] {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
    }
    let leads = keys.is_empty() || keys.contains(trusted);
    ensure(leads, Step::Keys, "the key changes do not lead from the trusted key: is it a key of this ledger?")?;
    keys.retain(|key| key != trusted);
    keys.insert(0, trusted.clone());
    Ok(keys)
}

/// A note with the known keys that signed it.
struct Opened {
    checkpoint: Checkpoint,
    by: Vec<VerifierKey>,
}

/// Opens a note that at least one known key signed.
fn open(note: &[u8], keys: &[VerifierKey]) -> Result<Opened, Failure> {
    let mut opened = None;
    let mut by = Vec::new();
    for key in keys {
        match Checkpoint::open(note, key) {
            Ok(checkpoint) => {
                opened = Some(checkpoint);
                by.push(key.clone());
            }
            Err(note::Error::Unsigned) => {}
            Err(error) => return Err(fail(Step::Notes)(error)),
        }
    }
    let checkpoint = opened.ok_or(fail(Step::Notes)(note::Error::Unsigned))?;
    Ok(Opened { checkpoint, by })
}

/// Checks that an entry is in the log at its index, and is a key change of the ledger.
fn key_change(index: u64, entry: &[u8], path: &[Digest], log: &Checkpoint) -> Result<KeyChange, Failure> {
    let header = Header::decode(entry).map_err(fail(Step::Proof))?;
    let of_ledger = cluster_of(&log.origin) == Some(header.cluster) && header.sequence.0 == index;
    ensure(of_ledger, Step::Proof, "the entry is of another ledger or index")?;
    merkle::verify_inclusion(index, log.size, &log_entry_hash(entry), path, &log.root).map_err(fail(Step::Proof))?;
    match header.body {
        Body::Key(change) => Ok(change),
        _ => Err(Failure::rule(Step::Proof, "the entry is not a key change")),
    }
}

/// The names of lines on both notes that are of no known key.
fn unknown(evidence: &Evidence<'_>, keys: &[VerifierKey], policy: Option<&Policy>) -> Vec<UnknownCosigner> {
    let lines = |note| {
        let (_, lines) = split_note(note).ok()?;
        let strange = lines.lines().filter_map(|line| {
            let line = split_line(line).ok()?;
            let known = keys.iter().any(|key| key.is_of(&line)) || policy.is_some_and(|policy| policy.knows(&line));
            (!known).then(|| UnknownCosigner { key_name: line.name.to_owned(), key_id: line.id })
        });
        Some(strange.collect::<Vec<_>>())
    };
    let (of_a, of_b) = (lines(&evidence.a).unwrap_or_default(), lines(&evidence.b).unwrap_or_default());
    let mut both: Vec<UnknownCosigner> = Vec::new();
    for line in of_a {
        if of_b.contains(&line) && !both.contains(&line) {
            both.push(line);
        }
    }
    both
}
