//! Reads of files for each get, by the share of the data that the caches may hold.
//!
//! The figures count the engine's reads from the file system, with the caches as the only memory.
//! With direct I/O this many reads would reach the device. The page cache answers most of them
//! here, and hides none.

use std::path::Path;

use anyhow::{Result, ensure};
use coppice_engine::Counters;

use super::common::{Outcome, Scale, get_all, load_all, settle};
use crate::{
    coppice::Coppice,
    figures::{Sample, Series, number},
    machine,
    system::Reader,
    workload::Workload,
};

/// Memory as a share of the data, in thousandths.
const SHARES: [u64; 5] = [2, 5, 10, 30, 100];
const WARM_UP: usize = 60_000;
const COUNTED: usize = 10_000;
/// Bytes that a get adds to a cache that is not full.
const NODE_BYTES: usize = 2 << 10;
/// The smallest cache: a node fits.
const CACHE_BYTES_MIN: usize = 64 << 10;

/// Loads, then opens the engine again with caches of 0.2 % to 10 % of the data, filters included,
/// and counts the reads of gets.
///
/// # Errors
/// If the engine fails.
pub fn reads_per_get(mut store: Coppice, dir: &Path, scale: &Scale) -> Result<Outcome> {
    let mut workload = scale.workload();
    load_all(&mut store, &mut workload, scale.batch, false)?;
    settle(&mut store)?;
    reads_by_memory(store, dir, scale, &mut workload)
}

/// Opens a settled engine again with caches of 0.2 % to 10 % of the data, filters included, and
/// counts the reads of gets.
pub(super) fn reads_by_memory(
    mut store: Coppice,
    dir: &Path,
    scale: &Scale,
    workload: &mut Workload,
) -> Result<Outcome> {
    let data = scale.records * scale.record_bytes();
    let (mut sample, mut present, mut absent) = (Sample::new(), Vec::new(), Vec::new());
    for share in SHARES {
        let budget = data * share / 1000;
        // Filters come out of the same budget.
        let cache = store.caches_within(budget)?;
        store = store.reopen(dir, cache.max(CACHE_BYTES_MIN))?;
        // The page cache gets the files first, so that filling the caches does not take the disk's
        // time.
        machine::read_files(dir)?;
        let mut reader = store.engine().view(&store.engine().decided())?;
        get_all(&mut reader, &workload.keys(WARM_UP + cache / NODE_BYTES), scale.value_bytes)?;
        let before = store.engine().counters();
        get_all(&mut reader, &workload.keys(COUNTED), scale.value_bytes)?;
        let found = store.engine().counters();
        let mut value = Vec::new();
        for key in workload.absent_keys(COUNTED) {
            ensure!(!Reader::get(&mut reader, &key, &mut value)?, "a key that was never written has a record");
        }
        let end = store.engine().counters();
        let name = format!("reads_{}_at_{share}_per_mille", scale.value_bytes);
        for (kind, of) in KINDS {
            sample.insert(format!("{name}{kind}"), each(of(&found) - of(&before)));
        }
        sample.insert(format!("{name}_absent"), each(all(&end) - all(&found)));
        let usage = store.engine().disk_usage()?;
        let held = usage.young_cache_bytes + usage.old_cache_bytes + usage.hash_cache_bytes + usage.filter_bytes;
        sample.insert(format!("{name}_memory_of_budget"), held as f64 / budget as f64);
        // A budget that the filters alone exceed is not a point of the curve.
        if cache > CACHE_BYTES_MIN {
            present.push((share as f64 / 10.0, each(all(&found) - all(&before))));
            absent.push((share as f64 / 10.0, each(all(&end) - all(&found))));
        }
    }
    let lines = [("present keys".to_owned(), present), ("absent keys".to_owned(), absent)].into();
    let records = number(scale.records as f64);
    let title = format!("Reads for each get, {records} records with values of {} B", scale.value_bytes);
    let id = format!("reads-per-get-{}", scale.value_bytes);
    let series = Series::new(&id, &title, "memory, % of the data", "reads for each get", lines);
    Ok(Outcome { sample, series: vec![series] })
}

type Of = fn(&Counters) -> u64;

/// Kinds of reads, by the end of the figure's name.
const KINDS: [(&str, Of); 6] = [
    ("", all),
    ("_inner", |counters| counters.inner_reads),
    ("_leaves", |counters| counters.span_reads - counters.inner_reads - counters.patch_reads),
    ("_patches", |counters| counters.patch_reads),
    ("_values", |counters| counters.value_file_reads),
    ("_shortcuts", |counters| counters.shortcut_reads),
];

fn all(counters: &Counters) -> u64 {
    counters.span_reads + counters.value_file_reads + counters.shortcut_reads
}

fn each(reads: u64) -> f64 {
    reads as f64 / COUNTED as f64
}
