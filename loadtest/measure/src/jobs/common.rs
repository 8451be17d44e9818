//! The types that jobs share: their scale, their outcome, and their phases.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use anyhow::{Result, ensure};
use coppice_env::{Clock, SystemClock};
use serde::{Deserialize, Serialize};

use crate::{
    figures::{Sample, Series},
    system::{Reader, System},
    workload::{KEY_BYTES, Record, Workload},
};

/// The result of a job.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    pub sample: Sample,
    pub series: Vec<Series>,
}

/// The size of a job, and the duration of its phases.
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
    /// Seconds of each phase, except the load and the puts of the comparison.
    pub seconds: f64,
    /// Seconds of each kind of puts in the comparison: long enough for the work that stores
    /// postpone to fall due within.
    pub put_seconds: f64,
    /// The seed of the records.
    pub seed: u64,
}

impl Scale {
    pub(super) fn workload(&self) -> Workload {
        Workload::new(self.records, self.value_bytes, self.skew, self.seed)
    }

    pub(super) fn limit(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    pub(super) fn record_bytes(&self) -> u64 {
        (KEY_BYTES + self.value_bytes) as u64
    }
}

/// Keys that reads cycle through.
pub(super) const KEYS: usize = 50_000;
/// Lengths of ranges, in records, for a curve.
pub(super) const LENGTHS: [usize; 7] = [5, 10, 50, 100, 500, 1000, 2000];

/// Puts that were timed one by one.
#[derive(Debug, Default)]
pub(super) struct Puts {
    pub(super) records: u64,
    /// Seconds of each put.
    pub(super) times: Vec<f64>,
}

impl Puts {
    /// Records a second, by the time within puts alone.
    pub(super) fn rate(&self) -> f64 {
        self.records as f64 / self.seconds()
    }

    /// Seconds within puts alone.
    pub(super) fn seconds(&self) -> f64 {
        self.times.iter().sum()
    }

    pub(super) fn put(&mut self, system: &mut dyn System, batch: Vec<Record>) -> Result<()> {
        self.records += batch.len() as u64;
        let clock = SystemClock::new();
        system.put(batch)?;
        self.times.push(clock.now().as_secs_f64());
        Ok(())
    }
}

pub(super) fn load_all(system: &mut dyn System, workload: &mut Workload, batch: usize, sorted: bool) -> Result<Puts> {
    let mut puts = Puts::default();
    for numbers in workload.order(sorted).chunks(batch) {
        let batch = workload.batch(numbers);
        puts.put(system, batch)?;
    }
    Ok(puts)
}

/// Puts batches of updates until the puts have taken this long together.
pub(super) fn update(system: &mut dyn System, workload: &mut Workload, batch: usize, limit: Duration) -> Result<Puts> {
    let mut puts = Puts::default();
    let mut spent = 0.0;
    while spent < limit.as_secs_f64() {
        let batch = workload.updates(batch.min(workload.records as usize));
        puts.put(system, batch)?;
        spent += puts.times.last().copied().unwrap_or_default();
    }
    Ok(puts)
}

/// Settles the system; returns the seconds that the remaining background work took.
pub(super) fn settle(system: &mut dyn System) -> Result<f64> {
    let clock = SystemClock::new();
    system.settle()?;
    Ok(clock.now().as_secs_f64())
}

/// Measures gets a second, with one thread for each list of keys, after a warm-up of half the time.
pub(super) fn gets(system: &dyn System, keys: &[Vec<Vec<u8>>], limit: Duration, value_bytes: usize) -> Result<f64> {
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

/// Gets each key and checks that its value has the given length. Returns the number of keys.
pub(super) fn get_all(reader: &mut dyn Reader, keys: &[Vec<u8>], value_bytes: usize) -> Result<u64> {
    let mut value = Vec::new();
    for key in keys {
        ensure!(reader.get(key, &mut value)?, "a record is missing");
        ensure!(value.len() == value_bytes, "a value has {} bytes instead of {value_bytes}", value.len());
    }
    Ok(keys.len() as u64)
}

/// Measures records a second of ranges of one length, from each start or until the time is over.
/// `None` if the system keeps no order.
pub(super) fn range_rate<'k>(
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
