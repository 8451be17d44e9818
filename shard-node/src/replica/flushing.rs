//! Making the state machine durable, cutting the raft log behind it, and shortages of the disk.
//!
//! A flush is due by time, entries or bytes. It runs concurrently with the replica where that is
//! possible. The raft log is cut only after a flush, and never beyond the entries that the older
//! superblock needs.
//!
//! During a shortage no new versions are taken, until a flush has succeeded and the replica's share
//! of the reserve is back. The reserve is room on the node's disk that is given up for waiting
//! entries, prunes and rollbacks. A replica takes its share before it takes in what needs it.

use std::{sync::Arc, time::Duration};

use coppice_consensus::{Cut, Group, Position};
use coppice_env::{Laps, Shortage};
use coppice_types::{ErrorKind, GroupId};

use super::{
    config::Config,
    home::Home,
    machine::StateMachine,
    maintain::{Disk, Maintain},
    runner::Job,
    shared::Shared,
};
use crate::Error;

/// How soon a replica checks again whether a shortage has ended.
const SHORTAGE_RETRY: Duration = Duration::from_secs(1);

/// The outcome of a write of the state machine.
enum Written {
    Done,
    /// A reader was in the way. The write is due again at once.
    Blocked,
    /// The state machine failed, for a reason other than a shortage.
    Failed(Error),
}

/// The time of a replica's last flush, and the resource that the replica lacks.
#[derive(Debug)]
pub(super) struct Flushing<M: StateMachine> {
    config: Arc<Config<M>>,
    shared: Arc<Shared<M>>,
    flushed_at: Duration,
    /// Entries applied since the last flush began.
    entries: u64,
    /// The resource that a write failed for lack of.
    short_of: Option<Shortage>,
    /// This replica's share of the reserve; 0 if it is given back.
    share_bytes: u64,
    /// Bytes of the state on the disk after the last flush.
    kept_bytes: u64,
    /// The entry that the floor of the log should reach soon.
    floor_wanted: u64,
    /// Bytes of the entries that were taken in since all entries were applied.
    taken_bytes: u64,
    /// The cut of the raft log that is being stored.
    cut: Option<Job<(Cut, Result<(), Error>)>>,
    /// The removal of files that the last cut left over.
    removal: Option<Job<()>>,
}

impl<M: StateMachine> Flushing<M> {
    pub(super) fn new(config: Arc<Config<M>>, shared: Arc<Shared<M>>) -> Self {
        let flushed_at = config.site.clock.now();
        Self {
            config,
            shared,
            flushed_at,
            entries: 0,
            short_of: None,
            share_bytes: 0,
            kept_bytes: 0,
            floor_wanted: 0,
            taken_bytes: 0,
            cut: None,
            removal: None,
        }
    }

    /// The resource that the replica lacks, if any. A shard's replica also lacks space if another
    /// replica of the node does. The root group goes on as long as it can, because prunes and
    /// rollbacks of all shards need it.
    pub(super) fn short_of(&self) -> Option<Shortage> {
        let others_lack_space = || {
            let is_shard = self.config.identity.group != GroupId::Root;
            (is_shard && self.config.site.reserve.is_short()).then_some(Shortage::Space)
        };
        self.short_of.or_else(others_lack_space)
    }

    /// Whether everything is durable that was applied, and nothing is being written or removed.
    pub(super) fn is_idle(&self) -> bool {
        let removed = self.removal.as_ref().is_none_or(Job::is_done);
        self.entries == 0 && self.short_of.is_none() && self.cut.is_none() && removed
    }

    /// Asks for flushes until the log need not be kept up to this entry.
    pub(super) fn want_floor(&mut self, index: u64) {
        self.floor_wanted = index;
    }

    /// Notes that an entry was applied.
    pub(super) fn note_entry(&mut self) {
        self.entries += 1;
    }

    /// Notes that the state machine was replaced by one that is durable as it is.
    pub(super) fn note_installed(&mut self) {
        self.entries = 0;
    }

    /// Notes a shortage: versions are refused until the resource is back.
    pub(super) fn note_shortage(&mut self, short_of: Shortage) {
        if self.short_of != Some(short_of) {
            tracing::error!(group = %self.config.identity.group, "{short_of}");
            self.short_of = Some(short_of);
        }
    }

    /// Takes this replica's share of the reserve, or makes it as large as it should be now. A disk
    /// without room for it counts as full.
    pub(super) fn take_reserve(&mut self) -> Result<(), Error> {
        self.kept_bytes = self.shared.read_machine().as_ref().map_or(0, StateMachine::disk_bytes);
        self.take_share(self.share_wanted(0))
    }

    /// The share of the reserve that covers what waits, and `more` bytes of entries.
    fn share_wanted(&self, more: u64) -> u64 {
        let machine = self.shared.read_machine();
        let at_once = machine.as_ref().map_or(0, Maintain::work_bytes_max);
        let unflushed = machine.as_ref().map_or(0, StateMachine::unflushed_bytes);
        let waiting = unflushed.saturating_add(self.taken_bytes).saturating_add(more);
        self.config.site.tuning.share_bytes(self.kept_bytes, at_once, waiting)
    }

    fn take_share(&mut self, bytes: u64) -> Result<(), Error> {
        let group = self.config.identity.group;
        match self.config.site.reserve.take(group, bytes) {
            Ok(share_bytes) => {
                self.share_bytes = share_bytes;
                if let Some(short_of) = self.short_of.take() {
                    tracing::info!(%group, "it is over that {short_of}");
                }
            }
            Err(error) => {
                let short_of = error.shortage().ok_or(error)?;
                if short_of == Shortage::Space && self.short_of.is_none() {
                    tracing::error!(%group, reserve_bytes = bytes, "the disk has no room for the reserve");
                }
                self.note_shortage(short_of);
            }
        }
        Ok(())
    }

    /// Makes sure that the reserve covers `bytes` more of entries that add to the state; `false` if
    /// it can't, and the entries must not be taken in.
    ///
    /// # Errors
    /// If the storage fails.
    pub(super) fn covers(&mut self, bytes: u64) -> Result<bool, Error> {
        let wanted = self.share_wanted(bytes);
        if wanted > self.share_bytes && self.short_of.is_none() {
            self.take_share(wanted)?;
        }
        let covers = self.short_of != Some(Shortage::Space);
        if covers {
            self.taken_bytes = self.taken_bytes.saturating_add(bytes);
        }
        Ok(covers)
    }

    /// Notes that every entry of the log is applied.
    pub(super) fn note_all_applied(&mut self) {
        self.taken_bytes = 0;
    }

    /// Lowers this replica's share of the reserve to what it needs now. A share does not follow
    /// every flush: it would soon grow again.
    ///
    /// # Errors
    /// If the storage fails.
    pub(super) fn lower_share(&mut self) -> Result<(), Error> {
        let wanted = self.share_wanted(0);
        if wanted < self.share_bytes {
            self.config.site.reserve.lower(self.config.identity.group, wanted)?;
            self.share_bytes = wanted;
        }
        Ok(())
    }

    /// Gives this replica's share of the reserve back to the disk.
    ///
    /// # Errors
    /// If the storage fails.
    pub(super) fn release_reserve(&mut self) -> Result<(), Error> {
        self.share_bytes = 0;
        self.config.site.reserve.release(self.config.identity.group)
    }

    /// Ends a cut of the log that is stored, begins a flush if one is due, and ends or begins
    /// writes ahead of flushes.
    ///
    /// # Errors
    /// If the replica's directory or its log fails. Returns the error of the state machine if that
    /// failed.
    pub(super) fn go_on(
        &mut self,
        home: &Home,
        group: &mut Group,
        applied: Position,
        laps: &mut Laps,
    ) -> Result<Option<Error>, Error> {
        self.end_cut(group)?;
        laps.lap("cut's end", self.config.site.clock.now());
        let tuning = &self.config.site.tuning;
        let age = self.config.site.clock.now().saturating_sub(self.flushed_at);
        let old = age >= tuning.flush_interval;
        if self.short_of.is_some() {
            // Only the time counts here. Otherwise every entry would cause another attempt.
            return match old || age >= SHORTAGE_RETRY {
                true => self.flush_again(home, group, applied, laps),
                false => Ok(None),
            };
        }
        let machine = self.shared.read_machine();
        let bytes = machine.as_ref().map_or(0, StateMachine::unflushed_bytes);
        let much = bytes >= tuning.flush_bytes_max || machine.as_ref().is_some_and(Maintain::much_waits);
        let many = self.entries >= tuning.flush_entries_max;
        let floor = machine.as_ref().map_or(u64::MAX, |machine| machine.log_floor().index);
        let is_wanted = floor < self.floor_wanted && applied.index >= self.floor_wanted;
        let due = self.entries > 0 && (old || many || much) || is_wanted;
        let disk = machine.as_ref().map_or(Disk::Idle, |machine| machine.disk(due));
        drop(machine);
        let late = bytes >= tuning.late_bytes() || age >= 2 * tuning.flush_interval;
        match disk {
            _ if due && late => self.begin(home, group, applied, laps),
            Disk::Idle if due => self.begin(home, group, applied, laps),
            Disk::Due => match self.write(home, group, laps, |machine| machine.write_on(due))? {
                Written::Failed(error) => Ok(Some(error)),
                Written::Done | Written::Blocked => Ok(None),
            },
            // If a flush is due, one of the next steps begins it.
            Disk::Idle | Disk::Busy => Ok(None),
        }
    }

    /// Begins to make the applied entries durable.
    fn begin(
        &mut self,
        home: &Home,
        group: &mut Group,
        applied: Position,
        laps: &mut Laps,
    ) -> Result<Option<Error>, Error> {
        let written = self.write(home, group, laps, |machine| machine.begin_flush(applied))?;
        Ok(self.note_flush(written))
    }

    /// Makes the applied entries durable, unless they are.
    ///
    /// # Errors
    /// Those of [`go_on`](Self::go_on).
    pub(super) fn flush(
        &mut self,
        home: &Home,
        group: &mut Group,
        applied: Position,
        laps: &mut Laps,
    ) -> Result<Option<Error>, Error> {
        let flush = |machine: &mut M| if machine.durable() < applied { machine.flush(applied) } else { Ok(()) };
        let written = self.write(home, group, laps, flush)?;
        Ok(self.note_flush(written))
    }

    /// Flushes even if nothing has changed: freed space is given back once neither superblock needs
    /// it.
    fn flush_again(
        &mut self,
        home: &Home,
        group: &mut Group,
        applied: Position,
        laps: &mut Laps,
    ) -> Result<Option<Error>, Error> {
        let written = self.write(home, group, laps, |machine| machine.flush(applied))?;
        Ok(self.note_flush(written))
    }

    fn note_flush(&mut self, written: Written) -> Option<Error> {
        if !matches!(written, Written::Blocked) {
            (self.flushed_at, self.entries) = (self.config.site.clock.now(), 0);
        }
        match written {
            Written::Failed(error) => Some(error),
            Written::Done | Written::Blocked => None,
        }
    }

    /// Lets the state machine write, then cuts the log up to the entries that the older superblock
    /// needs.
    fn write(
        &mut self,
        home: &Home,
        group: &mut Group,
        laps: &mut Laps,
        write: impl FnOnce(&mut M) -> Result<(), Error>,
    ) -> Result<Written, Error> {
        let written = match self.shared.try_machine() {
            None => return Ok(Written::Blocked),
            Some(mut machine) => match machine.as_mut() {
                Some(machine) => {
                    let before = machine.log_floor();
                    write(machine).map(|()| Some(machine.log_floor()).filter(|floor| *floor > before))
                }
                None => Ok(None),
            },
        };
        laps.lap("flush", self.config.site.clock.now());
        match written {
            Ok(floor) => {
                if self.short_of.is_some() || floor.is_some() {
                    self.take_reserve()?;
                    laps.lap("reserve", self.config.site.clock.now());
                }
                if let Some(floor) = floor {
                    self.begin_cut(home, group, floor)?;
                }
            }
            Err(error) => match error.shortage() {
                Some(Shortage::Handles) => self.note_shortage(Shortage::Handles),
                Some(Shortage::Space) => {
                    self.note_shortage(Shortage::Space);
                    self.release_reserve()?;
                }
                None => return Ok(Written::Failed(error)),
            },
        }
        Ok(Written::Done)
    }

    /// Begins to cut the raft log up to an entry, unless a cut is being stored.
    ///
    /// # Errors
    /// If the group has failed.
    pub(super) fn cut_to(&mut self, home: &Home, group: &mut Group, floor: Position) -> Result<(), Error> {
        if self.cut.is_some() { Ok(()) } else { self.begin_cut(home, group, floor) }
    }

    /// Begins to cut the raft log, if whole segments of it can be dropped. The floor is noted
    /// first: a crash in between leaves a log that is longer than it needs to be.
    fn begin_cut(&mut self, home: &Home, group: &mut Group, floor: Position) -> Result<(), Error> {
        let Some(mut cut) = group.begin_cut(floor.index)? else { return Ok(()) };
        let note = home.floor_note(floor);
        self.cut = Some(self.config.site.tuning.runner.begin("log-cut", move || {
            let outcome = cut.run(note);
            (cut, outcome)
        }));
        Ok(())
    }

    /// Ends the cut that was begun, if it is stored.
    fn end_cut(&mut self, group: &mut Group) -> Result<(), Error> {
        let Some(job) = self.cut.take_if(|job| job.is_done()) else { return Ok(()) };
        let (cut, outcome) = job.end();
        let garbage = group.end_cut(cut);
        if !garbage.is_empty() {
            self.removal = Some(self.config.site.tuning.runner.begin("log-cut", move || {
                if let Err(error) = garbage.remove() {
                    tracing::warn!(%error, "files of the raft log stay until the next start");
                }
            }));
        }
        match outcome {
            // The log stays longer than it needs to be.
            Err(error) if error.kind() == ErrorKind::Exhausted => Ok(()),
            outcome => outcome,
        }
    }
}

#[cfg(test)]
mod tests;
