//! Requests of the caller to a group.

use bytes::Bytes;
use raft::{
    Progress, ProgressState, SnapshotStatus, StateRole,
    eraftpb::{Entry, Message as RaftMessage, MessageType},
};

use super::{ENTRY_OVERHEAD_BYTES, EVIDENCE_BYTES_MAX, Group};
use crate::{
    Position, RaftId,
    change::{self, Change},
    error::{Error, Result},
    log::compact::{Cut, Garbage},
    output::ReadId,
};

impl Group {
    /// Proposes an entry. It is committed if an entry with exactly the returned position is handed
    /// out. It is lost if an entry of another term is handed out at that index.
    ///
    /// # Errors
    /// - [`Error::NotLeader`];
    /// - [`Error::Unavailable`] while the leadership is being transferred;
    /// - [`Error::Exhausted`] if too much is not committed yet;
    /// - [`Error::TooLarge`] or [`Error::Invalid`] if the entry is too large or empty;
    /// - [`Error::Io`] if there is no room on disk. If the disk is only full, the group can still
    ///   be used.
    pub fn propose(&mut self, data: Bytes) -> Result<Position> {
        self.only_leader()?;
        if data.is_empty() {
            return Err(Error::Invalid("an entry must not be empty"));
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

    /// The position of an entry that was proposed when the log ended at `before`.
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

    /// Asks for the index of the entry that must be applied, so that a read sees everything that
    /// was acknowledged before. The answer may be lost, so callers set a deadline and ask again.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there is no leader, or if it has not committed anything in its
    /// term yet. [`Error::Exhausted`] if too many reads wait.
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

    /// Proposes to change the members of the group. Several changes go through a joint membership
    /// that ends by itself. The changes hold once
    /// [`Payload::Membership`](crate::Payload::Membership) is handed out at the returned position.
    /// [`Payload::Empty`](crate::Payload::Empty) there means that they were refused.
    ///
    /// # Errors
    /// Those of [`Group::propose`]. [`Error::Invalid`] if the changes make no sense.
    /// [`Error::Unavailable`] while another change is not applied yet, or if a learner to be
    /// promoted is too far behind.
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
            return Err(Error::Unavailable("a learner can be promoted only once it has caught up"));
        }
        let before = self.end();
        let outcome = self.raw.propose_conf_change(change::encode(changes), change::to_raft(changes));
        self.proposed(before, outcome)
    }

    /// Hands the leadership to another voter, if that voter can catch up within an election
    /// timeout.
    ///
    /// # Errors
    /// [`Error::NotLeader`]; [`Error::Invalid`] if `to` is this replica or has no vote.
    pub fn transfer_leader(&mut self, to: RaftId) -> Result<()> {
        self.only_leader()?;
        if !self.membership.voters.contains(&to) || to == self.options.id {
            return Err(Error::Invalid("leadership can only be transferred to another voter"));
        }
        self.raw.transfer_leader(to.0);
        Ok(())
    }

    /// Stops leading at once, and has another voter campaign, whether or not it has all entries.
    /// This helps a leader whose links are so slow that nobody catches up with it. Entries that are
    /// not committed may be lost, as with any change of leaders.
    ///
    /// # Errors
    /// Those of [`Group::transfer_leader`].
    pub fn resign_to(&mut self, to: RaftId) -> Result<()> {
        self.only_leader()?;
        if !self.membership.voters.contains(&to) || to == self.options.id {
            return Err(Error::Invalid("leadership can only be transferred to another voter"));
        }
        let mut message = RaftMessage::default();
        message.set_msg_type(MessageType::MsgTimeoutNow);
        (message.from, message.to, message.term) = (self.options.id.0, to.0, self.raw.raft.term);
        self.raw.raft.msgs.push(message);
        self.step_down();
        Ok(())
    }

    /// Sets whether this replica lets the others campaign first, because it would be a bad leader.
    /// It still votes.
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

    /// Sends a heartbeat to every replica now, if this one leads.
    pub fn ping(&mut self) {
        self.raw.ping();
    }

    /// Whether nothing is under way that ticks would go on with: every entry is applied, and this
    /// replica follows a leader, or leads and every other replica has all entries.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let raft = &self.raw.raft;
        let last = raft.raft_log.last_index();
        let has_all =
            |peer: &Progress| peer.matched == last && peer.state == ProgressState::Replicate && peer.recent_active;
        let follows = raft.leader_id != 0 && raft.leader_id != raft.id && raft.state == StateRole::Follower;
        let leads = self.is_leader()
            && raft.commit_to_current_term()
            && raft.lead_transferee.is_none()
            && raft.prs().iter().all(|(id, peer)| *id == raft.id || has_all(peer));
        (leads || follows)
            && !self.has_ready()
            && self.quarantined().is_none()
            && self.membership.contains(self.options.id)
            && !self.membership.is_joint()
            && !raft.has_pending_conf()
            && (raft.raft_log.committed, self.applied) == (last, last)
            && raft.pending_read_count() == 0
            && self.reads.is_empty()
            && self.offer.is_none()
            && !self.snapshot_requested
            && self.snapshotting.is_empty()
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

    /// Records durably that this replica does not trust its own state. The replica stops leading
    /// and does not campaign, but still votes and keeps its log. It asks for a snapshot until one
    /// is installed.
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

    /// The evidence against this replica; `None` if it is not quarantined.
    #[must_use]
    pub fn quarantined(&self) -> Option<&[u8]> {
        self.log().quarantine()
    }

    /// Ends the quarantine durably, after a snapshot was installed.
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

    /// Asks the leader for a snapshot, at every tick until one is offered. Nothing is appended
    /// until it is installed.
    pub fn request_snapshot(&mut self) {
        self.snapshot_requested = true;
    }

    /// Reports the outcome of a snapshot that was offered to another replica.
    pub fn report_snapshot(&mut self, to: RaftId, ok: bool) {
        self.snapshotting.remove(&to);
        let status = if ok { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.raw.report_snapshot(to.0, status);
    }

    /// Reports that messages to another replica were lost.
    pub fn report_unreachable(&mut self, to: RaftId) {
        self.raw.report_unreachable(to.0);
    }

    /// Reports the last entry that the state machine has applied, durably or not.
    pub fn applied(&mut self, index: u64) {
        assert!(index <= self.raw.raft.raft_log.committed, "only committed entries are applied");
        self.applied = index;
    }

    /// Begins to drop entries up to `to`, which the state machine must have durably. Only whole
    /// files are dropped, and only entries that no snapshot being served needs. `None` if there is
    /// nothing to drop.
    ///
    /// The caller runs the cut, on any thread, and gives it to [`Self::end_cut`].
    ///
    /// # Errors
    /// If the group has failed.
    pub fn begin_cut(&mut self, to: u64) -> Result<Option<Cut>> {
        self.usable()?;
        assert!(to <= self.applied, "only applied entries are dropped");
        let store = self.raw.mut_store();
        let served = store.snapshot.as_ref().map_or(u64::MAX, |(position, ..)| position.index);
        Ok(store.log.begin_cut(to.min(served)))
    }

    /// Ends a cut: drops the entries, if the cut was stored. The caller removes the files that are
    /// left over.
    #[must_use]
    pub fn end_cut(&mut self, cut: Cut) -> Garbage {
        self.raw.mut_store().log.end_cut(cut)
    }

    /// Begins a segment of the log in a new file. Entries that the log has now go with their files
    /// once they are dropped, and no byte of them stays in a file that is used again.
    ///
    /// # Errors
    /// If the storage fails. The group has failed then.
    pub fn renew_log(&mut self) -> Result<()> {
        self.usable()?;
        self.raw.mut_store().log.renew().inspect_err(|_| self.failed = true)
    }

    /// Whether the files that the log had before [`Self::renew_log`] are gone, durably.
    ///
    /// # Errors
    /// If the storage fails. It may be tried again.
    pub fn clear_log(&mut self) -> Result<bool> {
        self.usable()?;
        self.raw.store().log.clear()
    }

    /// Offers a pinned snapshot of the state machine, applied up to `index`, to followers that need
    /// one.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the snapshot is older than the log's base or newer than the last
    /// applied entry, if its manifest is too long, or if this replica has not joined its group.
    pub fn set_snapshot(&mut self, index: u64, manifest: Bytes) -> Result<()> {
        let log = self.log();
        if index > self.applied || manifest.len() > crate::message::MANIFEST_BYTES_MAX {
            return Err(Error::Invalid("a snapshot must be of an applied state"));
        }
        let term = log.term(index).ok_or(Error::Invalid("the snapshot is older than the log"))?;
        let membership = log.membership_at(index).clone();
        if membership.is_empty() {
            return Err(Error::Invalid("a replica that has not joined can't offer a snapshot"));
        }
        let store = self.raw.mut_store();
        store.snapshot = Some((Position { index, term }, membership, manifest));
        store.snapshot_wanted.set(None);
        Ok(())
    }

    /// Whether the offered snapshot, if there is one, is useful to a replica: the replica must be a
    /// member in it.
    #[must_use]
    pub fn snapshot_covers(&self, id: RaftId) -> bool {
        self.raw.store().snapshot.as_ref().is_none_or(|(_, membership, _)| membership.contains(id))
    }

    /// Stops offering the snapshot, whose pin is gone.
    pub fn clear_snapshot(&mut self) {
        self.raw.mut_store().snapshot = None;
    }
}
