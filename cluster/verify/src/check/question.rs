//! Step `question`: the proof must answer the question that was asked. A proof that holds may prove
//! something else.

use alloc::vec::Vec;

use coppice_types::{Digest, Epoch, Version};

use super::{
    claim::{Answer, Claim, Verified},
    failure::{Failure, Step, ensure},
};
use crate::journal::Entry;

/// A question. Each part that is given must match the proof; a question without parts accepts every
/// proof.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question<'q> {
    /// Subject of the question; `None` for any.
    pub subject: Option<Subject<'q>>,
    /// Version that the proof must be of; `None` for any.
    pub version: Option<Version>,
    /// Epoch that the proof must be of; `None` for any.
    pub epoch: Option<Epoch>,
}

/// Subject of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject<'q> {
    /// Keys in any order, each of which needs an answer. The proof may show more.
    Keys(Vec<&'q [u8]>),
    /// Exactly this range.
    Range {
        /// The lowest key.
        low: &'q [u8],
        /// The key above the range; `None` for the end of the key space.
        high: Option<&'q [u8]>,
    },
    /// The commit of the batch whose journal entry has this hash.
    Batch(Digest),
    /// The growth of the log from this many entries on.
    Growth(u64),
}

impl<'q> Question<'q> {
    /// A question about this subject, at any version and epoch.
    #[must_use]
    pub fn about(subject: Subject<'q>) -> Self {
        Self { subject: Some(subject), ..Self::default() }
    }
}

impl Verified<'_> {
    /// Compares the proof with the question.
    ///
    /// # Errors
    /// A failure at step [`Step::Question`] that names the actual subject of the proof.
    pub fn answers(&self, question: &Question<'_>) -> Result<(), Failure> {
        if let Some(subject) = &question.subject {
            self.is_about(subject)?;
        }
        let stamp = self.header().map(|header| header.stamp);
        let version = question.version.is_none_or(|version| stamp.is_some_and(|stamp| stamp.version == version));
        ensure(version, Step::Question, "the proof is of another version")?;
        let epoch = question.epoch.is_none_or(|epoch| stamp.is_some_and(|stamp| stamp.epoch == epoch));
        ensure(epoch, Step::Question, "the proof is of another epoch")
    }

    fn is_about(&self, subject: &Subject<'_>) -> Result<(), Failure> {
        let rule = |holds, rule| ensure(holds, Step::Question, rule);
        let answer = match &self.claim {
            Claim::Query(claim) => Some(&claim.answer),
            Claim::Receipt(_) | Claim::Standing(_) => None,
        };
        match (subject, answer, &self.claim) {
            (Subject::Keys(keys), Some(Answer::Keys(shown)), _) => {
                let is_shown = |key: &&[u8]| shown.binary_search_by(|(shown, _)| (**shown).cmp(key)).is_ok();
                rule(keys.iter().all(is_shown), "the proof leaves a key out")
            }
            (Subject::Range { low, high }, Some(Answer::Range { low: from, high: to, .. }), _) => {
                rule(**from == **low && to.as_deref() == *high, "the proof is of another range")
            }
            (Subject::Batch(batch), _, Claim::Receipt(claim)) => {
                rule(Entry::Batch(claim.batch.clone()).hash() == *batch, "the receipt is of another batch")
            }
            (Subject::Growth(size), _, Claim::Standing(claim)) => {
                rule(claim.old_size == *size, "the proof is of another checkpoint")
            }
            (Subject::Keys(_) | Subject::Range { .. }, Some(_), _) => rule(false, "the proof answers another question"),
            _ => rule(false, "the proof is of another kind"),
        }
    }
}

#[cfg(test)]
mod tests;
