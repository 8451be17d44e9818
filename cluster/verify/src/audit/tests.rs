//! Each rule of an audit, broken by one header, entry or operation.

use alloc::{string::String, vec};

use coppice_types::{Change, ClusterId, Epoch, LedgerId, Operation, SessionId};

use super::*;
use crate::{
    header::{Prune, Rollback},
    journal::{AppendEntry, BatchEntry, HeadEntry, MergeEntry},
    keys::KeyChange,
    note::SignerKey,
    replay::{Commit, Ledger},
};

fn map() -> ShardMap {
    ShardMap::from_splits(&[b"m".to_vec()]).expect("one split")
}

/// A ledger with versions 1 to 4, a rollback to 2, version 3 again, a prune to 1 and a key change.
fn ledger() -> Ledger {
    let mut ledger = Ledger::new("ledger.example", ClusterId([1; 16]), &[1; 32], &Params::default(), map());
    let commit = |ledger: &mut Ledger, value: u8| {
        let operations = vec![Operation { key: b"k".to_vec().into(), change: Change::Put(vec![value].into()) }];
        ledger.commit(&[Commit { operations, ..Commit::default() }]).expect("it follows");
    };
    (1..=4).for_each(|value| commit(&mut ledger, value));
    ledger.roll_back(Version(2));
    commit(&mut ledger, 5);
    ledger.prune(Version(1));
    ledger.rotate(&[2; 32]);
    ledger
}

fn chain(headers: &[Header]) -> Result<Chain, BrokenRule> {
    let mut chain = Chain::default();
    headers.iter().try_for_each(|header| chain.take(header.clone()))?;
    Ok(chain)
}

/// The rule that a header breaks if it comes last. `edit` may change what the model would append.
fn broken(ledger: &Ledger, stamp: Stamp, body: Body, edit: impl FnOnce(&mut Header)) -> &'static str {
    let mut header = ledger.next_header(stamp, ledger.newest().state_root, &[], body);
    edit(&mut header);
    let mut headers = ledger.headers.clone();
    headers.push(header);
    chain(&headers).expect_err("a rule is broken").0
}

#[test]
fn a_log_gives_a_line_for_each_version_that_stands() {
    let ledger = ledger();
    let chain = chain(&ledger.headers).expect("a sound log");
    let stamps: Vec<Stamp> = chain.lines().iter().map(|line| line.stamp).collect();
    assert_eq!(stamps, [(0, 0), (0, 1), (0, 2), (1, 3)].map(|(epoch, version)| Stamp::new(epoch, version)));
    for line in chain.into_lines() {
        let header = &ledger.versions[&line.stamp].header;
        assert_eq!((line.hash, line.state_root), (header.hash(), header.state_root));
        assert_eq!(line.journal, (header.journal_root, header.journal_leaves));
    }
}

#[test]
fn a_log_with_a_header_left_out_doubled_or_changed_is_refused() {
    let headers = ledger().headers;
    for at in 0..headers.len() {
        let mut doubled = headers.clone();
        doubled.insert(at, headers[at].clone());
        assert!(chain(&doubled).is_err(), "entry {at} twice");
        let mut changed = headers.clone();
        changed[at].timestamp_ms += 1;
        assert!(at + 1 == headers.len() || chain(&changed).is_err(), "entry {at} with another time");
        if at + 1 < headers.len() {
            let mut shorter = headers.clone();
            shorter.remove(at);
            assert!(chain(&shorter).is_err(), "without entry {at}");
        }
    }
}

#[test]
fn a_rollback_names_a_version_that_stands_and_its_state() {
    let ledger = ledger();
    let (head, epoch) = (ledger.head(), Epoch(2));
    let rollback = |target: Stamp| {
        let (principal, reason) = (String::new(), String::new());
        Body::Rollback(Rollback { target, head_before: head, principal, reason })
    };
    let to = |version| Stamp { epoch, version: Version(version) };
    // Version 2 has the stamp (0, 2).
    let named = broken(&ledger, to(2), rollback(Stamp::new(1, 2)), |_| ());
    assert_eq!(named, "a rollback with another name for its target");
    let state = broken(&ledger, to(2), rollback(Stamp::new(0, 2)), |_| ());
    assert_eq!(state, "a rollback to a different state root than its target's");
    let pruned = broken(&ledger, to(0), rollback(Stamp::new(0, 0)), |_| ());
    assert_eq!(pruned, "a rollback to below the boundary of a prune");
    let two = ledger.versions[&Stamp::new(0, 2)].header.state_root;
    let epochs = broken(&ledger, to(2), rollback(Stamp::new(0, 2)), |header| header.state_root = two);
    assert_eq!(epochs, "epochs that its rollbacks do not lead to");
}

#[test]
fn the_boundary_of_a_prune_rises() {
    let ledger = ledger();
    let prune = |boundary| Body::Prune(Prune { boundary, principal: String::new(), reason: String::new() });
    assert_eq!(broken(&ledger, ledger.head(), prune(Version(1)), |_| ()), "the boundary of a prune does not rise");
}

#[test]
fn key_changes_follow_each_other() {
    let ledger = ledger();
    let signer = |seed| SignerKey::from_seed(ledger.key.name(), &[seed; 32]).expect("the name is fine");
    let change = |number, old, new| Body::Key(KeyChange::sign(number, &ledger.cluster, &signer(old), &signer(new)));
    for (body, rule) in [
        (change(1, 2, 3), "number of a key change"),
        (change(3, 2, 3), "number of a key change"),
        (change(2, 1, 3), "a key change from another key"),
        (change(2, 2, 1), "a key change to an earlier key"),
    ] {
        assert_eq!(broken(&ledger, ledger.head(), body, |_| ()), rule);
    }
}

#[test]
fn no_header_changes_the_shards_or_the_epochs() {
    let ledger = ledger();
    let next = Stamp { epoch: ledger.head().epoch, version: ledger.head().version.next() };
    assert_eq!(broken(&ledger, next, Body::Commit, |it| it.shard_map = Digest([7; 32])), "shards of a commit");
    assert_eq!(broken(&ledger, next, Body::Commit, |it| it.state_leaves += 1), "shards of a commit");
    assert_eq!(broken(&ledger, next, Body::Commit, |it| it.epoch_pairs += 1), "epoch of a commit");
    let other = Body::Other { kind: 9, bytes: Vec::new() };
    assert_eq!(broken(&ledger, next, other, |_| ()), "state of an unknown kind");
}

fn batch(session: Option<(SessionId, u64)>, shard: u32) -> Entry {
    Entry::Batch(BatchEntry { session, metadata: Digest::default(), shards: vec![(ShardId(shard), Digest::default())] })
}

fn merge(shard: u32) -> Entry {
    Entry::Merge(MergeEntry { shard: ShardId(shard), inputs: vec![Digest::default(); 2], output: Digest::default() })
}

#[test]
fn entries_have_their_order_their_numbers_and_known_shards() {
    let session = |seed, number| Some((SessionId([seed; 16]), number));
    let check = |entries: &[Entry]| check_entries(&Params::default(), &map(), entries);
    let sound = [batch(None, 0), batch(session(1, 1), 1), batch(session(1, 2), 0), batch(session(2, 1), 0), merge(1)];
    assert_eq!(check(&sound), Ok(()));
    let rule = |entries: &[Entry]| check(entries).expect_err("a rule is broken");
    let whole = |rule| Broken { shard: None, rule };
    assert_eq!(rule(&[merge(0), batch(None, 0)]), whole("its journal has entries out of order"));
    assert_eq!(rule(&[batch(session(1, 0), 0)]), whole("a batch has number 0 of its session"));
    let twice = [batch(session(1, 1), 0), batch(session(1, 1), 1)];
    assert_eq!(rule(&twice), whole("two batches have the same session number"));
    for entry in [batch(None, 2), merge(2)] {
        let rule = rule(&[entry]);
        assert_eq!((rule.shard, rule.rule), (Some(ShardId(2)), "its journal names an unknown shard"));
    }
}

#[test]
fn entries_of_ledgers_have_their_place_and_their_keys() {
    let ledger = |seed| LedgerId([seed; 16]);
    let append = || {
        let (signed, shards) = (b"signed".to_vec(), vec![(ShardId(0), Digest::default())]);
        let (signature, leaves_root) = ([0; 64], Digest::default());
        Entry::Append(AppendEntry { ledger: ledger(1), signed, signature, first_jsn: 0, count: 1, leaves_root, shards })
    };
    let head = |seed| {
        let (root, shards) = (Digest::default(), vec![(ShardId(0), Digest::default())]);
        Entry::Head(HeadEntry { ledger: ledger(seed), size_before: 0, size: 1, root, shards })
    };
    let params = Params { ledgers: true, journals_kept: true, ..Params::default() };
    let check = |entries: &[Entry]| check_entries(&params, &map(), entries).map_err(|broken| broken.rule);
    assert_eq!(check(&[append(), batch(None, 0), append(), head(1), head(2), merge(1)]), Ok(()));
    let order = Err("its journal has entries out of order");
    assert_eq!(check(&[head(1), append()]), order);
    assert_eq!(check(&[head(1), batch(None, 0)]), order);
    assert_eq!(check(&[append(), merge(1), head(1)]), order);
    let heads = Err("its journal has the heads of ledgers out of order");
    assert_eq!(check(&[head(2), head(1)]), heads);
    assert_eq!(check(&[head(1), head(1)]), heads);
    let none = check_entries(&Params::default(), &map(), &[append()]).map_err(|broken| broken.rule);
    assert_eq!(none, Err("its journal has an entry of a ledger, which genesis rules out"));

    let writes = |params: &Params, author, key: &[u8]| {
        let list = [(key.to_vec(), RecordBody::Tombstone)];
        check_operations(params, &map(), ShardId(0), author, &list).map_err(|broken| broken.rule)
    };
    let reserved = Err("a batch writes a reserved key, or a ledger one that is not");
    assert_eq!(writes(&params, Author::Batch, &[0, 255]), reserved);
    assert_eq!(writes(&params, Author::Batch, &[1]), Ok(1));
    assert_eq!(writes(&params, Author::Ledger, &[1]), reserved);
    assert_eq!(writes(&params, Author::Ledger, &[0, 255]), Ok(2));
    assert_eq!(writes(&Params::default(), Author::Batch, &[0, 255]), Ok(2), "no key is reserved in version 2");
}

#[test]
fn operations_keep_the_limits_of_genesis_and_the_range_of_their_shard() {
    let params = Params { key_bytes_max: 4, value_bytes_max: 9, batch_bytes_max: 20, ..Params::default() };
    let check = |shard, operations: &[(&[u8], u32)]| {
        let put = |&(key, value_len): &(&[u8], u32)| {
            (key.to_vec(), RecordBody::Put { value_len, value_hash: Digest::default() })
        };
        let operations: Vec<_> = operations.iter().map(put).collect();
        check_operations(&params, &map(), ShardId(shard), Author::Batch, &operations)
    };
    assert_eq!(check(0, &[(b"a", 9), (b"lzzz", 6)]), Ok(20));
    assert_eq!(check(1, &[(b"m", 0)]), Ok(1));
    let refused = |shard, operations: &[(&[u8], u32)], rule| {
        assert_eq!(check(shard, operations), Err(Broken { shard: Some(ShardId(shard)), rule }));
    };
    refused(0, &[], "an operation list is empty");
    refused(0, &[(b"", 0)], "an operation has an empty key");
    refused(0, &[(b"aaaaa", 0)], "an operation has a key over the limit of genesis");
    refused(0, &[(b"m", 0)], "an operation has a key that is not in the range of its shard");
    refused(1, &[(b"lzzz", 0)], "an operation has a key that is not in the range of its shard");
    refused(0, &[(b"a", 10)], "an operation has a value over the limit of genesis");
    refused(0, &[(b"a", 9), (b"b", 9), (b"c", 0)], "a batch is over the limit of genesis");
    refused(2, &[(b"a", 0)], "its journal names an unknown shard");
    let deleted = [(b"a".to_vec(), RecordBody::Tombstone)];
    assert_eq!(check_operations(&params, &map(), ShardId(0), Author::Batch, &deleted), Ok(1));
    assert_eq!(check_batch(&params, 20), Ok(()));
    assert!(check_batch(&params, 21).is_err());
    let limit = usize::from(params.tree_limit);
    assert_eq!(check_trees(&params, ShardId(0), limit), Ok(()));
    assert!(check_trees(&params, ShardId(0), limit + 1).is_err());
}
