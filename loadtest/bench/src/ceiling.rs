//! `coppice-bench ceiling`: what the machine itself can do, to hold every other figure against.

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, Result};
use coppice_verify::hash::sha256;
use serde_json::json;
use tokio::time::Instant;

/// What is written for the sequential figure.
const SEQUENTIAL_BYTES: usize = 256 << 20;
const CHUNK_BYTES: usize = 1 << 20;
const APPEND_BYTES: usize = 4096;

/// Where and how long.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// A directory on the disk that is measured.
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Seconds for each figure.
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
}

/// Measures, and prints JSON.
///
/// # Errors
/// If the disk can't be written to.
pub fn run(options: &Options) -> Result<()> {
    let path = options.dir.join("ceiling.tmp");
    let limit = Duration::from_secs_f64(options.seconds);
    let syncs = syncs(&path, limit)?;
    let sequential = sequential(&path)?;
    fs::remove_file(&path)?;
    let quantile = |part: f64| {
        let index = (part * syncs.len() as f64) as usize;
        syncs.get(index.min(syncs.len().saturating_sub(1))).map_or(0, Duration::as_micros) as u64
    };
    let report = json!({
        "append_4k_fdatasync_us": {
            "p50": quantile(0.5), "p90": quantile(0.9), "p99": quantile(0.99), "p999": quantile(0.999), "count": syncs.len(),
        },
        "sequential_write_mb_per_second": sequential,
        "sha256_1k_mb_per_second": hashes(1024, limit),
        "sha256_64_mb_per_second": hashes(64, limit),
        "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
    });
    println!("{report}");
    Ok(())
}

fn open(path: &PathBuf) -> Result<File> {
    let file = OpenOptions::new().create(true).write(true).truncate(true).open(path);
    file.with_context(|| path.display().to_string())
}

/// How long appends of 4 KiB take with fdatasync, in order.
fn syncs(path: &PathBuf, limit: Duration) -> Result<Vec<Duration>> {
    let mut file = open(path)?;
    let (page, begin, mut times) = (vec![0xa5; APPEND_BYTES], Instant::now(), Vec::new());
    while begin.elapsed() < limit {
        let before = Instant::now();
        file.write_all(&page)?;
        file.sync_data()?;
        times.push(before.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

fn sequential(path: &PathBuf) -> Result<f64> {
    let mut file = open(path)?;
    let (chunk, begin) = (vec![0x5a; CHUNK_BYTES], Instant::now());
    for _ in 0..SEQUENTIAL_BYTES / CHUNK_BYTES {
        file.write_all(&chunk)?;
    }
    file.sync_data()?;
    Ok(SEQUENTIAL_BYTES as f64 / begin.elapsed().as_secs_f64() / 1e6)
}

/// One core hashing messages of a length, in megabytes a second.
fn hashes(length: usize, limit: Duration) -> f64 {
    let (mut message, begin, mut count) = (vec![7; length], Instant::now(), 0_u64);
    while begin.elapsed() < limit {
        for _ in 0..1000 {
            let digest = sha256(&message);
            message[..32].copy_from_slice(&digest.0);
        }
        count += 1000;
    }
    (count * length as u64) as f64 / begin.elapsed().as_secs_f64() / 1e6
}
