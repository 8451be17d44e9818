//! The audit of one ledger of members: each request is judged again as its author signed it.
//!
//! It reads all headers, the journals of the versions from the ledger's founding on, and the
//! ledger's leaves. The server's leaves count only as far as the headers commit to them. Whether
//! state roots follow from the versions' operations is left to [`Client::audit`].
//!
//! What a purge has swept can't be judged again. Then the audit begins behind the newest sweep, and
//! [`kept`] checks by proofs what lies before.

mod kept;

use std::collections::VecDeque;

use bytes::Bytes;
use coppice_proto::v1;
use coppice_types::{ClusterId, Digest, LedgerId, Stamp, Version};
use coppice_verify::{
    audit::{Finding, LedgerAuditor, LogSeen, Told},
    check::{self, Verified},
    checkpoint::Checkpoint,
    hash::sha256,
    header::Header,
    journal::{AppendEntry, Entry},
    keys::Keys,
    ledgers::{DATA, Envelope, Leaf, ORDER, Ordered},
    note::VerifierKey,
};

use super::{
    Difference, Progress,
    book::Book,
    finding::{RESUMES_MAX, Stop, may_resume},
};
use crate::{
    Client, Error,
    ledgers::{Wanted, ledger_name},
};

/// Leaves that are read at a time.
const LEAVES_PAGE: u32 = 1024;
/// Journals whose payloads are read at a time; fewer where they are large.
const PAYLOADS_PAGE: u32 = 64;

/// The ledger to audit, and the key to trust.
#[derive(Clone, Debug)]
pub struct LedgerAudit {
    /// The public key of the cluster's log.
    pub key: VerifierKey,
    /// The ledger.
    pub ledger: LedgerId,
    /// Whether each payload is read, and compared with what its author signed.
    pub values: bool,
}

/// The outcome of the audit of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerReport {
    /// The signed checkpoint whose log was audited.
    pub checkpoint: Checkpoint,
    /// The last version that was taken.
    pub to: Version,
    /// The version behind which requests were judged again; `None` if it was before the founding.
    /// Journals before it were checked by proofs.
    pub since: Option<Version>,
    /// Journals below this number were purged, but for those that are kept.
    pub purged: u64,
    /// Number of journals that are right, or were purged.
    pub journals: u64,
    /// Root of the list of these journals.
    pub root: Digest,
    /// Number of journals that orders have occulted.
    pub occulted: u64,
    /// Number of payloads that were read and are right.
    pub payloads: u64,
    /// The first thing that is wrong; `None` if all is right.
    pub difference: Option<LedgerDifference>,
}

/// A fault in a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerDifference {
    /// The version.
    pub stamp: Stamp,
    /// The journal at fault; `None` if no single one is.
    pub jsn: Option<u64>,
    /// A description of the difference.
    pub what: String,
}

impl Client {
    /// Audits a ledger of members up to the newest checkpoint. Calls `progress` after each version.
    ///
    /// # Errors
    /// If there is no such ledger, if the headers are not those of a signed checkpoint, or if the
    /// cluster does not answer. A ledger that differs is not an error: the report has it.
    pub async fn audit_ledger(
        &self,
        audit: &LedgerAudit,
        progress: impl FnMut(Progress),
    ) -> Result<LedgerReport, Error> {
        let answer = self.checkpoint(1).await?;
        let Verified { checkpoint, keys, newest, .. } = check::verify(&answer.standing, &audit.key, None)?;
        let cluster = newest.cluster;
        let report = LedgerReport {
            checkpoint,
            to: Version(0),
            since: None,
            purged: 0,
            journals: 0,
            root: Digest::default(),
            occulted: 0,
            payloads: 0,
            difference: None,
        };
        let book = match Book::read(self, &report.checkpoint, &keys).await {
            Ok(book) => book,
            Err(stop) => return ended(stop.into(), report),
        };
        let mut replay = Replay::new(self, (&book, &keys), (cluster, audit), progress);
        let done = replay.audit().await;
        let Replay { auditor, to, payloads, purged, .. } = replay;
        let (journals, root, since) = (auditor.size(), auditor.root(), auditor.since());
        let occulted = auditor.occulted().len() as u64;
        let report = LedgerReport { to, since, purged, journals, root, occulted, payloads, ..report };
        match done {
            Ok(()) => Ok(report),
            Err(end) => ended(end, report),
        }
    }
}

/// The reason why a replay ends.
enum End {
    Failed(Error),
    Differs(LedgerDifference),
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Stop> for End {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Failed(error) => Self::Failed(error),
            Stop::Differs(Difference { stamp, what, .. }) => Self::Differs(LedgerDifference { stamp, jsn: None, what }),
        }
    }
}

fn ended(end: End, report: LedgerReport) -> Result<LedgerReport, Error> {
    match end {
        End::Failed(error) => Err(error),
        End::Differs(difference) => Ok(LedgerReport { difference: Some(difference), ..report }),
    }
}

struct Replay<'a, P> {
    client: &'a Client,
    /// The client with the key of the audit, for what is newer than the audited checkpoint.
    trusting: Client,
    book: &'a Book,
    keys: &'a Keys,
    ledger: LedgerId,
    /// Whether payloads are read, too.
    values: bool,
    auditor: LedgerAuditor,
    /// Journals below this number are purged in the last version.
    purged: u64,
    /// Leaves that were read ahead, from the next journal on.
    ahead: VecDeque<Leaf>,
    /// The last version that was taken.
    to: Version,
    payloads: u64,
    progress: P,
}

impl<'a, P: FnMut(Progress)> Replay<'a, P> {
    fn new(
        client: &'a Client,
        (book, keys): (&'a Book, &'a Keys),
        (cluster, audit): (ClusterId, &LedgerAudit),
        progress: P,
    ) -> Self {
        let LedgerAudit { ledger, values, .. } = *audit;
        let auditor = LedgerAuditor::new(cluster, ledger, book.founding.shard_map.clone());
        let (ahead, to) = (VecDeque::new(), Version(0));
        let trusting = client.trusting(audit.key.clone());
        Self { client, trusting, book, keys, ledger, values, auditor, purged: 0, ahead, to, payloads: 0, progress }
    }

    async fn audit(&mut self) -> Result<(), End> {
        match self.begin_behind_sweeps().await? {
            Some(begun) => {
                self.run().await?;
                self.check_before(&begun).await
            }
            None => {
                // A wrong answer here is found out: the first append that is taken must found the
                // ledger.
                let founding = self.leaves(0, 1).await?.pop().ok_or(Error::Malformed("no journal"))?;
                self.to = Version(founding.stamp.version.0.saturating_sub(1).min(self.book.head().0));
                self.run().await
            }
        }?;
        if self.values { self.read_payloads().await } else { Ok(()) }
    }

    async fn run(&mut self) -> Result<(), End> {
        let mut resumes = 0;
        while self.to < self.book.head() {
            let before = self.to;
            let ended = self.take_stream().await;
            resumes = if self.to > before { 0 } else { resumes + 1 };
            match ended {
                Err(End::Failed(error)) if resumes < RESUMES_MAX && may_resume(&error) => {}
                Ok(()) if self.to < self.book.head() => {
                    return Err(Error::Malformed("the stream of journals ended early").into());
                }
                ended => ended?,
            }
        }
        Ok(())
    }

    async fn take_stream(&mut self) -> Result<(), End> {
        let request = v1::JournalRequest { from_version: self.to.next().0, to_version: self.book.head().0 };
        let mut stream = self.client.journal(request).await?;
        while let Some(message) = stream.next().await? {
            // Operation lists follow. Their hashes are in the entries.
            if message.header.is_empty() {
                continue;
            }
            let (header, entries) = self.book.entries(self.to.next(), &message)?;
            self.take(&header, &entries).await?;
            self.to = header.stamp.version;
            (self.progress)(Progress { version: self.to, to: self.book.head() });
        }
        Ok(())
    }

    async fn take(&mut self, header: &Header, entries: &[Entry]) -> Result<(), End> {
        let appends: Vec<&AppendEntry> = self.auditor.appends(entries).collect();
        let mut told = Vec::new();
        for append in appends {
            let of = self.told(append).await?;
            self.read_lacking(append, &of).await?;
            told.push(of);
        }
        let book = self.book;
        let root = |size: u64| if size <= header.sequence.0 { book.log_root(size) } else { None };
        let time = |version| book.time_ms(version);
        let taken = self.auditor.take(header.stamp, entries, &told, LogSeen { root: &root, time: &time });
        taken.map_err(|Finding { jsn, what }| End::Differs(LedgerDifference { stamp: header.stamp, jsn, what }))
    }

    /// The server's data about an append.
    async fn told(&mut self, append: &AppendEntry) -> Result<Told, End> {
        let count = append.count as usize;
        let next = |leaf: Option<&Leaf>| leaf.is_some_and(|leaf| leaf.jsn == append.first_jsn);
        if !next(self.ahead.front()) {
            self.ahead.clear();
        }
        while self.ahead.len() < count {
            let from = append.first_jsn.saturating_add(self.ahead.len() as u64);
            let page = self.leaves(from, LEAVES_PAGE).await?;
            if page.is_empty() {
                return Err(Error::Malformed("fewer journals than the ledger has").into());
            }
            self.ahead.extend(page);
        }
        let leaves: Vec<Leaf> = self.ahead.drain(..count).collect();
        let mut told = Told { leaves, ..Told::default() };
        if let [leaf] = &told.leaves[..]
            && leaf.kind != DATA
        {
            let envelope = self.envelope(leaf.jsn).await?;
            if leaf.kind == ORDER {
                let payload = Envelope::decode(&envelope).map(|envelope| envelope.payload);
                if let Ok(Ok(ordered)) = payload.map(|payload| Ordered::decode(&payload)) {
                    // A journal before the beginning is read as the state had it there.
                    let first = self.auditor.first();
                    let judged_by = ordered.order.action.judged_by().into_iter();
                    for jsn in judged_by.filter(|jsn| (first..leaf.jsn).contains(jsn)) {
                        told.targets.append(&mut self.leaves(jsn, 1).await?);
                    }
                }
            }
            told.envelope = Some(envelope.to_vec());
        }
        Ok(told)
    }

    async fn read(&self, from_jsn: u64, limit: u32, want_payload: bool) -> Result<Vec<v1::LedgerJournal>, Error> {
        let request = v1::GetJournalsRequest {
            ledger: Some(ledger_name(self.ledger)),
            from_jsn,
            limit,
            want_payload,
            ..v1::GetJournalsRequest::default()
        };
        let answer = self.client.get_journals(request).await?;
        if answer.journals.len() > limit as usize {
            return Err(Error::Malformed("more journals than were asked for"));
        }
        Ok(answer.journals)
    }

    async fn leaves(&self, from: u64, limit: u32) -> Result<Vec<Leaf>, Error> {
        let journals = self.read(from, limit, false).await?;
        let leaf = |journal: &v1::LedgerJournal| Leaf::decode(&journal.leaf);
        let leaves = journals.iter().map(leaf).collect::<Result<Vec<_>, _>>();
        leaves.map_err(|_| Error::Malformed("leaf of a journal"))
    }

    /// The envelope of a journal that holds no data.
    async fn envelope(&self, jsn: u64) -> Result<Bytes, Error> {
        let journal = self.read(jsn, 1, true).await?.pop();
        Ok(journal.ok_or(Error::Malformed("no journal"))?.envelope)
    }

    /// Reads each payload, and compares it with what its author signed.
    async fn read_payloads(&mut self) -> Result<(), End> {
        let (mut from, mut limit) = (self.auditor.first(), PAYLOADS_PAGE);
        while from < self.auditor.size() {
            let page = match self.read(from, limit, true).await {
                Err(error) if error.reason() == Some(coppice_types::Reason::LimitExceeded) && limit > 1 => {
                    limit /= 2;
                    continue;
                }
                page => page?,
            };
            if page.is_empty() {
                return Err(Error::Malformed("fewer journals than the ledger has").into());
            }
            for journal in page {
                if from < self.auditor.size() {
                    self.check_payload(from, &journal).await?;
                    from += 1;
                }
            }
        }
        Ok(())
    }

    /// Checks that content which the audited state does not miss is missing because of a newer
    /// order, which proofs of the newest state show.
    async fn check_occulted_since(&self, leaf: &Leaf, occulted_by: Option<u64>) -> Result<(), End> {
        let withheld = |what: &str| {
            Err(End::Differs(LedgerDifference { stamp: leaf.stamp, jsn: Some(leaf.jsn), what: what.to_owned() }))
        };
        if occulted_by.is_none_or(|order| order < self.auditor.size()) {
            return withheld("its content is withheld: no order up to this checkpoint has occulted it");
        }
        let wanted = Wanted { payload: true, request: false, proof: true };
        let read = match self.trusting.journals(self.ledger, (leaf.jsn, 1), wanted, None).await {
            Err(Error::Untrusted(what)) => return withheld(what),
            read => read?,
        };
        match read.journals.first() {
            Some(journal) if journal.leaf == *leaf && journal.occulted_by.is_some() => Ok(()),
            _ => withheld("its content is withheld, and given to others"),
        }
    }

    async fn check_payload(&mut self, jsn: u64, journal: &v1::LedgerJournal) -> Result<(), End> {
        let leaf = Leaf::decode(&journal.leaf).map_err(|_| Error::Malformed("leaf of a journal"))?;
        let wrong = |what: &str| {
            Err(End::Differs(LedgerDifference { stamp: leaf.stamp, jsn: Some(jsn), what: what.to_owned() }))
        };
        if self.auditor.leaf(jsn) != Some(&leaf.hash()) {
            return wrong("the leaf that is given is not the one that was appended");
        }
        match (self.auditor.occulted().contains(&jsn), journal.envelope.is_empty()) {
            (true, true) => Ok(()),
            (true, false) => wrong("an order has occulted it, and its content is given"),
            (false, true) => self.check_occulted_since(&leaf, journal.occulted_by).await,
            (false, false) if sha256(&journal.envelope) == leaf.commitment => {
                self.payloads += 1;
                Ok(())
            }
            (false, false) => wrong("its content is not what its author signed"),
        }
    }
}
