//! Endless random updates while only the last versions are kept: a quantity that does not come to
//! rest grows for ever.

use std::path::Path;

use anyhow::{Context, Result};
use coppice_engine::Counters;
use coppice_env::{Clock, SystemClock};
use serde::{Deserialize, Serialize};

use super::common::{Outcome, Puts, Scale, get_all, load_all};
use crate::{
    coppice::Coppice,
    figures::{Sample, Series, number},
    machine,
    statistics::{Summary, is_plateau},
    system::Reader,
    workload::Workload,
};

/// The duration of the updates, and the settings of the engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlateauScale {
    /// The prefix of its figures and curves.
    pub name: String,
    /// Keys, values, batches; `seconds` is the longest time for all updates.
    pub scale: Scale,
    /// Updates for each key, if there is time.
    pub rounds: u64,
    /// Versions that are kept.
    pub retain: u64,
    /// The number of looks.
    pub looks: u64,
    /// The capacity of the active tree.
    pub capacity: u32,
    /// Unflushed bytes at which a flush begins.
    pub flush_bytes: u64,
    /// The share of used space that may wait for a flush to become free, in percent.
    pub waiting_percent: u32,
}

/// A quantity that must come to rest: its name, its axis, and which of its values in a quarter of
/// the time counts.
type Quantity = (&'static str, &'static str, fn(Summary) -> f64);

/// Counted quantities are judged by their maximum; timed ones by their median, since a look that
/// something else disturbed says nothing.
const CURVES: [Quantity; 5] = [
    ("disk", "bytes on disk for each byte of live data and history", |disk| disk.max),
    ("memory", "MiB of memory", |memory| memory.max),
    ("trees", "trees", |trees| trees.max),
    ("get", "us a get", |get| get.median),
    ("proof", "bytes of a proof", |proof| proof.max),
];

/// Keys that are read at once, and rounds of that for each look. A disturbance affects only few of
/// the rounds.
const GET_KEYS: usize = 2000;
const GET_ROUNDS: usize = 9;

/// Microseconds for a get: the median of the rounds.
fn get_us(reader: &mut dyn Reader, keys: &[Vec<u8>], value_bytes: usize) -> Result<f64> {
    let mut rounds = Vec::with_capacity(GET_ROUNDS);
    for keys in keys.chunks(GET_KEYS) {
        let clock = SystemClock::new();
        let count = get_all(reader, keys, value_bytes)?;
        rounds.push(clock.now().as_secs_f64() * 1e6 / count as f64);
    }
    Ok(Summary::of(&rounds).context("there are keys")?.median)
}

/// Keys whose proofs' lengths are averaged at each look.
const PROVEN: usize = 200;

/// Points of one curve: updates for each key, and the quantity then.
type Points = Vec<(f64, f64)>;

/// Bytes written before the updates began: to the device by all programs, by this process, and by
/// the engine's own count.
struct Before {
    device: Option<u64>,
    accounted: u64,
    counters: Counters,
}

impl Before {
    fn read(store: &Coppice, dir: &Path) -> Result<Self> {
        Ok(Self {
            device: machine::device_written_bytes(dir)?,
            accounted: machine::device_write_bytes()?,
            counters: store.engine().counters(),
        })
    }
}

/// Bytes that the engine has written to its files, by its own count.
fn written_bytes(counters: &Counters) -> u64 {
    counters.span_write_bytes + counters.value_write_bytes + counters.meta_write_bytes
}

/// Updates all keys `rounds` times, and looks at disk, memory, trees, gets and proofs on the way.
/// The store has no log: all bytes written to the device are the forest's.
///
/// # Errors
/// If the engine fails.
pub fn plateau(mut store: Coppice, dir: &Path, plateau: &PlateauScale) -> Result<Outcome> {
    let scale = &plateau.scale;
    let mut workload = scale.workload();
    load_all(&mut store, &mut workload, scale.batch, false)?;
    let keys = workload.keys(GET_KEYS * GET_ROUNDS);
    let before = Before::read(&store, dir)?;
    let (updates, curves) = update_and_look(&mut store, dir, plateau, &mut workload, &keys)?;
    store.flush()?;
    let mut sample = written(&store, dir, plateau, &before, &updates)?;
    let disk: Vec<f64> = curves[0].iter().map(|(_, disk)| *disk).collect();
    let rest = Summary::of(&disk[disk.len() - disk.len().div_ceil(4)..]).context("it was looked at")?;
    sample.insert(format!("{}_disk", plateau.name), rest.median);
    sample.insert(format!("{}_disk_max", plateau.name), rest.max);
    for ((name, _, of), points) in CURVES.iter().zip(&curves) {
        let values: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
        sample.insert(format!("{}_{name}_rests", plateau.name), f64::from(u8::from(is_plateau(&values, *of))));
    }
    Ok(Outcome { sample, series: series(plateau, curves) })
}

/// Updates in rounds with a look after each. Returns the updates, and the points of each of
/// [`CURVES`].
fn update_and_look(
    store: &mut Coppice,
    dir: &Path,
    plateau: &PlateauScale,
    workload: &mut Workload,
    keys: &[Vec<u8>],
) -> Result<(Puts, Vec<Points>)> {
    let scale = &plateau.scale;
    let each = (plateau.rounds * scale.records / scale.batch as u64 / plateau.looks).max(1);
    let (mut curves, mut updates) = (vec![Points::new(); CURVES.len()], Puts::default());
    let clock = SystemClock::new();
    for _ in 0..plateau.looks {
        if clock.now() >= scale.limit() {
            break;
        }
        for _ in 0..each {
            let batch = workload.updates(scale.batch);
            updates.put(store, batch)?;
        }
        for (points, quantity) in curves.iter_mut().zip(look(store, dir, plateau, keys)?) {
            points.push((updates.records as f64 / scale.records as f64, quantity));
        }
    }
    Ok((updates, curves))
}

/// The present value of each of [`CURVES`].
fn look(store: &Coppice, dir: &Path, plateau: &PlateauScale, keys: &[Vec<u8>]) -> Result<[f64; CURVES.len()]> {
    let scale = &plateau.scale;
    let live = scale.records * scale.record_bytes();
    let history = plateau.retain * scale.batch as u64 * scale.record_bytes();
    let engine = store.engine();
    let mut view = engine.view(&engine.decided())?;
    let get_us = get_us(&mut view, keys, scale.value_bytes)?;
    let proof: usize =
        keys.iter().take(PROVEN).map(|key| view.prove_keys(&[key]).map(|file| file.len())).sum::<Result<usize, _>>()?;
    Ok([
        machine::disk_bytes(dir)? as f64 / (live + history) as f64,
        machine::memory_bytes()? as f64 / f64::from(1 << 20),
        engine.shape(&engine.decided())?.entries.len() as f64,
        get_us,
        proof as f64 / keys.len().min(PROVEN) as f64,
    ])
}

/// Figures of the settings, of the updates' rate, and of the bytes written for each byte of
/// updates.
fn written(store: &Coppice, dir: &Path, plateau: &PlateauScale, before: &Before, updates: &Puts) -> Result<Sample> {
    let scale = &plateau.scale;
    let user = (updates.records * scale.record_bytes()) as f64;
    let ours = written_bytes(&store.engine().counters()) - written_bytes(&before.counters);
    let name = &plateau.name;
    let mut sample = Sample::new();
    sample.insert(format!("{name}_put"), updates.rate());
    sample.insert(format!("{name}_active_ki"), f64::from(plateau.capacity >> 10));
    sample.insert(format!("{name}_flush_mib"), (plateau.flush_bytes >> 20) as f64);
    sample.insert(format!("{name}_waiting_percent"), f64::from(plateau.waiting_percent));
    sample.insert(format!("{name}_rounds"), updates.records as f64 / scale.records as f64);
    sample.insert(format!("{name}_written"), ours as f64 / user);
    sample.insert(format!("{name}_accounted"), (machine::device_write_bytes()? - before.accounted) as f64 / user);
    if let Some((before, now)) = before.device.zip(machine::device_written_bytes(dir)?) {
        sample.insert(format!("{name}_device_written"), (now - before) as f64 / user);
    }
    Ok(sample)
}

fn series(plateau: &PlateauScale, curves: Vec<Points>) -> Vec<Series> {
    let title = format!(
        "Endless updates: {} keys of {} B, active {} Ki, flush {} MiB, waiting {} %",
        number(plateau.scale.records as f64),
        plateau.scale.value_bytes,
        plateau.capacity >> 10,
        plateau.flush_bytes >> 20,
        plateau.waiting_percent
    );
    let prefix = plateau.name.replace('_', "-");
    let curve = |((name, axis, _), points): (&Quantity, Points)| {
        let lines = [("Coppice".to_owned(), points)].into();
        Series::new(&format!("{prefix}-{name}"), &title, "updates for each key", axis, lines)
    };
    CURVES.iter().zip(curves).map(curve).collect()
}
