//! What is timed. Each job runs in a process of its own, on a fresh directory, so that memory and written bytes are its system's.

mod beside;
mod growth;
mod history;
mod plateau;
mod proofs;
mod reads;

pub use beside::{beside_merges, beside_moves};
pub use growth::{growth, growth_ours};
pub use history::history;
pub use plateau::{PlateauScale, plateau};
pub use proofs::{proofs, proofs_by_trees};
pub use reads::reads_per_get;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use anyhow::{Result, ensure};
use coppice_env::{Clock, SystemClock};
use serde::{Deserialize, Serialize};

use crate::{
    machine,
    report::Series,
    statistics::quantile,
    system::{Reader, System},
    workload::{KEY_BYTES, Workload},
};

/// Figures by name.
pub type Sample = BTreeMap<String, f64>;

/// What a job found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Figures.
    pub sample: Sample,
    /// Curves.
    pub series: Vec<Series>,
}

/// How large and how long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scale {
    /// Records that are loaded.
    pub records: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Records of a batch.
    pub batch: usize,
    /// Skew of updates and reads, by Zipf's law; 0 is even.
    pub skew: f64,
    /// Bytes for each system's caches.
    pub cache_bytes: usize,
    /// How long each phase is, but for the load and for puts side by side.
    pub seconds: f64,
    /// How long each kind of puts side by side goes on: what stores put off is to fall due within.
    pub put_seconds: f64,
    /// Where the records follow from.
    pub seed: u64,
}

impl Scale {
    fn workload(&self) -> Workload {
        Workload::new(self.records, self.value_bytes, self.skew, self.seed)
    }

    fn limit(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    fn record_bytes(&self) -> u64 {
        (KEY_BYTES + self.value_bytes) as u64
    }
}

/// Keys that reads go around in.
const KEYS: usize = 50_000;
/// Records of a range, for a curve.
const LENGTHS: [usize; 7] = [5, 10, 50, 100, 500, 1000, 2000];

/// All phases that every system can do: load in key order, ranges, updates by 4,000 and by 500, gets, ranges again.
///
/// # Errors
/// If the system fails, or reads anything but what was written.
pub fn compare(system: &mut dyn System, dir: &Path, scale: &Scale) -> Result<Outcome> {
    let (mut workload, mut sample) = (scale.workload(), Sample::new());
    let loaded = load_all(system, &mut workload, scale.batch, true)?;
    sample.insert("load_sorted".to_owned(), loaded.rate());
    sample.insert("load_settle_s".to_owned(), settle(system)?);
    ranges(system, &mut workload, scale.limit(), "loaded", &mut sample)?;
    let (mut updated, written) = (0, machine::device_write_bytes()?);
    let (mut spent, mut settled) = (0.0, 0.0);
    for batch in [4000, 500] {
        let mut puts = update(system, &mut workload, batch, Duration::from_secs_f64(scale.put_seconds))?;
        sample.insert(format!("put_{batch}"), puts.rate());
        puts.times.sort_unstable_by(f64::total_cmp);
        sample.insert(format!("put_{batch}_p50_ms"), quantile(&puts.times, 0.5) * 1e3);
        sample.insert(format!("put_{batch}_p99_ms"), quantile(&puts.times, 0.99) * 1e3);
        updated += puts.records;
        spent += puts.seconds();
        settled += settle(system)?;
    }
    sample.insert("put_settle_s".to_owned(), settled);
    sample.insert("put_settled".to_owned(), updated as f64 / (spent + settled));
    let written = machine::device_write_bytes()? - written;
    let user_bytes = updated * scale.record_bytes();
    sample.insert("written_per_user_byte".to_owned(), written as f64 / user_bytes as f64);
    for threads in [1, 2] {
        let keys = (0..threads).map(|_| workload.keys(KEYS)).collect::<Vec<_>>();
        let rate = gets(system, &keys, scale.limit(), scale.value_bytes)?;
        sample.insert(format!("get_{threads}"), rate);
    }
    ranges(system, &mut workload, scale.limit(), "updated", &mut sample)?;
    sample.insert("memory_mib".to_owned(), machine::peak_memory_bytes()? as f64 / f64::from(1 << 20));
    let disk = machine::disk_bytes(dir)? as f64;
    sample.insert("disk_mib".to_owned(), disk / f64::from(1 << 20));
    sample.insert("disk_per_live_byte".to_owned(), disk / (scale.records * scale.record_bytes()) as f64);
    Ok(Outcome { sample, series: Vec::new() })
}

/// The load alone, in key order or not: records a second, and how long what it owes takes.
///
/// # Errors
/// If the system fails.
pub fn load(system: &mut dyn System, scale: &Scale, sorted: bool) -> Result<Outcome> {
    let loaded = load_all(system, &mut scale.workload(), scale.batch, sorted)?;
    let name = if sorted { "load_sorted" } else { "load_unsorted" };
    let settled = settle(system)?;
    let sample = [(name.to_owned(), loaded.rate()), (format!("{name}_settle_s"), settled)].into();
    Ok(Outcome { sample, series: Vec::new() })
}

/// Updates, and gets, of one kind, after a load: a point of a sweep.
///
/// # Errors
/// If the system fails, or reads anything but what was written.
pub fn point(system: &mut dyn System, dir: &Path, scale: &Scale) -> Result<Outcome> {
    let mut workload = scale.workload();
    let loaded = load_all(system, &mut workload, scale.batch, false)?;
    settle(system)?;
    let puts = update(system, &mut workload, scale.batch, scale.limit())?;
    settle(system)?;
    let keys = [workload.keys(KEYS)];
    let got = gets(system, &keys, scale.limit(), scale.value_bytes)?;
    let live = (scale.records * scale.record_bytes()) as f64;
    let sample = [
        ("load".to_owned(), loaded.rate()),
        ("put".to_owned(), puts.rate()),
        ("get".to_owned(), got),
        ("memory_mib".to_owned(), machine::peak_memory_bytes()? as f64 / f64::from(1 << 20)),
        ("disk_per_live_byte".to_owned(), machine::disk_bytes(dir)? as f64 / live),
    ];
    Ok(Outcome { sample: sample.into(), series: Vec::new() })
}

/// Puts that were timed one by one.
#[derive(Debug, Default)]
pub(crate) struct Puts {
    pub(crate) records: u64,
    /// Seconds of each.
    pub(crate) times: Vec<f64>,
}

impl Puts {
    /// Records a second, by the time within puts alone.
    pub(crate) fn rate(&self) -> f64 {
        self.records as f64 / self.seconds()
    }

    /// The time within puts alone.
    pub(crate) fn seconds(&self) -> f64 {
        self.times.iter().sum()
    }

    pub(crate) fn put(&mut self, system: &mut dyn System, batch: Vec<crate::workload::Record>) -> Result<()> {
        self.records += batch.len() as u64;
        let clock = SystemClock::new();
        system.put(batch)?;
        self.times.push(clock.now().as_secs_f64());
        Ok(())
    }
}

fn load_all(system: &mut dyn System, workload: &mut Workload, batch: usize, sorted: bool) -> Result<Puts> {
    let mut puts = Puts::default();
    for numbers in workload.order(sorted).chunks(batch) {
        let batch = workload.batch(numbers);
        puts.put(system, batch)?;
    }
    Ok(puts)
}

/// Batches of updates until the puts have taken so long together.
fn update(system: &mut dyn System, workload: &mut Workload, batch: usize, limit: Duration) -> Result<Puts> {
    let mut puts = Puts::default();
    let mut spent = 0.0;
    while spent < limit.as_secs_f64() {
        let batch = workload.updates(batch.min(workload.records as usize));
        puts.put(system, batch)?;
        spent += puts.times.last().copied().unwrap_or_default();
    }
    Ok(puts)
}

/// How many seconds the background work takes that earlier phases left.
fn settle(system: &mut dyn System) -> Result<f64> {
    let clock = SystemClock::new();
    system.settle()?;
    Ok(clock.now().as_secs_f64())
}

/// Gets a second by as many threads as there are lists of keys, after half as long a warm-up.
fn gets(system: &dyn System, keys: &[Vec<Vec<u8>>], limit: Duration, value_bytes: usize) -> Result<f64> {
    let mut rate = 0.0;
    for limit in [limit / 2, limit] {
        let (over, total, clock) = (AtomicBool::new(false), AtomicU64::new(0), SystemClock::new());
        let thread = |keys: &[Vec<u8>]| -> Result<()> {
            let mut reader = system.reader()?;
            let mut count = 0;
            while !over.load(Ordering::Relaxed) {
                for chunk in keys.chunks(256) {
                    count += get_all(&mut *reader, chunk, value_bytes)?;
                    if clock.now() >= limit {
                        over.store(true, Ordering::Relaxed);
                        break;
                    }
                }
            }
            total.fetch_add(count, Ordering::Relaxed);
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = keys.iter().map(|keys| scope.spawn(|| thread(keys))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a read breaks no invariant"))
        })?;
        rate = total.into_inner() as f64 / clock.now().as_secs_f64();
    }
    Ok(rate)
}

/// Gets each key, all of which have values of one length; how many they were.
pub(crate) fn get_all(reader: &mut dyn Reader, keys: &[Vec<u8>], value_bytes: usize) -> Result<u64> {
    let mut value = Vec::new();
    for key in keys {
        ensure!(reader.get(key, &mut value)?, "a record is missing");
        ensure!(value.len() == value_bytes, "a value has {} bytes instead of {value_bytes}", value.len());
    }
    Ok(keys.len() as u64)
}

/// Records a second of ranges of 100 and 1,000.
fn ranges(
    system: &dyn System,
    workload: &mut Workload,
    limit: Duration,
    when: &str,
    sample: &mut Sample,
) -> Result<()> {
    for length in [100, 1000] {
        let starts = workload.keys(1000);
        let rate = range_rate(system, starts.iter().cycle(), length, limit / 2, workload.value_bytes)?;
        let Some(rate) = rate else { return Ok(()) };
        sample.insert(format!("range_{length}_{when}"), rate);
    }
    Ok(())
}

/// Records a second of ranges of one length, from each start or as long as there is time; none if the system keeps no order.
fn range_rate<'k>(
    system: &dyn System,
    starts: impl Iterator<Item = &'k Vec<u8>>,
    length: usize,
    limit: Duration,
    value_bytes: usize,
) -> Result<Option<f64>> {
    let (mut reader, clock, mut records, mut bytes) = (system.reader()?, SystemClock::new(), 0, 0);
    for start in starts {
        let found = reader.range(start, length, &mut |key, value| bytes += key.len() + value.len())?;
        let Some(found) = found else { return Ok(None) };
        ensure!(found <= length, "a range of {length} has {found} records");
        records += found;
        if clock.now() >= limit {
            break;
        }
    }
    let seconds = clock.now().as_secs_f64();
    ensure!(bytes == records * (KEY_BYTES + value_bytes), "a range shows keys and values");
    Ok(Some(records as f64 / seconds))
}

#[cfg(test)]
mod tests;
