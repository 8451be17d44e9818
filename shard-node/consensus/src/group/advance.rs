//! The order of durability: what each step sends, writes, syncs and hands out.

use coppice_env::Workers;
use raft::{
    Ready,
    eraftpb::{Entry, EntryType, Message as RaftMessage, MessageType},
};

use super::{ENTRY_OVERHEAD_BYTES, Group, offer::Offer};
use crate::{
    Membership, Message, Position, RaftId, change,
    error::Result,
    log::batch::HardState,
    message::split_append,
    output::{Beside, Committed, Install, Output, Payload, ReadReady},
};

/// Whether an entry comes right after the last one in `output`.
fn follows(output: &Output, position: Position) -> bool {
    let installed = output.install.as_ref().map(|install| install.position);
    let before = output.committed.last().map(|committed| committed.position).or(installed);
    before.is_none_or(|before| position.index == before.index + 1 && position.term >= before.term)
}

impl Group {
    /// Whether [`Group::advance`] has work to do.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        self.failed
            || self.raw.has_ready()
            || self.offer.as_ref().is_some_and(Offer::is_news)
            || self.raw.store().snapshot_wanted.get().is_some()
    }

    /// Does the work that is due, in a safe order:
    /// 1. A leader's messages are sent at once, so that followers write while it does.
    /// 2. Snapshot, entries and hard state are written, those of several steps in one batch, and
    ///    synced once.
    /// 3. The other messages are sent. They speak of what is durable now.
    /// 4. Committed entries are handed out. Before that, changes of membership are made known to
    ///    raft and synced.
    ///
    /// The caller repeats this while [`Group::has_ready`]. One call hands out a bounded amount.
    ///
    /// # Errors
    /// Every error is final: the storage failed or holds damaged bytes, and this group must be
    /// dropped.
    pub fn advance(&mut self, send: &mut dyn FnMut(Message)) -> Result<Output> {
        self.advance_beside(send, Beside { workers: Workers::Inline, meanwhile: &mut |_| {}, writes: &|_| {} })
    }

    /// Like [`Group::advance`], but does other work while step 2 writes and syncs a large batch.
    ///
    /// # Errors
    /// Those of [`Group::advance`].
    pub fn advance_beside(&mut self, send: &mut dyn FnMut(Message), mut beside: Beside<'_>) -> Result<Output> {
        self.usable()?;
        let mut output = Output::default();
        let outcome = self.advance_into(&mut output, send, &mut beside);
        self.failed = outcome.is_err();
        outcome?;
        self.report_discarded(&mut output);
        output.snapshot_offer = self.offer.as_mut().and_then(Offer::take);
        output.snapshot_wanted = self.raw.store().snapshot_wanted.take();
        Ok(output)
    }

    fn advance_into(
        &mut self,
        output: &mut Output,
        send: &mut dyn FnMut(Message),
        beside: &mut Beside<'_>,
    ) -> Result<()> {
        let mut handed_out = 0;
        loop {
            let mut number = None;
            let mut later = Vec::new();
            while handed_out < self.options.committed_bytes_max && self.raw.has_ready() {
                // Messages about entries that a snapshot is about to replace need those entries to
                // be durable first.
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
                self.raw.mut_store().log.flush(beside)?;
            }
            assert!(!self.log().needs_sync(), "messages speak only of what is durable");
            self.raw.on_persist_ready(number);
            if let Some(install) = output.install.as_ref().filter(|install| install.position.index > self.delivered()) {
                let index = install.position.index;
                self.raw.advance_apply_to(index);
            }
            later.into_iter().for_each(|message| self.send(message, send));
        }
    }

    /// The last entry that raft has handed out.
    fn delivered(&self) -> u64 {
        self.raw.raft.raft_log.applied
    }

    /// Handles one `Ready` up to the fsync. Returns the bytes of its committed entries.
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
            // An answer that comes twice is handed out once.
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
            assert_eq!(self.log().last(), install.position, "the log starts at the snapshot");
            self.membership = install.membership.clone();
            self.snapshot_requested = false;
            self.raw.mut_store().snapshot = None;
            output.committed.clear();
            output.install = Some(install);
        }
        let log = &mut self.raw.mut_store().log;
        log.append(ready.entries());
        if let Some(state) = hard_state {
            log.set_hard_state(state);
        }
        assert_eq!(self.log().last().index, self.raw.raft.raft_log.last_index(), "raft and its log end alike");
        Ok(())
    }

    /// Hands out committed entries. Changes of membership take effect here. They are written to the
    /// log in the batch that is synced before the caller sees this output, so that a restart finds
    /// the membership that belongs to any position.
    fn deliver(&mut self, entries: Vec<Entry>, output: &mut Output) -> Result<u64> {
        let Some(last) = entries.last().map(|entry| entry.index) else { return Ok(0) };
        let mut bytes = 0;
        for entry in entries {
            let position = Position { index: entry.index, term: entry.term };
            assert!(follows(output, position), "entries are handed out in order and once");
            assert!(position.index <= self.log().hard_state().commit, "only committed entries are handed out");
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
        // Unreadable bytes, changes that raft refuses, and too many replicas for a log to name are
        // the same on every replica: all of them change nothing.
        let Ok(changes) = change::decode(bytes) else { return Payload::Empty };
        if !self.membership.has_room_for(changes.iter().map(|change| change.id())) {
            return Payload::Empty;
        }
        let Ok(state) = self.raw.apply_conf_change(&change::to_raft(&changes)) else { return Payload::Empty };
        let membership = Membership::from_raft(&state);
        let id = self.options.id;
        output.removed = self.membership.contains(id) && !membership.contains(id);
        self.raw.mut_store().log.set_membership(position.index, membership.clone());
        self.membership = membership.clone();
        Payload::Membership(membership)
    }

    /// Corrects the position before an append's first entry. Returns false if that is impossible.
    /// The message is then dropped, which raft treats as a lost one.
    ///
    /// Raft adds entries to an append that is still waiting. If that append had no entries before,
    /// its index may be later than the one before its new first entry.
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
}
