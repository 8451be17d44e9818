//! Copies of erased values outside of the state machine: the raft log, and states that wait to be
//! used or were kept as evidence.
//!
//! Values that are erased came with entries that are in the log before the entry that decides it.
//! So the log goes on in a new file, the state machine is flushed until the log is kept only from
//! there on, and the older files are removed. Other states are removed as a whole: nothing tells
//! what they hold, and each can be had again or is not needed.
//!
//! Only this process knows which copies are cleared. The next start, and a new state, begin again.

use std::sync::atomic::Ordering;

use super::Actor;
use crate::{
    Error,
    replica::{
        machine::StateMachine,
        maintain::{ErasureMark, Maintain},
    },
};

/// How far copies are removed.
#[derive(Debug, Default)]
pub(super) struct Copies {
    cleared: ErasureMark,
    begun: Option<Begun>,
}

/// A removal in progress.
#[derive(Clone, Copy, Debug)]
struct Begun {
    mark: ErasureMark,
    /// The last entry in the old files of the log.
    index: u64,
}

impl<M: StateMachine> Actor<M> {
    /// Whether copies of erased values may be left.
    pub(super) fn has_copies(&self) -> bool {
        let mark = self.shared.read_machine().as_ref().map(Maintain::erasure_mark);
        mark.is_some_and(|mark| mark != self.copies.cleared)
    }

    /// Forgets what was cleared, since there is a new state.
    pub(super) fn forget_cleared(&mut self) {
        self.copies = Copies::default();
        self.shared.cleared.store(0, Ordering::Relaxed);
    }

    /// Removes copies of erased values, as far as that is possible now.
    ///
    /// # Errors
    /// If the replica's directory or its log fails.
    pub(super) fn clear_copies(&mut self) -> Result<(), Error> {
        if !self.has_copies() || self.flushing.short_of().is_some() {
            return Ok(());
        }
        let known = self.shared.read_machine().as_ref().map(|machine| (machine.erasure_mark(), machine.log_floor()));
        let Some((mark, floor)) = known else { return Ok(()) };
        if mark.strays != self.copies.cleared.strays {
            self.shared.cleared.store(0, Ordering::Relaxed);
        }
        let begun = match self.copies.begun {
            Some(begun) => begun,
            None => {
                self.group.renew_log()?;
                let index = self.group.status().last.index;
                *self.copies.begun.insert(Begun { mark, index })
            }
        };
        // Entries that were never committed may be gone.
        let index = begun.index.min(self.group.status().last.index);
        self.flushing.want_floor(index);
        if floor.index < index {
            return Ok(());
        }
        self.flushing.cut_to(&self.home, &mut self.group, floor)?;
        if !self.group.clear_log()? || self.snapshots.receives() {
            return Ok(());
        }
        self.home.remove_others()?;
        self.copies = Copies { cleared: begun.mark, begun: None };
        // States that arrived meanwhile may have brought copies back. Then the next removal reports
        // what is done.
        if mark.strays == begun.mark.strays {
            self.shared.cleared.store(begun.mark.last, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Does a tick's share of erasures in the state machine, unless a reader has it.
    pub(super) fn erase(&mut self) -> Result<(), Error> {
        let erased = match self.shared.machine.try_write().as_mut().and_then(|machine| machine.as_mut()) {
            Some(machine) => machine.erase(),
            None => return Ok(()),
        };
        erased.or_else(|error| self.work_failed(error))
    }
}
