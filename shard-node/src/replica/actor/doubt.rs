//! What a sender does when a receiver says that a snapshot is damaged: it looks for itself.
//!
//! A bad page that nobody reads is found by nobody, and is handed out with every snapshot. The receiver, who checks all of it, refuses it
//! and says so. The word of a receiver proves nothing: its own disk may be bad, or it may lie. So the sender checks the same pinned copy, beside its
//! other work, and only what it finds itself puts it into quarantine; from there it is filled from another replica. A sender that leads, with nobody
//! fit to take over, stays: every read is checked all the same, and there is nowhere to be filled from.
//!
//! A check reads the whole state, so a replica spends at most a small part of its time on them, whatever it is told.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use coppice_consensus::RaftId;
use coppice_env::bug::{Bug, planted};
use coppice_types::ErrorKind;

use super::Actor;
use crate::{
    Error,
    replica::{handle::Input, machine::StateMachine, mailbox::Lane},
};

/// The least pause between two checks,
const PAUSE_MIN: Duration = Duration::from_secs(5);
/// and for how many times the length of the last one there is no other.
const PAUSE_SHARE: u32 = 10;

/// The check of a pinned snapshot.
#[derive(Debug)]
pub(crate) struct Check {
    pub(crate) pin: u64,
    /// Names it: no two begin at one time.
    began: Duration,
}

impl<M: StateMachine> Actor<M> {
    /// A replica says that a snapshot from here is damaged.
    pub(super) fn refused(&mut self, from: u64, pin: u64) {
        let now = self.now();
        let own = self.pinned == Some(pin) && self.members.contains(&RaftId(from));
        if !own || self.check.is_some() || now < self.next_check || planted(Bug::RefusalUnheeded) {
            return;
        }
        let check = match self.read_machine().as_ref().map(|machine| machine.check_of_snapshot(pin)) {
            Some(Ok(check)) => check,
            Some(Err(error)) => return tracing::warn!(error = error.chain(), "a snapshot can't be checked"),
            None => return,
        };
        tracing::warn!(group = %self.config.identity.group, from, "a snapshot was refused as damaged: it is checked");
        self.check = Some(Check { pin, began: now });
        let (runner, mailbox) = (self.config.hosted.tuning.runner.clone(), Arc::clone(&self.shared.mailbox));
        self.config.hosted.runtime.spawn(async move {
            let checked = runner.blocking(check).await.unwrap_or(Err(Error::Overdue("the check of a snapshot")));
            // A closed mailbox needs no news.
            let _ = mailbox.put(Lane::Own, Input::Checked(now, checked));
        });
    }

    /// The check has ended.
    pub(super) fn checked(&mut self, began: Duration, result: Result<(), Error>) -> Result<(), Error> {
        // The state that was checked may be gone by now.
        let Some(Check { pin, .. }) = self.check.take_if(|check| check.began == began) else { return Ok(()) };
        self.shared.traffic.checked.fetch_add(1, Ordering::Relaxed);
        let now = self.now();
        self.next_check = now + PAUSE_MIN.max(now.saturating_sub(began) * PAUSE_SHARE);
        if self.pinned != Some(pin)
            && let Some(machine) = self.machine().as_mut()
        {
            machine.unpin_snapshot(pin);
        }
        let group = self.config.identity.group;
        match result {
            Ok(()) => tracing::info!(%group, "the snapshot is sound here"),
            Err(error) if error.kind() != ErrorKind::Corrupted => {
                tracing::warn!(%group, error = error.chain(), "the snapshot could not be checked");
            }
            Err(error) if self.leading && self.heir().is_none() => {
                tracing::error!(%group, error = error.chain(), "this replica is damaged, and no other can take over");
                // Another one may be sound: what is damaged may be of a version that is pruned by now.
                self.unpin();
            }
            Err(error) => self.failed(error)?,
        }
        Ok(())
    }
}
