//! `coppice-bench judge`: checks answers that a load generator received against their proofs, while
//! the load goes on.
//!
//! It serves load generators that can't verify proofs, for instance k6. The question and the answer
//! are posted as JSON (protobuf's form: bytes in base64, 64-bit numbers as text) to `/keys`,
//! `/range` or `/commit`. The reply is 204 if the proof is valid and proves exactly that answer,
//! and 422 with the reason if not. A commit without a receipt gets 424: its coordinator could not
//! prove it at that moment, which is not a lie. Two checkpoints of the same size with different
//! roots are a lie, whichever clients received them. `GET /` returns the counts.
//!
//! A post that can't be parsed counts as bad: nothing is believed without a proof. The program ends
//! with an error if anything was bad.

mod wire;

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result, ensure};
use axum::{
    Router,
    extract::{DefaultBodyLimit, State},
    http::StatusCode,
    routing::{get, post},
};
use bytes::Bytes;
use coppice_client::answers;
use coppice_types::Digest;
use coppice_verify::{checkpoint::Checkpoint, note::VerifierKey};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

/// The largest post that is accepted: a proof file with a whole batch of values, in base64.
const BODY_BYTES_MAX: usize = 64 << 20;
/// The number of checkpoints that are remembered, the newest first.
const CHECKPOINTS_MAX: usize = 1 << 16;

#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The ledger's public key, or `@` and a file that holds it.
    #[arg(long, value_name = "VKEY")]
    pub key: String,
    /// The address to listen at; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// The file for the first post that failed.
    #[arg(long, value_name = "FILE")]
    pub evidence: Option<PathBuf>,
}

/// Judges until SIGTERM or SIGINT, then prints the counts.
///
/// # Errors
/// If anything was bad; if the address or the key is not usable.
pub async fn run(options: Options) -> Result<()> {
    let text = match options.key.strip_prefix('@') {
        Some(path) => fs::read_to_string(path).with_context(|| path.to_owned())?,
        None => options.key.clone(),
    };
    let key = VerifierKey::parse(text.trim()).context("--key")?;
    let judge = Arc::new(Judge { key, evidence: options.evidence, seen: Mutex::default() });
    let listener = TcpListener::bind(options.listen).await.with_context(|| options.listen.to_string())?;
    let (mut terminated, mut interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    println!("{}", json!({ "event": "ready", "address": listener.local_addr()?.to_string() }));
    let stop = async move {
        tokio::select! { _ = terminated.recv() => {}, _ = interrupted.recv() => {} }
    };
    axum::serve(listener, routes(Arc::clone(&judge))).with_graceful_shutdown(stop).await?;
    println!("{}", judge.counts());
    let seen = judge.seen.lock().unwrap_or_else(PoisonError::into_inner);
    ensure!(seen.bad == 0, "{} answers are not to be believed; the first: {}", seen.bad, seen.first_bad);
    Ok(())
}

fn routes(judge: Arc<Judge>) -> Router {
    Router::new()
        .route("/", get(async |State(judge): State<Arc<Judge>>| judge.counts().to_string()))
        .route("/keys", post(async |State(judge): State<Arc<Judge>>, body: Bytes| judge.answer(Kind::Keys, &body)))
        .route("/range", post(async |State(judge): State<Arc<Judge>>, body: Bytes| judge.answer(Kind::Range, &body)))
        .route("/commit", post(async |State(judge): State<Arc<Judge>>, body: Bytes| judge.answer(Kind::Commit, &body)))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(judge)
}

/// The kind of question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Keys,
    Range,
    Commit,
}

/// The ledger's key, and the counts.
#[derive(Debug)]
struct Judge {
    key: VerifierKey,
    evidence: Option<PathBuf>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    reads: u64,
    commits: u64,
    /// Commits without a receipt.
    unproven: u64,
    bad: u64,
    first_bad: String,
    roots: BTreeMap<u64, Digest>,
}

impl Judge {
    fn counts(&self) -> Value {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        json!({
            "event": "counts", "reads": seen.reads, "commits": seen.commits, "unproven": seen.unproven,
            "bad": seen.bad, "first_bad": seen.first_bad,
        })
    }

    fn answer(&self, kind: Kind, body: &[u8]) -> (StatusCode, String) {
        let judged = self.check(kind, body);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = judged.as_ref().err().filter(|error| shows_nothing(error)) {
            seen.unproven += 1;
            return (StatusCode::FAILED_DEPENDENCY, format!("{error:#}"));
        }
        let judged = judged.map_err(|error| format!("{error:#}"));
        match judged.and_then(|checkpoint| seen.note(&checkpoint)) {
            Ok(()) => {
                *(if kind == Kind::Commit { &mut seen.commits } else { &mut seen.reads }) += 1;
                (StatusCode::NO_CONTENT, String::new())
            }
            Err(reason) => {
                seen.bad += 1;
                eprintln!("coppice-bench: not to be believed: {reason}");
                if seen.bad == 1 {
                    seen.first_bad.clone_from(&reason);
                    if let Some(Err(error)) = self.evidence.as_ref().map(|path| fs::write(path, body)) {
                        eprintln!("coppice-bench: the evidence could not be kept: {error}");
                    }
                }
                (StatusCode::UNPROCESSABLE_ENTITY, reason)
            }
        }
    }

    fn check(&self, kind: Kind, body: &[u8]) -> Result<Checkpoint> {
        const UNREADABLE: &str = "the post can't be read";
        Ok(match kind {
            Kind::Keys => {
                let (asked, told) = serde_json::from_slice::<wire::Keys>(body).context(UNREADABLE)?.into();
                answers::check_keys(&self.key, &asked, &told)?
            }
            Kind::Range => {
                let (asked, records, end) = serde_json::from_slice::<wire::Range>(body).context(UNREADABLE)?.into();
                answers::check_range(&self.key, &asked, &records, &end)?
            }
            Kind::Commit => {
                let post: wire::Commit = serde_json::from_slice(body).context(UNREADABLE)?;
                let genesis = post.genesis.0.clone();
                let (asked, told) = post.into();
                answers::check_commit(&self.key, &genesis, &asked, &told)?
            }
        })
    }
}

/// Whether the only fault of the answer is a missing receipt.
fn shows_nothing(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(coppice_client::Error::Refused { outcome_unknown: true, .. }))
}

impl Seen {
    /// Checks that the log has one root at each size.
    fn note(&mut self, checkpoint: &Checkpoint) -> Result<(), String> {
        if *self.roots.entry(checkpoint.size).or_insert(checkpoint.root) != checkpoint.root {
            return Err(format!("the log has two roots of {} entries", checkpoint.size));
        }
        if self.roots.len() > CHECKPOINTS_MAX {
            self.roots.pop_first();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
