//! The decoder against honest, damaged and made-up bytes.

use coppice_env::{Rng, SimRng};
use coppice_types::ShardId;
use proptest::prelude::*;
use raft::eraftpb::EntryType;

use super::*;

fn id() -> impl Strategy<Value = u64> {
    (1_u32..5, 1_u32..4).prop_map(|(ordinal, incarnation)| RaftId::new(ordinal, incarnation).0)
}

fn membership() -> impl Strategy<Value = Membership> {
    let ids = || prop::collection::btree_set(1_u64..9, 0..5);
    (ids(), ids(), ids(), any::<bool>()).prop_map(|(mut voters, learners, outgoing, auto_leave)| {
        voters.insert(1);
        let list = |ids: &std::collections::BTreeSet<u64>| ids.iter().map(|id| RaftId(*id)).collect::<Vec<_>>();
        let learners = &(&learners - &voters) - &outgoing;
        let next = &outgoing - &voters;
        Membership {
            voters: list(&voters),
            learners: list(&learners),
            voters_outgoing: list(&outgoing),
            learners_next: list(&next),
            auto_leave: auto_leave && !outgoing.is_empty(),
        }
    })
}

fn append() -> impl Strategy<Value = RaftMessage> {
    let entry = (any::<bool>(), prop::collection::vec(any::<u8>(), 0..50));
    (1_u64..100, 1_u64..5, prop::collection::vec(entry, 0..8)).prop_map(|(index, term, entries)| {
        let mut raft = RaftMessage::default();
        raft.set_msg_type(MessageType::MsgAppend);
        raft.index = index;
        raft.log_term = term;
        raft.term = term;
        raft.commit = index;
        let entries = (index + 1..).zip(entries).map(|(index, (change, data))| {
            let kind = if change { EntryType::EntryConfChangeV2 } else { EntryType::EntryNormal };
            make_entry(kind, Position { index, term }, data.into())
        });
        raft.set_entries(entries.collect::<Vec<_>>().into());
        raft
    })
}

fn snapshot() -> impl Strategy<Value = RaftMessage> {
    (membership(), 1_u64..1000, prop::collection::vec(any::<u8>(), 0..50)).prop_map(|(membership, index, data)| {
        let mut raft = RaftMessage::default();
        raft.set_msg_type(MessageType::MsgSnapshot);
        raft.term = 7;
        raft.set_snapshot(make_snapshot(Position { index, term: 3 }, &membership, data.into()));
        raft
    })
}

fn read() -> impl Strategy<Value = RaftMessage> {
    (any::<bool>(), prop::collection::vec(any::<u8>(), 0..=64)).prop_map(|(answer, data)| {
        let mut raft = RaftMessage::default();
        raft.set_msg_type(if answer { MessageType::MsgReadIndexResp } else { MessageType::MsgReadIndex });
        raft.term = u64::from(answer);
        raft.index = u64::from(answer) * 8;
        raft.set_entries(vec![make_entry(EntryType::EntryNormal, Position::default(), data.into())].into());
        raft
    })
}

fn plain() -> impl Strategy<Value = RaftMessage> {
    let numbers = (1_u64..9, 0_u64..99, 0_u64..99, 0_u64..9, 0_u64..99, 0_u64..99);
    let kinds = KINDS.iter().map(|(_, kind)| *kind).collect::<Vec<_>>();
    let needs_more = [MessageType::MsgSnapshot, MessageType::MsgReadIndex, MessageType::MsgReadIndexResp];
    let kinds = kinds.into_iter().filter(|kind| !needs_more.contains(kind)).collect::<Vec<_>>();
    (prop::sample::select(kinds), numbers, any::<bool>()).prop_map(|(kind, mut numbers, reject)| {
        // An append with a term has an index.
        numbers.0 += 1;
        numbers.1 += 1;
        let mut raft = RaftMessage::default();
        raft.set_msg_type(kind);
        (raft.term, raft.index, raft.commit, raft.commit_term, raft.request_snapshot, raft.reject_hint) = numbers;
        raft.log_term = raft.term - 1;
        raft.reject = reject;
        raft.context = Bytes::from_static(b"context");
        raft
    })
}

fn message() -> impl Strategy<Value = Message> {
    let raft = prop_oneof![append(), snapshot(), read(), plain()];
    (raft, id(), id(), 0_u32..5).prop_filter_map("a message goes to another", |(mut raft, from, to, group)| {
        raft.from = from;
        raft.to = to;
        (from != to).then_some(Message { group: GroupId::from_number(group), raft })
    })
}

proptest! {
    #[test]
    fn every_message_survives_encoding(message in message()) {
        let bytes = message.encode();
        let decoded = Message::decode(&bytes);
        prop_assert_eq!(decoded.as_ref(), Ok(&message));
        for len in 0..bytes.len() {
            prop_assert!(Message::decode(&bytes[..len]).is_err());
        }
        let mut longer = bytes;
        longer.push(0);
        prop_assert_eq!(Message::decode(&longer), Err(DecodeError::Trailing));
    }

    #[test]
    fn damaged_bytes_never_panic_and_decode_to_what_encodes_alike(
        message in message(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = message.encode();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(message) = Message::decode(&bytes) {
            prop_assert_eq!(message.encode(), bytes);
        }
    }

    #[test]
    fn split_appends_carry_the_same_entries(raft in append(), bytes_max in 1_usize..200) {
        let parts = split_append(raft.clone(), bytes_max);
        let mut entries = Vec::new();
        let mut before = (raft.index, raft.log_term);
        for part in &parts {
            prop_assert_eq!((part.index, part.log_term), before);
            let addressed = RaftMessage { from: 1, to: 2, ..part.clone() };
            prop_assert_eq!(check(&addressed), Ok(()));
            let bytes: usize = part.entries.iter().map(|entry| entry_data(entry).len() + 32).sum();
            prop_assert!(bytes <= bytes_max || part.entries.len() == 1);
            entries.extend(part.entries.iter().cloned());
            before = part.entries.last().map_or(before, |last| (last.index, last.term));
        }
        prop_assert_eq!(entries, raft.entries.to_vec());
    }

    #[test]
    fn raft_accepts_every_membership_that_the_check_does(membership in membership()) {
        prop_assert_eq!(membership.check(), Ok(()));
        let storage = raft::storage::MemStorage::new_with_conf_state(membership.to_raft());
        let config = raft::Config::new(1);
        let raft = raft::RawNode::new(&config, storage, &crate::logger::logger());
        prop_assert!(raft.is_ok());
    }
}

#[test]
fn random_bytes_never_panic() {
    let mut rng = SimRng::new(3);
    for _ in 0..200_000 {
        let mut bytes = vec![0; usize::try_from(rng.below(200)).expect("small")];
        rng.fill(&mut bytes);
        if bytes.len() > 2 {
            bytes[0] = FORMAT;
            bytes[1] = u8::try_from(rng.below(14)).expect("small");
        }
        if let Ok(message) = Message::decode(&bytes) {
            assert_eq!(message.encode(), bytes);
        }
    }
}

/// A valid append, for tests to spoil.
fn good() -> RaftMessage {
    let mut raft = RaftMessage::default();
    raft.set_msg_type(MessageType::MsgAppend);
    (raft.from, raft.to, raft.term, raft.log_term, raft.index) = (1, 2, 5, 3, 10);
    let entry = |index, term| make_entry(EntryType::EntryNormal, Position { index, term }, Bytes::from_static(b"x"));
    raft.set_entries(vec![entry(11, 3), entry(12, 5)].into());
    raft
}

#[test]
fn what_no_replica_says_is_refused() {
    type Spoil = fn(&mut RaftMessage);
    let cases: [(&str, Spoil); 16] = [
        ("what came before has no term", |raft| raft.log_term = 0),
        ("its term leaves too few for those to come", |raft| raft.term = WIRE_NUMBER_MAX + 1),
        ("nobody sent it", |raft| raft.from = 0),
        ("it is for nobody", |raft| raft.to = 0),
        ("it is from its receiver", |raft| raft.from = raft.to),
        ("it has no term", |raft| raft.term = 0),
        ("a number overflows", |raft| raft.commit = u64::MAX),
        ("its entries are newer than it", |raft| raft.term = 4),
        ("what came before is newer than it", |raft| raft.log_term = 6),
        ("an entry is missing", |raft| raft.entries[1].index = 13),
        ("a term falls", |raft| raft.entries[1].term = 2),
        ("entries do not follow", |raft| raft.index = 9),
        ("a vote has entries", |raft| raft.set_msg_type(MessageType::MsgRequestVote)),
        ("a read has two entries", |raft| {
            raft.set_msg_type(MessageType::MsgReadIndex);
            raft.term = 0;
        }),
        ("a read has none", |raft| {
            raft.set_msg_type(MessageType::MsgReadIndexResp);
            raft.set_entries(Vec::new().into());
        }),
        ("an append has a snapshot's context", |raft| raft.context = vec![0; 65].into()),
    ];
    let message = |raft| Message { group: GroupId::Shard(ShardId(0)), raft };
    assert!(Message::decode(&message(good()).encode()).is_ok());
    for (why, spoil) in cases {
        let mut raft = good();
        spoil(&mut raft);
        assert!(Message::decode(&message(raft).encode()).is_err(), "{why}");
    }
}

#[test]
fn a_replica_that_never_votes_may_answer_and_read_and_may_not_elect_or_depose() {
    let said = |(_, kind): &(u8, MessageType), term| {
        let mut raft = RaftMessage { term, ..RaftMessage::default() };
        raft.set_msg_type(*kind);
        Message { group: GroupId::Root, raft }
    };
    let allowed = |term| {
        let kinds = KINDS.iter().map(|kind| said(kind, term)).filter(|message| message.is_from_listener(5));
        kinds.map(|message| message.kind()).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(allowed(5), ["append_response", "heartbeat_response", "read_index"].into());
    assert_eq!(allowed(4), allowed(5));
    assert!(allowed(6).is_empty(), "a later term would depose the leader");
}
