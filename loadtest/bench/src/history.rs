//! `coppice-bench history`: clients that read and write at random through all coordinators, and what they were told.
//!
//! Every line of the history is one operation (`loadtest/checker/history.go` says how it looks). A write within a session
//! is repeated, through another coordinator each time, until its outcome is known; a write without one is sent once. What
//! must never be told (an answer that its proof does not cover, two checkpoints of one size) goes to `findings`.

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
