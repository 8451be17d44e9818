//! The places of open calls: how many calls of each kind are open, in total and for each caller.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use coppice_proto::status;
use coppice_types::Reason;
use tonic::Status;

use super::budget::CALLER_SHARE;
use crate::peer::Party;

/// The kind of a call, which determines its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A write, or a part of one.
    Commit,
    /// A single question.
    Read,
    /// A question with a long answer.
    Stream,
    /// A wait for future events.
    Watch,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Commit, Self::Read, Self::Stream, Self::Watch];

    /// The kind of a method, by its path.
    #[must_use]
    pub fn of(path: &str) -> Self {
        match path.strip_prefix("/coppice.v1.").unwrap_or(path) {
            "Ledger/Range" | "Ledger/History" | "Ledger/Diff" | "Ledger/Journal" | "Peer/FetchSnapshot" => Self::Stream,
            "Ledger/ListLedgers" | "Ledger/ListMembers" | "Ledger/QueryBatch" => Self::Stream,
            "Ledger/WatchHeads" | "/grpc.health.v1.Health/Watch" => Self::Watch,
            "Ledger/Get" | "Ledger/BatchGet" | "Ledger/Head" | "Ledger/GetHeader" | "Ledger/GetCheckpoint" => {
                Self::Read
            }
            "Ledger/DescribeLedger" | "Ledger/GetMember" | "Ledger/GetJournals" | "Ledger/GetLineage" => Self::Read,
            "Ledger/VerifyJournal" | "Ledger/GetLedgerHashes" | "Ledger/GetLedgerRecords" | "Ledger/ErasureStatus" => {
                Self::Read
            }
            "Ledger/Status" | "Ledger/ListPins" | "Ledger/Time" | "Ledger/GetInterval" => Self::Read,
            "Shard/Read" | "Shard/Scan" | "Root/ReadRoot" => Self::Read,
            // An unknown method is refused at once.
            path if path.starts_with('/') => Self::Read,
            _ => Self::Commit,
        }
    }

    /// The kind's name in messages and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Read => "read",
            Self::Stream => "stream",
            Self::Watch => "watch",
        }
    }
}

#[derive(Debug)]
pub(super) struct Places {
    calls_max: [usize; 4],
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    total: [usize; 4],
    of: BTreeMap<(Kind, Party), usize>,
}

impl Places {
    pub(super) fn new(calls_max: [usize; 4]) -> Arc<Self> {
        Arc::new(Self { calls_max, open: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no call is open.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let open = self.lock();
        open.of.is_empty() && open.total == [0; 4]
    }

    /// Takes a place for a call.
    pub(super) fn enter(self: &Arc<Self>, kind: Kind, caller: Party) -> Result<Place, Status> {
        let max = self.calls_max[kind as usize];
        let share = if caller.has_all() { max } else { max.div_ceil(CALLER_SHARE) };
        let mut open = self.lock();
        if open.total[kind as usize] >= max {
            let message = format!("{max} calls of this kind ({}) are open here: try again later", kind.name());
            return Err(status::refuse(Reason::ResourceExhausted, message));
        }
        let own = open.of.entry((kind, caller.clone())).or_default();
        if *own >= share {
            let message = format!(
                "{share} calls of this kind ({}) are open for this caller, its share of {max}: end some of them, or wait for their answers",
                kind.name()
            );
            return Err(status::refuse(Reason::ResourceExhausted, message));
        }
        *own += 1;
        open.total[kind as usize] += 1;
        Ok(Place { places: Arc::clone(self), kind, caller })
    }
}

/// The place of an open call, until it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    kind: Kind,
    caller: Party,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.places.lock();
        open.total[self.kind as usize] -= 1;
        if let Entry::Occupied(mut own) = open.of.entry((self.kind, self.caller.clone())) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}
