//! The dependence on the amount of data. One load is interrupted to measure the disk; updates and
//! reads follow at the end.

use std::path::Path;

use anyhow::Result;

use super::{
    common::{KEYS, LENGTHS, Outcome, Puts, Scale, gets, range_rate, settle, update},
    reads::reads_by_memory,
};
use crate::{
    coppice::Coppice,
    figures::{Lines, Sample, Series, number},
    machine,
    system::System,
    workload::Workload,
};

/// Numbers of records at which the disk is measured.
const MILESTONES: [u64; 6] = [10_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000];

/// Bounds on the number of ranges that are cycled through.
const STARTS_MIN: usize = 25;
const STARTS_MAX: usize = 1000;

/// Loads in random order, measures the disk as the data grows, then updates, gets, and reads ranges
/// of several lengths.
///
/// # Errors
/// If the system fails, or reads anything but what was written.
pub fn growth(system: &mut dyn System, dir: &Path, scale: &Scale) -> Result<Outcome> {
    grow(system, dir, scale, &mut scale.workload())
}

fn grow(system: &mut dyn System, dir: &Path, scale: &Scale, workload: &mut Workload) -> Result<Outcome> {
    let (mut puts, mut disk) = (Puts::default(), Vec::new());
    while puts.records < scale.records {
        let upto = MILESTONES.into_iter().find(|records| *records > puts.records).unwrap_or(scale.records);
        let end = upto.min(puts.records + scale.batch as u64).min(scale.records);
        // Keys are hashes, so consecutive numbers are not in key order.
        let batch = (puts.records..end).map(|number| workload.record(number)).collect();
        puts.put(system, batch)?;
        if MILESTONES.contains(&end) || end == scale.records {
            settle(system)?;
            disk.push((end as f64, machine::disk_bytes(dir)? as f64 / (end * scale.record_bytes()) as f64));
        }
    }
    let updates = update(system, workload, scale.batch, scale.limit())?;
    settle(system)?;
    // If there is much data, a part of it has left the page cache.
    machine::read_files(dir)?;
    let got = gets(system, &[workload.keys(KEYS)], scale.limit(), scale.value_bytes)?;
    let mut ranges = Vec::new();
    for length in LENGTHS {
        // The starts cover as many records as gets cycle through; all ranges are read once as a
        // warm-up.
        let starts = workload.keys((KEYS / length).clamp(STARTS_MIN, STARTS_MAX));
        let rate = |starts: &mut dyn Iterator<Item = &Vec<u8>>, limit| {
            range_rate(system, starts, length, limit, scale.value_bytes)
        };
        rate(&mut starts.iter(), scale.limit())?;
        let Some(rate) = rate(&mut starts.iter().cycle(), scale.limit() / 4)? else { break };
        ranges.push((length as f64, rate));
    }
    let mut sample = Sample::from([
        ("records".to_owned(), scale.records as f64),
        ("load".to_owned(), puts.rate()),
        ("put".to_owned(), updates.rate()),
        ("get".to_owned(), got),
        ("disk_per_live_byte_loaded".to_owned(), disk.last().map_or(f64::NAN, |(_, bytes)| *bytes)),
    ]);
    sample.extend(ranges.iter().map(|(length, rate)| (format!("range_{length}"), *rate)));
    let alone = |points| Lines::from([(String::new(), points)]);
    let series = vec![
        Series::new(
            &format!("disk-by-records-{}", scale.value_bytes),
            &format!("Disk by the number of records, values of {} B", scale.value_bytes),
            "records",
            "bytes on disk for each live byte",
            alone(disk),
        ),
        Series::new(
            &format!("range-by-length-{}", scale.records),
            &format!("Ranges by their length, {} records after random updates", number(scale.records as f64)),
            "records of a range",
            "records a second",
            alone(ranges),
        ),
    ];
    Ok(Outcome { sample, series })
}

/// Like [`growth`] for our engine, and then measures the memory that it holds in addition to its
/// caches. With `with_reads`, also counts the reads of a get for each size of memory.
///
/// # Errors
/// If the engine fails.
pub fn growth_ours(mut store: Coppice, dir: &Path, scale: &Scale, with_reads: bool) -> Result<Outcome> {
    let mut workload = scale.workload();
    let before = machine::memory_bytes()?;
    let mut outcome = grow(&mut store, dir, scale, &mut workload)?;
    let usage = store.engine().disk_usage()?;
    let caches = usage.young_cache_bytes + usage.old_cache_bytes + usage.hash_cache_bytes;
    let beside = |memory: u64| memory.saturating_sub(before + caches) as f64 / f64::from(1 << 20);
    let sample = &mut outcome.sample;
    sample.insert("memory_beside_caches_mib".to_owned(), beside(machine::memory_bytes()?));
    sample.insert("memory_beside_caches_peak_mib".to_owned(), beside(machine::peak_memory_bytes()?));
    sample.insert("cache_of_budget".to_owned(), caches as f64 / scale.cache_bytes as f64);
    if !with_reads {
        return Ok(outcome);
    }
    let reads = reads_by_memory(store, dir, scale, &mut workload)?;
    outcome.sample.extend(reads.sample);
    outcome.series.extend(reads.series);
    Ok(outcome)
}
