//! Commands with one fault each: every fault has its own reason for refusal, and changes nothing.

use crate::common::{Model, WINDOW, genesis, options};
use coppice_env::SimStorage;
use coppice_root::{
    AppendHeader, Command, CommandError, Error, OpenSession, Outcome, Refusal, Root, SESSION_IDLE_MS_MAX,
    SESSION_IDLE_MS_MIN, SESSIONS_MAX, SessionCommit, TakeOver,
};
use coppice_types::{ClusterId, Digest, Epoch, Reason, Sequence, SessionId, ShardId, Stamp, Term, Version};
use coppice_verify::{
    header::{Body, Header},
    journal::{BatchEntry, Entry, MergeEntry, journal_root},
    merkle,
};

fn machine() -> Root {
    Root::open_with(SimStorage::new().storage(), options()).expect("new")
}

/// A ledger of 20 versions with two sessions, one rollback (to 12, then up to head (1, 20) again)
/// and one prune (below 5).
fn grown() -> (Root, Model) {
    let mut root = machine();
    let mut model = Model::founded(1, &mut root);
    for session in 0..2 {
        let open = OpenSession { session: SessionId([session; 16]), clock_ms: 0 };
        model.accept(&mut root, &Command::OpenSession(open));
    }
    for version in 0..28 {
        let command = Command::AppendHeader(model.commit());
        model.accept(&mut root, &command);
        if version == 19 {
            let command = Command::AppendHeader(model.rollback(12));
            model.accept(&mut root, &command);
        }
    }
    let command = Command::AppendHeader(model.prune(5));
    model.accept(&mut root, &command);
    assert_eq!(model.head(), Stamp::new(1, 20));
    (root, model)
}

/// A commit that touches every shard, with a batch of a session, a batch without a session, and a
/// merge.
fn full_commit(model: &mut Model) -> AppendHeader {
    let mut append = model.commit();
    let mut leaves = model.leaves.last().expect("founded").clone();
    let shards: Vec<_> = leaves.iter().map(|leaf| leaf.shard).collect();
    let number = model.sessions[&SessionId([0; 16])].keys().last().copied().unwrap_or(0) + 1;
    let batch = |model: &mut Model, session| {
        let shards = shards.iter().map(|shard| (*shard, model.digest())).collect();
        Entry::Batch(BatchEntry { session, metadata: model.digest(), shards })
    };
    let named = batch(model, Some((SessionId([0; 16]), number)));
    let plain = batch(model, None);
    let inputs = vec![model.digest(), model.digest()];
    let merge = Entry::Merge(MergeEntry { shard: shards[0], inputs, output: model.digest() });
    let entries = [named, plain, merge];
    let version = model.head().version.next();
    for leaf in &mut leaves {
        (leaf.version, leaf.digest) = (version, model.digest());
    }
    let mut header = Header::decode(&append.header).expect("a header");
    header.state_root = coppice_verify::shard_map::state_root(&leaves);
    (header.journal_root, header.journal_leaves) = (journal_root(&entries), 3);
    append.header = header.encode();
    append.journal = entries.iter().map(Entry::encode).collect();
    append.changed_leaves = leaves;
    append.sessions =
        vec![SessionCommit { session: SessionId([0; 16]), number, batch_hash: model.digest(), journal_index: 0 }];
    append
}

type Change<'a> = (&'a str, Reason, &'a dyn Fn(&mut AppendHeader));

/// Tries each change on its own, then the unchanged command.
fn refuse_each(root: &mut Root, model: &mut Model, good: &AppendHeader, changes: &[Change<'_>]) {
    for (what, reason, change) in changes {
        let mut bad = good.clone();
        change(&mut bad);
        assert_ne!(bad, *good, "{what}: nothing was changed");
        let refusal = model.refuse(root, &Command::AppendHeader(bad));
        assert_eq!(refusal.reason(), *reason, "{what}: {refusal}");
    }
    model.accept(root, &Command::AppendHeader(good.clone()));
}

/// Changes the header of a command, possibly to one that breaks a rule by itself.
fn header(append: &mut AppendHeader, change: impl FnOnce(&mut Header)) {
    let mut header = Header::decode(&append.header).expect("a header");
    change(&mut header);
    append.header = header.encode();
}

/// Replaces the journal, and makes the header fit.
fn journal(append: &mut AppendHeader, change: impl FnOnce(&mut Vec<Entry>)) {
    let mut entries: Vec<_> = append.journal.iter().map(|entry| Entry::decode(entry).expect("an entry")).collect();
    change(&mut entries);
    append.journal = entries.iter().map(Entry::encode).collect();
    header(append, |header| {
        (header.journal_root, header.journal_leaves) = (journal_root(&entries), entries.len() as u32);
    });
}

fn flip(digest: &mut Digest) {
    digest.0[7] ^= 4;
}

#[test]
fn a_commit_with_a_wrong_header_field_is_refused() {
    let (mut root, mut model) = grown();
    let good = full_commit(&mut model);
    let changes: &[Change<'_>] = &[
        ("older term", Reason::StaleTerm, &|append| append.term = Term(append.term.0 - 1)),
        ("newer term", Reason::StaleTerm, &|append| append.term = append.term.next()),
        ("cluster", Reason::WrongCluster, &|append| header(append, |header| header.cluster = ClusterId([8; 16]))),
        ("sequence +1", Reason::BaseMismatch, &|append| {
            header(append, |header| header.sequence = header.sequence.next())
        }),
        ("sequence -1", Reason::BaseMismatch, &|append| header(append, |header| header.sequence.0 -= 1)),
        ("sequence of genesis", Reason::InvalidArgument, &|append| header(append, |header| header.sequence.0 = 0)),
        ("previous", Reason::BaseMismatch, &|append| header(append, |header| flip(&mut header.previous))),
        ("version +1", Reason::BaseMismatch, &|append| header(append, |header| header.stamp.version.0 += 1)),
        ("version -1", Reason::BaseMismatch, &|append| header(append, |header| header.stamp.version.0 -= 1)),
        ("epoch +1", Reason::BaseMismatch, &|append| header(append, |header| header.stamp.epoch.0 += 1)),
        ("epoch -1", Reason::BaseMismatch, &|append| header(append, |header| header.stamp.epoch.0 -= 1)),
        ("timestamp", Reason::BaseMismatch, &|append| header(append, |header| header.timestamp_ms = 999_999)),
        ("admin +1", Reason::BaseMismatch, &|append| header(append, |header| header.admin_sequence += 1)),
        ("admin -1", Reason::BaseMismatch, &|append| header(append, |header| header.admin_sequence -= 1)),
        ("shard map", Reason::BaseMismatch, &|append| header(append, |header| flip(&mut header.shard_map))),
        ("state root", Reason::InvalidArgument, &|append| header(append, |header| flip(&mut header.state_root))),
        ("leaf count", Reason::BaseMismatch, &|append| header(append, |header| header.state_leaves += 1)),
        ("journal root", Reason::InvalidArgument, &|append| header(append, |header| flip(&mut header.journal_root))),
        ("journal count", Reason::InvalidArgument, &|append| header(append, |header| header.journal_leaves += 1)),
        ("epochs root", Reason::BaseMismatch, &|append| header(append, |header| flip(&mut header.epochs_root))),
        ("epoch pairs", Reason::BaseMismatch, &|append| header(append, |header| header.epoch_pairs += 1)),
        ("truncated", Reason::InvalidArgument, &|append| append.header.truncate(200)),
        ("padded", Reason::InvalidArgument, &|append| append.header.push(0)),
    ];
    refuse_each(&mut root, &mut model, &good, changes);
}

#[test]
fn a_commit_with_wrong_leaves_or_journal_is_refused() {
    let (mut root, mut model) = grown();
    let good = full_commit(&mut model);
    let invalid = Reason::InvalidArgument;
    let changes: &[Change<'_>] = &[
        ("a digest", invalid, &|append| flip(&mut append.changed_leaves[1].digest)),
        ("an older version", invalid, &|append| append.changed_leaves[1].version.0 -= 1),
        ("a newer version", invalid, &|append| append.changed_leaves[1].version.0 += 1),
        ("an unknown shard", invalid, &|append| append.changed_leaves[1].shard = ShardId(9)),
        ("another shard's name", invalid, &|append| append.changed_leaves[1].shard = ShardId(0)),
        ("another low", invalid, &|append| append.changed_leaves[1].low.push(0)),
        ("another high", invalid, &|append| append.changed_leaves[1].high = None),
        ("a leaf twice", invalid, &|append| append.changed_leaves.push(append.changed_leaves[0].clone())),
        ("a leaf too few", invalid, &|append| drop(append.changed_leaves.pop())),
        ("no leaves", invalid, &|append| append.changed_leaves.clear()),
        ("an entry too few", invalid, &|append| drop(append.journal.pop())),
        ("an entry changed", invalid, &|append| append.journal[1][3] ^= 1),
        ("an entry malformed", invalid, &|append| append.journal[1][0] = 7),
        ("entries swapped", invalid, &|append| append.journal.swap(0, 1)),
        ("no journal", invalid, &|append| append.journal.clear()),
        ("an event before a batch", invalid, &|append| journal(append, |entries| entries.swap(1, 2))),
        ("a shard not in the journal", invalid, &|append| {
            journal(append, |entries| {
                entries.truncate(1);
                let Entry::Batch(batch) = &mut entries[0] else { panic!("a batch") };
                batch.shards.pop();
            });
        }),
        ("a session commit too few", invalid, &|append| append.sessions.clear()),
        ("a session commit of another entry", invalid, &|append| append.sessions[0].journal_index = 1),
        ("a session commit beyond the journal", invalid, &|append| append.sessions[0].journal_index = 3),
        ("a session commit of another number", invalid, &|append| append.sessions[0].number += 1),
        ("a session commit of another session", invalid, &|append| append.sessions[0].session = SessionId([1; 16])),
        ("a session commit twice", invalid, &|append| append.sessions.push(append.sessions[0])),
    ];
    refuse_each(&mut root, &mut model, &good, changes);
}

/// Gives the session's batch another name, in the journal and in the session commit.
fn rename(append: &mut AppendHeader, session: SessionId, number: u64) {
    journal(append, |entries| {
        let Entry::Batch(batch) = &mut entries[0] else { panic!("a batch") };
        batch.session = Some((session, number));
    });
    append.sessions[0].session = session;
    append.sessions[0].number = number;
}

#[test]
fn a_session_number_is_committed_at_most_once() {
    let (mut root, mut model) = grown();
    let first = full_commit(&mut model);
    model.accept(&mut root, &Command::AppendHeader(first.clone()));
    let (session, number) = (first.sessions[0].session, first.sessions[0].number);
    for _ in 0..u64::from(WINDOW) {
        let command = Command::AppendHeader(full_commit(&mut model));
        model.accept(&mut root, &command);
    }
    let newest = root.session(session).expect("open").highest_number();
    let good = full_commit(&mut model);
    let twice = |append: &mut AppendHeader| {
        journal(append, |entries| entries[1] = entries[0].clone());
        append.sessions.push(SessionCommit { journal_index: 1, ..append.sessions[0] });
    };
    let changes: &[Change<'_>] = &[
        ("a known number", Reason::SessionMismatch, &|append| rename(append, session, newest)),
        ("a number below the window", Reason::RequestExpired, &|append| rename(append, session, number)),
        ("number 0", Reason::InvalidArgument, &|append| rename(append, session, 0)),
        ("a session never opened", Reason::UnknownSession, &|append| rename(append, SessionId([9; 16]), 1)),
        ("a number twice in one version", Reason::SessionMismatch, &twice),
    ];
    refuse_each(&mut root, &mut model, &good, changes);
}

#[test]
fn a_rolled_back_batch_is_marked_and_never_applied_again() {
    let (mut root, mut model) = grown();
    let commit = full_commit(&mut model);
    let SessionCommit { session, number, .. } = commit.sessions[0];
    model.accept(&mut root, &Command::AppendHeader(commit));
    assert!(!root.session(session).expect("open").batch(number).expect("known").rolled_back);
    let command = Command::AppendHeader(model.rollback(20));
    model.accept(&mut root, &command);
    assert!(root.session(session).expect("open").batch(number).expect("known").rolled_back);
    let mut again = full_commit(&mut model);
    rename(&mut again, session, number);
    let refusal = model.refuse(&mut root, &Command::AppendHeader(again));
    assert!(matches!(refusal, Refusal::Repeated { sequence: Some(_), .. }), "{refusal}");
}

#[test]
fn a_wrong_rollback_is_refused() {
    let (mut root, mut model) = grown();
    let good = model.rollback(14);
    let target = |append: &mut AppendHeader, stamp: Stamp| {
        header(append, |header| {
            header.stamp.version = stamp.version;
            let Body::Rollback(rollback) = &mut header.body else { panic!("a rollback") };
            rollback.target = stamp;
        });
    };
    let leaf = model.leaves[3][0].clone();
    let entry = Entry::Batch(BatchEntry { session: None, metadata: Digest([1; 32]), shards: Vec::new() }).encode();
    let invalid = Reason::InvalidArgument;
    let changes: &[Change<'_>] = &[
        ("stale term", Reason::StaleTerm, &|append| append.term = Term(0)),
        ("below the boundary", Reason::Pruned, &|append| target(append, Stamp::new(0, 4))),
        ("a dead version", Reason::RolledBack, &|append| target(append, Stamp::new(0, 15))),
        ("another name of a version", invalid, &|append| target(append, Stamp::new(1, 12))),
        ("another version's state", invalid, &|append| target(append, Stamp::new(0, 12))),
        ("above head", invalid, &|append| target(append, Stamp::new(1, 21))),
        ("same epoch", invalid, &|append| header(append, |header| header.stamp.epoch = Epoch(1))),
        ("epoch skipped", invalid, &|append| header(append, |header| header.stamp.epoch = Epoch(3))),
        ("another head before", Reason::BaseMismatch, &|append| {
            header(append, |header| {
                let Body::Rollback(rollback) = &mut header.body else { panic!("a rollback") };
                rollback.head_before.version.0 -= 1;
            });
        }),
        ("epochs root", invalid, &|append| header(append, |header| flip(&mut header.epochs_root))),
        ("epoch pairs", invalid, &|append| header(append, |header| header.epoch_pairs -= 1)),
        ("state root", invalid, &|append| header(append, |header| flip(&mut header.state_root))),
        ("shard map", invalid, &|append| header(append, |header| flip(&mut header.shard_map))),
        ("admin sequence", Reason::BaseMismatch, &|append| header(append, |header| header.admin_sequence -= 1)),
        ("a leaf that is not the target's", invalid, &|append| append.changed_leaves.push(leaf.clone())),
        ("a journal", invalid, &|append| append.journal.push(entry.clone())),
    ];
    refuse_each(&mut root, &mut model, &good, changes);
    assert_eq!(root.view().expect("founded").head, Stamp::new(2, 14));
}

/// Each command has one fault that no root in the header shows.
#[test]
fn what_no_root_shows_is_checked_too() {
    let (mut root, mut model) = grown();
    // Version 12 was committed as (0, 12). Its state can also be seen as (1, 12).
    let good = model.rollback(12);
    let mut alias = good.clone();
    header(&mut alias, |header| {
        let Body::Rollback(rollback) = &mut header.body else { panic!("a rollback") };
        rollback.target.epoch = Epoch(1);
    });
    let refusal = model.refuse(&mut root, &Command::AppendHeader(alias));
    assert_eq!(refusal, Refusal::Content("name of the target"));
    model.accept(&mut root, &Command::AppendHeader(good));
    // The state root covers a leaf that claims a different version than the one that changed it.
    let good = full_commit(&mut model);
    for wrong in [Version(0), model.head().version, model.head().version.next().next()] {
        let mut bad = good.clone();
        bad.changed_leaves[1].version = wrong;
        let leaves = bad.changed_leaves.clone();
        header(&mut bad, |header| header.state_root = coppice_verify::shard_map::state_root(&leaves));
        let refusal = model.refuse(&mut root, &Command::AppendHeader(bad));
        assert!(matches!(refusal, Refusal::Leaf { shard: ShardId(1), .. }), "{refusal}");
    }
    model.accept(&mut root, &Command::AppendHeader(good));
}

#[test]
fn a_wrong_prune_is_refused() {
    let (mut root, mut model) = grown();
    let good = model.prune(10);
    let boundary = |append: &mut AppendHeader, version: u64| {
        header(append, |header| {
            let Body::Prune(prune) = &mut header.body else { panic!("a prune") };
            prune.boundary = Version(version);
        });
    };
    let leaf = model.leaves[3][0].clone();
    let changes: &[Change<'_>] = &[
        ("stale term", Reason::StaleTerm, &|append| append.term = Term(0)),
        ("below the boundary", Reason::Pruned, &|append| boundary(append, 4)),
        ("above head", Reason::InvalidArgument, &|append| boundary(append, 21)),
        ("another version", Reason::BaseMismatch, &|append| header(append, |header| header.stamp.version.0 += 1)),
        ("another epoch", Reason::BaseMismatch, &|append| header(append, |header| header.stamp.epoch.0 += 1)),
        ("state root", Reason::BaseMismatch, &|append| header(append, |header| flip(&mut header.state_root))),
        ("admin sequence", Reason::BaseMismatch, &|append| header(append, |header| header.admin_sequence += 1)),
        ("a changed leaf", Reason::InvalidArgument, &|append| append.changed_leaves.push(leaf.clone())),
    ];
    refuse_each(&mut root, &mut model, &good, changes);
    assert!(matches!(root.version(Version(9), None), Err(Error::Pruned { boundary: Version(10), .. })));
}

#[test]
fn nothing_but_genesis_founds_a_ledger() {
    let mut root = machine();
    let found = |genesis: Option<Vec<u8>>| {
        Command::TakeOver(TakeOver { candidate: "coordinator-1".into(), clock_ms: 1, genesis })
    };
    let mut other_state = genesis();
    flip(&mut other_state.state_root);
    let mut other_epochs = genesis();
    flip(&mut other_epochs.epochs_root);
    let mut log = Model::new(3);
    log.accept(&mut machine(), &found(Some(genesis().encode())));
    let commit = log.commit();
    let commands = [
        found(None),
        found(Some(vec![1, 0, 3])),
        found(Some(commit.header.clone())),
        found(Some(other_state.encode())),
        found(Some(other_epochs.encode())),
        Command::AppendHeader(commit.clone()),
        Command::AppendHeader(AppendHeader { header: genesis().encode(), ..commit }),
        Command::OpenSession(OpenSession { session: SessionId([1; 16]), clock_ms: 1 }),
    ];
    for (index, command) in (1..).zip(&commands) {
        let outcome = root.apply(index, &command.encode().expect("encodes")).expect("applies");
        assert!(matches!(outcome, Outcome::Refused(_)), "{command:?}");
        assert_eq!((root.log_size(), root.term(), root.unflushed_bytes()), (0, Term(0), 0));
        assert!(matches!(root.view(), Err(Error::NoGenesis)));
    }
    let outcome = root.apply(100, &found(Some(genesis().encode())).encode().expect("encodes"));
    assert_eq!(outcome.expect("applies"), Outcome::TookOver { term: Term(1) });
    // A second genesis is ignored, because the ledger is founded once.
    let mut other = genesis();
    other.cluster = ClusterId([9; 16]);
    let outcome = root.apply(101, &found(Some(other.encode())).encode().expect("encodes"));
    assert_eq!(outcome.expect("applies"), Outcome::TookOver { term: Term(2) });
    assert_eq!((root.log_size(), root.cluster_id()), (1, Some(ClusterId([7; 16]))));
    let mut model = Model::founded(4, &mut machine());
    let again = AppendHeader { header: genesis().encode(), term: Term(2), ..model.commit() };
    let outcome = root.apply(102, &Command::AppendHeader(again).encode().expect("encodes")).expect("applies");
    assert!(matches!(outcome, Outcome::Refused(Refusal::Follows(_))), "{outcome:?}");
}

#[test]
fn a_duplicate_of_an_accepted_append_is_refused() {
    let (mut root, mut model) = grown();
    let command = Command::AppendHeader(full_commit(&mut model));
    model.accept(&mut root, &command);
    let refusal = model.refuse(&mut root, &command);
    assert_eq!(refusal.reason(), Reason::BaseMismatch);
    // After a take-over, the old leader's append is refused by its term, whatever it contains.
    let late = full_commit(&mut model);
    let take_over = model.take_over();
    model.accept(&mut root, &take_over);
    let refusal = model.refuse(&mut root, &Command::AppendHeader(late));
    assert_eq!(refusal.reason(), Reason::StaleTerm);
}

#[test]
fn what_this_code_does_not_know_stops_the_replica() {
    let (mut root, mut model) = grown();
    let good = full_commit(&mut model);
    let bytes = Command::AppendHeader(good.clone()).encode().expect("encodes");
    let index = model.index + 1;
    let with = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        bytes
    };
    let of = |result: Result<Outcome, Error>| match result {
        Err(Error::Command { source, .. }) => source,
        other => panic!("{other:?}"),
    };
    assert_eq!(of(root.apply(index, &with(0, 2))), CommandError::UnknownVersion(2));
    assert_eq!(of(root.apply(index, &with(1, 5))), CommandError::UnknownKind(5));
    // Version, kind, term, length of the header, then the header's format and kind.
    assert_eq!(of(root.apply(index, &with(12, 3))), CommandError::UnknownHeader { format: 3, kind: 1 });
    assert_eq!(of(root.apply(index, &with(13, 5))), CommandError::UnknownHeader { format: 1, kind: 5 });
    assert!(matches!(of(root.apply(index, &bytes[..bytes.len() - 1])), CommandError::Malformed(_)));
    assert!(matches!(root.apply(model.index, &bytes), Err(Error::OutOfOrder { .. })));
    // None of these commands changed anything, not even the applied index.
    model.accept(&mut root, &Command::AppendHeader(good));
}

#[test]
fn sessions_end_by_count_and_by_header_time() {
    let mut root = machine();
    let mut model = Model::founded(5, &mut root);
    let start = model.newest().timestamp_ms;
    let id = |number: usize| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
        SessionId(bytes)
    };
    let mut index = model.index;
    let mut open = |root: &mut Root, number: usize, clock_ms: u64| {
        index += 1;
        let command = Command::OpenSession(OpenSession { session: id(number), clock_ms });
        root.apply(index, &command.encode().expect("encodes")).expect("applies")
    };
    for number in 0..SESSIONS_MAX {
        assert!(matches!(open(&mut root, number, start), Outcome::SessionOpened { highest_number: 0, .. }));
    }
    // All sessions are in use. The next one is refused, and the oldest is found again and becomes
    // the newest.
    let full = open(&mut root, SESSIONS_MAX, start + SESSION_IDLE_MS_MIN - 1);
    assert_eq!(full, Outcome::Refused(Refusal::SessionsFull(SESSIONS_MAX)));
    assert!(matches!(open(&mut root, 0, start), Outcome::SessionOpened { .. }));
    // Later, the session that was idle for longest makes room.
    assert!(matches!(open(&mut root, SESSIONS_MAX, start + SESSION_IDLE_MS_MIN), Outcome::SessionOpened { .. }));
    assert!(root.session(id(0)).is_some() && root.session(id(1)).is_none());
    assert_eq!(root.sessions().count(), SESSIONS_MAX);
    assert_eq!(root.sessions().next().map(|(id, _)| id), Some(id(SESSIONS_MAX)));
    // A header's time ends all sessions that were idle for too long before it.
    let mut append = model.prune(0);
    header(&mut append, |header| header.timestamp_ms = start + SESSION_IDLE_MS_MAX + 1);
    let command = Command::AppendHeader(append);
    let outcome = root.apply(index + 1, &command.encode().expect("encodes")).expect("applies");
    assert!(matches!(outcome, Outcome::Appended { sequence: Sequence(1), .. }), "{outcome:?}");
    assert_eq!(root.sessions().map(|(id, _)| id).collect::<Vec<_>>(), [id(SESSIONS_MAX)]);
    assert_eq!(merkle::mth(&[]), model.newest().journal_root);
}
