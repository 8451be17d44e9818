//! Gets in old versions, and the cost of dropping versions.

use std::time::Duration;

use anyhow::{Result, ensure};
use coppice_env::{Clock, SystemClock};
use coppice_types::{Epoch, Version};

use super::common::{KEYS, Outcome, Scale, get_all, load_all, settle};
use crate::{
    coppice::Coppice,
    figures::{Sample, Series},
    statistics::Summary,
    system::System,
    workload::Workload,
};

/// Ages of the versions that are read, in versions; 0 is the head.
const AGES: [u64; 7] = [0, 10, 20, 40, 100, 400, 1000];
/// Numbers of versions that are rolled back, one after the other.
const ROLLBACKS: [u64; 3] = [5, 50, 1000];
/// Versions after the load: enough for all ages, prunes and rollbacks.
const VERSIONS: u64 = 1110;
/// Records that each of these versions updates.
const TOUCHED: usize = 20;
const ROUNDS: u32 = 5;
const ROLLBACK_ROUNDS: u32 = 3;

/// Loads, makes 1,110 small versions, gets at several ages, then prunes 1 and 40 versions and rolls
/// back 5, 50 and 1,000, the last several times.
///
/// # Errors
/// If the engine fails.
pub fn history(mut store: Coppice, scale: &Scale) -> Result<Outcome> {
    let mut workload = scale.workload();
    load_all(&mut store, &mut workload, scale.batch, false)?;
    settle(&mut store)?;
    let first = store.version().0;
    write(&mut store, &mut workload, VERSIONS)?;
    let mut sample = Sample::new();
    let keys = workload.keys(KEYS);
    let points = gets_by_age(&store, &keys, scale, &mut sample)?;
    let engine = store.engine_mut();
    // Versions of the load are older than the first small one; they are dropped before, all at
    // once.
    engine.prune(Version(first))?;
    let mut pages = 0;
    let clock = SystemClock::new();
    let mut boundary = first;
    for count in [1, 40] {
        boundary += count;
        let (begin, read) = (clock.now(), engine.counters().span_reads);
        engine.prune(Version(boundary))?;
        note(&mut sample, "prune", count, clock.now() - begin);
        pages += engine.counters().span_reads - read;
    }
    let mut times = [const { Vec::new() }; ROLLBACKS.len()];
    for round in 0..ROLLBACK_ROUNDS {
        if round > 0 {
            write(&mut store, &mut workload, ROLLBACKS.iter().sum())?;
        }
        let engine = store.engine_mut();
        for (count, times) in ROLLBACKS.iter().zip(&mut times) {
            let (target, epoch) = (Version(engine.decided().version.0 - count), Epoch(engine.epoch().0 + 1));
            let (begin, read) = (clock.now(), engine.counters().span_reads);
            engine.rollback(target, epoch)?;
            times.push((clock.now() - begin).as_secs_f64());
            pages += engine.counters().span_reads - read;
            ensure!(engine.decided().version == target, "a rollback ends at its target");
        }
    }
    for (count, times) in ROLLBACKS.into_iter().zip(&times) {
        let took = Summary::of(times).expect("there were rounds").median;
        note(&mut sample, "rollback", count, Duration::from_secs_f64(took));
    }
    sample.insert("drop_pages_read".to_owned(), pages as f64);
    let lines = [(format!("{} records", scale.records), points)].into();
    let title = "Gets by how far back they read";
    Ok(Outcome { sample, series: vec![Series::new("get-by-history", title, "versions back", "gets a second", lines)] })
}

/// Makes this many small versions, and flushes them.
fn write(store: &mut Coppice, workload: &mut Workload, versions: u64) -> Result<()> {
    for _ in 0..versions {
        System::put(store, workload.updates(TOUCHED))?;
    }
    store.flush()
}

fn note(sample: &mut Sample, what: &str, count: u64, took: Duration) {
    sample.insert(format!("{what}_{count}_us_per_version"), took.as_secs_f64() * 1e6 / count as f64);
}

/// Measures gets a second at each age. The ages take turns with the same keys, so that disturbances
/// affect all ages alike.
fn gets_by_age(store: &Coppice, keys: &[Vec<u8>], scale: &Scale, sample: &mut Sample) -> Result<Vec<(f64, f64)>> {
    let (head, clock) = (store.version().0, SystemClock::new());
    let mut rates = vec![Vec::new(); AGES.len()];
    for round in 0..=ROUNDS {
        for (age, rates) in AGES.iter().zip(&mut rates) {
            let mut view = store.engine().view_at(Version(head - age))?;
            let (begin, mut count) = (clock.now(), 0);
            for chunk in keys.chunks(256) {
                count += get_all(&mut view, chunk, scale.value_bytes)?;
                if clock.now() - begin >= scale.limit() / (2 * ROUNDS) {
                    break;
                }
            }
            // The first round warms up.
            if round > 0 {
                rates.push(count as f64 / (clock.now() - begin).as_secs_f64());
            }
        }
    }
    let mut points = Vec::new();
    for (age, rates) in AGES.iter().zip(&rates) {
        let summary = Summary::of(rates).expect("there were rounds");
        sample.insert(format!("get_back_{age}"), summary.median);
        points.push((*age as f64, summary.median));
    }
    Ok(points)
}
