//! Applying what raft committed, flushing, and cutting the log behind it.

use coppice_consensus::{Committed, Payload, Position};
use coppice_proto::v1::peer_message::Body;
use coppice_types::ErrorKind;

use super::actor::{Actor, to_report};
use crate::{
    Error,
    machine::{Applied, StateMachine},
};

impl<M: StateMachine> Actor<M> {
    /// Applies committed entries in order and tells the other replicas the outcomes. Raft gives an entry only after the fsync
    /// that covers it here, so the reports are of durable entries.
    pub(super) fn apply(&mut self, committed: Vec<Committed>) -> Result<(), Error> {
        if committed.is_empty() {
            return Ok(());
        }
        let mut outcomes = Vec::new();
        for Committed { position, payload } in committed {
            match payload {
                Payload::Data(command) => {
                    if let Some(Applied { digest, reply }) = self.apply_one(position, &command)? {
                        self.waiters.applied(position, reply);
                        outcomes.push((position.index, digest));
                    }
                }
                Payload::Empty => self.waiters.empty(position),
                Payload::Membership(_) => {
                    self.note_members();
                    self.unpin_outdated();
                    self.waiters.changed(position);
                }
            }
            self.applied = position;
            self.unflushed_entries += 1;
        }
        for &(index, digest) in &outcomes {
            self.agreements.note_own(index, digest);
            self.touched.insert(index);
            self.broadcast(&Body::Digest(to_report(index, digest, false)));
        }
        self.group.applied(self.applied.index);
        self.shared.applied.send_replace(self.applied.index);
        Ok(())
    }

    /// Applies one command; nothing in quarantine, where the state machine is closed.
    fn apply_one(&mut self, position: Position, command: &[u8]) -> Result<Option<Applied<M::Reply>>, Error> {
        let applied = match self.machine().as_mut() {
            Some(machine) => machine.apply(position.index, command),
            None => return Ok(None),
        };
        match applied {
            Ok(applied) => Ok(Some(applied)),
            Err(error) => self.failed(error).map(|()| None),
        }
    }

    pub(super) fn flush_if_due(&mut self) -> Result<(), Error> {
        let tuning = &self.config.hosted.tuning;
        let old = self.now().saturating_sub(self.flushed_at) >= tuning.flush_interval;
        if self.full {
            // Only the interval counts, or every entry would try again.
            return if old { self.flush() } else { Ok(()) };
        }
        if self.unflushed_entries == 0 {
            return Ok(());
        }
        let bytes = self.machine().as_ref().map_or(0, StateMachine::unflushed_bytes);
        let much = self.unflushed_entries >= tuning.flush_entries_max || bytes >= tuning.flush_bytes_max;
        if old || much { self.flush() } else { Ok(()) }
    }

    /// There is no room left: versions are refused, and what was kept in reserve is for what makes room.
    pub(super) fn note_full(&mut self) -> Result<(), Error> {
        if self.full {
            return Ok(());
        }
        tracing::error!(group = %self.config.identity.group, "the disk is full");
        self.full = true;
        self.home.release_reserve()
    }

    /// Makes the state machine durable, then cuts the log up to what the older superblock needs.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        self.flushed_at = self.now();
        let position = self.applied;
        let flushed = match self.machine().as_mut() {
            Some(machine) if machine.durable() < position => {
                machine.flush(position).map(|()| Some(machine.log_floor()))
            }
            _ => Ok(None),
        };
        match flushed {
            Ok(floor) => {
                self.unflushed_entries = 0;
                if self.full && self.home.take_reserve().is_ok() {
                    tracing::info!(group = %self.config.identity.group, "the disk has room again");
                    self.full = false;
                }
                floor.map_or(Ok(()), |floor| self.cut(floor))
            }
            Err(error) if error.kind() == ErrorKind::Exhausted => self.note_full(),
            Err(error) => self.failed(error),
        }
    }

    fn cut(&mut self, floor: Position) -> Result<(), Error> {
        if floor <= self.home.floor()? {
            return Ok(());
        }
        match self.home.set_floor(floor) {
            Ok(()) => Ok(self.group.compact(floor.index)?),
            // The log stays longer than it needs to.
            Err(error) if error.kind() == ErrorKind::Exhausted => Ok(()),
            Err(error) => Err(error),
        }
    }
}
