//! The calls of simulated clients that use the client library for all their writes, reads and
//! streams.

use std::time::Duration;

use bytes::Bytes;
use coppice_client::{Error, Options};
use coppice_proto::{Channel, status, v1};
use coppice_types::{ErrorKind, Reason, SessionId};
use coppice_verify::note::VerifierKey;
use tonic::Status;

use super::{Client, Heard, PATIENCE};
use crate::history::BatchId;

/// Longest time for which the library repeats a call.
const REPEATED: Duration = Duration::from_millis(2000);

/// The library of one client, and its session.
#[derive(Debug)]
pub struct Library {
    client: coppice_client::Client,
    session: Option<coppice_client::Session>,
}

impl Library {
    /// A library that believes only answers with a proof under this key.
    pub fn new(routes: Vec<(String, Channel)>, seed: u64, trust: VerifierKey) -> Self {
        let options =
            Options { attempt_timeout: PATIENCE, patience: REPEATED, trust: Some(trust), ..Options::new("simulated") };
        Self { client: coppice_client::Client::over(routes, seed, &options), session: None }
    }

    /// Whether the session's next batch gets the number after this one, by its own count.
    pub fn goes_on_from(&self, number: u64) -> bool {
        self.session.as_ref().is_some_and(|session| session.highest() == number)
    }

    pub fn client(&self) -> coppice_client::Client {
        self.client.clone()
    }
}

impl Client {
    /// The status of a failed write. If the library says that the write had no effect, that is
    /// recorded, and judged at the end.
    fn told(&self, error: &Error) -> Status {
        match (error, error.reason()) {
            (Error::Unproven(_) | Error::Untrusted(_) | Error::Malformed(_) | Error::Endpoint { .. }, _) => {
                self.disbelieved(error)
            }
            _ if error.outcome_unknown() => Status::unavailable(error.to_string()),
            (Error::Refused { reason: Some(reason), .. }, _) if reason.kind() != ErrorKind::Exhausted => {
                status::refuse(*reason, error.to_string())
            }
            _ => status::refuse(Reason::NotLeader, error.to_string()),
        }
    }

    /// The status of a failed read.
    pub(super) fn told_of_read(&self, error: &Error) -> Status {
        match (error, error.reason()) {
            (Error::Unproven(_) | Error::Untrusted(_) | Error::Malformed(_) | Error::Endpoint { .. }, _) => {
                self.disbelieved(error)
            }
            (_, Some(reason)) => status::refuse(reason, error.to_string()),
            _ => Status::unavailable(error.to_string()),
        }
    }

    /// An answer that the library does not believe is a finding, since this cluster does not lie.
    fn disbelieved(&self, error: &Error) -> Status {
        self.scribe.wrong(format!("proofs: the client library does not believe an answer: {error}"));
        Status::internal(error.to_string())
    }

    pub(super) async fn commit_by_library(&mut self, request: v1::CommitRequest) -> Heard<v1::CommitResponse> {
        let library = self.library.as_mut().expect("the caller looked");
        let batch = request.batch.unwrap_or_default();
        let (number, receipt) = (request.number, request.want_receipt);
        let answer = match &mut library.session {
            Some(session) if !request.session_id.is_empty() => {
                if number == session.highest() + 1 {
                    session.commit(batch, receipt).await
                } else {
                    session.commit_as(number, batch, receipt).await
                }
            }
            _ => library.client.commit(batch, receipt).await,
        };
        answer.map_err(|error| self.told(&error))
    }

    pub(super) async fn open_by_library(&mut self, id: &Bytes) -> bool {
        let library = self.library.as_mut().expect("the caller looked");
        let id = SessionId::from_slice(id).expect("it has the length");
        match library.client.open_session(id).await {
            Ok(session) => {
                library.session = Some(session);
                true
            }
            Err(_) => false,
        }
    }

    /// Sends batches through a stream of the library, which itself repeats those without an answer.
    pub(super) async fn stream_by_library(&mut self, ids: &[BatchId]) {
        let mut session = self.library.as_mut().and_then(|library| library.session.take()).expect("it is open");
        let mut stream = session.stream(true);
        let mut failed = None;
        for id in ids {
            let batch = self.scribe.lock().batches[id].batch.clone();
            // There are no more batches than may be under way, so no push waits for an answer.
            if let Err(error) = stream.push(batch).await {
                failed = Some(error);
            }
        }
        let mut left = ids.iter();
        while failed.is_none() {
            match stream.next().await {
                Ok(Some(answer)) => {
                    let id = *left.next().expect("every answer is of a batch");
                    let own = self.session.as_mut().expect("it is still there");
                    if answer.number != own.number() + 1 {
                        return self.scribe.wrong(format!(
                            "order: the library's stream answers {} after {}",
                            answer.number,
                            own.number()
                        ));
                    }
                    own.settle(id);
                    self.conclude(id, 0, Ok(answer.commit));
                }
                Ok(None) => break,
                Err(error) => failed = Some(error),
            }
        }
        drop(stream);
        self.library.as_mut().expect("it is still there").session = Some(session);
        let Some(error) = failed else { return };
        // The outcome of batches without an answer is unknown.
        let status = self.told(&error);
        for id in left {
            self.conclude(*id, 0, Err(status.clone()));
        }
    }
}
