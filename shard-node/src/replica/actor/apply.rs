//! Applying what raft committed, flushing, and cutting the log behind it.

use std::time::Duration;

use coppice_consensus::{Committed, Payload, Position};
use coppice_env::Shortage;
use coppice_proto::v1::peer_message::Body;
use coppice_types::ErrorKind;
use opentelemetry::trace::TraceContextExt;

use super::{Actor, to_report};
use crate::{
    Error,
    replica::machine::{Applied, Disk, StateMachine},
};

/// How soon a replica that lacks something looks whether it is there.
const SHORTAGE_RETRY: Duration = Duration::from_secs(1);

/// What became of one command.
enum Step<R> {
    Applied(Applied<R>),
    /// The state machine is closed, in quarantine.
    Closed,
    /// A reader holds it.
    Busy,
}

impl<M: StateMachine> Actor<M> {
    /// Applies committed entries in order and tells the other replicas the outcomes. Raft gives an entry only after the fsync
    /// that covers it here, so the reports are of durable entries. Stops while a long read holds the state machine.
    pub(super) fn apply_backlog(&mut self) -> Result<(), Error> {
        let before = self.applied;
        let mut outcomes = Vec::new();
        while let Some(Committed { position, payload }) = self.backlog.pop_front() {
            match payload {
                Payload::Data(command) => match self.apply_one(position, &command)? {
                    Step::Applied(Applied { digest, reply }) => {
                        self.waiters.applied(position, reply);
                        outcomes.push((position.index, digest));
                    }
                    Step::Closed => {}
                    Step::Busy => {
                        self.backlog.push_front(Committed { position, payload: Payload::Data(command) });
                        break;
                    }
                },
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
        if self.applied == before {
            return Ok(());
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

    fn apply_one(&mut self, position: Position, command: &[u8]) -> Result<Step<M::Reply>, Error> {
        // A reader that is in the way makes it try again: the span begins when none is.
        let Some(mut guard) = self.try_machine() else { return Ok(Step::Busy) };
        let Some(machine) = guard.as_mut() else { return Ok(Step::Closed) };
        let (began, span) = (self.now(), self.waiters.applying(position));
        let applied = machine.apply(position.index, command);
        drop(guard);
        span.span().end();
        let took = self.now().saturating_sub(began) + std::mem::take(&mut self.looked_ahead);
        self.config.hosted.durations.apply.record(took.as_secs_f64(), &self.labels);
        match applied {
            Ok(applied) => Ok(Step::Applied(applied)),
            Err(error) => self.failed(error).map(|()| Step::Closed),
        }
    }

    pub(super) fn flush_if_due(&mut self) -> Result<(), Error> {
        let tuning = &self.config.hosted.tuning;
        let age = self.now().saturating_sub(self.flushed_at);
        let old = age >= tuning.flush_interval;
        if self.short_of.is_some() {
            // Only the time counts, or every entry would try again.
            return if old || age >= SHORTAGE_RETRY { self.flush_again() } else { Ok(()) };
        }
        let machine = self.read_machine();
        let bytes = machine.as_ref().map_or(0, StateMachine::unflushed_bytes);
        let much = bytes >= tuning.flush_bytes_max || machine.as_ref().is_some_and(StateMachine::much_waits);
        let many = self.unflushed_entries >= tuning.flush_entries_max;
        let due = self.unflushed_entries > 0 && (old || many || much);
        let disk = machine.as_ref().map_or(Disk::Idle, |machine| machine.disk(due));
        drop(machine);
        let late = bytes >= tuning.late_bytes() || age >= 2 * tuning.flush_interval;
        match disk {
            _ if due && late => self.begin_flush(),
            Disk::Idle if due => self.begin_flush(),
            Disk::Due => self.write(|machine| machine.write_on(due)).map(|_| ()),
            // What is due comes with one of the next steps.
            Disk::Idle | Disk::Busy => Ok(()),
        }
    }

    /// Something ran out: versions are refused until it is there.
    pub(crate) fn note_shortage(&mut self, short_of: Shortage) {
        if self.short_of != Some(short_of) {
            tracing::error!(group = %self.config.identity.group, "{short_of}");
            self.short_of = Some(short_of);
        }
    }

    /// Keeps back on the disk what must go on when it is full. Where there is no room for that it counts as full.
    pub(super) fn take_reserve(&mut self) -> Result<(), Error> {
        let group = self.config.identity.group;
        let at_once = self.read_machine().as_ref().map_or(0, StateMachine::work_bytes_max);
        let reserve_bytes = self.config.hosted.tuning.reserve_bytes(at_once);
        match self.home.take_reserve(reserve_bytes) {
            Ok(()) => {
                if let Some(short_of) = self.short_of.take() {
                    tracing::info!(%group, "it is over that {short_of}");
                }
            }
            Err(error) => {
                let short_of = error.shortage().ok_or(error)?;
                if short_of == Shortage::Space && self.short_of.is_none() {
                    tracing::error!(%group, reserve_bytes, "the disk has no room for the reserve");
                }
                self.note_shortage(short_of);
            }
        }
        Ok(())
    }

    /// Begins to make durable what was applied.
    fn begin_flush(&mut self) -> Result<(), Error> {
        let position = self.applied;
        self.write(|machine| machine.begin_flush(position)).map(|began| self.note_flush(began))
    }

    /// Makes durable what was applied.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        let position = self.applied;
        let flush = |machine: &mut M| if machine.durable() < position { machine.flush(position) } else { Ok(()) };
        self.write(flush).map(|began| self.note_flush(began))
    }

    /// The same, also if nothing has changed: what was freed is given back when neither superblock needs it.
    fn flush_again(&mut self) -> Result<(), Error> {
        let position = self.applied;
        self.write(|machine| machine.flush(position)).map(|began| self.note_flush(began))
    }

    fn note_flush(&mut self, began: bool) {
        if began {
            (self.flushed_at, self.unflushed_entries) = (self.now(), 0);
        }
    }

    /// Lets the state machine write, then cuts the log up to what the older superblock needs. False if a reader is in the way.
    fn write(&mut self, write: impl FnOnce(&mut M) -> Result<(), Error>) -> Result<bool, Error> {
        let written = match self.try_machine() {
            // Due again at once.
            None => return Ok(false),
            Some(mut machine) => match machine.as_mut() {
                Some(machine) => {
                    let before = machine.log_floor();
                    write(machine).map(|()| Some(machine.log_floor()).filter(|floor| *floor > before))
                }
                None => Ok(None),
            },
        };
        let noted = match written {
            Ok(floor) => {
                if self.short_of.is_some() || floor.is_some() {
                    self.take_reserve()?;
                }
                floor.map_or(Ok(()), |floor| self.cut(floor))
            }
            Err(error) => match error.shortage() {
                Some(Shortage::Handles) => {
                    self.note_shortage(Shortage::Handles);
                    Ok(())
                }
                Some(Shortage::Space) => {
                    self.note_shortage(Shortage::Space);
                    self.home.release_reserve()
                }
                None => self.failed(error),
            },
        };
        noted.map(|()| true)
    }

    fn cut(&mut self, floor: Position) -> Result<(), Error> {
        if floor <= self.home.floor()? {
            return Ok(());
        }
        let cut = self.home.set_floor(floor).and_then(|()| Ok(self.group.compact(floor.index)?));
        match cut {
            // The log stays longer than it needs to.
            Err(error) if error.kind() == ErrorKind::Exhausted => Ok(()),
            cut => cut,
        }
    }
}
