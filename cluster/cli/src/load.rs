//! `coppice load`: each line or commit becomes one version, at most once.
//!
//! Batches are sent as a stream, without waiting for each answer. Batch n of the input has number n
//! in a session. The session's name follows from the cluster and the input's first line (or
//! commit). An interrupted load finds the session again, and sends the batch with the session's
//! highest number once more. The cluster then says whether it is the same batch, and whether it
//! still stands. Then the load goes on after that number. Equal batches imply equal inputs up to
//! there. For that, a batch's metadata holds a hash of all lines so far, or the name of its commit.

mod feed;
mod git;
mod lines;
mod source;

use std::{collections::VecDeque, future::Future, io::IsTerminal, time::Duration};

use coppice_client::{Answer, Client, CommitStream, Error, Session};
use coppice_proto::v1::{self, operation::Change};
use coppice_types::{ClusterId, Reason, SessionId};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    args, bytes,
    failure::{Code, Failure},
    genesis::genesis,
    output::Output,
    text,
};
use feed::{Ended, Event, Feed};
use source::Item;

/// Most bytes of batches that are sent but not answered; a single batch may have more.
const UNDER_WAY_BYTES_MAX: usize = 32 << 20;
/// Advice after a load that stopped on the way.
const AGAIN: &str = "Load the same input again: it goes on where it stopped, and applies nothing twice.";

/// Loads an input. Prints the number of applied batches even after a failure.
pub async fn load(client: &Client, args: &args::Load, output: Output) -> Result<(), Failure> {
    let interrupted = interrupted()?;
    let genesis = genesis(client).await?;
    let mut load = Load::new(Feed::start(args, &genesis.params)?, progress_bar(output));
    let started = tokio::time::Instant::now();
    let result = tokio::select! {
        result = load.run(client, genesis.cluster, args.session.as_deref()) => result,
        () = interrupted => Err(Failure::new(Code::Unavailable, "interrupted").hint(AGAIN)),
    };
    load.bar.finish_and_clear();
    for skipped in &load.ended.skipped {
        output.note(&json!({ "skipped": skipped }), || format!("skipped: {}", text::shorten(skipped, 300)));
    }
    let took = started.elapsed();
    match result {
        Ok(()) => output.result(&load.object(took), || load.describe(took)),
        Err(failure) => {
            if load.session.is_some() {
                output.note(&load.object(took), || load.describe(took));
            }
            Err(failure)
        }
    }
}

/// Waits for Ctrl-C or SIGTERM.
fn interrupted() -> Result<impl Future<Output = ()>, Failure> {
    let no_signals = |error| Failure::new(Code::Unavailable, format!("signals cannot be waited for: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// A load and its progress.
struct Load {
    feed: Feed,
    bar: ProgressBar,
    session: Option<SessionId>,
    /// Batches of the input that are in the session, were sent, or are about to be sent.
    batches: u64,
    /// Batches that the session held already.
    resumed: u64,
    applied: u64,
    last: Option<v1::Stamp>,
    under_way: UnderWay,
    ended: Ended,
}

impl Load {
    fn new(feed: Feed, bar: ProgressBar) -> Self {
        let (under_way, ended) = (UnderWay::default(), Ended::default());
        Self { feed, bar, session: None, batches: 0, resumed: 0, applied: 0, last: None, under_way, ended }
    }

    async fn run(&mut self, client: &Client, cluster: ClusterId, name: Option<&str>) -> Result<(), Failure> {
        let Some(first) = self.next_item().await else { return self.ended.wrong.take().map_or(Ok(()), Err) };
        let id = session_id(cluster, name, &first.identity)?;
        let mut session = client.open_session(id).await?;
        self.session = Some(id);
        let next = self.skip_to_the_end_of(&session, first).await?;
        let mut stream = session.stream(false);
        self.send(&mut stream, next).await.map_err(|error| explain(error, self.under_way.oldest(), id))?;
        self.ended.wrong.take().map_or(Ok(()), Err)
    }

    /// Skips the batches that the session holds. The last of them is checked by sending it again:
    /// it is the same batch only if those before it are the same.
    async fn skip_to_the_end_of(&mut self, session: &Session, first: Item) -> Result<Option<Item>, Failure> {
        let held = session.highest();
        let mut item = Some(first);
        while let Some(Item { batch, place, .. }) = item.take_if(|_| self.batches < held) {
            self.batches += 1;
            if self.batches == held {
                let sent = session.commit_as(held, batch, false).await;
                let stamp = sent.map_err(|error| explain(error, &place, session.id()))?.stamp;
                self.resumed = held;
                self.note(stamp);
            }
            item = self.next_item().await;
        }
        if self.batches >= held {
            return Ok(item);
        }
        if let Some(wrong) = self.ended.wrong.take() {
            return Err(wrong);
        }
        let message = format!("the input ends after {} batches, but the session holds {held}", self.batches);
        let hint = "The input was cut off, or it is another one: name another session with --session.";
        Err(Failure::usage(message).hint(hint))
    }

    /// Sends a batch and all that follow, to the end of the input or to its first error. Meanwhile
    /// answers are taken, so that the state of the load is known even if the input makes no
    /// progress.
    async fn send(&mut self, stream: &mut CommitStream<'_>, mut next: Option<Item>) -> Result<(), Error> {
        while let Some(Item { batch, place, .. }) = next {
            let bytes = bytes_of(&batch);
            while !self.under_way.is_empty() && self.under_way.bytes + bytes > UNDER_WAY_BYTES_MAX {
                let answer = stream.next().await?;
                self.answered(answer);
            }
            self.batches += 1;
            self.under_way.push(place, bytes);
            let answer = stream.push(batch).await?;
            self.answered(answer);
            next = loop {
                let idle = self.under_way.is_empty();
                tokio::select! {
                    biased;
                    item = self.next_item() => break item,
                    answer = stream.next(), if !idle => self.answered(answer?),
                }
            };
        }
        while !self.under_way.is_empty() {
            let answer = stream.next().await?;
            self.answered(answer);
        }
        Ok(())
    }

    /// The next batch of the input; `None` once the input has ended, and then `ended` says why. A
    /// cancelled call loses nothing.
    async fn next_item(&mut self) -> Option<Item> {
        loop {
            match self.feed.next().await {
                Event::Opened(total) => {
                    if let Some(total) = total {
                        self.bar.set_length(total);
                        self.bar.set_style(style(true));
                    }
                }
                Event::Read(item, position) => {
                    self.bar.set_position(position);
                    return Some(*item);
                }
                Event::Ended(ended) => {
                    self.ended = ended;
                    return None;
                }
            }
        }
    }

    /// Notes the answer to the oldest batch, if there is one.
    fn answered(&mut self, answer: Option<Answer>) {
        let Some(answer) = answer else { return };
        self.under_way.pop();
        self.applied += 1;
        self.note(answer.commit.stamp);
    }

    fn note(&mut self, stamp: Option<v1::Stamp>) {
        self.last = stamp;
        if let Some(stamp) = stamp {
            self.bar.set_message(format!("version {}", stamp.version));
        }
    }

    fn object(&self, took: Duration) -> Value {
        json!({
            "batches": self.batches,
            "applied": self.applied,
            "already_there": self.resumed,
            "unanswered": self.under_way.places.len(),
            "skipped": self.ended.skipped.len(),
            "epoch": self.last.map(|stamp| stamp.epoch),
            "version": self.last.map(|stamp| stamp.version),
            "session": self.session.map(|id| id.to_string()),
            "seconds": took.as_secs_f64(),
        })
    }

    fn describe(&self, took: Duration) -> String {
        if self.session.is_none() {
            return "the input is empty".to_owned();
        }
        let resumed = if self.resumed > 0 { format!(" ({} were there already)", self.resumed) } else { String::new() };
        let unanswered = match self.under_way.places.len() {
            0 => String::new(),
            number => format!("; {number} more were sent, and may be in"),
        };
        let head = self.last.map_or_else(String::new, |stamp| format!("; the last is version {}", stamp.version));
        let versions = if self.applied == 1 { "version" } else { "versions" };
        format!("{} {versions} written in {:.1} s{resumed}{head}{unanswered}", self.applied, took.as_secs_f64())
    }
}

/// Batches that were sent but not answered, the oldest first: their places in the input, and their
/// bytes.
#[derive(Debug, Default)]
struct UnderWay {
    places: VecDeque<(String, usize)>,
    bytes: usize,
}

impl UnderWay {
    fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    fn push(&mut self, place: String, bytes: usize) {
        self.places.push_back((place, bytes));
        self.bytes += bytes;
    }

    fn pop(&mut self) {
        self.bytes -= self.places.pop_front().map_or(0, |(_, bytes)| bytes);
    }

    fn oldest(&self) -> &str {
        self.places.front().map_or("the end of the input", |(place, _)| place)
    }
}

fn bytes_of(batch: &v1::Batch) -> usize {
    let of = |operation: &v1::Operation| {
        let value = match &operation.change {
            Some(Change::Put(value)) => value.len(),
            _ => 0,
        };
        operation.key.len() + value
    };
    batch.metadata.len() + batch.operations.iter().map(of).sum::<usize>()
}

fn explain(error: Error, place: &str, session: SessionId) -> Failure {
    let hint = match error.reason() {
        Some(Reason::RolledBack) => {
            Some("This input was loaded and then rolled back. To load it again, name another session with --session.")
        }
        Some(Reason::SessionMismatch) => {
            Some("The session holds another input with the same beginning; name another one with --session.")
        }
        _ if error.kind() == coppice_types::ErrorKind::Unavailable => Some(AGAIN),
        _ => None,
    };
    let failure = Failure::from(error).during(&format!("{place} (session {session})"));
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// The session of an input: named by the user, or derived from the cluster and the beginning of the
/// input.
fn session_id(cluster: ClusterId, name: Option<&str>, identity: &[u8]) -> Result<SessionId, Failure> {
    let mut named = b"coppice load\0".to_vec();
    match name {
        Some("") => return Err(Failure::usage("a session must have a name")),
        Some(name) if name.len() == 32 && hex::decode(name).is_ok() => {
            let bytes = bytes::parse_hex(name)?;
            return SessionId::from_slice(&bytes).ok_or_else(|| Failure::usage("a session must have 32 hex digits"));
        }
        Some(name) => {
            named.extend(b"by name\0");
            named.extend(name.as_bytes());
        }
        None => {
            named.extend(cluster.as_bytes());
            named.extend(identity);
        }
    }
    let digest = coppice_verify::hash::sha256(&named);
    Ok(SessionId::from_slice(&digest.0[..16]).expect("a digest has 16 bytes and more"))
}

fn progress_bar(output: Output) -> ProgressBar {
    if output.json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::no_length();
    bar.set_style(style(false));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// At most 80 columns, even with the largest version and days to go.
fn style(length_known: bool) -> ProgressStyle {
    let template = if length_known {
        "{bar:20} {percent:>3} %  {msg}  {elapsed_precise}, {eta_precise} left"
    } else {
        "{spinner} {msg}  {elapsed_precise}"
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_follows_from_cluster_and_first_line() {
        let cluster = ClusterId([1; 16]);
        let id = |cluster, name, line: &[u8]| session_id(cluster, name, line).expect("a session").0;
        assert_eq!(id(cluster, None, b"line"), id(cluster, None, b"line"));
        assert_ne!(id(cluster, None, b"line"), id(cluster, None, b"other"));
        assert_ne!(id(cluster, None, b"line"), id(ClusterId([2; 16]), None, b"line"));
        assert_eq!(id(cluster, Some("name"), b"line"), id(cluster, Some("name"), b"other"));
        let digits = "000102030405060708090a0b0c0d0e0f";
        assert_eq!(id(cluster, Some(digits), b"line"), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert!(session_id(cluster, Some(""), b"line").is_err());
    }
}
