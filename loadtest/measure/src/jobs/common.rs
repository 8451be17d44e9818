//! What jobs share: their scale, their outcome, and the phases that they are made of.

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

/// Keys that reads go around in.
pub(super) const KEYS: usize = 50_000;
/// Records of a range, for a curve.
pub(super) const LENGTHS: [usize; 7] = [5, 10, 50, 100, 500, 1000, 2000];

/// Puts that were timed one by one.
#[derive(Debug, Default)]
pub(super) struct Puts {
    pub(super) records: u64,
    /// Seconds of each.
    pub(super) times: Vec<f64>,
}

impl Puts {
    /// Records a second, by the time within puts alone.
    pub(super) fn rate(&self) -> f64 {
        self.records as f64 / self.seconds()
    }

    /// The time within puts alone.
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

/// Batches of updates until the puts have taken so long together.
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

/// How many seconds the background work takes that earlier phases left.
pub(super) fn settle(system: &mut dyn System) -> Result<f64> {
    let clock = SystemClock::new();
    system.settle()?;
    Ok(clock.now().as_secs_f64())
}

/// Gets a second by as many threads as there are lists of keys, after half as long a warm-up.
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

/// Gets each key, all of which have values of one length; how many they were.
pub(super) fn get_all(reader: &mut dyn Reader, keys: &[Vec<u8>], value_bytes: usize) -> Result<u64> {
    let mut value = Vec::new();
    for key in keys {
        ensure!(reader.get(key, &mut value)?, "a record is missing");
        ensure!(value.len() == value_bytes, "a value has {} bytes instead of {value_bytes}", value.len());
    }
    Ok(keys.len() as u64)
}

/// Records a second of ranges of one length, from each start or as long as there is time; none if the system keeps no order.
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
