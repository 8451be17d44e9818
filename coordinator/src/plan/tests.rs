mod orders;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use coppice_proto::v1;
use coppice_types::{
    ClusterId, Digest, Epoch, MergeName, Params, Reason, Sequence, SessionCommit, SessionId, ShardId, Stamp, Version,
};
use coppice_verify::{
    epochs::Epochs,
    hash,
    header::{Genesis, Header},
    journal::Entry,
    merkle,
    shard_map::ShardMap,
};

use super::*;

const SESSION: SessionId = SessionId([7; 16]);
const BATCHES_MAX: usize = 16;

/// The tail of a log whose newest header is genesis, with two shards, split at "m".
fn tail() -> LogTail {
    let map = ShardMap::from_splits(&[b"m".to_vec()]).expect("one split");
    let leaves = Leaves::new(map.genesis_leaves()).expect("the map covers all keys");
    let genesis =
        Genesis { prefix: "coppice.test".to_owned(), public_key: [2; 32], params: Params::default(), shard_map: map };
    let header = Header::genesis(ClusterId([1; 16]), 1_000, genesis);
    LogTail { hash: header.hash(), header, epochs: Epochs::new(), leaves }
}

fn put(key: &str, value: &str) -> v1::Operation {
    let change = Some(v1::operation::Change::Put(Bytes::copy_from_slice(value.as_bytes())));
    v1::Operation { key: Bytes::copy_from_slice(key.as_bytes()), change }
}

fn delete(key: &str) -> v1::Operation {
    v1::Operation { key: Bytes::copy_from_slice(key.as_bytes()), change: Some(v1::operation::Change::Delete(true)) }
}

fn check(key: &str, condition: v1::precondition::Condition) -> v1::Precondition {
    v1::Precondition { key: Bytes::copy_from_slice(key.as_bytes()), condition: Some(condition) }
}

fn absent(key: &str) -> v1::Precondition {
    check(key, v1::precondition::Condition::Absent(true))
}

fn value_is(key: &str, value: &str) -> v1::Precondition {
    let hash = Bytes::copy_from_slice(&hash::sha256(value.as_bytes()).0);
    check(key, v1::precondition::Condition::ValueSha256(hash))
}

fn batch<const N: usize, const M: usize>(operations: [v1::Operation; N], checks: [v1::Precondition; M]) -> v1::Batch {
    v1::Batch { operations: operations.to_vec(), preconditions: checks.to_vec(), ..v1::Batch::default() }
}

fn admit(batch: v1::Batch) -> Arc<Request> {
    Arc::new(Request::admit(batch, None, &tail().leaves, &Params::default()).expect("the batch is within its limits"))
}

fn in_session(batch: v1::Batch, number: u64) -> Arc<Request> {
    let session = Some((SESSION, number));
    Arc::new(Request::admit(batch, session, &tail().leaves, &Params::default()).expect("within its limits"))
}

/// The facts that version (0, 1) is formed from, for a test to change. Keys that are not given are
/// absent.
struct World {
    overlay: Overlay,
    reads: KeysRead,
    sessions: Sessions,
    in_flight: BTreeSet<(SessionId, u64)>,
    blocked: Blocked,
    down: BTreeSet<ShardId>,
    erasures_left: BTreeMap<ShardId, u64>,
    below: Stamp,
    batches_max: usize,
    bytes_max: u64,
}

impl World {
    fn new() -> Self {
        Self {
            overlay: Overlay::default(),
            reads: KeysRead::default(),
            sessions: Sessions::new(4),
            in_flight: BTreeSet::new(),
            blocked: Blocked::default(),
            down: BTreeSet::new(),
            erasures_left: BTreeMap::new(),
            below: Stamp::new(0, 0),
            batches_max: BATCHES_MAX,
            bytes_max: 1 << 20,
        }
    }

    fn form(&mut self, waiting: &[Arc<Request>]) -> Draft {
        let waiting = in_reach(waiting.iter().cloned(), &self.blocked, self.batches_max);
        for key in keys_to_read(&waiting, &self.overlay, &self.blocked) {
            self.reads.states.entry(key).or_insert(KeyState::Absent);
        }
        form(
            &waiting,
            &Ground {
                stamp: Stamp { epoch: self.below.epoch, version: self.below.version.next() },
                now_ms: 0,
                below: self.below,
                overlay: &self.overlay,
                reads: &self.reads,
                sessions: &self.sessions,
                in_flight: &self.in_flight,
                blocked: &self.blocked,
                down: &self.down,
                erasures_left: &self.erasures_left,
                bytes_max: self.bytes_max,
            },
        )
    }
}

fn reason(verdict: &Verdict) -> Reason {
    match verdict {
        Verdict::Refused(refusal) => refusal.reason,
        other => panic!("expected a refusal, found {other:?}"),
    }
}

#[test]
fn waiting_batches_share_a_version_and_the_last_write_of_a_key_wins() {
    let waiting = [
        admit(batch([put("a", "1"), put("z", "1")], [])),
        admit(batch([put("a", "2"), delete("b")], [])),
        admit(batch([put("b", "3"), put("b", "4")], [])),
    ];
    assert_eq!(World::new().form(&waiting).verdicts, vec![Verdict::Taken; 3]);
    let tail = tail();
    let plan = Plan::new(tail.next_stamp(), waiting.to_vec(), &Draft::default(), &tail.leaves, &BTreeMap::new());
    let writes: Vec<_> = plan.shards[&ShardId(0)].writes.iter().map(value).collect();
    assert_eq!(writes, [("a", Some("2")), ("b", Some("4"))]);
    assert_eq!(plan.shards[&ShardId(1)].writes.len(), 1);
    assert_eq!(plan.shards[&ShardId(0)].lists.len(), 3, "every batch keeps its own operation list");
    for (batch, list) in waiting.iter().zip(&plan.shards[&ShardId(0)].lists) {
        let tagged: Vec<u8> = [&[0x1a], &list[..]].concat();
        assert_eq!(hash::sha256(&tagged), batch.list_hashes[&ShardId(0)]);
    }
}

fn value(write: &Write) -> (&str, Option<&str>) {
    let text = |bytes| std::str::from_utf8(bytes).expect("tests write text");
    (text(&write.key), write.put.as_ref().map(|put| text(&put.value)))
}

#[test]
fn a_key_lies_in_the_shard_whose_range_holds_it() {
    let leaves = tail().leaves;
    for (key, shard) in [("a", 0), ("l\u{7f}", 0), ("m", 1), ("m\0", 1), ("zz", 1)] {
        assert_eq!(leaves.route(key.as_bytes()), ShardId(shard), "{key}");
    }
    assert_eq!(leaves.overlapping(b"a", Some(b"m")), 0..1);
    assert_eq!(leaves.overlapping(b"a", Some(b"m\0")), 0..2);
    assert_eq!(leaves.overlapping(b"m", None), 1..2);
}

#[test]
fn a_batch_sees_the_writes_of_batches_before_it_in_its_version() {
    let waiting = [
        admit(batch([put("a", "1")], [absent("a")])),
        admit(batch([put("b", "1")], [absent("a")])),
        admit(batch([delete("a")], [value_is("a", "1")])),
        admit(batch([put("c", "1")], [absent("a")])),
    ];
    let draft = World::new().form(&waiting);
    assert_eq!(draft.verdicts[0], Verdict::Taken);
    assert_eq!(reason(&draft.verdicts[1]), Reason::PreconditionFailed);
    assert_eq!(draft.verdicts[2..], [Verdict::Taken, Verdict::Taken]);
}

#[test]
fn undecided_writes_are_seen_before_what_was_read() {
    let mut world = World::new();
    let undecided = admit(batch([put("a", "new")], []));
    world.overlay.apply(&undecided, Stamp::new(0, 1));
    world.below = Stamp::new(0, 1);
    let old = KeyState::Live { last_changed: Stamp::new(0, 0), value_hash: hash::sha256(b"old") };
    world.reads.states.insert(Bytes::from_static(b"a"), old);
    let stamp = v1::Stamp { epoch: 0, version: 1 };
    let waiting = [
        admit(batch([], [value_is("a", "old")])),
        admit(batch([], [value_is("a", "new")])),
        admit(batch([], [check("a", v1::precondition::Condition::LastChanged(stamp))])),
    ];
    let draft = world.form(&waiting);
    assert_eq!(reason(&draft.verdicts[0]), Reason::PreconditionFailed);
    assert_eq!(draft.verdicts[1..], [Verdict::Taken, Verdict::Taken]);
}

/// PROTOCOL 4.3, first trace.
#[test]
fn a_refusal_on_an_undecided_write_is_judged_again_when_the_write_is_aborted() {
    let a = admit(batch([put("k", "A's")], []));
    let b = admit(batch([put("k", "B's")], [absent("k")]));
    let mut world = World::new();
    let draft = world.form(&[a, b.clone()]);
    assert_eq!(reason(&draft.verdicts[1]), Reason::PreconditionFailed);
    // The version is aborted and A's batch is answered with UNAVAILABLE. The remaining batches are
    // judged again.
    assert_eq!(world.form(&[b]).verdicts, [Verdict::Taken]);
}

/// PROTOCOL 4.4.
#[test]
fn after_an_abort_a_batch_that_built_on_an_aborted_write_is_refused() {
    let a = admit(batch([put("a", "A's")], []));
    let b = admit(batch([put("z", "B's")], [value_is("a", "A's")]));
    let c = admit(batch([put("z", "C's")], []));
    let mut world = World::new();
    assert_eq!(world.form(&[a, b.clone(), c.clone()]).verdicts, vec![Verdict::Taken; 3]);
    // Shard 0 times out after it said that "a" is absent. B has a precondition there, so B fails,
    // too.
    assert!(b.involved.contains(&ShardId(0)), "a batch belongs to a shard by its preconditions too");
    world.down.insert(ShardId(0));
    let draft = world.form(&[b.clone(), c]);
    assert_eq!(reason(&draft.verdicts[0]), Reason::Unavailable);
    assert_eq!(draft.verdicts[1], Verdict::Taken);
    // When the shard is back, B is refused for its precondition.
    world.down.clear();
    assert_eq!(reason(&world.form(&[b]).verdicts[0]), Reason::PreconditionFailed);
}

#[test]
fn expected_head_opens_the_version_and_names_the_one_below() {
    let mut world = World::new();
    world.below = Stamp::new(2, 9);
    let expecting = |epoch, version| {
        let expected_head = Some(v1::Stamp { epoch, version });
        admit(v1::Batch { expected_head, ..batch([put("a", "1")], []) })
    };
    let plain = admit(batch([put("b", "1")], []));
    let draft = world.form(&[plain.clone(), expecting(2, 9), plain.clone()]);
    assert_eq!(draft.verdicts, [Verdict::Taken, Verdict::Waits], "it waits to open the next one");
    let draft = world.form(&[expecting(2, 8), expecting(1, 9), expecting(2, 9), plain, expecting(2, 9)]);
    assert_eq!(reason(&draft.verdicts[0]), Reason::PreconditionFailed);
    assert_eq!(reason(&draft.verdicts[1]), Reason::PreconditionFailed);
    assert_eq!(draft.verdicts[2..], [Verdict::Taken, Verdict::Taken, Verdict::Waits]);
}

#[test]
fn an_exclusive_batch_is_alone_in_its_version() {
    let exclusive = admit(v1::Batch { exclusive: true, ..batch([], []) });
    let plain = admit(batch([put("b", "1")], []));
    let mut world = World::new();
    let draft = world.form(&[plain.clone(), exclusive.clone(), plain.clone()]);
    assert_eq!(draft.verdicts, [Verdict::Taken, Verdict::Waits]);
    assert_eq!(world.form(&[exclusive, plain]).verdicts, [Verdict::Taken]);
}

#[test]
fn a_version_is_closed_when_it_is_full() {
    let mut world = World::new();
    world.batches_max = 2;
    let plain = admit(batch([put("b", "1")], []));
    assert_eq!(world.form(&vec![plain.clone(); 5]).verdicts, vec![Verdict::Taken; 2]);
    (world.batches_max, world.bytes_max) = (5, plain.bytes * 3);
    assert_eq!(world.form(&vec![plain.clone(); 5]).taken(), 3);
    world.bytes_max = 1;
    assert_eq!(world.form(&vec![plain; 5]).taken(), 1, "a large batch goes alone");
}

#[test]
fn writes_to_a_shard_whose_trees_are_full_wait_and_others_pass() {
    let mut world = World::new();
    world.blocked.full.insert(ShardId(0));
    let both = admit(batch([put("a", "1"), put("z", "1")], []));
    let other = admit(batch([put("z", "2")], [absent("a")]));
    assert_eq!(world.form(&[both, other]).verdicts, [Verdict::Waits, Verdict::Taken]);
}

#[test]
fn however_many_wait_for_a_shard_others_behind_them_pass() {
    let mut world = World::new();
    world.batches_max = 2;
    world.sessions.open(SESSION, 0);
    let full = admit(batch([put("a", "1")], [absent("b")]));
    let (free, follows) = (admit(batch([put("z", "1")], [absent("z")])), in_session(batch([put("z", "2")], []), 2));
    let mut waiting = vec![full; 5];
    waiting.extend([in_session(batch([put("a", "2")], []), 1), follows, free.clone(), free.clone(), free]);
    for blocked in [
        Blocked { full: [ShardId(0)].into(), ..Blocked::default() },
        Blocked { starting: [ShardId(0)].into(), ..Blocked::default() },
    ] {
        world.blocked = blocked;
        let verdicts = world.form(&waiting).verdicts;
        assert_eq!(verdicts[..7], vec![Verdict::Waits; 7], "what follows a batch of its session that waits, waits");
        assert_eq!(verdicts[7], Verdict::Taken);
        assert_eq!(
            verdicts[8..].iter().map(reason).collect::<Vec<_>>(),
            [Reason::PreconditionFailed],
            "two are looked at"
        );
        assert!(!world.reads.states.contains_key(b"b".as_slice()), "keys of batches that wait need not be read");
    }
}

#[test]
fn whatever_asks_something_of_a_shard_that_is_not_adopted_waits() {
    let mut world = World::new();
    world.blocked.starting.insert(ShardId(0));
    let asks = admit(batch([put("z", "1")], [absent("a")]));
    let other = admit(batch([put("z", "2")], []));
    assert_eq!(world.form(&[asks, other]).verdicts, [Verdict::Waits, Verdict::Taken]);
}

#[test]
fn numbers_that_are_a_window_apart_do_not_share_a_version() {
    let mut world = World::new();
    world.sessions.open(SESSION, 0);
    let batches: Vec<_> = [1, 4, 5].into_iter().map(|number| in_session(batch([], []), number)).collect();
    assert_eq!(world.form(&batches).verdicts, [Verdict::Taken, Verdict::Taken, Verdict::Waits]);
}

#[test]
fn a_session_number_is_applied_once() {
    let mut world = World::new();
    let first = in_session(batch([put("a", "1")], []), 1);
    assert_eq!(numbers_to_ask(std::slice::from_ref(&first), &world.sessions), BTreeSet::from([(SESSION, 1)]));
    assert_eq!(world.form(std::slice::from_ref(&first)).verdicts, [Verdict::Waits], "nothing is known of the session");
    world.sessions.end(SESSION);
    assert_eq!(reason(&world.form(std::slice::from_ref(&first)).verdicts[0]), Reason::UnknownSession);
    world.sessions.open(SESSION, 0);
    // If a number is sent twice at once, the second waits for the outcome of the first. The batches
    // after it in the stream wait too.
    let next = in_session(batch([put("a", "2")], []), 2);
    let draft = world.form(&[first.clone(), first.clone(), next.clone()]);
    assert_eq!(draft.verdicts, [Verdict::Taken, Verdict::Waits, Verdict::Waits]);
    world.in_flight.insert((SESSION, 1));
    assert_eq!(world.form(std::slice::from_ref(&first)).verdicts, [Verdict::Waits]);
    world.in_flight.clear();
    let done = Done { batch_hash: first.batch_hash, sequence: Sequence(5), journal_index: 3, rolled_back: false };
    world.sessions.record(SESSION, 1, done);
    assert_eq!(world.form(&[first.clone(), next]).verdicts, [Verdict::Known(done), Verdict::Taken]);
    let other = in_session(batch([put("a", "other")], []), 1);
    assert_eq!(reason(&world.form(&[other]).verdicts[0]), Reason::SessionMismatch);
    world.sessions.roll_back(Sequence(4));
    assert_eq!(reason(&world.form(std::slice::from_ref(&first)).verdicts[0]), Reason::RolledBack);
    world.sessions.record(SESSION, 5, done);
    assert_eq!(reason(&world.form(&[first]).verdicts[0]), Reason::RequestExpired);
}

#[test]
fn numbers_of_a_session_that_is_not_known_whole_are_asked_for() {
    let mut sessions = Sessions::new(100);
    sessions.open(SESSION, 9);
    assert_eq!(sessions.standing(&SESSION, 9), NumberStanding::Unknown);
    assert_eq!(sessions.standing(&SESSION, 10), NumberStanding::New);
    sessions.learn(SESSION, 8, None);
    assert_eq!(sessions.standing(&SESSION, 8), NumberStanding::New);
    let done = Done { batch_hash: Digest::default(), sequence: Sequence(1), journal_index: 0, rolled_back: false };
    sessions.learn(SESSION, 9, Some(done));
    assert_eq!(sessions.standing(&SESSION, 9), NumberStanding::Done(done));
}

/// If the root group returns a lower number than the known ones, the session was opened again, or
/// the answer is older than the newest commits.
#[test]
fn what_is_known_of_a_session_that_may_have_ended_is_asked_for_again() {
    let mut world = World::new();
    let first = in_session(batch([put("a", "1")], []), 1);
    let done = Done { batch_hash: first.batch_hash, sequence: Sequence(5), journal_index: 3, rolled_back: false };
    world.sessions.open(SESSION, 0);
    world.sessions.record(SESSION, 1, done);
    world.sessions.record(SESSION, 9, done);
    world.sessions.open(SESSION, 9);
    assert_eq!(world.sessions.standing(&SESSION, 9), NumberStanding::Done(done), "nothing new was said");
    let mut living = world.sessions.clone();
    living.doubt(&SESSION, 9);
    assert_eq!(living.standing(&SESSION, 9), NumberStanding::Unknown);
    assert_eq!(living.standing(&SESSION, 10), NumberStanding::New);
    living.learn(SESSION, 9, Some(done));
    assert_eq!(living.standing(&SESSION, 9), NumberStanding::Done(done));
    world.sessions.open(SESSION, 0);
    for number in [1, 9] {
        assert_eq!(world.sessions.standing(&SESSION, number), NumberStanding::Unknown);
    }
    assert_eq!(world.sessions.standing(&SESSION, 10), NumberStanding::New);
    assert_eq!(world.form(std::slice::from_ref(&first)).verdicts, [Verdict::Waits]);
    world.sessions.learn(SESSION, 1, None);
    assert_eq!(world.form(std::slice::from_ref(&first)).verdicts, [Verdict::Taken], "the new session knows nothing");
    // The session lives on: the answer was older than its commits.
    living.open(SESSION, 8);
    living.learn(SESSION, 9, Some(done));
    living.expire(SESSION, 1);
    assert_eq!(living.standing(&SESSION, 9), NumberStanding::Done(done));
    assert_eq!(living.standing(&SESSION, 1), NumberStanding::Expired);
}

#[test]
fn headers_follow_the_rules_of_the_log() {
    let tail = tail();
    let merge = MergeName { inputs: vec![Digest([3; 32]), Digest([4; 32])], output: Digest([5; 32]) };
    let waiting = vec![in_session(batch([put("a", "1")], []), 1), admit(batch([put("a", "2")], []))];
    let merges = BTreeMap::from([(ShardId(0), merge.clone()), (ShardId(1), merge)]);
    let plan = Plan::new(tail.next_stamp(), waiting.clone(), &Draft::default(), &tail.leaves, &merges);
    assert_eq!(plan.shards.len(), 1, "an untouched shard's merge waits");
    let commit = plan.commit(&BTreeMap::from([(ShardId(0), Digest([9; 32]))]), &tail, 500);
    let header = Header::decode(&commit.header).expect("headers are canonical");
    header.check_follows(&tail.header).expect("it follows");
    assert_eq!(header.timestamp_ms, 1_000, "timestamps never decrease");
    assert_eq!(commit.changed.len(), 1);
    assert_eq!((commit.changed[0].version, commit.changed[0].digest), (Version(1), Digest([9; 32])));
    let entries: Vec<Entry> =
        commit.journal.iter().map(|bytes| Entry::decode(bytes).expect("entries are canonical")).collect();
    assert!(matches!(entries[..], [Entry::Batch(_), Entry::Batch(_), Entry::Merge(_)]), "batches, then events");
    let hashes: Vec<Digest> = entries.iter().map(Entry::hash).collect();
    assert_eq!(header.journal_root, merkle::mth(&hashes));
    let batch_hash = waiting[0].batch_hash;
    assert_eq!(commit.sessions, [SessionCommit { session: SESSION, number: 1, batch_hash, journal_index: 0 }]);
    // A version may touch no shard.
    let empty = Plan::new(
        commit.tail.next_stamp(),
        vec![admit(batch([], []))],
        &Draft::default(),
        &commit.tail.leaves,
        &merges,
    );
    let second = empty.commit(&BTreeMap::new(), &commit.tail, 2_000);
    second.tail.header.check_follows(&header).expect("it follows");
    assert_eq!(second.tail.header.state_root, header.state_root);
}

#[test]
fn rollback_and_prune_are_headers_that_follow_the_rules_of_the_log() {
    let mut at = tail();
    let mut leaves = vec![at.leaves.clone()];
    for number in 1..=3 {
        let plan = Plan::new(
            at.next_stamp(),
            vec![admit(batch([put("a", "1")], []))],
            &Draft::default(),
            &at.leaves,
            &BTreeMap::new(),
        );
        at = plan.commit(&BTreeMap::from([(ShardId(0), Digest([number; 32]))]), &at, 2_000).tail;
        leaves.push(at.leaves.clone());
    }
    let admin = Admin::Rollback { target: Stamp::new(0, 1), leaves: leaves[1].clone() };
    let rolled = at.admin(&admin, "someone", "because", 3_000);
    rolled.tail.header.check_follows(&at.header).expect("it follows");
    Header::decode(&rolled.header).expect("it is canonical");
    assert_eq!(rolled.tail.header.stamp, Stamp::new(1, 1));
    assert_eq!(rolled.tail.leaves, leaves[1]);
    assert_eq!(rolled.changed.len(), 1);
    assert_eq!(rolled.tail.header.epochs_root, rolled.tail.epochs.root());
    let pruned = rolled.tail.admin(&Admin::Prune { boundary: Version(1) }, "someone", "because", 3_000);
    pruned.tail.header.check_follows(&rolled.tail.header).expect("it follows");
    assert_eq!(pruned.tail.header.admin_sequence, 2);
    let plan =
        Plan::new(pruned.tail.next_stamp(), Vec::new(), &Draft::default(), &pruned.tail.leaves, &BTreeMap::new());
    let next = plan.commit(&BTreeMap::new(), &pruned.tail, 3_000);
    assert_eq!(next.tail.header.stamp, Stamp::new(1, 2));
    next.tail.header.check_follows(&pruned.tail.header).expect("it follows");
}

#[test]
fn names_of_versions_are_resolved_to_what_stands() {
    // 0..=30 in epoch 0, rolled back to 20; 21..=25 in epoch 1, rolled back to 22; head (2, 40).
    let mut epochs = Epochs::new();
    epochs.roll_back(Epoch(1), Version(20));
    epochs.roll_back(Epoch(2), Version(22));
    let head = Stamp::new(2, 40);
    let resolve = |epoch, version| {
        resolve(Some(Stamp::new(epoch, version)), false, &epochs, head, Version(10)).map_err(|refusal| refusal.reason)
    };
    for (asked, found) in [
        ((0, 20), Ok(Stamp::new(0, 20))),
        ((0, 21), Err(Reason::RolledBack)),
        ((0, 30), Err(Reason::RolledBack)),
        ((1, 21), Ok(Stamp::new(1, 21))),
        ((1, 22), Ok(Stamp::new(1, 22))),
        ((1, 23), Err(Reason::RolledBack)),
        ((1, 20), Ok(Stamp::new(0, 20))),
        ((2, 22), Ok(Stamp::new(1, 22))),
        ((2, 21), Err(Reason::NotFound)),
        ((2, 40), Ok(Stamp::new(2, 40))),
        ((2, 41), Err(Reason::NotYet)),
        ((3, 1), Err(Reason::NotYet)),
        ((1, 50), Err(Reason::RolledBack)),
        ((0, 9), Err(Reason::Pruned)),
        ((0, 10), Ok(Stamp::new(0, 10))),
    ] {
        assert_eq!(resolve(asked.0, asked.1), found, "{asked:?}");
    }
    let any = |version| super::resolve(Some(Stamp::new(0, version)), true, &epochs, head, Version(10));
    assert_eq!(any(23), Ok(Stamp::new(2, 23)));
    assert_eq!(any(22), Ok(Stamp::new(1, 22)));
    assert_eq!(any(41).map_err(|refusal| refusal.reason), Err(Reason::NotYet));
    let newest = super::resolve(None, false, &epochs, Stamp::new(2, 22), Version(0));
    assert_eq!(newest, Ok(Stamp::new(1, 22)), "head after a rollback reads by its original name");
}

#[test]
fn limits_are_named_in_the_refusal() {
    let params = Params { key_bytes_max: 4, value_bytes_max: 8, batch_bytes_max: 16, ..Params::default() };
    let admit =
        |batch| Request::admit(batch, None, &tail().leaves, &params).map(|_| ()).map_err(|refusal| refusal.to_string());
    let refused = |batch, part: &str| {
        let message = admit(batch).expect_err("the batch is refused");
        assert!(message.contains(part), "{message}");
    };
    refused(batch([put("", "1")], []), "at least 1 byte");
    refused(batch([put("12345", "1")], []), "key_bytes_max is 4, found 5");
    refused(batch([put("1", "123456789")], []), "value_bytes_max is 8, found 9");
    refused(batch([put("1", "12345678"), put("2", "12345678")], []), "batch_bytes_max is 16, found 18");
    refused(v1::Batch { metadata: Bytes::from(vec![0; 17]), ..batch([], []) }, "batch_bytes_max");
    refused(batch([], [absent("12345")]), "key_bytes_max");
    refused(batch([], [v1::Precondition { key: Bytes::from_static(b"a"), condition: None }]), "condition");
    refused(batch([v1::Operation { key: Bytes::from_static(b"a"), change: None }], []), "must put or delete");
    refused(batch([], [check("a", v1::precondition::Condition::ValueSha256(Bytes::from_static(b"x")))]), "32 bytes");
    admit(batch([put("1234", "12345678")], [])).expect("all limits are met exactly");
}

#[test]
fn many_small_operations_are_bounded_by_the_message() {
    let operations: Vec<_> = (0..600_000).map(|number| put(&format!("{number}"), "")).collect();
    let many = v1::Batch { operations, ..v1::Batch::default() };
    let refusal =
        Request::admit(many, None, &tail().leaves, &Params::default()).expect_err("it does not fit a message");
    assert_eq!(refusal.reason, Reason::LimitExceeded);
    assert!(refusal.message.contains("message_bytes_max"), "{refusal}");
    // Bytes around the operations do not count, so a ledger with the smallest messages takes
    // batches too.
    let small = Params { value_bytes_max: 8, batch_bytes_max: 16, message_bytes_max: 64, ..Params::default() };
    Request::admit(batch([put("1234", "12345678")], []), None, &tail().leaves, &small).expect("it fits");
}
