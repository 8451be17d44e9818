//! `coppice-bench history`: clients that read and write at random through all coordinators, and what they were told.
//!
//! Every line of the history is one operation (`loadtest/checker/history.go` says how it looks). A write within a session
//! is repeated, through another coordinator each time, until its outcome is known; a write without one is sent once. What
//! must never be told (an answer that its proof does not cover, two checkpoints of one size) goes to `findings`.

mod recorder;
mod worker;

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use coppice_verify::note::VerifierKey;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::{Instant, timeout},
};

use self::{recorder::Recorder, worker::Worker};

/// How long clients may go on to learn the outcomes of their last writes.
const GRACE: Duration = Duration::from_secs(20);

/// What a run is asked for.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The coordinators.
    #[arg(long, value_name = "URL", value_delimiter = ',', required = true)]
    pub endpoints: Vec<String>,
    /// For `https`.
    #[command(flatten)]
    pub files: crate::Files,
    /// The ledger's public key.
    #[arg(long, value_name = "VKEY")]
    pub key: String,
    /// The directory that takes `history.jsonl`, `checkpoints.jsonl`, `findings.jsonl` and `proofs/`.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Number of clients.
    #[arg(long, default_value_t = 8)]
    pub clients: u32,
    /// The longest time, in seconds; a SIGTERM ends it sooner.
    #[arg(long, default_value_t = 3600)]
    pub seconds: u64,
    /// What the clients do follows from it.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Pause of each client between two operations, in milliseconds.
    #[arg(long, default_value_t = 40)]
    pub pause_ms: u64,
    /// Groups that are in use at a time.
    #[arg(long, default_value_t = 6)]
    pub groups: u64,
    /// Operations on a group before a fresh one takes its place.
    #[arg(long, default_value_t = 120)]
    pub group_operations: u64,
}

/// Runs the clients.
///
/// # Errors
/// If the files can't be written, or an argument makes no sense.
pub async fn run(options: Options) -> Result<()> {
    let key = VerifierKey::parse(options.key.trim()).context("--key")?;
    let recorder = Arc::new(Recorder::create(&options, key.clone())?);
    let (stop, stopped) = watch::channel(false);
    let mut tasks = Vec::new();
    for id in 0..options.clients {
        let worker = Worker::new(id, &options, key.clone(), Arc::clone(&recorder), stopped.clone())?;
        tasks.push(tokio::spawn(worker.run()));
    }
    println!("started");
    let mut terminated = signal(SignalKind::terminate()).context("a handler for SIGTERM")?;
    // Either way the load is over.
    let _ = timeout(Duration::from_secs(options.seconds), terminated.recv()).await;
    stop.send_replace(true);
    let end = Instant::now() + GRACE + Duration::from_secs(30);
    for task in tasks {
        tokio::time::timeout_at(end, task).await.context("a client does not end")?.context("a client broke")??;
    }
    recorder.finish()?;
    println!("{}", recorder.summary());
    Ok(())
}
