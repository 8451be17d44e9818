//! A snapshot on its way to this replica.
//!
//! Raft wants a snapshot to be there when it is told of it, and its pages take their time. So a leader's offer is kept
//! back while the caller fetches them, and given to raft when they are durable. The snapshot is of committed state, which
//! every later leader has too, so it is then told in the name of the leader of the day.

use bytes::Bytes;
use raft::StateRole;

use crate::error::{Error, Result};
use crate::output::SnapshotOffer;
use crate::{Group, Membership, Message, Output, Position, RaftId};

/// An offer that was taken up.
#[derive(Debug)]
pub(crate) struct Offer {
    message: Message,
    position: Position,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The caller does not know of it yet.
    New,
    /// The caller fetches it.
    Fetching,
    /// Its files are durable; raft is told as soon as there is a leader.
    Accepted,
    /// Raft had no use for it; the caller is to be told.
    Discarded,
}

impl Offer {
    /// The caller must hear of it.
    pub(crate) fn is_news(&self) -> bool {
        matches!(self.state, State::New | State::Discarded)
    }

    /// What the caller has not heard yet.
    pub(crate) fn news(&mut self) -> Option<SnapshotOffer> {
        if self.state != State::New {
            return None;
        }
        self.state = State::Fetching;
        let manifest: Bytes = self.message.raft.get_snapshot().data.clone();
        Some(SnapshotOffer { position: self.position, from: self.message.from(), manifest })
    }
}

impl Group {
    /// Takes up a leader's offer of a snapshot, unless raft can answer it without.
    pub(crate) fn step_snapshot(&mut self, message: Message) -> Result<()> {
        let refuse = |why| Err(Error::Refused(why));
        let metadata = message.raft.get_snapshot().get_metadata();
        let position = Position { index: metadata.index, term: metadata.term };
        let raft = &self.raw.raft;
        if message.raft.term < raft.term {
            return refuse("its sender does not lead any more");
        }
        if !Membership::from_raft(metadata.get_conf_state()).contains(self.options.id) {
            return refuse("this replica is not in the snapshot's group");
        }
        let asked = raft.pending_request_snapshot != 0;
        let matches = raft.raft_log.match_term(position.index, position.term);
        if position.index < raft.raft_log.committed || (!asked && matches) {
            return self.step_raft(message.raft);
        }
        if asked && position.index < raft.pending_request_snapshot {
            // It is of an earlier question: what was acknowledged since would be gone.
            return refuse("it ends before this replica's log");
        }
        if position.index == raft.raft_log.committed && !matches {
            return refuse("it contradicts what is committed");
        }
        if self.offer.is_some() {
            return refuse("another snapshot is on its way");
        }
        self.offer = Some(Offer { message, position, state: State::New });
        Ok(())
    }

    /// Says that the files of the snapshot offered are here, checked and durable. The next [`Output`]s say whether it is
    /// to be installed or is not needed any more.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no such snapshot was offered.
    pub fn accept_snapshot(&mut self, position: Position) -> Result<()> {
        match &mut self.offer {
            Some(offer) if offer.position == position && offer.state == State::Fetching => {
                offer.state = State::Accepted;
                self.try_install();
                Ok(())
            }
            _ => Err(Error::Invalid("no such snapshot was offered")),
        }
    }

    /// Says that the snapshot offered could not be fetched. The leader offers another when it hears of it, or in time.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no such snapshot was offered.
    pub fn refuse_snapshot(&mut self, position: Position) -> Result<()> {
        match &self.offer {
            Some(offer) if offer.position == position && offer.state == State::Fetching => {
                self.offer = None;
                Ok(())
            }
            _ => Err(Error::Invalid("no such snapshot was offered")),
        }
    }

    /// Tells raft of an accepted snapshot, in the name of the leader of the day.
    pub(crate) fn try_install(&mut self) {
        let raft = &self.raw.raft;
        let follows = raft.state == StateRole::Follower && raft.leader_id != 0;
        let Some(offer) = self.offer.as_mut().filter(|offer| offer.state == State::Accepted && follows) else {
            return;
        };
        let position = offer.position;
        let mut message = offer.message.raft.clone();
        message.from = raft.leader_id;
        message.term = raft.term;
        let stepped = self.step_raft(message);
        let taken = self.raw.snap().is_some_and(|snapshot| snapshot.get_metadata().index == position.index);
        if stepped.is_ok() && taken {
            self.offer = None;
        } else if let Some(offer) = &mut self.offer {
            offer.state = State::Discarded;
        }
    }

    /// Tells the caller of a snapshot that raft had no use for.
    pub(crate) fn report_discarded(&mut self, output: &mut Output) {
        if self.offer.as_ref().is_some_and(|offer| offer.state == State::Discarded) {
            output.snapshot_discarded = self.offer.take().map(|offer| offer.position);
        }
    }

    /// The leader to fetch from, while a snapshot is being fetched.
    #[must_use]
    pub fn snapshot_source(&self) -> Option<RaftId> {
        self.offer.as_ref().map(|offer| offer.message.from())
    }
}
