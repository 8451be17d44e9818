//! Random commands against the model, on engines that flush, restart, merge and prune at different times.
#![expect(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::sync::Arc;

use common::{Command, Model, apply, check_line, check_names, check_version, tiny_options, tiny_params};
use coppice_engine::{Engine, RaftPosition, fsck};
use coppice_env::{Rng, SimRng, SimStorage};
use coppice_types::{ShardId, Version};

/// An engine with habits of its own.
struct Replica {
    sim: SimStorage,
    engine: Option<Engine>,
    rng: SimRng,
    log: Vec<Command>,
    boundary: Version,
    /// Prunes that this one has put off.
    flush_per_mille: u64,
    restart_per_mille: u64,
    merge_per_mille: u64,
}

impl Replica {
    fn new(seed: u64, capacity: u32, habits: [u64; 3]) -> Self {
        let sim = SimStorage::new();
        let engine =
            Engine::create(sim.storage(), ShardId(3), tiny_params(capacity), tiny_options()).expect("a new directory");
        let [flush_per_mille, restart_per_mille, merge_per_mille] = habits;
        Self {
            sim,
            engine: Some(engine),
            rng: SimRng::new(seed),
            log: Vec::new(),
            boundary: Version(0),
            flush_per_mille,
            restart_per_mille,
            merge_per_mille,
        }
    }

    fn engine(&mut self) -> &mut Engine {
        self.engine.as_mut().expect("running")
    }

    fn apply(&mut self, command: &Command) -> Option<coppice_engine::ShardState> {
        self.log.push(command.clone());
        if let Command::Prune(before) = command {
            self.boundary = self.boundary.max(*before);
        }
        apply(self.engine(), command).expect("the command fits")
    }

    /// What a replica does by itself between commands.
    fn live(&mut self) {
        if self.rng.chance(self.merge_per_mille) {
            let budget = 1 + self.rng.below(60) as usize;
            self.engine().merge_step(budget).expect("sound pages");
        }
        if self.rng.chance(self.flush_per_mille) {
            let position = RaftPosition { index: self.log.len() as u64, term: 1 };
            self.engine().flush(position, b"state").expect("room");
        }
        if self.rng.chance(self.restart_per_mille) {
            self.restart();
        }
    }

    fn restart(&mut self) {
        self.engine = None;
        self.check_files();
        let mut engine = Engine::open(self.sim.storage(), tiny_options()).expect("a sound directory");
        let durable = engine.durable_position().index as usize;
        for command in &self.log[durable..] {
            apply(&mut engine, command).expect("it did before");
        }
        self.engine = Some(engine);
    }

    fn check_files(&mut self) {
        let report = fsck(Arc::new(self.sim.clone())).unwrap();
        assert_eq!(report.findings, []);
    }
}

fn run(seed: u64, capacity: u32, steps: usize) {
    let mut rng = SimRng::new(seed);
    let mut model = Model::new(&tiny_params(capacity));
    let mut replicas = [
        Replica::new(seed + 1, capacity, [300, 60, 500]),
        Replica::new(seed + 2, capacity, [50, 10, 50]),
        Replica::new(seed + 3, capacity, [0, 0, 0]),
    ];
    for step in 0..steps {
        let command = model.random_command(&mut rng);
        let expected = model.apply(&command);
        for (number, replica) in replicas.iter_mut().enumerate() {
            // The last replica never prunes; the second one does so late.
            let skip = matches!(command, Command::Prune(_)) && (number == 2 || number == 1 && rng.chance(700));
            if skip {
                continue;
            }
            assert_eq!(replica.apply(&command), expected, "seed {seed} step {step} replica {number}: {command:?}");
        }
        for replica in &mut replicas {
            replica.live();
        }
        if step % 5 == 0 {
            check_reads(&mut replicas, &model, &mut rng);
        }
    }
    for replica in &mut replicas {
        replica.restart();
        check_names(replica.engine.as_ref().unwrap(), &model, replica.boundary);
        let position = RaftPosition { index: replica.log.len() as u64, term: 1 };
        replica.engine().flush(position, b"").expect("room");
        replica.restart();
    }
    check_reads(&mut replicas, &model, &mut rng);
}

fn check_reads(replicas: &mut [Replica; 3], model: &Model, rng: &mut SimRng) {
    for replica in replicas {
        let engine = replica.engine.as_ref().unwrap();
        check_names(engine, model, replica.boundary);
        let line = model.line(replica.boundary);
        check_version(engine, line[rng.below(line.len() as u64) as usize], rng);
        check_version(engine, model.tip(), rng);
        let staged = model.staged();
        if !staged.is_empty() {
            check_version(engine, staged[rng.below(staged.len() as u64) as usize], rng);
        }
        check_line(engine, &line, rng);
    }
}

#[test]
fn engines_agree_with_the_model_at_the_smallest_capacity() {
    for seed in 0..6 {
        run(seed * 100, 8, 250);
    }
}

#[test]
fn engines_agree_with_the_model_at_larger_capacities() {
    run(1, 20, 250);
    run(2, 64, 250);
    run(3, 150, 300);
}
