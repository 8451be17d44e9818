//! The bytes on disk do not change by accident: a directory that version 1 wrote opens, and is written the same today.

use crate::common::{Model, check::check, options};
use coppice_env::{OpenMode, SimStorage, Storage};
use coppice_root::{Root, fsck};
use coppice_verify::hash::sha256;

const FILES: &[(&str, &[u8])] = &[
    ("superblock", include_bytes!("../../testdata/v1/superblock")),
    ("state/00000000000000000002", include_bytes!("../../testdata/v1/state/00000000000000000002")),
    ("journal/000", include_bytes!("../../testdata/v1/journal/000")),
];

/// The replica that wrote the test data.
fn write(disk: &SimStorage) -> (Root, Model) {
    let mut root = Root::open_with(disk.storage(), options()).expect("new");
    let mut model = Model::founded(1, &mut root);
    for _ in 0..24 {
        let command = model.any();
        model.accept(&mut root, &command);
        if model.index.is_multiple_of(5) {
            root.flush(model.position()).expect("flushes");
        }
    }
    root.flush(model.position()).expect("flushes");
    (root, model)
}

fn read(disk: &SimStorage, name: &str) -> Vec<u8> {
    let file = disk.open(name, OpenMode::Existing).expect("the file exists");
    let mut bytes = vec![0; file.len().expect("has a length") as usize];
    file.read_exact_at(&mut bytes, 0).expect("reads");
    bytes
}

#[test]
fn the_directory_of_version_1_is_written_as_ever() {
    let disk = SimStorage::new();
    drop(write(&disk));
    let names: Vec<_> = disk.files().into_iter().filter(|name| name != "lock").collect();
    assert_eq!(names.len(), FILES.len(), "{names:?}");
    for (name, bytes) in FILES {
        assert_eq!(read(&disk, name), *bytes, "{name}");
    }
}

#[test]
fn the_directory_of_version_1_opens() {
    let (_, mut model) = write(&SimStorage::new());
    let disk = SimStorage::new();
    for (name, bytes) in FILES {
        if let Some((directory, _)) = name.split_once('/') {
            disk.create_dir_all(directory).expect("makes it");
        }
        let file = disk.open(name, OpenMode::CreateNew).expect("is new");
        file.write_all_at(bytes, 0).expect("writes");
    }
    assert!(fsck::fsck(&disk.storage()).expect("runs").is_clean());
    let mut root = Root::open_with(disk.storage(), options()).expect("opens");
    check(&root, &mut model);
    // And it goes on: to the first sealed files, whose bytes are those of version 1 too.
    while model.size() <= 256 {
        let command = model.any();
        model.accept(&mut root, &command);
    }
    root.flush(model.position()).expect("flushes");
    let sealed = ["tile/0/000", "tile/entries/000", "index/000", "journal/000"];
    let hashes = sealed.map(|name| sha256(&read(&disk, name)).to_string());
    assert_eq!(
        hashes.each_ref().map(String::as_str),
        [
            "bf4a863c4bbcb324b38ebeaee3dde4d6ecd92797357e650c2d41c0a7af0c3de4",
            "7d0b8779b3caef13b433112ac6681da0f453852c8acc1de35992955c2cc75ee3",
            "1198d1d43e6b1417d9cccdde241d5043160ddae899f082a0fdff38091ea9bf0f",
            "e84c52dfbb0267b1eeee81a73dab13f87cef63a871972bad7dd01451295f7b98",
        ]
    );
}
