//! Deciding a version and answering its clients.
//!
//! The order is the promise: the header is appended; only when it is in the log is a checkpoint signed and an answer sent.
//! A refusal leaves after the version that it was judged against is decided, and after a ReadIndex begun later has shown
//! that the term is still this leader's (PROTOCOL 4.3).

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use coppice_env::bug::{Bug, planted};
use coppice_proto::{status, v1};
use coppice_types::{Digest, Reason, SessionId, Stamp};
use opentelemetry::context::FutureExt;
use tokio::{sync::oneshot, time::Instant};
use tonic::Status;

use super::{
    context::Context,
    root::Decision,
    sequencer::{Entry, not_committed},
    trace::Trace,
    wire,
};
use crate::{
    metrics::Stage,
    plan::{Commit, Done, LogTail, Overlay, Refusal, Request},
    proofs,
};

/// A verdict that must not leave before the version below it is decided.
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
    /// The log's end once it is in.
    pub tail: LogTail,
    /// What it writes.
    pub overlay: Overlay,
    /// The session numbers that it commits.
    pub numbers: BTreeSet<(SessionId, u64)>,
    /// What sessions remember of it.
    pub commits: Vec<(SessionId, u64, Done)>,
    /// What became of it.
    pub outcome: oneshot::Receiver<Outcome>,
}

/// What became of an append; batches that were not committed come back.
#[derive(Debug)]
pub enum Outcome {
    /// The header is in the log.
    Committed,
    /// It is not, and another leader's term began.
    Deposed(Vec<Entry>),
    /// It is not; the root group said why.
    Refused(Status, Vec<Entry>),
    /// No majority of the root group confirms in time that it is.
    Unconfirmed(Vec<Entry>),
}

/// A version that is to be decided, with everyone who waits for it.
#[derive(Debug)]
pub struct Deciding {
    pub commit: Commit,
    /// What it commits, in the order of the journal.
    pub batches: Vec<Arc<Request>>,
    /// Who waits for that, in the same order.
    pub entries: Vec<Entry>,
    /// Verdicts that were judged against it.
    pub held: Vec<Held>,
    /// Its span.
    pub trace: Trace,
}

impl Deciding {
    /// Starts to decide; the answers are sent by the task.
    pub fn start(self, context: Arc<Context>, term: u64, overlay: Overlay) -> InFlight {
        let (send, outcome) = oneshot::channel();
        let sequence = self.commit.tail.header.sequence;
        let done = |&(id, number, batch_hash, journal_index): &(SessionId, u64, Digest, u32)| {
            (id, number, Done { batch_hash, sequence, journal_index, rolled_back: false })
        };
        let in_flight = InFlight {
            tail: self.commit.tail.clone(),
            overlay,
            numbers: self.commit.sessions.iter().map(|(id, number, ..)| (*id, *number)).collect(),
            commits: self.commit.sessions.iter().map(done).collect(),
            outcome,
        };
        let trace = self.trace.clone();
        tokio::spawn(self.decide(context, term, send).with_context(trace));
        in_flight
    }

    async fn decide(self, context: Arc<Context>, term: u64, outcome: oneshot::Sender<Outcome>) {
        let Self { commit, batches, entries, held, trace: _ } = self;
        let began = Instant::now();
        let mut outcome = Some(outcome);
        if planted(Bug::FinalizedBeforeAppend) {
            tell(&mut outcome, Outcome::Committed);
        }
        match context.root.append(&commit, term).await {
            Decision::Committed { size, root, path } => {
                let appended = Instant::now();
                // Signed before the next header is sent, so that no size is left out. What is not
                // signed is committed all the same.
                let signed = context.signed_at(size, root).await;
                // The sequencer goes on at once; it has ended only if the coordinator stops.
                tell(&mut outcome, Outcome::Committed);
                context.metrics.took(Stage::Append, appended - began);
                context.metrics.committed(batches.iter().map(|batch| &**batch));
                answer_committed(&context, &commit, signed, (size, root, path), entries).await;
                context.metrics.took(Stage::Answer, appended.elapsed());
                release(&context, term, held).await;
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

/// Tells the sequencer, once. It has ended only if the coordinator stops.
fn tell(outcome: &mut Option<oneshot::Sender<Outcome>>, what: Outcome) {
    if let Some(outcome) = outcome.take() {
        let _ = outcome.send(what);
    }
}

/// What a client hears whose batch, or operation, may be committed.
pub fn open_outcome() -> Status {
    let told = "no majority of the root group confirms the header in time, so it is not known whether it is committed: \
                ask again under the same session and number, or read what stands";
    status::refuse(Reason::Unavailable, told)
}

/// Size and root of a log whose newest entry a header is, and the header's path in it.
type Committed = (u64, Digest, Vec<Digest>);

async fn answer_committed(
    context: &Arc<Context>,
    commit: &Commit,
    signed: Result<Bytes, Status>,
    (size, root, path): Committed,
    entries: Vec<Entry>,
) {
    let checkpoint = match signed {
        Ok(checkpoint) => checkpoint,
        Err(error) => return entries.into_iter().for_each(|entry| entry.answer(Err(error.clone()))),
    };
    let header = Bytes::copy_from_slice(&commit.header);
    let stamp = commit.tail.header.stamp;
    let mut with_receipt = Vec::new();
    for (index, entry) in (0_u32..).zip(entries) {
        let answer = v1::CommitResponse {
            stamp: Some(wire::stamp_out(stamp)),
            header: header.clone(),
            journal_index: index,
            checkpoint: checkpoint.clone(),
            receipt: Bytes::new(),
            replayed: false,
        };
        if entry.want_receipt {
            with_receipt.push((entry, answer));
        } else {
            entry.answer(Ok(answer));
        }
    }
    if with_receipt.is_empty() {
        return;
    }
    let at_once = proofs::Receipts::of_newest(context, &checkpoint, commit, (size, root), &path);
    let made = match at_once {
        Some(receipts) => Ok(receipts),
        None => proofs::Receipts::of(context, &header, &commit.journal).await,
    };
    for (entry, mut answer) in with_receipt {
        match made.as_ref().map_err(Clone::clone).and_then(|receipts| receipts.receipt(answer.journal_index)) {
            Ok(receipt) => answer.receipt = receipt,
            Err(error) => {
                tracing::warn!(%error, "a receipt could not be made");
                // The batch is committed. A receipt can be asked for again under its session number, if it has one.
                if entry.request.session.is_some() {
                    let told = format!("version {stamp} is committed, its receipt could not be made: ask again");
                    entry.answer(Err(status::refuse(Reason::Unavailable, told)));
                    continue;
                }
            }
        }
        entry.answer(Ok(answer));
    }
}

/// Sends verdicts whose ground is decided, if this leader's term is still in force.
pub async fn release(context: &Arc<Context>, term: u64, held: Vec<Held>) {
    if held.is_empty() {
        return;
    }
    match context.view().await {
        Ok(view) if view.term == term => {}
        Ok(_) => return deposed(held),
        Err(error) => return fail(held, &error),
    }
    for verdict in held {
        match verdict {
            Held::Refused(entry, refusal) => entry.answer(Err(refusal.into())),
            Held::Known(entry, done) => {
                let answer = replay(context, done, entry.want_receipt).await;
                entry.answer(answer);
            }
        }
    }
}

/// The answer that was, or should have been, given before: the same header and place, a newer checkpoint.
pub async fn replay(context: &Arc<Context>, done: Done, want_receipt: bool) -> Result<v1::CommitResponse, Status> {
    let sequence = done.sequence.0;
    let read = v1::read_root_request::Read::Headers(v1::HeadersRead { from_sequence: sequence, limit: 1 });
    let answer = context.root.read(read).await?;
    let header = answer.headers.first().cloned().ok_or_else(|| wire::broken("header"))?;
    let parsed = wire::header_in(&header)?;
    let view = Arc::new(wire::view_in(answer.view)?);
    let receipt = if want_receipt {
        let journal = context.root.read(v1::read_root_request::Read::Journal(v1::JournalRead { sequence })).await?;
        let journal: Vec<Vec<u8>> = journal.journal.iter().map(|entry| entry.to_vec()).collect();
        proofs::Receipts::of(context, &header, &journal).await?.receipt(done.journal_index)?
    } else {
        Bytes::new()
    };
    Ok(v1::CommitResponse {
        stamp: Some(wire::stamp_out(parsed.stamp)),
        header,
        journal_index: done.journal_index,
        checkpoint: context.signed(view).await?.1,
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

/// What `expected_head` of an admin request demands.
pub fn check_expected_head(expected: Option<v1::Stamp>, head: Stamp) -> Result<(), Refusal> {
    match expected.map(wire::stamp_in) {
        Some(expected) if expected != head => {
            Err(Refusal::new(Reason::PreconditionFailed, format!("expected head {expected}, it is {head}")))
        }
        _ => Ok(()),
    }
}
