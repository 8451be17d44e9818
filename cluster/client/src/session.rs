//! A client's numbered stream of batches, for at-most-once.

use coppice_proto::v1;
use coppice_types::{Reason, SessionId};

use crate::{Client, CommitStream, Error};

/// A session: batch number n is applied once, however often it is sent.
///
/// A refused batch uses no number up. After an error whose outcome is unknown ([`Error::outcome_unknown`]), send the same batch again:
/// its number is still the next one. A different batch under a number that was committed after all is refused (`SESSION_MISMATCH`).
#[derive(Clone, Debug)]
pub struct Session {
    client: Client,
    id: SessionId,
    highest: u64,
    batch_hash: Vec<u8>,
}

impl Session {
    pub(crate) async fn open(client: Client, id: SessionId) -> Result<Self, Error> {
        let request = v1::OpenSessionRequest { session_id: id.0.to_vec().into() };
        let opened = client.open(request).await?;
        after(opened.highest_number)?;
        Ok(Self { client, id, highest: opened.highest_number, batch_hash: opened.batch_hash.to_vec() })
    }

    /// The name of the session.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The highest number that is known to be committed, 0 for none.
    #[must_use]
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// The batch hash of the highest number, as it was when the session was opened.
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

    /// Sends the next batches as a stream, without waiting for each answer.
    pub fn stream(&mut self, want_receipt: bool) -> CommitStream<'_> {
        CommitStream::new(self, want_receipt)
    }

    /// Commits the next batch.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
    pub async fn commit(&mut self, batch: v1::Batch, want_receipt: bool) -> Result<v1::CommitResponse, Error> {
        let number = after(self.highest)?;
        let answer = self.commit_as(number, batch, want_receipt).await;
        // What was committed and then rolled back has used its number up, too.
        if answer.as_ref().map_or_else(|error| error.reason() == Some(Reason::RolledBack), |_| true) {
            self.highest = number;
        }
        answer
    }

    /// Sends a batch under a number of its own, for instance one that was committed before.
    ///
    /// # Errors
    /// What the cluster refuses, and what it did not answer in time.
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

/// The number after another one. A session that has none left was never numbered by a client.
pub(crate) fn after(number: u64) -> Result<u64, Error> {
    number.checked_add(1).ok_or(Error::Malformed("a session whose numbers are used up"))
}
