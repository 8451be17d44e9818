//! Commits and gets at a steady pace while something else goes on: merges, or moves of values to a
//! cold directory.
//!
//! Durations count from the time at which a commit or get was due, so a slow one also delays those
//! behind it. If its thread woke up late although it was free, the duration counts from the waking.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use coppice_engine::{ColdStep, Counters};
use coppice_env::{Clock, Rng, SimRng, SystemClock};
use parking_lot::RwLock;

use super::common::{Outcome, Scale, load_all, settle};
use crate::{
    coppice::Coppice,
    figures::Sample,
    statistics::quantile,
    system::System,
    workload::{Record, Workload, key},
};

/// Records of a commit.
const COMMIT: usize = 100;
const COMMIT_EVERY: Duration = Duration::from_millis(10);
const GET_EVERY: Duration = Duration::from_micros(200);
/// After a step of merging, the merger rests for this many times the step's duration, as in a
/// replica.
const MERGE_REST: u32 = 2;
/// The number of phases; phases without and with moves alternate.
const PHASES: u32 = 8;
/// Bytes of values that are moved in a second, and at least in one step.
const MOVED_BYTES: u64 = 16 << 20;
const STEP_BYTES_MIN: u64 = 1 << 20;
/// The greatest number of rounds; they end when there were operations both with and without merges.
const ROUNDS_MAX: u32 = 10;
/// Records that are read while others are moved: the ones written last.
const HOT: u64 = 20_000;

/// A steady pace, and when the next operation is due.
struct Pace {
    clock: SystemClock,
    every: Duration,
    due: Duration,
}

impl Pace {
    fn new(every: Duration) -> Self {
        Self { clock: SystemClock::new(), every, due: Duration::ZERO }
    }

    /// Waits until the next operation is due. Returns the time from which its duration counts.
    fn wait(&mut self) -> Duration {
        self.due += self.every;
        if self.clock.now() >= self.due {
            return self.due;
        }
        self.park_until(self.due)
    }

    /// Sleeps until `end`; returns the time of waking.
    fn park_until(&self, end: Duration) -> Duration {
        loop {
            let now = self.clock.now();
            if now >= end {
                return now;
            }
            std::thread::park_timeout(end - now);
        }
    }

    fn is_due(&self) -> bool {
        self.clock.now() >= self.due + self.every
    }

    /// Seconds from `from` until now.
    fn took(&self, from: Duration) -> f64 {
        (self.clock.now() - from).as_secs_f64()
    }
}

/// Durations in seconds, without and with activity in the background.
type Times = [Vec<f64>; 2];

#[derive(Debug, Default)]
struct Taken {
    commits: Times,
    gets: Times,
}

impl Taken {
    fn extend(&mut self, taken: Self) {
        for (all, times) in [(&mut self.commits, taken.commits), (&mut self.gets, taken.gets)] {
            all.iter_mut().zip(times).for_each(|(all, times)| all.extend(times));
        }
    }

    /// Whether there are durations of both kinds.
    fn is_complete(&self) -> bool {
        self.commits.iter().chain(&self.gets).all(|times| !times.is_empty())
    }

    fn note(&self, name: &str, sample: &mut Sample) -> Result<()> {
        for (what, times) in [("commit", &self.commits), ("get", &self.gets)] {
            let [without, with] = times.each_ref().map(|times| {
                let mut times = times.clone();
                times.sort_unstable_by(f64::total_cmp);
                (!times.is_empty()).then(|| [0.5, 0.99].map(|part| 1e3 * quantile(&times, part)))
            });
            let (without, with) = (without.context("it went on all the time")?, with.context("it never went on")?);
            for (at, quantile) in ["p50", "p99"].iter().enumerate() {
                sample.insert(format!("{name}_{what}_{quantile}_ms_without"), without[at]);
                sample.insert(format!("{name}_{what}_{quantile}_ms_with"), with[at]);
            }
            sample.insert(format!("{name}_{what}_p99_ratio"), with[1] / without[1]);
        }
        let all = self.commits[0].len() + self.commits[1].len();
        sample.insert(format!("{name}_share_of_commits"), self.commits[1].len() as f64 / all as f64);
        Ok(())
    }
}

/// The store, and what its reader has to know.
struct Shared {
    store: RwLock<Coppice>,
    /// Whether the background activity is going on now.
    busy: AtomicBool,
    over: AtomicBool,
    /// Records with smaller numbers exist.
    written: AtomicU64,
    value_bytes: usize,
}

impl Shared {
    fn new(store: Coppice, scale: &Scale) -> Self {
        let (store, written) = (RwLock::new(store), AtomicU64::new(scale.records));
        Self { store, busy: false.into(), over: false.into(), written, value_bytes: scale.value_bytes }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Coppice) -> T) -> T {
        change(&mut self.store.write())
    }

    fn counters(&self) -> Counters {
        self.store.read().engine().counters()
    }

    /// Merges with rests until the next commit is due.
    fn merge(&self, pace: &Pace) -> Result<()> {
        while !pace.is_due() {
            let began = pace.clock.now();
            if !self.with(Coppice::merge_a_little)? {
                break;
            }
            let end = pace.clock.now();
            pace.park_until((end + MERGE_REST * (end - began)).min(pace.due + pace.every));
        }
        Ok(())
    }

    /// Gets random records among the last ones until `over` is set.
    fn read(&self, last: u64, seed: u64) -> Result<Times> {
        let (mut taken, mut pace, mut rng) = (Times::default(), Pace::new(GET_EVERY), SimRng::new(seed));
        let mut value = Vec::new();
        while !self.over.load(Ordering::Relaxed) {
            let from = pace.wait();
            let busy = self.busy.load(Ordering::Relaxed);
            let written = self.written.load(Ordering::Relaxed);
            let key = key(written - 1 - rng.below(last.min(written)));
            let store = self.store.read();
            ensure!(store.reader()?.get(&key, &mut value)?, "a record is missing");
            drop(store);
            taken[usize::from(busy)].push(pace.took(from));
            ensure!(value.len() == self.value_bytes, "a value has {} bytes", value.len());
        }
        Ok(taken)
    }

    /// Commits at a steady pace for this time, while another thread reads. `between` runs after
    /// each commit, and may use the time until `pace` says that the next one is due.
    fn run(
        &self,
        time: Duration,
        last: u64,
        mut batch: impl FnMut() -> Vec<Record>,
        mut between: impl FnMut(&Pace) -> Result<()>,
    ) -> Result<Taken> {
        self.over.store(false, Ordering::Relaxed);
        let mut commits = Times::default();
        let mut commit = |pace: &mut Pace| -> Result<()> {
            let batch = batch();
            let from = pace.wait();
            let busy = self.busy.load(Ordering::Relaxed);
            self.with(|store| store.put(batch))?;
            commits[usize::from(busy)].push(pace.took(from));
            between(pace)
        };
        let gets = std::thread::scope(|scope| {
            let reader = scope.spawn(|| self.read(last, 7));
            let mut pace = Pace::new(COMMIT_EVERY);
            let mut done = Ok(());
            while done.is_ok() && pace.clock.now() < time {
                done = commit(&mut pace);
            }
            self.over.store(true, Ordering::Relaxed);
            let gets = reader.join().expect("a read breaks no invariant");
            done.and(gets)
        })?;
        Ok(Taken { commits, gets })
    }
}

/// Random updates in small batches, and gets, for a few seconds. After each commit, merging is
/// either due or not. The operations up to the end of the next commit count as with or without it.
///
/// # Errors
/// If the engine fails, never merged, or always did.
pub fn beside_merges(mut store: Coppice, scale: &Scale) -> Result<Outcome> {
    let mut workload = scale.workload();
    load_all(&mut store, &mut workload, scale.batch, false)?;
    settle(&mut store)?;
    let shared = Shared::new(store, scale);
    let began = shared.counters().merge_records;
    let between = |pace: &Pace| {
        shared.busy.store(shared.store.read().has_merges(), Ordering::Relaxed);
        shared.merge(pace)
    };
    let mut taken = Taken::default();
    for _ in 0..ROUNDS_MAX {
        taken.extend(shared.run(scale.limit(), scale.records, || workload.updates(COMMIT), between)?);
        if taken.is_complete() {
            break;
        }
    }
    let mut sample = Sample::new();
    taken.note("merging", &mut sample)?;
    sample.insert("merging_records_merged".to_owned(), (shared.counters().merge_records - began) as f64);
    Ok(Outcome { sample, series: Vec::new() })
}

/// New records in small batches, and gets of the last ones, in alternating phases without and with
/// moves to a cold directory.
///
/// # Errors
/// If the engine fails, or moves nothing.
pub fn beside_moves(mut store: Coppice, scale: &Scale) -> Result<Outcome> {
    let mut workload = scale.workload();
    load_all(&mut store, &mut workload, scale.batch, false)?;
    settle(&mut store)?;
    let shared = Shared::new(store, scale);
    let mut taken = Taken::default();
    for phase in 0..PHASES {
        let moves = phase % 2 == 1;
        shared.busy.store(moves, Ordering::Relaxed);
        let (mut mover, mut granted) = (Mover::default(), 0);
        let between = |pace: &Pace| {
            shared.written.fetch_add(COMMIT as u64, Ordering::Relaxed);
            let due = (pace.clock.now().as_secs_f64() * MOVED_BYTES as f64) as u64;
            if moves && due - granted >= STEP_BYTES_MIN && mover.go_on(&shared, due - granted)? {
                granted = due;
            }
            shared.merge(pace)
        };
        taken.extend(shared.run(scale.limit() / PHASES, HOT, || new_records(&mut workload, &shared), between)?);
        mover.end(&shared)?;
    }
    let moved = shared.counters().cold_write_bytes;
    ensure!(moved > 0, "nothing was moved");
    let mut sample = Sample::new();
    taken.note("moving", &mut sample)?;
    sample.insert("moving_mib".to_owned(), moved as f64 / f64::from(1 << 20));
    Ok(Outcome { sample, series: Vec::new() })
}

fn new_records(workload: &mut Workload, shared: &Shared) -> Vec<Record> {
    let first = shared.written.load(Ordering::Relaxed);
    (first..first + COMMIT as u64).map(|number| workload.record(number)).collect()
}

/// Moves segments on a thread of its own, as a replica does.
#[derive(Default)]
struct Mover(Option<JoinHandle<ColdStep>>);

impl Mover {
    /// Takes back a finished step, and begins the next one. Returns false if a step is still
    /// running, or there is nothing to move.
    fn go_on(&mut self, shared: &Shared, bytes: u64) -> Result<bool> {
        if self.0.as_ref().is_some_and(|step| !step.is_finished()) {
            return Ok(false);
        }
        self.end(shared)?;
        let Some(mut step) = shared.with(|store| store.engine_mut().begin_cold_step(bytes)) else { return Ok(false) };
        let run = move || {
            step.run();
            step
        };
        self.0 = Some(std::thread::Builder::new().name("mover".to_owned()).spawn(run)?);
        Ok(true)
    }

    fn end(&mut self, shared: &Shared) -> Result<()> {
        let Some(step) = self.0.take() else { return Ok(()) };
        let step = step.join().expect("a move breaks no invariant");
        shared.with(|store| store.engine_mut().end_cold_step(step)).map_err(Into::into)
    }
}
