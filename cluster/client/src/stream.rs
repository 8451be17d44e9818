//! The batches of a session as a stream: sent without waiting for the answers between them, answered in order.
//!
//! What was not answered is kept, at most [`UNDER_WAY_MAX`] batches, and is sent again under its numbers, to whichever coordinator
//! answers, when the stream breaks. So every batch is applied at most once, and only after the one before it.

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

use crate::{
    Error, Session,
    call::{PAUSE_MAX, PAUSE_MIN},
    error::describe,
    routes::Pick,
    session::after,
};

/// Most batches that are sent and not answered.
pub const UNDER_WAY_MAX: usize = 64;

/// What became of a batch.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its number in the session.
    pub number: u64,
    /// The version that it is part of.
    pub commit: v1::CommitResponse,
}

/// A stream of a session's batches.
#[derive(Debug)]
pub struct CommitStream<'a> {
    session: &'a mut Session,
    want_receipt: bool,
    /// Sent or to be sent, and not answered, in order.
    under_way: VecDeque<v1::CommitStreamRequest>,
    /// For each of them, the ledger's keys as they were known when it was sent first, if a key is trusted.
    keys: VecDeque<Option<Arc<Keys>>>,
    number: u64,
    live: Option<Live>,
}

#[derive(Debug)]
struct Live {
    pick: Pick,
    send: mpsc::Sender<v1::CommitStreamRequest>,
    answers: Streaming<v1::CommitStreamResponse>,
}

impl<'a> CommitStream<'a> {
    pub(crate) fn new(session: &'a mut Session, want_receipt: bool) -> Self {
        let number = session.highest();
        Self { session, want_receipt, under_way: VecDeque::new(), keys: VecDeque::new(), number, live: None }
    }

    /// Sends the next batch. If as many are under way as may be, waits for the answer to the oldest, and gives it.
    ///
    /// # Errors
    /// As [`CommitStream::next`]. The batch is then not sent.
    pub async fn push(&mut self, batch: v1::Batch) -> Result<Option<Answer>, Error> {
        let answer = if self.under_way.len() >= UNDER_WAY_MAX { self.next().await? } else { None };
        self.number = after(self.number)?;
        let request = v1::CommitStreamRequest {
            session_id: self.session.id().0.to_vec().into(),
            number: self.number,
            batch: Some(batch),
            want_receipt: self.want_receipt || self.session.client().trust.is_some(),
        };
        // There is room for all that may be under way; if the stream has ended, the next answer finds out.
        if let Some(live) = &self.live {
            let _ = live.send.try_send(request.clone());
        }
        self.under_way.push_back(request);
        self.keys.push_back(self.session.client().keys());
        if self.live.is_none() {
            // A failure shows, and is repeated, when an answer is waited for.
            self.live = self.connect().await.ok();
        }
        Ok(answer)
    }

    /// Waits for the answer to the oldest batch that has none; `None` if all have one.
    ///
    /// # Errors
    /// What the cluster refuses: the stream is over, and nothing is known of the batches that were not answered; send them again, one by one
    /// under their numbers. Or what it did not answer, or not prove, in time: the stream can go on, and asks for the answer again.
    pub async fn next(&mut self) -> Result<Option<Answer>, Error> {
        let Some(number) = self.under_way.front().map(|oldest| oldest.number) else { return Ok(None) };
        let patience = self.session.client().patience;
        let (mut pause, mut attempts, mut until) = (PAUSE_MIN, 0, None);
        loop {
            attempts += 1;
            let received = self.receive(Instant::now() + patience.attempt).await;
            // It is used again only if all is well: an answer that is not taken, for instance since its caller stops waiting, comes once.
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
                // It may be said of another batch than the oldest, or because of the one before it.
                _ => {
                    let (reason, kind, message) = (status::reason(&status), status::kind(&status), describe(&status));
                    return Err(Error::Refused { reason, kind, message, outcome_unknown: true });
                }
            }
            let routes = &self.session.client().routes;
            let pick = pick.unwrap_or_else(|| routes.pick());
            routes.failed(&pick);
            // As any other call: from the first failure on.
            let until = *until.get_or_insert_with(|| Instant::now() + patience.total);
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
            pause = (pause * 2).min(PAUSE_MAX);
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

    /// Opens a stream, with everything that is not answered yet.
    async fn connect(&self) -> Result<Live, Status> {
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
        Ok(Live { pick, send, answers })
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
