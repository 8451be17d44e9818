//! The part of an audit that begins behind the newest sweep of a purge: records as they were there,
//! and what lies before, by proofs.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map},
    ops::Range,
};

use bytes::Bytes;
use coppice_proto::v1;
use coppice_types::{ClusterId, Digest, MemberId, Reason, Stamp, Version};
use coppice_verify::{
    check::{Answer, Claim, QueryClaim, Question, Subject, verify_known},
    journal::AppendEntry,
    ledgers::{
        Action, AuthorOf, DATA, Envelope, Head, Leaf, Mark, Member, ORDER, Ordered, Purge, Retained, author_key,
        head_key, leaf_key, mark_key, member_key, purge_key, retained_key,
    },
    proof::ProofFile,
};

use super::{End, LedgerDifference, Progress, Replay, Told, ledger_name};
use crate::Error;

/// Records that are read at a time.
const RECORDS_PAGE: usize = 2048;
/// Journals below a purge that are judged at a time, by two records each.
const SWEPT_PAGE: usize = RECORDS_PAGE / 2;
/// Journals that are read at a time, with their requests; fewer where they are large.
const JOURNALS_PAGE: u32 = 64;

type Records = BTreeMap<Vec<u8>, Option<Bytes>>;

/// A ledger as it was where an audit of it begins.
pub(super) struct Begun {
    head: Head,
    purge: Purge,
    version: Version,
}

/// A fault of the sweep that has passed a journal. `kind` is that of the journal; `None` if it is
/// gone.
fn fault_of_sweep(jsn: u64, kind: Option<u8>, is_retained: bool) -> Option<&'static str> {
    match kind {
        None if jsn == 0 => Some("a purge has taken the founding of the ledger"),
        None if is_retained => Some("a purge has taken it, though a member retains it"),
        Some(DATA) if !is_retained => Some("a purge should have taken it: no member retains it"),
        _ => None,
    }
}

/// An order that its author has signed.
struct Given {
    cluster: ClusterId,
    leaf: Leaf,
    ordered: Ordered,
}

/// Whether an action of this author keeps a journal for a member.
fn retains(author: MemberId, action: &Action, jsn: u64, member: MemberId) -> bool {
    author == member && matches!(action, Action::Retain { journals, .. } if journals.contains(&jsn))
}

/// Neighbouring numbers together.
fn runs(ascending: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for number in ascending {
        match runs.last_mut() {
            Some(run) if run.end == number => run.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}

/// Whether this member or agent signed the request of a leaf with a key that was in force.
fn signs_for(member: &Member, leaf: &Leaf) -> bool {
    let principal = member.agency.as_ref().map(|agency| agency.principal);
    let first = leaf.jsn.saturating_sub(u64::from(leaf.index));
    principal == leaf.agent.map(|_| leaf.member) && member.key_at(first) == Some(&leaf.key)
}

/// A fault that no single version has.
fn differs(jsn: Option<u64>, what: &str) -> End {
    End::Differs(LedgerDifference { stamp: Stamp::default(), jsn, what: what.to_owned() })
}

fn decoded<T>(
    records: &Records,
    key: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, coppice_types::codec::Error>,
) -> Result<Option<T>, End> {
    let record = records.get(key).and_then(Option::as_ref);
    record.map(|record| decode(record)).transpose().map_err(|_| differs(None, "a record of it can't be read"))
}

impl<P: FnMut(Progress)> Replay<'_, P> {
    /// Begins behind the newest sweep, if there was any. That version may be dropped by now: then
    /// the audit begins with the oldest one that can be read.
    pub(super) async fn begin_behind_sweeps(&mut self) -> Result<Option<Begun>, End> {
        let keys = [head_key(self.ledger), purge_key(self.ledger)];
        let now = self.records(self.book.head(), &keys).await?;
        let head = decoded(&now, &keys[0], Head::decode)?.ok_or(Error::Malformed("head of a ledger"))?;
        self.purged = head.purged;
        let Some(purge) = decoded(&now, &keys[1], Purge::decode)?.filter(|_| head.purged > 0) else {
            return Ok(None);
        };
        let version = purge.swept.max(self.book.pruned).min(self.book.head());
        let then = self.records(version, &keys).await?;
        let head = decoded(&then, &keys[0], Head::decode)?.ok_or(Error::Malformed("head of a ledger"))?;
        let purge = decoded(&then, &keys[1], Purge::decode)?.ok_or(Error::Malformed("purge of a ledger"))?;
        let auditor = std::mem::replace(
            &mut self.auditor,
            coppice_verify::audit::LedgerAuditor::new(
                Default::default(),
                self.ledger,
                self.book.founding.shard_map.clone(),
            ),
        );
        self.auditor = auditor.behind(version, &head);
        self.to = version;
        Ok(Some(Begun { head, purge, version }))
    }

    /// Reads records as a version has them, proven by its header.
    async fn records(&self, version: Version, keys: &[Vec<u8>]) -> Result<Records, End> {
        let mut records = Records::new();
        for keys in keys.chunks(RECORDS_PAGE) {
            records.append(&mut self.records_page(version, keys).await?);
        }
        Ok(records)
    }

    async fn records_page(&self, version: Version, keys: &[Vec<u8>]) -> Result<Records, End> {
        let line = self.book.line(version);
        let at = v1::Stamp { epoch: line.stamp.epoch.0, version: line.stamp.version.0 };
        let request = v1::GetLedgerRecordsRequest {
            ledger: Some(ledger_name(self.ledger)),
            keys: keys.iter().map(|key| Bytes::copy_from_slice(key)).collect(),
            read: Some(v1::ReadOptions { at: Some(at), want_proof: true, ..v1::ReadOptions::default() }),
        };
        let answer = self.client.call_get_ledger_records(request).await?;
        let file = ProofFile::decode(&answer.proof).map_err(|_| Error::Malformed("proof"))?;
        let question = Question::about(Subject::Keys(keys.iter().map(Vec::as_slice).collect()));
        let verified = verify_known(&file, self.keys, None, &question).map_err(Error::from)?;
        let Claim::Query(QueryClaim { header, answer: Answer::Keys(shown) }) = verified.claim else {
            return Err(Error::Untrusted("the proof is of another kind").into());
        };
        if header.hash() != line.hash {
            return Err(Error::Untrusted("the proof is for another version").into());
        }
        let mut records = Records::new();
        for (key, record) in shown {
            let value = match record {
                None => None,
                Some(record) => {
                    let bare = Error::Untrusted("the proof leaves a value out");
                    Some(Bytes::from(record.value.ok_or(bare)?.into_owned()))
                }
            };
            records.insert(key.into_owned(), value);
        }
        Ok(records)
    }

    /// Reads the records that judge an append, and that have not changed since the beginning.
    pub(super) async fn read_lacking(&mut self, append: &AppendEntry, told: &Told) -> Result<(), End> {
        let Some(since) = self.auditor.since() else { return Ok(()) };
        // The leaves of a sweep name the clues whose records it needs.
        loop {
            let lacks = self.auditor.lacks(append, told).map_err(|finding| differs(finding.jsn, &finding.what))?;
            if lacks.is_empty() {
                return Ok(());
            }
            let records = self.records(since, &lacks).await?;
            records.into_iter().for_each(|(key, value)| self.auditor.believe(key, value));
        }
    }

    /// Checks what lies before the beginning: the order of the purge, and the journals that are
    /// there.
    pub(super) async fn check_before(&mut self, begun: &Begun) -> Result<(), End> {
        self.check_order(begun).await?;
        let purged = begun.head.purged;
        for from in (0..purged).step_by(SWEPT_PAGE) {
            let kept = self.kept((from, purged.min(from + SWEPT_PAGE as u64))).await?;
            for run in runs(kept.keys().copied()) {
                self.check_journals(run, &begun.head, &kept).await?;
            }
        }
        self.check_journals(purged..begun.head.edge.size(), &begun.head, &BTreeMap::new()).await
    }

    /// The journals from one number up to below another that a purge has kept, with the hashes of
    /// their leaves. Records at head prove which these are.
    async fn kept(&self, (from, to): (u64, u64)) -> Result<BTreeMap<u64, Digest>, End> {
        let keys: Vec<Vec<u8>> =
            (from..to).flat_map(|jsn| [leaf_key(self.ledger, jsn), retained_key(self.ledger, jsn)]).collect();
        let records = self.records(self.book.head(), &keys).await?;
        let (mut kept, mut orders) = (BTreeMap::new(), BTreeMap::<u64, Option<Given>>::new());
        for (jsn, keys) in (from..to).zip(keys.chunks(2)) {
            let leaf = decoded(&records, &keys[0], Leaf::decode)?;
            let retained = decoded(&records, &keys[1], Retained::decode)?;
            if let Some(what) = fault_of_sweep(jsn, leaf.as_ref().map(|leaf| leaf.kind), retained.is_some()) {
                return Err(differs(Some(jsn), what));
            }
            kept.extend(leaf.map(|leaf| (jsn, leaf.hash())));
            let Some(Retained { order, member }) = retained else { continue };
            let given = match orders.entry(order) {
                btree_map::Entry::Occupied(known) => known.into_mut(),
                btree_map::Entry::Vacant(new) => new.insert(self.order_at(order).await?),
            };
            if !given.as_ref().is_some_and(|given| retains(given.leaf.member, &given.ordered.order.action, jsn, member))
            {
                return Err(differs(Some(jsn), "no order of the member retains it"));
            }
        }
        Ok(kept)
    }

    /// The order in a journal; `None` if the journal has none that its author signed.
    async fn order_at(&self, jsn: u64) -> Result<Option<Given>, End> {
        let (claim, _) = self.proven((jsn, 1), true, None).await?;
        let journal = claim.journals.into_iter().next().ok_or(Error::Malformed("no journal"))?;
        if journal.leaf.kind != ORDER || journal.signed.is_none() {
            return Ok(None);
        }
        let ordered = journal.envelope.and_then(|envelope: Envelope| Ordered::decode(&envelope.payload).ok());
        Ok(ordered.map(|ordered| Given { cluster: claim.header.cluster, leaf: journal.leaf, ordered }))
    }

    /// Checks journals that head has, in pages. The leaves that records show are those of the list.
    async fn check_journals(
        &mut self,
        journals: Range<u64>,
        head: &Head,
        shown: &BTreeMap<u64, Digest>,
    ) -> Result<(), End> {
        let Range { start: mut from, end } = journals;
        let mut limit = JOURNALS_PAGE;
        while from < end {
            let count = u32::try_from(end - from).unwrap_or(u32::MAX).min(limit);
            match self.check_page((from, count), head, shown).await {
                // A sweep since the checkpoint may have taken it.
                Err(End::Failed(error)) if error.reason() == Some(Reason::PurgedJournal) => {
                    return match self.trusting.check_purged(self.ledger, from).await {
                        Err(Error::Untrusted(what)) => Err(differs(Some(from), what)),
                        _ => Err(error.into()),
                    };
                }
                Err(End::Failed(error)) if error.reason() == Some(Reason::LimitExceeded) && limit > 1 => limit /= 2,
                page => from += page?,
            }
        }
        Ok(())
    }

    /// Checks neighbouring journals and, if that is wanted, their payloads. Returns their number.
    async fn check_page(
        &mut self,
        (from, count): (u64, u32),
        head: &Head,
        shown: &BTreeMap<u64, Digest>,
    ) -> Result<u64, End> {
        let (claim, told) = self.proven((from, count), self.values, Some(head)).await?;
        self.check_signers(claim.journals.iter().map(|journal| &journal.leaf)).await?;
        for (journal, told) in claim.journals.iter().zip(&told) {
            let jsn = journal.leaf.jsn;
            if journal.signed.is_none() {
                return Err(differs(Some(jsn), "what its author signed is not shown"));
            }
            if shown.get(&jsn).is_some_and(|leaf| *leaf != journal.leaf.hash()) {
                return Err(differs(Some(jsn), "the record of its leaf is not the leaf in the list"));
            }
            if !self.values {
                continue;
            }
            if journal.envelope.is_some() {
                self.payloads += 1;
                continue;
            }
            let mark = mark_key(self.ledger, jsn);
            let records = self.records(self.book.head(), std::slice::from_ref(&mark)).await?;
            if decoded(&records, &mark, Mark::decode)?.is_none() {
                self.check_occulted_since(&journal.leaf, told.occulted_by).await?;
            }
        }
        Ok(claim.journals.len() as u64)
    }

    /// Checks that the keys in leaves were in force for the members or agents that signed.
    async fn check_signers(&self, leaves: impl Iterator<Item = &Leaf> + Clone) -> Result<(), End> {
        let signer = |leaf: &Leaf| member_key(self.ledger, leaf.agent.unwrap_or(leaf.member));
        let keys: BTreeSet<Vec<u8>> = leaves.clone().map(signer).collect();
        let records = self.records(self.book.head(), &Vec::from_iter(keys)).await?;
        for leaf in leaves {
            let member = decoded(&records, &signer(leaf), Member::decode)?;
            if !member.is_some_and(|member| signs_for(&member, leaf)) {
                return Err(differs(Some(leaf.jsn), "the key that signed it was not that of its member or agent"));
            }
        }
        Ok(())
    }

    /// Reads neighbouring journals with the requests that their authors signed, proven by the log
    /// that is audited. With a head, the list must have grown from it.
    async fn proven(
        &self,
        (from, count): (u64, u32),
        want_payload: bool,
        head: Option<&Head>,
    ) -> Result<(coppice_verify::check::JournalsClaim, Vec<v1::LedgerJournal>), End> {
        let known = head.map(|head| (head.edge.size(), head.edge.root()));
        let request = v1::GetJournalsRequest {
            ledger: Some(ledger_name(self.ledger)),
            from_jsn: from,
            limit: count,
            want_payload,
            want_request: true,
            known_size: known.map_or(0, |(size, _)| size),
            anchor_size: 0,
            read: Some(v1::ReadOptions { want_proof: true, ..v1::ReadOptions::default() }),
        };
        let answer = self.client.get_journals(request).await?;
        let file = ProofFile::decode(&answer.proof).map_err(|_| Error::Malformed("proof"))?;
        let numbers = (from..from + u64::from(count)).collect();
        let question = Question::about(Subject::Journals { ledger: self.ledger, numbers, known });
        let verified = verify_known(&file, self.keys, None, &question).map_err(Error::from)?;
        let Claim::Journals(claim) = verified.claim else {
            return Err(Error::Untrusted("the proof is of another kind").into());
        };
        if answer.journals.len() != claim.journals.len() {
            return Err(Error::Untrusted("the answer and its proof disagree").into());
        }
        Ok((claim, answer.journals))
    }

    /// Checks that all have signed the purge whose journals it took.
    async fn check_order(&self, begun: &Begun) -> Result<(), End> {
        let Begun { purge, version, .. } = begun;
        let wrong = |what: &str| differs(Some(purge.order), what);
        let ordered = self.order_at(purge.order).await?;
        let Given { cluster, leaf, ordered } = ordered.ok_or_else(|| wrong("it should be the order of a purge"))?;
        let Action::Purge(order) = &ordered.order.action else {
            return Err(wrong("it should be the order of a purge"));
        };
        if order.before != purge.before || leaf.stamp != purge.stamp || leaf.jsn > ordered.order.until {
            return Err(wrong("it is the order of another purge than the records say"));
        }
        let signers: Vec<MemberId> =
            [leaf.member].into_iter().chain(ordered.approvals.iter().map(|approval| approval.member)).collect();
        let members: Vec<Vec<u8>> = signers.iter().map(|id| member_key(self.ledger, *id)).collect();
        let numbers = 1..=u64::from(order.authors) + 1;
        let authors: Vec<Vec<u8>> = numbers.map(|number| author_key(self.ledger, number)).collect();
        let records = self.records(*version, &[members.clone(), authors.clone()].concat()).await?;
        let message = ordered.order.message(cluster, self.ledger);
        for (at, key) in members.iter().enumerate() {
            let member = decoded(&records, key, Member::decode)?.ok_or_else(|| wrong("a signer is no member"))?;
            let key = member.key_at(leaf.jsn);
            let signed = match at.checked_sub(1).map(|at| &ordered.approvals[at]) {
                None => key == Some(&leaf.key),
                Some(approval) => key.is_some_and(|key| approval.is_signed(key, &message)),
            };
            if !signed {
                return Err(wrong("a member that it names has not signed it"));
            }
        }
        let absent: BTreeSet<MemberId> = order.absent.iter().map(|absent| absent.member).collect();
        let signed = |id: &MemberId| signers.contains(id) || absent.contains(id);
        for (at, key) in authors.iter().enumerate() {
            let author = decoded(&records, key, AuthorOf::decode)?;
            let is_affected = (at as u64) < u64::from(order.authors);
            let holds = match author {
                Some(author) if is_affected => signed(&author.member),
                Some(author) => author.first_jsn >= order.before,
                None => !is_affected,
            };
            if !holds {
                return Err(wrong("a member whose journals it purged has not signed it"));
            }
        }
        let known: (u64, Digest) = (order.size, order.root);
        let seen = self.grown_from(known, leaf.jsn).await;
        seen.map_err(|error| match error {
            End::Failed(Error::Unproven(_)) => wrong("the ledger never had the root that its signers saw"),
            error => error,
        })
    }

    /// Checks that the list has grown from a size and root.
    async fn grown_from(&self, known: (u64, Digest), jsn: u64) -> Result<(), End> {
        let request = v1::GetJournalsRequest {
            ledger: Some(ledger_name(self.ledger)),
            from_jsn: jsn,
            limit: 1,
            known_size: known.0,
            read: Some(v1::ReadOptions { want_proof: true, ..v1::ReadOptions::default() }),
            ..v1::GetJournalsRequest::default()
        };
        let answer = self.client.get_journals(request).await?;
        let file = ProofFile::decode(&answer.proof).map_err(|_| Error::Malformed("proof"))?;
        let subject = Subject::Journals { ledger: self.ledger, numbers: vec![jsn], known: Some(known) };
        verify_known(&file, self.keys, None, &Question::about(subject)).map_err(Error::from)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use coppice_verify::ledgers::{FOUNDING, MEMBERS};

    use super::*;

    #[test]
    fn neighbours_are_read_together() {
        assert_eq!(runs([0, 1, 4, 6, 7, 8].into_iter()), [0..2, 4..5, 6..9]);
        assert_eq!(runs(std::iter::empty()), []);
    }

    #[test]
    fn a_member_keeps_a_journal_by_its_own_order() {
        let retain = Action::Retain { purge: 9, journals: vec![2, 4] };
        let (member, other) = (MemberId([1; 16]), MemberId([2; 16]));
        assert!(retains(member, &retain, 2, member));
        assert!(!retains(member, &retain, 3, member), "the order does not name it");
        assert!(!retains(other, &retain, 2, member), "it is the order of another");
        assert!(!retains(member, &Action::Recall { purge: 2 }, 2, member), "it is another order");
    }

    #[test]
    fn a_sweep_takes_data_that_nobody_retains_and_nothing_else() {
        assert_eq!(fault_of_sweep(0, Some(FOUNDING), false), None);
        assert!(fault_of_sweep(0, None, false).is_some_and(|what| what.contains("founding")));
        for kind in [MEMBERS, ORDER] {
            assert_eq!(fault_of_sweep(3, Some(kind), false), None, "kind {kind} is kept");
        }
        assert_eq!(fault_of_sweep(3, None, false), None, "data that nobody retains is gone");
        assert!(fault_of_sweep(3, None, true).is_some_and(|what| what.contains("retains it")));
        assert_eq!(fault_of_sweep(3, Some(DATA), true), None);
        assert!(fault_of_sweep(3, Some(DATA), false).is_some_and(|what| what.contains("should")));
    }
}
