//! A snapshot that a leader offered, and this replica's progress with it.
//!
//! ```text
//!         take                accept                raft installs it
//! New ----------> Fetching ----------> Accepted --------------------> (gone)
//!                    |                    |
//!                    | refuse             | raft has no use for it
//!                    v                    v
//!                  (gone)             Discarded --- the caller is told ---> (gone)
//! ```

use bytes::Bytes;
use raft::eraftpb::Message as RaftMessage;

use crate::{Message, Position, RaftId, output::SnapshotOffer};

/// An offer that this replica took up.
#[derive(Debug)]
pub(crate) struct Offer {
    message: Message,
    position: Position,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The caller has not been told of the offer yet.
    New,
    /// The caller fetches the files.
    Fetching,
    /// The files are durable. Raft is told as soon as there is a leader.
    Accepted,
    /// Raft had no use for the snapshot. The caller must be told.
    Discarded,
}

impl Offer {
    pub(crate) fn new(message: Message, position: Position) -> Self {
        Self { message, position, state: State::New }
    }

    pub(crate) fn position(&self) -> Position {
        self.position
    }

    /// The replica that offered it.
    pub(crate) fn source(&self) -> RaftId {
        self.message.from()
    }

    /// Raft's message, as it came.
    pub(crate) fn raft_message(&self) -> &RaftMessage {
        &self.message.raft
    }

    /// Whether the caller must be told about the offer's present state.
    pub(crate) fn is_news(&self) -> bool {
        matches!(self.state, State::New | State::Discarded)
    }

    pub(crate) fn is_fetching(&self, position: Position) -> bool {
        self.position == position && self.state == State::Fetching
    }

    pub(crate) fn is_accepted(&self) -> bool {
        self.state == State::Accepted
    }

    pub(crate) fn is_discarded(&self) -> bool {
        self.state == State::Discarded
    }

    /// Hands a new offer to the caller, once.
    pub(crate) fn take(&mut self) -> Option<SnapshotOffer> {
        if self.state != State::New {
            return None;
        }
        self.state = State::Fetching;
        let manifest: Bytes = self.message.raft.get_snapshot().data.clone();
        Some(SnapshotOffer { position: self.position, from: self.source(), manifest })
    }

    pub(crate) fn accept(&mut self) {
        assert!(self.state == State::Fetching, "only a snapshot that was fetched is accepted");
        self.state = State::Accepted;
    }

    pub(crate) fn discard(&mut self) {
        assert!(self.state == State::Accepted, "raft is shown accepted snapshots only");
        self.state = State::Discarded;
    }
}

#[cfg(test)]
mod tests {
    use coppice_types::GroupId;

    use super::*;

    fn offer(position: Position) -> Offer {
        Offer::new(Message { group: GroupId::Root, raft: RaftMessage::default() }, position)
    }

    #[test]
    fn an_offer_is_handed_out_once() {
        let position = Position { index: 7, term: 2 };
        let mut offer = offer(position);
        assert!(offer.is_news() && !offer.is_fetching(position));
        assert_eq!(offer.take().map(|taken| taken.position), Some(position));
        assert!(offer.is_fetching(position) && !offer.is_news());
        assert_eq!(offer.take(), None);
    }

    #[test]
    fn a_discarded_offer_is_news_again() {
        let position = Position { index: 7, term: 2 };
        let mut offer = offer(position);
        offer.take().expect("it is new");
        offer.accept();
        assert!(offer.is_accepted() && !offer.is_news() && !offer.is_fetching(position));
        offer.discard();
        assert!(offer.is_discarded() && offer.is_news());
    }
}
