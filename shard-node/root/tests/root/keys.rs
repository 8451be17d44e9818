//! Key changes: which are accepted, which parts of them are kept, and where.

use crate::common::{Model, check::check, genesis_with_key, options, signer};
use coppice_env::SimStorage;
use coppice_root::{AppendHeader, Command, Error, Manifest, Refusal, Root, SnapshotReceiver, TakeOver, fsck};
use coppice_types::{Reason, Sequence};
use coppice_verify::{
    header::{Body, Header},
    keys::KeyChange,
};

/// A ledger of four versions, founded under key 0.
fn founded(disk: &SimStorage) -> (Root, Model) {
    let mut root = Root::open_with(disk.storage(), options()).expect("new");
    let mut model = Model::new(11);
    let genesis = Some(genesis_with_key().encode());
    model.accept(&mut root, &Command::TakeOver(TakeOver { candidate: "c".to_owned(), clock_ms: 5, genesis }));
    while model.head().version.0 < 4 {
        let command = Command::AppendHeader(model.commit());
        model.accept(&mut root, &command);
    }
    (root, model)
}

fn change(root: &mut Root, model: &mut Model, number: u32, old: u8, new: u8) {
    let command = Command::AppendHeader(model.key_change(number, old, new));
    model.accept(root, &command);
}

fn refusal(root: &mut Root, model: &mut Model, number: u32, old: u8, new: u8) -> Refusal {
    let command = Command::AppendHeader(model.key_change(number, old, new));
    model.refuse(root, &command)
}

fn keys(root: &Root) -> Vec<(u64, [u8; 32])> {
    root.view().expect("founded").keys.iter().map(|turn| (turn.sequence.0, turn.public_key)).collect()
}

fn public(number: u8) -> [u8; 32] {
    signer(number).verifier().public_key()
}

#[test]
fn only_the_next_change_from_the_current_key_to_a_new_one_is_taken() {
    let (mut root, mut model) = founded(&SimStorage::new());
    for (number, old, new) in [(0, 0, 1), (2, 0, 1), (u32::MAX, 0, 1), (1, 2, 1), (1, 1, 0), (1, 0, 0)] {
        let refusal = refusal(&mut root, &mut model, number, old, new);
        assert_eq!(refusal.reason(), Reason::InvalidArgument, "{number} from {old} to {new}: {refusal}");
    }
    change(&mut root, &mut model, 1, 0, 1);
    let again = refusal(&mut root, &mut model, 1, 0, 1);
    assert!(matches!(again, Refusal::Key("the number is not the next")), "{again}");
    let from_before = refusal(&mut root, &mut model, 2, 0, 2);
    assert!(matches!(from_before, Refusal::Key("the old key is not the current one")), "{from_before}");
    change(&mut root, &mut model, 2, 1, 2);
    for used in [0, 1] {
        let back = refusal(&mut root, &mut model, 3, 2, used);
        assert!(matches!(back, Refusal::Key("the new key was the ledger's before")), "{back}");
    }
    assert_eq!(keys(&root), [(5, public(1)), (6, public(2))]);
    check(&root, &mut model);
}

#[test]
fn a_change_is_signed_by_both_keys_and_changes_nothing_else() {
    let (mut root, mut model) = founded(&SimStorage::new());
    let good = model.key_change(1, 0, 1);
    let with = |edit: &dyn Fn(&mut Header, &mut KeyChange)| {
        let mut header = Header::decode(&good.header).expect("a header");
        let Body::Key(mut change) = header.body.clone() else { panic!("a key change") };
        edit(&mut header, &mut change);
        header.body = Body::Key(change);
        AppendHeader { header: header.encode(), ..good.clone() }
    };
    let other = KeyChange::sign(1, &model.newest().cluster, &signer(0), &signer(2));
    let leaf = model.leaves[2][0].clone();
    let bad = [
        ("a flipped bit of the old key's signature", with(&|_, change| change.by_old[3] ^= 4)),
        ("a flipped bit of the new key's signature", with(&|_, change| change.by_new[40] ^= 1)),
        (
            "the signatures of another change",
            with(&|_, change| (change.by_old, change.by_new) = (other.by_old, other.by_new)),
        ),
        ("the new key for both", with(&|_, change| change.by_old = change.by_new)),
        (
            "another cluster's",
            with(&|_, change| {
                let cluster = coppice_types::ClusterId([1; 16]);
                *change = KeyChange::sign(1, &cluster, &signer(0), &signer(1));
            }),
        ),
        ("another version", with(&|header, _| header.stamp.version.0 += 1)),
        ("another state", with(&|header, _| header.state_root.0[0] ^= 1)),
        ("counted as an operation of the shards", with(&|header, _| header.admin_sequence += 1)),
        ("a leaf", AppendHeader { changed_leaves: vec![leaf], ..good.clone() }),
        ("a journal", AppendHeader { journal: vec![vec![0]], ..good.clone() }),
    ];
    for (what, append) in bad {
        let refusal = model.refuse(&mut root, &Command::AppendHeader(append));
        assert!(matches!(refusal.reason(), Reason::InvalidArgument | Reason::BaseMismatch), "{what}: {refusal}");
    }
    model.accept(&mut root, &Command::AppendHeader(good));
    assert_eq!(keys(&root), [(5, public(1))]);
}

#[test]
fn keys_survive_restart_replay_snapshot_and_rollback() {
    let disk = SimStorage::new();
    let (mut root, mut model) = founded(&disk);
    change(&mut root, &mut model, 1, 0, 1);
    root.flush(model.position()).expect("flushes");
    // Enough commands for a saved state, then one more change that only the journal holds.
    while model.size() < 300 {
        let command = Command::AppendHeader(model.commit());
        model.accept(&mut root, &command);
    }
    root.flush(model.position()).expect("flushes");
    change(&mut root, &mut model, 2, 1, 2);
    let back = Command::AppendHeader(model.rollback(3));
    model.accept(&mut root, &back);
    root.flush(model.position()).expect("flushes");
    let expected = [(5, public(1)), (300, public(2))];
    assert_eq!(keys(&root), expected, "a rollback takes back versions, and no entry of the log");
    drop(root);
    assert!(fsck::fsck(&disk.storage()).expect("runs").is_clean());
    let mut root = Root::open_with(disk.storage(), options()).expect("opens again");
    assert_eq!(keys(&root), expected);
    let manifest = root.pin_snapshot(model.position()).expect("pins");
    let other = SimStorage::new();
    let mut receiver =
        SnapshotReceiver::new(other.storage(), Manifest::decode(&manifest.encode()).expect("decodes")).expect("begins");
    while let Some((name, offset)) = receiver.next().map(|(name, offset)| (name.to_owned(), offset)) {
        let bytes = root.read_snapshot(manifest.id, &name, offset, 4000).expect("reads");
        receiver.write(&name, offset, &bytes).expect("writes");
    }
    receiver.finish().expect("it is whole");
    let mut copy = Root::open_with(other.storage(), options()).expect("opens");
    assert_eq!(keys(&copy), expected);
    let stale = Command::AppendHeader(model.key_change(2, 1, 3)).encode().expect("within limits");
    let outcome = copy.apply(model.index + 1, &stale).expect("applies");
    assert!(matches!(outcome, coppice_root::Outcome::Refused(Refusal::Key(_))), "{outcome:?}");
    assert_eq!(copy.header(Sequence(300)).expect("it is there"), model.headers[300]);
}

#[test]
fn a_saved_state_has_the_newer_format_only_after_a_key_change() {
    let disk = SimStorage::new();
    let (mut root, mut model) = founded(&disk);
    let magic = |root: &mut Root, model: &Model| {
        let manifest = root.pin_snapshot(model.position()).expect("pins");
        let state = manifest.files.iter().find(|file| file.name.starts_with("state/")).expect("a state").name.clone();
        let bytes = root.read_snapshot(manifest.id, &state, 0, 8).expect("reads");
        root.unpin_snapshot(manifest.id);
        bytes
    };
    assert_eq!(magic(&mut root, &model), b"copstt01");
    change(&mut root, &mut model, 1, 0, 1);
    assert_eq!(magic(&mut root, &model), b"copstt03");
    let unfounded = Root::open_with(SimStorage::new().storage(), options()).expect("new");
    assert!(matches!(unfounded.view(), Err(Error::NoGenesis)));
}
