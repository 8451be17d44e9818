use coppice_env::{Fault, Operation, SimStorage};
use coppice_types::ErrorKind;

use super::*;
use crate::{
    Engine,
    testing::{commit, create, damage, flush, open, options, puts, send, small},
};

/// A flushed engine with values, and the manifest of its pinned state.
fn sender(sim: &SimStorage) -> (Engine, Manifest) {
    let mut engine = create(sim, small());
    commit(&mut engine, 1, puts(0..20, 100));
    engine.flush(Position { index: 5, term: 2 }, b"the caller's").expect("room");
    let manifest = engine.pin_snapshot().expect("readable");
    (engine, manifest)
}

fn refused<T>(found: Result<T>) -> bool {
    matches!(found, Err(Error::SnapshotRefused(_)))
}

#[test]
fn a_manifest_is_read_back_and_no_prefix_of_it_is_one() {
    let (_, manifest) = sender(&SimStorage::new());
    let bytes = manifest.encode();
    assert_eq!(Manifest::decode(&bytes).expect("its own"), manifest);
    assert!((0..bytes.len()).all(|end| refused(Manifest::decode(&bytes[..end]))));
    assert!(refused(Manifest::decode(&[bytes, vec![0]].concat())), "a byte too many");
}

#[test]
fn a_manifest_names_only_files_of_snapshots_each_once_in_order() {
    let (_, manifest) = sender(&SimStorage::new());
    let decoded = |names: &[&str]| {
        let files = names.iter().map(|name| ((*name).to_owned(), 1)).collect();
        Manifest::decode(&Manifest { files, ..manifest.clone() }.encode())
    };
    decoded(&["data", "index", "meta-7", "patches", "values-0", "values-4294967295"]).expect("each is one");
    let strangers =
        ["", "lock", "superblock", "snapshot", "cold", "../data", "/data", "data.new", "values-01", "values-+1"];
    for name in strangers.into_iter().chain(["values-4294967296", "values-", "meta-01", "meta--1"]) {
        assert!(refused(decoded(&[name])), "{name}");
    }
    assert!(refused(decoded(&["index", "data"])) && refused(decoded(&["data", "data"])));
}

#[test]
fn a_manifest_of_a_superblock_that_no_engine_writes_is_refused() {
    let (_, manifest) = sender(&SimStorage::new());
    let decoded = |superblock| Manifest::decode(&Manifest { superblock, ..manifest.clone() }.encode());
    for generation in [0, u64::MAX] {
        assert!(refused(decoded(Superblock { generation, ..manifest.superblock.clone() })));
    }
    let with = |len| Superblock { machine_state: vec![1; len].into(), ..manifest.superblock.clone() };
    decoded(with(MACHINE_STATE_BYTES_MAX)).expect("at the limit");
    assert!(refused(decoded(with(MACHINE_STATE_BYTES_MAX + 1))));
}

#[test]
fn the_bytes_of_a_manifest_from_a_peer_never_overflow() {
    let (_, manifest) = sender(&SimStorage::new());
    let files = vec![("data".to_owned(), u64::MAX), ("index".to_owned(), u64::MAX)];
    let manifest = Manifest { files, ..manifest };
    assert_eq!(manifest.total_bytes(), u64::MAX);
    assert!(manifest.cold(u64::MAX).is_empty());
}

#[test]
fn the_newest_segments_stay_hot_up_to_the_limit_and_the_last_one_always() {
    let (_, manifest) = sender(&SimStorage::new());
    let files = [("data", 1000), ("values-10", 100), ("values-2", 100), ("values-9", 100)];
    let files = files.map(|(name, len)| (name.to_owned(), len)).to_vec();
    let manifest = Manifest { files, ..manifest };
    let cold = |hot| manifest.cold(hot).into_iter().collect::<Vec<_>>();
    assert_eq!(cold(300), [""; 0]);
    assert_eq!(cold(299), ["values-2"]);
    assert_eq!(cold(200), ["values-2"]);
    assert_eq!(cold(199), ["values-2", "values-9"]);
    assert_eq!(cold(0), ["values-2", "values-9"]);
}

#[test]
fn a_received_snapshot_opens_in_the_senders_state() {
    let (sim, to) = (SimStorage::new(), SimStorage::new());
    let (engine, manifest) = sender(&sim);
    let receiver = send(&engine, &manifest, to.storage());
    assert!(!Engine::exists(&*to.storage()).expect("readable"));
    receiver.finish(|key| Some(key.to_vec())).expect("sound");
    let received = open(&to.power_loss(1));
    assert_eq!(received.decided(), engine.decided());
    assert_eq!(received.durable_position(), Position { index: 5, term: 2 });
    assert_eq!(received.machine_state(), b"the caller's");
    assert!(!to.files().contains(&MANIFEST_FILE.to_owned()));
}

#[test]
fn a_receiver_takes_the_next_bytes_alone() {
    let (_engine, manifest) = sender(&SimStorage::new());
    let mut receiver = SnapshotReceiver::new(SimStorage::new().storage(), manifest.clone(), 0).expect("it is empty");
    let (file, offset) = receiver.next().map(|(file, offset)| (file.to_owned(), offset)).expect("none has come");
    let len = manifest.files.iter().find(|(name, _)| *name == file).expect("it is named").1;
    assert_eq!(offset, 0);
    assert!(refused(receiver.write("stranger", 0, b"x")));
    assert!(refused(receiver.write(&file, 1, b"x")), "a gap");
    assert!(refused(receiver.write(&file, 0, &vec![0; len as usize + 1])), "too many");
    assert_eq!(receiver.next(), Some((file.as_str(), 0)));
    receiver.write(&file, 0, b"abc").expect("the next bytes");
    assert_eq!(receiver.next(), Some((file.as_str(), 3)));
    assert!(refused(receiver.write(&file, 0, b"abc")), "they are here");
}

#[test]
fn an_incomplete_snapshot_is_not_published() {
    let (_engine, manifest) = sender(&SimStorage::new());
    let to = SimStorage::new();
    let receiver = SnapshotReceiver::new(to.storage(), manifest, 0).expect("it is empty");
    assert!(refused(receiver.finish(|key| Some(key.to_vec()))));
    assert!(matches!(Engine::open(to.storage(), options()), Err(Error::Missing)));
}

#[test]
fn a_damaged_snapshot_is_deleted() {
    let (sim, to) = (SimStorage::new(), SimStorage::new());
    let mut engine = create(&sim, coppice_types::Params::default());
    commit(&mut engine, 1, puts(0..1000, 9));
    flush(&mut engine, 1);
    let manifest = engine.pin_snapshot().expect("readable");
    damage(&sim, "data");
    let finished = send(&engine, &manifest, to.storage()).finish(|key| Some(key.to_vec()));
    assert!(matches!(finished, Err(Error::Corrupted { file, .. }) if file == "data"));
    assert_eq!(to.files(), ["lock"]);
}

#[test]
fn a_snapshot_that_could_not_be_read_is_kept_and_not_published() {
    let (sim, to) = (SimStorage::new(), SimStorage::new());
    let (engine, manifest) = sender(&sim);
    let receiver = send(&engine, &manifest, to.storage());
    to.inject(Fault {
        operation: Operation::Read,
        path_part: "patches".to_owned(),
        skip: 0,
        kind: std::io::ErrorKind::TimedOut,
    });
    let failed = receiver.finish(|key| Some(key.to_vec())).expect_err("a read failed");
    assert!(matches!(failed, Error::Unchecked(_)) && failed.kind() == ErrorKind::Internal);
    assert!(!Engine::exists(&*to.storage()).expect("readable"));
    let mut receiver = SnapshotReceiver::new(to.storage(), manifest, u64::MAX).expect("no engine is there");
    while let Some((file, offset)) = receiver.next().map(|(file, offset)| (file.to_owned(), offset)) {
        let held = receiver.held(&file, offset, 5000).expect("readable");
        assert!(!held.is_empty(), "{file} is cut at {offset}");
        receiver.write(&file, offset, &held).expect("the next bytes");
    }
    receiver.finish(|key| Some(key.to_vec())).expect("every byte was kept");
    assert_eq!(open(&to).decided(), engine.decided());
}

#[test]
fn a_directory_with_an_engine_or_in_use_takes_no_snapshot() {
    let (sim, to) = (SimStorage::new(), SimStorage::new());
    let (engine, manifest) = sender(&sim);
    let receiver = SnapshotReceiver::new(to.storage(), manifest.clone(), 0).expect("it is empty");
    assert!(matches!(SnapshotReceiver::new(to.storage(), manifest.clone(), 0), Err(Error::Locked)));
    drop((receiver, engine));
    assert!(matches!(SnapshotReceiver::new(sim.storage(), manifest, 0), Err(Error::AlreadyExists)));
}

#[test]
fn an_interrupted_transfer_leaves_bytes_that_the_next_one_may_take() {
    let (sim, to) = (SimStorage::new(), SimStorage::new());
    let (engine, manifest) = sender(&sim);
    drop(send(&engine, &manifest, to.storage()));
    let (name, len) = manifest.files.last().expect("a segment").clone();
    // A longer file is cut, and a file of another snapshot is removed.
    let file = to.open(&name, OpenMode::Existing).expect("it came");
    file.write_all_at(b"more", len).expect("room");
    to.open("values-77", OpenMode::CreateNew).expect("a new file");
    let mut receiver = SnapshotReceiver::new(to.storage(), manifest.clone(), u64::MAX).expect("no engine is there");
    assert!(!to.files().contains(&"values-77".to_owned()));
    assert_eq!(file.len().expect("readable"), len);
    assert_eq!(receiver.held("stranger", 0, 9).expect("none"), b"");
    assert_eq!(receiver.held(&name, len - 2, 9).expect("readable").len(), 2);
    while let Some((file, offset)) = receiver.next().map(|(file, offset)| (file.to_owned(), offset)) {
        let held = receiver.held(&file, offset, 5000).expect("readable");
        assert_eq!(held, engine.read_snapshot(manifest.id, &file, offset, 5000).expect("it is pinned"));
        receiver.write(&file, offset, &held).expect("the next bytes");
    }
    receiver.finish(|key| Some(key.to_vec())).expect("sound");
    assert_eq!(open(&to).decided(), engine.decided());
}

#[test]
fn an_engine_is_created_over_what_a_transfer_left() {
    let (sim, to) = (SimStorage::new(), SimStorage::new());
    let (engine, manifest) = sender(&sim);
    drop(send(&engine, &manifest, to.storage()));
    let mut created = create(&to, small());
    assert!(!to.files().contains(&MANIFEST_FILE.to_owned()));
    commit(&mut created, 1, puts(0..3, 100));
    flush(&mut created, 1);
    drop(created);
    let report = crate::fsck(to.storage()).expect("a directory");
    assert!(report.is_clean() && report.notes.is_empty(), "{report:?}");
}
