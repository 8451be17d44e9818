//! Erased values: a crash at every I/O, damage beside them, and no byte left in any file.

use coppice_engine::{Engine, Error, Options, fsck};
use coppice_env::{DiskStorage, OpenMode, SimRng, SimStorage, Storage, TieredStorage};
use coppice_types::{Change, Operation, Params, Stamp, Version};

use crate::common::{
    checks::check_all,
    model::{Model, Outcome},
    replica::{Loss, Replica, check_directory, check_gone, dir},
    tiny_options,
    workload::{Command, Stage},
};

const SEGMENT_BYTES: u32 = 2 << 10;

fn params() -> Params {
    Params { capacity: 8, key_bytes_max: 16, node_bytes: 352, fanout: 4, inline_bytes: 8, ..Params::default() }
}

fn options() -> Options {
    Options {
        segment_bytes_max: SEGMENT_BYTES,
        hot_value_bytes_max: 4 << 10,
        name_percent_max: 0,
        ..tiny_options(&mut SimRng::new(1))
    }
}

fn key(number: u8) -> Vec<u8> {
    vec![0, 1, number]
}

/// A value that begins with 64 bytes that nothing else has.
fn marked(number: u8) -> Vec<u8> {
    let marker = (0..2).flat_map(|part| coppice_verify::hash::sha256(&[number, part]).0);
    marker.chain([number; 60]).collect()
}

fn put(key: Vec<u8>, value: Vec<u8>) -> Operation {
    Operation { key: key.into(), change: Change::Put(value.into()) }
}

/// Stages operations and erasures on the tip, with the merge that is built.
fn stage(
    replica: &mut Replica,
    model: &mut Model,
    operations: Vec<Operation>,
    erases: &[u8],
) -> coppice_engine::ShardState {
    let tip = model.tip().state;
    let stage = Command::Stage(Stage {
        stamp: Stamp::new(0, tip.version.0 + 1),
        prepare_id: Default::default(),
        base: tip,
        merges: replica.engine().built_merges(),
        operations,
        erases: erases.iter().map(|number| key(*number)).collect(),
    });
    let expected = model.apply(&stage);
    assert_eq!(replica.apply(&stage), expected);
    let Outcome::State(state) = expected else { panic!("the stage follows the tip") };
    state
}

fn commit(replica: &mut Replica, model: &mut Model, operations: Vec<Operation>, erases: &[u8]) {
    let settle = Command::Settle(stage(replica, model, operations, erases));
    model.apply(&settle);
    assert_eq!(replica.apply(&settle), Outcome::Done);
    while replica.engine_mut().merge_step(1000).expect("merges") != coppice_engine::MergeProgress::Idle {}
}

/// A replica with values in hot and cold segments, with copies that merges made, an aborted version
/// that would have erased, and the decided erasure of three values. Nothing is erased on the disk.
fn decided() -> (Model, Replica) {
    let params = params();
    let (mut model, mut replica) = (Model::new(&params), Replica::new(&params, options()));
    for round in 0..12 {
        let mut operations = vec![put(key(round), marked(round))];
        operations.extend((0..4).map(|at| put(vec![b'k', (round * 3 + at) % 10], vec![round; 150])));
        operations.sort_by(|a, b| a.key.cmp(&b.key));
        commit(&mut replica, &mut model, operations, &[]);
        let prune = Command::Prune { before: Version(u64::from(round)) };
        model.apply(&prune);
        replica.apply(&prune);
        replica.flush().expect("flushes");
        if let Some(mut step) = replica.engine_mut().begin_cold_step(3000) {
            step.run();
            replica.engine_mut().end_cold_step(step).expect("moves");
        }
    }
    assert!(replica.engine().counters().value_moved_bytes > 0, "merges moved values");
    assert!(replica.engine().counters().cold_segments > 0, "segments moved");
    stage(&mut replica, &mut model, vec![put(vec![b'k'], vec![1; 50])], &[4]);
    model.apply(&Command::AbortAll);
    replica.apply(&Command::AbortAll);
    commit(&mut replica, &mut model, vec![put(vec![b'k'], vec![1; 50])], &[0, 5, 11]);
    (model, replica)
}

fn erased(model: &Model) -> impl Iterator<Item = &[u8]> {
    model.erased.values().map(|value| &value[..])
}

fn holds(sim: &SimStorage, number: u8) -> bool {
    let value = marked(number);
    let read = |name: &String| {
        let file = sim.open(name, OpenMode::Existing).expect("it is there");
        let mut bytes = vec![0; usize::try_from(file.len().expect("a length")).expect("small")];
        file.read_exact_at(&mut bytes, 0).expect("readable");
        bytes
    };
    sim.files().iter().any(|name| read(name).windows(16).any(|window| window == &value[..16]))
}

#[test]
fn nothing_is_destroyed_before_the_decision_and_nothing_is_shown_after_it() {
    let (model, mut replica) = decided();
    assert_eq!(replica.engine().erasures(u64::MAX).open, 3);
    check_all(replica.engine(), &model);
    assert!([0, 4, 5].iter().all(|number| holds(&replica.sim, *number)), "the disk has all of them");
    let (digest, key) = (replica.engine().decided(), key(5));
    let proof = |replica: &Replica| {
        let view = replica.engine().view(&digest).expect("decided");
        (view.prove_keys(&[&key]).expect("proves"), view.prove_range(b"", None).expect("proves"))
    };
    let before = proof(&replica);
    replica.end_erasures().expect("erases");
    assert_eq!((proof(&replica), replica.engine().decided()), (before, digest));
    check_all(replica.engine(), &model);
    let progress = replica.engine().erasures(u64::MAX);
    assert_eq!((progress.open, progress.through), (0, digest.version));
    assert!(holds(&replica.sim, 4), "its erasure was aborted");
    check_gone(&replica.sim, erased(&model));
    for loss in [Loss::Process, Loss::Power(1)] {
        replica.restart(loss);
        check_gone(&replica.sim, erased(&model));
        check_all(replica.engine(), &model);
        assert!(!replica.engine().is_erasing(), "that it is done is durable");
    }
    assert!(check_directory(&replica.sim.process_loss()).notes.is_empty());
}

#[test]
fn a_crash_at_any_write_of_an_erasure_leaves_what_the_next_start_finishes() {
    let (model, mut replica) = decided();
    replica.flush().expect("flushes");
    let pristine = replica.sim.process_loss();
    let log = replica.log.clone();
    let run = |sim: &SimStorage| Replica::reopen(sim.clone(), options(), log.clone())?.end_erasures();
    let whole = pristine.process_loss();
    run(&whole).expect("erases");
    let ios = whole.io_count();
    assert!(ios > 20, "{ios} writes");
    for at in 0..ios {
        let sim = pristine.process_loss();
        sim.crash_after(at);
        let ended = run(&sim);
        assert!(sim.crashed() && (ended.is_err() || at + 1 == ios), "write {at} happens");
        for wreck in
            [sim.process_loss(), sim.power_loss(at * 3), sim.power_loss(at * 3 + 1), sim.power_loss(at * 3 + 2)]
        {
            check_directory(&wreck);
            let mut replica = Replica::reopen(wreck.clone(), options(), log.clone()).expect("opens after a crash");
            check_all(replica.engine(), &model);
            while replica.engine().counters().scrubs == 0 {
                replica.engine_mut().scrub(5000).expect("what the erasure left is no damage");
            }
            replica.end_erasures().expect("erases");
            check_all(replica.engine(), &model);
            check_gone(&wreck, erased(&model));
            check_gone(&wreck.power_loss(at), erased(&model));
            check_directory(&wreck.process_loss());
        }
    }
}

/// The place of a value in the raw bytes of a file.
fn find(sim: &SimStorage, value: &[u8]) -> Option<(String, u64)> {
    sim.files().into_iter().find_map(|name| {
        let file = sim.open(&name, OpenMode::Existing).expect("it is there");
        let mut bytes = vec![0; usize::try_from(file.len().expect("a length")).expect("small")];
        file.read_exact_at(&mut bytes, 0).expect("readable");
        let at = bytes.windows(value.len()).position(|window| window == value)?;
        Some((name, at as u64))
    })
}

#[test]
fn a_flipped_bit_is_damage_unless_the_value_is_to_be_erased() {
    let (_, mut replica) = decided();
    // Both superblocks know what is erased.
    (0..2).for_each(|_| replica.flush().expect("flushes"));
    for (number, is_damage) in [(4, true), (5, false)] {
        let sim = replica.sim.process_loss();
        let (name, at) = find(&sim, &marked(number)).expect("it is on the disk");
        sim.flip_bit(&name, at + 3, 1);
        assert_eq!(fsck(dir(&sim)).expect("runs").is_clean(), !is_damage, "value {number}");
        let mut engine = Engine::open(dir(&sim), options()).expect("opens");
        let rounds = std::iter::repeat_with(|| engine.erase_step(5000)).take(500).find(Result::is_err);
        assert_eq!(matches!(rounds, Some(Err(Error::Corrupted { .. }))), is_damage, "value {number}");
    }
    // A record with another length would cover its neighbour.
    let sim = replica.sim.process_loss();
    let (name, at) = find(&sim, &marked(5)).expect("it is on the disk");
    let length = at - (16 + 2 + key(5).len() as u64) - 8;
    sim.flip_bit(&name, length, 6);
    let mut engine = Engine::open(dir(&sim), options()).expect("opens");
    let round = std::iter::repeat_with(|| engine.erase_step(5000)).take(500).find(Result::is_err);
    assert!(matches!(round, Some(Err(Error::Corrupted { .. }))), "the length of value 5");
    assert!(find(&sim, &marked(5)).is_some(), "nothing is overwritten");
    // Once it is done, a value that is there again is found.
    replica.end_erasures().expect("erases");
    let sim = replica.sim.process_loss();
    let (file, at) = find(&sim, &[&key(5)[..], &[0; 40]].concat()).expect("the rest of the value");
    sim.flip_bit(&file, at + 20, 1);
    assert!(!fsck(dir(&sim)).expect("runs").is_clean(), "a byte of a value that is erased");
}

#[test]
fn a_snapshot_carries_erasures_in_any_state() {
    for is_done in [false, true] {
        let (model, mut replica) = decided();
        if is_done {
            replica.end_erasures().expect("erases");
        }
        replica.flush().expect("flushes");
        let manifest = replica.engine_mut().pin_snapshot().expect("pins");
        let half = SimStorage::new();
        // The rest is sent after the sender has erased what the first part still had.
        let mut receiver =
            coppice_engine::SnapshotReceiver::new(dir(&half), manifest.clone(), 3000).expect("an empty directory");
        let mut sent = 0;
        while let Some((file, offset)) = receiver.next().map(|(file, offset)| (file.to_owned(), offset)) {
            let bytes = replica.engine().read_snapshot(manifest.id, &file, offset, 1000).expect("it is pinned");
            receiver.write(&file, offset, &bytes).expect("the next bytes");
            sent += bytes.len() as u64;
            if sent > manifest.total_bytes() / 2 {
                replica.end_erasures().expect("the pin knows what is erased");
            }
        }
        receiver.finish(|key| Some(key.to_vec())).expect("sound");
        let check = replica.engine().check_of_snapshot(manifest.id).expect("it is pinned");
        check().expect("an erasure is no damage");
        let log = replica.log.clone();
        let mut received = Replica::reopen(half.clone(), options(), log).expect("opens");
        check_all(received.engine(), &model);
        assert_eq!(received.engine().is_erasing(), !is_done);
        received.end_erasures().expect("erases");
        check_gone(&half, erased(&model));
        check_gone(&half.power_loss(1), erased(&model));
        check_all(received.engine(), &model);
        check_directory(&half.process_loss());
    }
}

#[test]
fn an_erasure_waits_for_a_snapshot_that_does_not_know_it() {
    let (model, mut replica) = decided();
    let manifest = replica.engine_mut().pin_snapshot().expect("pins");
    replica.flush().expect("flushes");
    assert!(replica.engine().erasure_wants_unpin() && !replica.engine().erasure_due());
    replica.engine_mut().erase_step(1 << 20).expect("nothing is due");
    let check = replica.engine().check_of_snapshot(manifest.id).expect("it is pinned");
    check().expect("nothing is overwritten");
    assert!(holds(&replica.sim, 5));
    replica.engine_mut().unpin_snapshot(manifest.id);
    replica.end_erasures().expect("erases");
    check_gone(&replica.sim, erased(&model));
}

#[test]
fn a_fall_back_to_the_older_superblock_finds_an_erasure_and_no_damage() {
    let (model, mut replica) = decided();
    replica.flush().expect("flushes");
    while replica.engine().is_erasing() {
        replica.engine_mut().erase_step(1000).expect("erases");
        for slot in 0..2 {
            let sim = replica.sim.process_loss();
            sim.flip_bit("shards/3/superblock", slot * 73_728 + 30, 1);
            check_directory(&sim);
            let engine = Engine::open(dir(&sim), options()).expect("the other slot is sound");
            let is_older = engine.durable_position() < replica.engine().durable_position();
            assert!(!is_older || !replica.engine().erasure_due(), "it would not know what is erased");
            drop(engine);
        }
    }
    check_gone(&replica.sim, erased(&model));
}

/// The same on a real disk: nothing but the file system knows which blocks are free.
#[test]
fn files_of_a_real_directory_have_no_byte_of_an_erased_value() {
    let (temp, name) = (std::env::temp_dir(), format!("coppice-erase-{}", std::process::id()));
    let storage = |dir: &str| -> std::sync::Arc<dyn Storage> {
        std::sync::Arc::new(DiskStorage::new(temp.join(&name).join(dir)))
    };
    let both = || std::sync::Arc::new(TieredStorage::new(storage("hot"), storage("cold")));
    let (_, mut replica) = decided();
    replica.flush().expect("flushes");
    let manifest = replica.engine_mut().pin_snapshot().expect("pins");
    crate::common::replica::send_to(replica.engine(), &manifest, both(), 1000).expect("receives");
    let mut engine = Engine::open(both(), options()).expect("opens");
    for _ in 0..500 {
        engine.erase_step(2000).expect("erases");
    }
    assert!(!engine.is_erasing());
    drop(engine);
    let mut files = 0;
    for dir in ["hot", "cold"] {
        let storage = storage(dir);
        for file in storage.list("").expect("it is there") {
            let file = storage.open(&file, OpenMode::Existing).expect("it is there");
            let mut bytes = vec![0; usize::try_from(file.len().expect("a length")).expect("small")];
            file.read_exact_at(&mut bytes, 0).expect("readable");
            files += 1;
            for number in [0, 5, 11] {
                assert!(!bytes.windows(16).any(|window| window == &marked(number)[..16]), "value {number}");
            }
        }
    }
    assert!(files > 5, "{files} files");
    DiskStorage::new(temp.clone()).remove_dir_all(&name).expect("it is ours");
}
