//! Trusted anchors: a client that has verified a ledger's list up to a size needs 8 hashes for a
//! journal below it, and no checkpoint.

use coppice_proto::v1;
use coppice_types::Digest;
use coppice_verify::{
    check::{Claim, Question, Subject},
    ledgers::{BLOCK_JOURNALS, TrustedAnchor},
};

use super::{LedgerJournal, Wanted, journal, ledger_name};
use crate::{Client, Error, trust::decoded};

/// Most blocks of an anchor: those of a thousand million journals, in 128 MiB.
const BLOCKS_MAX: u64 = 1 << 22;
/// Most calls to move an anchor, so that answers with few blocks each come to an end.
const CALLS_MAX: u32 = 1 << 12;

fn digests(bytes: &[u8]) -> Result<Vec<Digest>, Error> {
    let hashes = bytes.chunks(size_of::<Digest>()).map(Digest::from_slice).collect::<Option<Vec<_>>>();
    hashes.ok_or(Error::Malformed("hashes of a ledger"))
}

impl Client {
    /// Moves a trusted anchor to a size that the ledger has, which a coordinator picks: head, if it
    /// is honest. A proof shows that size, its root, and that the list has only grown since the
    /// anchor; the hashes must give that root.
    ///
    /// # Errors
    /// [`Error::Unproven`] or [`Error::Untrusted`] if the proof does not hold or no key is trusted.
    /// [`Error::Malformed`] if the answer has other hashes.
    pub async fn advance_anchor(&self, anchor: &TrustedAnchor) -> Result<TrustedAnchor, Error> {
        let known = (anchor.size() > 0).then(|| (anchor.size(), anchor.root()));
        let mut blocks = Vec::new();
        for _ in 0..CALLS_MAX {
            let asking = self.asking().ok_or(Error::Untrusted("no key is trusted that could prove it"))?;
            let request = v1::GetLedgerHashesRequest {
                ledger: Some(ledger_name(anchor.ledger)),
                from_block: anchor.blocks() + blocks.len() as u64,
                known_size: anchor.size(),
                read: Some(v1::ReadOptions { want_proof: true, ..v1::ReadOptions::default() }),
            };
            let answer = self.call_get_ledger_hashes(request).await?;
            let newest = answer.size.checked_sub(1).ok_or(Error::Malformed("a ledger without journals"))?;
            let file = decoded(&answer.proof)?;
            let subject = Subject::Journals { ledger: anchor.ledger, numbers: vec![newest], known };
            let claim = self.trust_claim(&asking, &file, &Question::about(subject), false).await?;
            let Claim::Journals(claim) = claim else { return Err(Error::Untrusted("the proof is of another kind")) };
            if claim.size != answer.size || file.cluster != anchor.cluster {
                return Err(Error::Untrusted("the answer and its proof disagree"));
            }
            let more = digests(&answer.blocks)?;
            let nothing = more.is_empty();
            blocks.extend(more);
            let wanted = claim.size / BLOCK_JOURNALS;
            let reached = anchor.blocks() + blocks.len() as u64;
            if reached == wanted {
                let grown = anchor.grown(claim.size, &blocks, &digests(&answer.rest)?, &claim.root);
                return grown.map_err(|_| Error::Untrusted("the hashes do not give the proven root"));
            }
            if nothing || reached > wanted || wanted > BLOCKS_MAX {
                break;
            }
        }
        Err(Error::Malformed("hashes of a ledger"))
    }

    /// Reads journals below a trusted anchor, fewer than `limit` at its end and before a journal
    /// that a purge has swept. The path of each to a hash of the anchor verifies it.
    ///
    /// # Errors
    /// [`Error::Untrusted`] if a journal is not in the anchor's list. Also if one or its content is
    /// missing, and it is not proven that a purge or an order took it.
    pub async fn journals_below(
        &self,
        anchor: &TrustedAnchor,
        (from, limit): (u64, u32),
        payload: bool,
    ) -> Result<Vec<LedgerJournal>, Error> {
        let left = u32::try_from(anchor.size().saturating_sub(from)).unwrap_or(u32::MAX);
        let limit = limit.min(left);
        if limit == 0 {
            return Ok(Vec::new());
        }
        let request = v1::GetJournalsRequest {
            ledger: Some(ledger_name(anchor.ledger)),
            from_jsn: from,
            limit,
            want_payload: payload,
            anchor_size: anchor.size(),
            ..v1::GetJournalsRequest::default()
        };
        let answer = self.journals_answered(anchor.ledger, request).await?;
        let given = answer.journals.len();
        if given == 0 || given > limit as usize {
            return Err(Error::Malformed("other journals than were asked for"));
        }
        if given < limit as usize {
            // The answer ends before the first journal that a purge has swept.
            if self.trust.is_none() {
                return Err(Error::Untrusted("no key is trusted that could prove why journals are missing"));
            }
            self.check_purged(anchor.ledger, from + given as u64).await?;
        }
        let mut journals = Vec::new();
        for (jsn, told) in (from..).zip(&answer.journals) {
            let found = journal(told, payload)?;
            if found.leaf.jsn != jsn || !anchor.holds(&found.leaf, &digests(&told.path)?) {
                return Err(Error::Untrusted("the journal is not in the anchor's list"));
            }
            journals.push(found);
        }
        for occulted in journals.iter_mut().filter(|journal| journal.occulted_by.is_some()) {
            if self.trust.is_none() {
                return Err(Error::Untrusted("no key is trusted that could prove why content is missing"));
            }
            // Mark and order are in the newest state: only a proof under a checkpoint shows them.
            let wanted = Wanted { payload: true, request: false, proof: true };
            let read = self.journals(anchor.ledger, (occulted.leaf.jsn, 1), wanted, None).await?;
            let same = read.journals.into_iter().next().filter(|read| read.leaf == occulted.leaf);
            *occulted = same.ok_or(Error::Untrusted("the journal is not in the anchor's list"))?;
        }
        Ok(journals)
    }
}
