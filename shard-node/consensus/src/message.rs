//! Messages between the replicas of a group: a bounded encoding of raft's messages.
//!
//! A peer's bytes meet only this decoder, so raft never sees a message that no replica could have
//! sent. The decoder refuses:
//! - kinds of messages that raft sends only to itself;
//! - numbers that could overflow;
//! - entries that do not follow each other;
//! - fields that do not belong to the kind of message.

use bytes::Bytes;
use coppice_types::{
    GroupId,
    codec::{Error as DecodeError, Reader, Writer},
};
use raft::eraftpb::{Entry, Message as RaftMessage, MessageType, Snapshot};

use crate::{
    Membership, Position, RaftId,
    ids::{NUMBER_MAX, is_legal, number, put_position, take_position},
    log::batch::{entry_data, kind_byte, kind_of, make_entry},
    width::len32,
};

const FORMAT: u8 = 1;
/// The largest number in a message. It is below the largest number of the log, so that other
/// replicas can still follow a forged term.
const WIRE_NUMBER_MAX: u64 = NUMBER_MAX >> 1;
/// Limit on the bytes of the context of a read or a vote.
const CONTEXT_BYTES_MAX: usize = 64;
/// Limit on the number of entries in one message.
const ENTRIES_MAX: u32 = 1 << 20;
/// Limit on the bytes of a snapshot's manifest.
pub(crate) const MANIFEST_BYTES_MAX: usize = 1 << 20;

const KINDS: [(u8, MessageType); 12] = [
    (1, MessageType::MsgAppend),
    (2, MessageType::MsgAppendResponse),
    (3, MessageType::MsgRequestVote),
    (4, MessageType::MsgRequestVoteResponse),
    (5, MessageType::MsgSnapshot),
    (6, MessageType::MsgHeartbeat),
    (7, MessageType::MsgHeartbeatResponse),
    (8, MessageType::MsgTimeoutNow),
    (9, MessageType::MsgReadIndex),
    (10, MessageType::MsgReadIndexResp),
    (11, MessageType::MsgRequestPreVote),
    (12, MessageType::MsgRequestPreVoteResponse),
];

/// A leader's sign of life, or the answer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heartbeat {
    Sign,
    Answer,
}

/// A message from one replica of a group to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub(crate) group: GroupId,
    pub(crate) raft: RaftMessage,
}

impl Message {
    #[must_use]
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// The sender.
    #[must_use]
    pub fn from(&self) -> RaftId {
        RaftId(self.raft.from)
    }

    /// The receiver.
    #[must_use]
    pub fn to(&self) -> RaftId {
        RaftId(self.raft.to)
    }

    /// Whether the message offers a snapshot. Its sender must be told the outcome of the offer
    /// ([`crate::Group::report_snapshot`]).
    #[must_use]
    pub fn is_snapshot(&self) -> bool {
        self.raft.get_msg_type() == MessageType::MsgSnapshot
    }

    /// Whether a replica that never votes may send this to one in this term: it answers, and asks
    /// for reads. Any other message would elect, depose or replace a leader.
    #[must_use]
    pub fn is_from_listener(&self, term: u64) -> bool {
        let answers = matches!(
            self.raft.get_msg_type(),
            MessageType::MsgAppendResponse | MessageType::MsgHeartbeatResponse | MessageType::MsgReadIndex
        );
        answers && self.raft.term <= term
    }

    /// The proposals in the message.
    pub fn proposals(&self) -> impl Iterator<Item = &[u8]> {
        self.raft.entries.iter().map(|entry| entry.data.as_ref()).filter(|data| !data.is_empty())
    }

    /// The part of a heartbeat that a message is, by its first bytes; `None` for any other message.
    #[must_use]
    pub fn heartbeat(bytes: &[u8]) -> Option<Heartbeat> {
        let [FORMAT, kind, ..] = bytes else { return None };
        match KINDS.iter().find(|(byte, _)| byte == kind)?.1 {
            MessageType::MsgHeartbeat => Some(Heartbeat::Sign),
            MessageType::MsgHeartbeatResponse => Some(Heartbeat::Answer),
            _ => None,
        }
    }

    /// A short name of the message's kind, for logs and traces.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self.raft.get_msg_type() {
            MessageType::MsgAppend => "append",
            MessageType::MsgAppendResponse => "append_response",
            MessageType::MsgRequestVote => "vote",
            MessageType::MsgRequestVoteResponse => "vote_response",
            MessageType::MsgSnapshot => "snapshot",
            MessageType::MsgHeartbeat => "heartbeat",
            MessageType::MsgHeartbeatResponse => "heartbeat_response",
            MessageType::MsgTimeoutNow => "timeout_now",
            MessageType::MsgReadIndex => "read_index",
            MessageType::MsgReadIndexResp => "read_index_response",
            MessageType::MsgRequestPreVote => "pre_vote",
            MessageType::MsgRequestPreVoteResponse => "pre_vote_response",
            _ => "local",
        }
    }

    /// The bytes to send.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let raft = &self.raft;
        let kind = KINDS.iter().find(|(_, kind)| *kind == raft.get_msg_type());
        let (kind, _) = kind.expect("raft sends only these kinds to others");
        let mut writer = Writer::new();
        writer.u8(FORMAT);
        writer.u8(*kind);
        writer.u32(self.group.number());
        for value in [raft.from, raft.to, raft.term, raft.log_term, raft.index] {
            writer.u64(value);
        }
        for value in [raft.commit, raft.commit_term, raft.request_snapshot, raft.reject_hint] {
            writer.u64(value);
        }
        writer.flag(raft.reject);
        writer.str16(&raft.context);
        writer.u32(len32(raft.entries.len()));
        for entry in &raft.entries {
            writer.u8(kind_byte(entry.get_entry_type()));
            put_position(&mut writer, Position { index: entry.index, term: entry.term });
            writer.str32(entry_data(entry));
        }
        writer.flag(self.is_snapshot());
        if self.is_snapshot() {
            let snapshot = raft.get_snapshot();
            let metadata = snapshot.get_metadata();
            put_position(&mut writer, Position { index: metadata.index, term: metadata.term });
            Membership::from_raft(metadata.get_conf_state()).encode(&mut writer);
            writer.str32(&snapshot.data);
        }
        writer.into_bytes()
    }

    /// Reads the bytes of a peer.
    ///
    /// # Errors
    /// If no replica could have sent them.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.u8()? != FORMAT {
            return Err(DecodeError::Malformed("message format"));
        }
        let kind = reader.u8()?;
        let kind = KINDS.iter().find(|(byte, _)| *byte == kind).ok_or(DecodeError::Malformed("message kind"))?;
        let group = GroupId::from_number(reader.u32()?);
        let mut raft = RaftMessage::default();
        raft.set_msg_type(kind.1);
        raft.from = reader.u64()?;
        raft.to = reader.u64()?;
        raft.term = number(&mut reader)?;
        raft.log_term = number(&mut reader)?;
        raft.index = number(&mut reader)?;
        raft.commit = number(&mut reader)?;
        raft.commit_term = number(&mut reader)?;
        raft.request_snapshot = number(&mut reader)?;
        raft.reject_hint = number(&mut reader)?;
        raft.reject = reader.flag("reject")?;
        raft.context = Bytes::copy_from_slice(reader.str16()?);
        raft.set_entries(decode_entries(&mut reader)?.into());
        if reader.flag("snapshot")? {
            raft.set_snapshot(decode_snapshot(&mut reader)?);
        }
        reader.finish()?;
        check(&raft)?;
        Ok(Self { group, raft })
    }
}

fn decode_entries(reader: &mut Reader<'_>) -> Result<Vec<Entry>, DecodeError> {
    let count = reader.u32()?;
    if count > ENTRIES_MAX {
        return Err(DecodeError::Malformed("entry count"));
    }
    let mut entries = Vec::new();
    for _ in 0..count {
        let kind = kind_of(reader.u8()?)?;
        let position = take_position(reader)?;
        entries.push(make_entry(kind, position, Bytes::copy_from_slice(reader.str32()?)));
    }
    Ok(entries)
}

fn decode_snapshot(reader: &mut Reader<'_>) -> Result<Snapshot, DecodeError> {
    let position = take_position(reader)?;
    let membership = Membership::decode(reader)?;
    let manifest = reader.str32()?;
    if position.index == 0 || position.term == 0 || membership.is_empty() || manifest.len() > MANIFEST_BYTES_MAX {
        return Err(DecodeError::Malformed("snapshot"));
    }
    Ok(make_snapshot(position, &membership, Bytes::copy_from_slice(manifest)))
}

/// Raft's form of a snapshot. Its data is only the manifest.
pub(crate) fn make_snapshot(position: Position, membership: &Membership, manifest: Bytes) -> Snapshot {
    let mut snapshot = Snapshot { data: manifest, ..Default::default() };
    let metadata = snapshot.mut_metadata();
    metadata.index = position.index;
    metadata.term = position.term;
    metadata.set_conf_state(membership.to_raft());
    snapshot
}

/// Checks the rules that every message keeps, whatever the state of its sender.
fn check(raft: &RaftMessage) -> Result<(), DecodeError> {
    let ensure = |holds: bool, field: &'static str| if holds { Ok(()) } else { Err(DecodeError::Malformed(field)) };
    let kind = raft.get_msg_type();
    let reads = matches!(kind, MessageType::MsgReadIndex | MessageType::MsgReadIndexResp);
    ensure(is_legal(RaftId(raft.from)) && is_legal(RaftId(raft.to)) && raft.from != raft.to, "sender or receiver")?;
    // Raft treats a message with term zero as its own. Only a read request has no term.
    ensure((raft.term == 0) == (kind == MessageType::MsgReadIndex), "term")?;
    let metadata = raft.get_snapshot().get_metadata();
    let newest = raft.entries.last().map_or(0, |last| last.index);
    let numbers = [raft.term, raft.index, raft.commit, raft.reject_hint, newest, metadata.index];
    ensure(numbers.iter().all(|number| *number <= WIRE_NUMBER_MAX), "number")?;
    ensure(raft.context.len() <= CONTEXT_BYTES_MAX, "context")?;
    ensure(raft.log_term <= raft.term, "log term")?;
    ensure(raft.has_snapshot() == (kind == MessageType::MsgSnapshot), "snapshot")?;
    if reads {
        let entry = raft.entries.first().ok_or(DecodeError::Malformed("read"))?;
        let bare = entry.index == 0 && entry.term == 0 && entry.context.is_empty();
        ensure(raft.entries.len() == 1 && bare && entry.data.len() <= CONTEXT_BYTES_MAX, "read")?;
        return Ok(());
    }
    ensure(raft.entries.is_empty() || kind == MessageType::MsgAppend, "entries")?;
    // Raft treats term zero as a match, even with an entry that it does not have.
    ensure(kind != MessageType::MsgAppend || (raft.index == 0) == (raft.log_term == 0), "log term")?;
    let mut before = Position { index: raft.index, term: raft.log_term };
    for entry in &raft.entries {
        ensure(entry.index == before.index + 1 && entry.term >= before.term, "entry order")?;
        before = Position { index: entry.index, term: entry.term };
    }
    ensure(raft.entries.is_empty() || (before.term <= raft.term && before.term > 0), "entry term")?;
    ensure(metadata.term <= raft.term, "snapshot term")
}

/// Splits an append whose entries exceed `bytes_max` into several appends with the same meaning. An
/// entry is never split.
pub(crate) fn split_append(mut message: RaftMessage, bytes_max: usize) -> Vec<RaftMessage> {
    let size = |entry: &Entry| entry_data(entry).len() + 32;
    let total: usize = message.entries.iter().map(size).sum();
    if message.get_msg_type() != MessageType::MsgAppend || total <= bytes_max {
        return vec![message];
    }
    let entries: Vec<Entry> = message.take_entries().into();
    let mut parts = Vec::new();
    let mut part = message.clone();
    let mut bytes = 0;
    for entry in entries {
        bytes += size(&entry);
        if bytes > bytes_max
            && let Some(last) = part.entries.last()
        {
            let (index, log_term) = (last.index, last.term);
            parts.push(std::mem::replace(&mut part, message.clone()));
            part.index = index;
            part.log_term = log_term;
            bytes = size(&entry);
        }
        part.entries.push(entry);
    }
    assert!(!part.entries.is_empty(), "no part is without entries");
    parts.push(part);
    parts
}

#[cfg(test)]
mod tests;
