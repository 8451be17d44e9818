//! Jobs that every system can do: the comparison, the load alone, and a point of a sweep.

use std::{path::Path, time::Duration};

use anyhow::Result;

use super::common::{KEYS, Outcome, Scale, gets, load_all, range_rate, settle, update};
use crate::{figures::Sample, machine, statistics::quantile, system::System, workload::Workload};

/// All phases that every system supports: load in key order, ranges, updates in batches of 4,000
/// and of 500, gets, ranges again.
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

/// The load alone, in key order or not: records a second, and seconds to settle.
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

/// One point of a sweep: updates and gets after a load.
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

/// Measures records a second of ranges of 100 and 1,000 records.
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
