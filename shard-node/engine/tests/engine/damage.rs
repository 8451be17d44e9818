//! A flipped bit anywhere, or a truncated or missing file, is detected or harmless. It never causes
//! a wrong answer or a panic.

use coppice_engine::{Engine, Error, Options, fsck};
use coppice_env::{OpenMode, Rng, SimRng, SimStorage, Storage};
use coppice_types::{ErrorKind, Params};

use crate::cold::move_all;
use crate::common::{
    checks::check_names,
    for_each_seed,
    model::Model,
    replica::{COLD, Replica, SHARD, dir, send},
    workload::{Command, Generator},
};

/// A small directory with several trees, versions, staged versions, a merge, and values in leaves
/// and in the log.
struct Small {
    sim: SimStorage,
    options: Options,
    /// The model at each flush.
    flushed: Vec<(u64, Model)>,
    keys: Vec<Vec<u8>>,
}

fn small(seed: u64) -> Small {
    let params = Params {
        capacity: 8,
        key_bytes_max: 16,
        node_bytes: 352,
        fanout: 4,
        inline_bytes: 8,
        filter_bits: 4,
        tier_ratio: 2,
        ..Params::default()
    };
    let options = Options {
        meta_compaction_bytes_min: 1 << 20,
        segment_bytes_max: 1500,
        rows_held_min: 2,
        hot_value_bytes_max: 2000,
        ..Options::default()
    };
    let mut rng = SimRng::new(seed);
    let mut generator = Generator::new(SimRng::new(rng.next_u64()), &params, 12);
    let mut model = Model::new(&params);
    let mut replica = Replica::new(&params, options.clone());
    let mut flushed = vec![(0, model.clone())];
    // The loop runs until there is enough of everything. The same seed gives the same directory.
    while replica.log.len() < 16 || model.tip().forest.frozen().is_empty() || model.staged.is_empty() {
        let command = generator.next(&model);
        if matches!(command, Command::Rollback { .. } | Command::AbortAll) || is_large(&command) {
            continue;
        }
        let expected = model.apply(&command);
        assert_eq!(replica.apply(&command), expected);
        if rng.chance(300) {
            replica.engine_mut().merge_step(1000).expect("merges");
            replica.flush().expect("flushes");
            flushed.push((replica.log.len() as u64, model.clone()));
        }
    }
    replica.flush().expect("flushes");
    flushed.push((replica.log.len() as u64, model));
    move_all(replica.engine_mut()).expect("moves");
    let sim = replica.sim.process_loss();
    Small { sim, options, flushed, keys: generator.keys }
}

fn is_large(command: &Command) -> bool {
    matches!(command, Command::Stage(stage) if stage.operations.len() > 12)
}

/// The effect of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Refused,
    FoundByRead,
    Harmless,
}

fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupted | ErrorKind::Internal)
}

/// The number of versions whose rows are damaged. All others must have their right names.
fn lost_names(engine: &Engine, model: &Model) -> usize {
    let mut lost = 0;
    for (version, id) in model.decided.range(model.boundary..) {
        match engine.decided_at(*version) {
            Ok(state) => assert_eq!(state, model.entries[id].state),
            Err(error) => {
                assert!(is_damage(&error), "{error:?}");
                lost += 1;
            }
        }
    }
    lost
}

impl Small {
    /// Opens the directory and reads everything. Each answer must be right or an error.
    fn read(&self, sim: &SimStorage) -> Outcome {
        let engine = match Engine::open(dir(sim), self.options.clone()) {
            Ok(engine) => engine,
            Err(error) => {
                assert!(is_damage(&error) || matches!(error, Error::Missing), "{error:?}");
                return Outcome::Refused;
            }
        };
        // If the newer superblock is damaged, the older one gives the state. The log can be
        // replayed from there.
        let index = engine.durable_position().index;
        let model = &self.flushed.iter().rev().find(|(flushed, _)| *flushed == index).expect("a flushed state").1;
        let mut errors = lost_names(&engine, model);
        if errors == 0 {
            check_names(&engine, model);
        }
        assert_eq!(engine.shard(), SHARD);
        for entry in model.entries.values() {
            let view = match engine.view(&entry.state) {
                Err(error) if is_damage(&error) => {
                    errors += 1;
                    continue;
                }
                view => view.expect("it is here"),
            };
            for key in &self.keys {
                match view.get(key, true) {
                    Ok(found) => {
                        let found = found.map(|record| (record.stamp, record.value.expect("was asked for")));
                        let live = entry.live.get(key).map(|live| (live.stamp, live.value.to_vec()));
                        assert_eq!(found, live, "key {key:?}");
                    }
                    Err(error) => {
                        assert!(is_damage(&error), "{error:?}");
                        errors += 1;
                    }
                }
            }
        }
        if errors > 0 { Outcome::FoundByRead } else { Outcome::Harmless }
    }

    /// One round of the scrubber, in small steps.
    fn scrub(&self, sim: &SimStorage) -> Result<(), Error> {
        let mut engine = Engine::open(dir(sim), self.options.clone())?;
        while engine.counters().scrubs == 0 {
            engine.scrub(700)?;
        }
        Ok(())
    }

    /// Runs fsck. It must find something if reads did.
    fn check(&self, sim: &SimStorage, outcome: Outcome) -> bool {
        let clean = match fsck(dir(sim)) {
            Ok(report) => report.is_clean(),
            Err(error) => {
                assert!(is_damage(&error) || matches!(error, Error::Missing), "{error:?}");
                false
            }
        };
        assert!(outcome == Outcome::Harmless || !clean, "reads found what fsck does not");
        clean
    }
}

fn len_of(sim: &SimStorage, path: &str) -> u64 {
    sim.open(path, OpenMode::Existing).expect("opens").len().expect("has a length")
}

fn bytes_of(sim: &SimStorage, path: &str) -> Vec<u8> {
    let file = sim.open(path, OpenMode::Existing).expect("opens");
    let mut bytes = vec![0; usize::try_from(file.len().expect("has a length")).expect("small")];
    file.read_exact_at(&mut bytes, 0).expect("reads");
    bytes
}

/// Offsets of bytes to flip: all significant ones, and some of the zeroes that pad pages and
/// superblocks. If `COPPICE_SEEDS` is set, all bytes.
fn offsets(bytes: &[u8]) -> Vec<u64> {
    let stride = if std::env::var_os("COPPICE_SEEDS").is_some() { 1 } else { 251 };
    let chosen = bytes.iter().enumerate().filter(|(at, byte)| **byte != 0 || at % stride == 0);
    chosen.map(|(at, _)| at as u64).collect()
}

#[test]
fn a_flipped_bit_never_becomes_an_answer() {
    for_each_seed("a_flipped_bit_never_becomes_an_answer", 1, |seed| {
        let is_cold = |small: &Small| small.sim.files().iter().any(|path| path.starts_with(COLD));
        let small = (100 * seed..).map(small).find(is_cold).expect("some workload moves segments");
        let pristine = small.sim.process_loss();
        assert_eq!(small.read(&pristine), Outcome::Harmless);
        assert!(small.check(&pristine, Outcome::Harmless));
        small.scrub(&pristine).expect("nothing is damaged");
        let (mut refused, mut found_by_read, mut found_by_fsck, mut harmless) = (0, 0, 0, 0);
        for path in pristine.files() {
            for at in offsets(&bytes_of(&pristine, &path)) {
                let bit = u8::try_from(at % 8).expect("below 8");
                let sim = pristine.process_loss();
                sim.flip_bit(&path, at, bit);
                let outcome = small.read(&sim);
                // Fsck is slow. It runs for a fraction of the flips, and for each flip that reads
                // missed.
                match outcome {
                    Outcome::Refused => refused += 1,
                    Outcome::FoundByRead => {
                        found_by_read += 1;
                        if at % 16 == 0 {
                            let found = small.scrub(&sim).expect_err("reads found what the scrubber does not");
                            assert!(is_damage(&found), "{found:?}");
                        }
                    }
                    Outcome::Harmless if small.check(&sim, outcome) => harmless += 1,
                    Outcome::Harmless => found_by_fsck += 1,
                }
                if at % 64 == 0 {
                    small.check(&sim, outcome);
                }
            }
        }
        let counts = [refused, found_by_read, found_by_fsck, harmless];
        assert!(pristine.files().iter().any(|path| path.starts_with(COLD)), "something is cold");
        assert!(counts[..3].iter().all(|count| *count > 500), "{counts:?}");
        println!("refused, found by a read, found by fsck, harmless: {counts:?}");
    });
}

#[test]
fn a_sender_finds_in_a_snapshot_what_its_receiver_refuses_and_nothing_else() {
    let small = small(2);
    let sim = small.sim.process_loss();
    let mut engine = Engine::open(dir(&sim), small.options.clone()).expect("opens");
    let manifest = engine.pin_snapshot().expect("pins");
    let (mut found, mut sound) = (0, 0);
    for path in sim.files() {
        for at in offsets(&bytes_of(&sim, &path)).into_iter().step_by(5) {
            sim.flip_bit(&path, at, 3);
            let checked = engine.check_of_snapshot(manifest.id).expect("it is pinned")();
            let sent = send(&engine, &manifest, &SimStorage::new(), 4000);
            assert_eq!(checked.is_err(), sent.is_err(), "{path} at {at}: {checked:?}, {sent:?}");
            for error in [checked.as_ref().err(), sent.as_ref().err()].into_iter().flatten() {
                assert_eq!(error.kind(), ErrorKind::Corrupted, "{path} at {at}: {error:?}");
            }
            *if checked.is_err() { &mut found } else { &mut sound } += 1;
            sim.flip_bit(&path, at, 3);
        }
    }
    assert!(found > 100 && sound > 10, "{found} found, {sound} sound");
}

#[test]
fn a_truncated_or_missing_file_never_becomes_an_answer() {
    for_each_seed("a_truncated_or_missing_file_never_becomes_an_answer", 3, |seed| {
        let small = small(seed + 10);
        for path in small.sim.files() {
            let len = len_of(&small.sim, &path);
            let mut lengths: Vec<u64> = (0..len).step_by(usize::try_from(len / 50 + 1).expect("small")).collect();
            lengths.extend([len.saturating_sub(1), len + 1, len + 5000]);
            for new_len in lengths {
                let sim = small.sim.process_loss();
                sim.open(&path, OpenMode::Existing).expect("opens").set_len(new_len).expect("cuts");
                let outcome = small.read(&sim);
                small.check(&sim, outcome);
            }
            let sim = small.sim.process_loss();
            sim.remove(&path).expect("removes");
            let outcome = small.read(&sim);
            small.check(&sim, outcome);
            // A value segment may already be dead.
            if len > 0 && !path.contains("values-") {
                assert_ne!(outcome, Outcome::Harmless, "{path} is not needed");
            }
        }
    });
}
