//! Compares the simulated file system with the real one, and checks what its power failures may do.

use super::*;
use crate::{DirectBuffer, DiskStorage, Rng, SimRng};

fn write(storage: &dyn Storage, path: &str, bytes: &[u8]) -> Arc<dyn File> {
    let file = storage.open(path, OpenMode::OpenOrCreate).expect("opens");
    file.write_all_at(bytes, 0).expect("writes");
    file
}

fn read(storage: &dyn Storage, path: &str) -> Option<Vec<u8>> {
    let file = storage.open(path, OpenMode::Existing).ok()?;
    let mut bytes = vec![0; usize::try_from(file.len().expect("has a length")).expect("is small")];
    file.read_exact_at(&mut bytes, 0).expect("reads");
    Some(bytes)
}

/// Makes one random call, and returns its answer as text, on which both implementations must agree.
fn step(storage: &dyn Storage, rng: &mut SimRng) -> String {
    const PATHS: [&str; 8] = ["a", "b", "d/a", "d/b", "d/e/a", "d/e", "d", "../x"];
    let path = PATHS[usize::try_from(rng.below(8)).expect("small")];
    let other = PATHS[usize::try_from(rng.below(8)).expect("small")];
    let offset = rng.below(2000);
    let mut bytes = vec![0; usize::try_from(rng.below(1500)).expect("small")];
    rng.fill(&mut bytes);
    let kind = |error: io::Error| error.kind();
    match rng.below(10) {
        0 => format!("{:?}", storage.open(path, OpenMode::CreateNew).map(|_| ()).map_err(kind)),
        1 => format!("remove {path} {:?}", storage.remove(path).is_ok()),
        2 if !other.starts_with(path) && !path.starts_with(other) => {
            format!("rename {path} {other} {:?}", storage.rename(path, other).is_ok())
        }
        3 => format!("{:?}", storage.list(path).map_err(kind)),
        4 => format!("create {path} {:?}", storage.create_dir_all(path).is_ok()),
        5 => format!("clear {:?}", storage.remove_dir_all("d/e").is_ok()),
        6 => match storage.open(path, OpenMode::OpenOrCreate) {
            Ok(file) => format!("{:?}", file.write_all_at(&bytes, offset).map_err(kind)),
            Err(error) => format!("{:?}", error.kind()),
        },
        7 => match storage.open(path, OpenMode::Existing) {
            Ok(file) => format!("{:?} {:?}", file.set_len(offset).map_err(kind), file.sync_data().map_err(kind)),
            Err(error) => format!("{:?}", error.kind()),
        },
        8 => match storage.open_direct(path, OpenMode::OpenOrCreate) {
            // Mostly whole sectors at the offset of a sector.
            Ok(file) => {
                let mut buffer = DirectBuffer::zeroed(512 * (1 + bytes.len() / 512));
                buffer[..bytes.len()].copy_from_slice(&bytes);
                let (cut, shift) = (usize::from(offset.is_multiple_of(7)), u64::from(offset.is_multiple_of(5)));
                let written = file.write_all_at(&buffer[cut..], 512 * (offset / 512) + shift).map_err(kind);
                format!("{written:?} {:?} {:?}", file.len().map_err(kind), file.sync_data().map_err(kind))
            }
            Err(error) => format!("{:?}", error.kind()),
        },
        _ => match storage.open(path, OpenMode::Existing) {
            Ok(file) => {
                let answer = file.read_exact_at(&mut bytes, offset).map_err(kind);
                format!("{answer:?} {:?} {:?}", file.len().map_err(kind), answer.is_ok().then_some(bytes))
            }
            Err(error) => format!("{:?}", error.kind()),
        },
    }
}

#[test]
fn simulated_and_real_storage_answer_alike() {
    for seed in 0..20 {
        let root = tempfile::tempdir().expect("a temporary directory");
        let (disk, sim) = (DiskStorage::new(root.path()), SimStorage::new());
        let (mut left, mut right) = (SimRng::new(seed), SimRng::new(seed));
        for at in 0..200 {
            assert_eq!(step(&disk, &mut left), step(&sim, &mut right), "seed {seed}, step {at}");
        }
    }
}

/// Pages in many parts read as they were written: at the end of a file and over its content, past
/// the cache or through it.
#[test]
fn pages_that_go_past_the_cache_are_read_as_they_were_written() {
    const PAGE: usize = 4096;
    let root = tempfile::tempdir().expect("a temporary directory");
    let disk = DiskStorage::new(root.path());
    for seed in 0..8 {
        let mut rng = SimRng::new(seed);
        let mut expected: Vec<u8> = Vec::new();
        let name = format!("pages-{seed}");
        let mut file = disk.open_direct(&name, OpenMode::CreateNew).expect("makes it");
        for round in 0..40 {
            let pages = usize::try_from(1 + rng.below(400)).expect("small");
            let mut bytes = vec![0; pages * PAGE];
            rng.fill(&mut bytes);
            // After the end, at the end, or over existing content.
            let at = usize::try_from(rng.below((expected.len() / PAGE + 2) as u64)).expect("small") * PAGE;
            let at = if rng.chance(500) { expected.len() } else { at };
            let parts: Vec<&[u8]> = bytes.chunks(PAGE * (1 + round % 3)).collect();
            file.write_parts_at(&parts, at as u64).expect("writes");
            expected.resize(expected.len().max(at + bytes.len()), 0);
            expected[at..at + bytes.len()].copy_from_slice(&bytes);
            if rng.chance(100) {
                file.allocate((expected.len() + 50 * PAGE) as u64).expect("there is room");
                expected.resize(expected.len() + 50 * PAGE, 0);
            }
            if rng.chance(100) {
                file = disk.open_direct(&name, OpenMode::Existing).expect("it is there");
            }
            if rng.chance(300) {
                file.sync_data().expect("syncs");
                let from = usize::try_from(rng.below(expected.len() as u64)).expect("small");
                let mut there = vec![0; (expected.len() - from).min(9000)];
                file.read_exact_at(&mut there, from as u64).expect("reads");
                assert!(there == expected[from..from + there.len()], "seed {seed}, round {round}");
            }
        }
        assert!(read(&disk, &name).expect("it is there") == expected, "seed {seed}");
    }
}

#[test]
fn a_direct_buffer_lies_where_a_disk_can_read_it() {
    for len in [0, 1, 512, 5000] {
        let mut buffer = DirectBuffer::zeroed(len);
        assert!(buffer.as_ptr().addr().is_multiple_of(512) && *buffer == vec![0; len]);
        buffer.fill(9);
        assert_eq!(*buffer, vec![9; len]);
    }
}

#[test]
fn both_locks_are_exclusive_until_dropped() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let storages: [Arc<dyn Storage>; 2] = [Arc::new(DiskStorage::new(root.path())), SimStorage::new().storage()];
    for storage in storages {
        let guard = storage.lock("LOCK").expect("nobody holds it");
        let refused = storage.lock("LOCK").map(|_| ()).expect_err("it is held");
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(guard);
        storage.lock("LOCK").expect("it was dropped");
    }
}

#[test]
fn both_report_the_free_space() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let disk = DiskStorage::new(root.path());
    let free = disk.free_bytes().expect("says");
    assert!((1..1 << 60).contains(&free), "{free} bytes");
    let sim = SimStorage::new();
    assert_eq!(sim.storage().free_bytes().expect("says"), u64::MAX);
    sim.set_capacity(Some(5000));
    write(&sim, "a", &[7; 3000]);
    assert_eq!(sim.storage().free_bytes().expect("says"), 2000);
}

#[test]
fn what_was_synced_survives_every_power_failure() {
    let sim = SimStorage::new();
    sim.create_dir_all("d").expect("makes");
    write(&sim, "d/a", &[7; 3000]).sync_data().expect("syncs");
    sim.sync_dir("d").expect("syncs");
    let file = write(&sim, "d/a", &[8; 1000]);
    file.sync_data().expect("syncs");
    for seed in 0..50 {
        let bytes = read(&sim.power_loss(seed), "d/a").expect("is there");
        assert!(bytes[..1000] == [8; 1000] && bytes[1000..] == [7; 2000]);
    }
}

#[test]
fn what_was_not_synced_is_torn_lost_or_kept() {
    let sim = SimStorage::new();
    write(&sim, "a", &[1; 2048]).sync_data().expect("syncs");
    sim.sync_dir("").expect("syncs");
    write(&sim, "a", &[2; 2048]);
    write(&sim, "b", &[3; 10]).sync_data().expect("syncs");
    let (mut kept, mut lost, mut torn, mut unlinked) = (0, 0, 0, 0);
    for seed in 0..200 {
        let after = sim.power_loss(seed);
        let bytes = read(&after, "a").expect("is there");
        for sector in bytes.chunks(512) {
            assert!(sector == [1; 512] || sector == [2; 512], "a sector is never torn");
        }
        match bytes.iter().filter(|byte| **byte == 2).count() {
            0 => lost += 1,
            2048 => kept += 1,
            _ => torn += 1,
        }
        unlinked += u32::from(read(&after, "b").is_none());
    }
    assert!(kept > 0 && lost > 0 && torn > 0 && unlinked > 20 && unlinked < 180);
    assert_eq!(read(&sim.power_loss(5), "a"), read(&sim.power_loss(5), "a"));
}

#[test]
fn a_rename_is_lost_or_kept_as_a_whole() {
    let sim = SimStorage::new();
    write(&sim, "new", b"new").sync_data().expect("syncs");
    write(&sim, "cur", b"old").sync_data().expect("syncs");
    sim.sync_dir("").expect("syncs");
    sim.rename("new", "cur").expect("renames");
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let after = sim.power_loss(seed);
        seen.insert((read(&after, "cur"), read(&after, "new")));
    }
    let outcomes = [(Some(b"new".to_vec()), None), (Some(b"old".to_vec()), Some(b"new".to_vec()))];
    assert_eq!(seen, outcomes.into());
}

#[test]
fn a_crash_fails_everything_after_it() {
    let sim = SimStorage::new();
    let file = write(&sim, "a", b"x");
    sim.crash_after(1);
    file.write_all_at(b"y", 0).expect("one more goes well");
    file.write_all_at(b"z", 0).expect_err("the machine crashes here");
    assert!(sim.crashed());
    file.read_exact_at(&mut [0], 0).expect_err("nothing works");
    sim.list("").expect_err("nothing works");
    assert_eq!(read(&sim.process_loss(), "a"), Some(b"z".to_vec()), "the last write may have happened");
}

#[test]
fn a_failed_sync_loses_writes_for_good() {
    let sim = SimStorage::new();
    let file = write(&sim, "a", &[1; 100]);
    sim.sync_dir("").expect("syncs");
    sim.inject(Fault { operation: Operation::Sync, path_part: "a".into(), skip: 0, kind: io::ErrorKind::Other });
    file.sync_data().expect_err("was injected");
    file.sync_data().expect("answers well, as Linux does");
    let lost = (0..50).filter(|seed| read(&sim.power_loss(*seed), "a") != Some(vec![1; 100])).count();
    assert!(lost > 0);
}

#[test]
fn a_repeated_write_that_was_synced_is_not_undone_by_the_failed_one() {
    let sim = SimStorage::new();
    let file = write(&sim, "a", &[1; 3000]);
    sim.sync_dir("").expect("syncs");
    sim.inject(Fault { operation: Operation::Sync, path_part: "a".into(), skip: 0, kind: io::ErrorKind::Other });
    file.sync_data().expect_err("was injected");
    file.write_all_at(&[2; 2000], 600).expect("writes");
    file.sync_data().expect("syncs");
    for seed in 0..50 {
        let bytes = read(&sim.power_loss(seed), "a").expect("is there");
        assert_eq!(bytes[600..2600], [2; 2000]);
        assert!(bytes[..600].iter().all(|byte| [0, 1].contains(byte)));
    }
}

#[test]
fn a_full_disk_refuses_growth_and_allows_the_rest() {
    let sim = SimStorage::new();
    let file = write(&sim, "a", &[1; 100]);
    sim.set_capacity(Some(150));
    let error = file.write_all_at(&[2; 100], 100).expect_err("does not fit");
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert_eq!(sim.used_bytes(), 150, "a part was written");
    file.write_all_at(&[3; 150], 0).expect("does not grow");
    file.set_len(151).expect_err("does not fit");
    file.set_len(10).expect("shrinks");
}

#[test]
fn flipped_bits_are_read_and_stay() {
    let sim = SimStorage::new();
    write(&sim, "a", b"abc").sync_data().expect("syncs");
    sim.sync_dir("").expect("syncs");
    sim.flip_bit("a", 1, 0);
    assert_eq!(read(&sim, "a"), Some(b"acc".to_vec()));
    assert_eq!(read(&sim.power_loss(1), "a"), Some(b"acc".to_vec()));
}

#[test]
fn a_truncation_that_was_synced_is_not_repeated_by_the_failed_one() {
    let sim = SimStorage::new();
    let file = write(&sim, "a", &[1; 2000]);
    file.set_len(0).expect("cuts");
    sim.inject(Fault { operation: Operation::Sync, path_part: "a".into(), skip: 0, kind: io::ErrorKind::Other });
    file.sync_data().expect_err("injected");
    file.set_len(0).expect("cuts");
    file.write_all_at(&[2; 700], 0).expect("writes");
    file.sync_data().expect("syncs");
    sim.sync_dir("").expect("syncs");
    for seed in 0..100 {
        assert_eq!(read(&sim.power_loss(seed), "a"), Some(vec![2; 700]));
    }
}
