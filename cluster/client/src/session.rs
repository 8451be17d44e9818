//! Sessions: numbered batches, applied at most once each.

use coppice_proto::v1;
use coppice_types::{Reason, SessionId};

use crate::{Client, Error};

/// A session: batch number n is applied at most once, however many times it is sent.
///
/// A refused batch uses up no number. After an error whose outcome is unknown
/// ([`Error::outcome_unknown`]), send the same batch again: its number is still the next one. If
/// that number was committed after all, a different batch is refused with `SESSION_MISMATCH`.
#[derive(Clone, Debug)]
pub struct Session {
    client: Client,
    id: SessionId,
    highest: u64,
    batch_hash: Vec<u8>,
}

impl Client {
    /// Opens a session, or finds it again. The id should be random; it is the session's only name.
    pub async fn open_session(&self, id: SessionId) -> Result<Session, Error> {
        Session::open(self.clone(), id).await
    }
}

impl Session {
    async fn open(client: Client, id: SessionId) -> Result<Self, Error> {
        let request = v1::OpenSessionRequest { session_id: id.0.to_vec().into() };
        let opened = client.session(request).await?;
        after(opened.highest_number)?;
        Ok(Self { client, id, highest: opened.highest_number, batch_hash: opened.batch_hash.to_vec() })
    }

    /// The id of the session.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The highest number that is known to be committed; 0 if there is none.
    #[must_use]
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// The hash of the batch with the highest number, as of the opening of the session. Empty if
    /// there was none.
    #[must_use]
    pub fn batch_hash(&self) -> &[u8] {
        &self.batch_hash
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn reached(&mut self, number: u64) {
        self.highest = self.highest.max(number);
    }

    /// Commits the next batch. With `want_receipt`, or if a key is trusted, the answer has a
    /// receipt.
    ///
    /// # Errors
    /// Like [`Client::commit`]. [`Error::outcome_unknown`] tells whether the batch must be sent
    /// again.
    pub async fn commit(&mut self, batch: v1::Batch, want_receipt: bool) -> Result<v1::CommitResponse, Error> {
        let number = after(self.highest)?;
        let answer = self.commit_as(number, batch, want_receipt).await;
        // A batch that was committed and then rolled back has used up its number, too.
        if answer.as_ref().map_or_else(|error| error.reason() == Some(Reason::RolledBack), |_| true) {
            self.highest = number;
        }
        answer
    }

    /// Sends a batch under a number that the caller chooses, for instance one that was committed
    /// before.
    ///
    /// # Errors
    /// Like [`Session::commit`].
    pub async fn commit_as(
        &self,
        number: u64,
        batch: v1::Batch,
        want_receipt: bool,
    ) -> Result<v1::CommitResponse, Error> {
        let request =
            v1::CommitRequest { batch: Some(batch), session_id: self.id.0.to_vec().into(), number, want_receipt };
        self.client.commit_numbered(request).await
    }
}

/// The number after `number`. An error if there is none: no client counts that far.
pub(crate) fn after(number: u64) -> Result<u64, Error> {
    number.checked_add(1).ok_or(Error::Malformed("a session whose numbers are used up"))
}

#[cfg(test)]
mod tests;
