//! The root group's state machine behind its messages: commands that are refused before they are
//! proposed, and the answers to reads.

use bytes::Bytes;
use coppice_env::SimStorage;
use coppice_proto::{
    convert,
    v1::{self, read_root_request::Read},
};
use coppice_root::Outcome;
use coppice_types::{ClusterId, Digest, Params, Reason, Sequence};
use coppice_verify::{
    hash::log_entry_hash,
    header::{Body, Genesis, Header},
    journal::{BatchEntry, Entry, journal_root},
    merkle,
    shard_map::{ShardMap, state_root},
};

use super::*;
use crate::{
    Runner,
    refusal::Refusal,
    replica::machine::{Position, Receiver, StateMachine},
};

const CLUSTER: ClusterId = ClusterId([9; 16]);
const NOW_MS: u64 = 5_000_000;

/// The header that founds a ledger of one shard.
pub(crate) fn genesis() -> Header {
    let shard_map = ShardMap::from_splits(&[]).expect("one shard");
    let genesis =
        Genesis { prefix: "ledger.example".into(), public_key: [3; 32], params: Params::default(), shard_map };
    Header::genesis(CLUSTER, 1_000_000, genesis)
}

/// A root group that applies commands as a leading coordinator sends them.
pub(crate) struct Ledger {
    pub machine: RootMachine,
    pub headers: Vec<Header>,
    index: u64,
}

impl Ledger {
    /// A root group without a ledger.
    pub fn empty() -> Self {
        let machine = RootMachine::open(SimStorage::new().storage(), &Runner::Threads).expect("the disk is empty");
        Self { machine, headers: Vec::new(), index: 0 }
    }

    /// A ledger whose log has this many entries.
    pub fn of(entries: usize) -> Self {
        let mut ledger = Self::empty();
        ledger.run(take_over(request("c", &genesis().encode()), NOW_MS)).expect("it is founded");
        ledger.headers.push(genesis());
        while ledger.headers.len() < entries {
            let (header, request) = ledger.commit();
            ledger.run(append_header(request)).expect("it is appended");
            ledger.headers.push(header);
        }
        ledger
    }

    pub fn run(&mut self, command: Result<Vec<u8>, Refusal>) -> Result<Outcome, Refusal> {
        self.index += 1;
        self.machine.apply(self.index, &command?.into()).expect("it is a command").reply
    }

    /// The next commit, which changes the only shard.
    fn commit(&self) -> (Header, v1::AppendHeaderRequest) {
        let before = self.headers.last().expect("it is founded");
        let mut leaf = ShardMap::from_splits(&[]).expect("one shard").genesis_leaves().remove(0);
        let version = before.stamp.version.next();
        (leaf.version, leaf.digest) = (version, Digest([version.0 as u8; 32]));
        let shards = vec![(leaf.shard, Digest([1; 32]))];
        let journal = [Entry::Batch(BatchEntry { session: None, metadata: Digest([2; 32]), shards })];
        let mut header = Header {
            sequence: Sequence(before.sequence.0 + 1),
            previous: before.hash(),
            body: Body::Commit,
            state_root: state_root(std::slice::from_ref(&leaf)),
            journal_root: journal_root(&journal),
            journal_leaves: 1,
            ..before.clone()
        };
        header.stamp.version = version;
        let request = v1::AppendHeaderRequest {
            term: 1,
            header: header.encode().into(),
            changed_leaves: vec![convert::to_leaf(&leaf)],
            journal: journal.iter().map(|entry| entry.encode().into()).collect(),
            ..Default::default()
        };
        (header, request)
    }

    fn answer(&self, read: Read) -> Result<v1::ReadRootResponse, Reason> {
        self.machine.answer(Some(&read), NOW_MS).map_err(|refusal| refusal.reason)
    }

    /// The hash of an entry, and the root of the whole log.
    fn hashes(&self, sequence: usize) -> (Digest, Digest) {
        (log_entry_hash(&self.headers[sequence].encode()), self.machine.root().log_root())
    }
}

fn request(candidate: &str, genesis: &[u8]) -> v1::TakeOverRequest {
    v1::TakeOverRequest { candidate: candidate.to_owned(), genesis: Bytes::copy_from_slice(genesis) }
}

#[track_caller]
fn refused(command: Result<Vec<u8>, Refusal>) -> Reason {
    command.expect_err("it must not be proposed").reason
}

#[test]
fn a_command_that_would_stop_a_replica_is_never_proposed() {
    assert_eq!(refused(take_over(request(&"c".repeat(300), &[]), NOW_MS)), Reason::InvalidArgument);
    let (_, good) = Ledger::of(1).commit();
    let with = |change: &dyn Fn(&mut v1::AppendHeaderRequest)| {
        let mut request = good.clone();
        change(&mut request);
        append_header(request)
    };
    with(&|_| ()).expect("it is whole");
    assert_eq!(refused(with(&|it| it.header = Bytes::new())), Reason::InvalidArgument);
    // A format and a kind that only a newer replica can apply.
    let patched = |at: usize, byte| {
        let mut header = good.header.to_vec();
        header[at] = byte;
        Bytes::from(header)
    };
    assert_eq!(refused(with(&|it| it.header = patched(0, 3))), Reason::InvalidArgument);
    assert_eq!(refused(with(&|it| it.header = patched(1, 4))), Reason::InvalidArgument);
    assert_eq!(refused(with(&|it| it.header = vec![1; 70_000].into())), Reason::InvalidArgument);
    assert_eq!(refused(with(&|it| it.journal = vec![vec![0; 1 << 20].into(); 65])), Reason::LimitExceeded);
    let state = Some(v1::ShardState { version: 2, digest: vec![1; 31].into() });
    let broken = v1::StateLeaf { state, ..good.changed_leaves[0].clone() };
    assert_eq!(refused(with(&|it| it.changed_leaves = vec![broken.clone()])), Reason::InvalidArgument);
    let session = v1::SessionCommit { session_id: vec![1; 15].into(), ..Default::default() };
    assert_eq!(refused(with(&|it| it.sessions = vec![session.clone()])), Reason::InvalidArgument);
}

#[test]
fn sessions_and_pins_need_whole_ids_and_a_pin_its_version() {
    for len in [0, 15, 17] {
        let id = Bytes::from(vec![1; len]);
        let session = v1::OpenSessionRequest { session_id: id.clone() };
        assert_eq!(refused(open_session(&session, NOW_MS)), Reason::InvalidArgument);
        let pin = v1::PinRequest { pin_id: id.clone(), version: Some(0), ttl_ms: 1 };
        assert_eq!(refused(set_pin(&pin, NOW_MS)), Reason::InvalidArgument);
        assert_eq!(refused(drop_pin(&v1::UnpinRequest { pin_id: id }, NOW_MS)), Reason::InvalidArgument);
    }
    let unnamed = v1::PinRequest { pin_id: vec![1; 16].into(), version: None, ttl_ms: 1 };
    let refusal = set_pin(&unnamed, NOW_MS).expect_err("no version is named");
    assert!(refusal.message.contains("version is missing"), "{refusal:?}");
}

#[test]
fn a_refusal_of_the_state_machine_keeps_its_reason_and_changes_nothing() {
    let mut ledger = Ledger::of(2);
    let (_, next) = ledger.commit();
    let digest = ledger.machine.root().log_root();
    let old_term = v1::AppendHeaderRequest { term: 0, ..next.clone() };
    let gap = v1::AppendHeaderRequest { header: ledger.headers[1].encode().into(), ..next };
    for (request, reason) in [(old_term, Reason::StaleTerm), (gap, Reason::BaseMismatch)] {
        let refusal = ledger.run(append_header(request)).expect_err("it does not fit");
        assert_eq!(refusal.reason, reason, "{refusal:?}");
    }
    assert_eq!((ledger.machine.root().log_root(), ledger.machine.root().log_size()), (digest, 2));
}

#[test]
fn before_genesis_there_is_a_view_with_the_clock_and_no_other_answer() {
    let ledger = Ledger::empty();
    let view = ledger.answer(Read::View(true)).expect("it always can").view.expect("always set");
    assert_eq!(view, v1::RootView { clock_ms: NOW_MS, ..v1::RootView::default() });
    let version = v1::VersionRead { version: 0, ..v1::VersionRead::default() };
    assert!(ledger.answer(Read::Version(version)).is_err());
    assert_eq!(ledger.machine.attest(attest(1, 0)), Err(missing(0, 1)));
}

#[test]
fn the_view_and_every_proof_in_an_answer_are_of_one_log() {
    let ledger = Ledger::of(5);
    let answer =
        ledger.answer(Read::Version(v1::VersionRead { version: 2, ..v1::VersionRead::default() })).expect("it stands");
    let view = answer.view.as_ref().expect("always set");
    assert_eq!((view.log_size, view.term), (5, 1));
    assert_eq!(answer.header, ledger.headers[2].encode());
    assert_eq!((answer.header_sequence, answer.leaves.len()), (2, 1));
    for (sequence, path) in [2, 4].into_iter().zip(&answer.inclusion) {
        let (entry, root) = ledger.hashes(sequence);
        let path = convert::path(path, "inclusion").expect("digests");
        assert_eq!(merkle::verify_inclusion(sequence as u64, 5, &entry, &path, &root), Ok(()));
    }
    assert_eq!(answer.inclusion.len(), 2);
    let proof = v1::LogProofRead { indices: vec![3, 0], size: 4, old_size: 3 };
    let answer = ledger.answer(Read::LogProof(proof)).expect("the log is so long");
    assert_eq!((answer.inclusion.len(), answer.consistency.is_some(), answer.old_root.len()), (2, true, 32));
}

#[test]
fn a_view_that_is_known_is_not_sent_again_and_any_other_one_is() {
    let mut ledger = Ledger::of(2);
    let pin = v1::PinRequest { pin_id: vec![5; 16].into(), version: Some(1), ttl_ms: 1000 };
    ledger.run(set_pin(&pin, NOW_MS)).expect("it stands");
    let sent = |ledger: &Ledger, known: &v1::RootMark, now_ms| {
        ledger.machine.answer(Some(&Read::ViewUnless(known.clone())), now_ms).expect("it always can").view
    };
    let view = sent(&ledger, &v1::RootMark::default(), NOW_MS).expect("it is not known");
    assert_eq!(Some(&view), ledger.answer(Read::View(true)).expect("it always can").view.as_ref());
    let v1::RootView { term, log_size, log_root, oldest_pin, .. } = view;
    let known = v1::RootMark { term, log_size, log_root, oldest_pin };
    assert_eq!(sent(&ledger, &known, NOW_MS), None);
    assert_eq!(sent(&ledger, &known, NOW_MS + 999), None);
    for other in [
        v1::RootMark { term: 2, ..known.clone() },
        v1::RootMark { log_size: 1, ..known.clone() },
        v1::RootMark { log_root: vec![0; 32].into(), ..known.clone() },
        v1::RootMark { oldest_pin: None, ..known.clone() },
    ] {
        assert!(sent(&ledger, &other, NOW_MS).is_some(), "{other:?}");
    }
    assert!(sent(&ledger, &known, NOW_MS + 1000).is_some(), "the pin has expired");
    let (_, next) = ledger.commit();
    ledger.run(append_header(next)).expect("it is appended");
    assert!(sent(&ledger, &known, NOW_MS).is_some(), "the log has grown");
    ledger.run(take_over(request("d", &[]), NOW_MS)).expect("another term");
    assert_eq!(ledger.machine.root().term().0, 2);
}

#[test]
fn reads_beyond_the_log_or_without_bounds_are_refused() {
    let ledger = Ledger::of(3);
    let proof = |indices: Vec<u64>, size, old_size| Read::LogProof(v1::LogProofRead { indices, size, old_size });
    assert_eq!(ledger.answer(proof(vec![0; 1025], 3, 0)), Err(Reason::LimitExceeded));
    assert_eq!(ledger.answer(proof(vec![0; 1024], 3, 0)).map(|answer| answer.inclusion.len()), Ok(1024));
    for read in [
        proof(vec![3], 3, 0),
        proof(vec![0], 4, 0),
        proof(vec![], 3, 4),
        Read::Journal(v1::JournalRead { sequence: 3 }),
        Read::Tile(v1::TileRead { level: 0, number: 1, width: 1 }),
        Read::Tile(v1::TileRead { level: 300, number: 0, width: 1 }),
    ] {
        assert_eq!(ledger.answer(read.clone()).map(drop), Err(Reason::NotFound), "{read:?}");
    }
    let above = ledger.answer(Read::Version(v1::VersionRead { version: 3, ..v1::VersionRead::default() }));
    assert_eq!(above.map(drop), Err(Reason::NotYet));
    let headers = |from_sequence, limit| {
        let answer = ledger.answer(Read::Headers(v1::HeadersRead { from_sequence, limit })).expect("a page");
        answer.headers.len()
    };
    assert_eq!([headers(0, 2), headers(2, 9), headers(3, 9)], [2, 1, 0]);
}

fn attest(size: u64, old_size: u64) -> v1::AttestRequest {
    v1::AttestRequest { size, old_size, want_newest: true }
}

fn missing(applied: u64, size: u64) -> Refusal {
    let message = format!("this replica has applied {applied} of {size} entries of the log");
    Refusal::new(Reason::StateMissing, message)
}

#[test]
fn a_replica_attests_what_it_has_applied_and_asks_for_time_beyond_that() {
    let ledger = Ledger::of(4);
    let refusal = ledger.machine.attest(attest(5, 0)).expect_err("it is behind");
    assert_eq!(refusal, missing(4, 5));
    assert!(refusal.may_pass());
    let answer = ledger.machine.attest(attest(3, 2)).expect("it has so many");
    let root = convert::digest(&answer.log_root, "root").expect("a digest");
    let newest = convert::path(answer.newest.as_ref().expect("it was asked for"), "newest").expect("digests");
    assert_eq!(merkle::verify_inclusion(2, 3, &ledger.hashes(2).0, &newest, &root), Ok(()));
    assert!(answer.consistency.is_some());
    let bare = v1::AttestRequest { want_newest: false, ..attest(4, 0) };
    let answer = ledger.machine.attest(bare).expect("it has all");
    assert_eq!((answer.consistency, answer.newest), (None, None));
    assert_eq!(answer.log_root, convert::to_digest(&ledger.machine.root().log_root()));
}

#[test]
fn an_unknown_session_is_no_error_and_a_malformed_one_is() {
    let mut ledger = Ledger::of(1);
    let read = |ledger: &Ledger, id: Vec<u8>| {
        ledger.answer(Read::Session(v1::SessionRead { session_id: id.into(), number: 1 })).map(|it| it.session_known)
    };
    assert_eq!(read(&ledger, vec![7; 16]), Ok(false));
    let open = v1::OpenSessionRequest { session_id: vec![7; 16].into() };
    ledger.run(open_session(&open, NOW_MS)).expect("it is opened");
    assert_eq!(read(&ledger, vec![7; 16]), Ok(true));
    assert_eq!(read(&ledger, vec![7; 15]), Err(Reason::InvalidArgument));
    assert_eq!(ledger.machine.sessions().len(), 1);
}

#[test]
fn pins_live_as_long_as_they_were_asked_for() {
    let mut ledger = Ledger::of(2);
    let pin = v1::PinRequest { pin_id: vec![5; 16].into(), version: Some(1), ttl_ms: 1000 };
    ledger.run(set_pin(&pin, NOW_MS)).expect("it stands");
    let at = |now_ms| {
        let answer = ledger.machine.answer(Some(&Read::Pins(true)), now_ms).expect("they are listed");
        (answer.pins.len(), answer.view.expect("always set").oldest_pin.map(|pin| pin.version))
    };
    assert_eq!(at(NOW_MS + 999), (1, Some(1)));
    assert_eq!(at(NOW_MS + 1000), (0, None));
}

#[test]
fn a_snapshot_carries_the_log_to_another_replica_and_a_flipped_bit_does_not_arrive() {
    let mut ledger = Ledger::of(3);
    let position = Position { index: ledger.index, term: 1 };
    let pinned = ledger.machine.pin_snapshot(position).expect("there is room");
    assert_eq!(RootMachine::manifest_position(&pinned.manifest).expect("it is whole"), (pinned.id, position));
    for len in 0..pinned.manifest.len() {
        RootMachine::manifest_position(&pinned.manifest[..len]).expect_err("it is cut short");
    }
    for flip in [false, true] {
        let disk = SimStorage::new();
        let mut receiver =
            RootMachine::receive(disk.storage(), &Runner::Threads, &pinned.manifest).expect("it is whole");
        while let Some((file, offset)) = receiver.next() {
            let mut bytes = ledger.machine.read_snapshot(pinned.id, &file, offset, 1 << 20).expect("it is pinned");
            if let Some(last) = bytes.last_mut().filter(|_| flip) {
                *last ^= 1;
            }
            if receiver.write(&file, offset, &bytes).is_err() {
                break;
            }
        }
        let received = receiver.finish().and_then(|()| RootMachine::open(disk.storage(), &Runner::Threads));
        assert_eq!(received.is_err(), flip);
        let digest = received.ok().map(|machine| (machine.root().log_root(), machine.durable()));
        assert!(flip || digest == Some((ledger.machine.root().log_root(), position)));
    }
    ledger.machine.check_of_snapshot(pinned.id).expect("it is pinned")().expect("it is sound");
    ledger.machine.unpin_snapshot(pinned.id);
    assert!(ledger.machine.check_of_snapshot(pinned.id).is_err());
}
