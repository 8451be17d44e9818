//! Reads of files for each get, by how much of the data the caches may hold.
//!
//! Counted are the reads that the engine asks the file system for, with the caches as the only memory: as many would reach the
//! device with direct I/O. The page cache, which answers most of them here, hides none.

use std::path::Path;

use anyhow::{Result, ensure};

use super::{Outcome, Sample, Scale, get_all, load_all, settle};
use crate::{coppice::Coppice, report::Series, system::Reader};

/// Memory as a part of the data, in thousandths.
const SHARES: [u64; 5] = [2, 5, 10, 30, 100];
const WARM_UP: usize = 30_000;
const COUNTED: usize = 10_000;

/// Loads, then opens the engine anew with caches of 0.2 % to 10 % of the data, filters included, and counts.
///
/// # Errors
/// If the engine fails.
pub fn reads_per_get(mut store: Coppice, dir: &Path, scale: &Scale) -> Result<Outcome> {
    let mut workload = scale.workload();
    load_all(&mut store, &mut workload, scale.batch, false)?;
    settle(&mut store)?;
    let data = scale.records * scale.record_bytes();
    // The filters are in memory whatever the caches are: they come out of the same budget.
    let filters = scale.records * u64::from(store.engine().params().filter_bits) / 8;
    let (mut sample, mut present, mut absent) = (Sample::new(), Vec::new(), Vec::new());
    for share in SHARES {
        let budget = data * share / 1000;
        let cache = usize::try_from(budget.saturating_sub(filters))?;
        store = store.reopen(dir, cache.max(64 << 10))?;
        let mut reader = store.engine().view(&store.engine().decided())?;
        get_all(&mut reader, &workload.keys(WARM_UP), scale.value_bytes)?;
        let counters = || store.engine().counters();
        let reads = || counters().span_reads + counters().value_reads;
        let before = reads();
        get_all(&mut reader, &workload.keys(COUNTED), scale.value_bytes)?;
        let found = reads();
        let mut value = Vec::new();
        for key in workload.absent_keys(COUNTED) {
            ensure!(!Reader::get(&mut reader, &key, &mut value)?, "a key that was never written has a record");
        }
        let each = |reads: u64| reads as f64 / COUNTED as f64;
        let name = format!("reads_{}_at_{share}_per_mille", scale.value_bytes);
        sample.insert(name.clone(), each(found - before));
        sample.insert(format!("{name}_absent"), each(reads() - found));
        // A budget that the filters alone exceed is no point of the curve.
        if budget > filters {
            present.push((share as f64 / 10.0, each(found - before)));
            absent.push((share as f64 / 10.0, each(reads() - found)));
        }
    }
    let lines = [("present keys".to_owned(), present), ("absent keys".to_owned(), absent)].into();
    let title = format!("Reads for each get, values of {} B", scale.value_bytes);
    let id = format!("reads-per-get-{}", scale.value_bytes);
    let series = Series::new(&id, &title, "memory, % of the data", "reads for each get", lines);
    Ok(Outcome { sample, series: vec![series] })
}
