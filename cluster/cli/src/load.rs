//! `coppice load`: one line, or one commit, is one version, at most once.
//!
//! Batches are sent as a stream, without waiting for the answer to each. Batch n of the input has number n in a session whose name follows from the cluster and the input's first line (or commit).
//! An interrupted load finds the session again and goes on after its highest number, whose batch it sends once more: the
//! cluster then says whether it is the same batch, and whether it still stands.

mod git;
mod lines;

use std::{collections::VecDeque, io::IsTerminal, time::Duration};

use coppice_client::{Answer, Client, Error, Session};
use coppice_proto::v1;
use coppice_types::{ClusterId, Reason, SessionId};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::{args, failure::Failure, genesis::genesis, output::Output, text};

/// One batch of the input.
pub(crate) struct Item {
    /// What is sent.
    pub batch: v1::Batch,
    /// The bytes that name the session, if this is the first item.
    pub identity: Vec<u8>,
    /// Where in the input it stands, for messages.
    pub place: String,
}

/// Batches in order.
pub(crate) trait Source {
    /// The next one; `None` at the end.
    fn next(&mut self) -> Result<Option<Item>, Failure>;

    /// How much of the input was read, and how much there is, if that is known.
    fn progress(&self) -> (u64, Option<u64>);

    /// What was left out, and why.
    fn skipped(&self) -> &[String];
}

/// What a load did.
#[derive(Debug, Default)]
struct Done {
    batches: u64,
    applied: u64,
    last: Option<v1::Stamp>,
}

/// `coppice load`.
///
/// # Errors
/// If the input is malformed, a batch is refused, or there is no answer.
pub async fn load(client: &Client, args: &args::Load, output: Output) -> Result<(), Failure> {
    let genesis = genesis(client).await?;
    let mut source: Box<dyn Source> = match (&args.git, &args.file) {
        (Some(dir), _) => Box::new(git::Commits::open(dir, &genesis.params)?),
        (None, Some(file)) => Box::new(lines::Lines::open(file, &genesis.params)?),
        (None, None) => return Err(Failure::usage("name a FILE, or --git DIR")),
    };
    let bar = progress_bar(output, source.progress().1);
    let Some(first) = source.next()? else {
        bar.finish_and_clear();
        return output.result(&json!({ "batches": 0, "applied": 0 }), || "the input is empty".to_owned());
    };
    let id = session_id(genesis.cluster, args.session.as_deref(), &first.identity)?;
    let mut session = client.open_session(id).await?;
    let resumed = session.highest();
    let started = tokio::time::Instant::now();
    let result = run(&mut session, first, source.as_mut(), &bar).await;
    bar.finish_and_clear();
    for skipped in source.skipped() {
        output.note(&json!({ "skipped": skipped }), || format!("skipped: {skipped}"));
    }
    report(&result?, resumed, &session, started.elapsed(), source.skipped().len(), output)
}

async fn run(session: &mut Session, first: Item, source: &mut dyn Source, bar: &ProgressBar) -> Result<Done, Failure> {
    let (resumed, id) = (session.highest(), session.id());
    let mut done = Done::default();
    let mut item = Some(first);
    while let Some(Item { batch, place, .. }) = item.take_if(|_| done.batches < resumed) {
        done.batches += 1;
        if done.batches == resumed {
            let sent = session.commit_as(resumed, batch, false).await;
            done.note(sent.map_err(|error| explain(error, &place, id))?.stamp, bar);
        }
        bar.set_position(source.progress().0);
        item = source.next()?;
    }
    if done.batches < resumed {
        let message = format!("the input ends after {} batches, but the session holds {resumed}", done.batches);
        return Err(Failure::usage(message)
            .hint("The input was cut off, or it is another one: name another session with --session."));
    }
    let mut stream = session.stream(false);
    let mut places = VecDeque::new();
    let mut wrong = None;
    while let Some(Item { batch, place, .. }) = item {
        done.batches += 1;
        places.push_back(place);
        let answer = stream.push(batch).await.map_err(|error| explain(error, &places[0], id))?;
        done.answered(answer, &mut places, bar);
        bar.set_position(source.progress().0);
        // What comes before the place that is wrong is written.
        item = source.next().unwrap_or_else(|failure| {
            wrong = Some(failure);
            None
        });
    }
    while !places.is_empty() {
        let answer = stream.next().await.map_err(|error| explain(error, &places[0], id))?;
        done.answered(answer, &mut places, bar);
    }
    bar.set_position(source.progress().0);
    wrong.map_or(Ok(done), Err)
}

impl Done {
    /// The oldest batch that was sent may have been answered.
    fn answered(&mut self, answer: Option<Answer>, places: &mut VecDeque<String>, bar: &ProgressBar) {
        let Some(answer) = answer else { return };
        places.pop_front();
        self.applied += 1;
        self.note(answer.commit.stamp, bar);
    }

    fn note(&mut self, stamp: Option<v1::Stamp>, bar: &ProgressBar) {
        self.last = stamp;
        if let Some(stamp) = stamp {
            bar.set_message(format!("version {}", stamp.version));
        }
    }
}

fn explain(error: Error, place: &str, session: SessionId) -> Failure {
    let hint = match error.reason() {
        Some(Reason::RolledBack) => {
            Some("This input was loaded and then rolled back. To load it again, name another session with --session.")
        }
        Some(Reason::SessionMismatch) => {
            Some("The session holds another input with the same beginning; name another one with --session.")
        }
        _ if error.kind() == coppice_types::ErrorKind::Unavailable => {
            Some("Load the same input again: it goes on where it stopped, and applies nothing twice.")
        }
        _ => None,
    };
    let failure = Failure::from(error).during(&format!("{place} (session {session})"));
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn report(
    done: &Done,
    resumed: u64,
    session: &Session,
    took: Duration,
    skipped: usize,
    output: Output,
) -> Result<(), Failure> {
    let stamp = done.last;
    let object = json!({
        "batches": done.batches,
        "applied": done.applied,
        "already_there": resumed,
        "skipped": skipped,
        "epoch": stamp.map(|stamp| stamp.epoch),
        "version": stamp.map(|stamp| stamp.version),
        "session": session.id().to_string(),
        "seconds": took.as_secs_f64(),
    });
    output.result(&object, || {
        let resumed = if resumed > 0 { format!(" ({resumed} were there already)") } else { String::new() };
        let head = stamp.map_or_else(String::new, |stamp| format!("; the last is version {}", stamp.version));
        format!("{} versions written in {:.1} s{resumed}{head}", done.applied, took.as_secs_f64())
    })
}

/// The session of an input: named by hand, else by the cluster and how the input begins.
fn session_id(cluster: ClusterId, name: Option<&str>, identity: &[u8]) -> Result<SessionId, Failure> {
    let mut named = b"coppice load\0".to_vec();
    match name {
        Some("") => return Err(Failure::usage("a session has a name")),
        Some(name) if name.len() == 32 && hex::decode(name).is_ok() => {
            let bytes = text::parse_hex(name)?;
            return SessionId::from_slice(&bytes).ok_or_else(|| Failure::usage("a session has 32 hex digits"));
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

fn progress_bar(output: Output, total: Option<u64>) -> ProgressBar {
    if output.json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = total.map_or_else(ProgressBar::no_length, ProgressBar::new);
    let template = if total.is_some() {
        "{bar:40} {percent:>3} %  {msg}  {elapsed}, {eta} left"
    } else {
        "{spinner} {msg}  {elapsed}"
    };
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
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
