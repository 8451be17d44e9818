//! Step `question`: the proof must answer the question that was asked. A proof that holds may prove
//! something else.

use alloc::vec::Vec;

use coppice_types::{Digest, Epoch, LedgerId, Version};

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
    /// Version that the proof must be for; `None` for any.
    pub version: Option<Version>,
    /// Epoch that the proof must be for; `None` for any.
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
    /// Exactly these journals of a ledger, in ascending order, if the list has only grown since
    /// this size and root.
    Journals {
        /// Id of the ledger.
        ledger: LedgerId,
        /// Numbers of the journals.
        numbers: Vec<u64>,
        /// A size and root that the asking side knows; `None` if it knows none.
        known: Option<(u64, Digest)>,
    },
    /// All journals of the request whose signed bytes have this SHA-256.
    Request(Digest),
    /// The newest version at this time, in milliseconds since 1970.
    Time(u64),
    /// The newest journals with a clue.
    Lineage {
        /// Id of the ledger.
        ledger: LedgerId,
        /// Hash of the clue.
        clue: Digest,
        /// Number of journals that were asked for; `None` for all.
        newest: Option<u64>,
    },
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
        ensure(version, Step::Question, "the proof is for another version")?;
        let epoch = question.epoch.is_none_or(|epoch| stamp.is_some_and(|stamp| stamp.epoch == epoch));
        ensure(epoch, Step::Question, "the proof is for another epoch")
    }

    fn is_about(&self, subject: &Subject<'_>) -> Result<(), Failure> {
        let rule = |holds, rule| ensure(holds, Step::Question, rule);
        let answer = match &self.claim {
            Claim::Query(claim) => Some(&claim.answer),
            _ => None,
        };
        match (subject, answer, &self.claim) {
            (Subject::Keys(keys), Some(Answer::Keys(shown)), _) => {
                let is_shown = |key: &&[u8]| shown.binary_search_by(|(shown, _)| (**shown).cmp(key)).is_ok();
                rule(keys.iter().all(is_shown), "the proof leaves a key out")
            }
            (Subject::Range { low, high }, Some(Answer::Range { low: from, high: to, .. }), _) => {
                rule(**from == **low && to.as_deref() == *high, "the proof is for another range")
            }
            (Subject::Batch(batch), _, Claim::Receipt(claim)) => {
                rule(Entry::Batch(claim.batch.clone()).hash() == *batch, "the receipt is for another batch")
            }
            (Subject::Growth(size), _, Claim::Standing(claim)) => {
                rule(claim.old_size == *size, "the proof is for another checkpoint")
            }
            (Subject::Journals { ledger, numbers, known }, _, Claim::Journals(claim)) => {
                rule(claim.ledger == *ledger, "the proof is for another ledger")?;
                let shown = claim.journals.iter().map(|journal| journal.leaf.jsn);
                rule(shown.eq(numbers.iter().copied()), "the proof is for other journals")?;
                let continues = known.is_none() || claim.known == *known;
                rule(continues, "the proof continues another state of the ledger than the known one")
            }
            (Subject::Request(request), _, Claim::Journals(claim)) => {
                let leaf = |at: usize| &claim.journals[at].leaf;
                let all = claim.journals.len() as u64 == u64::from(leaf(0).of);
                let own =
                    (0..claim.journals.len()).all(|at| (leaf(at).request, leaf(at).index as usize) == (*request, at));
                rule(all && own, "the proof is not for all journals of the request")
            }
            (Subject::Time(time_ms), _, Claim::Time(claim)) => {
                rule(claim.time_ms == *time_ms, "the proof is for another time")
            }
            (Subject::Lineage { ledger, clue, newest }, _, Claim::Lineage(claim)) => {
                rule((claim.ledger, claim.clue) == (*ledger, *clue), "the proof is for another clue")?;
                let after = newest.map_or(0, |newest| claim.count.saturating_sub(newest));
                rule(claim.after == after, "the proof shows another number of journals")
            }
            (Subject::Keys(_) | Subject::Range { .. }, Some(_), _) => rule(false, "the proof answers another question"),
            _ => rule(false, "the proof is of another kind"),
        }
    }
}

#[cfg(test)]
mod tests;
