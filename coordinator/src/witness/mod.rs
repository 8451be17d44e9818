//! Asks witnesses to cosign checkpoints (C2SP `tlog-witness`), and publishes what enough of them have cosigned.
//!
//! Work goes in *rounds*, so that witnesses meet on the same checkpoint however fast each is: all are shown one candidate; the
//! next one follows when enough have cosigned, or after [`ROUND_MAX`]. Each witness has a task of its own, so one that is slow
//! or dead delays neither the others nor, ever, a commit: nothing here is on the way of one.
//!
//! Every coordinator asks, so that each shows cosigned checkpoints whoever leads and whichever of them a witness can reach; those
//! that don't lead ask seldom, and only after the log has grown. They do each other no harm, and neither does a deposed leader: all
//! show only what is committed, and a witness that has moved on says so. Nothing is kept on disk: what a witness cosigned last, it
//! tells itself.

mod client;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use coppice_env::watch;
use coppice_verify::cosignature::{self, CosignerKey};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tonic::Status;

pub use self::client::Post;
use crate::{Error, exec::context::Context, publish::Cosigned};

/// How often the leader looks for a newer checkpoint.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often the other coordinators do.
const FOLLOWER_INTERVAL: Duration = Duration::from_secs(5);
/// How long witnesses have before the next round begins without them.
const ROUND_MAX: Duration = Duration::from_secs(5);
/// After how long witnesses are asked again although nothing was appended, for a fresh time.
const REFRESH: Duration = Duration::from_secs(15 * 60);
/// Most answers that wait to be counted.
const ANSWERS_MAX: usize = 64;
/// Most witnesses.
pub const WITNESSES_MAX: usize = 32;

/// A witness that is asked.
#[derive(Clone, Debug)]
pub struct Witness {
    /// Its submission prefix: `add-checkpoint` is below it.
    pub url: String,
    /// Its public key.
    pub key: CosignerKey,
}

/// A checkpoint that witnesses are asked to cosign.
#[derive(Debug)]
struct Candidate {
    size: u64,
    note: Bytes,
    since: Instant,
}

/// A witness's cosignature of the candidate of a size.
#[derive(Debug)]
struct Answer {
    witness: usize,
    size: u64,
    line: String,
}

/// What has come of a candidate.
#[derive(Debug)]
struct Round {
    candidate: Arc<Candidate>,
    lines: BTreeMap<usize, String>,
}

/// The way to witnesses over HTTP.
///
/// # Errors
/// If the system allows none.
pub fn over_http() -> Result<Post, Error> {
    client::over_http().map_err(|error| Error::Options(format!("witnesses can't be asked: {error}")))
}

/// Asks for ever; publishes a checkpoint when `quorum` witnesses have cosigned it.
pub async fn run(context: Arc<Context>, post: Post, witnesses: Vec<Witness>, quorum: usize) {
    let candidates = watch::Sender::new(None);
    let (send, mut answers) = mpsc::channel(ANSWERS_MAX);
    let mut tasks = JoinSet::new();
    for (index, witness) in witnesses.into_iter().enumerate() {
        context.metrics.has_witness(witness.key.name());
        tasks.spawn(client::follow(
            context.clone(),
            post.clone(),
            witness,
            index,
            candidates.subscribe(),
            send.clone(),
        ));
    }
    let mut round: Option<Round> = None;
    let mut look_at = Instant::now();
    loop {
        tokio::select! {
            biased;
            Some(answer) = answers.recv() => {
                if let Some(round) = &mut round {
                    round.take(answer);
                    round.publish(&context, quorum);
                }
            }
            () = sleep_until(look_at) => {
                if round.as_ref().is_none_or(|round| round.is_over(quorum)) {
                    match next(&context, round.as_ref().map(|round| &*round.candidate)).await {
                        Ok(Some(candidate)) => {
                            candidates.send_replace(Some(candidate.clone()));
                            round = Some(Round { candidate, lines: BTreeMap::new() });
                        }
                        Ok(None) => {}
                        Err(error) => tracing::debug!(%error, "no checkpoint for witnesses"),
                    }
                }
                let leads = context.leadership.borrow().term.is_some();
                look_at = Instant::now() + if leads { INTERVAL } else { FOLLOWER_INTERVAL };
            }
        }
    }
}

/// The newest checkpoint, if it is worth a round.
async fn next(context: &Context, last: Option<&Candidate>) -> Result<Option<Arc<Candidate>>, Status> {
    let since = Instant::now();
    let view = context.view().await?;
    let worth = last.is_none_or(|last| view.log_size > last.size || last.since.elapsed() >= REFRESH);
    if !worth {
        return Ok(None);
    }
    let (view, note) = context.signed(view).await?;
    Ok(Some(Arc::new(Candidate { size: view.log_size, note, since })))
}

impl Round {
    fn is_over(&self, quorum: usize) -> bool {
        self.lines.len() >= quorum || self.candidate.since.elapsed() >= ROUND_MAX
    }

    fn take(&mut self, answer: Answer) {
        if answer.size == self.candidate.size {
            self.lines.insert(answer.witness, answer.line);
        }
    }

    /// Shows what has come so far, if it is enough; later lines are added as they come.
    fn publish(&self, context: &Context, quorum: usize) {
        if self.lines.len() < quorum {
            return;
        }
        let lines: Vec<String> = self.lines.values().cloned().collect();
        match cosignature::add_lines(&self.candidate.note, &lines) {
            Ok(note) => {
                let Candidate { size, since, .. } = *self.candidate;
                context.publish_cosigned(Cosigned { size, note: note.into(), since });
            }
            Err(error) => tracing::error!(%error, "verified cosignatures don't make a note"),
        }
    }
}
