use std::{fs, path::Path};

use coppice_types::{ClusterId, Params};
use coppice_verify::{
    evidence::Ground,
    merkle,
    note::SignerKey,
    replay::Ledger,
    shard_map::ShardMap,
    tile::{Content, TileName, WIDTH},
};

use super::*;

/// The entry at which every log here changes its key from 1 to 2.
const CHANGE: u64 = 4;
/// Logs differ from this entry on.
const COMMON: u64 = 10;

/// A log; different kinds differ from entry [`COMMON`] on.
fn ledger(kind: u64, entries: u64) -> Ledger {
    let map = ShardMap::from_splits(&[]).expect("one shard");
    let mut ledger = Ledger::new("ledger.example", ClusterId([9; 16]), &[1; 32], &Params::default(), map);
    for at in 1..entries {
        match at {
            CHANGE => ledger.rotate(&[2; 32]),
            _ => ledger.append_unknown(9, if at < COMMON { 0 } else { kind }.to_le_bytes().to_vec()),
        }
    }
    ledger
}

fn signer(seed: u8) -> SignerKey {
    SignerKey::from_seed(ledger(0, 1).key.name(), &[seed; 32]).expect("a name")
}

/// A checkpoint, signed by the key of this seed.
fn given(kind: u64, size: u64, seed: u8) -> Given {
    let checkpoint = ledger(kind, size).checkpoint(size);
    let note = checkpoint.sign(&signer(seed)).expect("its own log").into_bytes();
    Given { note, checkpoint, changes: Vec::new() }
}

fn put(folder: &Path, name: TileName, bytes: &[u8]) {
    let file = folder.join(name.to_string());
    fs::create_dir_all(file.parent().expect("a folder")).expect("it can be made");
    fs::write(file, bytes).expect("it is written");
}

/// The tiles of a log in a folder, as a mirror has them.
fn mirror(folder: &Path, log: &Ledger) {
    let entries: Vec<Vec<u8>> = log.headers.iter().map(Header::encode).collect();
    for (number, bundle) in (0..).zip(entries.chunks(WIDTH.into())) {
        let framed = bundle.iter().flat_map(|entry| {
            let length = u16::try_from(entry.len()).expect("a header is short");
            [&length.to_be_bytes()[..], entry].concat()
        });
        let width = u16::try_from(bundle.len()).expect("at most 256");
        put(folder, TileName { content: Content::Entries, number, width }, &framed.collect::<Vec<u8>>());
    }
    let mut hashes: Vec<Digest> = log.headers.iter().map(Header::hash).collect();
    for level in 0.. {
        if hashes.is_empty() {
            break;
        }
        for (number, tile) in (0..).zip(hashes.chunks(WIDTH.into())) {
            let bytes: Vec<u8> = tile.iter().flat_map(|hash| hash.0).collect();
            let width = u16::try_from(tile.len()).expect("at most 256");
            put(folder, TileName { content: Content::Hashes { level }, number, width }, &bytes);
        }
        hashes = hashes.chunks_exact(WIDTH.into()).map(merkle::mth).collect();
    }
}

/// The evidence of two checkpoints, with the log of this kind and size in a folder.
fn proven(a: Given, b: Given, log: (u64, u64), key: Option<u8>) -> Result<Verdict, NoEvidence> {
    let folder = tempfile::tempdir().expect("a temporary directory");
    mirror(folder.path(), &ledger(log.0, log.1));
    proven_by(a, b, folder.path(), key)
}

fn proven_by(a: Given, b: Given, folder: &Path, key: Option<u8>) -> Result<Verdict, NoEvidence> {
    let from = folder.to_str().expect("UTF-8");
    let key = key.map(|seed| signer(seed).verifier().clone());
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(prove([a, b], Some(TileLog::open(from).expect("a folder")), key)).map(|(_, verdict)| verdict)
}

#[test]
fn a_fork_is_proven_by_the_log_of_the_larger_checkpoint() {
    for (small, large) in [(11, 12), (12, 12), (300, 301), (256, 600), (599, 600), (257, 700)] {
        for [one, other] in [[(1, small), (2, large)], [(2, large), (1, small)]] {
            let verdict = proven(given(one.0, one.1, 2), given(other.0, other.1, 2), (2, large), None);
            let verdict = verdict.unwrap_or_else(|failure| panic!("{small}, {large}: {failure}"));
            assert!(matches!(verdict.ground, Ground::Contradiction { .. }), "{small}, {large}");
            assert!(verdict.is_one_key());
            assert_eq!(verdict.a.checkpoint.size, small);
        }
    }
}

#[test]
fn a_mirror_that_has_grown_on_will_do() {
    let verdict = proven(given(1, 20, 2), given(2, 30, 2), (2, 40), None).expect("it is a fork");
    assert_eq!(verdict.b.checkpoint.size, 30);
    let verdict = proven(given(1, 20, 2), given(2, 30, 2), (2, 300), None).expect("it is a fork");
    assert_eq!(verdict.b.checkpoint.size, 30);
}

#[test]
fn every_key_of_the_ledger_leads_to_the_signers() {
    for key in [None, Some(1), Some(2)] {
        let verdict = proven(given(1, 11, 2), given(2, 12, 2), (2, 12), key).expect("it is a fork");
        assert_eq!(&verdict.a.key, signer(2).verifier());
    }
    let refused = proven(given(1, 11, 2), given(2, 12, 2), (2, 12), Some(3)).expect_err("a strange key");
    assert!(matches!(refused, NoEvidence::Proves(_)), "{refused}");
}

#[test]
fn a_replaced_key_that_signs_the_log_convicts_itself() {
    // The smaller checkpoint is late, then the larger one.
    for (small, large, late) in [((8, 1), (12, 2), 8), ((8, 2), (12, 1), 12)] {
        let verdict =
            proven(given(2, small.0, small.1), given(2, large.0, large.1), (2, 12), None).expect("it is late");
        assert!(matches!(verdict.ground, Ground::Late { index: CHANGE, .. }));
        assert_eq!((verdict.a.checkpoint.size, verdict.is_one_key()), (late, true));
    }
    // Only the log of the smaller checkpoint is at hand: one of two holders is guilty.
    let verdict = proven(given(2, 9, 2), given(1, 20, 1), (2, 9), None).expect("it is late");
    assert!(matches!(verdict.ground, Ground::Late { index: CHANGE, .. }) && !verdict.is_one_key());
}

#[test]
fn honest_checkpoints_are_no_evidence() {
    for (small, large) in [((12, 2), (12, 2)), ((3, 1), (12, 2)), ((CHANGE, 1), (300, 2)), ((9, 2), (600, 2))] {
        let done = proven(given(2, small.0, small.1), given(2, large.0, large.1), (2, large.0), None);
        let refused = done.expect_err("an honest log");
        assert!(matches!(refused, NoEvidence::Agree(..)), "{refused}");
    }
}

#[test]
fn a_log_that_proves_nothing_is_named() {
    let fork = || (given(1, 11, 2), given(2, 12, 2));
    let refused = |log, part: &str| {
        let (a, b) = fork();
        let refused = proven(a, b, log, None).expect_err("the log does not fit");
        assert!(matches!(refused, NoEvidence::Log(Error::Refused(_))), "{refused}");
        assert!(refused.to_string().contains(part), "{refused}");
    };
    refused((1, 11), "that of the smaller checkpoint");
    refused((3, 12), "the log of either checkpoint");
    refused((2, 9), "the log of either checkpoint");
    // A tile is cut short, a bundle is missing, a hash is false.
    let folder = tempfile::tempdir().expect("a temporary directory");
    for (path, change) in [("tile/0/000.p/12", 0), ("tile/0/000.p/12", 1), ("tile/entries/000.p/12", 2)] {
        mirror(folder.path(), &ledger(2, 12));
        let file = folder.path().join(path);
        let mut bytes = fs::read(&file).expect("a tile");
        match change {
            0 => fs::write(&file, &bytes[..40]).expect("it is written"),
            1 => {
                bytes[0] ^= 1;
                fs::write(&file, &bytes).expect("it is written");
            }
            _ => fs::remove_file(&file).expect("it was there"),
        }
        let (a, b) = fork();
        let refused = proven_by(a, b, folder.path(), None).expect_err("the log is damaged");
        assert!(matches!(refused, NoEvidence::Log(Error::Refused(_))), "{refused}");
    }
    // Other entries in the bundles hide the key change, and nothing else.
    mirror(folder.path(), &ledger(2, 12));
    fs::write(folder.path().join("tile/entries/000.p/12"), [0; 24]).expect("it is written");
    let (a, b) = fork();
    assert!(matches!(proven_by(a, b, folder.path(), None).expect_err("no key"), NoEvidence::NoKey));
    let (a, b) = fork();
    assert!(proven_by(a, b, folder.path(), Some(2)).is_ok());
}

#[test]
fn two_checkpoints_of_one_size_need_no_log() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let prove = |a, b, key| runtime.block_on(prove([a, b], None, Some(key))).map(|(_, verdict)| verdict);
    let key = || signer(2).verifier().clone();
    assert!(prove(given(1, 12, 2), given(2, 12, 2), key()).expect("it is a fork").is_one_key());
    let refused = prove(given(1, 11, 2), given(2, 12, 2), key()).expect_err("it needs the log");
    assert!(matches!(refused, NoEvidence::NoLog(11, 12)), "{refused}");
    let agree = prove(given(2, 12, 2), given(2, 12, 2), key()).expect_err("no fork");
    assert!(matches!(agree, NoEvidence::Agree(12, 12)), "{agree}");
    let mut foreign = given(2, 12, 2);
    foreign.checkpoint.origin = "elsewhere".to_owned();
    let other = prove(given(1, 12, 2), foreign, key()).expect_err("another log");
    assert!(matches!(other, NoEvidence::OtherLog), "{other}");
}
