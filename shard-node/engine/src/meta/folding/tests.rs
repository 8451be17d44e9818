use coppice_env::SimStorage;
use coppice_types::{Digest, Epoch, codec::Error as CodecError};

use super::*;
use crate::{
    Engine, Error, Options, ShardState,
    files::values::file_name,
    fsck,
    meta::{MetaOp, rows::encode_rows},
    place::{page::PageFile, refs::ValueRef},
    testing::{commit, create_with, flush, merge, options, put, small, stage, used},
};

const VERSIONS: u64 = 40;

/// Options that leave two or three rows in the table, and two in each block.
fn folding() -> Options {
    Options { rows_held_min: 2, ..options() }
}

/// An engine with 40 versions, frozen trees and installed merges. Nothing was pruned. With rows
/// folded, most of them are in blocks.
fn engine(sim: &SimStorage, options: Options) -> Engine {
    let mut engine = create_with(sim, small(), options);
    for version in 1..=VERSIONS {
        commit(&mut engine, version, vec![put(&key(version), 20), put("each", version as usize)]);
        if version % 3 == 0 {
            merge(&mut engine);
            flush(&mut engine, version);
        }
    }
    flush(&mut engine, VERSIONS);
    engine
}

fn key(version: u64) -> String {
    format!("{:03}", version * 37 % 101)
}

fn reopen(sim: &SimStorage, engine: Engine) -> Engine {
    drop(engine);
    assert_clean(sim);
    Engine::open(sim.storage(), folding()).expect("a sound directory")
}

fn assert_clean(sim: &SimStorage) {
    let report = fsck(sim.storage()).expect("a directory");
    assert!(report.is_clean(), "{report:?}");
}

/// Pages in use, and live bytes without those of blocks.
fn used_by_versions(engine: &Engine) -> ([u64; 3], u64) {
    let (pages, live) = used(engine);
    let blocks: u64 = engine.meta.blocks.values().map(|block| record_bytes(block.at.len)).sum();
    (pages, live - blocks)
}

/// Checks that exactly these versions can be read, by number and by name.
fn check_reads(engine: &Engine, oldest: u64, newest: u64) {
    for version in 0..=newest {
        let view = engine.view_at(Version(version));
        if version < oldest {
            assert!(matches!(view, Err(Error::Pruned { .. })), "{version}");
            continue;
        }
        let view = view.expect("it is kept");
        assert_eq!(view.stamp().version, Version(version));
        let value = view.get(b"each", true).expect("sound pages").and_then(|record| record.value);
        assert_eq!(value, (version > 0).then(|| vec![version as u8; version as usize]));
        let state = view.state();
        assert!(engine.has(&state).expect("readable"));
        let other = ShardState { version: Version(version), digest: Digest([9; 32]) };
        assert!(!engine.has(&other).expect("readable"));
        let before = view.before(Version(version)).expect("readable");
        assert_eq!(
            before.map(|view| view.stamp().version.0),
            version.checked_sub(1).filter(|before| *before >= oldest)
        );
    }
    assert_eq!(engine.disk_usage().expect("readable").versions, newest - oldest + 1);
}

#[test]
fn every_version_is_read_from_its_block_as_from_the_table() {
    let sim = SimStorage::new();
    let engine = engine(&sim, folding());
    assert!(engine.meta.blocks.len() >= 18 && engine.meta.versions.len() <= 3, "{:?}", engine.meta.versions.keys());
    check_reads(&engine, 0, VERSIONS);
    check_reads(&reopen(&sim, engine), 0, VERSIONS);
}

#[test]
fn rows_are_read_before_their_block_is_durable() {
    let mut engine = create_with(&SimStorage::new(), small(), folding());
    (1..=9).for_each(|version| commit(&mut engine, version, vec![put("each", version as usize)]));
    let writes = engine.begin_flush(crate::Position { index: 1, term: 1 }, b"").expect("room");
    assert!(!engine.meta.blocks.is_empty());
    check_reads(&engine, 0, 9);
    engine.end_writes(writes).expect("a flush that did not run is given up");
    check_reads(&engine, 0, 9);
}

#[test]
fn a_prune_to_any_version_frees_what_it_frees_with_all_rows_in_the_table() {
    for to in 0..=VERSIONS {
        let sim = SimStorage::new();
        let [mut folded, mut held] = [engine(&sim, folding()), engine(&SimStorage::new(), options())];
        for engine in [&mut folded, &mut held] {
            // The first prune leaves rows at the old end that the second one takes.
            engine.prune(Version(to / 2)).expect("usable");
            engine.prune(Version(to)).expect("usable");
        }
        assert!(held.meta.blocks.is_empty());
        assert_eq!(used_by_versions(&folded), used_by_versions(&held), "to {to}");
        check_reads(&folded, to, VERSIONS);
        flush(&mut folded, 99);
        let folded = reopen(&sim, folded);
        check_reads(&folded, to, VERSIONS);
        let pages = PageFile::ALL.map(|file| folded.meta.space(file).used_pages());
        assert_eq!(pages, used(&held).0, "to {to}");
    }
}

#[test]
fn a_rollback_to_any_version_frees_what_it_frees_with_all_rows_in_the_table() {
    for to in 0..=VERSIONS {
        let sim = SimStorage::new();
        let [mut folded, mut held] = [engine(&sim, folding()), engine(&SimStorage::new(), options())];
        for engine in [&mut folded, &mut held] {
            stage(engine, VERSIONS + 5, vec![put("staged", 9)]);
            engine.rollback(Version(to), Epoch(1)).expect("it is kept");
        }
        assert_eq!(folded.decided(), held.decided());
        assert_eq!(used_by_versions(&folded), used_by_versions(&held), "to {to}");
        check_reads(&folded, 0, to);
        // New versions take the place of those that are gone, in blocks of their own.
        let base = folded.decided();
        for version in to + 1..=to + 5 {
            let base = if version == to + 1 { base } else { folded.decided() };
            let request = [put("each", version as usize)];
            let state = crate::testing::stage_on(&mut folded, base, version, 900 + version, &request);
            folded.settle(&state.expect("it follows")).expect("it is staged");
            flush(&mut folded, 100 + version);
        }
        check_reads(&reopen(&sim, folded), 0, to + 5);
    }
}

#[test]
fn a_replay_of_prunes_and_rollbacks_reads_no_block() {
    let sim = SimStorage::new();
    let options = Options { meta_compaction_bytes_min: u64::MAX, segment_bytes_max: 1000, ..folding() };
    let mut engine = engine(&sim, options);
    let file = engine.superblock.meta_file;
    engine.prune(Version(11)).expect("usable");
    engine.rollback(Version(30), Epoch(1)).expect("it is kept");
    let blocks: Vec<u32> = engine.meta.blocks.values().map(|block| block.at.at.segment).collect();
    for version in 31..=60 {
        commit_in(&mut engine, version);
        engine.prune(Version(version)).expect("usable");
        flush(&mut engine, 100 + version);
    }
    assert_eq!(engine.superblock.meta_file, file, "the log has all operations");
    // The newest segment of rows takes more of them.
    let newest = *blocks.iter().max().expect("there were blocks");
    assert!(blocks.iter().filter(|segment| **segment < newest).count() > 5, "{blocks:?}");
    for segment in blocks.into_iter().filter(|segment| *segment < newest) {
        assert!(!sim.files().contains(&file_name(segment)), "what the log once named is gone");
    }
    let decided = engine.decided();
    assert_eq!(reopen(&sim, engine).decided(), decided);
}

fn commit_in(engine: &mut Engine, version: u64) {
    let base = engine.decided();
    let state = crate::testing::stage_on(engine, base, version, 500 + version, &[put("each", version as usize)]);
    engine.settle(&state.expect("it follows")).expect("it is staged");
}

/// An engine that was opened again after a bit of a block's record was flipped, and that block.
fn damaged(sim: &SimStorage, nth: usize) -> (Engine, Block) {
    let engine = engine(sim, folding());
    let block = engine.meta.blocks.values().nth(nth).expect("there are more").clone();
    drop(engine);
    sim.flip_bit(&file_name(block.at.at.segment), u64::from(block.at.at.offset) + 40, 3);
    (Engine::open(sim.storage(), folding()).expect("the table is sound"), block)
}

fn is_of<T>(block: &Block, found: &Result<T, Error>) -> bool {
    matches!(found, Err(Error::Corrupted { file, page: Some(at), .. })
        if *file == file_name(block.at.at.segment) && *at == u64::from(block.at.at.offset))
}

#[test]
fn a_damaged_block_is_named_and_never_becomes_an_answer() {
    let sim = SimStorage::new();
    let (engine, block) = damaged(&sim, 5);
    for version in block.first.version.0..=block.last.version.0 {
        assert!(is_of(&block, &engine.view_at(Version(version)).map(|_| ())));
        assert!(is_of(&block, &engine.has(&ShardState { version: Version(version), digest: Digest([9; 32]) })));
    }
    assert!(engine.view_at(block.last.version.next()).is_ok(), "other blocks are sound");
    drop(engine);
    let findings = fsck(sim.storage()).expect("a directory").findings;
    assert!(
        findings.iter().any(|finding| finding.to_string().contains(&file_name(block.at.at.segment))),
        "{findings:?}"
    );
}

#[test]
fn the_scrubber_finds_a_damaged_block() {
    let (mut engine, block) = damaged(&SimStorage::new(), 5);
    let found = (0..10_000).find_map(|_| engine.scrub(500).err());
    assert!(is_of(&block, &found.map_or(Ok(()), Err)));
}

#[test]
fn a_prune_or_rollback_that_cannot_read_a_block_changes_nothing() {
    let (mut engine, block) = damaged(&SimStorage::new(), 5);
    let before = (used(&engine), engine.decided(), engine.meta.blocks.clone(), engine.unflushed_bytes());
    for to in [block.first.version, block.last.version, Version(VERSIONS)] {
        assert!(is_of(&block, &engine.prune(to)), "{to}");
    }
    for to in [block.first.version, Version(block.first.version.0 - 1), Version(0)] {
        assert!(is_of(&block, &engine.rollback(to, Epoch(1))), "{to}");
    }
    assert_eq!((used(&engine), engine.decided(), engine.meta.blocks.clone(), engine.unflushed_bytes()), before);
    engine.prune(Version(block.first.version.0 - 1)).expect("it does not need the block");
    engine.rollback(block.last.version.next(), Epoch(1)).expect("it does not need the block");
}

/// A block's content as it is stored.
fn content(engine: &Engine, block: &Block) -> Vec<u8> {
    encode_rows(&engine.store.read_rows(block).expect("sound").iter().collect::<Vec<_>>())
}

#[test]
fn content_of_another_block_or_a_part_of_it_is_refused() {
    let engine = engine(&SimStorage::new(), folding());
    let blocks: Vec<&Block> = engine.meta.blocks.values().collect();
    let own = content(&engine, blocks[3]);
    assert!(blocks[3].decode_rows(&own).is_ok());
    assert_eq!(blocks[4].decode_rows(&own).err(), Some(CodecError::Malformed("rows of another block")));
    assert!((0..own.len()).all(|end| blocks[3].decode_rows(&own[..end]).is_err()));
    assert!(blocks[3].decode_rows(&[own.as_slice(), &[0]].concat()).is_err());
    let more = Block { count: 3, ..blocks[3].clone() };
    assert!(more.decode_rows(&own).is_err());
}

#[test]
fn trees_that_two_rows_share_are_stored_once() {
    let engine = engine(&SimStorage::new(), folding());
    let rows: Vec<&VersionRecord> = vec![engine.meta.tip(); 2];
    assert!(rows[0].trees.len() >= 2, "{:?}", rows[0].trees);
    let [one, two] = [1, 2].map(|count| encode_rows(&rows[..count]).len());
    assert!(two - one < one - 100, "{one}, {two}");
}

#[test]
fn operations_on_blocks_that_do_not_fit_the_table_are_refused() {
    let sim = SimStorage::new();
    let mut engine = engine(&sim, folding());
    let at = BlobRef { at: ValueRef { segment: 0, offset: 0 }, len: 9 };
    let tip = engine.meta.tip().clone();
    let oldest = engine.meta.blocks.values().next().expect("one").clone();
    let rows = engine.store.read_rows(&oldest).expect("sound");
    let unknown = Version(1 << 40);
    let refused = [
        MetaOp::Fold { first: tip.id, last: tip.id, at },
        MetaOp::Fold { first: oldest.first.id, last: oldest.last.id, at },
        MetaOp::Fold { first: tip.parent, last: oldest.first.id, at },
        MetaOp::Unfold(Vec::new()),
        MetaOp::Unfold(vec![tip]),
        MetaOp::Unfold(rows[..1].to_vec()),
        MetaOp::PruneBlock(unknown, Delta::default()),
        MetaOp::DropBlock(unknown, Delta::default()),
        MetaOp::Prune(oldest.first.version),
    ];
    for operation in refused {
        let what = format!("{operation:?}");
        assert!(engine.meta.apply(operation).is_err(), "{what}");
    }
    assert_eq!(engine.meta.apply(MetaOp::Unfold(rows)), Ok(()));
}

#[test]
fn a_table_with_blocks_out_of_order_or_without_their_segment_is_refused() {
    type Breaks = fn(&mut Meta, Version);
    let changes: [(&str, Breaks); 5] = [
        ("above the tip", |meta, first| block(meta, first).last.version = meta.tip().stamp.version),
        ("over the next block", |meta, first| block(meta, first).last.id += 2),
        ("over a row", |meta, first| {
            meta.decided.insert(first, 0);
        }),
        ("no segment", |meta, first| block(meta, first).at.at.segment = 1 << 20),
        ("too long", |meta, first| block(meta, first).at.len = u32::MAX),
    ];
    for (what, change) in changes {
        let mut engine = engine(&SimStorage::new(), folding());
        assert_eq!(engine.meta.check(), Ok(()));
        let first = *engine.meta.blocks.keys().nth(3).expect("one");
        change(&mut engine.meta, first);
        assert!(engine.meta.check().is_err(), "{what}");
    }
}

fn block(meta: &mut Meta, first: Version) -> &mut Block {
    meta.blocks.get_mut(&first).expect("it is there")
}
