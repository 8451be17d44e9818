//! Error kinds, which say what a caller can do, and reasons, which say why a call was refused.
//!
//! Only this file maps reasons to kinds; `coppice-proto` maps both to gRPC.

use alloc::string::{String, ToString};
use core::{error::Error, fmt, iter};

/// Iterates over an error and its chain of sources.
pub fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    iter::successors(Some(error), |&error| error.source())
}

/// Formats an error and its chain of sources in one line.
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut line = String::new();
    for (at, cause) in causes(error).enumerate() {
        if at > 0 {
            line.push_str(": ");
        }
        line.push_str(&cause.to_string());
    }
    line
}

/// The kind of an error, by what a caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request is wrong, and repeating it does not help.
    Invalid,
    /// The requested thing does not exist.
    NotFound,
    /// The caller lacks the role that the call needs.
    Denied,
    /// The request does not fit the present state.
    Conflict,
    /// A bounded resource is exhausted.
    Exhausted,
    /// The call may succeed if it is repeated.
    Unavailable,
    /// The sender is no longer the leader.
    Fenced,
    /// Stored or received bytes differ from those that were written.
    Corrupted,
    /// A bug, or a broken environment.
    Internal,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $kind:ident;)*) => {
        /// The machine-readable cause of a refusal: the reason of a `google.rpc.ErrorInfo`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $variant,)*
        }

        impl Reason {
            /// Every reason, for tables in tests and documents.
            pub const ALL: &'static [Reason] = &[$(Reason::$variant,)*];

            /// The reason's name on the wire.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The reason with this name on the wire; `None` if there is none.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }

            /// The kind of errors with this reason.
            #[must_use]
            pub fn kind(self) -> ErrorKind {
                match self { $(Self::$variant => ErrorKind::$kind,)* }
            }
        }
    };
}

reasons! {
    /// A field has a value that is not allowed.
    InvalidArgument = "INVALID_ARGUMENT", Invalid;
    /// A key, value, batch or message is over its limit.
    LimitExceeded = "LIMIT_EXCEEDED", Invalid;
    /// The key is reserved for ledgers.
    Reserved = "RESERVED", Invalid;
    /// The signature of a member's request is not of the key in force.
    BadSignature = "BAD_SIGNATURE", Invalid;
    /// The request names another cluster.
    WrongCluster = "WRONG_CLUSTER", Invalid;
    /// The roles of the caller's certificate do not allow the call.
    Denied = "DENIED", Denied;
    /// The ledger has no such member, or the caller is none.
    NotAMember = "NOT_A_MEMBER", Denied;
    /// The member lacks the role for it.
    RoleMissing = "ROLE_MISSING", Denied;
    /// An order lacks the signature of a member that must sign it.
    OrderIncomplete = "ORDER_INCOMPLETE", Denied;
    /// There is no such header, stage, session, ledger or journal.
    NotFound = "NOT_FOUND", NotFound;
    /// A purge has swept the journal.
    PurgedJournal = "PURGED_JOURNAL", NotFound;
    /// A precondition or the expected head does not hold.
    PreconditionFailed = "PRECONDITION_FAILED", Conflict;
    /// The request is not the next one of its lane.
    Lane = "LANE", Conflict;
    /// The member has signed for another epoch, or has seen another root log.
    StaleView = "STALE_VIEW", Conflict;
    /// The ledger has another size than the request says.
    LedgerChanged = "LEDGER_CHANGED", Conflict;
    /// A clue has another number of journals than the request says.
    ClueChanged = "CLUE_CHANGED", Conflict;
    /// A ledger or member of this name exists, or the change of members is not possible.
    NotPossible = "NOT_POSSIBLE", Conflict;
    /// The version is above head.
    NotYet = "NOT_YET", Conflict;
    /// The version is below the pruned boundary.
    Pruned = "PRUNED", Conflict;
    /// The version was rolled back.
    RolledBack = "ROLLED_BACK", Conflict;
    /// A living pin holds a version that the prune would drop.
    Pinned = "PINNED", Conflict;
    /// The rollback would take back journals of ledgers.
    LedgerFloor = "LEDGER_FLOOR", Conflict;
    /// The stage no longer exists.
    StageLost = "STAGE_LOST", Conflict;
    /// The batch's number is below the session's window.
    RequestExpired = "REQUEST_EXPIRED", Conflict;
    /// The batch's number was used for another batch of the session.
    SessionMismatch = "SESSION_MISMATCH", Conflict;
    /// The session was never opened, or has ended.
    UnknownSession = "UNKNOWN_SESSION", Conflict;
    /// A queue or tree limit is full. Room becomes free later.
    ResourceExhausted = "RESOURCE_EXHAUSTED", Exhausted;
    /// A quota is used up: the total for all callers, or the caller's share of it.
    QuotaExceeded = "QUOTA_EXCEEDED", Exhausted;
    /// A disk is full.
    DiskFull = "DISK_FULL", Exhausted;
    /// This replica or coordinator does not lead; another does.
    NotLeader = "NOT_LEADER", Unavailable;
    /// The group has no leader or no quorum now, or a deadline passed.
    Unavailable = "UNAVAILABLE", Unavailable;
    /// The replica does not have the named state, or does not have it yet.
    StateMissing = "STATE_MISSING", Unavailable;
    /// The shard is fenced for a rollback.
    FencedForRollback = "FENCED_FOR_ROLLBACK", Unavailable;
    /// The shard has not yet executed an operation of the root log.
    MissedAdmin = "MISSED_ADMIN", Unavailable;
    /// The sender's term is over.
    StaleTerm = "STALE_TERM", Fenced;
    /// The message does not build on the shard's present state.
    BaseMismatch = "BASE_MISMATCH", Fenced;
    /// Stored bytes are damaged.
    Corrupted = "CORRUPTED", Corrupted;
    /// A bug.
    Internal = "INTERNAL", Internal;
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
