//! Proof files of each kind: one encoding, a checksum, and limits.

use alloc::vec;

use coppice_types::{Change, Operation, Params, Stamp};

use super::*;
use crate::{
    replay::{Commit, Ledger},
    shard_map::ShardMap,
};

fn ledger() -> Ledger {
    let map = ShardMap::from_splits(&[b"m".to_vec()]).expect("one split");
    let mut ledger = Ledger::new("ledger.example", ClusterId([1; 16]), &[1; 32], &Params::default(), map);
    for version in 0..3_u8 {
        let put = |key: &[u8]| Operation { key: key.to_vec().into(), change: Change::Put(vec![version; 3].into()) };
        let operations = vec![put(b"a"), put(b"z")];
        ledger.commit(&[Commit { operations, ..Commit::default() }]).expect("it follows");
    }
    ledger.rotate(&[2; 32]);
    ledger
}

fn files() -> Vec<ProofFile<'static>> {
    let (ledger, stamp) = (ledger(), Stamp::new(0, 2));
    vec![
        ledger.prove_keys(stamp, &[b"a", b"b", b"z"], true),
        ledger.prove_range(stamp, b"a", None, false),
        ledger.receipt(stamp, 0),
        ledger.standing(2, 5),
        ledger.prove_time(1_700_000_001_500),
        ledger.prove_time(u64::MAX),
    ]
}

/// The file with its checksum made to fit.
fn sealed(mut content: Vec<u8>) -> Vec<u8> {
    content.extend(file_checksum(&content).to_le_bytes());
    content
}

fn content(file: &ProofFile<'_>) -> Vec<u8> {
    let mut bytes = file.encode().expect("it fits");
    bytes.truncate(bytes.len() - CHECKSUM_BYTES);
    bytes
}

#[test]
fn files_of_every_kind_survive_encoding_and_nothing_else_does() {
    for file in files() {
        let bytes = file.encode().expect("it fits");
        assert_eq!(ProofFile::decode(&bytes), Ok(file.clone()));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(ProofFile::decode(&flipped).is_err(), "bit {bit}");
        }
        let content = content(&file);
        for len in 0..content.len() {
            assert!(ProofFile::decode(&sealed(content[..len].to_vec())).is_err(), "{len} bytes");
        }
        assert_eq!(ProofFile::decode(&sealed([&content[..], &[0]].concat())), Err(Error::Trailing));
    }
}

#[test]
fn another_format_kind_or_beginning_is_refused() {
    let good = content(&files()[0]);
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        ProofFile::decode(&sealed(bytes)).map(drop)
    };
    let (format, kind) = (MAGIC.len(), MAGIC.len() + 1);
    assert_eq!(changed(0, b'C'), Err(Error::Malformed("proof file: first bytes")));
    for other in [0, 1, 2, 5, 255] {
        assert!(matches!(changed(format, other), Err(Error::Malformed(what)) if what.contains("formats 3 and 4")));
    }
    assert_eq!(changed(kind, 3), Err(Error::Malformed("proof file kind")));
    assert_eq!(changed(format, 4), Err(Error::Malformed("proof file kind")), "a query of the later format");
    assert_eq!(changed(kind, 4), Err(Error::Malformed("proof file kind")), "a time of the earlier format");
    assert!(changed(kind, 1).is_err() && changed(kind, 2).is_err(), "a payload of another kind");
}

fn query(query: Query<'static>) -> Result<(), Error> {
    let mut file = files().remove(0);
    if let Proof::Query(proof) = &mut file.proof {
        proof.query = query;
    }
    ProofFile::decode(&file.encode().expect("it fits")).map(drop)
}

#[test]
fn queries_beyond_the_limits_or_out_of_order_are_refused() {
    let keys = |keys: &[&[u8]]| query(Query::Keys(keys.iter().map(|key| Cow::Owned(key.to_vec())).collect()));
    assert_eq!(keys(&[&[1; KEY_BYTES_MAX]]), Ok(()));
    assert_eq!(keys(&[]), Err(Error::Malformed("number of queried keys")));
    for key in [&b""[..], &[1; KEY_BYTES_MAX + 1]] {
        assert_eq!(keys(&[key]), Err(Error::Malformed("length of a queried key")));
    }
    for pair in [[b"b", b"a"], [b"a", b"a"]] {
        assert_eq!(keys(&[pair[0], pair[1]]), Err(Error::Malformed("order of queried keys")));
    }
    let range = |low: &[u8], high: Option<&[u8]>| {
        query(Query::Range { low: Cow::Owned(low.to_vec()), high: high.map(|high| Cow::Owned(high.to_vec())) })
    };
    assert_eq!(range(b"", None), Ok(()));
    assert_eq!(range(&[1; BOUND_BYTES_MAX], Some(&[2; BOUND_BYTES_MAX])), Ok(()));
    for [low, high] in [[&b"b"[..], b"a"], [b"a", b"a"], [b"", b""]] {
        assert_eq!(range(low, Some(high)), Err(Error::Malformed("order of a range's bounds")));
    }
    let long = [1; BOUND_BYTES_MAX + 1];
    for result in [range(&long, None), range(b"", Some(&long))] {
        assert_eq!(result, Err(Error::Malformed("length of a range's bound")));
    }
}

#[test]
fn shard_parts_have_an_id_and_bounds_in_order() {
    let change = |change: &dyn Fn(&mut ShardPart<'static>)| {
        let mut file = files().remove(0);
        if let Proof::Query(proof) = &mut file.proof {
            change(&mut proof.shards[0]);
        }
        ProofFile::decode(&file.encode().expect("it fits")).map(drop)
    };
    assert_eq!(change(&|_| ()), Ok(()));
    assert_eq!(change(&|part| part.shard = SHARD_NONE), Err(Error::Malformed("id of a shard")));
    let long = || Cow::Owned(vec![b'n'; KEY_BYTES_MAX + 1]);
    assert_eq!(change(&|part| part.high = Some(long())), Err(Error::Malformed("length of a shard's bound")));
    assert_eq!(
        change(&|part| part.low = part.high.clone().expect("a bound")),
        Err(Error::Malformed("order of a shard's bounds"))
    );
}

#[test]
fn a_file_over_the_limits_is_not_made() {
    let mut file = files().remove(0);
    if let Proof::Query(proof) = &mut file.proof {
        proof.query =
            Query::Keys((0..=u32::from(u16::MAX)).map(|key| Cow::Owned(key.to_be_bytes().to_vec())).collect());
    }
    assert_eq!(file.encode(), Err(TooLarge));
    let mut file = files().remove(0);
    if let Proof::Query(proof) = &mut file.proof {
        proof.values = Some(vec![Cow::Owned(vec![0; FILE_BYTES_MAX + 1])]);
    }
    assert_eq!(file.encode(), Err(TooLarge));
}
