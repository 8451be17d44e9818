//! Asks witnesses to cosign checkpoints (C2SP `tlog-witness`), and publishes those with enough
//! cosignatures.
//!
//! Work goes in *rounds*, so that fast and slow witnesses cosign the same checkpoint. All are shown
//! one candidate. The next one follows when enough have cosigned, or after [`ROUND_MAX`]. Each
//! witness has its own task, so a slow or dead one does not delay the others. Nothing here delays a
//! commit.
//!
//! Every coordinator asks, so that each can show cosigned checkpoints. It does not matter which
//! coordinator leads, or which ones a witness can reach. Coordinators that don't lead ask seldom,
//! and only after the log has grown. Several coordinators, or a deposed leader, do no harm: all of
//! them show only committed logs, and a witness that has cosigned a larger one says so. Nothing is
//! kept on disk, since each witness reports the size that it cosigned last.

mod client;
pub mod streams;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use coppice_env::watch;
use coppice_verify::{
    cosignature::{self, WitnessKey},
    note::NOTE_BYTES_MAX,
    policy::Policy,
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tonic::Status;

use crate::{
    error::Error,
    groups::root_log::RootLog,
    metrics::Metrics,
    post::{self, Post},
    random::Random,
    shown::{Cosigned, Shown},
};

/// How often the leader looks for a newer checkpoint.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often the other coordinators look for one.
const FOLLOWER_INTERVAL: Duration = Duration::from_secs(5);
/// How long witnesses have before the next round begins without them.
const ROUND_MAX: Duration = Duration::from_secs(5);
/// After this time witnesses are asked again although the log has not grown, for a fresh timestamp.
const REFRESH: Duration = Duration::from_secs(15 * 60);
/// Limit on the number of answers that wait to be counted.
const ANSWERS_MAX: usize = 64;
/// Limit on the number of witnesses.
pub const WITNESSES_MAX: usize = 32;
/// Limit on the length of the lines of all witnesses: the rest of a note is for the checkpoint and
/// its own signatures.
pub const WITNESS_LINES_BYTES_MAX: usize = NOTE_BYTES_MAX - (4 << 10);

/// The parts that asking witnesses needs. Clones share them.
#[derive(Clone, Debug)]
pub struct Means {
    pub log: Arc<RootLog>,
    pub shown: Arc<Shown>,
    pub metrics: Arc<Metrics>,
    pub random: Arc<Random>,
}

/// A witness that is asked.
#[derive(Clone, Debug)]
pub struct Witness {
    /// The witness's submission prefix, to which `add-checkpoint` is appended.
    pub url: String,
    /// The witness's public key.
    pub key: WitnessKey,
}

/// The cosignatures that a checkpoint needs to be published.
#[derive(Clone, Debug)]
pub enum Quorum {
    /// Those of so many witnesses.
    Count(usize),
    /// Those that reach a policy's quorum.
    Policy(Box<Policy>),
}

impl From<usize> for Quorum {
    fn from(count: usize) -> Self {
        Self::Count(count)
    }
}

impl Quorum {
    /// Whether cosignatures by these keys are enough.
    #[must_use]
    pub fn is_reached_by(&self, keys: &[&WitnessKey]) -> bool {
        match self {
            Self::Count(count) => keys.len() >= *count,
            Self::Policy(policy) => policy.is_reached_by(keys),
        }
    }
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

/// A candidate with the cosignatures that came so far.
#[derive(Debug)]
struct Round {
    candidate: Arc<Candidate>,
    lines: BTreeMap<usize, String>,
}

/// Makes the function that posts requests over HTTP.
///
/// # Errors
/// If the HTTP client can't be created.
pub fn over_http() -> Result<Post, Error> {
    let post = post::over_http(None, client::ANSWER_BYTES_MAX);
    post.map_err(|error| Error::Options(format!("witnesses can't be asked: {error}")))
}

/// Asks witnesses, and publishes a checkpoint when a quorum of them has cosigned it. Never returns.
pub async fn run(means: Means, post: Post, witnesses: Vec<Witness>, quorum: Quorum) {
    let keys: Vec<WitnessKey> = witnesses.iter().map(|witness| witness.key.clone()).collect();
    let candidates = watch::Sender::new(None);
    let (send, mut answers) = mpsc::channel(ANSWERS_MAX);
    let mut tasks = JoinSet::new();
    for (index, witness) in witnesses.into_iter().enumerate() {
        means.metrics.has_witness(witness.key.name());
        tasks.spawn(client::follow(means.clone(), post.clone(), witness, index, candidates.subscribe(), send.clone()));
    }
    let mut round: Option<Round> = None;
    let mut look_at = Instant::now();
    loop {
        tokio::select! {
            biased;
            Some(answer) = answers.recv() => {
                if let Some(round) = &mut round {
                    round.take(answer);
                    round.publish(&means.shown, &keys, &quorum);
                }
            }
            () = sleep_until(look_at) => {
                if round.as_ref().is_none_or(|round| round.is_over(&keys, &quorum)) {
                    match next(&means.log, round.as_ref().map(|round| &*round.candidate)).await {
                        Ok(Some(candidate)) => {
                            candidates.send_replace(Some(candidate.clone()));
                            round = Some(Round { candidate, lines: BTreeMap::new() });
                        }
                        Ok(None) => {}
                        Err(error) => tracing::debug!(%error, "no checkpoint for witnesses"),
                    }
                }
                let leads = means.shown.leads();
                look_at = Instant::now() + if leads { INTERVAL } else { FOLLOWER_INTERVAL };
            }
        }
    }
}

/// The newest checkpoint, if it is worth a round.
async fn next(log: &RootLog, last: Option<&Candidate>) -> Result<Option<Arc<Candidate>>, Status> {
    let since = Instant::now();
    let view = log.view().await?;
    let worth = last.is_none_or(|last| view.log_size > last.size || last.since.elapsed() >= REFRESH);
    if !worth {
        return Ok(None);
    }
    let (view, note) = log.signed(view).await?;
    Ok(Some(Arc::new(Candidate { size: view.log_size, note, since })))
}

impl Round {
    fn is_reached(&self, keys: &[WitnessKey], quorum: &Quorum) -> bool {
        let cosigned: Vec<&WitnessKey> = self.lines.keys().filter_map(|witness| keys.get(*witness)).collect();
        quorum.is_reached_by(&cosigned)
    }

    fn is_over(&self, keys: &[WitnessKey], quorum: &Quorum) -> bool {
        self.is_reached(keys, quorum) || self.candidate.since.elapsed() >= ROUND_MAX
    }

    fn take(&mut self, answer: Answer) {
        if answer.size == self.candidate.size {
            self.lines.insert(answer.witness, answer.line);
        }
    }

    /// Publishes the candidate once it has enough cosignatures. Later ones are added as they come.
    fn publish(&self, shown: &Shown, keys: &[WitnessKey], quorum: &Quorum) {
        if !self.is_reached(keys, quorum) {
            return;
        }
        let lines: Vec<String> = self.lines.values().cloned().collect();
        match cosignature::add_lines(&self.candidate.note, &lines) {
            Ok(note) => {
                let Candidate { size, since, .. } = *self.candidate;
                shown.publish_cosigned(Cosigned { size, note: note.into(), since });
            }
            Err(error) => tracing::error!(%error, "verified cosignatures don't make a note"),
        }
    }
}
