//! A model ledger answers honestly, then lies in every way that a proof of something else could
//! cover.

use coppice_types::{Change, ClusterId, Operation, Params};
use coppice_verify::{
    note::SignerKey,
    replay::{Commit, Ledger},
};

use super::*;

struct Scene {
    ledger: Ledger,
    key: VerifierKey,
    /// The logs that were verified before, so that no lie profits from what is remembered.
    logs: ProvenLogs,
}

/// The batch that each version writes; rounds count from 0.
fn of_round(round: u8) -> Commit {
    let put = |key: &[u8]| Operation { key: key.to_vec().into(), change: Change::Put(vec![round; 3].into()) };
    let operations = vec![put(b"x"), put(b"a"), put(b"b"), put(&[b'c', round])];
    Commit { operations, ..Commit::default() }
}

fn in_session(round: u8) -> Commit {
    let session = Some((SessionId([6; 16]), u64::from(round) + 1));
    let operations = vec![Operation { key: b"gone".to_vec().into(), change: Change::Delete }];
    Commit { session, operations, metadata: vec![round] }
}

/// A batch as a client sends it.
fn on_the_wire(commit: &Commit) -> v1::Batch {
    let operation = |it: &Operation| v1::Operation {
        key: it.key.clone(),
        change: Some(match &it.change {
            Change::Put(value) => v1::operation::Change::Put(value.clone()),
            Change::Delete => v1::operation::Change::Delete(true),
        }),
    };
    v1::Batch {
        operations: commit.operations.iter().map(operation).collect(),
        metadata: commit.metadata.clone().into(),
        ..v1::Batch::default()
    }
}

impl Scene {
    fn new() -> Self {
        let map = ShardMap::from_splits(&[b"m".to_vec()]).expect("one split");
        let mut ledger = Ledger::new("model", ClusterId([7; 16]), &[1; 32], &Params::default(), map);
        for round in 0..3_u8 {
            ledger.commit(&[in_session(round), of_round(round)]).expect("two batches");
        }
        let key = ledger.key.verifier().clone();
        Self { ledger, key, logs: ProvenLogs::default() }
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
        let options = v1::ReadOptions { at: Some(at), ..v1::ReadOptions::default() };
        let (question, proof) = (Asked::Keys(&keys), self.proof(proven.0, proven.1));
        let read = Read { question, options: &options, records, read_at: Some(&at), file: &decoded(&proof)?, seen: 0 };
        check_read(&self.logs, &Keys::new(self.key.clone()), None, &read).map(drop)
    }

    /// Reads `a` with these options, after a log of size `seen` was seen. The answer is the record
    /// at `stamp`.
    fn check_place(&self, options: &v1::ReadOptions, seen: u64, stamp: Stamp) -> Result<(), Error> {
        let proof = self.ledger.prove_keys(stamp, &[b"a"], true).encode().expect("a small file");
        let at = v1::Stamp { epoch: stamp.epoch.0, version: stamp.version.0 };
        let round = u8::try_from(stamp.version.0).expect("few") - 1;
        let records = [v1::Record { last_changed: Some(at), ..present(b"a", round, stamp.version.0) }];
        let keys = [Bytes::from_static(b"a")];
        let question = Asked::Keys(&keys);
        let read = Read { question, options, records: &records, read_at: Some(&at), file: &decoded(&proof)?, seen };
        check_read(&self.logs, &Keys::new(self.key.clone()), None, &read).map(drop)
    }

    fn check_range(
        &self,
        asked: (&[u8], &[u8], u32),
        proven: (&[u8], &[u8]),
        more: bool,
        records: &[v1::Record],
    ) -> Result<(), Error> {
        let at = v1::Stamp { epoch: 0, version: 3 };
        let proof =
            self.ledger.prove_range(Stamp::new(0, 3), proven.0, Some(proven.1), true).encode().expect("a small file");
        let question = Asked::Range { low: asked.0, high: Some(asked.1), limit: asked.2, reverse: false, more };
        let options = v1::ReadOptions::default();
        let read = Read { question, options: &options, records, read_at: Some(&at), file: &decoded(&proof)?, seen: 0 };
        check_read(&self.logs, &Keys::new(self.key.clone()), None, &read).map(drop)
    }
}

/// For each changed byte of a file, a client that remembers the file's log gives the same verdict
/// as a client that remembers nothing.
#[test]
fn a_remembered_log_changes_no_verdict() {
    let scene = Scene::new();
    let keys = Keys::new(scene.key.clone());
    let question = check::Question::default();
    let honest = scene.proof(3, &[b"a", b"nobody"]);
    let file = ProofFile::decode(&honest).expect("a file");
    let logs = ProvenLogs::default();
    let verified = logs.verify(&file, &keys, None, &question);
    assert_eq!(verified, check::verify_known(&file, &keys, None, &question));
    let part = file.proof.log().clone();
    for place in 0..part.checkpoint.len() + part.newest_header.len() + part.path.len() {
        let mut lie = file.clone();
        let Proof::Query(proof) = &mut lie.proof else { panic!("a query's proof") };
        let (log, at) = (&mut proof.log, place.checked_sub(part.checkpoint.len()));
        match at.map(|at| at.checked_sub(part.newest_header.len()).ok_or(at)) {
            None => log.checkpoint.to_mut()[place] ^= 1,
            Some(Err(at)) => log.newest_header.to_mut()[at] ^= 1,
            Some(Ok(at)) => log.path[at].0[0] ^= 1,
        }
        let told = check::verify_known(&lie, &keys, None, &question);
        assert!(told.is_err(), "place {place}");
        assert_eq!(logs.verify(&lie, &keys, None, &question), told, "place {place}");
        assert_eq!(logs.verify(&file, &keys, None, &question), verified, "an honest file after a lie");
    }
    let another =
        Keys::new(SignerKey::from_seed("ledger.example/another", &[9; 32]).expect("a name").verifier().clone());
    assert!(logs.verify(&file, &another, None, &question).is_err(), "a log is remembered under its key alone");
}

#[tokio::test(start_paused = true)]
async fn a_log_may_grow_and_nothing_else() {
    let trust = Trust::new(Scene::new().key);
    let keys = Keys::clone(&trust.keys());
    let checkpoint =
        |size: u64, root: u8| Checkpoint { origin: "model".to_owned(), size, root: coppice_types::Digest([root; 32]) };
    let growth = Growth { proven: Mark::from(&checkpoint(5, 5)), newest: Mark::from(&checkpoint(7, 7)) };
    assert_eq!(trust.note(Seen { checkpoint: checkpoint(5, 5), keys: keys.clone() }).expect("the first"), None);
    assert_eq!(
        trust.note(Seen { checkpoint: checkpoint(7, 7), keys: keys.clone() }).expect("it grew"),
        None,
        "it is not time yet"
    );
    assert_eq!(
        trust.note(Seen { checkpoint: checkpoint(6, 6), keys: keys.clone() }).expect("an older one, from elsewhere"),
        None
    );
    for (size, root) in [(5, 9), (7, 9)] {
        assert!(
            matches!(
                trust.note(Seen { checkpoint: checkpoint(size, root), keys: keys.clone() }),
                Err(Error::Untrusted(_))
            ),
            "two roots of size {size}"
        );
    }
    tokio::time::advance(GROWTH_INTERVAL).await;
    assert_eq!(
        trust.note(Seen { checkpoint: checkpoint(7, 7), keys: keys.clone() }).expect("known"),
        Some(growth),
        "its growth is to be shown"
    );
    assert_eq!(
        trust.note(Seen { checkpoint: checkpoint(7, 7), keys: keys.clone() }).expect("known"),
        None,
        "one asks for all"
    );
    assert!(trust.check_growth(&keys, &growth, b"nothing", b"nothing").is_err());
}

#[tokio::test(start_paused = true)]
async fn growth_is_proven_up_to_the_newest_checkpoint_that_was_seen() {
    // Two ledgers that are equal up to some size, and the key that signs both.
    let (Scene { mut ledger, key, .. }, mut fork) = (Scene::new(), Scene::new().ledger);
    let old = ledger.headers.len() as u64;
    for (round, commit) in (5..).zip([of_round, in_session, of_round]) {
        ledger.commit(&[commit(round)]).expect("a batch");
        fork.commit(&[commit(round + 10)]).expect("a batch");
    }
    let proof = |ledger: &Ledger, from: u64, to: u64| ledger.standing(from, to).encode().expect("a small file");
    let due = async |of: &Ledger| {
        let trust = Trust::new(key.clone());
        let seen = |size| Seen { checkpoint: of.checkpoint(size), keys: Keys::clone(&trust.keys()) };
        trust.note(seen(old)).expect("the first");
        tokio::time::advance(GROWTH_INTERVAL).await;
        let growth = trust.note(seen(old + 2)).expect("it grew").expect("it is time");
        (trust, growth)
    };
    let check = async |of: &Ledger, from_proven: &[u8], from_newest: &[u8]| {
        let (trust, growth) = due(of).await;
        let proven = trust.check_growth(&trust.keys(), &growth, from_proven, from_newest);
        (proven, trust.newest.lock().expect("no panic").as_ref().map(|known| known.marks.proven.size))
    };
    for (ends, tied, size) in
        [([2, 2], true, old + 2), ([3, 3], true, old + 3), ([2, 3], true, old + 2), ([3, 2], false, old)]
    {
        let [one, two] = [proof(&ledger, old, old + ends[0]), proof(&ledger, old + 2, old + ends[1])];
        let (proven, proven_size) = check(&ledger, &one, &two).await;
        assert_eq!((proven.ok(), proven_size), (Some(tied), Some(size)), "{ends:?}");
    }
    // The client has seen the fork. The server then proves the growth of the other log, no growth,
    // or the growth of each log by itself.
    for (from_proven, from_newest) in [
        (proof(&ledger, old, old), proof(&fork, old + 2, old + 2)),
        (proof(&fork, old, old + 1), proof(&fork, old + 2, old + 2)),
        (proof(&ledger, old, old + 2), proof(&fork, old + 2, old + 3)),
        (proof(&ledger, old, old + 3), proof(&ledger, old + 2, old + 3)),
        (proof(&ledger, old, old + 3), proof(&fork, old + 2, old + 3)),
    ] {
        let (proven, size) = check(&fork, &from_proven, &from_newest).await;
        assert!(matches!(proven, Err(Error::Untrusted(_))) && size == Some(old), "{proven:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn growth_that_stays_unproven_is_an_error_after_a_while() {
    let Scene { mut ledger, key, .. } = Scene::new();
    let old = ledger.headers.len() as u64;
    ledger.commit(&[of_round(3)]).expect("a batch");
    let options = crate::Options { patience: Duration::ZERO, trust: Some(key), ..crate::Options::new("") };
    // An address without a listener.
    let nobody = tonic::transport::Endpoint::from_static("http://127.0.0.1:1").connect_lazy().into();
    let client = crate::Client::over(vec![("http://127.0.0.1:1".to_owned(), nobody)], 1, &options);
    let trust = client.trust.clone().expect("a key");
    let seen = |size| Seen { checkpoint: ledger.checkpoint(size), keys: Keys::clone(&trust.keys()) };
    client.follow(&trust, seen(old)).await.expect("the first");
    tokio::time::advance(GROWTH_PATIENCE * 2).await;
    client.follow(&trust, seen(old + 1)).await.expect("it was asked for just now");
    tokio::time::advance(GROWTH_PATIENCE).await;
    for _ in 0..2 {
        let result = client.follow(&trust, seen(old + 1)).await;
        assert!(
            result.is_err_and(|error| error.kind() == coppice_types::ErrorKind::Unavailable && error.outcome_unknown())
        );
    }
    let [proven, newest] = [old, old + 1].map(|size| Mark::from(&ledger.checkpoint(size)));
    let growth = Growth { proven, newest };
    let [one, two] = [old, old + 1].map(|from| ledger.standing(from, old + 1).encode().expect("a small file"));
    assert!(trust.check_growth(&trust.keys(), &growth, &one, &two).expect("honest proofs"));
    client.follow(&trust, seen(old + 1)).await.expect("it is proven");
}

#[test]
fn a_false_genesis_header_is_not_kept() {
    let scene = Scene::new();
    let other = ShardMap::from_splits(&[]).expect("no split");
    let other = Ledger::new("model", ClusterId([7; 16]), &[1; 32], &Params::default(), other);
    let commit = of_round(2);
    let batch = on_the_wire(&commit);
    let sent = Sent { session: None, batch: &batch };
    let response = v1::CommitResponse {
        stamp: Some(v1::Stamp { epoch: 0, version: 3 }),
        header: scene.ledger.newest().encode().into(),
        receipt: scene.ledger.receipt(Stamp::new(0, 3), 1).encode().expect("a small file").into(),
        ..v1::CommitResponse::default()
    };
    let trust = Trust::new(scene.key);
    let check =
        |genesis: Option<&[u8]>| trust.check_receipt(&trust.keys(), None, genesis, &sent, &Receipted::new(&response)?);
    assert!(matches!(check(Some(&other.headers[0].encode())), Err(Error::Untrusted(_))));
    check(Some(&scene.ledger.headers[0].encode())).expect("the ledger's own");
    check(None).expect("it is known");
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
    scene.check_range((b"a", b"c", 0), (b"a", b"c"), false, &first).expect("a whole range");
    scene.check_range((b"a", b"c", 2), (b"a", b"c"), false, &first).expect("a whole range that fills its limit");
    scene.check_range((b"a", b"z", 2), (b"a", b"b\0"), true, &first).expect("a range cut short by its limit");
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
    let (question, options, proof) = (Asked::Keys(&keys), v1::ReadOptions::default(), scene.proof(3, &[b"a"]));
    let read = Read {
        question,
        options: &options,
        records: &[honest],
        read_at: None,
        file: &decoded(&proof).expect("a proof file"),
        seen: 0,
    };
    let result = check_read(&ProvenLogs::default(), &Keys::new(other.verifier().clone()), None, &read);
    assert!(matches!(result, Err(Error::Unproven(_))), "another key");
}

#[test]
fn a_value_that_the_record_leaves_out_is_that_of_the_proof() {
    let scene = Scene::new();
    let whole = [present(b"b", 2, 3), absent(b"none"), present(b"a", 2, 3), present(b"b", 2, 3)];
    let keys: Vec<Bytes> = whole.iter().map(|record| record.key.clone()).collect();
    let at = v1::Stamp { epoch: 0, version: 3 };
    let options = v1::ReadOptions { values_in_proof: true, ..v1::ReadOptions::default() };
    let read = |proof: &Bytes| {
        let mut records = whole.clone().map(|record| v1::Record { value: Bytes::new(), ..record });
        let file = decoded(proof).expect("a proof file");
        take_values(&mut records, proof, &file);
        let question = Asked::Keys(&keys);
        let read = Read { question, options: &options, records: &records, read_at: Some(&at), file: &file, seen: 0 };
        let checked = check_read(&scene.logs, &Keys::new(scene.key.clone()), None, &read);
        (records, checked.is_ok())
    };
    let asked: [&[u8]; 3] = [b"a", b"b", b"none"];
    assert_eq!(read(&scene.proof(3, &asked).into()), (whole.clone(), true));
    let without = scene.ledger.prove_keys(Stamp::new(0, 3), &asked, false).encode().expect("a small file");
    let (records, holds) = read(&without.into());
    assert!(records.iter().all(|record| record.value.is_empty()) && !holds, "no one gave the values");
}

#[test]
fn lies_about_ranges_are_not_believed() {
    let scene = Scene::new();
    let (a, b) = (present(b"a", 2, 3), present(b"b", 2, 3));
    type Lie<'a> = ((&'a [u8], &'a [u8], u32), (&'a [u8], &'a [u8]), bool, Vec<v1::Record>);
    let lies: [Lie<'_>; 8] = [
        ((b"a", b"z", 0), (b"a", b"c"), true, vec![a.clone(), b.clone()]),
        ((b"a", b"z", 5), (b"a", b"b\0"), true, vec![a.clone(), b.clone()]),
        ((b"a", b"c", 0), (b"b", b"c"), false, vec![b.clone()]),
        ((b"a", b"c", 0), (b"a", b"c"), false, vec![a.clone()]),
        ((b"a", b"c", 0), (b"a", b"c"), false, vec![b.clone(), a.clone()]),
        ((b"a", b"z", 1), (b"a", b"c"), true, vec![a.clone(), b.clone()]),
        // The answer says that nothing follows, and proves only what lies before.
        ((b"a", b"z", 2), (b"a", b"b\0"), false, vec![a.clone(), b.clone()]),
        ((b"a", b"c", 2), (b"a", b"c"), true, vec![a.clone(), b.clone()]),
    ];
    for (asked, proven, more, records) in lies {
        let result = scene.check_range(asked, proven, more, &records);
        assert!(matches!(result, Err(Error::Untrusted(_))), "{asked:?} {proven:?} {more}: {result:?}");
    }
}

#[test]
fn head_is_the_newest_version_and_no_older_view_than_was_seen() {
    let scene = Scene::new();
    let size = scene.ledger.headers.len() as u64;
    let head = v1::ReadOptions::default();
    scene.check_place(&head, size, Stamp::new(0, 3)).expect("head");
    let untrusted = |options: &v1::ReadOptions, seen, stamp| {
        let result = scene.check_place(options, seen, stamp);
        assert!(matches!(result, Err(Error::Untrusted(_))), "{options:?} {seen} {stamp}: {result:?}");
    };
    untrusted(&head, size, Stamp::new(0, 2));
    // A view older than what was seen is not linearizable. It is accepted only if that was allowed.
    untrusted(&head, size + 1, Stamp::new(0, 3));
    let named = v1::ReadOptions { at: Some(v1::Stamp { epoch: 0, version: 2 }), ..head };
    untrusted(&named, size + 1, Stamp::new(0, 2));
    for behind in [v1::ReadOptions { stale_ok: true, ..head }, v1::ReadOptions { cosigned: true, ..head }] {
        scene.check_place(&behind, size + 1, Stamp::new(0, 3)).expect("it may be behind");
    }
}

#[test]
fn a_version_of_another_epoch_is_not_the_one_that_was_asked_for() {
    let mut scene = Scene::new();
    scene.ledger.roll_back(Version(2));
    scene.ledger.commit(&[of_round(2)]).expect("a batch");
    let at = |epoch, version| v1::ReadOptions { at: Some(v1::Stamp { epoch, version }), ..v1::ReadOptions::default() };
    scene.check_place(&at(1, 3), 0, Stamp::new(1, 3)).expect("its name");
    scene.check_place(&at(0, 2), 0, Stamp::new(0, 2)).expect("its name");
    scene.check_place(&at(1, 2), 0, Stamp::new(0, 2)).expect("the rollback's target by its new name");
    let any = v1::ReadOptions { any_epoch: true, ..at(0, 3) };
    scene.check_place(&any, 0, Stamp::new(1, 3)).expect("whatever stands there");
    for (asked, shown) in [((0, 3), Stamp::new(1, 3)), ((1, 1), Stamp::new(0, 1)), ((2, 2), Stamp::new(0, 2))] {
        let result = scene.check_place(&at(asked.0, asked.1), 0, shown);
        assert!(matches!(result, Err(Error::Untrusted(_))), "{asked:?} {shown}: {result:?}");
    }
}

#[test]
fn a_receipt_is_of_the_version_that_was_answered_and_of_the_batch_that_was_sent() {
    let scene = Scene::new();
    let map = &scene.ledger.shard_map;
    let receipt = |version, index| scene.ledger.receipt(Stamp::new(0, version), index).encode().expect("a small file");
    let mut response = v1::CommitResponse {
        stamp: Some(v1::Stamp { epoch: 0, version: 3 }),
        header: scene.ledger.newest().encode().into(),
        receipt: receipt(3, 1).into(),
        ..v1::CommitResponse::default()
    };
    let check = |commit: &Commit, response: &v1::CommitResponse| {
        let batch = on_the_wire(commit);
        check_receipt(
            &scene.logs,
            &Keys::new(scene.key.clone()),
            None,
            map,
            &Sent { session: commit.session, batch: &batch },
            &Receipted::new(response)?,
        )
    };
    let untrusted = |commit: &Commit, response: &v1::CommitResponse| {
        assert!(matches!(check(commit, response), Err(Error::Untrusted(_))), "{commit:?}");
    };
    let (sent, numbered) = (of_round(2), in_session(2));
    check(&sent, &response).expect("an honest receipt");
    // Other batches that may be committed instead, or stand at that place of the version.
    let mut shorter = sent.clone();
    shorter.operations.pop();
    let mut turned = sent.clone();
    turned.operations.swap(1, 2);
    let noted = Commit { metadata: b"why".to_vec(), ..sent.clone() };
    let session = Some((SessionId([6; 16]), 3));
    for other in [of_round(1), shorter, turned, noted, Commit { session, ..sent.clone() }, numbered.clone()] {
        untrusted(&other, &response);
    }
    let other_map = ShardMap::from_splits(&[]).expect("no split");
    let batch = on_the_wire(&sent);
    let result = check_receipt(
        &ProvenLogs::default(),
        &Keys::new(scene.key.clone()),
        None,
        &other_map,
        &Sent { session: None, batch: &batch },
        &Receipted::new(&response).expect("a proof file"),
    );
    assert!(matches!(result, Err(Error::Untrusted(_))), "a map that is not the ledger's");
    response.receipt = receipt(3, 0).into();
    check(&numbered, &response).expect("an honest receipt");
    for (number, id) in [(2, 6), (4, 6), (3, 7)] {
        untrusted(&Commit { session: Some((SessionId([id; 16]), number)), ..numbered.clone() }, &response);
    }
    response.receipt = receipt(2, 1).into();
    untrusted(&of_round(1), &response);
    response.receipt = scene.proof(3, &[b"a"]).into();
    untrusted(&sent, &response);
    response.receipt = Bytes::new();
    assert!(matches!(check(&sent, &response), Err(Error::Unproven(_))));
}

/// Notes an answer in `trust`, for a client that knew the keys `asked` when it sent the question.
fn answered(trust: &Trust, asked: &Keys, file: &ProofFile<'_>) -> Result<(), Error> {
    let bytes = file.encode().expect("a small file");
    let file = ProofFile::decode(&bytes).expect("a file");
    let verified = check::verify_known(&file, asked, None, &check::Question::default())?;
    trust.note(Seen { checkpoint: verified.checkpoint, keys: verified.keys }).map(drop)
}

#[tokio::test]
async fn a_client_follows_key_changes_and_leaves_the_old_key_behind() {
    let Scene { mut ledger, key, .. } = Scene::new();
    let trust = Trust::new(key.clone());
    let before = trust.keys();
    let old = ledger.standing(1, ledger.headers.len() as u64);
    answered(&trust, &before, &old).expect("signed by the first key");
    ledger.rotate(&[2; 32]);
    ledger.commit(&[of_round(1)]).expect("a batch");
    let size = ledger.headers.len() as u64;
    let new = ledger.standing(1, size);
    answered(&trust, &before, &new).expect("the change is shown");
    assert_eq!(trust.keys().newest(), ledger.key.verifier());
    // Signed before the change, and asked for before the change was known.
    answered(&trust, &before, &old).expect("an answer that was on its way");
    assert!(answered(&trust, &trust.keys(), &old).is_err(), "whoever signs so now has a key that was replaced");
    // The first key signs beyond its end, and the server hides the change.
    let mut late = new.clone();
    let Proof::Standing(proof) = &mut late.proof else { panic!("a standing proof") };
    proof.log.key_changes.clear();
    let thief = SignerKey::from_seed(key.name(), &[1; 32]).expect("a name");
    assert_eq!(thief.verifier(), &key);
    let note = ledger.checkpoint(size).sign(&thief).expect("the same name");
    proof.log.checkpoint = note.into_bytes().into();
    let result = answered(&trust, &before, &late);
    assert!(matches!(result, Err(Error::Untrusted(late)) if late == Distrust::Late.as_str()), "{result:?}");
    assert!(matches!(answered(&trust, &trust.keys(), &late), Err(Error::Unproven(_))));
}

#[tokio::test]
async fn a_key_change_that_differs_from_the_known_one_is_a_fork() {
    let Scene { mut ledger, key, .. } = Scene::new();
    let trust = Trust::new(key);
    let before = trust.keys();
    ledger.rotate(&[2; 32]);
    answered(&trust, &before, &ledger.standing(1, ledger.headers.len() as u64)).expect("the change is shown");
    let mut fork = Scene::new().ledger;
    fork.rotate(&[3; 32]);
    let forked = fork.standing(1, fork.headers.len() as u64);
    assert!(matches!(answered(&trust, &before, &forked), Err(Error::Untrusted(_))));
    assert!(matches!(answered(&trust, &trust.keys(), &forked), Err(Error::Unproven(_))));
}
