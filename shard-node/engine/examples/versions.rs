//! Measures what kept versions cost, on a real directory:
//!
//! `cargo run --release -p coppice-engine --example versions -- DIR [VERSIONS] [EVERY]`
//!
//! It commits `VERSIONS` versions of one record with a new key of 16 B and a value of 20 B, and
//! prunes none. With 0 versions it measures a directory that is there. After every `EVERY` versions
//! it prints a line of comma-separated values: resident memory, the parts of the directory, the
//! time of opening it again, and the time of a get in a random version and at the head. Memory is
//! that of the engine after opening it again, with small caches, and before.
#![expect(clippy::disallowed_methods, reason = "it reads what the kernel says of the process and the directory")]

use std::{error::Error, fs, hint::black_box, path::Path, sync::Arc};

use coppice_engine::{DiskUsage, Engine, MergeProgress, Options, Position, PrepareId, StageRequest};
use coppice_env::{Clock, DiskStorage, Rng, SimRng, SystemClock};
use coppice_types::{Change, Operation, Params, ShardId, Stamp, Term, Version};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Versions between two flushes, as in a replica.
const FLUSH_VERSIONS: u64 = 2048;
/// Records in one step of merging, as in a replica.
const MERGE_STEP: usize = 512;
/// Gets that a time is the average of.
const GETS: u64 = 20_000;

fn options() -> Options {
    // Small caches fill early, so memory that grows later is that of versions.
    Options { young_cache_bytes: 16 << 20, old_cache_bytes: 16 << 20, hash_cache_bytes: 1 << 20, ..Options::default() }
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("a directory is needed")?;
    let versions: u64 = arguments.next().map_or(Ok(300_000), |number| number.parse())?;
    let every: u64 = arguments.next().map_or(Ok(100_000), |number| number.parse())?;
    let storage = || Arc::new(DiskStorage::new(Path::new(&dir)));
    if versions == 0 {
        return measure_again(storage());
    }
    let mut engine = Engine::create(storage(), ShardId(0), Params::default(), options())?;
    println!(
        "versions,resident_mb,reopened_mb,open_s,index_mb,data_mb,patches_mb,values_mb,meta_mb,disk_mb,old_get_us,head_get_us"
    );
    let clock = SystemClock::new();
    for version in 1..=versions {
        commit(&mut engine, version)?;
        if version % FLUSH_VERSIONS == 0 || version % every == 0 {
            engine.flush(Position { index: version, term: 1 }, b"")?;
        }
        if version % every != 0 {
            continue;
        }
        let resident = resident_mb()?;
        drop(engine);
        let begin = clock.now();
        engine = Engine::open(storage(), options())?;
        let opened = (clock.now() - begin).as_secs_f64();
        let reopened = resident_mb()?;
        let old = gets(&engine, version, &|rng| 1 + rng.below(version))?;
        let head = gets(&engine, version, &|_| version)?;
        let usage: DiskUsage = engine.disk_usage()?;
        let mb = |bytes: u64| bytes as f64 / 1e6;
        println!(
            "{version},{resident:.1},{reopened:.1},{opened:.3},{:.1},{:.1},{:.1},{:.1},{:.1},{:.1},{old:.2},{head:.2}",
            mb(usage.index_bytes),
            mb(usage.data_bytes),
            mb(usage.patch_bytes),
            mb(usage.value_bytes),
            mb(usage.meta_bytes),
            mb(disk_bytes(Path::new(&dir))?),
        );
    }
    Ok(())
}

/// Opens a directory that an earlier run made. Memory then has no rest of commits and merges.
fn measure_again(storage: Arc<DiskStorage>) -> Outcome<()> {
    let clock = SystemClock::new();
    let before = resident_mb()?;
    let begin = clock.now();
    let engine = Engine::open(storage, options())?;
    let opened = (clock.now() - begin).as_secs_f64();
    let (grown, usage, version) = (resident_mb()? - before, engine.disk_usage()?, engine.decided().version.0);
    let caches = usage.young_cache_bytes + usage.old_cache_bytes + usage.hash_cache_bytes + usage.filter_bytes;
    println!("{version} versions: open {opened:.3} s, {grown:.1} MB, {:.1} MB of them caches", caches as f64 / 1e6);
    for _ in 0..2 {
        let old = gets(&engine, version, &|rng| 1 + rng.below(version))?;
        let head = gets(&engine, version, &|_| version)?;
        println!("a get in a random version {old:.1} us, at the head {head:.1} us, {:.1} MB", resident_mb()? - before);
    }
    Ok(())
}

/// The key that a version writes.
fn key(version: u64) -> Vec<u8> {
    let mut rng = SimRng::new(version);
    [rng.next_u64().to_be_bytes(), rng.next_u64().to_be_bytes()].concat()
}

fn commit(engine: &mut Engine, version: u64) -> Outcome<()> {
    let value = [version.to_be_bytes().as_slice(), &[7; 12]].concat();
    let operations = [Operation { key: key(version).into(), change: Change::Put(value.into()) }];
    let staged = engine.stage(&StageRequest {
        stamp: Stamp::new(0, version),
        prepare_id: PrepareId { term: Term(1), attempt: version },
        base: engine.decided(),
        merges: &engine.built_merges(),
        operations: &operations,
        erases: &[],
    })?;
    engine.settle(&staged.state)?;
    while engine.merge_step(MERGE_STEP)? == MergeProgress::Working {}
    Ok(())
}

/// Microseconds of a get of a key that the version has.
fn gets(engine: &Engine, head: u64, version: &dyn Fn(&mut SimRng) -> u64) -> Outcome<f64> {
    let (mut rng, clock) = (SimRng::new(head), SystemClock::new());
    let pairs: Vec<(u64, Vec<u8>)> = (0..GETS)
        .map(|_| {
            let version = version(&mut rng);
            (version, key(1 + rng.below(version)))
        })
        .collect();
    let begin = clock.now();
    for (version, key) in &pairs {
        let record = engine.view_at(Version(*version))?.get(key, true)?;
        black_box(record).ok_or("a version has the keys of those before it")?;
    }
    Ok((clock.now() - begin).as_secs_f64() * 1e6 / GETS as f64)
}

fn resident_mb() -> Outcome<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1e3)
}

/// Bytes that the files below a directory take on the disk.
fn disk_bytes(dir: &Path) -> Outcome<u64> {
    use std::os::unix::fs::MetadataExt;
    fs::read_dir(dir)?.map(|entry| Ok(entry?.metadata()?.blocks() * 512)).sum()
}
