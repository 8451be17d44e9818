//! `coppice-bench history`: clients that read and write at random through all coordinators, and a
//! record of the answers.
//!
//! Every line of the history is one operation (`loadtest/checker/history.go` describes the format).
//! A write within a session is repeated, each time through another coordinator, until its outcome
//! is known; a write without a session is sent once. Answers that must never be given, for instance
//! one that its proof does not cover or two checkpoints of the same size, go to `findings`.

mod options;
mod recorder;
mod worker;

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use coppice_verify::note::VerifierKey;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::{Instant, timeout},
};

pub use self::options::Options;
use self::{options::GRACE, recorder::Recorder, worker::Worker};

/// Runs the clients.
///
/// # Errors
/// If the files can't be written, or an argument is invalid.
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
    // The load ends with the signal or with the time.
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
