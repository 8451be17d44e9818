//! Ledgers of members: their numbers have no gaps, and nothing takes journals back.

use crate::common::{Model, check::check, genesis_with_ledgers, options};
use coppice_env::SimStorage;
use coppice_root::{Command, Manifest, Refusal, Root, SnapshotReceiver, TakeOver, fsck};
use coppice_types::{ClusterId, Digest, Epoch, LedgerId, MemberId, Reason, ShardId, Version};
use coppice_verify::{
    journal::{AppendEntry, BatchEntry, Entry, HeadEntry, MergeEntry},
    ledgers::Signed,
};

fn founded(disk: &SimStorage) -> (Root, Model) {
    let mut root = Root::open_with(disk.storage(), options()).expect("new");
    let mut model = Model::new(12);
    let genesis = Some(genesis_with_ledgers().encode());
    model.accept(&mut root, &Command::TakeOver(TakeOver { candidate: "c".to_owned(), clock_ms: 5, genesis }));
    (root, model)
}

fn shards() -> Vec<(ShardId, Digest)> {
    vec![(ShardId(0), Digest([1; 32]))]
}

fn append(seed: u8, first_jsn: u64, count: u32) -> Entry {
    let ledger = LedgerId([seed; 16]);
    let signed = Signed {
        cluster: ClusterId([7; 16]),
        ledger,
        member: MemberId([2; 16]),
        agent: None,
        lane: 0,
        number: 1,
        epoch: Epoch(0),
        seen_size: 1,
        seen_root: Digest([6; 32]),
        conditions: Vec::new(),
        items: count,
        items_root: Digest([8; 32]),
    };
    let (signed, signature, leaves_root) = (signed.encode(), [3; 64], Digest([4; 32]));
    Entry::Append(AppendEntry { ledger, signed, signature, first_jsn, count, leaves_root, shards: shards() })
}

fn head(seed: u8, size_before: u64, size: u64) -> Entry {
    let (ledger, root) = (LedgerId([seed; 16]), Digest([5; 32]));
    Entry::Head(HeadEntry { ledger, size_before, size, root, shards: shards() })
}

fn commit(root: &mut Root, model: &mut Model, journal: Vec<Entry>) {
    let command = Command::AppendHeader(model.commit_journal(journal));
    model.accept(root, &command);
}

fn refused(root: &mut Root, model: &mut Model, journal: Vec<Entry>) -> String {
    let command = Command::AppendHeader(model.commit_journal(journal));
    let refusal = model.refuse(root, &command);
    assert_eq!(refusal.reason(), Reason::InvalidArgument, "{refusal}");
    refusal.to_string()
}

#[test]
fn a_version_that_does_not_continue_its_ledgers_is_refused() {
    let (mut root, mut model) = founded(&SimStorage::new());
    let continues = "journal entry 0 does not fit: an append that does not continue its ledger";
    assert_eq!(refused(&mut root, &mut model, vec![append(1, 1, 1), head(1, 0, 2)]), continues);
    commit(
        &mut root,
        &mut model,
        vec![append(1, 0, 3), append(2, 0, 1), append(1, 3, 1), head(1, 0, 4), head(2, 0, 1)],
    );
    for (journal, why) in [
        (vec![append(1, 3, 1), head(1, 4, 5)], continues),
        (vec![append(1, 5, 1), head(1, 4, 6)], continues),
        (vec![append(1, 4, 1)], "the header's heads of ledgers does not fit what came with it"),
        (
            vec![append(1, 4, 1), head(1, 4, 6)],
            "journal entry 1 does not fit: a head of another size than its appends lead to",
        ),
        (vec![head(2, 1, 2)], "journal entry 0 does not fit: a head of another size than its appends lead to"),
        (
            vec![append(1, 4, 1), append(2, 1, 1), head(2, 1, 2), head(1, 4, 5)],
            "journal entry 3 does not fit: heads that are not in the order of their ledgers",
        ),
        (
            vec![append(1, 4, 1), head(1, 4, 5), append(2, 1, 1), head(2, 1, 2)],
            "journal entry 2 does not fit: out of order",
        ),
    ] {
        assert_eq!(refused(&mut root, &mut model, journal), why);
    }
    let batch = || Entry::Batch(BatchEntry { session: None, metadata: Digest([6; 32]), shards: shards() });
    let inputs = vec![Digest([7; 32]), Digest([8; 32])];
    let merge = Entry::Merge(MergeEntry { shard: ShardId(0), inputs, output: Digest([9; 32]) });
    commit(&mut root, &mut model, vec![append(2, 1, 2), batch(), append(9, 0, 1), head(2, 1, 3), head(9, 0, 1), merge]);
    check(&root, &mut model);
}

#[test]
fn a_cluster_without_ledgers_has_no_entries_of_them() {
    let mut root = Root::open_with(SimStorage::new().storage(), options()).expect("new");
    let mut model = Model::founded(13, &mut root);
    let why = "journal entry 0 does not fit: of a kind that the ledger does not have";
    assert_eq!(refused(&mut root, &mut model, vec![append(1, 0, 1), head(1, 0, 1)]), why);
    assert_eq!(refused(&mut root, &mut model, vec![head(1, 0, 1)]), why);
}

#[test]
fn no_rollback_takes_journals_back() {
    let (mut root, mut model) = founded(&SimStorage::new());
    let plain = |root: &mut Root, model: &mut Model| {
        let command = Command::AppendHeader(model.commit());
        model.accept(root, &command);
    };
    (0..3).for_each(|_| plain(&mut root, &mut model));
    commit(&mut root, &mut model, vec![append(1, 0, 1), head(1, 0, 1)]);
    (0..3).for_each(|_| plain(&mut root, &mut model));
    assert_eq!(root.view().expect("founded").ledger_floor, Version(4));
    for target in [0, 3] {
        let command = Command::AppendHeader(model.rollback(target));
        let refusal = model.refuse(&mut root, &command);
        assert_eq!(refusal, Refusal::LedgerFloor { target: Version(target), floor: Version(4) });
        assert_eq!(refusal.reason(), Reason::LedgerFloor);
    }
    let command = Command::AppendHeader(model.rollback(4));
    model.accept(&mut root, &command);
    commit(&mut root, &mut model, vec![append(1, 1, 1), head(1, 1, 2)]);
    assert_eq!(root.view().expect("founded").ledger_floor, Version(5));
}

#[test]
fn sizes_and_floor_survive_restart_replay_and_snapshot() {
    let disk = SimStorage::new();
    let (mut root, mut model) = founded(&disk);
    commit(&mut root, &mut model, vec![append(1, 0, 3), head(1, 0, 3)]);
    root.flush(model.position()).expect("flushes");
    while model.size() < 300 {
        let command = Command::AppendHeader(model.commit());
        model.accept(&mut root, &command);
    }
    root.flush(model.position()).expect("flushes");
    // Only the journal holds this one.
    commit(&mut root, &mut model, vec![append(1, 3, 2), append(4, 0, 1), head(1, 3, 5), head(4, 0, 1)]);
    root.flush(model.position()).expect("flushes");
    let floor = model.head().version;
    drop(root);
    assert!(fsck::fsck(&disk.storage()).expect("runs").is_clean());
    let mut root = Root::open_with(disk.storage(), options()).expect("opens again");
    assert_eq!(root.view().expect("founded").ledger_floor, floor);
    let manifest = root.pin_snapshot(model.position()).expect("pins");
    let other = SimStorage::new();
    let mut receiver =
        SnapshotReceiver::new(other.storage(), Manifest::decode(&manifest.encode()).expect("decodes")).expect("begins");
    while let Some((name, offset)) = receiver.next().map(|(name, offset)| (name.to_owned(), offset)) {
        let bytes = root.read_snapshot(manifest.id, &name, offset, 4000).expect("reads");
        receiver.write(&name, offset, &bytes).expect("writes");
    }
    receiver.finish().expect("it is whole");
    let copy = Root::open_with(other.storage(), options()).expect("opens");
    for mut root in [root, copy] {
        assert_eq!(root.view().expect("founded").ledger_floor, floor);
        for first in [3, 4, 6] {
            let stale = model.commit_journal(vec![append(1, first, 1), head(1, 5, 6)]);
            let bytes = Command::AppendHeader(stale).encode().expect("within limits");
            model.index += 1;
            let outcome = root.apply(model.index, &bytes).expect("applies");
            assert!(matches!(outcome, coppice_root::Outcome::Refused(Refusal::Journal { .. })), "{outcome:?}");
        }
        let next = model.commit_journal(vec![append(1, 5, 1), head(1, 5, 6)]);
        model.index += 1;
        let outcome = root.apply(model.index, &Command::AppendHeader(next).encode().expect("within limits"));
        assert!(matches!(outcome, Ok(coppice_root::Outcome::Appended { .. })), "{outcome:?}");
    }
}
