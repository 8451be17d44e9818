//! Making the state machine durable, cutting the raft log behind it, and shortages of the disk.
//!
//! A flush is due by time, entries or bytes. It runs concurrently with the replica where that is
//! possible. The raft log is cut only after a flush, and never beyond the entries that the older
//! superblock needs.
//!
//! During a shortage no new versions are taken, until a flush has succeeded and the reserve is
//! back. The reserve is room on the disk that is given up for waiting entries, prunes and
//! rollbacks.

use std::{sync::Arc, time::Duration};

use coppice_consensus::{Group, Position};
use coppice_env::Shortage;
use coppice_types::ErrorKind;

use super::{
    config::Config,
    home::Home,
    machine::StateMachine,
    maintain::{Disk, Maintain},
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
    /// The state machine failed, for another reason than a shortage.
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
}

impl<M: StateMachine> Flushing<M> {
    pub(super) fn new(config: Arc<Config<M>>, shared: Arc<Shared<M>>) -> Self {
        let flushed_at = config.site.clock.now();
        Self { config, shared, flushed_at, entries: 0, short_of: None }
    }

    /// The resource that the replica lacks, if any.
    pub(super) fn short_of(&self) -> Option<Shortage> {
        self.short_of
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

    /// Takes the reserve, or makes it as large as it should be now. A disk without room for it
    /// counts as full.
    pub(super) fn take_reserve(&mut self, home: &Home) -> Result<(), Error> {
        let group = self.config.identity.group;
        let at_once = self.shared.read_machine().as_ref().map_or(0, Maintain::work_bytes_max);
        let reserve_bytes = self.config.site.tuning.reserve_bytes(at_once);
        match home.take_reserve(reserve_bytes) {
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

    /// Begins a flush if one is due, and ends or begins writes ahead of flushes.
    ///
    /// # Errors
    /// If the replica's directory or its log fails. Returns the error of the state machine if that
    /// failed.
    pub(super) fn go_on(&mut self, home: &Home, group: &mut Group, applied: Position) -> Result<Option<Error>, Error> {
        let tuning = &self.config.site.tuning;
        let age = self.config.site.clock.now().saturating_sub(self.flushed_at);
        let old = age >= tuning.flush_interval;
        if self.short_of.is_some() {
            // Only the time counts here. Otherwise every entry would cause another attempt.
            return match old || age >= SHORTAGE_RETRY {
                true => self.flush_again(home, group, applied),
                false => Ok(None),
            };
        }
        let machine = self.shared.read_machine();
        let bytes = machine.as_ref().map_or(0, StateMachine::unflushed_bytes);
        let much = bytes >= tuning.flush_bytes_max || machine.as_ref().is_some_and(Maintain::much_waits);
        let many = self.entries >= tuning.flush_entries_max;
        let due = self.entries > 0 && (old || many || much);
        let disk = machine.as_ref().map_or(Disk::Idle, |machine| machine.disk(due));
        drop(machine);
        let late = bytes >= tuning.late_bytes() || age >= 2 * tuning.flush_interval;
        match disk {
            _ if due && late => self.begin(home, group, applied),
            Disk::Idle if due => self.begin(home, group, applied),
            Disk::Due => match self.write(home, group, |machine| machine.write_on(due))? {
                Written::Failed(error) => Ok(Some(error)),
                Written::Done | Written::Blocked => Ok(None),
            },
            // If a flush is due, one of the next steps begins it.
            Disk::Idle | Disk::Busy => Ok(None),
        }
    }

    /// Begins to make the applied entries durable.
    fn begin(&mut self, home: &Home, group: &mut Group, applied: Position) -> Result<Option<Error>, Error> {
        let written = self.write(home, group, |machine| machine.begin_flush(applied))?;
        Ok(self.note_flush(written))
    }

    /// Makes the applied entries durable, unless they are.
    ///
    /// # Errors
    /// Those of [`go_on`](Self::go_on).
    pub(super) fn flush(&mut self, home: &Home, group: &mut Group, applied: Position) -> Result<Option<Error>, Error> {
        let flush = |machine: &mut M| if machine.durable() < applied { machine.flush(applied) } else { Ok(()) };
        let written = self.write(home, group, flush)?;
        Ok(self.note_flush(written))
    }

    /// Flushes even if nothing has changed: freed space is given back once neither superblock needs
    /// it.
    fn flush_again(&mut self, home: &Home, group: &mut Group, applied: Position) -> Result<Option<Error>, Error> {
        let written = self.write(home, group, |machine| machine.flush(applied))?;
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
        match written {
            Ok(floor) => {
                if self.short_of.is_some() || floor.is_some() {
                    self.take_reserve(home)?;
                }
                if let Some(floor) = floor {
                    cut(home, group, floor)?;
                }
            }
            Err(error) => match error.shortage() {
                Some(Shortage::Handles) => self.note_shortage(Shortage::Handles),
                Some(Shortage::Space) => {
                    self.note_shortage(Shortage::Space);
                    home.release_reserve()?;
                }
                None => return Ok(Written::Failed(error)),
            },
        }
        Ok(Written::Done)
    }
}

/// Cuts the raft log. The floor is noted first: a crash in between leaves a log that is longer than
/// it needs to be.
fn cut(home: &Home, group: &mut Group, floor: Position) -> Result<(), Error> {
    if floor <= home.floor()? {
        return Ok(());
    }
    let cut = home.set_floor(floor).and_then(|()| Ok(group.compact(floor.index)?));
    match cut {
        // The log stays longer than it needs to be.
        Err(error) if error.kind() == ErrorKind::Exhausted => Ok(()),
        cut => cut,
    }
}
