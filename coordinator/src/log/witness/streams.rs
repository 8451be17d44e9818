//! Streams that cosigners open, for those that no coordinator can reach: requests travel down,
//! answers up.
//!
//! The address of such a cosigner is `stream:NAME/PATH`. Only a caller whose certificate is for the
//! process NAME may open its stream. A cosigner's line is verified by its configured key as ever,
//! so a stream that lies is like a server that lies.
//!
//! **Bounds.** A name has one stream: a new one takes the place of the old one. A stream has at
//! most [`WAITING_MAX`] requests, and the caller of each limits its time. A stream that does not
//! take a request in time ends.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use coppice_proto::v1;
use futures::{Stream, StreamExt};
use reqwest::StatusCode;
use tokio::{
    sync::{mpsc, oneshot},
    time::{MissedTickBehavior, interval, timeout},
};
use tonic::Status;

use super::{Witness, client::ANSWER_BYTES_MAX};
use crate::post::Post;

/// The scheme of addresses of cosigners that open a stream.
pub const SCHEME: &str = "stream:";
/// Most requests of a stream that wait for their answers.
const WAITING_MAX: usize = 8;
/// How long a stream may take to accept a message.
const SEND_MAX: Duration = Duration::from_secs(5);
/// How often a stream gets a message, so that its holder notices a connection that was lost.
pub const ALIVE_EVERY: Duration = Duration::from_secs(15);

/// A request for a cosigner.
#[derive(Debug)]
struct Asked {
    path: String,
    body: Vec<u8>,
    answer: oneshot::Sender<(StatusCode, Vec<u8>)>,
}

/// The stream of a name, if it is open, and its number.
type Line = Option<(u64, mpsc::Sender<Asked>)>;

/// The streams of a coordinator. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Streams {
    lines: Arc<Mutex<BTreeMap<String, Line>>>,
    opened: Arc<AtomicU64>,
}

/// The name and the path of an address; `None` if it is none of a stream.
fn parts(url: &str) -> Option<(&str, &str)> {
    url.strip_prefix(SCHEME)?.split_once('/')
}

impl Streams {
    /// Lets the cosigners with such addresses open streams.
    pub fn expect(&self, witnesses: &[Witness]) {
        let names = witnesses.iter().filter_map(|witness| parts(&witness.url));
        self.lock().extend(names.map(|(name, _)| (name.to_owned(), None)));
    }

    /// Whether a stream of this name may be opened.
    #[must_use]
    pub fn expects(&self, name: &str) -> bool {
        self.lock().contains_key(name)
    }

    /// Whether some stream may be opened.
    #[must_use]
    pub fn expects_any(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Number of open streams.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.lock().values().filter(|line| line.is_some()).count() as u64
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts down a stream if the address is one of a stream, and by `over` otherwise.
    pub fn post(&self, over: Post) -> Post {
        let streams = self.clone();
        Arc::new(move |url, body| match parts(&url) {
            None => over(url, body),
            Some((name, path)) => {
                let (streams, name, path) = (streams.clone(), name.to_owned(), path.to_owned());
                Box::pin(async move { streams.ask(&name, path, body).await })
            }
        })
    }

    async fn ask(&self, name: &str, path: String, body: Vec<u8>) -> Result<(StatusCode, Vec<u8>), String> {
        let (answer, answered) = oneshot::channel();
        let line = self.lock().get(name).cloned().flatten();
        let (_, line) = line.ok_or_else(|| format!("{name} has opened no stream"))?;
        let busy = |_| format!("the stream of {name} has {WAITING_MAX} requests already, or broke off");
        line.try_send(Asked { path, body, answer }).map_err(busy)?;
        answered.await.map_err(|_| format!("the stream of {name} broke off"))
    }

    /// Serves the stream of a name until one side ends it, or another one takes its place.
    ///
    /// # Errors
    /// The reason why the stream ends.
    pub async fn serve(
        &self,
        name: &str,
        answers: impl Stream<Item = Result<v1::WitnessAnswer, Status>> + Unpin,
        requests: mpsc::Sender<Result<v1::WitnessRequest, Status>>,
    ) -> Result<(), Status> {
        let (line, asked) = mpsc::channel(WAITING_MAX);
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(name.to_owned(), Some((number, line)));
        let _open = Open { streams: self, name, number };
        tracing::info!(name, "a cosigner has opened its stream");
        Serving { asked, requests, waiting: BTreeMap::new(), last: 0 }.run(answers).await
    }
}

/// Takes the line away when its stream ends, unless another stream has taken its place.
struct Open<'a> {
    streams: &'a Streams,
    name: &'a str,
    number: u64,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if let Some(line) = self.streams.lock().get_mut(self.name)
            && line.as_ref().is_some_and(|(number, _)| *number == self.number)
        {
            *line = None;
            tracing::info!(name = self.name, "the stream of a cosigner has ended");
        }
    }
}

struct Serving {
    asked: mpsc::Receiver<Asked>,
    requests: mpsc::Sender<Result<v1::WitnessRequest, Status>>,
    /// The callers that wait, by the number of their request.
    waiting: BTreeMap<u64, oneshot::Sender<(StatusCode, Vec<u8>)>>,
    /// Number of the last request.
    last: u64,
}

impl Serving {
    async fn run(
        mut self,
        mut answers: impl Stream<Item = Result<v1::WitnessAnswer, Status>> + Unpin,
    ) -> Result<(), Status> {
        let mut alive = interval(ALIVE_EVERY);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                asked = self.asked.recv() => match asked {
                    Some(asked) => self.ask(asked).await?,
                    None => return Err(Status::aborted("another stream with the same name was opened")),
                },
                answer = answers.next() => match answer.transpose()? {
                    Some(answer) => self.take(answer)?,
                    None => return Ok(()),
                },
                _ = alive.tick() => self.send(v1::WitnessRequest::default()).await?,
            }
        }
    }

    async fn ask(&mut self, asked: Asked) -> Result<(), Status> {
        // Callers that no longer wait have made room.
        self.waiting.retain(|_, caller| !caller.is_closed());
        if self.waiting.len() >= WAITING_MAX {
            return Ok(());
        }
        self.last += 1;
        self.waiting.insert(self.last, asked.answer);
        self.send(v1::WitnessRequest { id: self.last, path: asked.path, body: asked.body.into() }).await
    }

    async fn send(&self, request: v1::WitnessRequest) -> Result<(), Status> {
        match timeout(SEND_MAX, self.requests.send(Ok(request))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Status::cancelled("the caller has gone")),
            Err(_) => Err(Status::deadline_exceeded("the caller does not read its stream")),
        }
    }

    fn take(&mut self, answer: v1::WitnessAnswer) -> Result<(), Status> {
        if answer.id == 0 || answer.id > self.last {
            return Err(Status::invalid_argument("an answer to nothing that was asked"));
        }
        let status = u16::try_from(answer.status).ok().and_then(|status| StatusCode::from_u16(status).ok());
        let status = status.ok_or_else(|| Status::invalid_argument("the status of an answer"))?;
        if answer.body.len() > ANSWER_BYTES_MAX {
            return Err(Status::invalid_argument("an answer is too long"));
        }
        // A caller that no longer waits, or has its answer, is not told.
        if let Some(caller) = self.waiting.remove(&answer.id) {
            let _ = caller.send((status, answer.body.to_vec()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
