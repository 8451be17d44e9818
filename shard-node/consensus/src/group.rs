//! The group: raft, its log, and what lies between them and the caller.
//!
//! [`Group::advance`] is the one place where the order of durability is decided. A crash at any point leaves a log that
//! [`Group::open`] continues from; entries that were handed out are handed out again if the state machine does not have
//! them durably.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use coppice_env::{Rng, Storage};
use coppice_types::ErrorKind;
use raft::eraftpb::{Entry, EntryType, Message as RaftMessage, MessageType};
use raft::{ProgressState, RawNode, Ready, SnapshotStatus, StateRole};

use crate::change::{self, Change};
use crate::error::{Error, Result};
use crate::log::Log;
use crate::log::batch::HardState;
use crate::logger::logger;
use crate::message::split_append;
use crate::output::{Appended, Committed, Install, Output, Payload, Peer, ReadId, ReadReady, Role, RoleChange, Status};
use crate::snapshot::Offer;
use crate::store::Store;
use crate::{Membership, Message, Options, Position, RaftId};

/// What evidence of a divergence may take.
const EVIDENCE_BYTES_MAX: usize = 1 << 20;
/// Room for an entry's header and its share of its blocks' headers.
const ENTRY_OVERHEAD_BYTES: usize = 64;

/// One replica of a group. See the crate's head for the rules.
pub struct Group {
    pub(crate) options: Options,
    pub(crate) raw: RawNode<Store>,
    rng: Box<dyn Rng>,
    /// The election timeout that was drawn last.
    timeout_ticks: usize,
    ticks: u64,
    /// Distinguishes this process's reads from those of the one before.
    read_nonce: u64,
    read_next: u64,
    /// Reads without an answer, of which the oldest are forgotten.
    reads: BTreeSet<ReadId>,
    /// What the state machine has applied.
    applied: u64,
    membership: Membership,
    pub(crate) offer: Option<Offer>,
    /// Snapshots are asked for until one comes.
    pub(crate) snapshot_requested: bool,
    /// Since which tick each replica is being sent a snapshot.
    snapshotting: BTreeMap<RaftId, u64>,
    /// An error after which nothing is certain.
    failed: bool,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("options", &self.options).field("status", &self.status()).finish_non_exhaustive()
    }
}

impl Group {
    /// Whether a directory holds a log.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn exists(storage: &dyn Storage) -> Result<bool> {
        Ok(crate::log::meta::Meta::load(storage)?.is_some())
    }

    /// Makes a replica of a group that genesis does not know yet. All initial voters are made with the same list, and
    /// their state machines start at [`Position::START`].
    ///
    /// # Errors
    /// If the directory holds a log, the list is wrong, or the storage fails.
    pub fn create(storage: Arc<dyn Storage>, options: Options, rng: Box<dyn Rng>, voters: &[RaftId]) -> Result<Self> {
        let membership = Membership::of_voters(voters);
        if membership.check().is_err() || !membership.is_voter(options.id) {
            return Err(Error::Invalid("the voters of a new group are distinct and this replica is one of them"));
        }
        let log = Log::create(storage, options.sizes(), options.owner(), Position::START, membership.clone())?;
        Self::start(log, membership, options, rng, Position::START.index)
    }

    /// Makes a replica that knows nothing, under an id never used before: it waits to be added as a learner and for a
    /// snapshot. Its state machine is empty, at position 0.
    ///
    /// # Errors
    /// If the directory holds a log, or the storage fails.
    pub fn create_empty(storage: Arc<dyn Storage>, options: Options, rng: Box<dyn Rng>) -> Result<Self> {
        let membership = Membership::default();
        let log = Log::create(storage, options.sizes(), options.owner(), Position::default(), membership.clone())?;
        Self::start(log, membership, options, rng, 0)
    }

    /// Continues a replica whose state machine has `applied` durably. Committed entries after it are handed out again.
    ///
    /// # Errors
    /// [`Error::InstallPending`] if the installation of a snapshot was cut off; else if the log is missing, another's,
    /// damaged, or does not fit `applied`.
    pub fn open(storage: Arc<dyn Storage>, options: Options, rng: Box<dyn Rng>, applied: Position) -> Result<Self> {
        let log = Log::open(storage, options.sizes(), options.owner())?;
        let mut log = log.ok_or(Error::Existence("there is no raft log in this directory"))?;
        let (first, last) = (log.base(), log.last());
        if applied.index < first.index
            && let Some(manifest) = log.manifest()
        {
            return Err(Error::InstallPending { position: first, manifest: Bytes::copy_from_slice(manifest) });
        }
        let mismatch = |detail| Error::StateMismatch { machine: applied, first, last, detail };
        if applied.index < first.index {
            return Err(mismatch("entries that the machine lacks are gone"));
        }
        match log.term(applied.index) {
            None => return Err(mismatch("the machine has applied more than the log holds")),
            Some(term) if term != applied.term => return Err(mismatch("the machine has applied another entry")),
            Some(_) => {}
        }
        let state = log.hard_state();
        if state.commit < applied.index {
            // The commit index is not synced by itself, and what was applied was committed.
            log.set_hard_state(HardState { commit: applied.index, ..state });
        }
        let membership = log.membership_at(applied.index).clone();
        Self::start(log, membership, options, rng, applied.index)
    }

    fn start(log: Log, membership: Membership, options: Options, mut rng: Box<dyn Rng>, applied: u64) -> Result<Self> {
        let snapshot_requested = log.quarantine().is_some();
        let store = Store::new(log, membership.clone());
        let raw = RawNode::new(&options.raft(applied), store, &logger());
        let raw = raw.map_err(|error| Error::Raft(error.to_string()))?;
        let read_nonce = rng.next_u64();
        let mut group = Self {
            options,
            raw,
            rng,
            timeout_ticks: options.election_ticks,
            ticks: 0,
            read_nonce,
            read_next: 0,
            reads: BTreeSet::new(),
            applied,
            membership,
            offer: None,
            snapshot_requested,
            snapshotting: BTreeMap::new(),
            failed: false,
        };
        group.draw_timeout();
        Ok(group)
    }

    /// Raft draws its election timeouts from a generator that no seed reaches: replaces each new one by ours.
    fn draw_timeout(&mut self) {
        if self.raw.raft.election_elapsed == 0 {
            let least = self.options.election_ticks;
            let spread = self.rng.below(least as u64);
            self.timeout_ticks = least + usize::try_from(spread).expect("less than the election ticks");
            self.raw.raft.set_randomized_election_timeout(self.timeout_ticks);
        }
    }

    pub(crate) fn log(&self) -> &Log {
        &self.raw.store().log
    }

    fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    fn usable(&self) -> Result<()> {
        if self.failed { Err(Error::Unavailable("the raft log failed before")) } else { Ok(()) }
    }

    fn only_leader(&self) -> Result<()> {
        self.usable()?;
        if self.is_leader() {
            return Ok(());
        }
        Err(Error::NotLeader { leader: RaftId::of(self.raw.raft.leader_id) })
    }

    /// Lets one tick pass.
    pub fn tick(&mut self) {
        self.ticks += 1;
        // A quarantined replica never reaches its timeout. It stays just below, where the lease of a silent leader is
        // over, so that it can vote for others.
        let held = self.quarantined().is_some()
            && !self.is_leader()
            && self.raw.raft.election_elapsed + 1 >= self.timeout_ticks;
        if !held {
            self.raw.tick();
        }
        self.draw_timeout();
        self.leave_joint();
        self.report_lost_snapshots();
        if self.snapshot_requested && self.offer.is_none() {
            // Refused without a leader, or while one was asked for already: then the next tick asks again.
            let _ = self.raw.request_snapshot();
        }
        self.try_install();
    }

    /// A leader that fell before it had applied a joint membership leaves it to the next one to end it.
    fn leave_joint(&mut self) {
        let raft = &self.raw.raft;
        let due = self.is_leader() && self.membership.is_joint() && !raft.has_pending_conf();
        if due && raft.lead_transferee.is_none() {
            // If it is dropped, the next tick proposes it again.
            let _ = self.raw.propose_conf_change(Vec::new(), change::to_raft(&[]));
        }
    }

    /// Raft sends nothing to a replica that was offered a snapshot until it hears what became of it.
    fn report_lost_snapshots(&mut self) {
        if !self.is_leader() {
            self.snapshotting.clear();
            return;
        }
        let now = self.ticks;
        let max = self.options.snapshot_ticks_max;
        let raft = &self.raw.raft;
        let stuck = |id: &RaftId| raft.prs().get(id.0).is_some_and(|peer| peer.state == ProgressState::Snapshot);
        self.snapshotting.retain(|id, _| stuck(id));
        let lost: Vec<RaftId> =
            self.snapshotting.iter().filter(|(_, since)| now - **since > max).map(|(id, _)| *id).collect();
        for id in lost {
            self.report_snapshot(id, false);
        }
    }

    /// Takes a message of another replica.
    ///
    /// # Errors
    /// If it was dropped: it can't be meant for this replica, no replica in its right mind sends it, or there is no room
    /// on disk for its entries. The group goes on.
    pub fn step(&mut self, message: Message) -> Result<()> {
        self.usable()?;
        self.check_message(&message)?;
        if message.is_snapshot() {
            return self.step_snapshot(message);
        }
        let bytes = message.raft.entries.iter().map(|entry| entry.data.len() + ENTRY_OVERHEAD_BYTES).sum();
        if message.raft.get_msg_type() == MessageType::MsgAppend && bytes > 0 {
            self.ensure_room(bytes)?;
        }
        self.step_raft(message.raft)
    }

    /// Makes room on disk for entries before raft knows of them. A full disk refuses them; any other failure is final.
    fn ensure_room(&mut self, bytes: usize) -> Result<()> {
        let outcome = self.raw.mut_store().log.ensure_room(bytes);
        self.failed = outcome.as_ref().is_err_and(|error| error.kind() != ErrorKind::Exhausted);
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

    /// Keeps from raft what would make it panic or what it is not meant to see.
    fn check_message(&self, message: &Message) -> Result<()> {
        let refuse = |why| Err(Error::Refused(why));
        let raft = &self.raw.raft;
        let last = raft.raft_log.last_index();
        let said = &message.raft;
        if message.group != self.options.group || message.to() != self.options.id {
            return refuse("it is for another replica");
        }
        match said.get_msg_type() {
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote if self.has_never_joined() => {
                refuse("a replica without a log never votes")
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

    /// The replica was made without a log and has heard nothing since.
    fn has_never_joined(&self) -> bool {
        self.membership.is_empty() && self.raw.raft.raft_log.last_index() == 0
    }

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
        match self.raw.raft.step(message) {
            Ok(()) => Ok(self.end()),
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
        let mut context = self.read_nonce.to_le_bytes().to_vec();
        context.extend_from_slice(&id.0.to_le_bytes());
        self.raw.read_index(context);
        Ok(id)
    }

    /// The read that a context belongs to, if this process waits for it.
    fn read_id(&self, context: &[u8]) -> Option<ReadId> {
        let (nonce, id) = context.split_first_chunk::<8>()?;
        let id = u64::from_le_bytes(id.try_into().ok()?);
        (u64::from_le_bytes(*nonce) == self.read_nonce && self.reads.contains(&ReadId(id))).then_some(ReadId(id))
    }

    /// Proposes to change who is in the group; several changes go through a joint membership that ends by itself. They
    /// hold once [`Payload::Membership`] is handed out at the position returned; [`Payload::Empty`] there means that
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
        let outcome = self.raw.propose_conf_change(change::encode(changes), change::to_raft(changes));
        match outcome {
            Ok(()) => Ok(self.end()),
            Err(raft::Error::ProposalDropped) => Err(Error::Exhausted("too many proposals are not committed yet")),
            Err(error) => Err(Error::Raft(error.to_string())),
        }
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

    /// Stops offering the snapshot: its pin is gone.
    pub fn clear_snapshot(&mut self) {
        self.raw.mut_store().snapshot = None;
    }

    /// Whether [`Group::advance`] has something to do.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        self.failed
            || self.raw.has_ready()
            || self.offer.as_ref().is_some_and(Offer::is_news)
            || self.raw.store().snapshot_wanted.get().is_some()
    }

    /// Does what is due, in the order that makes it safe:
    /// 1. a leader's messages go out at once, so that followers write while it does;
    /// 2. snapshot, entries and hard state are written, those of several steps in one batch, and synced once;
    /// 3. the other messages go out, which speak of what is durable now;
    /// 4. committed entries are handed out; changes of membership are made known to raft, and synced, before.
    ///
    /// To be called while [`Group::has_ready`]; one call hands out a bounded amount.
    ///
    /// # Errors
    /// Any error is final: the storage failed or holds damaged bytes, and this group must be dropped.
    pub fn advance(&mut self, send: &mut dyn FnMut(Message)) -> Result<Output> {
        self.usable()?;
        let mut output = Output::default();
        let outcome = self.advance_into(&mut output, send);
        self.failed = outcome.is_err();
        outcome?;
        self.report_discarded(&mut output);
        output.snapshot_offer = self.offer.as_mut().and_then(Offer::news);
        output.snapshot_wanted = self.raw.store().snapshot_wanted.take();
        Ok(output)
    }

    fn advance_into(&mut self, output: &mut Output, send: &mut dyn FnMut(Message)) -> Result<()> {
        let mut handed_out = 0;
        loop {
            let mut number = None;
            let mut later = Vec::new();
            while handed_out < self.options.committed_bytes_max && self.raw.has_ready() {
                // What was said about entries before a snapshot replaces them must be durable first.
                if number.is_some() && self.raw.snap().is_some() {
                    break;
                }
                let ready = self.raw.ready();
                if let Some(failure) = self.raw.store().take_failure() {
                    return Err(failure);
                }
                number = Some(ready.number());
                handed_out += self.handle(ready, output, &mut later, send)?;
            }
            let Some(number) = number else { return Ok(()) };
            if self.log().needs_sync() {
                self.raw.mut_store().log.flush()?;
            }
            self.raw.on_persist_ready(number);
            if let Some(install) = output.install.as_ref().filter(|install| install.position.index > self.delivered()) {
                let index = install.position.index;
                self.raw.advance_apply_to(index);
            }
            later.into_iter().for_each(|message| self.send(message, send));
        }
    }

    /// Up to where raft knows that entries were handed out.
    fn delivered(&self) -> u64 {
        self.raw.raft.raft_log.applied
    }

    /// Handles one `Ready` short of the fsync. Returns the bytes of the committed entries in it.
    fn handle(
        &mut self,
        mut ready: Ready,
        output: &mut Output,
        later: &mut Vec<RaftMessage>,
        send: &mut dyn FnMut(Message),
    ) -> Result<u64> {
        for message in ready.take_messages() {
            self.send(message, send);
        }
        if ready.ss().is_some() {
            output.role = Some(self.role_change());
        }
        for read in ready.take_read_states() {
            // A message that came twice is answered twice.
            let id = self.read_id(&read.request_ctx);
            if let Some(id) = id {
                self.reads.remove(&id);
            }
            output.reads.extend(id.map(|id| ReadReady { id, index: read.index }));
        }
        self.write(&ready, output)?;
        later.append(&mut ready.take_persisted_messages());
        let committed = ready.take_committed_entries();
        self.raw.advance_append_async(ready);
        self.deliver(committed, output)
    }

    fn write(&mut self, ready: &Ready, output: &mut Output) -> Result<()> {
        let hard_state = ready.hs().map(|state| HardState { term: state.term, vote: state.vote, commit: state.commit });
        if !ready.snapshot().is_empty() {
            let install = Install {
                position: Position {
                    index: ready.snapshot().get_metadata().index,
                    term: ready.snapshot().get_metadata().term,
                },
                manifest: ready.snapshot().data.clone(),
                membership: Membership::from_raft(ready.snapshot().get_metadata().get_conf_state()),
            };
            let raft = self.raw.raft.hard_state();
            let state = HardState { term: raft.term, vote: raft.vote, commit: raft.commit };
            let log = &mut self.raw.mut_store().log;
            log.reset(install.position, install.membership.clone(), install.manifest.to_vec(), state)?;
            self.membership = install.membership.clone();
            self.snapshot_requested = false;
            self.raw.mut_store().snapshot = None;
            output.appended.clear();
            output.committed.clear();
            output.install = Some(install);
        }
        let log = &mut self.raw.mut_store().log;
        log.append(ready.entries());
        let appended = ready.entries().iter().map(|entry| Appended {
            position: Position { index: entry.index, term: entry.term },
            data: if entry.get_entry_type() == EntryType::EntryNormal { entry.data.clone() } else { Bytes::new() },
        });
        output.appended.extend(appended);
        if let Some(state) = hard_state {
            log.set_hard_state(state);
        }
        Ok(())
    }

    /// Hands out committed entries. Changes of membership take effect here, and are noted in the log in the batch that
    /// is synced before this output is seen, so that a restart finds the membership that belongs to any position.
    fn deliver(&mut self, entries: Vec<Entry>, output: &mut Output) -> Result<u64> {
        let Some(last) = entries.last().map(|entry| entry.index) else { return Ok(0) };
        let mut bytes = 0;
        for entry in entries {
            let position = Position { index: entry.index, term: entry.term };
            bytes += (entry.data.len() + ENTRY_OVERHEAD_BYTES) as u64;
            let payload = match entry.get_entry_type() {
                EntryType::EntryNormal if entry.data.is_empty() => Payload::Empty,
                EntryType::EntryNormal => Payload::Data(entry.data),
                EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => {
                    self.apply_change(position, &entry.context, output)
                }
            };
            output.committed.push(Committed { position, payload });
        }
        self.raw.advance_apply_to(last);
        Ok(bytes)
    }

    fn apply_change(&mut self, position: Position, bytes: &[u8], output: &mut Output) -> Payload {
        // Bytes that can't be read, and changes that raft refuses, are so on every replica: nothing changes.
        let Ok(changes) = change::decode(bytes) else { return Payload::Empty };
        let Ok(state) = self.raw.apply_conf_change(&change::to_raft(&changes)) else { return Payload::Empty };
        let membership = Membership::from_raft(&state);
        let id = self.options.id;
        output.removed = self.membership.contains(id) && !membership.contains(id);
        self.raw.mut_store().log.set_membership(position.index, membership.clone());
        self.membership = membership.clone();
        Payload::Membership(membership)
    }

    /// Raft batches entries into an append that waits, and takes one without entries for a match though it may speak of
    /// a later index: then its index and term are not those before the first entry. Returns false if it can't be mended,
    /// which raft takes for a lost message.
    fn mend_append(&self, message: &mut RaftMessage) -> bool {
        let Some(first) = message.entries.first() else { return true };
        if message.get_msg_type() != MessageType::MsgAppend || first.index == message.index + 1 {
            return true;
        }
        let before = first.index - 1;
        match self.raw.raft.raft_log.term(before) {
            Ok(term) if term > 0 || before == 0 => {
                message.index = before;
                message.log_term = term;
                true
            }
            _ => false,
        }
    }

    fn send(&mut self, mut message: RaftMessage, send: &mut dyn FnMut(Message)) {
        if message.get_msg_type() == MessageType::MsgSnapshot {
            self.snapshotting.insert(RaftId(message.to), self.ticks);
        }
        if !self.mend_append(&mut message) {
            return;
        }
        for raft in split_append(message, self.options.message_bytes_max) {
            send(Message { group: self.options.group, raft });
        }
    }

    fn role(&self) -> Role {
        match self.raw.raft.state {
            StateRole::Leader => Role::Leader,
            StateRole::Follower => Role::Follower,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
        }
    }

    fn role_change(&self) -> RoleChange {
        RoleChange { role: self.role(), leader: RaftId::of(self.raw.raft.leader_id), term: self.raw.raft.term }
    }

    /// How this replica and, on a leader, the others stand.
    #[must_use]
    pub fn status(&self) -> Status {
        let raft = &self.raw.raft;
        let mut peers = Vec::new();
        if self.is_leader() {
            for (id, peer) in raft.prs().iter().filter(|(id, _)| **id != raft.id) {
                peers.push(Peer {
                    id: RaftId(*id),
                    learner: !self.membership.is_voter(RaftId(*id)),
                    matched: peer.matched,
                    active: peer.recent_active,
                    snapshotting: peer.state == ProgressState::Snapshot,
                });
            }
        }
        peers.sort_by_key(|peer| peer.id);
        Status {
            id: self.options.id,
            role: self.role(),
            leader: RaftId::of(raft.leader_id),
            term: raft.term,
            commit: raft.raft_log.committed,
            applied: self.applied,
            base: self.log().base(),
            last: self.log().last(),
            membership: self.membership.clone(),
            peers,
            quarantined: self.quarantined().is_some(),
        }
    }
}
