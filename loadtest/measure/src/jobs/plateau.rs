//! Endless random updates with the last versions kept: what does not come to rest grows for ever.

use std::path::Path;

use anyhow::{Context, Result};
use coppice_env::{Clock, SystemClock};
use serde::{Deserialize, Serialize};

use super::{Outcome, Puts, Sample, Scale, get_all, load_all};
use crate::{
    coppice::Coppice,
    machine,
    report::{Series, number},
    statistics::{Summary, is_plateau},
    system::Reader,
};

/// How long it goes on, and how the engine is set up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlateauScale {
    /// What its figures and curves begin with.
    pub name: String,
    /// Keys, values, batches; `seconds` is the longest time for all updates.
    pub scale: Scale,
    /// Updates for each key, if there is time.
    pub rounds: u64,
    /// Versions that are kept.
    pub retain: u64,
    /// How often it is looked at.
    pub looks: u64,
    /// The active tree's.
    pub capacity: u32,
    /// A flush begins when so much waits for it.
    pub flush_bytes: u64,
    /// Of what is used, that may wait for a flush to be free.
    pub waiting_percent: u32,
}

/// A quantity that must come to rest: its name, its axis, and what counts of its values in a quarter of the time.
type Quantity = (&'static str, &'static str, fn(Summary) -> f64);

/// The greatest value of what is counted. The median of what is timed, since a look that something else disturbed says nothing.
const CURVES: [Quantity; 5] = [
    ("disk", "bytes on disk for each byte of live data and history", |disk| disk.max),
    ("memory", "MiB of memory", |memory| memory.max),
    ("trees", "trees", |trees| trees.max),
    ("get", "us a get", |get| get.median),
    ("proof", "bytes of a proof", |proof| proof.max),
];

/// Keys that are read at once, and how often that is done for a look: what else the machine does befalls a few of these times.
const GET_KEYS: usize = 2000;
const GET_ROUNDS: usize = 9;

/// Us a get: the median of the rounds.
fn get_us(reader: &mut dyn Reader, keys: &[Vec<u8>], value_bytes: usize) -> Result<f64> {
    let mut rounds = Vec::with_capacity(GET_ROUNDS);
    for keys in keys.chunks(GET_KEYS) {
        let clock = SystemClock::new();
        let count = get_all(reader, keys, value_bytes)?;
        rounds.push(clock.now().as_secs_f64() * 1e6 / count as f64);
    }
    Ok(Summary::of(&rounds).context("there are keys")?.median)
}

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
    let keys = workload.keys(GET_KEYS * GET_ROUNDS);
    let (mut points, mut updates) = (vec![Vec::new(); CURVES.len()], Puts::default());
    let (written, accounted) = (machine::device_written_bytes(dir)?, machine::device_write_bytes()?);
    let (counted, clock) = (store.engine().counters(), SystemClock::new());
    for _ in 0..plateau.looks {
        if clock.now() >= scale.limit() {
            break;
        }
        for _ in 0..each {
            let batch = workload.updates(scale.batch);
            updates.put(&mut store, batch)?;
        }
        let engine = store.engine();
        let mut view = engine.view(&engine.decided())?;
        let get_us = get_us(&mut view, &keys, scale.value_bytes)?;
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
    let name = &plateau.name;
    let mut sample = Sample::new();
    sample.insert(format!("{name}_put"), updates.rate());
    sample.insert(format!("{name}_active_ki"), f64::from(plateau.capacity >> 10));
    sample.insert(format!("{name}_flush_mib"), (plateau.flush_bytes >> 20) as f64);
    sample.insert(format!("{name}_waiting_percent"), f64::from(plateau.waiting_percent));
    sample.insert(format!("{name}_rounds"), updates.records as f64 / scale.records as f64);
    sample.insert(format!("{name}_written"), ours as f64 / user);
    sample.insert(format!("{name}_accounted"), (machine::device_write_bytes()? - accounted) as f64 / user);
    if let Some((before, now)) = written.zip(machine::device_written_bytes(dir)?) {
        sample.insert(format!("{name}_device_written"), (now - before) as f64 / user);
    }
    let disk: Vec<f64> = points[0].iter().map(|(_, disk)| *disk).collect();
    let rest = Summary::of(&disk[disk.len() - disk.len().div_ceil(4)..]).context("it was looked at")?;
    sample.insert(format!("{name}_disk"), rest.median);
    sample.insert(format!("{name}_disk_max"), rest.max);
    let mut series = Vec::new();
    for ((name, axis, of), points) in CURVES.iter().zip(points) {
        let values: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
        sample.insert(format!("{}_{name}_rests", plateau.name), f64::from(u8::from(is_plateau(&values, *of))));
        let title = format!(
            "Endless updates: {} keys of {} B, active {} Ki, flush {} MiB, waiting {} %",
            number(scale.records as f64),
            scale.value_bytes,
            plateau.capacity >> 10,
            plateau.flush_bytes >> 20,
            plateau.waiting_percent
        );
        let lines = [("Coppice".to_owned(), points)].into();
        series.push(Series::new(
            &format!("{}-{name}", plateau.name.replace('_', "-")),
            &title,
            "updates for each key",
            axis,
            lines,
        ));
    }
    Ok(Outcome { sample, series })
}
