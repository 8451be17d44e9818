//! The items that arrive in a replica's mailbox.

use std::time::Duration;

use coppice_env::Shortage;
use coppice_proto::v1;
use coppice_types::{ErrorKind, RaftId};
use opentelemetry::Context;
use tokio::sync::oneshot;

use super::{
    machine::{Position, StateMachine},
    status::Member,
};
use crate::{Error, refusal::Refusal};

/// The channel that an answer goes to.
pub type Answer<T> = oneshot::Sender<Result<T, Refusal>>;

/// A change of a group's members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A copy without a vote joins.
    AddLearner(Member),
    /// A learner that has caught up gets its vote.
    Promote(RaftId),
    /// A replica leaves for good.
    Remove(RaftId),
    /// A voter is asked to lead. The answer does not wait for the outcome.
    Lead(RaftId),
}

/// A request or an event for a replica's thread.
#[derive(Debug)]
pub enum Input<M: StateMachine> {
    /// A message of another replica, and the node that sent it.
    Peer(v1::PeerMessage, String),
    /// A node that cannot be reached.
    Unreachable(String),
    /// An order to wake up: the node of another member was silent for this long.
    Wake(Duration),
    /// A command to replicate, and the trace that it belongs to.
    Command(Vec<u8>, Answer<M::Reply>, Context),
    /// A request for a read index, for a linearizable read.
    ReadIndex(Answer<u64>),
    Change(Change, Answer<()>),
    /// The fetch of a snapshot has ended.
    Fetched(Position, Result<(), Failed>),
    /// The check of a pinned snapshot, begun at this time, has ended.
    Checked(Duration, Result<(), Error>),
    /// A read met damaged bytes.
    Damaged(String),
    /// A request to flush and to end. If the flag is set, leadership is handed over first.
    Retire(bool, Answer<()>),
}

/// The reason why a fetch failed.
#[derive(Debug)]
pub struct Failed {
    /// The error's text, for the log.
    pub(super) note: String,
    /// Whether the next fetch may use the bytes that this one fetched.
    pub(super) resumable: bool,
    /// Whether the fetched bytes don't match their hashes.
    pub(super) damaged: bool,
    /// The resource that ran out, if that was the cause.
    pub(super) short_of: Option<Shortage>,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        let resumable = matches!(error, Error::Call(_) | Error::Overdue(_));
        let damaged = !resumable && error.kind() == ErrorKind::Corrupted;
        let short_of = error.shortage();
        Self { note: error.chain(), resumable, damaged, short_of }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::tests::{damage, full, no_handles};

    #[test]
    fn a_failed_fetch_says_whether_its_bytes_may_be_kept_and_whose_fault_it_was() {
        let told = |error: Error| {
            let Failed { resumable, damaged, short_of, .. } = Failed::from(error);
            (resumable, damaged, short_of)
        };
        assert_eq!(told(damage()), (false, true, None));
        assert_eq!(told(full()), (false, false, Some(Shortage::Space)));
        assert_eq!(told(no_handles()), (false, false, Some(Shortage::Handles)));
        assert_eq!(told(Error::Overdue("a part")), (true, false, None));
        // A sender that calls its own state damaged says nothing about the bytes that arrived.
        let status = coppice_proto::status::refuse(coppice_types::Reason::Corrupted, "a bad page");
        assert_eq!(told(status.into()), (true, false, None));
    }
}
