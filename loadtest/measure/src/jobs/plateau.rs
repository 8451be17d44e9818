//! Endless random updates with the last versions kept: what does not come to rest grows for ever.

use std::path::Path;

use anyhow::{Context, Result};
use coppice_env::{Clock, SystemClock};
use serde::{Deserialize, Serialize};

use super::{Outcome, Puts, Sample, Scale, get_all, load_all};
use crate::{coppice::Coppice, machine, report::Series, statistics::is_plateau};

/// How long it goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlateauScale {
    /// Keys, values, batches.
    pub scale: Scale,
    /// Updates for each key.
    pub rounds: u64,
    /// Versions that are kept.
    pub retain: u64,
    /// How often it is looked at.
    pub looks: u64,
}

/// Quantities that must come to rest, with the axis that each has.
const CURVES: [(&str, &str); 5] = [
    ("disk", "bytes on disk for each byte of live data and history"),
    ("memory", "MiB of memory"),
    ("trees", "trees"),
    ("get", "us a get"),
    ("proof", "bytes of a proof"),
];

/// Updates all keys `rounds` times over, and looks at disk, memory, trees, gets and proofs as it goes. The store has no log:
/// what is written to the device is the forest's.
///
/// # Errors
/// If the engine fails.
pub fn plateau(mut store: Coppice, dir: &Path, plateau: &PlateauScale) -> Result<Outcome> {
    let scale = &plateau.scale;
    let mut workload = scale.workload();
    load_all(&mut store, &mut workload, scale.batch, false)?;
    let live = scale.records * scale.record_bytes();
    let history = plateau.retain * scale.batch as u64 * scale.record_bytes();
    let each = (plateau.rounds * scale.records / scale.batch as u64 / plateau.looks).max(1);
    let keys = workload.keys(2000);
    let (mut points, mut updates) = (vec![Vec::new(); CURVES.len()], Puts::default());
    let (written, counted) = (machine::device_write_bytes()?, store.engine().counters());
    for _ in 0..plateau.looks {
        for _ in 0..each {
            let batch = workload.updates(scale.batch);
            updates.put(&mut store, batch)?;
        }
        let engine = store.engine();
        let clock = SystemClock::new();
        let mut view = engine.view(&engine.decided())?;
        let count = get_all(&mut view, &keys, scale.value_bytes)?;
        let get_us = clock.now().as_secs_f64() * 1e6 / count as f64;
        let proof: usize = keys
            .iter()
            .take(200)
            .map(|key| view.prove_keys(&[key]).map(|file| file.len()))
            .sum::<Result<usize, _>>()?;
        let looks = [
            machine::disk_bytes(dir)? as f64 / (live + history) as f64,
            machine::memory_bytes()? as f64 / f64::from(1 << 20),
            engine.shape(&engine.decided())?.entries.len() as f64,
            get_us,
            proof as f64 / keys.len().min(200) as f64,
        ];
        for (points, look) in points.iter_mut().zip(looks) {
            points.push((updates.records as f64 / scale.records as f64, look));
        }
    }
    store.flush()?;
    let user = (updates.records * scale.record_bytes()) as f64;
    let now = store.engine().counters();
    let ours = now.span_write_bytes + now.value_write_bytes + now.meta_write_bytes
        - (counted.span_write_bytes + counted.value_write_bytes + counted.meta_write_bytes);
    let mut sample = Sample::new();
    sample.insert("plateau_put".to_owned(), updates.rate());
    sample.insert("plateau_written".to_owned(), ours as f64 / user);
    sample.insert("plateau_device_written".to_owned(), (machine::device_write_bytes()? - written) as f64 / user);
    let last = points[0].last().context("it was looked at")?.1;
    sample.insert("plateau_disk".to_owned(), last);
    let mut series = Vec::new();
    for ((name, axis), points) in CURVES.iter().zip(points) {
        let values: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
        sample.insert(format!("plateau_{name}_rests"), f64::from(u8::from(is_plateau(&values))));
        let title = format!("Under endless updates: {axis}");
        let lines = [("Coppice".to_owned(), points)].into();
        series.push(Series::new(&format!("plateau-{name}"), &title, "updates for each key", axis, lines));
    }
    Ok(Outcome { sample, series })
}
