//! A version that is staged while the raft log writes its Prepare: before that is durable here, let alone committed.
//!
//! Nobody is told of it, no flush has it, and it is dropped before anything is applied that could notice it. When the very same
//! command is applied at the very same index, it is there already. So what commands come to does not depend on it.

use bytes::Bytes;
use coppice_engine::{PrepareId, ShardState};

use super::{Body, Command, Outcome, ShardMachine, command, prepare_id};
use crate::{Error, replica::machine::Applied};

/// What was staged, and by what.
#[derive(Debug)]
pub(super) struct Foreseen {
    index: u64,
    bytes: Bytes,
    command: Command,
    prepare_id: PrepareId,
    state: ShardState,
}

impl Foreseen {
    fn is(&self, index: u64, bytes: &[u8]) -> bool {
        // Mostly they are the same bytes in memory, too.
        self.index == index && (std::ptr::eq(&*self.bytes, bytes) || *self.bytes == *bytes)
    }

    /// Whether a command that comes before it does the same with and without it. A Finalize looks for the state that it names alone.
    fn is_unseen_by(&self, index: u64, command: &Command) -> bool {
        index < self.index && command.body == Body::Finalize && command.context.decided != self.state
    }
}

impl ShardMachine {
    /// Stages what the entry of this index would, if it is a Prepare that nothing stands in the way of. One at a time.
    pub(super) fn stage_early(&mut self, index: u64, bytes: &Bytes) {
        if self.foreseen.is_some() || !command::is_prepare(bytes) {
            return;
        }
        // What is refused or fails is so again when the entry is applied, if it is.
        let Ok(command) = Command::decode(bytes) else { return };
        let (context, Body::Prepare(prepare)) = (&command.context, &command.body) else { return };
        if self.check_admin(context).and_then(|()| self.check_open(context, prepare)).is_err() {
            return;
        }
        let Ok(shape) = self.engine.shape(&prepare.base) else { return };
        if !prepare.merges.iter().all(|merge| shape.ready.contains(merge)) {
            // To build one takes longer than the log.
            return;
        }
        let prepare_id = prepare_id(context, prepare);
        let Ok(state) = self.stage(prepare, prepare_id) else { return };
        let kept = self.keep_journal(prepare, prepare_id, &state).is_ok();
        let foreseen = Foreseen { index, bytes: bytes.clone(), prepare_id, state, command };
        // A command that calls its own outcome decided would find it.
        if kept && foreseen.command.context.decided != state {
            self.foreseen = Some(foreseen);
        } else {
            self.unstage(&foreseen);
        }
    }

    /// Applies the committed entry of this index.
    pub(super) fn apply_entry(&mut self, index: u64, bytes: &[u8]) -> Result<Applied<Outcome>, Error> {
        let Some(foreseen) = self.foreseen.take() else { return self.apply_command(bytes) };
        if foreseen.is(index, bytes) {
            let applied = self.run_command(&foreseen.command);
            let staged = applied.as_ref().ok().and_then(|applied| applied.reply.as_ref().ok()?.staged);
            if staged != Some(foreseen.state.digest) {
                self.unstage(&foreseen);
            }
            return applied;
        }
        let command = Command::decode(bytes).map_err(Error::UnknownCommand)?;
        if foreseen.is_unseen_by(index, &command) {
            self.foreseen = Some(foreseen);
        } else {
            self.unstage(&foreseen);
        }
        self.run_command(&command)
    }

    /// Drops what was staged early, if anything was.
    pub(super) fn forget_foreseen(&mut self) {
        if let Some(foreseen) = self.foreseen.take() {
            self.unstage(&foreseen);
        }
    }

    fn unstage(&mut self, foreseen: &Foreseen) {
        self.engine.abort(foreseen.state.version, foreseen.prepare_id);
    }
}
