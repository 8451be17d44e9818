//! The step at which a verification failed, and the cause.

use core::fmt;

use coppice_types::codec;

use crate::{merkle, note};

/// The steps of a verification, in the order of `docs/verification.md` section 13.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// The file parses.
    Format,
    /// The key changes follow each other, lead from the trusted key, and are in the checkpoint's
    /// log.
    Keys,
    /// The checkpoint is signed by the key in force, for the file's cluster.
    Checkpoint,
    /// The newest header is the last entry of the checkpoint's log.
    NewestHeader,
    /// The version's header is in the log.
    Header,
    /// The version stands by the newest header.
    Epoch,
    /// The shards' states lead to the header's state root.
    State,
    /// The revealed nodes have the shape of trees.
    Tree,
    /// The trees answer the query.
    Query,
    /// The values are those of the records.
    Value,
    /// The batch, or the head of the ledger, is in the version's journal.
    Journal,
    /// The journals are in the ledger's list, and the list only grew.
    List,
    /// The leaves are of the ledger and of a version that is not later.
    Leaf,
    /// The leaf's key has signed the request that the leaf repeats.
    Request,
    /// The payload is the leaf's.
    Envelope,
    /// The journals are all those with the clue.
    Lineage,
    /// The version is the newest one at the time.
    Time,
    /// The anchors lie around the entry, in the log's order.
    Anchors,
    /// The version stands at the newer checkpoint.
    Standing,
    /// Enough witnesses of the policy have cosigned the newest checkpoint that is shown.
    Cosignatures,
    /// The proof answers the question that was asked.
    Question,
}

impl Step {
    /// All steps in order, for tables in tests and documents.
    pub const ALL: &'static [Step] = &[
        Self::Format,
        Self::Keys,
        Self::Checkpoint,
        Self::NewestHeader,
        Self::Header,
        Self::Epoch,
        Self::State,
        Self::Tree,
        Self::Query,
        Self::Value,
        Self::Journal,
        Self::List,
        Self::Leaf,
        Self::Request,
        Self::Envelope,
        Self::Lineage,
        Self::Time,
        Self::Anchors,
        Self::Standing,
        Self::Cosignatures,
        Self::Question,
    ];

    /// The name in messages and documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Format => "format",
            Self::Keys => "keys",
            Self::Checkpoint => "checkpoint",
            Self::NewestHeader => "newest_header",
            Self::Header => "header",
            Self::Epoch => "epoch",
            Self::State => "state",
            Self::Tree => "tree",
            Self::Query => "query",
            Self::Value => "value",
            Self::Journal => "journal",
            Self::List => "list",
            Self::Leaf => "leaf",
            Self::Request => "request",
            Self::Envelope => "envelope",
            Self::Lineage => "lineage",
            Self::Time => "time",
            Self::Anchors => "anchors",
            Self::Standing => "standing",
            Self::Cosignatures => "cosignatures",
            Self::Question => "question",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A failed verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The step that failed.
    pub step: Step,
    /// The cause.
    pub cause: Cause,
}

/// The reason why a step failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Bytes do not decode.
    Codec(codec::Error),
    /// A note is malformed, or not signed as it must be.
    Note(note::Error),
    /// A Merkle proof does not hold.
    Merkle(merkle::Error),
    /// A rule does not hold.
    Rule(&'static str),
}

impl Failure {
    pub(super) fn rule(step: Step, rule: &'static str) -> Self {
        Self { step, cause: Cause::Rule(rule) }
    }

    /// The same cause at step `standing`, to which every failure in the newer checkpoint's file
    /// belongs.
    pub(super) fn in_newer(self) -> Self {
        Self { step: Step::Standing, cause: self.cause }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step, self.cause)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Codec(error) => error.fmt(f),
            Self::Note(error) => error.fmt(f),
            Self::Merkle(error) => error.fmt(f),
            Self::Rule(rule) => f.write_str(rule),
        }
    }
}

impl core::error::Error for Failure {}

impl From<codec::Error> for Cause {
    fn from(error: codec::Error) -> Self {
        Self::Codec(error)
    }
}

impl From<note::Error> for Cause {
    fn from(error: note::Error) -> Self {
        Self::Note(error)
    }
}

impl From<merkle::Error> for Cause {
    fn from(error: merkle::Error) -> Self {
        Self::Merkle(error)
    }
}

/// Makes a failure of a step from its cause.
pub(super) fn fail<C: Into<Cause>>(step: Step) -> impl Fn(C) -> Failure {
    move |cause| Failure { step, cause: cause.into() }
}

/// Fails unless the rule holds.
pub(super) fn ensure(holds: bool, step: Step, rule: &'static str) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::rule(step, rule)) }
}
