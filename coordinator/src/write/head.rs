//! The end of the root log in a leader's term: the decided log, and the one header that is being
//! appended.
//!
//! Invariants: at most one header is being appended, and it follows the decided ones; decided
//! headers follow each other; no two prepares or fences of a term have the same attempt number.

use std::collections::BTreeSet;

use coppice_proto::{convert, v1};
use coppice_types::{SessionId, ShardId, Stamp, Term};
use tokio::time::Instant;

use super::answer::{InFlight, Outcome};
use crate::plan::{LogTail, Overlay};

/// The state of the log under one term.
#[derive(Debug)]
pub struct Head {
    term: Term,
    /// The end of the decided log.
    decided: LogTail,
    decided_at: Instant,
    /// The version whose header is being appended.
    in_flight: Option<InFlight>,
    /// The newest attempt number.
    attempt: u64,
}

impl Head {
    /// The state at the beginning of a term.
    pub fn new(term: Term, decided: LogTail) -> Self {
        Self { term, decided, decided_at: Instant::now(), in_flight: None, attempt: 0 }
    }

    pub fn term(&self) -> Term {
        self.term
    }

    /// The end of the log that is decided.
    pub fn decided(&self) -> &LogTail {
        &self.decided
    }

    /// The newest decided version.
    pub fn stamp(&self) -> Stamp {
        self.decided.header.stamp
    }

    /// When the newest header was decided.
    pub fn decided_at(&self) -> Instant {
        self.decided_at
    }

    /// The end of the log once the header in flight is decided.
    pub fn tip(&self) -> &LogTail {
        self.in_flight.as_ref().map_or(&self.decided, |in_flight| &in_flight.tail)
    }

    /// Whether no header is being appended.
    pub fn is_settled(&self) -> bool {
        self.in_flight.is_none()
    }

    /// The number of batches in the version whose header is being appended.
    pub fn batches_in_flight(&self) -> usize {
        self.in_flight.as_ref().map_or(0, |in_flight| in_flight.batches)
    }

    /// The undecided writes below the next version.
    pub fn overlay(&self) -> Overlay {
        self.in_flight.as_ref().map(|in_flight| in_flight.overlay.clone()).unwrap_or_default()
    }

    /// The session numbers that are being decided.
    pub fn numbers(&self) -> Option<&BTreeSet<(SessionId, u64)>> {
        self.in_flight.as_ref().map(|in_flight| &in_flight.numbers)
    }

    /// Returns a new attempt number, which names prepares and fences of this term.
    pub fn next_attempt(&mut self) -> u64 {
        self.attempt += 1;
        self.attempt
    }

    /// Notes that a header is being appended.
    ///
    /// # Panics
    /// If another one is, or if the header does not follow the decided ones.
    pub fn start(&mut self, in_flight: InFlight) {
        assert!(self.in_flight.is_none(), "one header is appended at a time");
        self.assert_follows(&in_flight.tail);
        self.in_flight = Some(in_flight);
    }

    /// Waits for the outcome of the header in flight, or for ever if there is none.
    pub async fn outcome(&mut self) -> Outcome {
        match &mut self.in_flight {
            // The deciding task ends without an outcome only if the runtime stops it.
            Some(in_flight) => match (&mut in_flight.outcome).await {
                Ok(outcome) => outcome,
                Err(_) => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    }

    /// Takes out the header in flight, whose outcome is known.
    pub fn finish(&mut self) -> InFlight {
        self.in_flight.take().expect("an outcome is of the version in flight")
    }

    /// Moves on to a header that is in the log.
    ///
    /// # Panics
    /// If a header is being appended, or if the new one does not follow the decided ones.
    pub fn advance(&mut self, tail: LogTail) {
        assert!(self.in_flight.is_none(), "the header in flight is decided first");
        self.assert_follows(&tail);
        self.decided = tail;
        self.decided_at = Instant::now();
    }

    fn assert_follows(&self, tail: &LogTail) {
        let next = self.decided.header.sequence.next();
        assert_eq!(tail.header.sequence, next, "a header follows the decided ones");
    }

    /// The context that every message to a shard carries.
    pub fn shard_context(&self, shard: ShardId) -> v1::ShardContext {
        v1::ShardContext {
            term: self.term.0,
            admin_sequence: self.decided.header.admin_sequence,
            decided: self.decided.leaves.state(shard).map(convert::to_state),
        }
    }
}
