//! What the caller asks of a group.

use bytes::Bytes;
use raft::{
    SnapshotStatus,
    eraftpb::{Entry, Message as RaftMessage, MessageType},
};

use super::{ENTRY_OVERHEAD_BYTES, EVIDENCE_BYTES_MAX, Group};
use crate::{
    Position, RaftId,
    change::{self, Change},
    error::{Error, Result},
    output::ReadId,
};

impl Group {
    /// Proposes an entry. It is committed if and only if one with exactly the position returned is handed out as such;
    /// it is lost if another term stands at that index.
    ///
    /// # Errors
    /// [`Error::NotLeader`]; [`Error::Unavailable`] while the leadership is being transferred; [`Error::Exhausted`] if
    /// too much is not committed yet; if the disk is full or the entry too large.
    pub fn propose(&mut self, data: Bytes) -> Result<Position> {
        self.only_leader()?;
        if data.is_empty() {
            return Err(Error::Invalid("an entry is not empty"));
        }
        if data.len() > self.options.entry_bytes_max {
            return Err(Error::TooLarge { bytes: data.len(), bytes_max: self.options.entry_bytes_max });
        }
        if self.raw.raft.lead_transferee.is_some() {
            return Err(Error::Unavailable("the leadership is being transferred"));
        }
        self.ensure_room(data.len() + ENTRY_OVERHEAD_BYTES)?;
        let entry = Entry { data, ..Default::default() };
        let mut message = RaftMessage::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.options.id.0;
        message.set_entries(vec![entry].into());
        let before = self.end();
        let outcome = self.raw.raft.step(message);
        self.proposed(before, outcome)
    }

    /// The position of the entry that was proposed behind `before`.
    fn proposed(&self, before: Position, outcome: raft::Result<()>) -> Result<Position> {
        match outcome {
            Ok(()) => {
                let end = self.end();
                assert_eq!(end.index, before.index + 1, "one proposal is one entry");
                assert_eq!(end.term, self.raw.raft.term, "a leader appends in its own term");
                Ok(end)
            }
            Err(raft::Error::ProposalDropped) => Err(Error::Exhausted("too many proposals are not committed yet")),
            Err(error) => Err(Error::Raft(error.to_string())),
        }
    }

    /// The position of the newest entry.
    fn end(&self) -> Position {
        let log = &self.raw.raft.raft_log;
        Position { index: log.last_index(), term: log.last_term() }
    }

    /// Asks how much must be applied for a read to see all that was acknowledged before now. The answer may be lost:
    /// callers set a deadline and ask again.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there is no leader, or it has not committed anything in its term yet;
    /// [`Error::Exhausted`] if too many reads wait.
    pub fn read_index(&mut self) -> Result<ReadId> {
        self.usable()?;
        let raft = &self.raw.raft;
        if raft.leader_id == 0 {
            return Err(Error::Unavailable("the group has no leader"));
        }
        if self.is_leader() && !raft.commit_to_current_term() {
            return Err(Error::Unavailable("the leader has not committed anything yet"));
        }
        if raft.pending_read_count() >= self.options.reads_max {
            return Err(Error::Exhausted("too many reads wait"));
        }
        let id = ReadId(self.read_next);
        self.read_next += 1;
        self.reads.insert(id);
        if self.reads.len() > self.options.reads_max {
            self.reads.pop_first();
        }
        assert!(self.reads.len() <= self.options.reads_max, "the oldest reads are forgotten");
        let mut context = self.read_nonce.to_le_bytes().to_vec();
        context.extend_from_slice(&id.0.to_le_bytes());
        self.raw.read_index(context);
        Ok(id)
    }

    /// The read that a context belongs to, if this process waits for it.
    pub(super) fn read_id(&self, context: &[u8]) -> Option<ReadId> {
        let (nonce, id) = context.split_first_chunk::<8>()?;
        let id = u64::from_le_bytes(id.try_into().ok()?);
        (u64::from_le_bytes(*nonce) == self.read_nonce && self.reads.contains(&ReadId(id))).then_some(ReadId(id))
    }

    /// Proposes to change who is in the group; several changes go through a joint membership that ends by itself. They
    /// hold once [`Payload::Membership`](crate::Payload::Membership) is handed out at the position returned; [`Payload::Empty`](crate::Payload::Empty) there means that
    /// they were refused.
    ///
    /// # Errors
    /// As [`Group::propose`]; [`Error::Invalid`] if they make no sense; [`Error::Unavailable`] while another change is
    /// not applied, or a learner to be promoted is too far behind.
    pub fn change_membership(&mut self, changes: &[Change]) -> Result<Position> {
        self.only_leader()?;
        change::check(changes, &self.membership, self.options.id)?;
        let raft = &self.raw.raft;
        if raft.has_pending_conf() || self.membership.is_joint() {
            return Err(Error::Unavailable("another change of membership is under way"));
        }
        if raft.lead_transferee.is_some() {
            return Err(Error::Unavailable("the leadership is being transferred"));
        }
        let least = raft.raft_log.committed.saturating_sub(self.options.promote_lag_max);
        let caught_up = |id: RaftId| raft.prs().get(id.0).is_some_and(|peer| peer.matched >= least);
        if changes.iter().any(|change| matches!(change, Change::Promote(id) if !caught_up(*id))) {
            return Err(Error::Unavailable("a learner is promoted once it has caught up"));
        }
        let before = self.end();
        let outcome = self.raw.propose_conf_change(change::encode(changes), change::to_raft(changes));
        self.proposed(before, outcome)
    }

    /// Hands the leadership to another voter, if it can catch up within an election timeout.
    ///
    /// # Errors
    /// [`Error::NotLeader`]; [`Error::Invalid`] if the other has no vote.
    pub fn transfer_leader(&mut self, to: RaftId) -> Result<()> {
        self.only_leader()?;
        if !self.membership.voters.contains(&to) || to == self.options.id {
            return Err(Error::Invalid("the leadership goes to another voter"));
        }
        self.raw.transfer_leader(to.0);
        Ok(())
    }

    /// Stops leading at once, and has another voter campaign, whether or not it has all entries: for a leader whose links are so slow that
    /// nobody catches up with it. Entries that are not committed may be lost, as with any change of leaders.
    ///
    /// # Errors
    /// As [`Group::transfer_leader`].
    pub fn resign_to(&mut self, to: RaftId) -> Result<()> {
        self.only_leader()?;
        if !self.membership.voters.contains(&to) || to == self.options.id {
            return Err(Error::Invalid("the leadership goes to another voter"));
        }
        let mut message = RaftMessage::default();
        message.set_msg_type(MessageType::MsgTimeoutNow);
        (message.from, message.to, message.term) = (self.options.id.0, to.0, self.raw.raft.term);
        self.raw.raft.msgs.push(message);
        self.step_down();
        Ok(())
    }

    /// Whether this replica leaves it to the others to campaign first, because it would lead badly. It still votes.
    pub fn set_reluctant(&mut self, reluctant: bool) {
        self.reluctant = reluctant;
    }

    /// Asks for votes now.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if this replica has no vote or is quarantined.
    pub fn campaign(&mut self) -> Result<()> {
        self.usable()?;
        if !self.raw.raft.promotable() || self.quarantined().is_some() {
            return Err(Error::Unavailable("this replica can't lead"));
        }
        let outcome = self.raw.campaign();
        self.draw_timeout();
        outcome.map_err(|error| Error::Raft(error.to_string()))
    }

    /// Stops leading at once, without a successor.
    pub fn step_down(&mut self) {
        if self.is_leader() {
            let term = self.raw.raft.term;
            self.raw.raft.become_follower(term, 0);
            assert!(!self.is_leader(), "a follower does not lead");
            self.draw_timeout();
        }
    }

    /// Notes durably that this replica does not trust its state. It stops leading, does not campaign, goes on voting and
    /// keeping its log, and asks for a snapshot until one is installed.
    ///
    /// # Errors
    /// If the storage fails, or the evidence is too long.
    pub fn quarantine(&mut self, evidence: &[u8]) -> Result<()> {
        self.usable()?;
        if evidence.len() > EVIDENCE_BYTES_MAX {
            return Err(Error::TooLarge { bytes: evidence.len(), bytes_max: EVIDENCE_BYTES_MAX });
        }
        self.raw.mut_store().log.set_quarantine(Some(evidence))?;
        self.snapshot_requested = true;
        self.step_down();
        Ok(())
    }

    /// The evidence against this replica, if it is quarantined.
    #[must_use]
    pub fn quarantined(&self) -> Option<&[u8]> {
        self.log().quarantine()
    }

    /// Ends the quarantine, durably: a snapshot was installed.
    ///
    /// # Errors
    /// If the storage fails.
    pub fn clear_quarantine(&mut self) -> Result<()> {
        self.usable()?;
        if self.quarantined().is_some() {
            self.raw.mut_store().log.set_quarantine(None)?;
        }
        self.snapshot_requested = false;
        Ok(())
    }

    /// Asks the leader for a snapshot, at every tick until one is offered. Until it is installed, nothing is appended.
    pub fn request_snapshot(&mut self) {
        self.snapshot_requested = true;
    }

    /// Says what became of a snapshot that was offered to another replica.
    pub fn report_snapshot(&mut self, to: RaftId, ok: bool) {
        self.snapshotting.remove(&to);
        let status = if ok { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.raw.report_snapshot(to.0, status);
    }

    /// Says that messages to another replica were lost.
    pub fn report_unreachable(&mut self, to: RaftId) {
        self.raw.report_unreachable(to.0);
    }

    /// Says what the state machine has applied, durably or not.
    pub fn applied(&mut self, index: u64) {
        assert!(index <= self.raw.raft.raft_log.committed, "only committed entries are applied");
        self.applied = index;
    }

    /// Forgets entries up to `to`, which the state machine has durably, as far as whole files can be dropped and no
    /// snapshot that is being served needs what follows it.
    ///
    /// # Errors
    /// If the storage fails.
    pub fn compact(&mut self, to: u64) -> Result<()> {
        self.usable()?;
        assert!(to <= self.applied, "what was not applied is needed");
        let store = self.raw.mut_store();
        let served = store.snapshot.as_ref().map_or(u64::MAX, |(position, ..)| position.index);
        store.log.compact(to.min(served))
    }

    /// Offers a pinned snapshot of the state machine, applied up to `index`, to followers that need one.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is older than the log's base or newer than what is applied.
    pub fn set_snapshot(&mut self, index: u64, manifest: Bytes) -> Result<()> {
        let log = self.log();
        if index > self.applied || manifest.len() > crate::message::MANIFEST_BYTES_MAX {
            return Err(Error::Invalid("a snapshot is of an applied state"));
        }
        let term = log.term(index).ok_or(Error::Invalid("the snapshot is older than the log"))?;
        let membership = log.membership_at(index).clone();
        if membership.is_empty() {
            return Err(Error::Invalid("a replica that has not joined has no snapshot"));
        }
        let store = self.raw.mut_store();
        store.snapshot = Some((Position { index, term }, membership, manifest));
        store.snapshot_wanted.set(None);
        Ok(())
    }

    /// Whether the snapshot that is offered, if there is one, is of any use to a replica: it must be a member in it.
    #[must_use]
    pub fn snapshot_covers(&self, id: RaftId) -> bool {
        self.raw.store().snapshot.as_ref().is_none_or(|(_, membership, _)| membership.contains(id))
    }

    /// Stops offering the snapshot: its pin is gone.
    pub fn clear_snapshot(&mut self) {
        self.raw.mut_store().snapshot = None;
    }
}
