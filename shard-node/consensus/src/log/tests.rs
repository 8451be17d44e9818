//! The log against a model: random use, a crash at every I/O, every byte damaged.

use std::{
    num::NonZero,
    sync::atomic::{AtomicUsize, Ordering},
};

use coppice_env::{Fault, Operation, Rng, SimRng, SimStorage, Workers};
use coppice_types::{ClusterId, GroupId};
use raft::eraftpb::EntryType;

use super::{segment::file_name, *};
use crate::RaftId;

const SIZES: Sizes = Sizes { segment_bytes: 6 << 10, fill_bytes: 2 << 10, cache_bytes: 512, beside_bytes_min: 0 };

/// Sizes of logs with large batches.
const LARGE: Sizes =
    Sizes { segment_bytes: 8 << 20, fill_bytes: 1 << 20, cache_bytes: 1 << 20, beside_bytes_min: 256 << 10 };

/// Flushes without other work.
fn flush(log: &mut Log) -> Result<()> {
    flush_beside(log, Workers::Inline, &mut |_| {})
}

fn flush_beside(log: &mut Log, workers: Workers, meanwhile: &mut dyn FnMut(&Writing<'_>)) -> Result<()> {
    log.flush(&mut Beside { workers, meanwhile, writes: &|_| {} })
}

fn owner() -> Owner {
    Owner { cluster: ClusterId([1; 16]), group: GroupId::Root, id: RaftId::new(1, 1) }
}

fn voters() -> Membership {
    Membership::of_voters(&[RaftId::new(1, 1), RaftId::new(2, 1)])
}

fn create(disk: &SimStorage) -> Result<Log> {
    Log::create(disk.storage(), SIZES, owner(), Position::START, voters())
}

fn open(disk: &SimStorage) -> Result<Log> {
    Ok(Log::open(disk.storage(), SIZES, owner())?.expect("there is a log"))
}

/// All the content of a log.
#[derive(Clone, Debug, PartialEq)]
struct View {
    base: Position,
    hard_state: HardState,
    entries: Vec<(Position, Bytes)>,
    memberships: Vec<(u64, Membership)>,
    quarantine: Option<Vec<u8>>,
}

fn try_view(log: &Log) -> Result<View> {
    let entries = if log.last().index > log.base().index {
        log.entries(log.base().index + 1..=log.last().index, u64::MAX)?
    } else {
        Vec::new()
    };
    let entry = |entry: Entry| {
        let data = if entry.get_entry_type() == EntryType::EntryNormal { entry.data } else { entry.context };
        (Position { index: entry.index, term: entry.term }, data)
    };
    Ok(View {
        base: log.base(),
        hard_state: log.hard_state(),
        entries: entries.into_iter().map(entry).collect(),
        memberships: log.memberships.clone(),
        quarantine: log.quarantine().map(<[u8]>::to_vec),
    })
}

/// Drops the entries up to `to`, all at once.
fn compact(log: &mut Log, to: u64) -> Result<()> {
    let Some(mut cut) = log.begin_cut(to) else { return Ok(()) };
    cut.run::<Error>(|| Ok(()))?;
    log.end_cut(cut).remove()
}

fn view(log: &Log) -> View {
    try_view(log).expect("the log is sound")
}

fn entry(position: Position, rng: &mut SimRng) -> Entry {
    let mut data = vec![0; usize::try_from(rng.below(400)).expect("small")];
    rng.fill(&mut data);
    let kind = if rng.chance(50) { EntryType::EntryConfChangeV2 } else { EntryType::EntryNormal };
    make_entry(kind, position, Bytes::from(data))
}

/// Entries after `after`, with terms that rise now and then.
fn entries(after: Position, rng: &mut SimRng) -> Vec<Entry> {
    let mut position = after;
    let mut entries = Vec::new();
    for _ in 0..rng.below(5) {
        position = Position { index: position.index + 1, term: position.term + rng.below(20) / 18 };
        entries.push(entry(position, rng));
    }
    entries
}

/// One random step. It is durable as a whole when it returns without an error.
fn step(log: &mut Log, rng: &mut SimRng) -> Result<()> {
    let hard_state = log.hard_state();
    match rng.below(100) {
        0..70 => {
            for _ in 0..=rng.below(3) {
                // New entries follow the last one, or replace entries that are not committed.
                let first = hard_state.commit + rng.below(log.last().index - hard_state.commit + 1);
                let first = if rng.chance(800) { log.last().index } else { first };
                let term = log.term(first).expect("the log holds it");
                let mut new = entries(Position { index: first, term: term.max(log.last().term) }, rng);
                if log.last().index > first {
                    // Entries that replace others have a higher term.
                    new.iter_mut().for_each(|entry| entry.term += 1);
                }
                log.append(&new);
            }
            let term = hard_state.term.max(log.last().term) + rng.below(10) / 9;
            let commit = hard_state.commit + rng.below(log.last().index - hard_state.commit + 1);
            // A replica votes once in a term.
            let vote = match rng.below(3) {
                _ if term == hard_state.term && hard_state.vote != 0 => hard_state.vote,
                vote => vote,
            };
            log.set_hard_state(HardState { term, vote, commit });
            if rng.chance(100) && commit > log.base().index {
                log.set_membership(commit, Membership::of_voters(&[RaftId(commit), RaftId(1)]));
            }
            flush(log)
        }
        70..80 => log.ensure_room(usize::try_from(rng.below(9000)).expect("small")),
        80..92 => compact(log, hard_state.commit.saturating_sub(rng.below(10))),
        92..96 => {
            let commit = hard_state.commit + rng.below(20);
            let base = Position { index: commit, term: hard_state.term };
            let state = HardState { commit, ..hard_state };
            log.reset(base, voters(), vec![1, 2, 3], state)
        }
        _ => log.set_quarantine(rng.chance(500).then_some(b"evidence")),
    }
}

#[test]
fn random_use_survives_reopening() {
    for seed in 0..40 {
        let mut rng = SimRng::new(seed);
        let mut disk = SimStorage::new();
        let mut log = create(&disk).expect("creates");
        for _ in 0..80 {
            step(&mut log, &mut rng).expect("steps");
            if rng.chance(200) {
                let before = view(&log);
                disk = disk.power_loss(rng.next_u64());
                log = open(&disk).expect("opens");
                assert_eq!(view(&log), before, "seed {seed}");
            }
        }
        assert!(disk.files().len() <= 40, "old segments go");
    }
}

#[test]
fn a_crash_at_any_io_leaves_the_step_done_or_not_done() {
    let mut outcomes = [0, 0];
    for seed in 0..6 {
        // The view after each step, without a crash.
        let disk = SimStorage::new();
        let mut rng = SimRng::new(seed);
        let mut log = create(&disk).expect("creates");
        let mut views = vec![(disk.io_count(), view(&log))];
        for _ in 0..40 {
            step(&mut log, &mut rng).expect("steps");
            views.push((disk.io_count(), view(&log)));
        }
        for crash in views[0].0..disk.io_count() {
            let disk = SimStorage::new();
            disk.crash_after(crash);
            let mut rng = SimRng::new(seed);
            let mut log = create(&disk).expect("creates");
            let done = (1..).take_while(|_| step(&mut log, &mut rng).is_ok()).last().unwrap_or(0);
            let (before, after) = (&views[done].1, &views[done + 1].1);
            for loss in 0..4 {
                let after_loss = if loss == 0 { disk.process_loss() } else { disk.power_loss(seed * 1000 + loss) };
                let looked = recover::inspect(&after_loss, &owner()).expect("sound").expect("there is a log");
                let mut log = open(&after_loss).unwrap_or_else(|error| panic!("seed {seed}, crash {crash}: {error}"));
                let found = view(&log);
                assert_eq!(
                    (looked.base, looked.last, looked.commit),
                    (log.base(), log.last(), found.hard_state.commit)
                );
                assert!(found == *before || found == *after, "seed {seed}, crash {crash}, loss {loss}");
                outcomes[usize::from(found == *before)] += 1;
                // The log can be used further, durably.
                for _ in 0..3 {
                    step(&mut log, &mut rng).expect("steps");
                }
                let before = view(&log);
                assert_eq!(view(&open(&after_loss.power_loss(loss)).expect("opens")), before);
            }
        }
    }
    assert!(outcomes.iter().all(|count| *count > 100), "both outcomes occur: {outcomes:?}");
}

#[test]
fn a_crash_while_a_log_is_created_leaves_none_or_a_whole_one() {
    let disk = SimStorage::new();
    create(&disk).expect("creates");
    for crash in 0..disk.io_count() {
        let disk = SimStorage::new();
        disk.crash_after(crash);
        create(&disk).expect_err("crashes");
        for seed in 0..10 {
            let disk = disk.power_loss(seed);
            match Log::open(disk.storage(), SIZES, owner()).expect("sound") {
                Some(log) => assert_eq!(log.last(), Position::START),
                None => drop(create(&disk).expect("creates")),
            }
        }
    }
}

fn content(disk: &SimStorage, name: &str) -> Vec<u8> {
    let file = disk.open(name, OpenMode::Existing).expect("it is there");
    let mut bytes = vec![0; usize::try_from(file.len().expect("it has a length")).expect("small")];
    file.read_exact_at(&mut bytes, 0).expect("reads");
    bytes
}

/// Appends and flushes one batch.
fn grow(log: &mut Log, rng: &mut SimRng) {
    try_grow(log, rng).expect("the disk works");
}

fn try_grow(log: &mut Log, rng: &mut SimRng) -> Result<()> {
    let last = log.last();
    log.append(&entries(last, rng));
    let last = log.last();
    let commit = last.index.saturating_sub(4).max(1);
    log.set_hard_state(HardState { term: last.term, vote: 1, commit });
    flush(log)
}

/// A log of three segments. None was dropped, though the log begins after a later base.
fn short_sample(disk: &SimStorage, rng: &mut SimRng) -> Log {
    let mut log = create(disk).expect("creates");
    while log.segments.len() < 3 {
        grow(&mut log, rng);
    }
    compact(&mut log, 6).expect("compacts");
    log
}

/// A durable log of a few segments. The newest one lies in the file of a segment that was dropped.
fn sample() -> (SimStorage, View) {
    let disk = SimStorage::new();
    let mut rng = SimRng::new(77);
    let mut log = short_sample(&disk, &mut rng);
    let to = log.last().index - 6;
    compact(&mut log, to).expect("compacts");
    assert_eq!(log.dropped.len(), 1, "one is behind");
    let used = log.dropped[0].id;
    while !log.dropped.is_empty() {
        grow(&mut log, &mut rng);
    }
    let newest = log.segments.back().expect("there are some");
    let block = usize::try_from(newest.end_block * 512).expect("small");
    let behind = &content(&disk, &file_name(newest.id))[block..];
    assert!(behind.chunks(512).any(|block| block[8] == u8::try_from(used).expect("small")), "and not all written over");
    (disk, view(&log))
}

#[test]
fn every_flipped_bit_is_found_or_harmless() {
    let (disk, before) = sample();
    let mut rng = SimRng::new(1);
    let (mut found, mut harmless) = (0, 0);
    for file in disk.files() {
        let len = disk.storage().open(&file, OpenMode::Existing).expect("opens").len().expect("has a length");
        for offset in 0..len {
            let disk = disk.process_loss();
            disk.flip_bit(&file, offset, u8::try_from(rng.below(8)).expect("small"));
            let looked = recover::inspect(&disk, &owner());
            match open(&disk) {
                Err(error) => {
                    assert_eq!(error.kind(), coppice_types::ErrorKind::Corrupted, "{error}");
                    assert_eq!(looked.expect_err("looking finds it too").to_string(), error.to_string());
                    found += 1;
                }
                Ok(log) => {
                    assert_eq!(view(&log), before, "{file} at {offset}");
                    harmless += 1;
                }
            }
        }
    }
    assert!(found > 10_000, "{found} were found");
    assert_eq!(harmless, 0, "no byte of these files is without a checksum");
}

#[test]
fn a_bit_that_flips_while_the_log_is_open_is_found_when_it_is_read() {
    let (disk, before) = sample();
    let mut found = 0;
    for file in disk.files().into_iter().filter(|file| file != meta::META_FILE) {
        let len = disk.open(&file, OpenMode::Existing).expect("it is listed").len().expect("a length");
        for offset in (100..len).step_by(512).take(4) {
            let disk = disk.process_loss();
            let log = open(&disk).expect("opens");
            disk.flip_bit(&file, offset, 3);
            match try_view(&log) {
                Err(error) => {
                    assert_eq!(error.kind(), coppice_types::ErrorKind::Corrupted, "{error}");
                    found += 1;
                }
                Ok(view) => assert_eq!(view, before),
            }
        }
    }
    assert!(found > 5, "{found} were found");
}

#[test]
fn files_that_were_cut_or_lost_are_corruption() {
    let (disk, before) = sample();
    let segments: Vec<String> = disk.files().into_iter().filter(|file| file != meta::META_FILE).collect();
    for (at, file) in segments.iter().enumerate() {
        let newest = at + 1 == segments.len();
        let len = disk.storage().open(file, OpenMode::Existing).expect("opens").len().expect("has a length");
        for blocks in 1..len / 512 {
            let disk = disk.process_loss();
            disk.storage().open(file, OpenMode::Existing).expect("opens").set_len(blocks * 512).expect("cuts");
            match open(&disk) {
                Err(error) => assert_eq!(error.kind(), coppice_types::ErrorKind::Corrupted, "{error}"),
                // Only the first batch of a file records the length of the file.
                Ok(log) => assert!(newest && view(&log).entries.len() <= before.entries.len(), "{file} at {blocks}"),
            }
        }
        if !newest {
            let disk = disk.process_loss();
            disk.storage().remove(file).expect("removes");
            assert_eq!(open(&disk).expect_err("is missing").kind(), coppice_types::ErrorKind::Corrupted);
        }
    }
}

#[test]
fn another_replicas_log_is_refused() {
    let (disk, _) = sample();
    let mut other = owner();
    other.id = RaftId::new(1, 2);
    let error = Log::open(disk.storage(), SIZES, other).expect_err("is another's");
    assert!(matches!(error, Error::WrongOwner { .. }), "{error}");
    create(&disk).expect_err("there is one already");
}

#[test]
fn a_log_of_another_format_is_refused_by_name_and_stays_as_it_is() {
    for other in [1, 3] {
        let (disk, _) = sample();
        let mut bytes = content(&disk, meta::META_FILE);
        bytes.truncate(bytes.len() - 4);
        assert_eq!(bytes[7], 2, "the format of this build");
        bytes[7] = other;
        bytes.extend_from_slice(&block::crc32c(0, &[&bytes]).to_le_bytes());
        disk.open(meta::META_FILE, OpenMode::Existing).and_then(|file| file.write_all_at(&bytes, 0)).expect("room");
        let before: Vec<_> = disk.files().iter().map(|name| content(&disk, name)).collect();
        for error in [open(&disk).expect_err("opens"), recover::inspect(&disk, &owner()).expect_err("inspects")] {
            assert!(matches!(error, Error::OtherFormat { found, known: 2 } if found == other), "{error}");
            let text = format!("the raft log has format {other}, and this build reads only format 2");
            assert!(error.to_string().starts_with(&text), "{error}");
        }
        create(&disk).expect_err("the directory holds a log");
        let after: Vec<_> = disk.files().iter().map(|name| content(&disk, name)).collect();
        assert!(before == after, "nothing was written");
    }
}

#[test]
fn a_log_with_segments_that_bear_no_number_is_refused() {
    let meta = Meta { first_segment: 1, ..golden_meta() };
    let mut bytes = meta.encode();
    bytes.truncate(bytes.len() - 4);
    let one = 1_u64.to_le_bytes();
    let at = bytes.windows(16).rposition(|window| window == [one, one].concat()).expect("two numbers") + 8;
    bytes[at] = 2;
    bytes.extend_from_slice(&block::crc32c(0, &[&bytes]).to_le_bytes());
    let damaged = coppice_types::codec::Error::Malformed("first numbered segment");
    assert_eq!(Meta::decode(&bytes), Err(meta::Unreadable::Damaged(damaged)));
}

#[test]
fn a_full_disk_refuses_room_and_keeps_what_was_reserved() {
    let disk = SimStorage::new();
    let mut rng = SimRng::new(5);
    let mut log = create(&disk).expect("creates");
    disk.set_capacity(Some(200 << 10));
    let mut accepted = 0;
    for _ in 0..2000 {
        if let Err(error) = log.ensure_room(500) {
            assert_eq!(error.kind(), coppice_types::ErrorKind::Exhausted);
            break;
        }
        let last = log.last();
        log.append(&[entry(Position { index: last.index + 1, term: last.term }, &mut rng)]);
        flush(&mut log).expect("there is room for what was promised it");
        accepted += 1;
    }
    assert!(accepted > 20 && accepted < 2000, "{accepted} entries fitted");
    for vote in 0..100 {
        log.set_hard_state(HardState { term: 10 + vote, vote, commit: 1 });
        flush(&mut log).expect("votes go on");
    }
    let before = view(&log);
    assert_eq!(view(&open(&disk.power_loss(1)).expect("opens")), before);
    disk.set_capacity(None);
    log.ensure_room(500).expect("there is room again");
}

#[test]
fn a_failed_sync_is_an_error_and_opening_makes_up_for_it() {
    let disk = SimStorage::new();
    let mut log = create(&disk).expect("creates");
    let position = Position { index: 2, term: 1 };
    log.append(&[make_entry(EntryType::EntryNormal, position, Bytes::from_static(b"x"))]);
    disk.inject(Fault {
        operation: Operation::Sync,
        path_part: ".log".into(),
        skip: 0,
        kind: std::io::ErrorKind::Other,
    });
    flush(&mut log).expect_err("the disk says so");
    let before = view(&log);
    // The disk has lost the batch for good, but still reads it until the power fails.
    let disk = disk.process_loss();
    assert_eq!(view(&open(&disk).expect("opens")), before, "the batch is there");
    for seed in 0..20 {
        assert_eq!(view(&open(&disk.power_loss(seed)).expect("opens")), before, "and was made durable by opening");
    }
}

fn golden_meta() -> Meta {
    Meta {
        owner: owner(),
        base: Position { index: 5, term: 2 },
        membership: voters(),
        hard_state: HardState { term: 3, vote: 4, commit: 5 },
        first_segment: 6,
        manifest: Some(vec![0xAA]),
        quarantine: None,
    }
}

#[test]
fn meta_file_has_a_golden_form() {
    let meta = golden_meta();
    let bytes = meta.encode();
    assert_eq!(Meta::decode(&bytes), Ok(meta));
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, include_str!("../../testdata/meta.hex").trim());
}

#[test]
fn segment_file_has_a_golden_form() {
    let disk = SimStorage::new();
    let mut log = create(&disk).expect("creates");
    let position = Position { index: 2, term: 1 };
    log.append(&[make_entry(EntryType::EntryNormal, position, Bytes::from_static(b"golden"))]);
    log.set_hard_state(HardState { term: 1, vote: 2, commit: 1 });
    flush(&mut log).expect("flushes");
    let block = &content(&disk, &file_name(1))[..512];
    let used = block.iter().rposition(|byte| *byte != 0).expect("something is written") + 1;
    let hex: String = block[..used].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, include_str!("../../testdata/segment.hex").trim());
}

#[test]
fn other_changes_may_come_between_the_parts_of_a_cut() {
    let (mut ended, mut forgotten) = (0, 0);
    for seed in 0..60 {
        let disk = SimStorage::new();
        let mut rng = SimRng::new(seed);
        let mut log = create(&disk).expect("creates");
        while log.segments.len() < 4 {
            grow(&mut log, &mut rng);
        }
        let Some(mut cut) = log.begin_cut(log.hard_state().commit) else { continue };
        assert!(log.begin_cut(log.hard_state().commit).is_none(), "one cut at a time");
        let runs_at = rng.below(6);
        for at in 0..6 {
            if at == runs_at {
                cut.run::<Error>(|| Ok(())).expect("the disk works");
            }
            step(&mut log, &mut rng).expect("the disk works");
            // A log that is opened before the end of the cut may begin later, and has all the rest.
            let (now, crashed) = (view(&log), view(&open(&disk.power_loss(rng.next_u64())).expect("opens")));
            let later = usize::try_from(crashed.base.index - now.base.index).expect("a log never begins earlier");
            assert_eq!(crashed.entries, now.entries[later..], "seed {seed}, step {at}");
            assert_eq!((crashed.hard_state, crashed.quarantine), (now.hard_state, now.quarantine));
        }
        let (before, is_valid) = (log.base(), log.cut.is_some());
        log.end_cut(cut).remove().expect("the disk works");
        assert_eq!(log.base() != before, is_valid, "seed {seed}: only a cut that still counts drops entries");
        *(if is_valid { &mut ended } else { &mut forgotten }) += 1;
        assert_eq!(view(&open(&disk.process_loss()).expect("opens")), view(&log), "seed {seed}");
    }
    assert!(ended > 5 && forgotten > 5, "{ended} cuts ended, {forgotten} were forgotten");
}

/// The bytes of all files.
fn raw(disk: &SimStorage) -> Vec<Vec<u8>> {
    let read = |name: &String| {
        let file = disk.open(name, OpenMode::Existing).expect("it is there");
        let mut bytes = vec![0; usize::try_from(file.len().expect("a length")).expect("small")];
        file.read_exact_at(&mut bytes, 0).expect("readable");
        bytes
    };
    disk.files().iter().map(read).collect()
}

#[test]
fn what_was_in_the_log_before_it_was_renewed_is_in_no_file_once_it_is_cleared() {
    let mut waited = 0;
    for seed in 0..40 {
        let disk = SimStorage::new();
        let mut rng = SimRng::new(seed);
        let mut log = create(&disk).expect("creates");
        let marker = [0xa5; 64];
        let has_marker =
            |disk: &SimStorage| raw(disk).iter().any(|bytes| bytes.windows(16).any(|window| window == &marker[..16]));
        let more = |log: &mut Log, rng: &mut SimRng, data: &[u8]| {
            let last = log.last();
            let mut new = entries(last, rng);
            let end = new.last().map_or(last, |entry| Position { index: entry.index, term: entry.term });
            let position = Position { index: end.index + 1, ..end };
            new.push(make_entry(EntryType::EntryNormal, position, Bytes::copy_from_slice(data)));
            log.append(&new);
            let term = log.hard_state().term.max(position.term);
            log.set_hard_state(HardState { term, vote: 0, commit: position.index });
            flush(log).expect("the disk works");
        };
        // The marker is in old segments, and in files that wait to be used again or were.
        for round in 0..30 {
            more(&mut log, &mut rng, &marker);
            if round % 3 == 2 {
                let to = log.last().index - rng.below(3);
                compact(&mut log, to).expect("the disk works");
            }
        }
        assert!(has_marker(&disk), "seed {seed}");
        let (before, last) = (view(&log), log.last());
        log.renew().expect("the disk works");
        assert_eq!(view(&log), before, "nothing is dropped by that");
        assert_eq!(view(&open(&disk.power_loss(seed)).expect("opens")), before);
        waited += u32::from(!log.clear().expect("the disk works"));
        more(&mut log, &mut rng, b"later");
        compact(&mut log, last.index).expect("the disk works");
        assert!(log.clear().expect("the disk works"), "seed {seed}");
        assert!(!has_marker(&disk), "seed {seed}");
        assert!(!has_marker(&disk.power_loss(seed)), "seed {seed}");
        let before = view(&log);
        assert_eq!(view(&open(&disk.power_loss(seed)).expect("opens")), before);
        for _ in 0..20 {
            more(&mut log, &mut rng, b"later");
            let commit = log.hard_state().commit;
            compact(&mut log, commit).expect("the disk works");
        }
        assert!(!has_marker(&disk), "seed {seed}: later segments");
    }
    assert!(waited > 20, "the log was cleared at once");
}

#[test]
fn a_cut_whose_note_fails_leaves_the_log_as_it_was() {
    let disk = SimStorage::new();
    let mut log = short_sample(&disk, &mut SimRng::new(78));
    let before = view(&log);
    let mut cut = log.begin_cut(log.last().index - 6).expect("there is a whole segment to drop");
    cut.run(|| Err(Error::Invalid("no note"))).expect_err("the note fails first");
    assert_eq!(view(&open(&disk.process_loss()).expect("opens")), before, "meta was not stored");
    assert!(log.end_cut(cut).is_empty(), "nothing is dropped");
    assert_eq!(view(&log), before);
    assert!(log.begin_cut(log.last().index - 6).is_some(), "a later cut may begin");
}

#[test]
fn files_of_dropped_segments_are_used_again_and_not_believed() {
    let (mut reused, mut made) = (0, 0);
    for seed in 0..20 {
        let disk = SimStorage::new();
        let mut rng = SimRng::new(seed);
        let mut log = create(&disk).expect("creates");
        let mut compacted = 0;
        for round in 0..300 {
            let dropped = log.dropped.len();
            grow(&mut log, &mut rng);
            reused += dropped - log.dropped.len();
            if round % 30 == 29 {
                let segments = log.segments.len();
                let to = log.hard_state().commit;
                compact(&mut log, to).expect("compacts");
                let now = segments - log.segments.len();
                assert!(
                    log.dropped.len() <= now.max(compacted),
                    "no more are kept than one of two compactions dropped"
                );
                compacted = now;
            }
            if rng.chance(100) {
                let before = view(&log);
                let disk = if rng.chance(500) { disk.process_loss() } else { disk.power_loss(rng.next_u64()) };
                assert_eq!(view(&open(&disk).expect("opens")), before, "seed {seed}, round {round}");
            }
        }
        made += usize::try_from(log.segment_next()).expect("small");
        let bytes: usize = disk.files().iter().map(|name| content(&disk, name).len()).sum();
        assert_eq!(log.disk_bytes(), (bytes - content(&disk, meta::META_FILE).len()) as u64, "all are counted");
        let state = HardState { commit: log.last().index, ..log.hard_state() };
        log.reset(log.last(), voters(), Vec::new(), state).expect("resets");
        assert_eq!(disk.files(), [meta::META_FILE], "and go with the log");
    }
    assert!(2 * reused > made, "of {made} segments {reused} lay in files that were there");
}

#[test]
fn a_failure_on_a_thread_is_returned_to_the_caller() {
    let disk = SimStorage::new();
    let mut log = Log::create(disk.storage(), LARGE, owner(), Position::START, voters()).expect("creates");
    let entry = |index| {
        let data = Bytes::from(vec![7; LARGE.beside_bytes_min]);
        make_entry(EntryType::EntryNormal, Position { index, term: 1 }, data)
    };
    let threads = Workers::Threads(NonZero::<usize>::MIN);
    log.append(&[entry(2)]);
    flush_beside(&mut log, threads, &mut |_| {}).expect("the disk works");
    for operation in [Operation::Write, Operation::Sync] {
        let disk = disk.process_loss();
        let mut log = Log::open(disk.storage(), LARGE, owner()).expect("sound").expect("there is a log");
        log.append(&[entry(3)]);
        let kind = std::io::ErrorKind::Other;
        disk.inject(Fault { operation, path_part: ".log".to_owned(), skip: 0, kind });
        let mut times = 0;
        flush_beside(&mut log, threads, &mut |_| times += 1).expect_err("the disk says so");
        assert_eq!(times, 1);
    }
}

/// The log after some batches, its files, and the entries that were written while other work was
/// done.
fn written_by(workers: Workers) -> (View, Vec<Vec<u8>>, Vec<u64>) {
    let disk = SimStorage::new();
    let mut log = Log::create(disk.storage(), LARGE, owner(), Position::START, voters()).expect("creates");
    let (large, written) = (LARGE.beside_bytes_min, AtomicUsize::new(0));
    let mut beside = Vec::new();
    for (index, bytes) in (2..).zip([100, large, 2 * LARGE_WRITE_BYTES + 7, large / 2]) {
        let position = Position { index, term: 1 };
        let data = Bytes::from(vec![bytes as u8; bytes]);
        log.append(&[make_entry(EntryType::EntryNormal, position, data.clone())]);
        let mut meanwhile = |writing: &Writing<'_>| {
            assert_eq!(writing.commands, [(index, data.clone())]);
            beside.push(index);
            while (writing.goes_on)() {
                std::thread::yield_now();
            }
        };
        let count = |done: bool| {
            // The calls alternate: before a write, and after it.
            assert_eq!(written.fetch_add(1, Ordering::Relaxed) % 2 == 1, done);
        };
        log.flush(&mut Beside { workers, meanwhile: &mut meanwhile, writes: &count }).expect("flushes");
    }
    assert_eq!(written.into_inner(), 8);
    (view(&log), disk.files().iter().map(|name| content(&disk, name)).collect(), beside)
}

#[test]
fn large_batches_are_written_by_a_thread_and_are_the_same() {
    let alone = written_by(Workers::Inline);
    assert_eq!((alone.0.entries.len(), alone.2.as_slice()), (4, [3, 4].as_slice()));
    let beside = written_by(Workers::Threads(NonZero::<usize>::MIN));
    assert!(beside == alone, "beside {:?}", beside.2);
}

#[test]
fn only_proposed_commands_are_shown_while_they_are_written() {
    let disk = SimStorage::new();
    let mut log = create(&disk).expect("creates");
    let at = |index| Position { index, term: 1 };
    let data = |text: &'static str| Bytes::from_static(text.as_bytes());
    log.append(&[
        make_entry(EntryType::EntryNormal, at(2), Bytes::new()),
        make_entry(EntryType::EntryNormal, at(3), data("replaced")),
        make_entry(EntryType::EntryNormal, at(4), data("gone")),
    ]);
    log.append(&[
        make_entry(EntryType::EntryNormal, at(3), data("a")),
        make_entry(EntryType::EntryConfChangeV2, at(4), data("b")),
        make_entry(EntryType::EntryNormal, at(5), data("c")),
    ]);
    let mut shown = Vec::new();
    flush_beside(&mut log, Workers::Inline, &mut |writing| shown.extend_from_slice(writing.commands)).expect("flushes");
    assert_eq!(shown, [(3, data("a")), (5, data("c"))]);
}

#[test]
fn the_log_of_a_quiet_group_stays_short_and_grows_faster_as_it_grows() {
    let disk = SimStorage::new();
    let mut log = Log::create(disk.storage(), LARGE, owner(), Position::START, voters()).expect("a new log");
    let mut sizes = vec![log.disk_bytes()];
    let data = Bytes::from(vec![7; 16 << 10]);
    for index in 2..=400 {
        log.ensure_room(data.len()).expect("there is room");
        log.append(&[make_entry(EntryType::EntryNormal, Position { index, term: 1 }, data.clone())]);
        flush(&mut log).expect("there is room");
        if sizes.last() != Some(&log.disk_bytes()) {
            sizes.push(log.disk_bytes());
        }
    }
    let kib: Vec<u64> = sizes.iter().take(8).map(|bytes| bytes >> 10).collect();
    assert_eq!(kib, [0, 128, 256, 512, 1024, 2048, 3072, 4096]);
}

#[test]
fn an_almost_full_disk_has_room_for_what_an_entry_needs_without_a_whole_step() {
    let disk = SimStorage::new();
    let mut log = Log::create(disk.storage(), LARGE, owner(), Position::START, voters()).expect("a new log");
    disk.set_capacity(Some(disk.used_bytes() + (96 << 10)));
    log.ensure_room(1 << 10).expect("there is room for it");
    assert!(log.ensure_room(64 << 10).is_err_and(|error| error.kind() == coppice_types::ErrorKind::Exhausted));
    log.append(&[make_entry(EntryType::EntryNormal, Position { index: 2, term: 1 }, Bytes::from_static(b"x"))]);
    flush(&mut log).expect("its room was made");
}
