//! Commits, sessions, stages, prunes, rollbacks and key changes of a simulated client.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use coppice_env::Rng;
use coppice_proto::{
    convert, status,
    v1::{self, operation::Change, precondition::Condition},
};
use coppice_types::{Digest, Reason};
use coppice_verify::{check::Claim, hash};
use tokio::time::Instant;

use super::{Client, Heard, stamp};
use crate::{
    history::{Batch, BatchId, Committed, Look, Outcome, Seen, Staged},
    shape,
};

/// Attempts at a batch of a session before its client does something else. It comes back to the
/// batch later.
const ATTEMPTS_MAX: u32 = 6;
/// Number of settled batches of a session that are remembered. It is larger than the session's
/// window, so that some are too old.
const SETTLED_MAX: usize = 20;

/// A session and its batches under way.
#[derive(Clone, Debug)]
pub struct Session {
    id: Bytes,
    /// The last settled number.
    number: u64,
    /// The batches after it, whose outcomes are unknown.
    open: VecDeque<BatchId>,
    /// Settled batches, newest last. Each may be sent again.
    settled: VecDeque<BatchId>,
}

impl Session {
    /// The last settled number.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Drops an open batch. Its number goes to the next one.
    fn give_up(&mut self, id: BatchId) {
        self.open.retain(|open| *open != id);
    }

    /// Marks the oldest open batch as settled.
    pub(super) fn settle(&mut self, id: BatchId) {
        assert_eq!(self.open.pop_front(), Some(id), "batches are settled in order");
        self.number += 1;
        self.settled.push_back(id);
        if self.settled.len() > SETTLED_MAX {
            self.settled.pop_front();
        }
    }
}

fn reason_of(error: &tonic::Status) -> Option<Reason> {
    status::reason(error)
}

/// The outcome of a refused attempt.
fn outcome_of(error: &tonic::Status) -> Outcome {
    match reason_of(error) {
        Some(
            reason @ (Reason::PreconditionFailed
            | Reason::InvalidArgument
            | Reason::LimitExceeded
            | Reason::SessionMismatch
            | Reason::UnknownSession
            | Reason::StageLost),
        ) => Outcome::Refused(reason),
        Some(reason @ Reason::NotLeader) => Outcome::Refused(reason),
        Some(Reason::RolledBack) => Outcome::RolledBack,
        _ => Outcome::Unknown,
    }
}

impl Client {
    fn operation(&mut self, id: BatchId) -> v1::Operation {
        let key = self.shape.key(&mut self.rng);
        let change = if self.rng.chance(200) {
            Change::Delete(true)
        } else {
            let length = if self.rng.chance(60) { 2000 } else { self.rng.below(90) };
            let mut value = format!("{id}-{}", self.rng.below(1000)).into_bytes();
            value.resize(value.len() + usize::try_from(length).expect("it is small"), b'.');
            Change::Put(value.into())
        };
        v1::Operation { key: key.into(), change: Some(change) }
    }

    fn precondition(&mut self) -> Option<v1::Precondition> {
        let keys: Vec<String> = self.seen.keys().cloned().collect();
        let key = self.pick(&keys)?;
        let condition = match &self.seen[&key] {
            None => Condition::Absent(true),
            Some((value, stamp)) => {
                if value.len().is_multiple_of(2) {
                    Condition::LastChanged(convert::to_stamp(*stamp))
                } else {
                    Condition::ValueSha256(Bytes::copy_from_slice(&hash::sha256(value).0))
                }
            }
        };
        Some(v1::Precondition { key: key.into(), condition: Some(condition) })
    }

    /// A new batch, recorded but not sent yet.
    fn batch(&mut self, session: Option<(Bytes, u64)>, plain: bool) -> BatchId {
        self.batches += 1;
        let id = (self.id << 32) | self.batches;
        let count = 1 + self.rng.below(4);
        let operations = (0..count).map(|_| self.operation(id)).collect();
        let mut batch = v1::Batch { operations, metadata: id.to_le_bytes().to_vec().into(), ..v1::Batch::default() };
        if self.rng.chance(300) {
            batch.preconditions.extend(self.precondition());
        }
        if !plain && self.rng.chance(60) {
            batch.expected_head = Some(convert::to_stamp(self.head));
        }
        batch.exclusive = !plain && self.rng.chance(60);
        self.note(id, batch, session);
        id
    }

    fn note(&mut self, id: BatchId, batch: v1::Batch, session: Option<(Bytes, u64)>) {
        let mut history = self.scribe.lock();
        let begin = history.tick();
        history.batches.insert(id, Batch { batch, session, begin, attempts: Vec::new() });
    }

    /// Sends a batch once.
    async fn send(&mut self, id: BatchId) -> Outcome {
        let (request, attempt) = {
            let mut history = self.scribe.lock();
            let batch = history.batches.get_mut(&id).expect("the batch was noted");
            batch.attempts.push(None);
            let (session_id, number) = batch.session.clone().unwrap_or_default();
            let want_receipt = id.is_multiple_of(3);
            let request = v1::CommitRequest { batch: Some(batch.batch.clone()), session_id, number, want_receipt };
            (request, batch.attempts.len() - 1)
        };
        let answer = if self.library.is_some() {
            self.commit_by_library(request).await
        } else {
            let mut ledger = self.ledger();
            self.hear(async move { ledger.commit(request).await.map(tonic::Response::into_inner) }).await
        };
        self.conclude(id, attempt, answer)
    }

    /// Records the outcome of an attempt.
    pub(super) fn conclude(&mut self, id: BatchId, attempt: usize, answer: Heard<v1::CommitResponse>) -> Outcome {
        let outcome = match answer {
            Ok(answer) => {
                self.check_receipt(id, &answer);
                self.note_checkpoint(&answer.checkpoint, "a commit's checkpoint");
                let v1::CommitResponse { header, journal_index: index, replayed, .. } = answer;
                let stamp = stamp(answer.stamp);
                self.learn(stamp);
                self.head = stamp;
                Outcome::Committed(Committed { stamp, header, index, end: self.scribe.now(), replayed })
            }
            Err(error) => outcome_of(&error),
        };
        let mut history = self.scribe.lock();
        let end = history.tick();
        let batch = history.batches.get_mut(&id).expect("the batch was noted");
        batch.attempts[attempt] = Some(outcome.clone());
        let begin = batch.begin;
        match &outcome {
            Outcome::Committed(_) => history.done.0 += 1,
            Outcome::Refused(Reason::PreconditionFailed) => {
                let seen = Seen::Failed(id);
                history.looks.push(Look { client: self.id, begin, end, stale_ok: false, seen });
            }
            _ => {}
        }
        outcome
    }

    fn check_receipt(&self, id: BatchId, answer: &v1::CommitResponse) {
        if answer.receipt.is_empty() {
            return;
        }
        let Some(verified) = self.verify(&answer.receipt, "a receipt") else { return };
        let Claim::Receipt(claim) = verified.claim else {
            return self.scribe.wrong("proofs: a receipt proves something else".to_owned());
        };
        let metadata = hash::metadata_hash(&id.to_le_bytes());
        if claim.batch.metadata != metadata || claim.header.stamp != stamp(answer.stamp) {
            self.scribe.wrong(format!("proofs: a receipt of batch {id:x} proves another commit"));
        }
    }

    pub(super) async fn write(&mut self) {
        if self.session.is_none() && self.rng.chance(100) {
            return self.open_session().await;
        }
        if self.session.is_none() || self.rng.chance(300) {
            let id = self.batch(None, false);
            self.send(id).await;
            return;
        }
        self.write_in_session().await;
    }

    async fn open_session(&mut self) {
        let mut id = [0; 16];
        self.rng.fill(&mut id);
        let id = Bytes::copy_from_slice(&id);
        let opened = if self.library.is_some() {
            self.open_by_library(&id).await
        } else {
            let (mut ledger, request) = (self.ledger(), v1::OpenSessionRequest { session_id: id.clone() });
            self.hear(async move { ledger.open_session(request).await }).await.is_ok()
        };
        if opened {
            self.session = Some(Session { id, number: 0, open: VecDeque::new(), settled: VecDeque::new() });
        }
    }

    /// Sends the next batch of the session, or the open one again, until its outcome is known.
    async fn write_in_session(&mut self) {
        let session = self.session.clone().expect("the caller looked");
        if self.rng.chance(150)
            && let Some(id) = self.pick(&Vec::from(session.settled.clone()))
        {
            return self.ask_again(id).await;
        }
        if session.open.is_empty() && self.rng.chance(150) {
            return self.stream(&session).await;
        }
        let id = match session.open.front() {
            Some(id) => *id,
            None => {
                let id = self.batch(Some((session.id.clone(), session.number + 1)), false);
                self.session.as_mut().expect("it is still there").open.push_back(id);
                id
            }
        };
        for _ in 0..ATTEMPTS_MAX {
            let outcome = self.send(id).await;
            let number_is_free = self.library.is_some() && self.was_only_refused(id);
            let session = self.session.as_mut().expect("it is still there");
            match outcome {
                Outcome::Committed(_) | Outcome::RolledBack | Outcome::Refused(Reason::SessionMismatch) => {
                    session.settle(id);
                    return;
                }
                Outcome::Refused(Reason::UnknownSession) => return self.session = None,
                Outcome::Refused(Reason::NotLeader) | Outcome::Unknown => {}
                // The library says that the number is free. The next batch gets it, unless later
                // batches have numbers already.
                Outcome::Refused(_) if number_is_free && session.open.len() == 1 => return session.give_up(id),
                // The number was not used. An earlier attempt may still be under way, so no other
                // batch gets it.
                Outcome::Refused(_) => return session.settle(id),
            }
            tokio::time::sleep(Duration::from_millis(self.rng.below(30))).await;
        }
    }

    /// Whether no attempt can still be under way.
    fn was_only_refused(&self, id: BatchId) -> bool {
        let history = self.scribe.lock();
        history.batches[&id].attempts.iter().all(|attempt| matches!(attempt, Some(Outcome::Refused(_))))
    }

    /// Sends a settled batch again, maybe to another leader. The answer must equal the first one,
    /// or say that the batch is too old.
    async fn ask_again(&mut self, id: BatchId) {
        if self.send(id).await == Outcome::Refused(Reason::UnknownSession) {
            self.session = None;
        }
    }

    /// Sends some batches without waiting for the answers in between. Those without an answer are
    /// sent again later, one by one.
    async fn stream(&mut self, session: &Session) {
        let count = 2 + self.rng.below(6);
        let ids: Vec<BatchId> =
            (1..=count).map(|next| self.batch(Some((session.id.clone(), session.number + next)), true)).collect();
        let requests: Vec<v1::CommitStreamRequest> = ids
            .iter()
            .map(|id| {
                let mut history = self.scribe.lock();
                let batch = history.batches.get_mut(id).expect("the batch was noted");
                batch.attempts.push(None);
                let (session_id, number) = batch.session.clone().expect("it is of the session");
                let want_receipt = id.is_multiple_of(3);
                v1::CommitStreamRequest { session_id, number, batch: Some(batch.batch.clone()), want_receipt }
            })
            .collect();
        self.session.as_mut().expect("it is still there").open.extend(&ids);
        // The library itself numbers the batches that it streams.
        if self.library.as_ref().is_some_and(|library| library.goes_on_from(session.number)) {
            return self.stream_by_library(&ids).await;
        }
        let mut ledger = self.ledger();
        let call = async move { ledger.commit_stream(tokio_stream::iter(requests)).await };
        let Ok(answers) = self.hear(call).await else { return self.leave_open(&ids) };
        let mut answers = answers.into_inner();
        for (at, id) in ids.iter().enumerate() {
            let Ok(Some(answer)) = self.hear(answers.message()).await else { return self.leave_open(&ids[at..]) };
            let session = self.session.as_mut().expect("it is still there");
            if answer.number != session.number + 1 {
                return self
                    .scribe
                    .wrong(format!("order: a stream answers {} after {}", answer.number, session.number));
            }
            session.settle(*id);
            self.conclude(*id, 0, answer.commit.ok_or_else(|| tonic::Status::internal("no answer")));
        }
    }

    /// Records that the outcomes of these attempts are unknown.
    fn leave_open(&mut self, ids: &[BatchId]) {
        for id in ids {
            self.conclude(*id, 0, Err(tonic::Status::unavailable("the stream broke")));
        }
    }

    /// Finds out the outcomes of the session's open batches.
    pub(super) async fn settle(&mut self) {
        for _ in 0..2 * ATTEMPTS_MAX {
            if self.session.as_ref().is_some_and(|session| !session.open.is_empty()) {
                self.write_in_session().await;
            }
        }
    }

    pub(super) async fn probe(&mut self, key: &str) -> bool {
        self.batches += 1;
        let id = (self.id << 32) | self.batches;
        let put = v1::Operation { key: key.to_owned().into(), change: Some(Change::Put(id.to_string().into())) };
        let metadata = id.to_le_bytes().to_vec().into();
        self.note(id, v1::Batch { operations: vec![put], metadata, ..v1::Batch::default() }, None);
        matches!(self.send(id).await, Outcome::Committed(_))
    }

    /// Stages a batch, then finalizes, discards or forgets it.
    pub(super) async fn stage(&mut self) {
        let id = self.batch(None, true);
        let batch = self.scribe.lock().batches[&id].batch.clone();
        let (mut ledger, request) =
            (self.ledger(), v1::StageRequest { batch: Some(batch), parent_stage_id: Bytes::new() });
        let staged = self.hear(async move { ledger.stage(request).await.map(tonic::Response::into_inner) }).await;
        let Ok(staged) = staged else { return };
        let state_root = Digest::from_slice(&staged.state_root).unwrap_or_default();
        self.scribe.lock().staged.insert(id, Staged { stamp: stamp(staged.stamp), state_root });
        let mut ledger = self.ledger();
        match self.rng.below(10) {
            0..7 => {
                let attempt = {
                    let mut history = self.scribe.lock();
                    let batch = history.batches.get_mut(&id).expect("the batch was noted");
                    batch.attempts.push(None);
                    batch.attempts.len() - 1
                };
                let request = v1::FinalizeRequest { stage_id: staged.stage_id, want_receipt: true };
                let answer =
                    self.hear(async move { ledger.finalize(request).await.map(tonic::Response::into_inner) }).await;
                self.conclude(id, attempt, answer);
            }
            7..9 => {
                let request = v1::DiscardRequest { stage_id: staged.stage_id };
                // Without an answer, the stage lives until it is too old.
                let _ = self.hear(async move { ledger.discard(request).await }).await;
            }
            _ => {}
        }
    }

    /// Pins a version and reads it. As long as the pin holds, no prune may remove the version.
    pub(super) async fn pin(&mut self) {
        let (stamp, ttl_ms) = (self.head, 300 + self.rng.below(3000));
        let mut pin_id = [0; 16];
        self.rng.fill(&mut pin_id);
        let pin_id = Bytes::copy_from_slice(&pin_id);
        let until = Instant::now() + Duration::from_millis(ttl_ms * 9 / 10);
        let (mut ledger, request) =
            (self.ledger(), v1::PinRequest { pin_id: pin_id.clone(), version: Some(stamp.version.0), ttl_ms });
        if self.hear(async move { ledger.pin(request).await }).await.is_err() {
            return;
        }
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(self.rng.below(ttl_ms / 3))).await;
            let read = v1::ReadOptions { at: Some(convert::to_stamp(stamp)), ..v1::ReadOptions::default() };
            let key = self.shape.key(&mut self.rng).into();
            let (mut ledger, request) = (self.ledger(), v1::BatchGetRequest { keys: vec![key], read: Some(read) });
            let answer = self.hear(async move { ledger.batch_get(request).await }).await;
            if answer.is_err_and(|error| reason_of(&error) == Some(Reason::Pruned)) && Instant::now() < until {
                return self.scribe.wrong(format!("pins: {stamp} was pruned though it was pinned"));
            }
        }
        if self.rng.chance(500) {
            let (mut ledger, request) = (self.ledger(), v1::UnpinRequest { pin_id });
            // Without an answer, the pin ends by itself.
            let _ = self.hear(async move { ledger.unpin(request).await }).await;
        }
    }

    /// Prunes or rolls back near the newest head that the client knows, or changes the ledger's
    /// key.
    pub(super) async fn administer(&mut self) {
        if !self.read_head().await {
            return;
        }
        let head = self.head;
        let principal = format!("client-{}", self.id);
        let begin = self.scribe.now();
        let mut ledger = self.ledger();
        let answer = if self.rng.chance(100) {
            let vkey = shape::next_signing_key().verifier().to_string();
            let request = v1::RotateKeyRequest { vkey, reason: "because".to_owned(), principal, expected_head: None };
            self.hear(async move { ledger.rotate_key(request).await.map(tonic::Response::into_inner) }).await
        } else if self.rng.chance(500) && head.version.0 > 3 {
            let deepest = if self.rng.chance(500) { 3 } else { 12 };
            let to = (head.version.0 - 1).saturating_sub(self.rng.below(deepest));
            let expected_head = self.rng.chance(500).then(|| convert::to_stamp(head));
            let request = v1::RollbackRequest { to: Some(to), reason: "because".to_owned(), principal, expected_head };
            self.hear(async move { ledger.rollback(request).await.map(tonic::Response::into_inner) }).await
        } else {
            let before = head.version.0.saturating_sub(self.rng.below(12));
            let expected_head = self.rng.chance(300).then(|| convert::to_stamp(head));
            let request =
                v1::PruneRequest { before: Some(before), reason: "because".to_owned(), principal, expected_head };
            self.hear(async move { ledger.prune(request).await.map(tonic::Response::into_inner) }).await
        };
        let Ok(answer) = answer else { return };
        self.note_checkpoint(&answer.checkpoint, "the checkpoint of a prune, rollback or key change");
        self.head = stamp(answer.head);
        let seen = Seen::Admin { header: answer.header };
        let mut history = self.scribe.lock();
        let end = history.tick();
        history.looks.push(Look { client: self.id, begin, end, stale_ok: false, seen });
    }
}
