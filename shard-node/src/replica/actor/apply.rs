//! Applying committed entries, and flushing them.

use bytes::Bytes;
use coppice_consensus::{Committed, Payload, Position};
use coppice_proto::v1::peer_message::Body;
use opentelemetry::trace::TraceContextExt;

use super::{Actor, to_report};
use crate::{
    Error,
    replica::machine::{Applied, StateMachine},
};

/// The outcome of trying to apply one command.
enum Step<R> {
    Applied(Applied<R>),
    /// The state machine is closed: the replica is quarantined.
    Closed,
    /// A reader holds the state machine.
    Busy,
}

impl<M: StateMachine> Actor<M> {
    /// Applies committed entries in order and tells the other replicas the outcomes. Raft returns
    /// an entry only after the fsync that covers it here, so all reported entries are durable.
    /// Stops while a long read holds the state machine.
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
                    self.snapshots.unpin_outdated(&mut self.group);
                    self.waiters.changed(position);
                }
            }
            self.applied = position;
            self.flushing.note_entry();
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

    fn apply_one(&mut self, position: Position, command: &Bytes) -> Result<Step<M::Reply>, Error> {
        // If a reader has the state machine, the entry is tried again. So the span begins only
        // after the lock is taken.
        let Some(mut guard) = self.shared.try_machine() else { return Ok(Step::Busy) };
        let Some(machine) = guard.as_mut() else { return Ok(Step::Closed) };
        let (began, span) = (self.now(), self.waiters.applying(position));
        let applied = machine.apply(position.index, command);
        drop(guard);
        span.span().end();
        let took = self.now().saturating_sub(began) + std::mem::take(&mut self.looked_ahead);
        self.config.site.durations.apply.record(took.as_secs_f64(), &self.labels);
        match applied {
            Ok(applied) => Ok(Step::Applied(applied)),
            Err(error) => self.failed(error).map(|()| Step::Closed),
        }
    }

    /// Begins a flush if one is due, and ends or begins writes ahead of flushes.
    pub(super) fn flush_if_due(&mut self) -> Result<(), Error> {
        let failed = self.flushing.go_on(&self.home, &mut self.group, self.applied, &mut self.laps)?;
        failed.map_or(Ok(()), |error| self.failed(error))
    }

    /// Makes the applied entries durable.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        let failed = self.flushing.flush(&self.home, &mut self.group, self.applied, &mut self.laps)?;
        failed.map_or(Ok(()), |error| self.failed(error))
    }
}
