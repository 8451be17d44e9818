//! A crash at every change of the storage, with and without loss of power, and recovery by replay.

use crate::common::{Model, check::check, check::check_view, for_each_seed, options};
use coppice_env::{Fault, Operation, Rng, SimStorage};
use coppice_root::{Error, Position, Root, fsck};
use coppice_types::Reason;

/// A sound disk and a model. The ledger has `headers` entries, all flushed.
fn base(seed: u64, headers: u64) -> (SimStorage, Model) {
    let disk = SimStorage::new();
    let mut root = Root::open_with(disk.storage(), options()).expect("new");
    let mut model = Model::founded(seed, &mut root);
    while model.size() < headers {
        let command = model.any();
        model.accept(&mut root, &command);
    }
    root.flush(model.position()).expect("flushes");
    (disk, model)
}

/// Replays the raft log beyond the durable position, and flushes every few entries, until the end
/// or the crash. Every other flush ends only after further entries.
fn go_on(root: &mut Root, model: &Model) -> Result<(), Error> {
    let from = root.applied_index();
    let mut begun = None;
    for (at, (index, bytes, outcome)) in model.raft.iter().filter(|(index, ..)| *index > from).enumerate() {
        assert_eq!(&root.apply(*index, bytes)?, outcome);
        let position = Position { index: *index, term: 1 };
        match at % 8 {
            0 => root.flush(position)?,
            4 => {
                let mut flush = root.begin_flush(position)?;
                flush.run();
                begun = Some(flush);
            }
            6 => begun.take().map_or(Ok(()), |flush| root.end_flush(flush))?,
            _ => {}
        }
    }
    begun.map_or(Ok(()), |flush| root.end_flush(flush))?;
    root.flush(model.position())
}

fn assert_clean(disk: &SimStorage) {
    let report = fsck::fsck(&disk.storage()).expect("runs");
    assert!(report.is_clean() && report.notes.is_empty(), "{report:?}");
}

/// Crashes at each change of the storage between `base` and the model's end.
fn crash_everywhere(base: &SimStorage, model: &mut Model) {
    for crash_at in 0.. {
        let disk = base.process_loss();
        let mut root = Root::open_with(disk.storage(), options()).expect("opens");
        disk.crash_after(crash_at);
        let ended = go_on(&mut root, model);
        let durable = root.durable_position();
        drop(root);
        assert!(ended.is_ok() || disk.crashed(), "crash {crash_at}: {ended:?}");
        let survivors = [disk.process_loss(), disk.power_loss(crash_at), disk.power_loss(!crash_at)];
        for (way, after) in survivors.iter().enumerate() {
            let mut root = Root::open_with(after.storage(), options()).expect("recovers");
            let recovered = root.durable_position();
            assert!(recovered >= durable, "crash {crash_at}, way {way}: {recovered:?} lost {durable:?}");
            assert_eq!(root.applied_index(), recovered.index);
            // A second loss of power right after recovery changes nothing.
            if way == 0 {
                let again = Root::open_with(after.power_loss(7).storage(), options()).expect("recovers");
                assert_eq!(again.durable_position(), recovered);
            }
            go_on(&mut root, model).expect("no second crash");
            check_view(&root, model);
            if crash_at % 8 == way as u64 {
                check(&root, model);
            }
            drop(root);
            assert_clean(after);
        }
        if !disk.crashed() {
            assert!(crash_at > 40, "only {crash_at} changes of the storage were tried");
            return;
        }
    }
}

#[test]
fn a_new_replica_survives_a_crash_at_every_write() {
    for_each_seed("a_new_replica_survives", 3, |seed| {
        let mut root = Root::open(SimStorage::new().storage()).expect("new");
        let mut model = Model::founded(seed, &mut root);
        for _ in 0..30 {
            let command = model.any();
            model.accept(&mut root, &command);
        }
        crash_everywhere(&SimStorage::new(), &mut model);
    });
}

#[test]
fn sealing_survives_a_crash_at_every_write() {
    let (disk, mut model) = base(40, 250);
    let mut root = Root::open(SimStorage::new().storage()).expect("new");
    model.replay(&mut root);
    while model.size() < 262 {
        let command = model.any();
        model.accept(&mut root, &command);
    }
    crash_everywhere(&disk, &mut model);
}

#[test]
fn a_flush_of_many_chunks_survives_a_crash_at_every_write() {
    let (disk, mut model) = base(41, 3);
    let mut root = Root::open(SimStorage::new().storage()).expect("new");
    model.replay(&mut root);
    while model.size() < 520 {
        let command = model.any();
        model.accept(&mut root, &command);
    }
    let changes = |crash_at: u64| {
        let disk = disk.process_loss();
        let mut root = Root::open_with(disk.storage(), options()).expect("opens");
        model.replay(&mut root);
        disk.crash_after(crash_at);
        (root.flush(model.position()).is_err(), disk)
    };
    let mut tried = 0;
    for crash_at in 0.. {
        let (crashed, disk) = changes(crash_at);
        let after = disk.power_loss(crash_at);
        let mut root = Root::open_with(after.storage(), options()).expect("recovers");
        model.replay(&mut root);
        root.flush(model.position()).expect("flushes");
        check_view(&root, &model);
        drop(root);
        assert_clean(&after);
        tried = crash_at;
        if !crashed {
            break;
        }
    }
    assert!(tried > 20, "only {tried} changes of the storage were tried");
    let (_, disk) = changes(u64::MAX / 2);
    let root = Root::open_with(disk.process_loss().storage(), options()).expect("opens");
    check(&root, &mut model);
}

#[test]
fn a_full_disk_fails_the_flush_and_loses_nothing() {
    let (disk, mut model) = base(42, 250);
    let mut root = Root::open_with(disk.storage(), options()).expect("opens");
    for _ in 0..40 {
        let command = model.any();
        model.accept(&mut root, &command);
    }
    let durable = root.durable_position();
    let used = disk.used_bytes();
    for room in (0..200_000).step_by(7_000) {
        disk.set_capacity(Some(used + room));
        match root.flush(model.position()) {
            Ok(()) => break,
            Err(error) => {
                assert_eq!(error.reason(), Reason::ResourceExhausted, "{error}");
                assert_eq!(root.durable_position(), durable);
                check_view(&root, &model);
                let other = Root::open_with(disk.power_loss(room).storage(), options()).expect("recovers");
                assert_eq!(other.durable_position(), durable);
            }
        }
    }
    disk.set_capacity(None);
    root.flush(model.position()).expect("there is room again");
    check(&root, &mut model);
    drop(root);
    let mut recovered = Root::open_with(disk.power_loss(1).storage(), options()).expect("recovers");
    model.replay(&mut recovered);
    check(&recovered, &mut model);
}

#[test]
fn entries_applied_during_a_flush_stay_readable_whether_it_succeeds_or_fails() {
    for room in [Some(30_000), None] {
        let (disk, mut model) = base(45, 250);
        let mut root = Root::open_with(disk.storage(), options()).expect("opens");
        let accept_many = |root: &mut Root, model: &mut Model| {
            for _ in 0..40 {
                let command = model.any();
                model.accept(root, &command);
            }
        };
        accept_many(&mut root, &mut model);
        let (before, begun) = (root.durable_position(), model.position());
        disk.set_capacity(room.map(|room| disk.used_bytes() + room));
        let mut flush = root.begin_flush(begun).expect("begins");
        accept_many(&mut root, &mut model);
        flush.run();
        check(&root, &mut model);
        accept_many(&mut root, &mut model);
        assert_eq!(root.end_flush(flush).is_err(), room.is_some(), "only a full disk fails the flush");
        assert_eq!(root.durable_position(), if room.is_some() { before } else { begun });
        assert!(root.unflushed_bytes() > 0, "later entries wait for the next flush");
        check(&root, &mut model);
        disk.set_capacity(None);
        root.flush(model.position()).expect("flushes");
        assert_eq!(root.unflushed_bytes(), 0);
        check(&root, &mut model);
        drop(root);
        assert_clean(&disk.power_loss(1));
        let recovered = Root::open_with(disk.power_loss(1).storage(), options()).expect("recovers");
        assert_eq!(recovered.durable_position(), model.position());
        check(&recovered, &mut model);
    }
}

#[test]
fn a_failed_sync_is_made_up_for_by_writing_again() {
    for skip in 0..12 {
        let (disk, mut model) = base(43, 250);
        let mut root = Root::open_with(disk.storage(), options()).expect("opens");
        for _ in 0..20 {
            let command = model.any();
            model.accept(&mut root, &command);
        }
        let operation = if model.rng.chance(500) { Operation::Sync } else { Operation::SyncDir };
        disk.inject(Fault { operation, path_part: String::new(), skip, kind: std::io::ErrorKind::Other });
        if root.flush(model.position()).is_err() {
            root.flush(model.position()).expect("the fault is over");
        }
        drop(root);
        let mut root = Root::open_with(disk.power_loss(skip).storage(), options()).expect("recovers");
        assert_eq!(root.durable_position(), model.position());
        model.replay(&mut root);
        check_view(&root, &model);
    }
}

#[test]
fn a_directory_is_opened_once() {
    let (disk, model) = base(44, 5);
    let root = Root::open(disk.storage()).expect("opens");
    assert!(matches!(Root::open(disk.storage()), Err(Error::InUse)));
    assert!(matches!(fsck::fsck(&disk.storage()), Err(Error::InUse)));
    drop(root);
    assert_eq!(Root::open(disk.storage()).expect("opens").durable_position(), model.position());
}
