//! Damaged, truncated and foreign files in a stopped data directory: `fsck` names them, and nothing
//! wrong is ever served.

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
};

use common::Dev;

/// A stopped data directory with some history.
fn ledger(dir: &Path, value: &str) {
    let dev = Dev::start(dir, &common::small_shape("m"));
    for version in 1..=5 {
        let (first, second) = (format!("a{version}={value}{}", "x".repeat(400)), format!("z{version}={value}"));
        dev.run(&["commit", "--put", &first, "--put", &second]).expect(0);
    }
    dev.stop();
    common::assert_sound(dir);
}

/// All files with content below a node's directory, except locks and the reserve, whose content
/// does not matter.
fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory can be listed") {
        let path = entry.expect("a directory can be listed").path();
        let idle = path.file_name().is_some_and(|name| name == "LOCK" || name == "lock" || name == "reserve");
        if path.is_dir() {
            files(&path, found);
        } else if !idle {
            found.push(path);
        }
    }
    found.sort();
}

/// Flips a bit in the middle of the written part of a file. `None` if the file has only zeroes.
fn flip(path: &Path) -> Option<Vec<u8>> {
    let sound = fs::read(path).expect("a file can be read");
    let written: Vec<usize> = (0..sound.len()).filter(|at| sound[*at] != 0).collect();
    let at = *written.get(written.len() / 2)?;
    let mut damaged = sound.clone();
    damaged[at] ^= 4;
    fs::write(path, damaged).expect("a file can be written");
    Some(sound)
}

fn fsck(dir: &Path) -> common::Done {
    common::run(common::coppice().arg("fsck").arg(dir).arg("--json"))
}

#[test]
fn a_flipped_bit_in_any_file_of_a_replica_is_found_by_fsck() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dir = work.path().join("data");
    ledger(&dir, "sound");
    let mut found = Vec::new();
    files(&dir.join("node-1"), &mut found);
    assert!(found.len() > 10, "{found:?}");
    let mut damaged = 0;
    for path in &found {
        let Some(sound) = flip(path) else { continue };
        let done = fsck(&dir);
        // A crash may tear one of two alternating superblocks: that is noted, the other one is
        // used, and nothing is lost.
        let noted = done.lines().iter().any(|line| line["notes"] != 0);
        assert!(done.code == 1 || noted, "{}: {done:?}", path.display());
        damaged += usize::from(done.code == 1);
        fs::write(path, sound).expect("a file can be written");
    }
    assert!(damaged > 6, "only {damaged} of {} files", found.len());
    common::assert_sound(&dir);
}

#[test]
fn a_cut_file_is_found_by_fsck() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dir = work.path().join("data");
    ledger(&dir, "sound");
    let mut found = Vec::new();
    files(&dir.join("node-1"), &mut found);
    for path in &found {
        let sound = fs::read(path).expect("a file can be read");
        let Some(last) = sound.iter().rposition(|byte| *byte != 0) else { continue };
        fs::write(path, &sound[..last / 2]).expect("a file can be written");
        let done = fsck(&dir);
        // A raft log may end anywhere, because a crash cuts it, too. The other replicas have the
        // rest.
        let noted = done.lines().iter().any(|line| line["notes"] != 0);
        let log = path.parent().is_some_and(|parent| parent.ends_with("raft"));
        assert!(done.code == 1 || (log && noted), "{}: {done:?}", path.display());
        fs::write(path, sound).expect("a file can be written");
    }
    common::assert_sound(&dir);
}

/// Files of another version of the software count as neither damaged nor changed.
#[test]
fn a_directory_of_another_format_is_refused_and_stays_as_it_is() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let dir = work.path().join("data");
    ledger(&dir, "older");
    let mut found = Vec::new();
    files(&dir, &mut found);
    for path in found.iter().filter(|path| path.ends_with("identity")) {
        let mut bytes = fs::read(path).expect("a file can be read");
        bytes.truncate(bytes.len() - 32);
        bytes[0] = 1;
        let checksum = coppice_verify::hash::sha256(&bytes);
        fs::write(path, [&bytes[..], checksum.as_bytes()].concat()).expect("a file can be written");
    }
    let content = || found.iter().map(|path| fs::read(path).expect("a file can be read")).collect::<Vec<_>>();
    let before = content();
    let Err(started) = Dev::try_start(&dir, &[]) else { panic!("it serves a ledger of another format") };
    for done in [started, fsck(&dir)] {
        assert!(done.code == 3 && done.stderr.contains("use the build that wrote the directory"), "{done:?}");
    }
    assert!(content() == before, "nothing was changed");
}

#[test]
fn a_replica_of_another_cluster_is_refused() {
    let work = tempfile::tempdir().expect("a temporary directory");
    let (own, other) = (work.path().join("own"), work.path().join("other"));
    ledger(&own, "own");
    ledger(&other, "other");
    fs::rename(own.join("node-2"), work.path().join("aside")).expect("a directory can be moved");
    fs::rename(other.join("node-2"), own.join("node-2")).expect("a directory can be moved");
    match Dev::try_start(&own, &[]) {
        Ok(_) => panic!("it serves with a replica of another cluster"),
        Err(done) => assert!(done.code == 3 && done.stderr.contains("cluster"), "{done:?}"),
    }
    fs::rename(own.join("node-2"), other.join("node-2")).expect("a directory can be moved");
    fs::rename(work.path().join("aside"), own.join("node-2")).expect("a directory can be moved");
    let dev = Dev::start(&own, &[]);
    assert_eq!(dev.version(), 5, "nothing was changed by the refusal");
    dev.stop();
}
