//! A model ledger answers honestly, then lies in each way that a proof of something else could cover.

use coppice_types::{Change, ClusterId, Operation, Params};
use coppice_verify::{
    note::SignerKey,
    replay::{Commit, Ledger},
    shard_map::ShardMap,
};

use super::*;

struct Scene {
    ledger: Ledger,
    key: VerifierKey,
}

impl Scene {
    fn new() -> Self {
        let map = ShardMap::from_splits(&[b"m".to_vec()]).expect("one split");
        let mut ledger = Ledger::new("model", ClusterId([7; 16]), &[1; 32], &Params::default(), map);
        for round in 0..3_u8 {
            let put = |key: &[u8]| Operation { key: key.to_vec(), change: Change::Put(vec![round; 3]) };
            let operations = vec![put(b"a"), put(b"b"), put(&[b'c', round]), put(b"x")];
            ledger.commit(&[Commit { operations, ..Commit::default() }]).expect("a batch");
        }
        let key = ledger.key.verifier().clone();
        Self { ledger, key }
    }

    fn proof(&self, version: u64, keys: &[&[u8]]) -> Vec<u8> {
        self.ledger.prove_keys(Stamp::new(0, version), keys, true).encode().expect("a small file")
    }

    fn check_keys(
        &self,
        version: u64,
        keys: &[&[u8]],
        proven: (u64, &[&[u8]]),
        records: &[v1::Record],
    ) -> Result<(), Error> {
        let keys: Vec<bytes::Bytes> = keys.iter().map(|key| bytes::Bytes::copy_from_slice(key)).collect();
        let at = v1::Stamp { epoch: 0, version };
        let proof = self.proof(proven.0, proven.1);
        check_read(&self.key, &Question::Keys(&keys), Some(&at), records, Some(&at), &proof).map(drop)
    }

    fn check_range(
        &self,
        asked: (&[u8], &[u8], u32),
        proven: (&[u8], &[u8]),
        records: &[v1::Record],
    ) -> Result<(), Error> {
        let at = v1::Stamp { epoch: 0, version: 3 };
        let proof =
            self.ledger.prove_range(Stamp::new(0, 3), proven.0, Some(proven.1), true).encode().expect("a small file");
        let question = Question::Range { low: asked.0, high: Some(asked.1), limit: asked.2 };
        check_read(&self.key, &question, Some(&at), records, Some(&at), &proof).map(drop)
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_may_grow_and_nothing_else() {
    let trust = Trust::new(Scene::new().key);
    let checkpoint =
        |size: u64, root: u8| Checkpoint { origin: "model".to_owned(), size, root: coppice_types::Digest([root; 32]) };
    assert_eq!(trust.note(checkpoint(5, 5)).expect("the first"), None);
    assert_eq!(trust.note(checkpoint(7, 7)).expect("it grew"), None, "it is not time yet");
    assert_eq!(trust.note(checkpoint(6, 6)).expect("an older one, from elsewhere"), None);
    for (size, root) in [(5, 9), (7, 9)] {
        assert!(matches!(trust.note(checkpoint(size, root)), Err(Error::Untrusted(_))), "two roots of size {size}");
    }
    tokio::time::advance(GROWTH_INTERVAL).await;
    assert_eq!(trust.note(checkpoint(7, 7)).expect("known"), Some(checkpoint(5, 5)), "its growth is to be shown");
    assert_eq!(trust.note(checkpoint(7, 7)).expect("known"), None, "one asks for all");
    assert!(trust.check_growth(&checkpoint(5, 5), b"nothing").is_err());
}

fn present(key: &[u8], value: u8, version: u64) -> v1::Record {
    v1::Record {
        key: bytes::Bytes::copy_from_slice(key),
        found: true,
        value: vec![value; 3].into(),
        last_changed: Some(v1::Stamp { epoch: 0, version }),
    }
}

fn absent(key: &[u8]) -> v1::Record {
    v1::Record { key: bytes::Bytes::copy_from_slice(key), ..v1::Record::default() }
}

#[test]
fn honest_answers_are_believed() {
    let scene = Scene::new();
    scene
        .check_keys(3, &[b"x", b"a"], (3, &[b"a", b"x"]), &[present(b"x", 2, 3), present(b"a", 2, 3)])
        .expect("in any order");
    scene.check_keys(2, &[b"a"], (2, &[b"a"]), &[present(b"a", 1, 2)]).expect("an old version");
    scene.check_keys(3, &[b"nothing"], (3, &[b"nothing"]), &[absent(b"nothing")]).expect("absence");
    let first = [present(b"a", 2, 3), present(b"b", 2, 3)];
    scene.check_range((b"a", b"c", 0), (b"a", b"c"), &first).expect("a whole range");
    scene.check_range((b"a", b"z", 2), (b"a", b"b\0"), &first).expect("a range cut short by its limit");
}

#[test]
fn lies_about_keys_are_not_believed() {
    let scene = Scene::new();
    let honest = present(b"a", 2, 3);
    type Lie<'a> = (u64, (u64, &'a [&'a [u8]]), v1::Record);
    let lies: [Lie<'_>; 7] = [
        (3, (2, &[b"a"]), present(b"a", 1, 2)),
        (2, (3, &[b"a"]), honest.clone()),
        (3, (3, &[b"b"]), honest.clone()),
        (3, (3, &[b"a"]), absent(b"a")),
        (3, (3, &[b"a"]), present(b"a", 1, 3)),
        (3, (3, &[b"a"]), present(b"a", 2, 2)),
        (3, (3, &[b"a"]), present(b"b", 2, 3)),
    ];
    for (version, proven, record) in lies {
        let result = scene.check_keys(version, &[b"a"], proven, std::slice::from_ref(&record));
        assert!(matches!(result, Err(Error::Untrusted(_))), "{version} {proven:?} {record:?}: {result:?}");
    }
    let result = scene.check_keys(3, &[b"a", b"b"], (3, &[b"a", b"b"]), std::slice::from_ref(&honest));
    assert!(matches!(result, Err(Error::Untrusted(_))), "an answer too few");
    let other = SignerKey::from_seed(scene.key.name(), &[3; 32]).expect("the name is one");
    let keys = [bytes::Bytes::from_static(b"a")];
    let result = check_read(other.verifier(), &Question::Keys(&keys), None, &[honest], None, &scene.proof(3, &[b"a"]));
    assert!(matches!(result, Err(Error::Unproven(_))), "another key");
}

#[test]
fn lies_about_ranges_are_not_believed() {
    let scene = Scene::new();
    let (a, b) = (present(b"a", 2, 3), present(b"b", 2, 3));
    type Lie<'a> = ((&'a [u8], &'a [u8], u32), (&'a [u8], &'a [u8]), Vec<v1::Record>);
    let lies: [Lie<'_>; 6] = [
        ((b"a", b"z", 0), (b"a", b"c"), vec![a.clone(), b.clone()]),
        ((b"a", b"z", 5), (b"a", b"b\0"), vec![a.clone(), b.clone()]),
        ((b"a", b"c", 0), (b"b", b"c"), vec![b.clone()]),
        ((b"a", b"c", 0), (b"a", b"c"), vec![a.clone()]),
        ((b"a", b"c", 0), (b"a", b"c"), vec![b.clone(), a.clone()]),
        ((b"a", b"z", 1), (b"a", b"c"), vec![a.clone(), b.clone()]),
    ];
    for (asked, proven, records) in lies {
        let result = scene.check_range(asked, proven, &records);
        assert!(matches!(result, Err(Error::Untrusted(_))), "{asked:?} {proven:?}: {result:?}");
    }
}

#[test]
fn a_receipt_is_of_the_version_that_was_answered() {
    let scene = Scene::new();
    let receipt = |version| scene.ledger.receipt(Stamp::new(0, version), 0).encode().expect("a small file");
    let mut response = v1::CommitResponse {
        stamp: Some(v1::Stamp { epoch: 0, version: 3 }),
        header: scene.ledger.newest().encode().into(),
        receipt: receipt(3).into(),
        ..v1::CommitResponse::default()
    };
    check_receipt(&scene.key, &response).expect("an honest receipt");
    response.receipt = receipt(2).into();
    assert!(matches!(check_receipt(&scene.key, &response), Err(Error::Untrusted(_))));
    response.receipt = scene.proof(3, &[b"a"]).into();
    assert!(matches!(check_receipt(&scene.key, &response), Err(Error::Untrusted(_))));
    response.receipt = bytes::Bytes::new();
    assert!(matches!(check_receipt(&scene.key, &response), Err(Error::Unproven(_))));
}
