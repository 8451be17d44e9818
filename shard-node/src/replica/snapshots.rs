//! Snapshots of one replica: the one that it hands out, and the one that it receives.
//!
//! **Sending.** The leader pins a copy of its durable state and offers it. A pin is kept for a
//! while after its last use, and the same snapshot is offered again, so that an interrupted
//! transfer continues with the bytes that have arrived. A sender that was restarted, and any other
//! sender, offers another snapshot. After a restart most bytes are at the same places, since pages
//! are never rewritten in place. Another replica may have placed them differently.
//!
//! **Receiving.** A task fetches the files into a side directory and checks them ([`Fetch`]); then
//! the replica switches to them. While the receiver checks the copy, which may take longer than
//! anything else, it asks the sender to keep the pin. If it finds damage, it tells the sender and
//! begins again.
//!
//! **Doubt.** A bad page that nobody reads stays unnoticed, and is handed out with every snapshot.
//! The receiver checks all bytes, so it refuses such a snapshot. The refusal proves nothing: the
//! receiver's own disk may be bad, or it may lie. So the sender checks the same pinned copy in the
//! background. Only damage that it finds itself puts it into quarantine, where it is rebuilt from
//! another replica. A damaged leader stays while no other replica is fit to take over: every read
//! is checked anyway, and there is no replica to rebuild it from. A check reads the whole state, so
//! a replica spends only a small part of its time on checks, however many refusals arrive.
//!
//! A receiver that crashes before the copy is noted as complete leaves a side directory, which is
//! resumed or dropped. After that, raft knows whether it has taken the snapshot. If it has, the
//! start finishes the switch; if not, the copy is used when the same snapshot is offered again.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use coppice_consensus::{Group, Position, RaftId, SnapshotOffer};
use coppice_env::{
    Shortage,
    bug::{Bug, planted},
};
use coppice_types::ErrorKind;
use tokio::task::JoinHandle;

use super::{
    config::Config,
    fetch::Fetch,
    flushing::Flushing,
    home::{Home, IncomingCopy},
    input::{Failed, Input},
    machine::StateMachine,
    mailbox::Lane,
    maintain::Maintain,
    readers::outstays,
    shared::Shared,
};
use crate::Error;

/// How long a pin is kept after its last use while a member still wants it: the time that a
/// receiver has to restart.
const PIN_KEPT: Duration = Duration::from_secs(60);
/// How long a pin is kept after its last use if no member wants it.
const PIN_IDLE: Duration = Duration::from_secs(10);
/// How long a peer may show no sign of fetching before the snapshot is offered to it again.
const FETCH_IDLE: Duration = Duration::from_secs(3);
/// How long after its beginning a pin may delay an erasure.
const ERASURE_DELAY_MAX: Duration = Duration::from_secs(600);
/// The shortest pause between two checks.
const CHECK_PAUSE_MIN: Duration = Duration::from_secs(5);
/// The pause between two checks, as a multiple of the last check's duration.
const CHECK_PAUSE_SHARE: u32 = 10;

/// A check of a pinned snapshot, in progress.
#[derive(Debug)]
struct Check {
    pin: u64,
    /// Identifies the check: no two begin at the same time.
    began: Duration,
}

/// A fetch in progress.
#[derive(Debug)]
struct Fetching {
    copy: IncomingCopy,
    from: RaftId,
    task: JoinHandle<()>,
}

/// The result of the check of this replica's own snapshot.
pub(super) enum Checked {
    /// The check has no consequence.
    Done,
    /// This replica is damaged.
    Damaged(Error),
}

/// The snapshot that a replica hands out, and the one that it receives.
#[derive(Debug)]
pub(super) struct Snapshots<M: StateMachine> {
    config: Arc<Config<M>>,
    shared: Arc<Shared<M>>,
    /// The pin of the snapshot that raft hands out.
    pinned: Option<u64>,
    /// The entry that a wanted snapshot must cover; `None` if none is wanted, or one is pinned.
    wanted: Option<u64>,
    pinned_at: Duration,
    /// When raft last sent a snapshot, or one was pinned.
    used_at: Duration,
    check: Option<Check>,
    /// No check begins before this time.
    next_check: Duration,
    fetching: Option<Fetching>,
    /// The complete copy that raft was told to take.
    incoming: Option<IncomingCopy>,
}

impl<M: StateMachine> Snapshots<M> {
    pub(super) fn new(config: Arc<Config<M>>, shared: Arc<Shared<M>>) -> Self {
        let now = config.site.clock.now();
        Self {
            config,
            shared,
            pinned: None,
            wanted: None,
            pinned_at: now,
            used_at: now,
            check: None,
            next_check: now,
            fetching: None,
            incoming: None,
        }
    }

    fn now(&self) -> Duration {
        self.config.site.clock.now()
    }

    /// When a part of a snapshot was last handed out.
    fn handed_out_at(&self) -> Duration {
        Duration::from_millis(self.shared.fetched_ms.load(Ordering::Relaxed))
    }

    /// Notes that a follower wants a snapshot at this entry or a later one, and pins one if
    /// possible.
    pub(super) fn want(&mut self, index: u64, applied: Position, group: &mut Group) -> Result<(), Error> {
        self.wanted = Some(index);
        self.pin(applied, group)
    }

    /// Pins a copy of the present state, if one is wanted and enough is applied.
    ///
    /// # Errors
    /// If the state is damaged. After any other failure the next call tries again.
    fn pin(&mut self, applied: Position, group: &mut Group) -> Result<(), Error> {
        if self.wanted.is_none_or(|wanted| wanted > applied.index) {
            return Ok(());
        }
        self.unpin(group);
        let pinned = match self.shared.wait_for_machine().as_mut() {
            Some(machine) => machine.pin_snapshot(applied),
            None => return Ok(()),
        };
        match pinned {
            Ok(pinned) => {
                self.wanted = None;
                self.shared.traffic.pinned.fetch_add(1, Ordering::Relaxed);
                self.pinned = Some(pinned.id);
                self.pinned_at = self.now();
                self.used_at = self.now();
                if let Err(error) = group.set_snapshot(pinned.position.index, pinned.manifest.into()) {
                    tracing::warn!(%error, "raft has no use for the pinned snapshot");
                    self.unpin(group);
                }
                Ok(())
            }
            Err(error) if error.kind() != ErrorKind::Corrupted => {
                tracing::warn!(error = error.chain(), "no snapshot could be pinned");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Whether no snapshot is handed out or received.
    pub(super) fn is_idle(&self) -> bool {
        let gives = self.pinned.is_some() || self.wanted.is_some() || self.check.is_some();
        !gives && self.fetching.is_none() && self.incoming.is_none()
    }

    /// Whether a snapshot is being received, or waits to be installed.
    pub(super) fn receives(&self) -> bool {
        self.fetching.is_some() || self.incoming.is_some()
    }

    /// Ends the pin, if there is one.
    pub(super) fn unpin(&mut self, group: &mut Group) {
        if let Some(id) = self.pinned.take() {
            group.clear_snapshot();
            // Pages that are freed while a check reads them would look damaged.
            if self.check.as_ref().is_none_or(|check| check.pin != id)
                && let Some(machine) = self.shared.wait_for_machine().as_mut()
            {
                machine.unpin_snapshot(id);
            }
        }
    }

    /// Ends the pin after a change of members, unless it is being fetched: new members can't use
    /// it.
    pub(super) fn unpin_outdated(&mut self, group: &mut Group) {
        if self.now().saturating_sub(self.handed_out_at()) > FETCH_IDLE {
            self.unpin(group);
        }
    }

    /// Repeats offers of snapshots that got lost, ends an unused pin, and pins a snapshot if one is
    /// wanted.
    ///
    /// # Errors
    /// If the state is damaged.
    pub(super) fn care(&mut self, applied: Position, group: &mut Group) -> Result<(), Error> {
        let now = self.now();
        let (fetched, repeated) = (self.pinned_at.max(self.handed_out_at()), self.used_at);
        let idle = now.saturating_sub(fetched);
        let status = group.status();
        let receiving: Vec<_> = status.peers.iter().filter(|peer| peer.snapshotting).map(|peer| peer.id).collect();
        if !receiving.is_empty() && idle.min(now.saturating_sub(repeated)) > FETCH_IDLE {
            // The same snapshot is offered again, so that its transfer is resumed. It is replaced
            // if it is older than a receiver's membership, or long unused.
            if idle > PIN_KEPT || !receiving.iter().all(|id| group.snapshot_covers(*id)) {
                self.unpin(group);
            }
            receiving.into_iter().for_each(|id| group.report_snapshot(id, false));
            self.used_at = now;
        } else if receiving.is_empty() && idle.min(now.saturating_sub(repeated)) > PIN_IDLE {
            self.unpin(group);
        }
        let receiving = status.peers.iter().filter(|peer| peer.snapshotting);
        let is_reader = |id| self.config.site.is_reader(id);
        let outstays = outstays(receiving, is_reader, now.saturating_sub(self.pinned_at), status.log_bytes);
        // The transfer begins again, with the bytes that have arrived.
        let waits = self.shared.read_machine().as_ref().is_some_and(Maintain::erasure_wants_unpin);
        if outstays || (waits && now.saturating_sub(self.pinned_at) > ERASURE_DELAY_MAX) {
            self.unpin(group);
        }
        self.pin(applied, group)
    }

    /// Handles a member's report that the snapshot of this pin is damaged: checks the snapshot in
    /// the background.
    pub(super) fn refused(&mut self, from: RaftId, pin: u64) {
        let now = self.now();
        if self.pinned != Some(pin) || self.check.is_some() || now < self.next_check || planted(Bug::RefusalUnheeded) {
            return;
        }
        let check = match self.shared.read_machine().as_ref().map(|machine| machine.check_of_snapshot(pin)) {
            Some(Ok(check)) => check,
            Some(Err(error)) => return tracing::warn!(error = error.chain(), "a snapshot can't be checked"),
            None => return,
        };
        tracing::warn!(group = %self.config.identity.group, from = from.0, "a snapshot was refused as damaged: it is checked");
        self.check = Some(Check { pin, began: now });
        let (runner, mailbox) = (self.config.site.tuning.runner.clone(), Arc::clone(&self.shared.mailbox));
        self.config.site.runtime.spawn(async move {
            let checked = runner.blocking(check).await.unwrap_or(Err(Error::Overdue("the check of a snapshot")));
            // A closed mailbox needs no news.
            let _ = mailbox.put(Lane::Own, Input::Checked(now, checked));
        });
    }

    /// Handles the end of the check that was begun at this time.
    pub(super) fn checked(&mut self, began: Duration, result: Result<(), Error>) -> Checked {
        // The state that was checked may be gone by now.
        let Some(Check { pin, .. }) = self.check.take_if(|check| check.began == began) else { return Checked::Done };
        self.shared.traffic.checked.fetch_add(1, Ordering::Relaxed);
        let now = self.now();
        self.next_check = now + CHECK_PAUSE_MIN.max(now.saturating_sub(began) * CHECK_PAUSE_SHARE);
        if self.pinned != Some(pin)
            && let Some(machine) = self.shared.wait_for_machine().as_mut()
        {
            machine.unpin_snapshot(pin);
        }
        let group = self.config.identity.group;
        match result {
            Ok(()) => tracing::info!(%group, "the snapshot is sound here"),
            Err(error) if error.kind() != ErrorKind::Corrupted => {
                tracing::warn!(%group, error = error.chain(), "the snapshot could not be checked");
            }
            Err(error) => return Checked::Damaged(error),
        }
        Checked::Done
    }

    /// Forgets the pin and the check: the state machine is about to be closed.
    pub(super) fn close(&mut self, group: &mut Group) {
        self.unpin(group);
        self.check = None;
    }

    /// Takes up another replica's offer of its state. A task fetches it while this replica keeps
    /// working.
    pub(super) fn take_in(
        &mut self,
        offer: SnapshotOffer,
        home: &Home,
        group: &mut Group,
        flushing: &mut Flushing<M>,
    ) -> Result<(), Error> {
        let SnapshotOffer { position, from, manifest } = offer;
        if self.fetching.is_some() {
            return Ok(());
        }
        let Some(node) = self.config.site.node_of(from) else {
            return Ok(group.refuse_snapshot(position)?);
        };
        let complete = home.incoming()?.filter(|copy| copy.complete && copy.position == position);
        if let Some(copy) = complete.filter(|copy| copy.manifest[..] == manifest[..]) {
            // A crash came after the copy was complete and before raft took it.
            self.incoming = Some(copy);
            return Ok(group.accept_snapshot(position)?);
        }
        if flushing.short_of().is_some() {
            return Ok(group.refuse_snapshot(position)?);
        }
        let begin = |home: &Home| {
            let copy = home.begin_incoming(position, &manifest)?;
            Ok((home.state_of(&copy)?, copy))
        };
        let Some((storage, copy)) = unless_short(position, home, group, flushing, begin)? else { return Ok(()) };
        let fetch = Fetch {
            config: Arc::clone(&self.config),
            mailbox: Arc::clone(&self.shared.mailbox),
            traffic: Arc::clone(&self.shared.traffic),
            storage,
            manifest: manifest.to_vec(),
            node,
        };
        let task = self.config.site.runtime.spawn(async move {
            let result = fetch.run().await.map_err(Failed::from);
            // A closed mailbox needs no news.
            let _ = fetch.mailbox.put(Lane::Own, Input::Fetched(position, result));
        });
        self.fetching = Some(Fetching { copy, from, task });
        Ok(())
    }

    /// The sender of the snapshot that is being fetched, and the sender's pin.
    pub(super) fn sender(&self) -> Option<(RaftId, u64)> {
        let Fetching { copy, from, .. } = self.fetching.as_ref()?;
        M::manifest_position(&copy.manifest).ok().map(|(pin, _)| (*from, pin))
    }

    /// Handles the end of the fetch.
    pub(super) fn fetched(
        &mut self,
        position: Position,
        result: Result<(), Failed>,
        home: &Home,
        group: &mut Group,
        flushing: &mut Flushing<M>,
    ) -> Result<(), Error> {
        // The task ends by itself: sending this news was its last act.
        let Some(Fetching { copy, .. }) = self.fetching.take() else { return Ok(()) };
        match result {
            Ok(()) => {
                let complete = |home: &Home| home.complete_incoming(&copy);
                let Some(()) = unless_short(position, home, group, flushing, complete)? else { return Ok(()) };
                self.incoming = Some(copy);
                Ok(group.accept_snapshot(position)?)
            }
            Err(Failed { note, resumable, short_of, .. }) => {
                tracing::warn!(group = %self.config.identity.group, note, resumable, "a snapshot could not be fetched");
                if !resumable {
                    home.drop_incoming()?;
                }
                if let Some(short_of) = short_of {
                    flushing.note_shortage(short_of);
                }
                Ok(group.refuse_snapshot(position)?)
            }
        }
    }

    /// Drops a fetched snapshot that raft had no use for, since entries have brought this replica
    /// further.
    pub(super) fn discarded(&mut self, position: Position, home: &Home) -> Result<(), Error> {
        if self.incoming.take_if(|incoming| incoming.position == position).is_some() {
            home.drop_incoming()?;
        }
        Ok(())
    }

    /// Returns the copy that raft has taken.
    pub(super) fn take_incoming(&mut self, position: Position) -> Result<IncomingCopy, Error> {
        let incoming = self.incoming.take().filter(|incoming| incoming.position == position);
        incoming.ok_or_else(|| Error::Damaged {
            file: "incoming",
            what: "raft took a different snapshot than was fetched".to_owned(),
        })
    }

    /// Returns the fetch in progress, for the caller to await.
    pub(super) fn leave(&mut self) -> Option<JoinHandle<()>> {
        self.fetching.take().map(|fetching| fetching.task)
    }
}

/// Writes a note about a snapshot to the replica's directory, using the room of the reserve if the
/// disk is full. If it still fails because of a shortage, the snapshot is refused and `None` is
/// returned: it is offered again, and until then this replica serves the state that it has.
fn unless_short<M: StateMachine, T>(
    position: Position,
    home: &Home,
    group: &mut Group,
    flushing: &mut Flushing<M>,
    note: impl Fn(&Home) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    let mut noted = note(home);
    let short_of = noted.as_ref().err().and_then(Error::shortage);
    if let Some(short_of) = short_of {
        flushing.note_shortage(short_of);
    }
    if short_of == Some(Shortage::Space) {
        flushing.release_reserve()?;
        noted = note(home);
    }
    match noted {
        Err(error) if error.shortage().is_some() => {
            group.refuse_snapshot(position)?;
            Ok(None)
        }
        noted => noted.map(Some),
    }
}

#[cfg(test)]
mod tests;
