use coppice_env::SimStorage;
use coppice_types::{Change, Operation, Stamp, Term};

use super::*;
use crate::{
    Engine, Options, PrepareId, StageRequest,
    place::{refs::ValueRef, space::Limbo},
    testing,
};

/// An engine with a decided version and one staged on it.
fn with_staged(sim: &SimStorage) -> Engine {
    let mut engine =
        Engine::create(sim.storage(), ShardId(0), Params::default(), Options::default()).expect("an empty directory");
    let put = |byte| vec![Operation { key: b"key".to_vec().into(), change: Change::Put(vec![byte; 300].into()) }];
    testing::commit(&mut engine, 1, put(1));
    testing::stage(&mut engine, 2, put(2));
    engine
}

/// A table from a peer is checked when it is received. A broken one would stop the engine later.
#[test]
fn a_table_that_no_engine_comes_to_is_refused() {
    type Breaks = fn(&mut Meta);
    let broken: [(&str, Breaks); 12] = [
        ("next number", |meta| meta.next_id = NUMBER_MAX),
        ("generation", |meta| meta.generation = NUMBER_MAX),
        ("epoch", |meta| meta.epoch = Epoch(u64::MAX)),
        ("boundary", |meta| meta.boundary = Version(u64::MAX)),
        ("freezes", |meta| meta.versions.values_mut().for_each(|version| version.freezes = u64::MAX)),
        ("stamp", |meta| meta.versions.values_mut().for_each(|version| version.stamp.version = Version(u64::MAX))),
        ("pages", |meta| meta.spaces[1].high = 1 << 48),
        ("waiting for ever", |meta| {
            meta.spaces[1].limbo.push_front(Limbo { generation: u64::MAX, start: 0, len: 1 });
        }),
        ("segment end", |meta| meta.segments.values_mut().for_each(|segment| segment.end = u64::MAX)),
        ("segment dead", |meta| meta.segments.values_mut().for_each(|segment| segment.dead_at = Some(u64::MAX))),
        ("segment number", |meta| {
            meta.segments.insert(u32::MAX, Segment::default());
        }),
        ("staged on the past", |meta| {
            let staged = *meta.staged.first().expect("one is staged");
            meta.versions.get_mut(&staged).expect("it is there").parent = 0;
        }),
    ];
    for (what, change) in broken {
        let sim = SimStorage::new();
        let mut engine = with_staged(&sim);
        assert_eq!(engine.meta.check(), Ok(()));
        assert_eq!(engine.meta.decided.len(), 2);
        change(&mut engine.meta);
        assert!(engine.meta.check().is_err(), "{what}");
    }
}

/// No request leads an engine to such a table either.
#[test]
fn numbers_of_a_table_that_would_be_refused_are_refused() {
    let mut engine = with_staged(&SimStorage::new());
    let (decided, max) = (engine.decided(), Version(u64::MAX));
    assert!(engine.rollback(max, Epoch(1)).is_err() && engine.rollback(Version(0), Epoch(NUMBER_MAX)).is_err());
    assert!(engine.prune(max).is_err() && engine.prune(Version(NUMBER_MAX)).is_err());
    for stamp in [Stamp::new(0, NUMBER_MAX), Stamp::new(NUMBER_MAX, 3)] {
        let prepare_id = PrepareId { term: Term(2), attempt: 1 };
        let request = StageRequest { stamp, prepare_id, base: decided, merges: &[], operations: &[], erases: &[] };
        assert!(engine.stage(&request).is_err());
    }
    assert_eq!((engine.decided(), engine.boundary(), engine.staged().len()), (decided, Version(0), 1));
    engine.rollback(Version(NUMBER_MAX - 1), Epoch(1)).expect("there is nothing above");
    assert_eq!(engine.meta.check(), Ok(()));
}

/// The kept nodes and patches form runs of various lengths between gaps of one or more pages.
#[test]
fn what_is_given_up_at_once_is_free_as_if_given_up_one_by_one() {
    for kept in [vec![], vec![0], vec![3, 4, 9], (0..40).filter(|at| at % 5 < 2).collect(), (0..40).collect()] {
        let metas = [true, false].map(|at_once| {
            let mut meta = Meta::empty(ShardId(0), Params::default());
            let mut given_up = Delta::default();
            let mut page = None;
            for at in 0..40 {
                let pids = [
                    meta.allocate(PageFile::Index, 1 + at % 4),
                    meta.allocate(PageFile::Data, 1 + at / 7 % 2),
                    meta.allocate_patch(page.map(|page| (page, (at % 3) as u8))),
                ];
                page = Some(pids[2].first()).filter(|_| at % 3 < 2);
                given_up.allocated.extend(pids.iter().filter(|_| !kept.contains(&at)));
            }
            given_up.allocated.reverse();
            if at_once {
                meta.discard_all(&given_up);
            } else {
                given_up.allocated.iter().for_each(|pid| meta.discard(*pid));
            }
            meta
        });
        let [at_once, one_by_one] = &metas;
        assert_eq!(at_once.spaces, one_by_one.spaces);
        assert_eq!(at_once.patches, one_by_one.patches);
        assert_eq!(at_once.reserved, one_by_one.reserved);
        assert_eq!(at_once.freed, one_by_one.freed);
        assert_eq!(at_once.spaces[0].used_pages() == 0, kept.is_empty());
    }
}

fn refused(meta: &mut Meta, operation: MetaOp) -> &'static str {
    meta.apply(operation).expect_err("it does not fit").0
}

/// A version on a base, as a log might name it.
fn record(meta: &Meta, parent: VersionId) -> VersionRecord {
    let base = &meta.versions[&parent];
    VersionRecord {
        id: meta.next_id(),
        parent,
        decided: false,
        installs: Vec::new(),
        delta: Delta::default(),
        ..base.clone()
    }
}

/// A merge of nothing with this number.
fn merge_record(id: MergeId) -> MergeRecord {
    let output = Tree::empty();
    MergeRecord { id, inputs: vec![], older: vec![], output, delta: Delta::default(), installed_by: 0 }
}

#[test]
fn a_version_follows_the_tip_or_a_staged_one_with_a_new_number() {
    let mut meta = with_staged(&SimStorage::new()).meta;
    let (tip, staged) = (meta.tip().id, *meta.staged.first().expect("one"));
    for parent in [0, tip, staged] {
        let follows = parent != 0;
        let sound = record(&meta, parent);
        let used = VersionRecord { id: staged, ..sound.clone() };
        let decided = VersionRecord { decided: true, ..sound.clone() };
        assert_eq!(refused(&mut meta, MetaOp::AddVersion(used)), "a version that does not follow");
        assert_eq!(refused(&mut meta, MetaOp::AddVersion(decided)), "a version that does not follow");
        assert_eq!(meta.apply(MetaOp::AddVersion(sound)).is_ok(), follows, "on {parent}");
    }
    let unknown = VersionRecord { installs: vec![99], ..record(&meta, tip) };
    assert_eq!(refused(&mut meta, MetaOp::AddVersion(unknown)), "an unknown merge is installed");
}

#[test]
fn versions_are_settled_in_order_and_once() {
    let mut meta = with_staged(&SimStorage::new()).meta;
    let staged = *meta.staged.first().expect("one");
    let child = record(&meta, staged);
    let id = child.id;
    meta.apply(MetaOp::AddVersion(child)).expect("it follows");
    assert_eq!(refused(&mut meta, MetaOp::Settle(99)), "a version is settled that is not staged");
    let mut broken = with_staged(&SimStorage::new()).meta;
    broken.apply(MetaOp::AddVersion(record(&broken, staged))).expect("it follows");
    assert_eq!(refused(&mut broken, MetaOp::Settle(id)), "a version is settled before its base");
    [staged, id].into_iter().for_each(|id| meta.apply(MetaOp::Settle(id)).expect("in order"));
    assert_eq!(refused(&mut meta, MetaOp::Settle(id)), "a version is settled that is not staged");
}

#[test]
fn a_page_is_allocated_once() {
    let mut meta = with_staged(&SimStorage::new()).meta;
    let staged = *meta.staged.first().expect("one");
    let pid = meta.allocate(PageFile::Data, 2);
    let delta = Delta { allocated: vec![pid], ..Delta::default() };
    let one = VersionRecord { delta: delta.clone(), ..record(&meta, staged) };
    meta.apply(MetaOp::AddVersion(one)).expect("it is reserved");
    let again = VersionRecord { delta, ..record(&meta, staged) };
    assert_eq!(refused(&mut meta, MetaOp::AddVersion(again)), "a page is allocated twice");
}

#[test]
fn a_value_is_freed_once_and_none_comes_to_a_dead_segment() {
    let mut meta = with_staged(&SimStorage::new()).meta;
    let staged = *meta.staged.first().expect("one");
    meta.versions.get_mut(&staged).expect("it is staged").delta.allocate_value(0, 10_000);
    assert_eq!(refused(&mut meta, MetaOp::DropVersion(staged)), "a value is freed twice");
    meta.segments.insert(7, Segment { end: 100, live: 0, dead_at: Some(1) });
    let mut delta = Delta::default();
    delta.allocate_value(7, 100);
    let record = VersionRecord { delta, ..record(&meta, meta.tip().id) };
    assert_eq!(refused(&mut meta, MetaOp::AddVersion(record)), "a dead segment takes a value");
}

#[test]
fn a_merge_is_dropped_once_and_not_while_a_version_has_it() {
    let mut meta = with_staged(&SimStorage::new()).meta;
    assert_eq!(refused(&mut meta, MetaOp::AddMerge(merge_record(0))), "a merge that does not follow");
    let [one, other] = [0; 2].map(|_| {
        let id = meta.next_id();
        meta.apply(MetaOp::AddMerge(merge_record(id))).expect("it follows");
        id
    });
    let tip = meta.tip().id;
    let version = VersionRecord { installs: vec![one], ..record(&meta, tip) };
    let id = version.id;
    meta.apply(MetaOp::AddVersion(version)).expect("it follows");
    assert_eq!(meta.merges[&one].installed_by, 1);
    meta.apply(MetaOp::DropMerge(other)).expect("no version has it");
    assert_eq!(refused(&mut meta, MetaOp::DropMerge(other)), "an unknown merge is dropped");
    meta.apply(MetaOp::DropVersion(id)).expect("it is staged");
    assert_eq!(meta.merges[&one].installed_by, 0);
    meta.apply(MetaOp::DropMerge(one)).expect("no version has it any more");
}

#[test]
fn the_last_decided_version_stays() {
    let mut meta = with_staged(&SimStorage::new()).meta;
    meta.prune(Version(1)).expect("it fits");
    let tip = meta.tip().id;
    assert_eq!(refused(&mut meta, MetaOp::DropVersion(tip)), "the last decided version is dropped");
}

#[test]
fn a_journal_is_that_of_a_staged_version_and_its_only_one() {
    let mut meta = with_staged(&SimStorage::new()).meta;
    let (tip, staged) = (meta.tip().id, *meta.staged.first().expect("one"));
    let blob = BlobRef { at: ValueRef { segment: 1, offset: 0 }, len: 9 };
    meta.apply(MetaOp::KeepJournal(staged, blob)).expect("it has none");
    let what = "a journal of a version that has one, or is decided";
    assert_eq!(refused(&mut meta, MetaOp::KeepJournal(staged, blob)), what);
    assert_eq!(refused(&mut meta, MetaOp::KeepJournal(tip, blob)), what);
    assert_eq!(refused(&mut meta, MetaOp::KeepJournal(99, blob)), "a journal of an unknown version");
}
