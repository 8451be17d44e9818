//! A session's batches as a stream: sent without waiting for answers, answered in order.
//!
//! Unanswered batches are kept, at most [`UNDER_WAY_MAX`] of them. If the stream breaks, they are
//! sent again under their numbers, to any coordinator that answers. So every batch is applied at
//! most once, and only after the batch before it.

use std::{collections::VecDeque, sync::Arc};

use coppice_proto::{status, v1};
use coppice_types::ErrorKind;
use coppice_verify::keys::Keys;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::{Error, Session, call::PAUSES, error::describe, routes::Pick, session::after};

/// Most batches that are sent but not answered.
pub const UNDER_WAY_MAX: usize = 64;

/// The answer to a batch.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The number of the batch in its session.
    pub number: u64,
    /// The version that the batch is part of, and the receipt if one was wanted.
    pub commit: v1::CommitResponse,
}

/// A stream of a session's batches. At most 64 of them are under way at a time.
#[derive(Debug)]
pub struct CommitStream<'a> {
    session: &'a mut Session,
    want_receipt: bool,
    /// Batches that are not answered yet, in order; the stream may still have to send them.
    under_way: VecDeque<v1::CommitStreamRequest>,
    /// For each of these batches, the ledger's keys that were known when it was first sent, if a
    /// key is trusted.
    keys: VecDeque<Option<Arc<Keys>>>,
    number: u64,
    live: Option<Connection>,
}

#[derive(Debug)]
struct Connection {
    pick: Pick,
    send: mpsc::Sender<v1::CommitStreamRequest>,
    answers: Streaming<v1::CommitStreamResponse>,
}

impl Session {
    /// Opens a stream of the session's next batches, which does not wait for each answer. With
    /// `want_receipt`, or if a key is trusted, answers have receipts.
    pub fn stream(&mut self, want_receipt: bool) -> CommitStream<'_> {
        CommitStream::new(self, want_receipt)
    }
}

impl<'a> CommitStream<'a> {
    fn new(session: &'a mut Session, want_receipt: bool) -> Self {
        let number = session.highest();
        Self { session, want_receipt, under_way: VecDeque::new(), keys: VecDeque::new(), number, live: None }
    }

    /// Sends the next batch. If 64 batches are under way, first waits for the answer to the oldest
    /// one, and returns it.
    ///
    /// # Errors
    /// Like [`CommitStream::next`]. The batch is not sent then.
    pub async fn push(&mut self, batch: v1::Batch) -> Result<Option<Answer>, Error> {
        let answer = if self.under_way.len() >= UNDER_WAY_MAX { self.next().await? } else { None };
        self.number = after(self.number)?;
        let request = v1::CommitStreamRequest {
            session_id: self.session.id().0.to_vec().into(),
            number: self.number,
            batch: Some(batch),
            want_receipt: self.want_receipt || self.session.client().trust.is_some(),
        };
        // The channel has room for all batches that may be under way. If the stream has ended, the
        // next answer shows it.
        if let Some(live) = &self.live {
            let _ = live.send.try_send(request.clone());
        }
        self.under_way.push_back(request);
        self.keys.push_back(self.session.client().keys());
        if self.live.is_none() {
            // A failure to connect is ignored here. The wait for an answer connects again, and
            // reports it.
            self.live = self.connect().await.ok();
        }
        Ok(answer)
    }

    /// Waits for the answer to the oldest unanswered batch; `None` if all are answered.
    ///
    /// # Errors
    /// If the cluster refuses a batch, the stream is over, and the outcome of all unanswered
    /// batches is unknown: send them again one by one under their numbers ([`Session::commit_as`]).
    /// If the cluster did not answer, or did not prove its answer, in time, the stream can go on,
    /// and the next call asks for the answer again.
    pub async fn next(&mut self) -> Result<Option<Answer>, Error> {
        let Some(number) = self.under_way.front().map(|oldest| oldest.number) else { return Ok(None) };
        let patience = self.session.client().patience;
        let (mut backoff, mut attempts, mut until) = (PAUSES, 0, None);
        loop {
            attempts += 1;
            let received = self.receive(Instant::now() + patience.attempt).await;
            // The connection is put back only after a good answer. An answer comes only once: if
            // the caller stops waiting and loses it, only a new connection brings it again.
            let live = self.live.take();
            let status = match received {
                Ok(answer) if answer.number == number => {
                    let answer = self.settle(answer).await?;
                    self.live = live.inspect(|live| self.session.client().routes.succeeded(&live.pick));
                    return Ok(Some(answer));
                }
                Ok(_) => return Err(Error::Malformed("the answer to another number")),
                Err(status) => status,
            };
            let pick = live.map(|live| live.pick);
            match status::kind(&status) {
                ErrorKind::Unavailable | ErrorKind::Fenced | ErrorKind::Exhausted => {}
                // The refused batch may not be the oldest one, or the cause may lie in an earlier
                // batch.
                _ => {
                    let (reason, kind, message) = (status::reason(&status), status::kind(&status), describe(&status));
                    return Err(Error::Refused { reason, kind, message, outcome_unknown: true });
                }
            }
            let routes = &self.session.client().routes;
            let pick = pick.unwrap_or_else(|| routes.pick());
            routes.failed(&pick);
            // Like any other call, patience counts from the first failure.
            let until = *until.get_or_insert_with(|| Instant::now() + patience.total);
            let pause = backoff.next_pause();
            if Instant::now() + pause >= until {
                return Err(Error::Unavailable {
                    endpoint: pick.address,
                    attempts,
                    message: describe(&status),
                    reason: status::reason(&status),
                    outcome_unknown: true,
                });
            }
            sleep(routes.pause(pause)).await;
        }
    }

    async fn receive(&mut self, until: Instant) -> Result<v1::CommitStreamResponse, Status> {
        if self.live.is_none() {
            self.live = Some(self.connect().await?);
        }
        let live = self.live.as_mut().expect("it was just connected");
        match timeout_at(until, live.answers.message()).await {
            Ok(answer) => answer?.ok_or_else(|| Status::unavailable("the stream ended before its answers")),
            Err(_) => Err(Status::deadline_exceeded("no answer in time")),
        }
    }

    /// Opens a stream, and sends all unanswered batches.
    async fn connect(&self) -> Result<Connection, Status> {
        let client = self.session.client();
        let (send, requests) = mpsc::channel(UNDER_WAY_MAX + 1);
        for request in &self.under_way {
            send.try_send(request.clone()).map_err(|_| Status::internal("more is under way than may be"))?;
        }
        let mut pick = client.routes.pick();
        let call = pick.ledger.commit_stream(ReceiverStream::new(requests));
        let answers = match timeout(client.patience.attempt, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(status),
            Err(_) => Err(Status::deadline_exceeded("no stream in time")),
        };
        let answers = answers.inspect_err(|_| client.routes.failed(&pick))?;
        Ok(Connection { pick, send, answers })
    }

    async fn settle(&mut self, answer: v1::CommitStreamResponse) -> Result<Answer, Error> {
        let v1::CommitStreamResponse { number, commit } = answer;
        let commit = commit.filter(|commit| commit.stamp.is_some());
        let commit = commit.ok_or(Error::Malformed("an answer without a version"))?;
        let client = self.session.client().clone();
        let sent = self.under_way.front().expect("it is the answer to the oldest");
        let keys = self.keys.front().cloned().flatten();
        client.trust_receipt(keys.as_deref(), &sent.session_id, sent.number, sent.batch.as_ref(), &commit).await?;
        self.under_way.pop_front();
        self.keys.pop_front();
        self.session.reached(number);
        Ok(Answer { number, commit })
    }
}

#[cfg(test)]
mod tests;
