//! Rules by which a client believes proven answers, from one to the next.
//!
//! A proof shows that something was so. It does not show that this is new, or of the log that was
//! seen before. A client remembers the newest checkpoint that it has seen, the last one that was
//! proven to extend those before it, and the changes of the ledger's key. These rules compare an
//! answer with that.
//!
//! They are pure: the client keeps locks, times and calls. The client for Rust calls them directly,
//! and the one for JavaScript through `verify.wasm`.
//!
//! Invariant of [`Marks`]: `newest` is at least as large as `proven`.

use core::fmt;

use coppice_types::{Digest, Sequence, Version};

use crate::{checkpoint::Checkpoint, keys::Keys};

/// A size of the log in entries, and the root of its tree there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Number of entries.
    pub size: u64,
    /// The root of these entries.
    pub root: Digest,
}

impl From<&Checkpoint> for Mark {
    fn from(checkpoint: &Checkpoint) -> Self {
        Self { size: checkpoint.size, root: checkpoint.root }
    }
}

/// A change of the ledger's key: the entry of the log that made it, and the new public key.
pub type Change = (Sequence, [u8; 32]);

/// The changes that these keys know, in order.
pub fn changes(keys: &Keys) -> impl Iterator<Item = Change> {
    keys.changes().map(|(sequence, key)| (sequence, key.public_key()))
}

/// The reason not to believe an answer whose proof holds. `docs/proof-files.md` has the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Distrust {
    /// Two roots of one size are signed.
    Forked = 1,
    /// Another change of the key is signed than the known one.
    Changed = 2,
    /// The checkpoint is signed by a key that the ledger had replaced before.
    Late = 3,
    /// The checkpoint is older than the one that was known before the question.
    Older = 4,
    /// Head was asked for, and this is another version.
    NotHead = 5,
    /// A proof of growth ends below the checkpoint that was known before it was asked for.
    Shrunk = 6,
}

impl Distrust {
    /// The reason in words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Forked => "the log has two roots of the same size: keep both checkpoints, they are evidence",
            Self::Changed => {
                "a different key change than the one that is known: keep both, they are evidence of a fork"
            }
            Self::Late => {
                "its checkpoint is signed by a key that the ledger had replaced before: keep it, it is evidence"
            }
            Self::Older => "it is older than what this client had seen before it asked",
            Self::NotHead => "the version that was read is not the one that was asked for",
            Self::Shrunk => "the proof ends below a checkpoint that was seen before it was asked for",
        }
    }
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The demands of a question on the place of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The size of the newest checkpoint that was known before the question; 0 if an older one is
    /// accepted.
    pub seen: u64,
    /// Whether the newest version was asked for.
    pub of_head: bool,
}

impl Asked {
    /// Checks an answer of `version`, under a checkpoint of `size` entries with a `newest` version.
    ///
    /// # Errors
    /// [`Distrust::NotHead`] or [`Distrust::Older`].
    pub fn check(self, version: Option<Version>, newest: Version, size: u64) -> Result<(), Distrust> {
        ensure(!self.of_head || version == Some(newest), Distrust::NotHead)?;
        ensure(size >= self.seen, Distrust::Older)
    }
}

/// Compares the changes that a proof shows with the known ones. `size` is that of its checkpoint: a
/// proof has all changes below it. Returns whether the proof knows more of them.
///
/// # Errors
/// [`Distrust::Changed`] or [`Distrust::Late`].
pub fn compare(
    known: impl IntoIterator<Item = Change>,
    shown: impl IntoIterator<Item = Change>,
    size: u64,
) -> Result<bool, Distrust> {
    let mut missing = known.into_iter();
    for change in shown {
        let Some(same) = missing.next() else { return Ok(true) };
        ensure(same == change, Distrust::Changed)?;
    }
    ensure(missing.next().is_none_or(|(sequence, _)| sequence.0 >= size), Distrust::Late)?;
    Ok(false)
}

/// What a client remembers of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// The largest checkpoint that was seen.
    pub newest: Mark,
    /// The last checkpoint that was proven to extend the ones before it.
    pub proven: Mark,
}

impl Marks {
    /// The marks after the first checkpoint.
    #[must_use]
    pub const fn new(first: Mark) -> Self {
        Self { newest: first, proven: first }
    }

    /// Remembers a checkpoint if it is the newest one.
    ///
    /// # Errors
    /// [`Distrust::Forked`].
    pub fn note(&mut self, shown: Mark) -> Result<(), Distrust> {
        for known in [self.newest, self.proven] {
            ensure(known.size != shown.size || known.root == shown.root, Distrust::Forked)?;
        }
        if shown.size > self.newest.size {
            self.newest = shown;
        }
        Ok(())
    }

    /// Whether the newest checkpoint is not proven to extend the last proven one.
    #[must_use]
    pub const fn is_unproven(&self) -> bool {
        self.newest.size > self.proven.size
    }

    /// Remembers the end of a growth that [`Growth::check`] has returned.
    ///
    /// # Errors
    /// [`Distrust::Forked`].
    pub fn prove(&mut self, end: Mark) -> Result<(), Distrust> {
        self.note(end)?;
        if end.size > self.proven.size {
            self.proven = end;
        }
        Ok(())
    }
}

/// Two checkpoints that must be shown to be beginnings of one log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// The checkpoint that was proven last.
    pub proven: Mark,
    /// The newest checkpoint that was seen.
    pub newest: Mark,
}

/// A proof of growth: the log had `old_root` at the size that was asked for, and goes on to `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grown {
    /// The root at the older size.
    pub old_root: Digest,
    /// The checkpoint of the proof.
    pub end: Mark,
}

impl Growth {
    /// Compares two proofs of growth, from each of the checkpoints. Returns the end of the log that
    /// both show. `None` if the ends have different sizes, which can't be compared.
    ///
    /// # Errors
    /// [`Distrust::Forked`] or [`Distrust::Shrunk`].
    pub fn check(&self, from_proven: Grown, from_newest: Grown) -> Result<Option<Mark>, Distrust> {
        let same_roots = from_proven.old_root == self.proven.root && from_newest.old_root == self.newest.root;
        ensure(same_roots, Distrust::Forked)?;
        let end = from_proven.end;
        ensure(end.size >= self.newest.size, Distrust::Shrunk)?;
        let mut is_tied = false;
        for other in [self.newest, from_newest.end] {
            if other.size == end.size {
                ensure(other.root == end.root, Distrust::Forked)?;
                is_tied = true;
            }
        }
        Ok(is_tied.then_some(end))
    }
}

fn ensure(holds: bool, distrust: Distrust) -> Result<(), Distrust> {
    if holds { Ok(()) } else { Err(distrust) }
}

#[cfg(test)]
mod tests;
