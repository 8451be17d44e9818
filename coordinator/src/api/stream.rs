//! `CommitStream`: the batches of one session, in the order of their numbers, without waiting for
//! the answers in between.
//!
//! At most `stream_batches_max` batches of a stream are under way. Beyond that no more batches are
//! read, and HTTP/2's flow control stops the writer. The stream also waits for queue bytes. A batch
//! is applied only after the one before it (see `Request::ordered`). So a stream that breaks off
//! leaves a prefix of its batches, and can be resumed with the numbers that were not answered.

use std::{collections::VecDeque, sync::Arc};

use coppice_proto::{status, v1};
use coppice_types::{Reason, SessionId};
use tokio::time::{Instant, timeout};
use tonic::{Status, Streaming};

use super::intake::{Intake, Receive, session_of, stopping};
use crate::{groups::root::SessionAnswer, plan::Refusal, read::reads::Sink, write::command::Committed};

/// A batch that is under way: its number, its arrival, and the channel for its answer.
type UnderWay = (u64, Instant, Receive<Committed>);
type Answers = VecDeque<UnderWay>;

/// Serves one stream until its writer ends it, a batch is refused, or either side breaks off.
///
/// # Errors
/// The reason why the stream ends. It says nothing about batches that were not answered.
pub async fn serve(
    intake: Intake,
    caller: String,
    mut batches: Streaming<v1::CommitStreamRequest>,
    sink: Sink<v1::CommitStreamResponse>,
) -> Result<(), Status> {
    let most = intake.limits.stream_batches_max;
    let metrics = intake.metrics.clone();
    let mut writer = Writer { intake, caller, session: None, number: 0 };
    let mut under_way = Answers::new();
    let mut open = true;
    while open || !under_way.is_empty() {
        tokio::select! {
            biased;
            // Dropping the receivers also drops the batches that still wait.
            () = sink.closed() => return Ok(()),
            answer = first_of(&mut under_way) => {
                let (number, came, commit) = answer;
                metrics.answered(came, commit.as_ref().map(|commit| commit.replayed));
                let answer = v1::CommitStreamResponse { number, commit: Some(commit?) };
                if sink.send(Ok(answer)).await.is_err() {
                    return Ok(());
                }
            }
            message = batches.message(), if open && under_way.len() < most => match message? {
                Some(message) => under_way.push_back(writer.send(message).await?),
                None => open = false,
            }
        }
    }
    Ok(())
}

/// Waits for the answer to the oldest batch; never returns if none is under way.
async fn first_of(under_way: &mut Answers) -> (u64, Instant, Result<v1::CommitResponse, Status>) {
    let Some((number, came, receive)) = under_way.front_mut() else { return std::future::pending().await };
    let (number, came) = (*number, *came);
    let answer = receive.await.unwrap_or_else(|_| Err(stopping())).map(|committed| committed.response);
    under_way.pop_front();
    (number, came, answer)
}

struct Writer {
    intake: Intake,
    caller: String,
    session: Option<SessionId>,
    number: u64,
}

impl Writer {
    /// Passes a batch to the sequencer as soon as there is room.
    async fn send(&mut self, message: v1::CommitStreamRequest) -> Result<UnderWay, Status> {
        let came = Instant::now();
        let v1::CommitStreamRequest { session_id, number, batch, want_receipt } = message;
        if !session_id.is_empty() || self.session.is_none() {
            let (id, _) =
                session_of(&session_id, number)?.ok_or_else(|| Refusal::invalid("a stream needs a session"))?;
            if self.session.is_some_and(|session| session != id) {
                return Err(Refusal::invalid("a stream can have only one session").into());
            }
            self.session = Some(id);
        }
        let follows = number > 0 && (self.number == 0 || self.number.checked_add(1) == Some(number));
        let session = self.session.filter(|_| follows);
        let session = session.ok_or_else(|| Refusal::invalid("the numbers of a stream must ascend by one, from 1"))?;
        if self.number == 0 && number > 1 {
            // A batch whose predecessor never comes would wait until its time-out, and so would all
            // that follow it.
            let before = self.intake.log.root.session(session, number - 1).await?;
            if before == SessionAnswer::Known(None) {
                let message = format!(
                    "number {} was not committed: a stream goes on from the first number after those that were",
                    number - 1
                );
                return Err(Refusal::invalid(message).into());
            }
        }
        self.intake.quotas.use_session(&self.caller, session)?;
        self.number = number;
        let mut request = self.intake.admit(batch, Some((session, number))).await?;
        request.ordered = true;
        let limit = self.intake.limits.commit_timeout;
        match timeout(limit, self.intake.queue(Arc::new(request), want_receipt, limit)).await {
            Ok(receive) => Ok((number, came, receive?)),
            Err(_) => Err(status::refuse(Reason::ResourceExhausted, "too much waits: there was no room for the batch")),
        }
    }
}
