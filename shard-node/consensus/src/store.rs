//! The log as raft reads it.
//!
//! Raft treats an unexpected storage error as a bug and stops the process. So a read error is kept
//! here, and raft gets a harmless answer. [`crate::Group::advance`] then fails with the error
//! before any message leaves.

use std::cell::{Cell, RefCell};

use bytes::Bytes;
use raft::{
    Error as RaftError, GetEntriesContext, RaftState, Result as RaftResult, Storage, StorageError,
    eraftpb::{Entry, HardState as RaftHardState, Snapshot},
};

use crate::{Membership, Position, RaftId, error::Error, log::Log, message::make_snapshot};

/// The log, the membership that raft starts with, and the snapshot that can be served.
#[derive(Debug)]
pub(crate) struct Store {
    pub log: Log,
    /// The membership at the state machine's position when the group was opened.
    pub membership: Membership,
    /// A pinned snapshot that followers may fetch.
    pub snapshot: Option<(Position, Membership, Bytes)>,
    /// The lowest index that a missing snapshot must cover for a follower.
    pub snapshot_wanted: Cell<Option<u64>>,
    /// The learners whose wishes for a snapshot wait, because a voter is being sent another one.
    pub patient: RefCell<Vec<RaftId>>,
    /// The first read error.
    failure: RefCell<Option<Error>>,
}

impl Store {
    pub(crate) fn new(log: Log, membership: Membership) -> Self {
        Self {
            log,
            membership,
            snapshot: None,
            snapshot_wanted: Cell::new(None),
            patient: RefCell::default(),
            failure: RefCell::new(None),
        }
    }

    /// Takes the error that was kept from raft.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.failure.borrow_mut().take()
    }
}

impl Storage for Store {
    fn initial_state(&self) -> RaftResult<RaftState> {
        let state = self.log.hard_state();
        let hard_state =
            RaftHardState { term: state.term, vote: state.vote, commit: state.commit, ..Default::default() };
        Ok(RaftState::new(hard_state, self.membership.to_raft()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> RaftResult<Vec<Entry>> {
        if low <= self.log.base().index {
            return Err(RaftError::Store(StorageError::Compacted));
        }
        assert!(low < high, "raft asks for at least one entry");
        assert!(high <= self.log.last().index + 1, "raft asks for entries that it appended");
        let bytes_max = max_size.into().unwrap_or(u64::MAX);
        self.log.entries(low..=high - 1, bytes_max).or_else(|error| {
            self.failure.borrow_mut().get_or_insert(error);
            if context.can_async() {
                return Err(RaftError::Store(StorageError::LogTemporarilyUnavailable));
            }
            Ok(Vec::new())
        })
    }

    fn term(&self, index: u64) -> RaftResult<u64> {
        let missing = if index < self.log.base().index { StorageError::Compacted } else { StorageError::Unavailable };
        self.log.term(index).ok_or(RaftError::Store(missing))
    }

    fn first_index(&self) -> RaftResult<u64> {
        Ok(self.log.base().index + 1)
    }

    fn last_index(&self) -> RaftResult<u64> {
        Ok(self.log.last().index)
    }

    fn snapshot(&self, request_index: u64, to: u64) -> RaftResult<Snapshot> {
        // A snapshot that is older than a replica's membership is useless to that replica.
        let (added_by, _) = self.log.newest_membership();
        let least = request_index.max(self.log.base().index);
        match &self.snapshot {
            Some((position, membership, manifest)) if position.index >= least && membership.contains(RaftId(to)) => {
                Ok(make_snapshot(*position, membership, manifest.clone()))
            }
            _ => {
                if !self.patient.borrow().contains(&RaftId(to)) {
                    let wanted = self.snapshot_wanted.get().unwrap_or(0).max(least).max(*added_by);
                    self.snapshot_wanted.set(Some(wanted));
                }
                Err(RaftError::Store(StorageError::SnapshotTemporarilyUnavailable))
            }
        }
    }
}
