//! A proof that holds answers its own question and no other.

use alloc::vec;

use coppice_types::{Change, ClusterId, Operation, Params, Stamp};

use super::*;
use crate::{
    check::verify,
    replay::{Commit, Ledger},
    shard_map::ShardMap,
};

fn ledger() -> Ledger {
    let map = ShardMap::from_splits(&[]).expect("one shard");
    let mut ledger = Ledger::new("ledger.example", ClusterId([1; 16]), &[1; 32], &Params::default(), map);
    for version in 0..3_u8 {
        let operations = vec![Operation { key: b"k".to_vec().into(), change: Change::Put(vec![version].into()) }];
        ledger.commit(&[Commit { operations, ..Commit::default() }]).expect("it follows");
    }
    ledger
}

#[test]
fn proofs_answer_what_was_asked_and_nothing_else() {
    let (ledger, stamp) = (ledger(), Stamp::new(0, 2));
    let batch = ledger.versions[&stamp].journal[0].hash();
    let range = |low: &'static [u8], high: Option<&'static [u8]>| Subject::Range { low, high };
    let files = [
        (ledger.prove_keys(stamp, &[b"k", b"x"], true), Subject::Keys(vec![&b"x"[..], b"k"])),
        (ledger.prove_range(stamp, b"a", Some(b"z"), true), range(b"a", Some(b"z"))),
        (ledger.receipt(stamp, 0), Subject::Batch(batch)),
        (ledger.standing(2, 4), Subject::Growth(2)),
    ];
    let others = [
        Subject::Keys(vec![&b"k"[..], b"y"]),
        range(b"a", None),
        range(b"a", Some(b"y")),
        range(b"b", Some(b"z")),
        Subject::Batch(Digest::default()),
        Subject::Growth(3),
    ];
    for (file, asked) in &files {
        let bytes = file.encode().expect("it fits");
        let verified = verify(&bytes, ledger.key.verifier(), None).expect("an honest proof");
        let step = |question: &Question<'_>| verified.answers(question).err().map(|failure| failure.step);
        assert_eq!(step(&Question::default()), None);
        assert_eq!(step(&Question::about(asked.clone())), None, "{asked:?}");
        for other in others.iter().chain(files.iter().map(|(_, other)| other).filter(|other| *other != asked)) {
            assert_eq!(step(&Question::about(other.clone())), Some(Step::Question), "{asked:?} for {other:?}");
        }
        let version = |version| Question { version: Some(Version(version)), ..Question::default() };
        let epoch = |epoch| Question { epoch: Some(Epoch(epoch)), ..Question::default() };
        let dated = verified.header().is_some();
        assert_eq!(step(&version(2)), (!dated).then_some(Step::Question));
        assert_eq!(step(&epoch(0)), (!dated).then_some(Step::Question));
        for wrong in [version(1), version(3), epoch(1)] {
            assert_eq!(step(&wrong), Some(Step::Question));
        }
    }
}

#[test]
fn a_proof_may_show_more_keys_than_were_asked_for() {
    let ledger = ledger();
    let file = ledger.prove_keys(Stamp::new(0, 1), &[b"k", b"x"], false).encode().expect("it fits");
    let verified = verify(&file, ledger.key.verifier(), None).expect("an honest proof");
    for keys in [vec![&b"k"[..]], vec![&b"x"[..]], vec![&b"k"[..], b"k"], Vec::new()] {
        assert_eq!(verified.answers(&Question::about(Subject::Keys(keys))), Ok(()));
    }
}
