//! Streams whose messages do not make headers.

use coppice_types::{ClusterId, Params};
use coppice_verify::{replay::Ledger, shard_map::ShardMap};

use super::*;

/// A ledger with three headers behind genesis.
fn ledger() -> Ledger {
    let map = ShardMap::from_splits(&[]).expect("one shard");
    let mut ledger = Ledger::new("ledger.example", ClusterId([9; 16]), &[1; 32], &Params::default(), map);
    (0..3).for_each(|_| ledger.append_unknown(9, Vec::new()));
    ledger
}

type Message = v1::WatchHeadsResponse;

fn head(ledger: &Ledger, at: usize) -> Message {
    Message { header: ledger.headers[at].encode().into(), ..Message::default() }
}

fn part(head: &Message, journal: Option<v1::WatchedJournal>, keys: &[&'static str]) -> Message {
    let change = |key: &&'static str| v1::Record { key: Bytes::from_static(key.as_bytes()), ..v1::Record::default() };
    Message { journal, changes: keys.iter().map(change).collect(), continued: true, ..head.clone() }
}

fn entries() -> Option<v1::WatchedJournal> {
    Some(v1::WatchedJournal { entries: vec![Bytes::from_static(b"entry")], ..v1::WatchedJournal::default() })
}

fn lists(shard: u32) -> Option<v1::WatchedJournal> {
    Some(v1::WatchedJournal { shard, lists: vec![Bytes::from_static(b"list")], ..v1::WatchedJournal::default() })
}

fn joined(messages: Vec<Message>) -> Result<Vec<Headed>, &'static str> {
    let mut joiner = Joiner::default();
    let whole = messages.into_iter().filter_map(|message| joiner.take(message).transpose());
    whole.collect()
}

#[test]
fn parts_are_joined() {
    let ledger = ledger();
    let one = head(&ledger, 1);
    let messages = vec![
        part(&one, entries(), &[]),
        part(&one, lists(1), &[]),
        part(&one, lists(4), &[]),
        part(&one, None, &["a"]),
        part(&one, None, &["b"]),
        one,
        head(&ledger, 2),
    ];
    let whole = joined(messages).expect("two headers");
    let [first, second] = &whole[..] else { panic!("{whole:?}") };
    let journal = first.journal.as_ref().expect("a journal");
    assert_eq!((journal.entries.len(), journal.lists.len(), first.changes.len()), (1, 2, 2));
    assert!(second.journal.is_none() && second.changes.is_empty());
}

#[test]
fn what_a_rolled_back_commit_showed_is_forgotten() {
    let ledger = ledger();
    let one = head(&ledger, 1);
    let last = Message { rolled_back: true, ..one.clone() };
    let whole = joined(vec![part(&one, entries(), &["a"]), last]).expect("a header");
    assert!(whole[0].rolled_back && whole[0].journal.is_none() && whole[0].changes.is_empty());
}

#[test]
fn messages_that_make_no_header_are_malformed() {
    let ledger = ledger();
    let (one, two) = (head(&ledger, 1), head(&ledger, 2));
    let mut skewed = ledger.headers[2].clone();
    skewed.timestamp_ms = 1;
    let skewed = Message { header: skewed.encode().into(), ..Message::default() };
    for messages in [
        vec![Message { header: Bytes::from_static(b"no header"), ..Message::default() }],
        vec![part(&one, entries(), &[]), two.clone()],
        vec![one.clone(), skewed],
        vec![one.clone(), one.clone()],
        vec![part(&one, None, &["a"]), part(&one, entries(), &[])],
        vec![part(&one, lists(1), &[])],
        vec![part(&one, entries(), &[]), part(&one, entries(), &[])],
        vec![part(&one, entries(), &[]), part(&one, lists(4), &[]), part(&one, lists(4), &[])],
        vec![part(&one, entries(), &[]), part(&one, lists(4), &[]), part(&one, lists(1), &[])],
    ] {
        assert!(joined(messages.clone()).is_err(), "{messages:?}");
    }
}

#[test]
fn a_version_is_bounded() {
    let ledger = ledger();
    let one = head(&ledger, 1);
    let parts = VERSION_BYTES_MAX / (1 << 28) + 1;
    let value = Bytes::from(vec![0; 1 << 28]);
    let change = v1::Record { value, ..v1::Record::default() };
    let large = Message { changes: vec![change], continued: true, ..one };
    assert!(joined(vec![large; parts]).is_err());
}
