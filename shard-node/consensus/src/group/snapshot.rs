//! A snapshot on its way to this replica.
//!
//! Raft expects a snapshot to be present when it is told of one, but fetching the files takes time.
//! So a leader's offer is kept back while the caller fetches the files, and is given to raft once
//! they are durable. A snapshot holds committed state, which every later leader has, too. So raft
//! is told of it in the name of the present leader.

use raft::StateRole;

use super::{Group, offer::Offer};
use crate::{
    Membership, Message, Output, Position, RaftId,
    error::{Error, Result},
};

impl Group {
    /// Takes up a leader's offer of a snapshot, unless raft can answer the offer without the files.
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
            // The offer answers an earlier request. Installing it would drop entries that were
            // acknowledged since.
            return refuse("it ends before this replica's log");
        }
        if position.index == raft.raft_log.committed && !matches {
            return refuse("it contradicts what is committed");
        }
        if self.offer.is_some() {
            return refuse("another snapshot is on its way");
        }
        self.offer = Some(Offer::new(message, position));
        Ok(())
    }

    /// Reports that the files of the offered snapshot have arrived, and are checked and durable. A
    /// later [`Output`] says whether the snapshot is installed or not needed any more.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no such snapshot was offered.
    pub fn accept_snapshot(&mut self, position: Position) -> Result<()> {
        match &mut self.offer {
            Some(offer) if offer.is_fetching(position) => {
                offer.accept();
                self.try_install();
                Ok(())
            }
            _ => Err(Error::Invalid("no such snapshot was offered")),
        }
    }

    /// Reports that the offered snapshot could not be fetched. The leader offers another one when
    /// it learns of that, or after a time-out.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no such snapshot was offered.
    pub fn refuse_snapshot(&mut self, position: Position) -> Result<()> {
        match &self.offer {
            Some(offer) if offer.is_fetching(position) => {
                self.offer = None;
                Ok(())
            }
            _ => Err(Error::Invalid("no such snapshot was offered")),
        }
    }

    /// Tells raft of an accepted snapshot, in the name of the present leader.
    pub(crate) fn try_install(&mut self) {
        let raft = &self.raw.raft;
        let follows = raft.state == StateRole::Follower && raft.leader_id != 0;
        let Some(offer) = self.offer.as_ref().filter(|offer| offer.is_accepted() && follows) else {
            return;
        };
        let index = offer.position().index;
        let mut message = offer.raft_message().clone();
        message.from = raft.leader_id;
        message.term = raft.term;
        let stepped = self.step_raft(message);
        let taken = self.raw.snap().is_some_and(|snapshot| snapshot.get_metadata().index == index);
        if stepped.is_ok() && taken {
            self.offer = None;
        } else if let Some(offer) = &mut self.offer {
            offer.discard();
        }
    }

    /// Tells the caller of a snapshot that raft had no use for.
    pub(crate) fn report_discarded(&mut self, output: &mut Output) {
        if self.offer.as_ref().is_some_and(Offer::is_discarded) {
            output.snapshot_discarded = self.offer.take().map(|offer| offer.position());
        }
    }

    /// The leader to fetch from, while a snapshot is being fetched.
    #[must_use]
    pub fn snapshot_source(&self) -> Option<RaftId> {
        self.offer.as_ref().map(Offer::source)
    }
}
