//! The requests to the sequencer, and the answers while no sequencer serves them.

use std::sync::Arc;

use coppice_process::access::Caller;
use coppice_proto::{status, v1};
use coppice_types::{Reason, SessionId, Version, text::control_in};
use coppice_verify::{anchor::Stamps, principal::CLAIM_BYTES_MAX};
use tokio::{
    sync::{OwnedSemaphorePermit, oneshot},
    time::Instant,
};
use tonic::Status;

use super::trace::Trace;
use crate::{
    groups::keys::PublicKey,
    plan::{Refusal, Request},
    quotas::Slot,
};

/// Limit on the number of stage commands, rollbacks, prunes, key changes and anchors that wait.
/// Batches have their own queue slots.
pub const TASKS_MAX: usize = 64;
/// Longest reason, in bytes.
const REASON_BYTES_MAX: usize = 1024;

/// A batch's part of the queue: one slot, or its bytes.
pub type Permit = OwnedSemaphorePermit;
/// The channel for a commit's answer.
pub type Reply = oneshot::Sender<Result<Committed, Status>>;

/// The answer to a committed request.
#[derive(Clone, Debug)]
pub struct Committed {
    pub response: v1::CommitResponse,
    /// The number of the first journal, if the request appended to a ledger of members.
    pub first_jsn: Option<u64>,
}

impl From<v1::CommitResponse> for Committed {
    fn from(response: v1::CommitResponse) -> Self {
        Self { response, first_jsn: None }
    }
}

/// A batch that waits to be committed.
#[derive(Debug)]
pub struct Entry {
    pub request: Arc<Request>,
    pub reply: Reply,
    /// The time after which the batch is refused if it still waits.
    pub deadline: Instant,
    pub want_receipt: bool,
    /// When the batch arrived.
    pub came: Instant,
    /// The trace that the batch belongs to.
    pub trace: Trace,
    /// The batch's queue slot and queue bytes.
    pub _permits: [Permit; 2],
}

impl Entry {
    /// Sends the answer. A client that has gone needs none.
    pub fn answer(self, answer: Result<Committed, Status>) {
        let _ = self.reply.send(answer);
    }
}

/// A request to the sequencer.
#[derive(Debug)]
pub enum Command {
    Commit(Entry),
    Stage(StageCommand),
    Admin(AdminRequest),
    /// A session was opened, or found again, with this highest number.
    SessionOpened(SessionId, u64),
}

impl From<Task> for Command {
    fn from(task: Task) -> Self {
        match task {
            Task::Stage(command) => Self::Stage(command),
            Task::Admin(request) => Self::Admin(request),
        }
    }
}

/// A command that is served while no version is under way.
#[derive(Debug)]
pub enum Task {
    Stage(StageCommand),
    Admin(AdminRequest),
}

/// Name of a stage.
pub type StageId = [u8; 16];

/// Reads a stage id.
///
/// # Errors
/// If it does not have 16 bytes.
pub fn stage_id(bytes: &[u8]) -> Result<StageId, Refusal> {
    bytes.try_into().map_err(|_| Refusal::invalid("a stage id must have 16 bytes"))
}

/// A request about stages.
#[derive(Debug)]
pub enum StageCommand {
    /// Stage a batch on head or on another stage.
    Stage {
        request: Arc<Request>,
        parent: Option<StageId>,
        reply: oneshot::Sender<Result<v1::StageResponse, Status>>,
        /// The batch's queue slot and queue bytes, until it is answered.
        _permits: [Permit; 2],
        /// The stage's slot in its caller's quota, for as long as the stage lives.
        slot: Slot,
    },
    /// Commit a stage whose parent is head.
    Finalize { id: StageId, entry: Entry },
    /// Drop a stage and all stages built on it.
    Discard { id: StageId, reply: oneshot::Sender<Result<v1::DiscardResponse, Status>> },
}

/// The operation of an [`AdminRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Head becomes the state of this version.
    Rollback(Version),
    /// Versions below this one can no longer be read.
    Prune(Version),
    /// This key signs checkpoints from now on.
    Key(PublicKey),
    /// These time stamps are kept.
    Anchor(Arc<Stamps>),
}

/// A waiting rollback, prune, key change or anchor. Its texts are within their limits.
#[derive(Debug)]
pub struct AdminRequest {
    pub wanted: Wanted,
    pub principal: String,
    pub reason: String,
    pub expected_head: Option<v1::Stamp>,
    pub reply: oneshot::Sender<Result<v1::AdminResponse, Status>>,
}

/// The principal and the reason of an operation: texts that a header may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub principal: String,
    pub reason: String,
}

impl Asked {
    /// Checks the texts of a request before it waits: none is missing, too long for the queue, or
    /// has hidden characters. The principal becomes the authenticated name, followed by the claim.
    ///
    /// # Errors
    /// `LIMIT_EXCEEDED` for a text that is too long; `INVALID_ARGUMENT` for one that is missing or
    /// has hidden characters.
    pub fn check(caller: &Caller, claim: &str, reason: String) -> Result<Self, Refusal> {
        let texts = [
            ("principal", "principal_bytes_max", CLAIM_BYTES_MAX, claim),
            ("reason", "reason_bytes_max", REASON_BYTES_MAX, &reason),
        ];
        for (name, limit, allowed, text) in texts {
            if text.len() > allowed {
                return Err(Refusal::over_limit(limit, allowed as u64, text.len() as u64));
            }
            if text.trim().is_empty() {
                return Err(Refusal::invalid(format!("{name} is missing: the root log records who asked, and why")));
            }
            if let Some((at, c)) = control_in(text) {
                let message =
                    format!("{name} has a character that is not shown as itself at byte {at}: {}", c.escape_unicode());
                return Err(Refusal::invalid(message));
            }
        }
        let over = || {
            let message = format!(
                "principal has more than {CLAIM_BYTES_MAX} bytes with a backslash before each quote and backslash"
            );
            Refusal::new(Reason::LimitExceeded, message)
        };
        Ok(Self { principal: caller.says(claim).ok_or_else(over)?, reason })
    }
}

/// The first 16 bytes of an id in hex.
pub fn hex(id: &[u8]) -> String {
    id.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// The reason why the sequencer ended.
#[derive(Debug)]
pub enum Exit {
    /// Another leader's term began.
    Deposed,
    /// The term can't be continued: the leader must take over again.
    Reset(String),
    /// The root group does not answer. Other coordinators may reach it.
    CutOff,
    /// This coordinator may not lead, for example because of its clock.
    Unfit(String),
    /// The command channel is closed, or the coordinator is to stop.
    Closed,
}

/// Whether the error says that another leader's term began.
pub fn is_stale(error: &Status) -> bool {
    status::reason(error) == Some(Reason::StaleTerm)
}

/// The answer to a client whose batch was certainly not committed because another coordinator
/// leads.
pub fn not_committed() -> Status {
    status::with_metadata(
        Reason::NotLeader,
        "another coordinator leads; the batch was not committed",
        [(status::LEADER, String::new())],
    )
}

/// Refuses a command that no leader took.
pub fn refuse(command: Command) {
    match command {
        Command::Commit(entry) | Command::Stage(StageCommand::Finalize { entry, .. }) => {
            entry.answer(Err(not_committed()));
        }
        Command::Stage(StageCommand::Stage { reply, .. }) => {
            let _ = reply.send(Err(not_committed()));
        }
        Command::Stage(StageCommand::Discard { reply, .. }) => {
            let _ = reply.send(Err(not_committed()));
        }
        Command::Admin(request) => {
            let _ = request.reply.send(Err(not_committed()));
        }
        Command::SessionOpened(..) => {}
    }
}
