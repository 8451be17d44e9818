//! Measures an engine on a real directory:
//!
//! `cargo run --release --workspace --example rates -- DIR [NAME=NUMBER]...`
//!
//! It loads `records` records with keys of 32 B and values of `value` B, in batches of `batch`.
//! Then it puts `updates` random records as a replica does: stage, settle, prune to the last
//! `retain` versions, merge a little, flush when `flush_mib` wait. Data that lasts is written ahead
//! on a thread, unless `ahead=0`. `durable=1` flushes each batch; `durable=2` also merges during
//! the flush. Then it gets, proves, prunes and rolls back. Every put computes the shard digest.
//! `device` is the number of bytes that the kernel counts as written by this process, after a last
//! flush. [`Config`] has the names and their defaults.
//!
//! `report=N` prints a line of comma-separated values after every N updates, to show whether
//! everything that may grow settles.

use std::{
    error::Error,
    num::NonZero,
    path::{Path, PathBuf},
    sync::Arc,
    thread::{Builder, JoinHandle},
    time::Duration,
};

use coppice_engine::{Counters, Engine, MergeProgress, Options, Position, PrepareId, StageRequest, Writes};
use coppice_env::{Clock, DiskStorage, Rng, SimRng, SystemClock, Workers};
use coppice_types::{Change, Epoch, Operation, Params, ShardId, Stamp, Term, Version};

type Outcome = Result<(), Box<dyn Error>>;

/// Records in one step of merging, as in a replica.
const MERGE_STEP: usize = 512;

#[derive(Debug)]
struct Config {
    records: u64,
    updates: u64,
    batch: u64,
    value: u64,
    capacity: u64,
    retain: u64,
    flush_mib: u64,
    cache_mib: u64,
    reads: u64,
    ahead: u64,
    durable: u64,
    /// Threads in addition to the one that stages.
    helpers: u64,
    ratio: u64,
    report: u64,
    /// [`Options::waiting_percent_max`].
    waiting: u64,
}

impl Config {
    fn read(arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut config = Self {
            records: 200_000,
            updates: 200_000,
            batch: 1000,
            value: 1024,
            capacity: u64::from(Params::default().capacity),
            retain: 40,
            flush_mib: 32,
            cache_mib: 64,
            reads: 50_000,
            ahead: 1,
            durable: 0,
            helpers: 1,
            ratio: u64::from(Params::default().tier_ratio),
            report: 0,
            waiting: u64::from(Options::default().waiting_percent_max),
        };
        for argument in arguments {
            let (name, number) = argument.split_once('=').ok_or("NAME=NUMBER")?;
            let field = match name {
                "records" => &mut config.records,
                "updates" => &mut config.updates,
                "batch" => &mut config.batch,
                "value" => &mut config.value,
                "capacity" => &mut config.capacity,
                "retain" => &mut config.retain,
                "flush_mib" => &mut config.flush_mib,
                "cache_mib" => &mut config.cache_mib,
                "reads" => &mut config.reads,
                "ahead" => &mut config.ahead,
                "durable" => &mut config.durable,
                "helpers" => &mut config.helpers,
                "ratio" => &mut config.ratio,
                "report" => &mut config.report,
                "waiting" => &mut config.waiting,
                _ => return Err(format!("what is {name}?").into()),
            };
            *field = number.parse()?;
        }
        Ok(config)
    }
}

fn key(number: u64) -> Vec<u8> {
    // Spreads the numbers over the key space, like hashed keys.
    let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("{spread:016x}{number:016x}").into_bytes()
}

/// Bytes that this process sent to devices, and its resident memory, as the kernel reports them.
#[expect(clippy::disallowed_methods, reason = "the kernel's figures are files outside any storage")]
fn kernel() -> Result<(u64, u64), Box<dyn Error>> {
    let field = |file: &str, name: &str| -> Result<u64, Box<dyn Error>> {
        let text = std::fs::read_to_string(file)?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such figure")?;
        Ok(line.split_whitespace().next().ok_or("no figure")?.parse()?)
    };
    Ok((field("/proc/self/io", "write_bytes:")?, field("/proc/self/status", "VmRSS:")? << 10))
}

/// Bytes that the files of a directory take on disk.
#[expect(clippy::disallowed_methods, reason = "storages do not report it")]
fn allocated(dir: &Path) -> Result<u64, Box<dyn Error>> {
    use std::os::unix::fs::MetadataExt;
    let blocks = |entry: std::io::Result<std::fs::DirEntry>| Ok::<u64, std::io::Error>(entry?.metadata()?.blocks());
    let blocks: Vec<u64> = std::fs::read_dir(dir)?.map(blocks).collect::<Result<_, _>>()?;
    Ok(blocks.iter().sum::<u64>() * 512)
}

/// Processor time of this thread. On a machine with other load it is more accurate than the clock.
#[expect(clippy::disallowed_methods, reason = "the kernel's figures are files outside any storage")]
fn processor() -> Result<Duration, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(Duration::from_nanos(text.split_whitespace().next().ok_or("no figure")?.parse()?))
}

/// A moment, by clock and by processor time.
#[derive(Clone, Copy)]
struct Moment(Duration, Duration);

/// Time spent in a phase.
#[derive(Clone, Copy, Default)]
struct Span {
    clock: Duration,
    processor: Duration,
    /// The longest duration by the clock.
    longest: Duration,
}

impl Span {
    fn add(&mut self, from: Moment, to: Moment) {
        self.clock += to.0 - from.0;
        self.processor += to.1 - from.1;
        self.longest = self.longest.max(to.0 - from.0);
    }

    /// Microseconds for each record, by clock and by processor time.
    fn each(&self, records: usize) -> String {
        let each = |span: Duration| span.as_secs_f64() * 1e6 / records as f64;
        format!("{:.2} ({:.2})", each(self.clock), each(self.processor))
    }
}

struct Bench {
    config: Config,
    engine: Engine,
    clock: SystemClock,
    rng: SimRng,
    version: u64,
    /// The first version that has all records.
    loaded: u64,
    dir: PathBuf,
    /// The thread that runs writes.
    thread: Option<JoinHandle<Writes>>,
}

#[derive(Default)]
struct Times {
    stage: Span,
    settle: Span,
    merge: Span,
    flush: Span,
}

impl Bench {
    fn now(&self) -> Result<Moment, Box<dyn Error>> {
        Ok(Moment(self.clock.now(), processor()?))
    }

    fn put(&mut self, what: &str, batches: u64, mut next: impl FnMut(&mut SimRng) -> u64) -> Outcome {
        let mut times = Times::default();
        let (before, device_before) = (self.engine.counters(), kernel()?.0);
        let (mut records, mut reported, mut last, started) = (0, 0, before, self.clock.now());
        for _ in 0..batches {
            let value = |number: u64, version: u64| {
                let mut bytes = vec![number as u8; self.config.value as usize];
                bytes[..8].copy_from_slice(&version.to_le_bytes());
                bytes
            };
            let version = self.version + 1;
            let mut operations: Vec<Operation> = (0..self.config.batch)
                .map(|_| next(&mut self.rng))
                .map(|number| Operation { key: key(number).into(), change: Change::Put(value(number, version).into()) })
                .collect();
            operations.sort_by(|a, b| a.key.cmp(&b.key));
            operations.dedup_by(|a, b| a.key == b.key);
            records += operations.len();
            self.commit(&operations, &mut times)?;
            if what == "update" && self.config.report > 0 && records as u64 / self.config.report > reported {
                reported = records as u64 / self.config.report;
                let counters = self.engine.counters();
                self.report(records, started, &last, &counters)?;
                last = counters;
            }
        }
        self.begin_flush(&mut times)?;
        self.end_writes(&mut times)?;
        let wall = (self.clock.now() - started).as_secs_f64();
        let after = self.engine.counters();
        let (device, resident) = kernel()?;
        let all = [times.stage, times.settle, times.merge, times.flush];
        let rate = |of: fn(&Span) -> Duration| records as f64 / all.iter().map(of).sum::<Duration>().as_secs_f64();
        let longest = |span: &Span| span.longest.as_secs_f64() * 1e3;
        println!(
            "{what}: {:.0} records/s ({:.0} with their making), {:.0} a second of processor | us/record (processor): stage {}, settle+prune {}, \
             merge {}, flush {} | longest: stage {:.1} ms, settle+prune {:.1}, step of merging {:.1}, flush {:.1} | {} MiB resident, {} trees",
            rate(|span| span.clock),
            records as f64 / wall,
            rate(|span| span.processor),
            times.stage.each(records),
            times.settle.each(records),
            times.merge.each(records),
            times.flush.each(records),
            longest(&times.stage),
            longest(&times.settle),
            longest(&times.merge),
            longest(&times.flush),
            resident >> 20,
            self.engine.shape(&self.engine.decided())?.entries.len(),
        );
        written(&before, &after, device - device_before);
        Ok(())
    }

    fn commit(&mut self, operations: &[Operation], times: &mut Times) -> Outcome {
        self.version += 1;
        let merges: Vec<_> = self.engine.built_merges().into_iter().take(1).collect();
        let request = StageRequest {
            stamp: Stamp { epoch: self.engine.epoch(), version: Version(self.version) },
            prepare_id: PrepareId { term: Term(1), attempt: self.version },
            base: self.engine.decided(),
            merges: &merges,
            operations,
            erases: &[],
        };
        let start = self.now()?;
        let staged = self.engine.stage(&request)?;
        let end = self.now()?;
        times.stage.add(start, end);
        self.engine.settle(&staged.state)?;
        self.engine.prune(Version(self.version.saturating_sub(self.config.retain)))?;
        times.settle.add(end, self.now()?);
        if self.config.durable == 2 {
            self.begin_flush(times)?;
        }
        self.merge(operations.len(), times)?;
        match self.config.durable {
            0 => self.write(times),
            1 => self.begin_flush(times).and_then(|()| self.end_writes(times)),
            _ => self.end_writes(times),
        }
    }

    /// Begins and ends writes ahead and flushes, as a replica does.
    fn write(&mut self, times: &mut Times) -> Outcome {
        let flush_bytes = self.config.flush_mib << 20;
        if self.engine.unflushed_bytes() >= 2 * flush_bytes {
            return self.begin_flush(times);
        }
        if self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return Ok(());
        }
        self.end_writes(times)?;
        if self.engine.unflushed_bytes() >= flush_bytes || self.engine.much_waits() {
            return self.begin_flush(times);
        }
        if self.config.ahead > 0 && self.engine.behind_bytes() > self.engine.ahead_bytes_min(flush_bytes) {
            let start = self.now()?;
            self.thread = Some(spawn(self.engine.begin_ahead())?);
            times.flush.add(start, self.now()?);
        }
        Ok(())
    }

    fn begin_flush(&mut self, times: &mut Times) -> Outcome {
        self.end_writes(times)?;
        let start = self.now()?;
        self.thread = Some(spawn(self.engine.begin_flush(Position { index: self.version, term: 1 }, b"")?)?);
        times.flush.add(start, self.now()?);
        Ok(())
    }

    fn end_writes(&mut self, times: &mut Times) -> Outcome {
        let start = self.now()?;
        if let Some(thread) = self.thread.take() {
            self.engine.end_writes(thread.join().expect("writes break no invariant"))?;
        }
        times.flush.add(start, self.now()?);
        Ok(())
    }

    /// Merges ten times as many records as were put. Merges to the end if writes would be refused
    /// otherwise.
    fn merge(&mut self, put: usize, times: &mut Times) -> Outcome {
        let crowded = |engine: &Engine| -> Result<bool, Box<dyn Error>> {
            let trees = engine.shape(&engine.decided())?.entries.len();
            Ok(trees >= usize::from(engine.params().tree_limit))
        };
        let mut steps = put * 10 / MERGE_STEP + 1;
        while steps > 0 || crowded(&self.engine)? {
            let start = self.now()?;
            let progress = self.engine.merge_step(MERGE_STEP)?;
            times.merge.add(start, self.now()?);
            if progress != MergeProgress::Working {
                break;
            }
            steps = steps.saturating_sub(1);
            if self.config.durable == 0 {
                self.write(times)?;
            }
        }
        Ok(())
    }

    /// Prints a line of the values that must settle. `disk` is relative to the bytes of keys and
    /// values that are live or in retained versions.
    fn report(&mut self, updates: usize, started: Duration, last: &Counters, now: &Counters) -> Outcome {
        const GETS: u64 = 2000;
        if updates as u64 / self.config.report == 1 {
            println!(
                "updates,seconds,disk,disk_mb,index_mb,data_mb,patches_mb,waiting_mb,free_mb,values_live_mb,values_dead_mb,meta_mb,trees,\
                 get_us,proof_bytes,resident_mib,{}",
                KINDS.map(|(kind, _)| kind).join(",")
            );
        }
        let seconds = (self.clock.now() - started).as_secs_f64();
        let view = self.engine.view(&self.engine.decided())?;
        let begin = self.clock.now();
        for _ in 0..GETS {
            view.get(&key(self.rng.below(self.config.records)), true)?.ok_or("a record is missing")?;
        }
        let get_us = (self.clock.now() - begin).as_secs_f64() * 1e6 / GETS as f64;
        let mut proof_bytes = 0;
        for _ in 0..50 {
            proof_bytes += view.prove_keys(&[&key(self.rng.below(self.config.records))])?.len() / 50;
        }
        let places: Vec<String> = self.places()?.iter().map(|(_, bytes)| format!("{:.1}", bytes / 1e6)).collect();
        let disk = allocated(&self.dir)? as f64;
        let kept = (self.config.records + self.config.retain * self.config.batch) * (32 + self.config.value);
        let shares: Vec<String> = shares(last, now).iter().map(|(_, share)| format!("{share:.2}")).collect();
        println!(
            "{updates},{seconds:.1},{:.2},{:.1},{},{},{get_us:.2},{proof_bytes},{},{}",
            disk / kept as f64,
            disk / 1e6,
            places.join(","),
            self.engine.shape(&self.engine.decided())?.entries.len(),
            kernel()?.1 >> 20,
            shares.join(","),
        );
        Ok(())
    }

    /// The distribution of the bytes on disk. Free pages count only if the file system did not get
    /// their space back.
    fn places(&self) -> Result<[(&'static str, f64); 8], Box<dyn Error>> {
        let usage = self.engine.disk_usage()?;
        let free = usage.index_free_bytes + usage.data_free_bytes + usage.patch_free_bytes;
        Ok([
            ("index", (usage.index_bytes - usage.index_free_bytes) as f64),
            ("data", (usage.data_bytes - usage.data_free_bytes) as f64),
            ("patches", (usage.patch_bytes - usage.patch_free_bytes) as f64),
            ("waiting", usage.waiting_bytes as f64),
            ("free", free as f64 - usage.waiting_bytes as f64),
            ("values live", usage.value_live_bytes as f64),
            ("values dead", usage.value_bytes as f64 - usage.value_live_bytes as f64),
            ("meta", usage.meta_bytes as f64),
        ])
    }

    fn read(&mut self) -> Outcome {
        let (engine, records, reads) = (&self.engine, self.config.records, self.config.reads);
        let (clock, rng) = (&self.clock, &mut self.rng);
        let view = engine.view(&engine.decided())?;
        for round in ["gets", "gets again"] {
            time(clock, round, reads, || {
                for _ in 0..reads {
                    view.get(&key(rng.below(records)), true)?.ok_or("a record is missing")?;
                }
                Ok(())
            })?;
        }
        let older = self.version.saturating_sub(self.config.retain).max(self.loaded);
        let older = engine.view_at(Version(older).max(engine.boundary()))?;
        time(clock, "gets at the oldest version with all records", reads, || {
            for _ in 0..reads {
                older.get(&key(rng.below(records)), true)?.ok_or("a record is missing")?;
            }
            Ok(())
        })?;
        time(clock, "gets of absent keys", reads, || {
            for _ in 0..reads {
                assert!(view.get(&key(records + rng.below(records)), true)?.is_none());
            }
            Ok(())
        })?;
        let mut found = 0;
        time(clock, "ranges of 100", reads / 100, || {
            for _ in 0..reads / 100 {
                found += view.range(&key(rng.below(records)), None, 100, true)?.records.len();
            }
            Ok(())
        })?;
        let mut bytes = 0;
        time(clock, "proofs of a present key", reads / 10, || {
            for _ in 0..reads / 10 {
                bytes += view.prove_keys(&[&key(rng.below(records))])?.len() as u64;
            }
            Ok(())
        })?;
        println!("{} bytes a proof", bytes / (reads / 10).max(1));
        Ok(())
    }

    fn drop_versions(&mut self) -> Outcome {
        let count = self.config.retain / 2;
        let start = self.clock.now();
        self.engine.prune(Version(self.version.saturating_sub(count)))?;
        let pruned = self.clock.now();
        self.engine.rollback(Version(self.version.saturating_sub(count / 2)), Epoch(1))?;
        let rolled = self.clock.now();
        println!("prune of {count} versions: {:?}; rollback of {}: {:?}", pruned - start, count / 2, rolled - pruned);
        Ok(())
    }
}

/// A kind of write.
type Kind = (&'static str, fn(&Counters) -> u64);
const KINDS: [Kind; 7] = [
    ("leaves", |all| all.span_write_bytes - all.patch_write_bytes - all.merge_write_bytes - all.inner_write_bytes),
    ("inner", |all| all.inner_write_bytes),
    ("patches", |all| all.patch_write_bytes),
    ("merges", |all| all.merge_write_bytes),
    ("values", |all| all.value_write_bytes - all.value_moved_bytes),
    ("moved", |all| all.value_moved_bytes),
    ("meta", |all| all.meta_write_bytes),
];

/// Bytes written for each byte of keys and values, by kind.
fn shares(before: &Counters, after: &Counters) -> [(&'static str, f64); KINDS.len()] {
    let user = (after.user_bytes - before.user_bytes) as f64;
    KINDS.map(|(kind, of)| (kind, (of(after) as f64 - of(before) as f64) / user))
}

fn written(before: &Counters, after: &Counters, device: u64) {
    let shares = shares(before, after);
    let kinds: Vec<String> = shares.iter().map(|(kind, share)| format!("{kind} {share:.2}")).collect();
    println!(
        "    written per user byte: {:.2} ({}); device {:.2}; {} nodes made, {} written, {} read, {} flushes",
        shares.iter().map(|(_, share)| share).sum::<f64>(),
        kinds.join(", "),
        device as f64 / (after.user_bytes - before.user_bytes) as f64,
        after.nodes_made - before.nodes_made,
        after.span_writes - before.span_writes,
        after.span_reads - before.span_reads,
        after.flushes - before.flushes,
    );
}

fn time(clock: &SystemClock, what: &str, count: u64, run: impl FnOnce() -> Outcome) -> Outcome {
    let (start, processor_start) = (clock.now(), processor()?);
    run()?;
    let (seconds, processor) = ((clock.now() - start).as_secs_f64(), (processor()? - processor_start).as_secs_f64());
    println!("{:.0} {what}/s, {:.0} a second of processor", count as f64 / seconds, count as f64 / processor);
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "the program owns the engine and its threads")]
fn spawn(mut writes: Writes) -> std::io::Result<JoinHandle<Writes>> {
    let run = move || {
        writes.run();
        writes
    };
    Builder::new().name("disk-writer".to_owned()).spawn(run)
}

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("which directory?")?;
    let config = Config::read(arguments)?;
    println!("{config:?}");
    let storage = Arc::new(DiskStorage::new(&dir));
    let (capacity, tier_ratio) = (u32::try_from(config.capacity)?, u8::try_from(config.ratio)?);
    let params = Params { capacity, tier_ratio, ..Params::default() };
    let cache = (config.cache_mib as usize) << 20;
    let workers = NonZero::new(config.helpers as usize).map_or(Workers::Inline, Workers::Threads);
    let options = Options {
        young_cache_bytes: cache,
        old_cache_bytes: cache,
        workers,
        waiting_percent_max: config.waiting as u32,
        ..Options::default()
    };
    let engine = Engine::create(storage, ShardId(0), params, options)?;
    let (records, batch) = (config.records, config.batch);
    let batches = (records / batch, config.updates / batch);
    let mut bench = Bench {
        config,
        engine,
        clock: SystemClock::new(),
        rng: SimRng::new(1),
        version: 0,
        loaded: 0,
        dir: dir.into(),
        thread: None,
    };
    let mut loaded = 0;
    bench.put("load", batches.0, |_| {
        loaded += 1;
        loaded - 1
    })?;
    (bench.config.records, bench.loaded) = (loaded, bench.version);
    bench.put("update", batches.1, |rng| rng.below(loaded))?;
    bench.read()?;
    bench.drop_versions()?;
    let places: Vec<String> =
        bench.places()?.iter().map(|(place, bytes)| format!("{place} {:.1}", bytes / 1e6)).collect();
    println!("MB: {:.1} on disk; {}", allocated(&bench.dir)? as f64 / 1e6, places.join(", "));
    println!("{:?}", bench.engine.disk_usage()?);
    Ok(())
}
