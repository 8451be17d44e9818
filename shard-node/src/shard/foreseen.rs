//! A version that is staged early, while the raft log writes its Prepare and before that is durable
//! here.
//!
//! No other replica is told of the version, no flush includes it, and it is dropped before any
//! command that could notice it is applied. When the same command is applied at the same index, the
//! version is there already. So the outcomes of commands do not depend on it.

use bytes::Bytes;
use coppice_engine::{PrepareId, ShardState};

use super::{Body, Command, Outcome, ShardMachine, command, prepare_id};
use crate::{Error, replica::machine::Applied};

/// A version that was staged early, and the entry that staged it.
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
        // Usually both are the same bytes in memory.
        self.index == index && (std::ptr::eq(&*self.bytes, bytes) || *self.bytes == *bytes)
    }

    /// Whether a command that is applied first has the same outcome with and without the staged
    /// version. A Finalize looks only for the state that it names.
    fn is_unseen_by(&self, index: u64, command: &Command) -> bool {
        index < self.index && command.body == Body::Finalize && command.context.decided != self.state
    }
}

impl ShardMachine {
    /// Stages the version of the entry at this index, if it is a Prepare that the protocol and the
    /// engine would accept now. At most one version is staged early.
    pub(super) fn stage_early(&mut self, index: u64, bytes: &Bytes) {
        if self.foreseen.is_some() || !command::is_prepare(bytes) {
            return;
        }
        // A refusal or failure will occur again if the entry is applied.
        let Ok(command) = Command::decode(bytes) else { return };
        let (context, Body::Prepare(prepare)) = (&command.context, &command.body) else { return };
        if self.check_admin(context).and_then(|()| self.check_open(context, prepare)).is_err() {
            return;
        }
        let Ok(shape) = self.engine.shape(&prepare.base) else { return };
        if !prepare.merges.iter().all(|merge| shape.ready.contains(merge)) {
            // Building a merge takes longer than writing the log.
            return;
        }
        let prepare_id = prepare_id(context, prepare);
        let Ok(state) = self.stage(prepare, prepare_id) else { return };
        let kept = self.keep_journal(prepare, prepare_id, &state).is_ok();
        let foreseen = Foreseen { index, bytes: bytes.clone(), prepare_id, state, command };
        // A command that names its own outcome as decided would find the staged version.
        if kept && foreseen.command.context.decided != state {
            self.foreseen = Some(foreseen);
        } else {
            self.unstage(&foreseen);
        }
    }

    /// Applies the committed entry at this index.
    pub(super) fn apply_entry(&mut self, index: u64, bytes: &Bytes) -> Result<Applied<Outcome>, Error> {
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

    /// Drops the version that was staged early, if there is one.
    pub(super) fn forget_foreseen(&mut self) {
        if let Some(foreseen) = self.foreseen.take() {
            self.unstage(&foreseen);
        }
    }

    fn unstage(&mut self, foreseen: &Foreseen) {
        self.engine.abort(foreseen.state.version, foreseen.prepare_id);
    }
}
