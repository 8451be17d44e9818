//! Anchors: which are accepted, and where the newest one is kept.

use crate::common::{Model, check::check, genesis_with_key, options};
use coppice_env::SimStorage;
use coppice_root::{AnchorPlace, AppendHeader, Command, Manifest, Refusal, Root, SnapshotReceiver, TakeOver, fsck};
use coppice_types::Reason;
use coppice_verify::{
    anchor::Anchor,
    header::{Body, Header},
};

/// A ledger of four versions.
fn founded(disk: &SimStorage) -> (Root, Model) {
    let mut root = Root::open_with(disk.storage(), options()).expect("new");
    let mut model = Model::new(12);
    let genesis = Some(genesis_with_key().encode());
    model.accept(&mut root, &Command::TakeOver(TakeOver { candidate: "c".to_owned(), clock_ms: 5, genesis }));
    commit(&mut root, &mut model, 4);
    (root, model)
}

fn commit(root: &mut Root, model: &mut Model, count: u64) {
    for _ in 0..count {
        let command = Command::AppendHeader(model.commit());
        model.accept(root, &command);
    }
}

fn with(append: &AppendHeader, edit: impl FnOnce(&mut Header)) -> AppendHeader {
    let mut header = Header::decode(&append.header).expect("a header");
    edit(&mut header);
    AppendHeader { header: header.encode(), ..append.clone() }
}

fn place(root: &Root) -> Option<(u64, u64)> {
    root.view().expect("founded").anchor.map(|AnchorPlace { sequence, stamped_size, .. }| (sequence.0, stamped_size))
}

#[test]
fn an_anchor_stamps_a_larger_prefix_of_this_log_than_the_one_before() {
    let (mut root, mut model) = founded(&SimStorage::new());
    assert_eq!(place(&root), None);
    let good = model.anchor(4);
    let edit_root = |header: &mut Header| {
        let Body::Anchor(Anchor::Stamps(stamps)) = &mut header.body else { panic!("an anchor") };
        stamps.root.0[0] ^= 1;
    };
    let leaf = model.leaves[2][0].clone();
    for (what, bad) in [
        ("another root", with(&good, edit_root)),
        ("another version", with(&good, |header| header.stamp.version.0 += 1)),
        ("another state", with(&good, |header| header.state_root.0[0] ^= 1)),
        ("an operation of the shards", with(&good, |header| header.admin_sequence += 1)),
        ("a leaf", AppendHeader { changed_leaves: vec![leaf], ..good.clone() }),
        ("a journal", AppendHeader { journal: vec![vec![0]], ..good.clone() }),
    ] {
        let refusal = model.refuse(&mut root, &Command::AppendHeader(bad));
        assert!(matches!(refusal.reason(), Reason::InvalidArgument | Reason::BaseMismatch), "{what}: {refusal}");
    }
    model.accept(&mut root, &Command::AppendHeader(good));
    assert_eq!(place(&root), Some((5, 4)));
    for size in [3, 4] {
        let again = model.anchor(size);
        let refusal = model.refuse(&mut root, &Command::AppendHeader(again));
        assert!(matches!(refusal, Refusal::Anchor("the stamped log is no larger than the one before")), "{refusal}");
    }
    let next = Command::AppendHeader(model.anchor(6));
    model.accept(&mut root, &next);
    // A chain of certificates is no stamp.
    let chain = Body::Anchor(Anchor::Chain(vec![b"certificate".to_vec()]));
    let chain = Command::AppendHeader(model.plain(chain));
    model.accept(&mut root, &chain);
    assert_eq!(place(&root), Some((6, 6)));
    check(&root, &mut model);
}

#[test]
fn the_newest_anchor_survives_restart_replay_snapshot_and_rollback() {
    let disk = SimStorage::new();
    let (mut root, mut model) = founded(&disk);
    let command = Command::AppendHeader(model.anchor(5));
    model.accept(&mut root, &command);
    root.flush(model.position()).expect("flushes");
    // Enough commands for a saved state, then one more anchor that only the journal holds.
    while model.size() < 300 {
        commit(&mut root, &mut model, 1);
    }
    root.flush(model.position()).expect("flushes");
    let command = Command::AppendHeader(model.anchor(299));
    model.accept(&mut root, &command);
    let back = Command::AppendHeader(model.rollback(3));
    model.accept(&mut root, &back);
    root.flush(model.position()).expect("flushes");
    let expected = Some((300, 299));
    assert_eq!(place(&root), expected, "a rollback takes back versions, and no entry of the log");
    drop(root);
    assert!(fsck::fsck(&disk.storage()).expect("runs").is_clean());
    let mut root = Root::open_with(disk.storage(), options()).expect("opens again");
    assert_eq!(place(&root), expected);
    let manifest = root.pin_snapshot(model.position()).expect("pins");
    let state = manifest.files.iter().find(|file| file.name.starts_with("state/")).expect("a state").name.clone();
    assert_eq!(root.read_snapshot(manifest.id, &state, 0, 8).expect("reads"), b"copstt05");
    let other = SimStorage::new();
    let mut receiver =
        SnapshotReceiver::new(other.storage(), Manifest::decode(&manifest.encode()).expect("decodes")).expect("begins");
    while let Some((name, offset)) = receiver.next().map(|(name, offset)| (name.to_owned(), offset)) {
        let bytes = root.read_snapshot(manifest.id, &name, offset, 4000).expect("reads");
        receiver.write(&name, offset, &bytes).expect("writes");
    }
    receiver.finish().expect("it is whole");
    let mut copy = Root::open_with(other.storage(), options()).expect("opens");
    assert_eq!(place(&copy), expected);
    let stale = Command::AppendHeader(model.anchor(299)).encode().expect("within limits");
    let outcome = copy.apply(model.index + 1, &stale).expect("applies");
    assert!(matches!(outcome, coppice_root::Outcome::Refused(Refusal::Anchor(_))), "{outcome:?}");
}
