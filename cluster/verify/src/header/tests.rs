use alloc::{vec, vec::Vec};

use coppice_types::Epoch;

use super::*;
use crate::{
    anchor::{RFC_3161, Stamps, TOKEN_BYTES_MAX, TOKENS_MAX, Token},
    epochs::Epochs,
    hash::sha256,
    note::SignerKey,
    shard_map::ShardMap,
};

fn genesis() -> Header {
    let shard_map = ShardMap::from_splits(&[b"m".to_vec()]).expect("one split");
    let genesis =
        Genesis { prefix: "ledger.example".into(), public_key: [3; 32], params: Params::default(), shard_map };
    Header::genesis(ClusterId([9; 16]), 1000, genesis)
}

fn after(before: &Header, body: Body) -> Header {
    let admin = matches!(body, Body::Rollback(_) | Body::Prune(_));
    Header {
        sequence: before.sequence.next(),
        timestamp_ms: before.timestamp_ms + 5,
        admin_sequence: before.admin_sequence + u64::from(admin),
        previous: before.hash(),
        body,
        ..before.clone()
    }
}

/// Genesis, two commits, a prune, a rollback to version 1, a header of the future, a key change,
/// two anchors.
fn log() -> Vec<Header> {
    let genesis = genesis();
    let mut one = after(&genesis, Body::Commit);
    one.stamp = Stamp::new(0, 1);
    one.state_root = sha256(b"one");
    (one.journal_root, one.journal_leaves) = (sha256(b"journal"), 3);
    let mut two = after(&one, Body::Commit);
    two.stamp = Stamp::new(0, 2);
    let who = || ("admin".into(), "tidy up".into());
    let (principal, reason) = who();
    let mut prune = after(&two, Body::Prune(Prune { boundary: Version(1), principal, reason }));
    (prune.journal_root, prune.journal_leaves) = (empty_root(), 0);
    let (principal, reason) = who();
    let rollback = Rollback { target: Stamp::new(0, 1), head_before: Stamp::new(0, 2), principal, reason };
    let mut rollback = after(&prune, Body::Rollback(rollback));
    rollback.stamp = Stamp::new(1, 1);
    let mut epochs = Epochs::new();
    epochs.roll_back(Epoch(1), Version(1));
    (rollback.epochs_root, rollback.epoch_pairs) = (epochs.root(), 2);
    let future = after(&rollback, Body::Other { kind: 9, bytes: b"opaque".to_vec() });
    let signer = |seed| SignerKey::from_seed("ledger.example/x", &[seed; 32]).expect("a name");
    let (principal, reason) = who();
    let change = KeyChange { principal, reason, ..KeyChange::sign(1, &ClusterId([9; 16]), &signer(1), &signer(2)) };
    let key = after(&future, Body::Key(change));
    let chain = after(&key, Body::Anchor(Anchor::Chain(vec![b"certificate".to_vec()])));
    let token = |kind, bytes: &[u8]| Token { kind, chain: 0, bytes: bytes.to_vec() };
    let tokens = vec![token(RFC_3161, b"token"), token(9, b"later")];
    let stamps = after(&chain, Body::Anchor(Anchor::Stamps(Stamps { size: 7, root: sha256(b"root"), tokens })));
    vec![genesis, one, two, prune, rollback, future, key, chain, stamps]
}

#[test]
fn headers_of_every_kind_survive_encoding() {
    for header in log() {
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Ok(header.clone()));
        assert_eq!(KINDS.contains(&header.kind()), !matches!(header.body, Body::Other { .. }));
        for len in 0..bytes.len() {
            assert!(Header::decode(&bytes[..len]).is_err());
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(Header::decode(&longer), Err(Error::Trailing));
    }
}

#[test]
fn a_header_has_one_encoding() {
    for header in log() {
        let bytes = header.encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok(other) = Header::decode(&flipped) {
                assert_ne!(other, header);
                assert_eq!(other.encode(), flipped);
            }
        }
    }
}

#[test]
fn a_log_follows_its_rules() {
    let log = log();
    for pair in log.windows(2) {
        assert_eq!(pair[1].check_follows(&pair[0]), Ok(()));
        assert!(pair[0].check_follows(&pair[1]).is_err());
    }
    assert_eq!(log[0].check_follows(&log[5]), Err(BrokenRule("sequence")));
}

#[test]
fn each_rule_of_the_log_is_checked() {
    let log = log();
    let broken = |index: usize, change: &dyn Fn(&mut Header)| {
        let mut header = log[index].clone();
        change(&mut header);
        header.check_alone().and_then(|()| header.check_follows(&log[index - 1])).expect_err("a rule is broken").0
    };
    assert_eq!(broken(1, &|header| header.cluster.0[0] = 0), "cluster");
    assert_eq!(broken(1, &|header| header.sequence.0 = 2), "sequence");
    assert_eq!(broken(1, &|header| header.sequence.0 = 0), "genesis comes first");
    assert_eq!(broken(1, &|header| header.previous.0[0] ^= 1), "previous entry");
    assert_eq!(broken(1, &|header| header.timestamp_ms = 999), "timestamps never decrease");
    assert_eq!(broken(1, &|header| header.admin_sequence = 1), "admin sequence");
    assert_eq!(broken(1, &|header| header.stamp.version.0 = 2), "version of a commit");
    assert_eq!(broken(1, &|header| header.stamp.version.0 = 0), "version of a commit");
    assert_eq!(broken(1, &|header| header.stamp.epoch.0 = 1), "epoch of a commit");
    assert_eq!(broken(1, &|header| header.epoch_pairs = 2), "epoch of a commit");
    assert_eq!(broken(1, &|header| header.epoch_pairs = 0), "epoch pairs");
    assert_eq!(broken(1, &|header| header.state_leaves = 3), "shards of a commit");
    assert_eq!(broken(3, &|header| header.state_root.0[0] ^= 1), "state of a prune");
    assert_eq!(broken(3, &|header| header.journal_leaves = 1), "journal of a header that is not a commit");
    assert_eq!(broken(3, &|header| header.admin_sequence = 0), "admin sequence");
    assert_eq!(broken(4, &|header| header.stamp.version.0 = 2), "target of a rollback");
    assert_eq!(broken(4, &|header| header.stamp.epoch.0 = 2), "epoch of a rollback");
    assert_eq!(broken(5, &|header| header.stamp.version.0 = 2), "state of an unknown kind");
    assert_eq!(broken(5, &|header| header.state_root.0[0] ^= 1), "state of an unknown kind");
    assert_eq!(broken(5, &|header| header.shard_map.0[0] ^= 1), "shards and epochs of an unknown kind");
    assert_eq!(broken(5, &|header| header.journal_leaves = 1), "journal of a header that is not a commit");
    assert_eq!(broken(6, &|header| header.stamp.version.0 = 2), "state of a key change");
    assert_eq!(broken(6, &|header| header.state_root.0[0] ^= 1), "state of a key change");
    assert_eq!(broken(6, &|header| header.state_leaves = 3), "shards and epochs of a key change");
    assert_eq!(broken(6, &|header| header.epochs_root.0[0] ^= 1), "shards and epochs of a key change");
    assert_eq!(broken(6, &|header| header.journal_leaves = 1), "journal of a header that is not a commit");
    assert_eq!(broken(6, &|header| header.admin_sequence += 1), "admin sequence");
    let change = |edit: &dyn Fn(&mut KeyChange)| {
        broken(6, &|header| match &mut header.body {
            Body::Key(change) => edit(change),
            other => panic!("not a key change: {other:?}"),
        })
    };
    assert_eq!(change(&|change| change.number = 0), "number of a key change");
    assert_eq!(change(&|change| change.number = 2), "signature of the old key");
    assert_eq!(change(&|change| change.by_old[0] ^= 1), "signature of the old key");
    assert_eq!(change(&|change| change.by_new[0] ^= 1), "signature of the new key");
    assert_eq!(change(&|change| change.new = change.old), "a key change to the same key");
    assert_eq!(change(&|change| change.new = [0; 32]), "keys of a key change");
    assert_eq!(broken(6, &|header| header.cluster.0[0] = 0), "signature of the old key");
    assert_eq!(broken(8, &|header| header.stamp.version.0 = 2), "state of an anchor");
    assert_eq!(broken(8, &|header| header.state_root.0[0] ^= 1), "state of an anchor");
    assert_eq!(broken(8, &|header| header.epoch_pairs = 3), "shards and epochs of an anchor");
    assert_eq!(broken(8, &|header| header.journal_leaves = 1), "journal of a header that is not a commit");
    let stamped = |size| broken(8, &|header| edit_stamps(header, &|stamps| stamps.size = size));
    assert_eq!((stamped(0), stamped(9)), ("an anchor that stamps nothing", "an anchor that stamps itself"));
}

#[test]
fn genesis_binds_its_shard_map_and_its_numbers() {
    let broken = |change: &dyn Fn(&mut Header)| {
        let mut header = genesis();
        change(&mut header);
        Header::decode(&header.encode()).expect_err("a rule is broken")
    };
    assert_eq!(broken(&|header| header.shard_map.0[0] ^= 1), Error::Malformed("shard map of genesis"));
    assert_eq!(broken(&|header| header.state_leaves = 3), Error::Malformed("state leaves of genesis"));
    assert_eq!(broken(&|header| header.state_root.0[0] ^= 1), Error::Malformed("state of genesis"));
    assert_eq!(broken(&|header| header.epochs_root.0[0] ^= 1), Error::Malformed("epochs of genesis"));
    assert_eq!(broken(&|header| header.epoch_pairs = 2), Error::Malformed("epochs of genesis"));
    assert_eq!(broken(&|header| header.stamp.version.0 = 1), Error::Malformed("numbers of genesis"));
    assert_eq!(broken(&|header| header.previous.0[0] = 1), Error::Malformed("numbers of genesis"));
}

#[test]
fn texts_are_utf8_and_limited() {
    let long = Prune { boundary: Version(0), principal: "p".into(), reason: "r".repeat(REASON_BYTES_MAX + 1) };
    let header = after(&genesis(), Body::Prune(long));
    assert_eq!(Header::decode(&header.encode()), Err(Error::Malformed("reason")));
    let short = Prune { boundary: Version(0), principal: "zz".into(), reason: "r".into() };
    let mut bytes = after(&genesis(), Body::Prune(short)).encode();
    let at = bytes.len() - 5;
    assert_eq!(&bytes[at..at + 2], b"zz");
    bytes[at] = 0xff;
    assert_eq!(Header::decode(&bytes), Err(Error::Malformed("principal")));
}

fn edit_stamps(header: &mut Header, edit: &dyn Fn(&mut Stamps)) {
    match &mut header.body {
        Body::Anchor(Anchor::Stamps(stamps)) => edit(stamps),
        other => panic!("no stamps: {other:?}"),
    }
}

#[test]
fn an_anchor_is_within_its_limits() {
    let last = log().pop().expect("an anchor");
    let decoded = |edit: &dyn Fn(&mut Stamps)| {
        let mut header = last.clone();
        edit_stamps(&mut header, edit);
        Header::decode(&header.encode())
    };
    let with = |count: usize, bytes: usize| {
        decoded(&|stamps| stamps.tokens = vec![Token { kind: RFC_3161, chain: 3, bytes: vec![5; bytes] }; count])
    };
    assert!(with(TOKENS_MAX, 1000).is_ok() && with(1, TOKEN_BYTES_MAX).is_ok());
    assert_eq!(with(0, 1), Err(Error::Malformed("number of tokens")));
    assert_eq!(with(TOKENS_MAX + 1, 1), Err(Error::Malformed("number of tokens")));
    assert_eq!(with(1, TOKEN_BYTES_MAX + 1), Err(Error::Malformed("length of a token")));
    assert_eq!(with(1, 0), Err(Error::Malformed("length of a token")));
    assert!(with(4, 16_000).is_ok());
    assert_eq!(with(4, 16_001), Err(Error::Malformed("length of all tokens")));

    let chain = |certificates: Vec<Vec<u8>>| {
        let header = Header { body: Body::Anchor(Anchor::Chain(certificates)), ..last.clone() };
        Header::decode(&header.encode())
    };
    assert!(chain(vec![vec![1]; 32]).is_ok());
    assert_eq!(chain(vec![]), Err(Error::Malformed("number of certificates")));
    assert_eq!(chain(vec![vec![1]; 33]), Err(Error::Malformed("number of certificates")));
    assert_eq!(chain(vec![vec![]]), Err(Error::Malformed("length of a certificate")));
    let mut bytes = last.encode();
    let at = bytes.len() - body_bytes(&last);
    bytes[at] = 2;
    assert_eq!(Header::decode(&bytes), Err(Error::Malformed("form of an anchor")));
}

fn body_bytes(header: &Header) -> usize {
    header.body.encode().len()
}
