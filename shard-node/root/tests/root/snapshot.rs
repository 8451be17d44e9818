//! Snapshots: the receiver gets exactly the pinned bytes, also if either side fails during the
//! transfer.

use std::sync::Arc;

use crate::common::{Model, check::check, check::check_view, options};
use coppice_env::{Rng, SimStorage, Storage};
use coppice_root::{Error, Manifest, PINS_MAX, Root, SnapshotReceiver, fsck};

fn grow(root: &mut Root, model: &mut Model, headers: u64) {
    let goal = model.size() + headers;
    while model.size() < goal {
        let command = model.any();
        model.accept(root, &command);
    }
}

fn sender(seed: u64, headers: u64) -> (SimStorage, Root, Model) {
    let disk = SimStorage::new();
    let mut root = Root::open_with(disk.storage(), options()).expect("new");
    let mut model = Model::founded(seed, &mut root);
    grow(&mut root, &mut model, headers);
    (disk, root, model)
}

/// Fetches the next bytes, at most `len`.
fn fetch(root: &Root, receiver: &mut SnapshotReceiver, id: u64, len: usize) -> Result<bool, Error> {
    let Some((name, offset)) = receiver.next().map(|(name, offset)| (name.to_owned(), offset)) else {
        return Ok(false);
    };
    let bytes = root.read_snapshot(id, &name, offset, len)?;
    receiver.write(&name, offset, &bytes)?;
    Ok(true)
}

fn fetch_all(root: &Root, storage: Arc<dyn Storage>, manifest: &Manifest) -> Result<(), Error> {
    let mut receiver = SnapshotReceiver::new(storage, manifest.clone())?;
    let mut began_again = 0;
    loop {
        match fetch(root, &mut receiver, manifest.id, 3000) {
            Ok(true) => {}
            Ok(false) => break,
            // The part that was there before the crash had holes, so the file begins again.
            Err(Error::Corrupted { .. }) if began_again < 1 => began_again += 1,
            Err(error) => return Err(error),
        }
    }
    let position = receiver.finish()?;
    assert_eq!(position, manifest.position);
    Ok(())
}

#[test]
fn an_installed_snapshot_equals_its_sender_as_of_the_pin() {
    for (seed, headers) in [(20, 0), (21, 30), (22, 255), (23, 256), (24, 600)] {
        let (_disk, mut root, mut model) = sender(seed, headers);
        let manifest = root.pin_snapshot(model.position()).expect("pins");
        let encoded = manifest.encode();
        assert_eq!(encoded.len(), 1 + 8 + 2 + 136 + 8 + 32, "it does not grow with the log");
        let manifest = Manifest::decode(&encoded).expect("decodes");
        assert_eq!(manifest.encode(), encoded);
        let at_pin = (model.index, root.log_root());
        // The sender works, flushes, saves and seals while the snapshot is read.
        let pinned = root.view().expect("founded");
        for _ in 0..8 {
            grow(&mut root, &mut model, 40);
            root.flush(model.position()).expect("flushes");
        }
        let disk = SimStorage::new();
        fetch_all(&root, disk.storage(), &manifest).expect("fetches");
        let of_sender = root.check_of_snapshot(manifest.id).expect("it is pinned");
        of_sender().expect("what goes on during a pin does not damage it");
        root.unpin_snapshot(manifest.id);
        let report = fsck::fsck(&disk.storage()).expect("runs");
        assert!(report.is_clean() && report.notes.is_empty(), "{report:?}");
        let mut copy = Root::open_with(disk.storage(), options()).expect("opens");
        assert_eq!((copy.applied_index(), copy.log_root()), at_pin);
        assert_eq!(copy.view().expect("founded"), pinned);
        // From here both follow the same raft log, and flush at different times.
        model.replay(&mut copy);
        check(&copy, &mut model);
        copy.flush(model.position()).expect("flushes");
        grow(&mut copy, &mut model, 10);
        check(&copy, &mut model);
    }
}

#[test]
fn a_sender_finds_in_a_snapshot_what_its_receiver_refuses() {
    let (sender_disk, mut root, model) = sender(26, 270);
    let manifest = root.pin_snapshot(model.position()).expect("pins");
    let mut found = 0;
    for file in &manifest.files {
        for at in (0..file.len).step_by(usize::try_from(file.len / 6 + 1).expect("small")) {
            sender_disk.flip_bit(&file.name, at, 5);
            let checked = root.check_of_snapshot(manifest.id).expect("it is pinned")();
            let sent = fetch_all(&root, SimStorage::new().storage(), &manifest);
            let what = format!("{} at {at}: {checked:?}, {sent:?}", file.name);
            let both = [checked, sent];
            assert!(both.iter().all(|result| matches!(result, Err(Error::Corrupted { .. }))), "{what}");
            found += 1;
            sender_disk.flip_bit(&file.name, at, 5);
        }
    }
    assert!(found > 10, "only {found} bytes were tried");
    fetch_all(&root, SimStorage::new().storage(), &manifest).expect("it is sound again");
}

#[test]
fn a_receiver_that_crashes_anywhere_goes_on_where_it_was() {
    let (_disk, mut root, model) = sender(30, 280);
    let manifest = root.pin_snapshot(model.position()).expect("pins");
    for crash_at in (0..).step_by(3) {
        let disk = SimStorage::new();
        disk.crash_after(crash_at);
        let first = fetch_all(&root, disk.storage(), &manifest);
        let after = disk.power_loss(crash_at);
        let mut opened = Root::open_with(after.storage(), options()).expect("never a damaged replica");
        let finished = opened.applied_index() == model.index;
        assert!(finished || opened.applied_index() == 0, "either all of it or a new replica");
        assert!(finished || first.is_err());
        drop(opened);
        if !finished {
            let after = disk.power_loss(crash_at);
            fetch_all(&root, after.storage(), &manifest).expect("goes on");
            opened = Root::open_with(after.storage(), options()).expect("opens");
            check_view(&opened, &model);
        }
        if first.is_ok() {
            assert!(crash_at > 100, "only {crash_at} changes of the storage were tried");
            return;
        }
    }
}

#[test]
fn wrong_bytes_are_refused_and_fetched_again() {
    let (_disk, mut root, mut model) = sender(31, 300);
    let manifest = root.pin_snapshot(model.position()).expect("pins");
    let disk = SimStorage::new();
    let mut receiver = SnapshotReceiver::new(disk.storage(), manifest.clone()).expect("begins");
    let mut refused = 0;
    while let Some((name, offset)) = receiver.next().map(|(name, offset)| (name.to_owned(), offset)) {
        let mut bytes = root.read_snapshot(manifest.id, &name, offset, 40_000).expect("reads");
        assert!(receiver.write(&name, offset + 1, &bytes).is_err(), "a gap is refused");
        assert!(receiver.write("state/1", offset, &bytes).is_err(), "another file is refused");
        if !bytes.is_empty() && model.rng.chance(300) {
            let at = model.rng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1;
        }
        match receiver.write(&name, offset, &bytes) {
            Ok(()) => {}
            Err(Error::Corrupted { file, .. }) => {
                assert_eq!(file, name);
                assert_eq!(receiver.next(), Some((name.as_str(), 0)), "the file begins again");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 0);
    receiver.finish().expect("all is as it was sent");
    check(&Root::open_with(disk.storage(), options()).expect("opens"), &mut model);
    let again = SnapshotReceiver::new(disk.storage(), manifest);
    assert!(matches!(again, Err(Error::Snapshot { .. })), "a replica's directory takes no snapshot");
}

#[test]
fn a_manifest_that_mixes_snapshots_is_refused() {
    let (_disk, mut root, mut model) = sender(32, 10);
    let old = root.pin_snapshot(model.position()).expect("pins");
    grow(&mut root, &mut model, 10);
    let new = root.pin_snapshot(model.position()).expect("pins");
    // The files of one snapshot with the superblock of the other: every file has the hash that the
    // manifest names.
    let mut mixed = new;
    mixed.files.clone_from(&old.files);
    let disk = SimStorage::new();
    let mut receiver = SnapshotReceiver::new(disk.storage(), mixed).expect("begins");
    let fetched = loop {
        match fetch(&root, &mut receiver, old.id, 1 << 20) {
            Ok(true) => {}
            other => break other,
        }
    };
    assert!(matches!(fetched, Err(Error::Corrupted { .. })), "the state is of another superblock");
    assert!(receiver.finish().is_err());
    assert_eq!(Root::open(disk.storage()).expect("still new").log_size(), 0);
}

#[test]
fn hostile_manifests_are_refused() {
    let (_disk, mut root, model) = sender(33, 3);
    let manifest = root.pin_snapshot(model.position()).expect("pins");
    let good = manifest.encode();
    for len in 0..good.len() {
        assert!(Manifest::decode(&good[..len]).is_err());
    }
    assert!(Manifest::decode(&[&good[..], &[0]].concat()).is_err());
}

#[test]
fn pins_are_few_and_end() {
    let (disk, mut root, mut model) = sender(34, 5);
    let mut pins = Vec::new();
    for _ in 0..PINS_MAX {
        grow(&mut root, &mut model, 2);
        pins.push(root.pin_snapshot(model.position()).expect("pins").id);
    }
    assert!(matches!(root.pin_snapshot(model.position()), Err(Error::Snapshot { .. })));
    let states = |disk: &SimStorage| disk.files().iter().filter(|name| name.starts_with("state/")).count();
    assert_eq!(states(&disk), PINS_MAX);
    assert!(matches!(root.read_snapshot(pins[0], "superblock", 0, 10), Err(Error::Snapshot { .. })));
    assert!(matches!(root.read_snapshot(pins[0] + 100, "journal/000", 0, 10), Err(Error::Snapshot { .. })));
    assert!(matches!(root.read_snapshot(pins[0], "journal/000", u64::MAX, 10), Err(Error::Snapshot { .. })));
    pins.iter().for_each(|id| root.unpin_snapshot(*id));
    assert_eq!(states(&disk), 1, "only the newest saved state is left");
    assert!(matches!(root.read_snapshot(pins[0], "journal/000", 0, 10), Err(Error::Snapshot { .. })));
    root.pin_snapshot(model.position()).expect("there is room again");
}

#[test]
fn replicas_that_flush_at_different_times_agree() {
    let mut model = Model::new(35);
    let disks: Vec<_> = (0..3).map(|_| SimStorage::new()).collect();
    let mut roots: Vec<_> = disks.iter().map(|disk| Root::open_with(disk.storage(), options()).expect("new")).collect();
    let command = model.take_over();
    model.accept(&mut roots[0], &command);
    for step in 0..400 {
        let command = model.any();
        model.accept(&mut roots[0], &command);
        for (at, every) in [(0, 7), (1, 31)] {
            model.replay(&mut roots[at]);
            if step % every == 0 {
                roots[at].flush(model.position()).expect("flushes");
            }
        }
    }
    model.replay(&mut roots[2]);
    for root in &mut roots {
        check(root, &mut model);
        root.flush(model.position()).expect("flushes");
    }
    // Sealed files are the same on all replicas, byte for byte.
    let first = roots[0].pin_snapshot(model.position()).expect("pins");
    for root in &mut roots[1..] {
        let other = root.pin_snapshot(model.position()).expect("pins");
        let comparable = |manifest: &Manifest| {
            let files = manifest.files.iter().filter(|file| !file.name.starts_with("state/"));
            (files.cloned().collect::<Vec<_>>(), manifest.files[0].hash)
        };
        assert_eq!(comparable(&first), comparable(&other));
    }
}
