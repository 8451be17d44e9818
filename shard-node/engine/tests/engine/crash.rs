//! A crash at every I/O of a workload. Unsynced writes are torn, lost or reordered. Then the
//! directory is opened and the log replayed.

use std::cell::Cell;

use coppice_engine::{ColdStep, Engine, Error, MergeProgress, Writes};
use coppice_env::{Fault, Operation as Call, Rng, SimRng, SimStorage};
use coppice_types::Params;

use crate::cold::move_all;
use crate::common::{
    checks::check_all,
    for_each_seed,
    model::{Model, Outcome},
    pick,
    replica::{self, Replica, SHARD, check_directory, check_gone, dir, execute, machine_state, position},
    tiny_options, tiny_params,
    workload::{Command, Generator},
};

/// A step of a replica.
enum Step {
    Apply(Command),
    Flush,
    Merge(usize),
    /// The next step of writes on another thread: begins a flush or writes ahead, runs them, or
    /// ends them.
    Beside {
        flush: bool,
    },
    /// A step of this many bytes of erasures.
    Erase(u64),
    /// The next step of a move to the cold directory: begins one of this many bytes, runs it, or
    /// ends it.
    Cold(u64),
}

/// A move to the cold directory in progress.
enum Cold {
    None,
    Begun(ColdStep),
    Moved(ColdStep),
}

impl Cold {
    fn go_on(&mut self, engine: &mut Engine, bytes: u64) -> Result<(), Error> {
        *self = match std::mem::replace(self, Self::None) {
            Self::None => engine.begin_cold_step(bytes).map_or(Self::None, Self::Begun),
            Self::Begun(mut step) => {
                step.run();
                Self::Moved(step)
            }
            Self::Moved(step) => {
                engine.end_cold_step(step)?;
                Self::None
            }
        };
        Ok(())
    }
}

/// Writes in progress on another thread, with the log index that they make durable if they are a
/// flush.
enum Beside {
    None,
    Begun(Writes, Option<usize>),
    Written(Writes),
}

impl Beside {
    /// Begins, runs or ends writes. Returns the log index that this makes durable, and the outcome.
    fn go_on(&mut self, engine: &mut Engine, flush: Option<usize>) -> (Option<usize>, Result<(), Error>) {
        match std::mem::replace(self, Self::None) {
            Self::None => {
                let begun = flush.map(|at| engine.begin_flush(position(at), &machine_state(at)));
                match begun.unwrap_or_else(|| Ok(engine.begin_ahead())) {
                    Ok(writes) => *self = Self::Begun(writes, flush),
                    Err(error) => return (None, Err(error)),
                }
                (None, Ok(()))
            }
            Self::Begun(mut writes, flush) => {
                writes.run();
                *self = Self::Written(writes);
                (flush, Ok(()))
            }
            Self::Written(writes) => (None, engine.end_writes(writes)),
        }
    }

    /// Ends writes before a flush. If they never ran, they count as failed.
    fn end(&mut self, engine: &mut Engine) -> Result<(), Error> {
        match std::mem::replace(self, Self::None) {
            Self::None => Ok(()),
            Self::Begun(writes, _) | Self::Written(writes) => engine.end_writes(writes),
        }
    }
}

/// A recorded workload.
struct Workload {
    params: Params,
    options: coppice_engine::Options,
    steps: Vec<Step>,
    log: Vec<(Command, Outcome)>,
    /// The model after each prefix of the log.
    models: Vec<Model>,
}

impl Workload {
    fn record(seed: u64, commands: usize) -> Self {
        let mut rng = SimRng::new(seed);
        let params = tiny_params(&mut rng);
        let options = tiny_options(&mut rng);
        let mut generator = Generator::new(SimRng::new(rng.next_u64()), &params, 40);
        let mut model = Model::new(&params);
        let (mut steps, mut log, mut models) = (Vec::new(), Vec::new(), vec![model.clone()]);
        for _ in 0..commands {
            let command = generator.next(&model);
            log.push((command.clone(), model.apply(&command)));
            models.push(model.clone());
            steps.push(Step::Apply(command));
            match rng.below(10) {
                0..2 => steps.push(Step::Flush),
                2..5 => steps.push(Step::Merge(1 + pick(&mut rng, 20))),
                5..8 => steps.push(Step::Beside { flush: rng.below(2) == 0 }),
                _ => {}
            }
            if !models.last().expect("one").erased.is_empty() {
                (0..rng.below(4)).for_each(|_| steps.push(Step::Erase(1 + rng.below(20_000))));
            }
            for _ in 0..rng.below(3) {
                steps.push(Step::Cold(1 + rng.below(4000)));
            }
        }
        steps.push(Step::Flush);
        Self { params, options, steps, log, models }
    }

    /// Runs until the end or the crash. Returns two log indices: the last one that is certainly
    /// durable, and the last one that may be.
    fn run(&self, sim: &SimStorage, from: Option<Engine>) -> (usize, usize) {
        let (mut sure, mut maybe, mut at) = (0, 0, 0);
        let create = || Engine::create(dir(sim), SHARD, self.params.clone(), self.options.clone());
        let Ok(mut engine) = from.map_or_else(create, Ok) else {
            assert!(sim.crashed(), "an empty directory is made");
            return (sure, maybe);
        };
        let (mut beside, mut cold) = (Beside::None, Cold::None);
        for step in &self.steps {
            match step {
                Step::Apply(command) => {
                    // Commands change memory only.
                    let outcome =
                        execute(&mut engine, command).unwrap_or_else(|error| Outcome::Refused(error.reason()));
                    assert_eq!(outcome, self.log[at].1, "{command:?}");
                    at += 1;
                }
                Step::Flush => {
                    let ended = beside.end(&mut engine);
                    if sim.crashed() {
                        return (sure, maybe);
                    }
                    ended.expect("writes");
                    maybe = at;
                    let flushed = engine.flush(position(at), &machine_state(at));
                    if sim.crashed() {
                        if flushed.is_ok() {
                            sure = at;
                        }
                        return (sure, maybe);
                    }
                    flushed.expect("flushes");
                    sure = at;
                }
                Step::Merge(budget) => {
                    let _: MergeProgress = engine.merge_step(*budget).expect("merges");
                }
                Step::Beside { flush } => {
                    let (written, done) = beside.go_on(&mut engine, flush.then_some(at));
                    maybe = written.unwrap_or(maybe);
                    if sim.crashed() {
                        return (sure, maybe);
                    }
                    sure = maybe;
                    done.expect("writes");
                }
                Step::Erase(bytes) => {
                    let erased = engine.erase_step(*bytes);
                    if sim.crashed() {
                        return (sure, maybe);
                    }
                    erased.expect("erases");
                }
                Step::Cold(bytes) => {
                    let moved = cold.go_on(&mut engine, *bytes);
                    if sim.crashed() {
                        return (sure, maybe);
                    }
                    moved.expect("moves");
                }
            }
        }
        (sure, maybe)
    }

    /// Opens the directory that a crash left, and compares it with the model, before and after the
    /// replay of the rest of the log.
    fn recover(&self, sim: &SimStorage, (sure, maybe): (usize, usize)) {
        if !Engine::exists(&*dir(sim)).expect("asks") {
            assert_eq!(sure, 0, "a flushed directory exists");
            drop(Engine::create(dir(sim), SHARD, self.params.clone(), self.options.clone()).expect("is created again"));
        } else {
            check_directory(sim);
        }
        let engine = Engine::open(dir(sim), self.options.clone()).expect("opens after a crash");
        let durable = usize::try_from(engine.durable_position().index).expect("an index");
        assert!(durable == maybe || durable == sure, "durable is {durable}, not {sure} or {maybe}");
        check_all(&engine, &self.models[durable]);
        drop(engine);
        let mut replica =
            Replica::reopen(sim.clone(), self.options.clone(), self.log.clone()).expect("opens and replays");
        check_all(replica.engine(), self.models.last().expect("at least the empty one"));
        replica.end_erasures().expect("erases");
        let erased = &self.models.last().expect("at least the empty one").erased;
        for lost in [replica.sim.process_loss(), replica.sim.power_loss(1)] {
            check_gone(&lost, erased.values().map(|value| &value[..]));
        }
        move_all(replica.engine_mut()).expect("moves go on");
        check_all(replica.engine(), self.models.last().expect("at least the empty one"));
        replica.check_directory();
    }
}

#[test]
fn a_crash_at_any_write_loses_nothing_that_was_flushed() {
    for_each_seed("a_crash_at_any_write_loses_nothing_that_was_flushed", 4, |seed| {
        let workload = Workload::record(seed, 40);
        let sim = SimStorage::new();
        workload.run(&sim, None);
        for at in 0..sim.io_count() {
            let sim = SimStorage::new();
            sim.crash_after(at);
            let flushed = workload.run(&sim, None);
            assert!(sim.crashed(), "write {at} happens");
            for loss in 0..3 {
                workload.recover(&sim.power_loss(at * 10 + loss), flushed);
            }
            workload.recover(&sim.process_loss(), flushed);
        }
    });
}

#[test]
fn a_crash_in_recovery_loses_nothing_either() {
    let interrupted = Cell::new(0);
    for_each_seed("a_crash_in_recovery_loses_nothing_either", 6, |seed| {
        let workload = Workload::record(seed + 100, 40);
        let sim = SimStorage::new();
        workload.run(&sim, None);
        let mut rng = SimRng::new(seed);
        for round in 0..30 {
            let sim = SimStorage::new();
            sim.crash_after(rng.below(600));
            let flushed = workload.run(&sim, None);
            let wreck = sim.power_loss(round);
            if !Engine::exists(&*dir(&wreck)).expect("asks") {
                continue;
            }
            // The number of writes that recovery makes.
            let probe = wreck.process_loss();
            drop(Engine::open(dir(&probe), workload.options.clone()).expect("opens"));
            for at in 0..probe.io_count() {
                let second = wreck.process_loss();
                second.crash_after(at);
                let opened = Engine::open(dir(&second), workload.options.clone());
                assert!(second.crashed());
                drop(opened);
                interrupted.set(interrupted.get() + 1);
                workload.recover(&second.power_loss(at), flushed);
                workload.recover(&second.process_loss(), flushed);
            }
        }
    });
    assert!(interrupted.get() > 0, "recovery never had anything to write");
}

/// The next process reads bytes that a killed process has written, but that are not durable yet. It
/// must not rely on them.
#[test]
fn a_kill_and_then_a_power_failure_lose_nothing_either() {
    for_each_seed("a_kill_and_then_a_power_failure_lose_nothing_either", 2, |seed| {
        let workload = Workload::record(seed + 400, 40);
        let sim = SimStorage::new();
        workload.run(&sim, None);
        for at in 0..sim.io_count() {
            let sim = SimStorage::new();
            sim.crash_after(at);
            let (sure, _) = workload.run(&sim, None);
            let killed = sim.process_loss();
            if !Engine::exists(&*dir(&killed)).expect("asks") {
                continue;
            }
            for ios in 0..8 {
                let second = killed.process_loss();
                let log = workload.log.clone();
                let mut replica = Replica::reopen(second.clone(), workload.options.clone(), log).expect("opens");
                second.crash_after(ios);
                let flushed = replica.flush();
                drop(replica);
                let lost = second.power_loss(at * 10 + ios);
                check_directory(&lost);
                let survivor = Engine::open(dir(&lost), workload.options.clone()).expect("opens after both");
                let durable = usize::try_from(survivor.durable_position().index).expect("an index");
                assert!(durable >= if flushed.is_ok() { workload.log.len() } else { sure });
                check_all(&survivor, &workload.models[durable]);
            }
        }
    });
}

#[test]
fn a_failed_call_leaves_the_state_intact() {
    const CALLS: [Call; 5] = [Call::Write, Call::Sync, Call::SyncDir, Call::Open, Call::Name];
    for_each_seed("a_failed_call_leaves_the_state_intact", 10, |seed| {
        let workload = Workload::record(seed + 200, 50);
        let mut rng = SimRng::new(seed);
        let sim = SimStorage::new();
        let mut engine = Engine::create(dir(&sim), SHARD, workload.params.clone(), workload.options.clone())
            .expect("an empty directory");
        let (mut at, mut beside, mut cold) = (0, Beside::None, Cold::None);
        let fault = |rng: &mut SimRng| {
            let operation = CALLS[pick(rng, CALLS.len())];
            Fault { operation, path_part: String::new(), skip: rng.below(5), kind: std::io::ErrorKind::Other }
        };
        // Opens an engine again if it can't be used any more.
        let mended = |engine: Engine, at: usize, cold: &mut Cold, failed: &Error| {
            assert!(matches!(failed, Error::Poisoned), "{failed}");
            drop(engine);
            *cold = Cold::None;
            let log = workload.log[..at].to_vec();
            let mut reopened = Replica::reopen(sim.clone(), workload.options.clone(), log).expect("opens");
            reopened.flush().expect("flushes");
            reopened.into_engine()
        };
        // Opens the directory that a power failure at this moment would leave, and returns its log
        // index.
        let survives = |rng: &mut SimRng| {
            let loss = sim.power_loss(rng.next_u64());
            check_directory(&loss);
            let survivor = Engine::open(dir(&loss), workload.options.clone()).expect("opens");
            let durable = usize::try_from(survivor.durable_position().index).expect("an index");
            assert_eq!(survivor.durable_position(), if durable == 0 { Default::default() } else { position(durable) });
            check_all(&survivor, &workload.models[durable]);
            durable
        };
        for step in &workload.steps {
            match step {
                Step::Apply(command) => {
                    let outcome = execute(&mut engine, command);
                    assert_eq!(outcome.unwrap_or_else(|error| Outcome::Refused(error.reason())), workload.log[at].1);
                    at += 1;
                }
                Step::Merge(budget) => drop(engine.merge_step(*budget).expect("merges")),
                // If this fails, the next flush repeats it.
                Step::Beside { flush } => {
                    sim.inject(fault(&mut rng));
                    let (_, done) = beside.go_on(&mut engine, flush.then_some(at));
                    sim.clear_faults();
                    check_all(&engine, &workload.models[at]);
                    assert!(survives(&mut rng) as u64 >= engine.durable_position().index);
                    if done.is_err()
                        && let Err(error) = engine.merge_step(1)
                    {
                        engine = mended(engine, at, &mut cold, &error);
                    }
                }
                // A step that fails is repeated.
                Step::Erase(bytes) => {
                    sim.inject(fault(&mut rng));
                    let erased = engine.erase_step(*bytes);
                    sim.clear_faults();
                    check_all(&engine, &workload.models[at]);
                    assert!(survives(&mut rng) as u64 >= engine.durable_position().index);
                    drop(erased);
                }
                // A step that fails is begun again.
                Step::Cold(bytes) => {
                    sim.inject(fault(&mut rng));
                    let _ = cold.go_on(&mut engine, *bytes);
                    sim.clear_faults();
                    check_all(&engine, &workload.models[at]);
                }
                Step::Flush => {
                    let _ = beside.end(&mut engine);
                    sim.inject(fault(&mut rng));
                    let failed = engine.flush(position(at), &machine_state(at));
                    sim.clear_faults();
                    check_all(&engine, &workload.models[at]);
                    // A failed call is repeated.
                    let again = match failed {
                        Ok(()) => Ok(()),
                        Err(_) => engine.flush(position(at), &machine_state(at)),
                    };
                    if let Err(error) = again {
                        engine = mended(engine, at, &mut cold, &error);
                    }
                    assert_eq!(survives(&mut rng), at);
                }
            }
        }
    });
}

#[test]
fn a_crash_while_a_snapshot_is_received_leaves_nothing_half_done() {
    for_each_seed("a_crash_while_a_snapshot_is_received_leaves_nothing_half_done", 3, |seed| {
        let workload = Workload::record(seed + 300, 60);
        let sim = SimStorage::new();
        let mut engine = Engine::create(dir(&sim), SHARD, workload.params.clone(), workload.options.clone())
            .expect("an empty directory");
        for (at, (command, _)) in workload.log.iter().enumerate() {
            let _: Result<Outcome, Error> = execute(&mut engine, command);
            if at % 7 == 0 {
                engine.flush(position(at + 1), &machine_state(at + 1)).expect("flushes");
            }
        }
        let end = workload.log.len();
        engine.flush(position(end), &machine_state(end)).expect("flushes");
        let manifest = engine.pin_snapshot().expect("pins");
        let whole = SimStorage::new();
        replica::send(&engine, &manifest, &whole, 1000).expect("receives");
        for at in 0..whole.io_count() {
            let target = SimStorage::new();
            target.crash_after(at);
            let sent = replica::send(&engine, &manifest, &target, 1000);
            assert!(target.crashed() && sent.is_err(), "write {at} happens");
            for loss in 0..2 {
                let target = target.power_loss(at * 10 + loss);
                // The transfer continues, or begins again if the received files are damaged.
                if !Engine::exists(&*dir(&target)).expect("asks") {
                    let resumed = replica::send(&engine, &manifest, &target, 1000);
                    if matches!(resumed, Err(Error::Corrupted { .. })) {
                        replica::send(&engine, &manifest, &target, 1000).expect("receives from the start");
                    } else {
                        resumed.expect("goes on");
                    }
                }
                check_directory(&target);
                workload.recover(&target, (end, end));
            }
        }
    });
}
