//! Measures how moves to a cold directory affect reads of hot values and commits:
//!
//! `cargo run --release --workspace --example cold -- DIR COLD_DIR [RECORDS [BYTES_PER_S
//! [SECONDS]]]`
//!
//! It loads records of 1 KiB, then alternates between phases without moves and with moves at that
//! pace. In each phase, one thread gets random records among the last ones written. Another one
//! commits batches of 100, flushes each, and drives the moves as a replica does. It prints the
//! durations of each phase in microseconds, and the medians over the phases.

use std::{
    error::Error,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{Builder, JoinHandle},
    time::Duration,
};

use coppice_engine::{ColdStep, Engine, MergePace, Options, Position, PrepareId, StageRequest};
use coppice_env::{Clock, DiskStorage, Rng, SimRng, SystemClock, TieredStorage};
use coppice_types::{Change, Operation, Params, ShardId, Stamp, Version};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const BATCH: u64 = 100;
/// Number of records that are read: the last ones.
const HOT: u64 = 20_000;
/// Budget that keeps these records in the first directory.
const HOT_BYTES: u64 = 64 << 20;
const RETAINED: u64 = 40;
const PHASES: usize = 8;
/// Records in one step of merging, as in a replica.
const MERGE_STEP: usize = 512;
const STEP_BYTES_MIN: u64 = 1 << 20;

struct Bench {
    engine: Arc<RwLock<Engine>>,
    clock: SystemClock,
    rng: SimRng,
    written: Arc<AtomicU64>,
    version: u64,
    mover: Option<JoinHandle<ColdStep>>,
}

/// Durations in microseconds.
#[derive(Clone, Debug, Default)]
struct Taken(Vec<u64>);

impl Taken {
    fn note(&mut self, took: Duration) {
        self.0.push(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    fn at(&mut self, per_mille: usize) -> u64 {
        self.0.sort_unstable();
        self.0.get((self.0.len() * per_mille / 1000).min(self.0.len().saturating_sub(1))).copied().unwrap_or(0)
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("{:016x}{number:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes()
}

#[expect(clippy::disallowed_methods, reason = "this is who owns the engine and the threads beside it")]
fn spawn<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> std::io::Result<JoinHandle<T>> {
    Builder::new().spawn(run)
}

impl Bench {
    fn commit(&mut self, flush: bool) -> Outcome<()> {
        let first = self.written.load(Ordering::Relaxed);
        let mut operations: Vec<Operation> = (first..first + BATCH)
            .map(|number| {
                let value = (0..128).flat_map(|_| self.rng.next_u64().to_le_bytes()).collect();
                Operation { key: key(number).into(), change: Change::Put(value) }
            })
            .collect();
        operations.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        let mut engine = self.engine.write().unwrap_or_else(PoisonError::into_inner);
        self.version += 1;
        let base = engine.decided();
        let merges = engine.shape(&base)?.ready;
        let (stamp, prepare_id) = (Stamp::new(0, self.version), PrepareId::default());
        let request = StageRequest { stamp, prepare_id, base, merges: &merges, operations: &operations };
        let staged = engine.stage(&request)?;
        engine.settle(&staged.state)?;
        engine.prune(Version(self.version.saturating_sub(RETAINED)))?;
        let records = match engine.merge_pace() {
            MergePace::Behind(owed) => usize::try_from(owed)?.max(MERGE_STEP),
            MergePace::Idle | MergePace::Waiting | MergePace::Going => MERGE_STEP,
        };
        engine.merge_step(records)?;
        if flush {
            engine.flush(Position { index: self.version, term: 1 }, b"")?;
        }
        drop(engine);
        self.written.store(first + BATCH, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the step of a move in progress and begins the next.
    fn move_cold(&mut self, bytes: u64) -> Outcome<()> {
        if self.mover.as_ref().is_some_and(|mover| !mover.is_finished()) {
            return Ok(());
        }
        let ended = self.mover.take().map(JoinHandle::join);
        let mut engine = self.engine.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(step) = ended {
            engine.end_cold_step(step.map_err(|_| "a move broke off")?)?;
        }
        if bytes > 0
            && let Some(mut step) = engine.begin_cold_step(bytes)
        {
            drop(engine);
            self.mover = Some(spawn(move || {
                step.run();
                step
            })?);
        }
        Ok(())
    }

    fn reader(&self, stop: Arc<AtomicBool>) -> std::io::Result<JoinHandle<Outcome<Taken>>> {
        let (engine, clock, written) = (Arc::clone(&self.engine), SystemClock::new(), Arc::clone(&self.written));
        let mut rng = SimRng::new(self.version);
        spawn(move || {
            let mut taken = Taken::default();
            while !stop.load(Ordering::Relaxed) {
                let key = key(written.load(Ordering::Relaxed) - 1 - rng.below(HOT));
                let began = clock.now();
                let engine = engine.read().unwrap_or_else(PoisonError::into_inner);
                let found = engine.view(&engine.decided())?.get(&key, true)?;
                drop(engine);
                taken.note(clock.now() - began);
                found.ok_or("a record is gone")?;
            }
            Ok(taken)
        })
    }

    /// Durations of reads and of commits, and the bytes moved.
    fn phase(&mut self, time: Duration, bytes_per_s: u64) -> Outcome<(Taken, Taken, u64)> {
        let moved = |it: &Self| it.engine.read().unwrap_or_else(PoisonError::into_inner).counters().cold_write_bytes;
        let (before, began, mut granted) = (moved(self), self.clock.now(), 0);
        let stop = Arc::new(AtomicBool::new(false));
        let reader = self.reader(Arc::clone(&stop))?;
        let mut commits = Taken::default();
        while self.clock.now() - began < time {
            let from = self.clock.now();
            self.commit(true)?;
            commits.note(self.clock.now() - from);
            let due = u64::try_from((self.clock.now() - began).as_micros())? * bytes_per_s / 1_000_000;
            if due - granted >= STEP_BYTES_MIN {
                self.move_cold(due - granted)?;
                granted = due;
            }
        }
        stop.store(true, Ordering::Relaxed);
        let reads = reader.join().map_err(|_| "the reader broke off")??;
        while self.mover.is_some() {
            self.move_cold(0)?;
        }
        Ok((reads, commits, moved(self) - before))
    }
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(dir), Some(cold_dir)) = (arguments.next(), arguments.next()) else { return Err("DIR COLD_DIR".into()) };
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (records, bytes_per_s, seconds) = (number(400_000)?, number(16 << 20)?, number(5)?);
    let storage = TieredStorage::new(Arc::new(DiskStorage::new(dir)), Arc::new(DiskStorage::new(cold_dir)));
    let options = Options { hot_value_bytes_max: HOT_BYTES, ..Options::default() };
    let engine = Engine::create(Arc::new(storage), ShardId(0), Params::default(), options)?;
    let mut bench = Bench {
        engine: Arc::new(RwLock::new(engine)),
        clock: SystemClock::new(),
        rng: SimRng::new(1),
        written: Arc::default(),
        version: 0,
        mover: None,
    };
    for batch in 0..records / BATCH {
        bench.commit(batch % 200 == 199)?;
    }
    println!("phase,moved_bytes,gets,get_p50,get_p99,get_p999,commits,commit_p50,commit_p99");
    let mut columns = [[const { Vec::new() }; 5], [const { Vec::new() }; 5]];
    for phase in 0..PHASES {
        let moves = phase % 2 == 1;
        let rate = if moves { bytes_per_s } else { 0 };
        let (mut gets, mut commits, moved) = bench.phase(Duration::from_secs(seconds), rate)?;
        let row = [gets.at(500), gets.at(990), gets.at(999), commits.at(500), commits.at(990)];
        let name = if moves { "moves" } else { "still" };
        let [get, get_99, get_999, commit, commit_99] = row;
        let (get_count, commit_count) = (gets.0.len(), commits.0.len());
        println!("{name},{moved},{get_count},{get},{get_99},{get_999},{commit_count},{commit},{commit_99}");
        columns[usize::from(moves)].iter_mut().zip(row).for_each(|(column, value)| column.push(value));
    }
    for (name, columns) in ["still", "moves"].into_iter().zip(columns) {
        let medians = columns.map(|column| Taken(column).at(500));
        println!("median {name}: get p50, p99, p99.9 {:?}; commit p50, p99 {:?}", &medians[..3], &medians[3..]);
    }
    println!("{:?}", bench.engine.read().unwrap_or_else(PoisonError::into_inner).disk_usage()?);
    Ok(())
}
