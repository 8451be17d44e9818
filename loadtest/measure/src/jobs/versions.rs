//! The cost of kept versions: memory, disk, the time to open, and a get in a random version.

use std::path::Path;

use anyhow::{Context, Result};
use coppice_env::{Clock, Rng, SimRng, SystemClock};
use coppice_types::Version;

use super::common::{Outcome, Scale};
use crate::{
    coppice::Coppice,
    figures::{Lines, Sample, Series},
    machine,
    system::{Reader, System},
    workload::Record,
};

/// Numbers of versions at which everything is measured, as shares of all.
const STEPS: u64 = 8;
/// Gets at each of them, in random versions and at the head.
const GETS: usize = 20_000;
/// The engine merges after this many versions, as an idle replica does.
const MERGE_VERSIONS: u64 = 64;

/// Commits `scale.records` versions of one record with a new key, prunes none, and measures eight
/// times: after the engine was closed and opened again.
///
/// # Errors
/// If the engine fails, or reads anything but what was written.
pub fn versions(mut store: Coppice, dir: &Path, scale: &Scale) -> Result<Outcome> {
    let before = machine::memory_bytes()?;
    let mut points: [Vec<(f64, f64)>; 5] = Default::default();
    let every = (scale.records / STEPS).max(1);
    for version in 1..=scale.records {
        System::put(&mut store, vec![record(version, scale)])?;
        if version % MERGE_VERSIONS == 0 {
            while store.has_merges() {
                store.merge_a_little()?;
            }
        }
        if version % every == 0 {
            let clock = SystemClock::new();
            let took;
            (store, took) = store.open_again(dir, &clock)?;
            let (old, head) = gets(&store, version, scale)?;
            let usage = store.engine().disk_usage()?;
            let caches = usage.young_cache_bytes + usage.old_cache_bytes + usage.hash_cache_bytes + usage.filter_bytes;
            let memory = machine::memory_bytes()?.saturating_sub(before + caches);
            let figures = [
                memory as f64 / f64::from(1 << 20),
                machine::disk_bytes(dir)? as f64 / version as f64,
                took,
                old,
                head,
            ];
            for (points, figure) in points.iter_mut().zip(figures) {
                points.push((version as f64, figure));
            }
        }
    }
    outcome(points)
}

fn outcome(points: [Vec<(f64, f64)>; 5]) -> Result<Outcome> {
    let newest = |at: usize| points[at].last().map(|(_, figure)| *figure).context("a step was measured");
    let (first, last) = (points[0].first().context("a step was measured")?, points[0].last().context("there is one")?);
    let grown = (last.1 - first.1) * f64::from(1 << 20) / (last.0 - first.0).max(1.0);
    let sample = Sample::from([
        ("version_memory_bytes".to_owned(), grown),
        ("version_disk_bytes".to_owned(), newest(1)?),
        ("versions_open_s".to_owned(), newest(2)?),
        ("version_get_old_us".to_owned(), newest(3)?),
        ("version_get_head_us".to_owned(), newest(4)?),
    ]);
    let [memory, disk, opened, old, head] = points;
    let alone = |points| Lines::from([(String::new(), points)]);
    let gets = Lines::from([("a random version".to_owned(), old), ("the head".to_owned(), head)]);
    let series = [
        ("memory-by-versions", "Memory beside the caches, after opening", "MiB", alone(memory)),
        ("disk-by-versions", "Disk for each version of one record", "bytes", alone(disk)),
        ("open-by-versions", "Time to open the engine", "seconds", alone(opened)),
        ("get-by-versions", "A get by its version", "microseconds", gets),
    ];
    let series = series.map(|(id, title, unit, lines)| Series::new(id, title, "versions", unit, lines)).into();
    Ok(Outcome { sample, series })
}

fn record(version: u64, scale: &Scale) -> Record {
    let mut rng = SimRng::new(version ^ scale.seed << 40);
    let key = [rng.next_u64().to_be_bytes(), rng.next_u64().to_be_bytes()].concat();
    let mut value = version.to_be_bytes().to_vec();
    value.resize(scale.value_bytes, 7);
    Record { key, value }
}

/// Microseconds of a get of a key that a version has: in random versions, and at the head.
fn gets(store: &Coppice, head: u64, scale: &Scale) -> Result<(f64, f64)> {
    let (mut rng, clock) = (SimRng::new(head), SystemClock::new());
    let mut measure = |random: bool| {
        let mut pick = || {
            let version = if random { 1 + rng.below(head) } else { head };
            (version, record(1 + rng.below(version), scale).key)
        };
        let wanted: Vec<(u64, Vec<u8>)> = (0..GETS).map(|_| pick()).collect();
        let (begin, mut value) = (clock.now(), Vec::new());
        for (version, key) in wanted {
            let mut view = store.engine().view_at(Version(version))?;
            anyhow::ensure!(
                Reader::get(&mut view, &key, &mut value)? && value.len() == scale.value_bytes,
                "a version lost a key"
            );
        }
        Ok((clock.now() - begin).as_secs_f64() * 1e6 / GETS as f64)
    };
    Ok((measure(true)?, measure(false)?))
}
