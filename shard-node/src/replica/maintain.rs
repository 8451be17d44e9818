//! Upkeep of a state machine in addition to its log: background work, writes ahead of flushes,
//! checks, cold data.
//!
//! None of it changes the outcome of any entry. The root group's state machine needs none, so every
//! method has a default that does nothing.

use bytes::Bytes;
use coppice_engine::MergeName;
use coppice_types::RaftId;
use parking_lot::RwLock;

use crate::Error;

/// The state of the writes that run concurrently with the replica, for its next flush or ahead of
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// There is nothing that a flush must wait for: it may begin.
    Idle,
    /// [`Maintain::write_on`] has a write to begin or to end.
    Due,
    /// A write is running that a flush would wait for, or undo.
    Busy,
}

/// Background work of a state machine, by urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backlog {
    /// There is no work.
    None,
    /// Another thread does the rest of the work.
    Waiting,
    /// The work can wait until the replica is idle.
    Some,
    /// The work must not wait any longer.
    Behind,
}

/// Tells whether there are erased values that copies may hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErasureMark {
    /// Number of the last version that erased one; 0 if there is none.
    pub last: u64,
    /// Commands since the state was opened that came with a value that was erased before.
    pub strays: u64,
}

/// The upkeep that only a shard's state machine needs.
pub trait Maintain {
    /// Does the work of applying an entry while the raft log writes it. The entry may never become
    /// durable or committed. Outcomes of later entries, and the state that a flush makes durable,
    /// are the same as without this call.
    fn foresee(&mut self, index: u64, command: &Bytes) {
        let _ = (index, command);
    }

    /// The largest number of bytes that one step of background work adds to a flush.
    fn work_bytes_max(&self) -> u64 {
        0
    }

    /// Whether a flush is due because it would free much of the disk.
    fn much_waits(&self) -> bool {
        false
    }

    /// The state of the concurrent writes.
    fn disk(&self, flush_due: bool) -> Disk {
        let _ = flush_due;
        Disk::Idle
    }

    /// Ends the writes that were begun. Then begins to write ahead of the next flush, unless one is
    /// due.
    ///
    /// # Errors
    /// Those of a flush, if the writes were one. An error if no thread can be started.
    fn write_on(&mut self, flush_due: bool) -> Result<(), Error> {
        let _ = flush_due;
        Ok(())
    }

    /// How urgent background work is.
    fn backlog(&self) -> Backlog {
        Backlog::None
    }

    /// Does a bounded piece of background work.
    ///
    /// # Errors
    /// If the state cannot be read or written.
    fn work(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Reads and checks about this many durable bytes. The next call continues there. Returns
    /// whether everything has been read since the round began; the next call begins another one.
    ///
    /// # Errors
    /// If something is damaged, or cannot be read.
    fn scrub(&mut self, bytes: u64) -> Result<bool, Error> {
        let _ = bytes;
        Ok(true)
    }

    /// Does a bounded piece of erasing values whose erasure is decided.
    ///
    /// # Errors
    /// If something is damaged, or cannot be read or written.
    fn erase(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// The erased values that copies outside of this state may still hold.
    fn erasure_mark(&self) -> ErasureMark {
        ErasureMark::default()
    }

    /// Whether an erasure waits for a pinned copy to end.
    fn erasure_wants_unpin(&self) -> bool {
        false
    }

    /// Whether [`Maintain::move_cold`] has a move to begin or to end.
    fn cold_due(&self) -> bool {
        false
    }

    /// Ends the move that was begun, and begins to move up to `bytes` of old data to a cheaper
    /// disk.
    ///
    /// # Errors
    /// If that failed. Nothing is lost, and a later call tries again.
    fn move_cold(&mut self, bytes: u64) -> Result<(), Error> {
        let _ = bytes;
        Ok(())
    }

    /// The merges that this replica has built. The other replicas are told of them.
    fn built(&self) -> Vec<MergeName> {
        Vec::new()
    }

    /// Notes which merges another replica has built.
    fn note_built(&mut self, from: RaftId, built: Vec<MergeName>) {
        let _ = (from, built);
    }
}

/// Looks ahead at commands that are being written, unless a reader has the state machine.
pub(crate) fn foresee<M: Maintain>(machine: &RwLock<Option<M>>, commands: &[(u64, Bytes)]) {
    if let Some(machine) = machine.try_write().as_deref_mut().and_then(Option::as_mut) {
        commands.iter().for_each(|(index, command)| machine.foresee(*index, command));
    }
}

/// Does background work of at least this urgency, as long as `goes_on` returns true and no reader
/// has the state machine.
pub(crate) fn catch_up<M: Maintain>(
    machine: &RwLock<Option<M>>,
    least: Backlog,
    goes_on: &dyn Fn() -> bool,
) -> Result<(), Error> {
    while goes_on() {
        let Some(mut guard) = machine.try_write() else { break };
        match guard.as_mut() {
            Some(machine) if machine.backlog() >= least => machine.work()?,
            _ => break,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::tests::{Script, damage, toy};

    fn machine(backlog: Backlog) -> (Script, RwLock<Option<crate::replica::tests::Toy>>) {
        let script = Script::default();
        let machine = RwLock::new(Some(toy(&script)));
        script.acts().backlog = backlog;
        script.take_calls();
        (script, machine)
    }

    #[test]
    fn work_is_done_from_the_asked_urgency_on_and_never_against_a_reader() {
        let thrice = || {
            let left = std::cell::Cell::new(4);
            move || {
                left.set(left.get() - 1);
                left.get() > 0
            }
        };
        for (backlog, least, done) in [
            (Backlog::Behind, Backlog::Behind, 3),
            (Backlog::Behind, Backlog::Some, 3),
            (Backlog::Some, Backlog::Behind, 0),
            (Backlog::Waiting, Backlog::Some, 0),
            (Backlog::None, Backlog::Some, 0),
        ] {
            let (script, machine) = machine(backlog);
            catch_up(&machine, least, &thrice()).expect("nothing fails");
            assert_eq!(script.take_calls().len(), done, "{backlog:?} where {least:?} is asked for");
            let reader = machine.read();
            catch_up(&machine, least, &thrice()).expect("nothing fails");
            foresee(&machine, &[(7, Bytes::from_static(b"x"))]);
            assert_eq!(script.take_calls(), Vec::<String>::new());
            drop(reader);
        }
    }

    #[test]
    fn a_failed_step_ends_the_work_and_is_reported() {
        let (script, machine) = machine(Backlog::Behind);
        script.fail("work", damage());
        assert!(matches!(catch_up(&machine, Backlog::Some, &|| true), Err(Error::Damaged { .. })));
        assert_eq!(script.take_calls(), ["work"]);
    }

    #[test]
    fn commands_are_looked_ahead_at_in_order_and_without_a_state_not_at_all() {
        let (script, machine) = machine(Backlog::None);
        let commands = [7, 8].map(|index| (index, Bytes::from_static(b"x")));
        foresee(&machine, &commands);
        assert_eq!(script.take_calls(), ["foresee 7", "foresee 8"]);
        *machine.write() = None;
        foresee(&machine, &commands);
        catch_up(&machine, Backlog::None, &|| true).expect("there is no state to work on");
        assert_eq!(script.take_calls(), Vec::<String>::new());
    }
}
