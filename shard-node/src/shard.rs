//! A shard's state machine: the engine and the protocol state, changed by the commands that raft
//! commits.
//!
//! The machine is synchronous and deterministic: the outcome of a command is a function of the
//! commands before it. Every command carries a [`Context`]. The machine applies each command in
//! this order:
//!
//! 1. A term below the highest seen is refused (`STALE_TERM`). A higher one is recorded. That alone
//!    drops nothing.
//! 2. The sender must know exactly the admin operations that were executed here (`MISSED_ADMIN`,
//!    `BASE_MISMATCH`), except for a command that executes the next one.
//! 3. The decided state that the context names is settled: it and the staged versions below it
//!    become permanent, and its siblings are dropped.
//! 4. The command itself is carried out.
//!
//! A crash loses nothing: engine and protocol state are durable as of one raft index, and the log
//! replays the entries after it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use coppice_engine::{self as engine, Engine, ForestShape, MergeName, PrepareId, ShardState, StageRequest};
use coppice_env::bug::{Bug, planted, strikes};
use coppice_types::{AdminOperation, Digest, RaftId, Reason, Term, Version, codec::Writer};
use coppice_verify::ledgers::{RESERVED_END, erased_by};

mod cold;
mod command;
mod foreseen;
mod machine;
pub mod messages;
mod protocol;
#[cfg(test)]
pub(crate) mod tests;
mod writer;

pub use command::{Body, Command, Context, Execute, Prepare, decode_journal};
pub use machine::{ShardConfig, ShardReceiver};
pub use protocol::{Fence, FenceName, Protocol};

use cold::ColdMover;
use foreseen::Foreseen;
use writer::DiskWriter;

use crate::{Error, refusal::Refusal, replica::machine::Applied};

/// The reply to an accepted command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The digest of the version that a Prepare staged.
    pub staged: Option<Digest>,
    /// The forest of that version, or of the decided one if nothing was staged.
    pub shape: ForestShape,
    /// The shard's decided state.
    pub decided: ShardState,
}

/// The outcome of an applied command: its reply, or a refusal that is the same on every replica.
pub type Outcome = Result<Reply, Refusal>;

/// Engine and protocol state of one shard.
#[derive(Debug)]
pub struct ShardMachine {
    // Declared before the engine, which holds the directory's lock, so that they are dropped first.
    writer: DiskWriter,
    mover: ColdMover,
    engine: Engine,
    protocol: Protocol,
    /// A version that is staged although its Prepare is not applied.
    foreseen: Option<Foreseen>,
    /// Prepares since the state was opened that came with a value that was erased before.
    strays: u64,
    /// Merges that the other replicas say they have built, by raft id. Not part of the replicated
    /// state.
    built: BTreeMap<RaftId, BTreeSet<MergeName>>,
    /// Whether the next Prepare writes another value, for tests of divergence.
    #[cfg(test)]
    pub(crate) spoil_next: bool,
}

impl ShardMachine {
    /// An engine with the protocol state of its superblock.
    fn new(engine: Engine, writer: DiskWriter, mover: ColdMover) -> Result<Self, Error> {
        let protocol = Protocol::decode(engine.machine_state()).map_err(Error::MachineState)?;
        Ok(Self {
            writer,
            mover,
            engine,
            protocol,
            foreseen: None,
            strays: 0,
            built: BTreeMap::new(),
            #[cfg(test)]
            spoil_next: false,
        })
    }

    /// The engine, to read from.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    #[must_use]
    pub fn protocol(&self) -> &Protocol {
        &self.protocol
    }

    /// Applies a command that raft has committed.
    ///
    /// # Errors
    /// If the command is unknown or the engine fails: this replica can't apply the entry as the
    /// others do, so it must stop.
    pub fn apply_command(&mut self, bytes: &Bytes) -> Result<Applied<Outcome>, Error> {
        self.run_command(&Command::decode(bytes).map_err(Error::UnknownCommand)?)
    }

    fn run_command(&mut self, command: &Command) -> Result<Applied<Outcome>, Error> {
        if let Body::Prepare(prepare) = &command.body {
            let mut reserved = prepare.operations.iter().take_while(|operation| *operation.key < *RESERVED_END);
            self.strays += u64::from(reserved.any(|it| it.is_put() && self.engine.is_erased(&it.key)));
        }
        let reply = match self.run(command) {
            Ok(reply) => Ok(reply),
            Err(Stop::Refused(refusal)) => Err(refusal),
            Err(Stop::Failed(error)) => return Err(error),
        };
        let digest = self.outcome_digest(&reply);
        Ok(Applied { digest, reply })
    }

    /// The digest that replicas compare: a Prepare's staged digest, otherwise a hash of the answer
    /// and of the decided state.
    fn outcome_digest(&self, outcome: &Outcome) -> Digest {
        let mut out = Writer::new();
        let decided = match outcome {
            Ok(Reply { staged: Some(digest), .. }) => return *digest,
            Ok(reply) => reply.decided,
            Err(refusal) => {
                out.raw(refusal.reason.name().as_bytes());
                self.engine.decided()
            }
        };
        out.u64(decided.version.0);
        out.digest(&decided.digest);
        coppice_verify::hash::sha256(&out.into_bytes())
    }

    /// Whether this replica may answer a read of `state` from a sender with this context.
    ///
    /// # Errors
    /// If an admin operation is missing here, the version is fenced, the state is not here, or not
    /// yet, or its row cannot be read.
    pub fn readable(&self, context: &Context, state: &ShardState) -> Result<(), Refusal> {
        if context.admin_sequence > self.protocol.executed && !planted(Bug::MissedAdminServed) {
            return Err(self.missed_admin());
        }
        if self.protocol.fence.is_some_and(|fence| state.version > fence.target) {
            return Err(Refusal::new(Reason::FencedForRollback, "a rollback below this version is being decided"));
        }
        match self.engine.has(state) {
            Ok(true) => Ok(()),
            Ok(false) => Err(state_missing(state)),
            Err(error) => Err(Refusal::new(error.reason(), error.to_string())),
        }
    }

    fn run(&mut self, command: &Command) -> Result<Reply, Stop> {
        let context = &command.context;
        if context.term < self.protocol.term {
            let message = format!("term {} is over, the shard has seen {}", context.term, self.protocol.term);
            return Err(Refusal::new(Reason::StaleTerm, message).with("term", self.protocol.term).into());
        }
        self.protocol.term = context.term;
        if let Body::Execute(execute) = &command.body {
            return self.execute(context, execute);
        }
        self.check_admin(context)?;
        if !planted(Bug::NewTermDropsDecided) || !matches!(command.body, Body::Adopt) {
            self.settle(&context.decided)?;
        }
        match &command.body {
            Body::Prepare(prepare) => return self.prepare(context, prepare),
            Body::Finalize | Body::Execute(_) => {}
            Body::Abort { version, prepare_id } => self.abort(*version, *prepare_id),
            Body::Adopt => self.adopt(context),
            Body::Fence { attempt, next_epoch, target } => {
                let name = FenceName { term: context.term, attempt: *attempt };
                self.fence(Fence { name, next_epoch: *next_epoch, target: *target })?;
            }
            Body::Unfence { attempt } => self.protocol.lift(FenceName { term: context.term, attempt: *attempt }),
        }
        self.reply(None)
    }

    fn missed_admin(&self) -> Refusal {
        let message = format!("admin operations after number {} are not executed here yet", self.protocol.executed);
        Refusal::new(Reason::MissedAdmin, message).with("executed", self.protocol.executed)
    }

    fn check_admin(&self, context: &Context) -> Result<(), Stop> {
        if context.admin_sequence > self.protocol.executed {
            return Err(self.missed_admin().into());
        }
        if context.admin_sequence < self.protocol.executed {
            let message = format!("the message was formed before admin operation {}", self.protocol.executed);
            return Err(Refusal::new(Reason::BaseMismatch, message).into());
        }
        Ok(())
    }

    /// Makes a decided state permanent, by its exact name. A state older than the decided one
    /// changes nothing.
    fn settle(&mut self, named: &ShardState) -> Result<(), Stop> {
        let decided = self.engine.decided();
        if *named == decided || named.version < decided.version {
            return Ok(());
        }
        if named.version == decided.version || !self.engine.has(named).map_err(failed)? {
            let message = format!(
                "decided state {} of version {} is not staged here; decided is {} of version {}",
                named.digest, named.version, decided.digest, decided.version
            );
            return Err(Refusal::new(Reason::BaseMismatch, message).into());
        }
        self.engine.settle(named).map_err(failed)
    }

    /// Drops the staged versions at the first Adopt of a term. A repeated Adopt may arrive after
    /// the new leader's own Prepares, so it drops nothing.
    fn adopt(&mut self, context: &Context) {
        if context.term == self.protocol.adopted {
            return;
        }
        self.engine.abort_all_staged();
        self.protocol.adopted = context.term;
        self.protocol.aborted.clear();
        // Fences of earlier terms are void: if their rollback were decided, its Execute would have
        // come first.
        if !planted(Bug::FenceNotLifted) {
            self.protocol.lift(FenceName { term: Term(context.term.0.saturating_sub(1)), attempt: u64::MAX });
        }
    }

    fn check_adopted(&self, context: &Context) -> Result<(), Stop> {
        if context.term == self.protocol.adopted {
            return Ok(());
        }
        let message = format!("the leader of term {} has not adopted this shard yet", context.term);
        Err(Refusal::new(Reason::BaseMismatch, message).into())
    }

    /// Checks a Prepare against the protocol state, regardless of the staged versions.
    fn check_open(&self, context: &Context, prepare: &Prepare) -> Result<(), Stop> {
        self.check_adopted(context)?;
        if self.protocol.fence.is_some_and(|fence| prepare.stamp.version > fence.target) {
            return Err(
                Refusal::new(Reason::FencedForRollback, "a rollback below this version is being decided").into()
            );
        }
        if self.protocol.is_aborted(prepare_id(context, prepare)) {
            return Err(Refusal::new(Reason::BaseMismatch, "this attempt was aborted").into());
        }
        Ok(())
    }

    fn prepare(&mut self, context: &Context, prepare: &Prepare) -> Result<Reply, Stop> {
        let prepare_id = prepare_id(context, prepare);
        self.check_open(context, prepare)?;
        let same = self.engine.staged().into_iter().find(|it| it.stamp == prepare.stamp && it.prepare_id == prepare_id);
        if let Some(staged) = same {
            if staged.base == prepare.base {
                return self.reply(Some(staged.state));
            }
            return Err(Refusal::new(Reason::BaseMismatch, "this attempt was staged on another base").into());
        }
        if !self.stands(&prepare.base) || prepare.stamp.version <= self.engine.decided().version {
            let message =
                format!("base {} of version {} is not a tip of this shard", prepare.base.digest, prepare.base.version);
            return Err(Refusal::new(Reason::BaseMismatch, message).into());
        }
        let state = self.stage(prepare, prepare_id)?;
        self.keep_journal(prepare, prepare_id, &state)?;
        self.reply(Some(state))
    }

    fn keep_journal(&mut self, prepare: &Prepare, prepare_id: PrepareId, state: &ShardState) -> Result<(), Stop> {
        if prepare.journal.is_empty() {
            return Ok(());
        }
        let journal = command::encode_journal(&prepare.journal);
        self.engine.keep_journal(state, prepare_id, &journal).map_err(failed)
    }

    /// Whether a version may build on this state: it is the decided one or a staged one.
    fn stands(&self, base: &ShardState) -> bool {
        *base == self.engine.decided() || self.engine.staged().iter().any(|staged| staged.state == *base)
    }

    fn stage(&mut self, prepare: &Prepare, prepare_id: PrepareId) -> Result<ShardState, Stop> {
        #[cfg(test)]
        let spoiled = self.spoil(prepare);
        #[cfg(test)]
        let operations = spoiled.as_slice();
        #[cfg(not(test))]
        let operations = prepare.operations.as_slice();
        let strikes = strikes(Bug::OneDigestBelieved, 50);
        let operations = if strikes { operations.get(1..).unwrap_or_default() } else { operations };
        // A mark erases the value that it is about.
        let mut erases: Vec<Vec<u8>> =
            operations.iter().filter(|it| it.is_put()).filter_map(|it| erased_by(&it.key)).collect();
        erases.sort();
        let request = StageRequest {
            stamp: prepare.stamp,
            prepare_id,
            base: prepare.base,
            merges: &prepare.merges,
            operations,
            erases: &erases,
        };
        match self.engine.stage(&request) {
            Ok(staged) => Ok(staged.state),
            Err(error) => Err(failed(error)),
        }
    }

    #[cfg(test)]
    fn spoil(&mut self, prepare: &Prepare) -> Vec<coppice_types::Operation> {
        let mut operations = prepare.operations.clone();
        if std::mem::take(&mut self.spoil_next)
            && let Some(first) = operations.first_mut()
        {
            first.change = coppice_types::Change::Put(b"spoiled".to_vec().into());
        }
        operations
    }

    fn abort(&mut self, version: Version, prepare_id: PrepareId) {
        self.engine.abort(version, prepare_id);
        self.protocol.note_abort(prepare_id);
    }

    fn fence(&mut self, fence: Fence) -> Result<(), Stop> {
        if fence.name.term != self.protocol.adopted {
            return Err(
                Refusal::new(Reason::BaseMismatch, "the leader of this term has not adopted the shard yet").into()
            );
        }
        let later = self.protocol.fence.is_some_and(|standing| standing.name > fence.name);
        if later || fence.name <= self.protocol.lifted {
            return Err(Refusal::new(Reason::BaseMismatch, "a later attempt has overridden this fence").into());
        }
        self.protocol.fence = Some(fence);
        Ok(())
    }

    /// Executes a rollback or prune once, in its turn, after settling the state that was decided
    /// just before it.
    fn execute(&mut self, context: &Context, execute: &Execute) -> Result<Reply, Stop> {
        let next = self.protocol.executed.checked_add(1).expect("counters never reach their maximum");
        if execute.admin_sequence > next {
            return Err(self.missed_admin().into());
        }
        if execute.admin_sequence == next {
            self.settle(&execute.newest)?;
            if self.engine.decided() != execute.newest {
                return Err(Refusal::new(
                    Reason::BaseMismatch,
                    "newer versions are decided here than the operation knew",
                )
                .into());
            }
            self.operate(execute)?;
            self.protocol.executed = next;
        }
        // The state that the sender knew as decided may just have been rolled back. In that case it
        // is no longer here.
        if context.admin_sequence == self.protocol.executed && self.engine.has(&context.decided).map_err(failed)? {
            self.settle(&context.decided)?;
        }
        self.reply(None)
    }

    fn operate(&mut self, execute: &Execute) -> Result<(), Stop> {
        let (AdminOperation::Rollback { to: boundary, .. } | AdminOperation::Prune { before: boundary }) =
            execute.operation;
        let found = self.engine.decided_at(boundary).map_err(failed)?;
        if found != execute.boundary {
            let message = format!("the shard's state at version {boundary} is not the one that the operation names");
            return Err(Refusal::new(Reason::BaseMismatch, message).into());
        }
        match execute.operation {
            AdminOperation::Rollback { to, epoch } => {
                let tip = self.engine.rollback(to, epoch).map_err(failed)?;
                assert_eq!(tip, execute.boundary, "a rollback ends at the state that was found at its target");
                if let Some(fence) = self.protocol.fence {
                    self.protocol.lift(fence.name);
                }
                Ok(())
            }
            AdminOperation::Prune { before } => self.engine.prune(before).map_err(failed),
        }
    }

    fn reply(&self, staged: Option<ShardState>) -> Result<Reply, Stop> {
        let decided = self.engine.decided();
        let shape = self.engine.shape(&staged.unwrap_or(decided)).map_err(failed)?;
        Ok(Reply { staged: staged.map(|state| state.digest), shape, decided })
    }
}

fn prepare_id(context: &Context, prepare: &Prepare) -> PrepareId {
    PrepareId { term: context.term, attempt: prepare.attempt }
}

/// The refusal of a read whose state is not here.
fn state_missing(state: &ShardState) -> Refusal {
    Refusal::new(Reason::StateMissing, format!("state {} of version {} is not here", state.digest, state.version))
}

/// Whether an error follows from the request and the replicated state alone, so that every sound
/// replica meets the same one. A merge with a different output than the request says is such an
/// error: if the tree is wrong on this replica alone, the others stage the version, and the
/// comparison of outcomes finds this replica.
fn deterministic(error: &engine::Error) -> bool {
    use engine::Error;
    matches!(
        error,
        Error::BaseMismatch { .. }
            | Error::AlreadyStaged { .. }
            | Error::StampMismatch { .. }
            | Error::StateMissing(_)
            | Error::Pruned { .. }
            | Error::Invalid(_)
            | Error::TreeLimit { .. }
            | Error::MergeInputs
            | Error::MergeOutput { .. }
    )
}

/// The refusal for a deterministic error of the engine.
fn refused(error: &engine::Error) -> Stop {
    let reason = match error {
        engine::Error::MergeInputs | engine::Error::MergeOutput { .. } => Reason::BaseMismatch,
        _ => error.reason(),
    };
    Stop::Refused(Refusal::new(reason, error.to_string()))
}

/// The reason why a command was not carried out.
enum Stop {
    Refused(Refusal),
    Failed(Error),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

fn failed(error: engine::Error) -> Stop {
    if deterministic(&error) { refused(&error) } else { Stop::Failed(error.into()) }
}
