//! The bytes on disk do not change by accident. A directory from the first build of protocol
//! version 2 can be opened, and today's build writes the same bytes. A directory of protocol
//! version 1 is refused.

use crate::common::{Model, check::check, options};
use coppice_env::{OpenMode, SimStorage, Storage};
use coppice_root::{Root, fsck};
use coppice_verify::hash::sha256;

type Files = [(&'static str, &'static [u8]); 3];

const FILES: Files = [
    ("superblock", include_bytes!("../../testdata/protocol-2/superblock")),
    ("state/00000000000000000002", include_bytes!("../../testdata/protocol-2/state/00000000000000000002")),
    ("journal/000", include_bytes!("../../testdata/protocol-2/journal/000")),
];

const OLDER: Files = [
    ("superblock", include_bytes!("../../testdata/protocol-1/superblock")),
    ("state/00000000000000000002", include_bytes!("../../testdata/protocol-1/state/00000000000000000002")),
    ("journal/000", include_bytes!("../../testdata/protocol-1/journal/000")),
];

/// Writes the directory of the test data.
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

fn disk_of(files: Files) -> SimStorage {
    let disk = SimStorage::new();
    for (name, bytes) in files {
        if let Some((directory, _)) = name.split_once('/') {
            disk.create_dir_all(directory).expect("makes it");
        }
        let file = disk.open(name, OpenMode::CreateNew).expect("is new");
        file.write_all_at(bytes, 0).expect("writes");
    }
    disk
}

#[test]
fn the_written_directory_equals_the_golden_one() {
    let disk = SimStorage::new();
    drop(write(&disk));
    let names: Vec<_> = disk.files().into_iter().filter(|name| name != "lock").collect();
    assert_eq!(names.len(), FILES.len(), "{names:?}");
    for (name, bytes) in FILES {
        assert_eq!(read(&disk, name), bytes, "{name}");
    }
}

#[test]
fn a_directory_of_another_protocol_is_refused_and_stays_as_it_is() {
    let disk = disk_of(OLDER);
    let refused = Root::open_with(disk.storage(), options()).map(|_| ()).expect_err("another protocol");
    let words = coppice_types::chain(&refused);
    assert!(words.contains("protocol version: this build follows only versions 2 and 3"), "{words}");
    let report = fsck::fsck(&disk.storage()).expect("runs");
    assert!(report.findings.iter().any(|finding| finding.what.contains("protocol version")), "{report:?}");
    for (name, bytes) in OLDER {
        assert_eq!(read(&disk, name), bytes, "{name}");
    }
}

#[test]
fn the_directory_opens() {
    let (_, mut model) = write(&SimStorage::new());
    let disk = disk_of(FILES);
    assert!(fsck::fsck(&disk.storage()).expect("runs").is_clean());
    let mut root = Root::open_with(disk.storage(), options()).expect("opens");
    check(&root, &mut model);
    // The ledger grows until its first files are sealed. Their bytes must stay the same, too.
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
            "efcef60f86d19998b47f32ef2e49ebc877ab0f89eae3df1b92d7d2b58626e87e",
            "b32e3e540925085ce13a7801e0f7d06dddb1ec0afb6110c0890e2c2505c082ed",
            "40ebefbb63258f3b51c6af096b93e17603d0714980474ad7b917811993a83ed2",
            "e5248645ac901962546fbc61126eb38e20282b897412f304dd316c4712fc2edd",
        ]
    );
}
