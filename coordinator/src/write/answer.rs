//! Deciding a version and answering its clients.
//!
//! The order is a promise: the header is appended, and only when it is in the log, a checkpoint is
//! signed and an answer is sent. A refusal is sent after the version that it was judged on is
//! decided, and after a later ReadIndex has shown that the term is still this leader's (PROTOCOL
//! 4.3).
//!
//! A crash before the append leaves staged versions, which the next adoption drops. A crash after
//! it leaves a committed version; clients find its outcome under their session numbers.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use coppice_env::{
    Laps,
    bug::{Bug, planted},
};
use coppice_proto::{convert, status, v1};
use coppice_types::{Digest, Reason, SessionCommit, SessionId, Term};
use coppice_verify::ledgers::{Appended, Closed};
use opentelemetry::context::FutureExt;
use tokio::{sync::oneshot, time::Instant};
use tonic::Status;

use super::{
    command::{Committed, Entry, not_committed},
    trace::Trace,
};
use crate::{
    groups::{root::Decision, root_log::RootLog, wire},
    metrics::{Metrics, Phase},
    plan::{Commit, Done, LogTail, Overlay, Refusal, Request},
    read::{proofs::Receipts, receipts::JournalReceipts},
};

/// A verdict that must not be sent before the version below it is decided.
#[derive(Debug)]
pub enum Held {
    /// The batch is refused.
    Refused(Entry, Refusal),
    /// The batch was committed before.
    Known(Entry, Done),
}

/// A version whose header is being appended.
#[derive(Debug)]
pub struct InFlight {
    /// The log's end once the header is appended.
    pub tail: LogTail,
    /// The number of batches in the version.
    pub batches: usize,
    /// The writes of the version.
    pub overlay: Overlay,
    /// The session numbers that the version commits.
    pub numbers: BTreeSet<(SessionId, u64)>,
    /// The entries that sessions keep if the version is committed.
    pub commits: Vec<(SessionId, u64, Done)>,
    /// The channel for the version's outcome.
    pub outcome: oneshot::Receiver<Outcome>,
}

/// The outcome of an append. Batches that were not committed are given back.
#[derive(Debug)]
pub enum Outcome {
    /// The header is in the log.
    Committed,
    /// The header is not in the log, and another leader's term began.
    Deposed(Vec<Entry>),
    /// The header is not in the log; the root group gave the reason.
    Refused(Status, Vec<Entry>),
    /// No majority of the root group confirms in time that the header is in the log.
    Unconfirmed(Vec<Entry>),
}

/// A version that is ready to be decided, with all clients that wait for it.
#[derive(Debug)]
pub struct Deciding {
    pub commit: Commit,
    /// The committed batches, in the order of the journal.
    pub batches: Vec<Arc<Request>>,
    /// The entries that wait for the batches, in the same order.
    pub entries: Vec<Entry>,
    /// The results of members' requests among them, in the same order, and the ledgers that they
    /// append to.
    pub ledgers: (Vec<Appended>, Vec<Closed>),
    /// Verdicts that depend on this version.
    pub held: Vec<Held>,
    /// The version's span.
    pub trace: Trace,
}

impl Deciding {
    /// Starts a task that decides the version and sends the answers.
    pub fn start(self, log: Arc<RootLog>, metrics: Arc<Metrics>, term: Term, overlay: Overlay) -> InFlight {
        let (send, outcome) = oneshot::channel();
        let sequence = self.commit.tail.header.sequence;
        let done = |&SessionCommit { session, number, batch_hash, journal_index }: &_| {
            (session, number, Done { batch_hash, sequence, journal_index, rolled_back: false })
        };
        let in_flight = InFlight {
            tail: self.commit.tail.clone(),
            batches: self.batches.len(),
            overlay,
            numbers: self.commit.sessions.iter().map(|commit| (commit.session, commit.number)).collect(),
            commits: self.commit.sessions.iter().map(done).collect(),
            outcome,
        };
        let trace = self.trace.clone();
        tokio::spawn(self.decide(log, metrics, term, send).with_context(trace));
        in_flight
    }

    async fn decide(self, log: Arc<RootLog>, metrics: Arc<Metrics>, term: Term, outcome: oneshot::Sender<Outcome>) {
        let Self { mut commit, batches, entries, ledgers, held, trace: _ } = self;
        let (began, mut laps) = (Instant::now(), Laps::begin(Duration::ZERO));
        let mut outcome = Some(outcome);
        if planted(Bug::FinalizedBeforeAppend) {
            tell(&mut outcome, Outcome::Committed);
        }
        let lists = std::mem::take(&mut commit.lists);
        log.newest_lists.note(commit.tail.header.sequence.0, commit.tail.hash, lists);
        match log.root.append(&commit, term).await {
            Decision::Committed { size, root, path } => {
                let appended = Instant::now();
                laps.lap("append", began.elapsed());
                log.remember_commit(&commit);
                // The log is signed before the next header is sent, so that no size is left out. A
                // version whose log can't be signed is committed nevertheless.
                let signed = log.signed_at(size, root).await;
                laps.lap("sign", began.elapsed());
                // The sequencer is told first, so that it can continue at once.
                tell(&mut outcome, Outcome::Committed);
                metrics.took(Phase::Append, appended - began);
                metrics.committed(batches.iter().map(|batch| &**batch));
                answer_committed(&log, &commit, signed, (size, root, path), (entries, ledgers)).await;
                metrics.took(Phase::Answer, appended.elapsed());
                laps.lap("answer", began.elapsed());
                if let Some(row) = laps.long(began.elapsed()) {
                    tracing::debug!(target: Laps::TARGET, "deciding {row}");
                }
                release(&log, term, held).await;
            }
            Decision::Unconfirmed => {
                tell(&mut outcome, Outcome::Unconfirmed(entries));
                fail(held, &open_outcome());
            }
            Decision::Deposed => {
                tell(&mut outcome, Outcome::Deposed(entries));
                deposed(held);
            }
            Decision::Refused(error) => {
                tell(&mut outcome, Outcome::Refused(error, entries));
                deposed(held);
            }
        }
    }
}

/// Tells the sequencer the outcome, once. The receiver is gone only if the coordinator stops.
fn tell(outcome: &mut Option<oneshot::Sender<Outcome>>, what: Outcome) {
    if let Some(outcome) = outcome.take() {
        let _ = outcome.send(what);
    }
}

/// The answer to a client whose batch or operation may have been committed.
pub fn open_outcome() -> Status {
    let told = "no majority of the root group confirms the header in time, so it is not known whether it is committed: \
                ask again under the same session and number, or read what stands";
    status::refuse(Reason::Unavailable, told)
}

/// Size and root of a log whose newest entry is a header, and the header's inclusion path.
type InLog = (u64, Digest, Vec<Digest>);

async fn answer_committed(
    log: &RootLog,
    commit: &Commit,
    signed: Result<Bytes, Status>,
    (size, root, path): InLog,
    (entries, (appended, closed)): (Vec<Entry>, (Vec<Appended>, Vec<Closed>)),
) {
    let checkpoint = match signed {
        Ok(checkpoint) => checkpoint,
        Err(error) => return entries.into_iter().for_each(|entry| entry.answer(Err(error.clone()))),
    };
    let header = Bytes::copy_from_slice(&commit.header);
    let stamp = commit.tail.header.stamp;
    let (mut with_receipt, mut appended) = (Vec::new(), appended.into_iter());
    for (index, entry) in (0_u32..).zip(entries) {
        let appended = entry.request.append.as_ref().and_then(|_| appended.next());
        let answer = v1::CommitResponse {
            stamp: Some(convert::to_stamp(stamp)),
            header: header.clone(),
            journal_index: index,
            checkpoint: checkpoint.clone(),
            receipt: Bytes::new(),
            replayed: false,
        };
        if entry.want_receipt {
            with_receipt.push((entry, answer, appended));
        } else {
            let first_jsn = appended.map(|appended| appended.first_jsn);
            entry.answer(Ok(Committed { response: answer, first_jsn }));
        }
    }
    if with_receipt.is_empty() {
        return;
    }
    let at_once = Receipts::of_newest(log, &checkpoint, commit, (size, root), &path);
    let made = match at_once {
        Some(receipts) => Ok(receipts),
        None => Receipts::of(log, &header, &commit.journal).await,
    };
    let of_journals = made.as_ref().ok().map(|receipts| JournalReceipts::new(receipts, &closed));
    for (entry, mut answer, appended) in with_receipt {
        if let (Some(appended), Some(request)) = (appended, &entry.request.append) {
            // Without a receipt, the caller reads what it needs.
            let receipt = of_journals.as_ref().and_then(|made| made.receipt(request, &appended));
            answer.receipt = receipt.unwrap_or_default();
            entry.answer(Ok(Committed { response: answer, first_jsn: Some(appended.first_jsn) }));
            continue;
        }
        match made.as_ref().map_err(Clone::clone).and_then(|receipts| receipts.receipt(answer.journal_index)) {
            Ok(receipt) => answer.receipt = receipt,
            Err(error) => {
                tracing::warn!(%error, "a receipt could not be made");
                // The batch is committed. If it has a session number, the client can ask for the
                // receipt again.
                if entry.request.session.is_some() {
                    let told = format!("version {stamp} is committed, its receipt could not be made: ask again");
                    entry.answer(Err(status::refuse(Reason::Unavailable, told)));
                    continue;
                }
            }
        }
        entry.answer(Ok(answer.into()));
    }
}

/// Sends verdicts that depend on a decided version, if this leader's term is still in force.
pub async fn release(log: &RootLog, term: Term, held: Vec<Held>) {
    if held.is_empty() {
        return;
    }
    match log.view().await {
        Ok(view) if view.term == term => {}
        Ok(_) => return deposed(held),
        Err(error) => return fail(held, &error),
    }
    for verdict in held {
        match verdict {
            Held::Refused(entry, refusal) => entry.answer(Err(refusal.into())),
            Held::Known(entry, done) => {
                let answer = replay(log, done, entry.want_receipt).await;
                entry.answer(answer.map(Committed::from));
            }
        }
    }
}

/// Repeats the answer to a committed batch: the same header and place, with a newer checkpoint.
pub async fn replay(log: &RootLog, done: Done, want_receipt: bool) -> Result<v1::CommitResponse, Status> {
    let sequence = done.sequence.0;
    let read = v1::read_root_request::Read::Headers(v1::HeadersRead { from_sequence: sequence, limit: 1 });
    let answer = log.root.read(read).await?;
    let header = answer.headers.first().cloned().ok_or_else(|| wire::broken("header"))?;
    let parsed = wire::header_in(&header)?;
    let view = Arc::new(wire::view_in(answer.view)?);
    let receipt = if want_receipt {
        let journal = log.root.read(v1::read_root_request::Read::Journal(v1::JournalRead { sequence })).await?;
        let journal: Vec<Vec<u8>> = journal.journal.iter().map(|entry| entry.to_vec()).collect();
        Receipts::of(log, &header, &journal).await?.receipt(done.journal_index)?
    } else {
        Bytes::new()
    };
    Ok(v1::CommitResponse {
        stamp: Some(convert::to_stamp(parsed.stamp)),
        header,
        journal_index: done.journal_index,
        checkpoint: log.signed(view).await?.1,
        receipt,
        replayed: true,
    })
}

fn deposed(held: Vec<Held>) {
    fail(held, &not_committed());
}

pub fn fail(held: Vec<Held>, error: &Status) {
    for verdict in held {
        let (Held::Refused(entry, _) | Held::Known(entry, _)) = verdict;
        entry.answer(Err(error.clone()));
    }
}
