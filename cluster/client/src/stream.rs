//! A stream of answers, each checked as it comes.

use std::{fmt, time::Duration};

use tokio::time::timeout;
use tonic::Streaming;

use crate::{Error, rules::Rule};

/// A stream of answers. Drop it to end the call.
pub struct Stream<T> {
    inner: Streaming<T>,
    rule: Rule<T>,
    /// Longest wait for the next message; `None` for streams that follow the log.
    limit: Option<Duration>,
}

impl<T> fmt::Debug for Stream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl<T> Stream<T> {
    pub(crate) fn new(inner: Streaming<T>, rule: Rule<T>, limit: Duration) -> Self {
        Self { inner, rule, limit: Some(limit) }
    }

    /// Removes the limit on the wait for the next message.
    pub(crate) fn without_limit(self) -> Self {
        Self { limit: None, ..self }
    }

    /// Waits for the next message; `None` at the end of the stream.
    ///
    /// # Errors
    /// If the server refuses to go on, sends a message that can't follow the previous ones, or
    /// sends nothing in time, or if the connection breaks. The stream is then over.
    pub async fn next(&mut self) -> Result<Option<T>, Error> {
        let next = self.inner.message();
        let message = match self.limit {
            None => next.await?,
            Some(limit) => timeout(limit, next).await.map_err(|_| Error::silent(limit))??,
        };
        let Some(message) = message else { return Ok(None) };
        (self.rule)(&message).map_err(Error::Malformed)?;
        Ok(Some(message))
    }
}
