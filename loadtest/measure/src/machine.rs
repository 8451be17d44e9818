//! The speed and the load of the machine, and the kernel's figures about this process.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufReader, Write},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result};
use coppice_env::{Clock, Rng, SimRng, SystemClock};
use coppice_verify::hash::sha256;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::statistics::quantile;

/// Bytes that are written for the sequential figure, and read at random.
const FILE_BYTES: usize = 256 << 20;
const CHUNK_BYTES: usize = 1 << 20;
pub(crate) const PAGE_BYTES: usize = 4096;

/// Limits that no program on this machine can exceed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// Microseconds of an append of 4 KiB with fdatasync.
    pub append_4k_fdatasync_us: Quantiles,
    /// Microseconds of a write of 4 KiB to the page cache alone: to pages that the cache did not
    /// have, and to pages that it had.
    pub cached_write_4k_us: [f64; 2],
    /// Megabytes a second, written in order and synced once.
    pub sequential_write_mb_per_second: f64,
    /// Sequential reads of random 4 KiB past the page cache, per second.
    pub random_read_4k_per_second: f64,
    /// Megabytes a second of one core that hashes messages of 1 KiB.
    pub sha256_1k_mb_per_second: f64,
    /// Megabytes a second of one core that hashes messages of 64 bytes.
    pub sha256_64_mb_per_second: f64,
    pub cores: usize,
}

/// A distribution.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
    /// The number of measurements.
    pub count: usize,
}

/// Measures in a directory; each figure takes `limit`.
///
/// # Errors
/// If the disk can't be written to, or can't be read past the page cache.
pub fn ceiling(dir: &Path, limit: Duration) -> Result<Ceiling> {
    let path = dir.join("ceiling.tmp");
    let syncs = syncs(&path, limit)?;
    let (sequential_write_mb_per_second, cached_write_4k_us) = sequential(&path)?;
    let random_read_4k_per_second = random_reads(&path, limit)?;
    fs::remove_file(&path)?;
    let at = |part| quantile(&syncs, part);
    let append_4k_fdatasync_us =
        Quantiles { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), count: syncs.len() };
    Ok(Ceiling {
        append_4k_fdatasync_us,
        cached_write_4k_us,
        sequential_write_mb_per_second,
        random_read_4k_per_second,
        sha256_1k_mb_per_second: hashes(1024, limit),
        sha256_64_mb_per_second: hashes(64, limit),
        cores: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
    })
}

fn create(path: &Path) -> Result<File> {
    let file = OpenOptions::new().create(true).write(true).truncate(true).open(path);
    file.with_context(|| path.display().to_string())
}

/// Microseconds of appends of 4 KiB with fdatasync, in ascending order; at least one.
fn syncs(path: &Path, limit: Duration) -> Result<Vec<f64>> {
    let mut file = create(path)?;
    let (page, clock, mut times) = (vec![0xa5; PAGE_BYTES], SystemClock::new(), Vec::new());
    while clock.now() < limit || times.is_empty() {
        let before = clock.now();
        file.write_all(&page)?;
        file.sync_data()?;
        times.push((clock.now() - before).as_secs_f64() * 1e6);
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok(times)
}

/// Writes a file in order and syncs it once. Returns megabytes a second, and the microseconds for
/// each 4 KiB without the sync: at the first time, and when the file is written again.
fn sequential(path: &Path) -> Result<(f64, [f64; 2])> {
    let (file, chunk, clock) = (create(path)?, vec![0x5a; CHUNK_BYTES], SystemClock::new());
    let write = || {
        let before = clock.now();
        for at in 0..FILE_BYTES / CHUNK_BYTES {
            file.write_all_at(&chunk, (at * CHUNK_BYTES) as u64)?;
        }
        anyhow::Ok((clock.now() - before).as_secs_f64() * 1e6 / (FILE_BYTES / PAGE_BYTES) as f64)
    };
    let fresh = write()?;
    file.sync_data()?;
    let rate = FILE_BYTES as f64 / clock.now().as_secs_f64() / 1e6;
    let again = write()?;
    // Reads past the page cache would otherwise wait for dirty pages.
    file.sync_data()?;
    Ok((rate, [fresh, again]))
}

fn random_reads(path: &Path, limit: Duration) -> Result<f64> {
    let direct = i32::try_from(OFlags::DIRECT.bits()).context("open flags are an int")?;
    let opened = OpenOptions::new().read(true).custom_flags(direct).open(path);
    let file = opened.context("random reads go past the page cache: measure on a disk's file system, not on tmpfs")?;
    // Direct reads need page-aligned memory.
    let mut buffer = vec![0_u8; 2 * PAGE_BYTES];
    let aligned = buffer.as_ptr().align_offset(PAGE_BYTES);
    let page = &mut buffer[aligned..aligned + PAGE_BYTES];
    let (mut rng, clock, mut count) = (SimRng::new(1), SystemClock::new(), 0_u64);
    while clock.now() < limit || count == 0 {
        let place = rng.below((FILE_BYTES / PAGE_BYTES) as u64);
        file.read_exact_at(page, place * PAGE_BYTES as u64).context("a read past the page cache")?;
        count += 1;
    }
    Ok(count as f64 / clock.now().as_secs_f64())
}

/// Megabytes a second of one core that hashes messages of this length.
fn hashes(length: usize, limit: Duration) -> f64 {
    let (mut message, clock, mut count) = (vec![7; length], SystemClock::new(), 0_u64);
    while clock.now() < limit || count == 0 {
        for _ in 0..1000 {
            let digest = sha256(&message);
            message[..32].copy_from_slice(&digest.0);
        }
        count += 1000;
    }
    (count * length as u64) as f64 / clock.now().as_secs_f64() / 1e6
}

/// The load average of the last minute.
#[must_use]
pub fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|figure| figure.parse().ok()).unwrap_or(f64::NAN)
}

/// The processor, memory and kernel, in words.
#[must_use]
pub fn describe() -> String {
    let line = |file: &str, name: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name)).and_then(|line| line.split_once(':'));
        line.map_or_else(|| "?".to_owned(), |(_, value)| value.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let memory = line("/proc/meminfo", "MemTotal");
    let memory: u64 = memory.trim_end_matches(" kB").parse().unwrap_or(0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let model = line("/proc/cpuinfo", "model name");
    format!("{cores} cores ({model}), {} GiB of memory, Linux {}", memory >> 20, kernel.trim())
}

/// Bytes of pages that this process made dirty, or wrote past the page cache. A file system with
/// large folios counts whole folios.
///
/// # Errors
/// If the kernel doesn't say.
pub fn device_write_bytes() -> Result<u64> {
    figure("/proc/self/io", "write_bytes:")
}

/// Bytes that all programs have written to the device of a directory; `None` if the directory is on
/// no device.
///
/// # Errors
/// If the directory does not exist, or the kernel's figure can't be read.
pub fn device_written_bytes(dir: &Path) -> Result<Option<u64>> {
    let device = fs::metadata(dir).with_context(|| dir.display().to_string())?.dev();
    let file = format!("/sys/dev/block/{}:{}/stat", rustix::fs::major(device), rustix::fs::minor(device));
    let Ok(text) = fs::read_to_string(&file) else { return Ok(None) };
    let sectors: u64 = text.split_whitespace().nth(6).with_context(|| file.clone())?.parse().context(file)?;
    Ok(Some(sectors * 512))
}

/// The peak of this process's resident memory, in bytes.
///
/// # Errors
/// If the kernel doesn't say.
pub fn peak_memory_bytes() -> Result<u64> {
    figure("/proc/self/status", "VmHWM:").map(|kib| kib << 10)
}

/// This process's resident memory, in bytes.
///
/// # Errors
/// If the kernel doesn't say.
pub fn memory_bytes() -> Result<u64> {
    figure("/proc/self/status", "VmRSS:").map(|kib| kib << 10)
}

/// The number after a name in one of the kernel's files.
pub(crate) fn figure(file: &str, name: &str) -> Result<u64> {
    let text = fs::read_to_string(file).with_context(|| file.to_owned())?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let figure =
        line.and_then(|line| line.split_whitespace().next()).with_context(|| format!("no {name} in {file}"))?;
    Ok(figure.parse()?)
}

/// Bytes that the files below a directory occupy on disk, which may differ from their lengths.
///
/// # Errors
/// If the directory can't be listed.
pub fn disk_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        // A store may delete a file while it is looked at.
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += if metadata.is_dir() { disk_bytes(&entry.path())? } else { metadata.blocks() * 512 };
    }
    Ok(bytes)
}

/// Reads all files below a directory once, in order, so that the page cache has them.
///
/// # Errors
/// If a file can't be read.
pub fn read_files(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => read_files(&entry.path())?,
            Ok(_) => {
                let mut reader = BufReader::with_capacity(CHUNK_BYTES, File::open(entry.path())?);
                io::copy(&mut reader, &mut io::sink()).with_context(|| entry.path().display().to_string())?;
            }
            // A store may delete a file while it is looked at.
            Err(_) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_knows_this_process() {
        assert!(memory_bytes().expect("it says") > 1 << 20);
        assert!(peak_memory_bytes().expect("it says") >= memory_bytes().expect("it says") / 2);
        assert!(device_write_bytes().is_ok());
        assert!(device_written_bytes(Path::new("/")).is_ok());
        assert!(load_average() >= 0.0);
        assert!(describe().contains("cores"));
    }

    #[test]
    fn what_files_occupy_is_counted_through_all_directories() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("below")).expect("creates");
        let file = File::create(dir.path().join("below/file")).expect("creates");
        file.write_all_at(&[1; 100_000], 0).expect("writes");
        file.set_len(1 << 30).expect("grows");
        file.sync_all().expect("syncs");
        let bytes = disk_bytes(dir.path()).expect("lists");
        assert!((100_000..1_000_000).contains(&bytes), "{bytes}");
    }
}
