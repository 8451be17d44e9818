//! Flipped bits, missing and swapped files: opening, reading or `fsck` finds them, and no answer is
//! wrong.

use std::sync::Arc;

use crate::common::{Model, check::check, options};
use coppice_env::{OpenMode, Rng, SimStorage, Storage};
use coppice_root::{Error, Root, fsck};
use coppice_types::{Sequence, Version};
use coppice_verify::merkle;

/// A closed directory with two sealed chunks, a growing one, and a saved state that is older than
/// the journal's end.
fn grown() -> (SimStorage, Model) {
    let disk = SimStorage::new();
    let mut root = Root::open_with(disk.storage(), options()).expect("new");
    let mut model = Model::founded(11, &mut root);
    while model.size() < 530 {
        let command = model.any();
        model.accept(&mut root, &command);
        if model.size().is_multiple_of(50) {
            root.flush(model.position()).expect("flushes");
        }
    }
    root.flush(model.position()).expect("flushes");
    (disk, model)
}

/// Whether opening or an answer reported damage. Every answer that was given is compared with the
/// model.
fn is_noticed(disk: &SimStorage, model: &Model) -> bool {
    let root = match Root::open_with(disk.storage(), options()) {
        Ok(root) => root,
        Err(Error::Corrupted { .. }) => return true,
        Err(error) => panic!("{error}"),
    };
    let mut noticed = false;
    let mut damaged = |error: Error| {
        assert!(matches!(error, Error::Corrupted { .. }), "{error}");
        noticed = true;
    };
    let hashes = model.hashes();
    for (sequence, header) in model.headers.iter().enumerate().step_by(5) {
        match root.header(Sequence(sequence as u64)) {
            Ok(found) => assert_eq!(&found, header),
            Err(error) => damaged(error),
        }
        match root.journal(Sequence(sequence as u64)) {
            Ok(found) => assert_eq!(found, model.journals[sequence]),
            Err(error) => damaged(error),
        }
        match root.inclusion(Sequence(sequence as u64), model.size()) {
            Ok(path) => {
                let (leaf, root) = (&hashes[sequence], root.log_root());
                assert_eq!(merkle::verify_inclusion(sequence as u64, model.size(), leaf, &path, &root), Ok(()));
            }
            Err(error) => damaged(error),
        }
    }
    for (version, standing) in model.standing.iter().enumerate().skip(model.boundary as usize) {
        match root.version(Version(version as u64), None) {
            Ok(found) => assert_eq!(found.leaves, model.leaves[standing.sequence as usize]),
            Err(error) => damaged(error),
        }
    }
    if let Err(error) = root.admin_after(0, usize::MAX) {
        damaged(error);
    }
    noticed
}

fn findings(disk: &SimStorage) -> Vec<fsck::Finding> {
    fsck::fsck(&disk.storage()).expect("damage is a finding").findings
}

fn len(disk: &SimStorage, name: &str) -> u64 {
    disk.open(name, OpenMode::Existing).and_then(|file| file.len()).expect("the file exists")
}

/// The files that the replica consists of.
fn files(disk: &SimStorage) -> Vec<String> {
    disk.files().into_iter().filter(|name| name != "lock").collect()
}

#[test]
fn every_flipped_bit_is_found_and_none_becomes_an_answer() {
    let (disk, mut model) = grown();
    assert_eq!(findings(&disk), []);
    let names = files(&disk);
    for kind in ["superblock", "state/", "tile/0/", "tile/1/", "tile/entries/", "index/", "journal/"] {
        let some = names.iter().any(|name| name.starts_with(kind));
        assert_eq!(some, kind != "tile/1/", "files of kind {kind}: {names:?}");
    }
    let mut by_reading = 0;
    let mut tried = 0;
    for name in &names {
        let len = len(&disk, name);
        // The first and last bytes, where lengths, tags and checksums are, and some bytes between.
        let ends = (0..8).chain(len - 4..len);
        let offsets: Vec<u64> = ends.chain((0..12).map(|_| model.rng.below(len))).collect();
        for offset in offsets {
            let bit = model.rng.below(8) as u8;
            disk.flip_bit(name, offset, bit);
            assert_ne!(findings(&disk), [], "fsck missed bit {bit} of byte {offset} of {name}");
            by_reading += u32::from(is_noticed(&disk.process_loss(), &model));
            disk.flip_bit(name, offset, bit);
            tried += 1;
        }
    }
    assert_eq!(findings(&disk), []);
    assert!(by_reading > tried / 2, "only {by_reading} of {tried} flips were noticed by reading");
    let root = Root::open_with(disk.storage(), options()).expect("sound again");
    check(&root, &mut model);
}

#[test]
fn a_missing_or_cut_file_is_found() {
    let (disk, model) = grown();
    for name in files(&disk) {
        let without = disk.process_loss();
        without.remove(&name).expect("the file exists");
        if name == "superblock" {
            // This is a new directory with leftovers. This crate accepts it. The membership rules
            // keep the replica from voting.
            continue;
        }
        assert_ne!(findings(&without), [], "fsck missed that {name} is gone");
        assert!(is_noticed(&without, &model), "opening and reading missed that {name} is gone");
        let cut = disk.process_loss();
        let file = cut.open(&name, OpenMode::Existing).expect("the file exists");
        file.set_len(len(&disk, &name) - 1).expect("cuts");
        assert_ne!(findings(&cut), [], "fsck missed that {name} is cut");
        assert!(is_noticed(&cut, &model), "opening and reading missed that {name} is cut");
    }
}

#[test]
fn a_file_in_the_place_of_another_of_its_kind_is_found() {
    let (disk, model) = grown();
    for kind in ["tile/0", "tile/entries", "index", "journal"] {
        let swapped = disk.process_loss();
        let (first, second) = (format!("{kind}/000"), format!("{kind}/001"));
        for (from, to) in [(&first, "aside"), (&second, first.as_str()), (&"aside".to_owned(), second.as_str())] {
            swapped.rename(from, to).expect("the file exists");
        }
        assert_ne!(findings(&swapped), [], "fsck missed swapped files of {kind}");
        assert!(is_noticed(&swapped, &model), "reading missed swapped files of {kind}");
    }
}

#[test]
fn an_old_superblock_or_state_is_found() {
    let (disk, _) = grown();
    let read = |disk: &SimStorage, name: &str| {
        let file = disk.open(name, OpenMode::Existing).expect("the file exists");
        let mut bytes = vec![0; len(disk, name) as usize];
        file.read_exact_at(&mut bytes, 0).expect("reads");
        bytes
    };
    let old = read(&disk, "superblock");
    let mut root = Root::open_with(disk.storage(), options()).expect("opens");
    let position = root.durable_position();
    root.pin_snapshot(position).expect("saves the state");
    drop(root);
    // The previous flush's superblock names a saved state that is gone.
    let file = disk.open("superblock", OpenMode::Existing).expect("the file exists");
    file.write_all_at(&old, 0).expect("writes");
    assert_ne!(findings(&disk), []);
    let storage: Arc<dyn Storage> = disk.storage();
    assert!(matches!(Root::open(storage), Err(Error::Corrupted { .. })));
}
