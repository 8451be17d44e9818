//! One engine and its raft log: it applies commands, flushes, and recovers from failures.

use std::sync::Arc;

use coppice_engine::{
    ColdStep, Engine, Error, Manifest, MergeProgress, Options, Position, Report, SnapshotReceiver, StageRequest,
    Writes, fsck,
};
use coppice_env::{OpenMode, Rng, SimRng, SimStorage, Storage, TieredStorage};
use coppice_types::{Params, ShardId};

use super::{
    model::{Outcome, journal_of},
    pick,
    workload::Command,
};

pub const SHARD: ShardId = ShardId(3);
const DIR: &str = "shards/3";
/// The engine's cold directory.
pub const COLD: &str = "cold/3";
/// Bytes of values that a receiver of a snapshot keeps in its own directory.
const RECEIVED_HOT_BYTES: u64 = 2500;

/// The fate of unsynced writes in a restart.
#[derive(Clone, Copy, Debug)]
pub enum Loss {
    /// All of them stay: the process was killed.
    Process,
    /// Some of them are lost: power failed.
    Power(u64),
}

/// Writes in progress on another thread.
#[derive(Debug)]
struct Beside {
    writes: Writes,
    /// The position that they make durable, if they are a flush.
    flush: Option<Position>,
    done: bool,
}

/// An engine and its log.
#[derive(Debug)]
pub struct Replica {
    pub sim: SimStorage,
    pub options: Options,
    pub log: Vec<(Command, Outcome)>,
    engine: Option<Engine>,
    pinned: Option<Manifest>,
    beside: Option<Beside>,
    /// A step of a move, and whether it has run.
    cold: Option<(ColdStep, bool)>,
}

/// The shard's directory in a file system, with a cold one.
pub fn dir(sim: &SimStorage) -> Arc<dyn Storage> {
    Arc::new(TieredStorage::new(hot_dir(sim), sim.subdir(COLD).expect("a legal path")))
}

/// The shard's directory without the cold one.
pub fn hot_dir(sim: &SimStorage) -> Arc<dyn Storage> {
    sim.subdir(DIR).expect("a legal path")
}

/// Executes a command.
pub fn execute(engine: &mut Engine, command: &Command) -> Result<Outcome, Error> {
    Ok(match command {
        Command::Stage(stage) => {
            let request = StageRequest {
                stamp: stage.stamp,
                prepare_id: stage.prepare_id,
                base: stage.base,
                merges: &stage.merges,
                operations: &stage.operations,
                erases: &stage.erases,
            };
            let state = engine.stage(&request)?.state;
            if engine.params().journals_kept {
                engine.keep_journal(&state, stage.prepare_id, &journal_of(stage.stamp, stage.prepare_id))?;
            }
            Outcome::State(state)
        }
        Command::Settle(state) => engine.settle(state).map(|()| Outcome::Done)?,
        Command::Abort { version, prepare_id } => Outcome::Dropped(engine.abort(*version, *prepare_id)),
        Command::AbortAll => Outcome::Dropped(engine.abort_all_staged()),
        Command::Adopt(state) => engine.adopt(state).map(|()| Outcome::Done)?,
        Command::Rollback { to, epoch } => Outcome::State(engine.rollback(*to, *epoch)?),
        Command::Prune { before } => engine.prune(*before).map(|()| Outcome::Done)?,
    })
}

/// The raft entry at an index. [`machine_state`] has the caller's state there.
pub fn position(index: usize) -> Position {
    Position { index: index as u64, term: 1 + index as u64 / 10 }
}

pub fn machine_state(index: usize) -> Vec<u8> {
    index.to_le_bytes().repeat(index % 40)
}

impl Replica {
    pub fn new(params: &Params, options: Options) -> Self {
        let sim = SimStorage::new();
        let engine = Engine::create(dir(&sim), SHARD, params.clone(), options.clone()).expect("an empty directory");
        Self { sim, options, log: Vec::new(), engine: Some(engine), pinned: None, beside: None, cold: None }
    }

    /// Opens the directory and replays the log from the directory's position.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn reopen(sim: SimStorage, options: Options, log: Vec<(Command, Outcome)>) -> Result<Self, Error> {
        let engine = Engine::open(dir(&sim), options.clone())?;
        let mut replica =
            Self { sim, options, log: Vec::new(), engine: Some(engine), pinned: None, beside: None, cold: None };
        replica.replay(log);
        Ok(replica)
    }

    fn replay(&mut self, log: Vec<(Command, Outcome)>) {
        let engine = self.engine();
        let durable = usize::try_from(engine.durable_position().index).expect("an index");
        assert!(durable <= log.len(), "the directory is ahead of the log");
        assert_eq!(engine.durable_position(), if durable == 0 { Position::default() } else { position(durable) });
        assert_eq!(engine.machine_state(), machine_state(durable));
        assert!(engine.fallback_position() <= engine.durable_position());
        for (command, expected) in &log[durable..] {
            assert_eq!(self.try_execute(command), *expected, "replay of {command:?}");
        }
        self.log = log;
    }

    pub fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("open, except during a restart")
    }

    pub fn engine_mut(&mut self) -> &mut Engine {
        self.engine.as_mut().expect("open, except during a restart")
    }

    pub fn into_engine(self) -> Engine {
        self.engine.expect("open, except during a restart")
    }

    fn try_execute(&mut self, command: &Command) -> Outcome {
        execute(self.engine_mut(), command).unwrap_or_else(|error| Outcome::Refused(error.reason()))
    }

    pub fn apply(&mut self, command: &Command) -> Outcome {
        let outcome = self.try_execute(command);
        self.log.push((command.clone(), outcome.clone()));
        outcome
    }

    /// # Errors
    /// Those of the engine's flush.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.end_beside()?;
        let index = self.log.len();
        self.engine_mut().flush(position(index), &machine_state(index))
    }

    /// # Errors
    /// Those of the engine's flush.
    pub fn begin_flush(&mut self) -> Result<Writes, Error> {
        let index = self.log.len();
        self.engine_mut().begin_flush(position(index), &machine_state(index))
    }

    /// Ends writes in progress, whether they have run or not.
    fn end_beside(&mut self) -> Result<(), Error> {
        self.beside.take().map_or(Ok(()), |beside| self.engine_mut().end_writes(beside.writes))
    }

    /// Kills the process or cuts the power, and recovers.
    pub fn restart(&mut self, loss: Loss) {
        let flushed = self.beside.as_ref().filter(|beside| beside.done).and_then(|beside| beside.flush);
        let durable = flushed.unwrap_or_else(|| self.engine().durable_position());
        (self.engine, self.pinned, self.beside, self.cold) = (None, None, None, None);
        self.sim = match loss {
            Loss::Process => self.sim.process_loss(),
            Loss::Power(seed) => self.sim.power_loss(seed),
        };
        let engine = Engine::open(dir(&self.sim), self.options.clone()).expect("opens after a loss");
        assert_eq!(engine.durable_position(), durable, "what a flush made durable stays");
        self.engine = Some(engine);
        let log = std::mem::take(&mut self.log);
        self.replay(log);
    }

    /// Pins a snapshot. If one was pinned some commands ago, sends it to an empty directory and
    /// continues there.
    fn move_by_snapshot(&mut self, rng: &mut SimRng) {
        let Some(manifest) = self.pinned.take() else {
            // This also happens during a flush.
            if rng.below(2) == 0 {
                self.flush().expect("flushes");
            }
            self.pinned = Some(self.engine_mut().pin_snapshot().expect("pins"));
            return;
        };
        assert_eq!(Manifest::decode(&manifest.encode()).expect("decodes"), manifest);
        let target = SimStorage::new();
        send(self.engine(), &manifest, &target, 1 + pick(rng, 20_000)).expect("receives");
        let check = self.engine().check_of_snapshot(manifest.id).expect("it is pinned");
        check().expect("what goes on during a pin does not damage it");
        self.engine_mut().unpin_snapshot(manifest.id);
        self.flush().expect("flushes");
        self.check_directory();
        let log = std::mem::take(&mut self.log);
        *self = Self::reopen(target, self.options.clone(), log).expect("opens");
        assert_eq!(self.engine().durable_position(), manifest.position);
    }

    /// Begins a flush or writes ahead. If some are in progress, runs them, and ends them now,
    /// later, or with the next flush.
    fn write_beside(&mut self, rng: &mut SimRng) {
        match &mut self.beside {
            None => {
                let flush = (rng.below(2) == 0).then_some(position(self.log.len()));
                let writes = match flush {
                    Some(_) => self.begin_flush().expect("begins"),
                    None => self.engine_mut().begin_ahead(),
                };
                self.beside = Some(Beside { writes, flush, done: false });
            }
            Some(beside) => {
                if !beside.done {
                    beside.writes.run();
                }
                beside.done = true;
                if rng.below(2) == 0 {
                    self.end_beside().expect("writes");
                }
            }
        }
    }

    /// Begins a step of a move. If one is in progress, runs it, and ends it now or later.
    fn move_cold(&mut self, rng: &mut SimRng) {
        match self.cold.take() {
            None => self.cold = self.engine_mut().begin_cold_step(1 + rng.below(3000)).map(|step| (step, false)),
            Some((step, done)) if done || rng.chance(100) => {
                self.engine_mut().end_cold_step(step).expect("moves");
            }
            Some((mut step, _)) => {
                step.run();
                self.cold = Some((step, true));
            }
        }
    }

    /// A local action that no digest may depend on.
    pub fn act(&mut self, rng: &mut SimRng) {
        match rng.below(100) {
            0..30 => {
                let budget = [1, 5, 1000][pick(rng, 3)];
                for _ in 0..=rng.below(3) {
                    if self.engine_mut().merge_step(budget).expect("merges") == MergeProgress::Idle {
                        break;
                    }
                }
            }
            30..40 => self.move_cold(rng),
            40..45 => self.engine_mut().erase_step(1 + rng.below(20_000)).expect("erases"),
            45..60 => self.flush().expect("flushes"),
            60..70 => self.write_beside(rng),
            70..80 => self.engine_mut().scrub(1 + rng.below(20_000)).expect("what was flushed is sound"),
            80..86 => self.restart(Loss::Process),
            86..93 => self.restart(Loss::Power(rng.next_u64())),
            _ => self.move_by_snapshot(rng),
        }
    }

    /// Ends all erasures, whatever they wait for.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn end_erasures(&mut self) -> Result<(), Error> {
        self.end_beside()?;
        if let Some((step, _)) = self.cold.take() {
            self.engine_mut().end_cold_step(step)?;
        }
        for _ in 0..10_000 {
            if !self.engine().is_erasing() {
                return self.flush();
            }
            if self.engine().erasure_wants_flush() {
                self.flush()?;
            }
            if self.engine().erasure_wants_unpin() {
                let pinned = self.pinned.take().expect("it is pinned here");
                self.engine_mut().unpin_snapshot(pinned.id);
            }
            assert!(self.engine().erasure_due(), "nothing that it waits for is left");
            self.engine_mut().erase_step(3000)?;
        }
        panic!("the erasures do not end");
    }

    /// The report of an offline check after a kill at this moment.
    pub fn check_directory(&self) -> Report {
        check_directory(&self.sim.process_loss())
    }
}

/// Fails if any file has the beginning of one of these values.
pub fn check_gone<'v>(sim: &SimStorage, values: impl Iterator<Item = &'v [u8]>) {
    let read = |name: &String| {
        let file = sim.open(name, OpenMode::Existing).expect("it is there");
        let mut bytes = vec![0; usize::try_from(file.len().expect("a length")).expect("small")];
        file.read_exact_at(&mut bytes, 0).expect("readable");
        bytes
    };
    let files: Vec<(String, Vec<u8>)> = sim.files().into_iter().map(|name| (name.clone(), read(&name))).collect();
    for value in values {
        for (name, bytes) in &files {
            assert!(!bytes.windows(16).any(|window| window == &value[..16]), "{name} has an erased value");
        }
    }
}

/// Runs fsck and fails if it finds damage.
pub fn check_directory(sim: &SimStorage) -> Report {
    let report = fsck(dir(sim)).expect("fsck runs");
    assert!(report.is_clean(), "fsck: {:#?}", report.findings);
    report
}

/// Sends a pinned snapshot in pieces.
///
/// # Errors
/// Those of the receiver.
pub fn send(engine: &Engine, manifest: &Manifest, target: &SimStorage, piece: usize) -> Result<(), Error> {
    send_to(engine, manifest, dir(target), piece)
}

/// Like [`send`], to any directory.
///
/// # Errors
/// Those of the receiver.
pub fn send_to(engine: &Engine, manifest: &Manifest, target: Arc<dyn Storage>, piece: usize) -> Result<(), Error> {
    let mut receiver = SnapshotReceiver::new(target, manifest.clone(), RECEIVED_HOT_BYTES)?;
    while let Some((file, offset)) = receiver.next() {
        let file = file.to_owned();
        let bytes = engine.read_snapshot(manifest.id, &file, offset, piece)?;
        receiver.write(&file, offset, &bytes)?;
    }
    // A model erases keys that it deletes or rolls back later.
    receiver.finish(|_| None)
}
