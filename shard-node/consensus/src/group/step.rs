//! Messages from other replicas, and the checks before raft sees them.

use coppice_types::ErrorKind;
use raft::eraftpb::{Message as RaftMessage, MessageType};

use super::{ENTRY_OVERHEAD_BYTES, Group};
use crate::{
    Message,
    error::{Error, Result},
};

/// A term that is further ahead is forged: it would take years of elections while this replica was
/// away. If a replica followed forged terms up to the largest number of a message, no other replica
/// could follow it.
const TERMS_AHEAD_MAX: u64 = 1 << 24;

impl Group {
    /// Takes a message of another replica.
    ///
    /// # Errors
    /// If the message was dropped: it is for another replica, no correct replica would send it, or
    /// there is no room on disk for its entries. The group can still be used.
    pub fn step(&mut self, message: Message) -> Result<()> {
        self.usable()?;
        self.check_message(&message)?;
        self.note_heard(message.from());
        if message.is_snapshot() {
            return self.step_snapshot(message);
        }
        let bytes = message.raft.entries.iter().map(|entry| entry.data.len() + ENTRY_OVERHEAD_BYTES).sum();
        if message.raft.get_msg_type() == MessageType::MsgAppend && bytes > 0 {
            self.ensure_room(bytes)?;
        }
        self.step_raft(message.raft)
    }

    /// Makes room on disk for entries before raft knows of them. A full disk refuses them. Any
    /// other failure is final.
    pub(super) fn ensure_room(&mut self, bytes: usize) -> Result<()> {
        let outcome = self.raw.mut_store().log.ensure_room(bytes);
        if let Err(error) = &outcome
            && error.kind() != ErrorKind::Exhausted
        {
            tracing::error!(group = %self.options.group, %error, "the raft log failed");
            self.failed = true;
        }
        outcome
    }

    pub(crate) fn step_raft(&mut self, message: RaftMessage) -> Result<()> {
        let outcome = self.raw.step(message);
        self.draw_timeout();
        outcome.map_err(|error| match error {
            raft::Error::StepPeerNotFound => Error::Refused("an answer of a replica that is not in the group"),
            raft::Error::ProposalDropped => Error::Unavailable("the proposal was dropped"),
            error => Error::Raft(error.to_string()),
        })
    }

    /// Refuses messages that would make raft panic or that raft is not meant to see.
    pub(super) fn check_message(&self, message: &Message) -> Result<()> {
        let refuse = |why| Err(Error::Refused(why));
        let raft = &self.raw.raft;
        let last = raft.raft_log.last_index();
        let said = &message.raft;
        if message.group != self.options.group || message.to() != self.options.id {
            return refuse("it is for another replica");
        }
        if said.term > raft.term.saturating_add(TERMS_AHEAD_MAX) {
            return refuse("no elections lead to such a term");
        }
        match said.get_msg_type() {
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote if self.has_never_joined() => {
                refuse("a replica without a log never votes")
            }
            MessageType::MsgRequestVoteResponse if raft.raft_log.persisted < last => {
                refuse("nobody was asked for a vote before the log was durable")
            }
            MessageType::MsgTimeoutNow if self.quarantined().is_some() => {
                refuse("a quarantined replica never campaigns")
            }
            MessageType::MsgHeartbeat if said.commit > last => refuse("it commits what this replica never got"),
            MessageType::MsgAppendResponse if self.is_leader() && said.term == raft.term => {
                let claims = said.index.max(said.reject_hint).max(said.request_snapshot);
                if claims > last { refuse("it has what was never sent") } else { Ok(()) }
            }
            MessageType::MsgReadIndex if !self.is_leader() => refuse("only a leader serves reads of others"),
            MessageType::MsgReadIndex if raft.pending_read_count() >= self.options.reads_max => {
                refuse("too many reads wait")
            }
            MessageType::MsgReadIndexResp if self.read_id(&said.entries[0].data).is_none() => {
                refuse("the answer to a read that nobody asked for")
            }
            _ => Ok(()),
        }
    }

    /// Whether the replica was created without a log and has heard nothing since.
    pub(super) fn has_never_joined(&self) -> bool {
        self.membership.is_empty() && self.raw.raft.raft_log.last_index() == 0
    }
}
