//! The effects of snapshots on a replica as a whole: the switch to one, and damage that one
//! reveals.

use std::{sync::atomic::Ordering, time::Duration};

use coppice_consensus::{Position, RaftId};
use coppice_proto::v1::{SnapshotRefused, peer_message::Body};

use super::Actor;
use crate::{
    Error,
    replica::{agreement::Agreements, input::Failed, machine::StateMachine, snapshots::Checked},
};

impl<M: StateMachine> Actor<M> {
    /// Handles the report of another replica that a snapshot from here is damaged.
    pub(super) fn refused(&mut self, from: RaftId, pin: u64) {
        if self.members.contains(&from) {
            self.snapshots.refused(from, pin);
        }
    }

    /// Handles the end of the check of this replica's own snapshot.
    pub(super) fn checked(&mut self, began: Duration, result: Result<(), Error>) -> Result<(), Error> {
        match self.snapshots.checked(began, result) {
            Checked::Done => Ok(()),
            Checked::Damaged(error) if self.leading && self.heir().is_none() => {
                let group = self.config.identity.group;
                tracing::error!(%group, error = error.chain(), "this replica is damaged, and no other can take over");
                // The next snapshot may be sound: the damage may be in a version that is pruned by
                // now.
                self.snapshots.unpin(&mut self.group);
                Ok(())
            }
            Checked::Damaged(error) => self.failed(error),
        }
    }

    /// Handles the end of a fetch. If the copy is damaged, its sender is told.
    pub(super) fn fetched(&mut self, position: Position, result: Result<(), Failed>) -> Result<(), Error> {
        if result.as_ref().is_err_and(|failed| failed.damaged)
            && let Some((from, snapshot_id)) = self.snapshots.sender()
        {
            self.send_to(from, Body::Refused(SnapshotRefused { snapshot_id }));
        }
        self.snapshots.fetched(position, result, &self.home, &mut self.group, &mut self.flushing)
    }

    /// Drops the state machine, with everything that depends on it.
    pub(super) fn close(&mut self) {
        self.snapshots.close(&mut self.group);
        *self.shared.wait_for_machine() = None;
    }

    /// Replaces the present state by the fetched one, after raft has taken the snapshot.
    pub(super) fn install(&mut self, position: Position) -> Result<(), Error> {
        let incoming = self.snapshots.take_incoming(position)?;
        let quarantined = self.group.quarantined().is_some();
        self.close();
        self.home.install_incoming(&incoming, quarantined)?;
        let machine = M::open(self.home.state()?, &self.config.machine)?;
        if machine.durable() != position {
            return Err(Error::Damaged { file: "current", what: "the snapshot is for another entry".to_owned() });
        }
        *self.shared.wait_for_machine() = Some(machine);
        if quarantined {
            self.group.clear_quarantine()?;
        }
        self.installed(position);
        Ok(())
    }

    /// Resets the actor after the state machine of a snapshot was opened.
    fn installed(&mut self, position: Position) {
        self.applied = position;
        self.backlog.clear();
        self.flushing.note_installed();
        self.forget_cleared();
        self.agreements = Agreements::new(self.config.identity.raft_id);
        self.shared.set_note("");
        self.group.applied(position.index);
        self.shared.applied.send_replace(position.index);
        self.shared.traffic.installed.fetch_add(1, Ordering::Relaxed);
        self.note_members();
        tracing::info!(group = %self.config.identity.group, index = position.index, "a snapshot was installed");
    }
}
