//! The metadata store: which coordinator is the candidate for leadership, and which nodes and coordinators there are.
//!
//! It picks a candidate and no more. Everything in it can be rebuilt: whoever is alive registers again, and terms are allotted
//! by the root group, so a store that was wiped, or that serves two candidates at once, does no harm but delay.
//!
//! Everything is bound to leases, which end by time unless they are kept alive. Every change has a revision; revisions only grow, over
//! restarts too, as long as the store is not wiped or set back. The semantics are those of etcd: [`EtcdStore`] is for a cluster of processes,
//! [`EmbeddedStore`] for one. What an implementation must do is written down as tests: `suite`, behind the feature `test-suite`.

mod embedded;
mod etcd;
mod follow;
mod keeper;
mod state;
#[cfg(feature = "test-suite")]
pub mod suite;
#[cfg(feature = "test-suite")]
pub mod testing;

use std::{fmt, io, time::Duration};

use async_trait::async_trait;
use coppice_types::{ErrorKind, Reason};

pub use embedded::EmbeddedStore;
pub use etcd::{ENDPOINTS_MAX, EtcdOptions, EtcdStore, EtcdTls, EtcdTlsSource};
pub use follow::follow;
pub use keeper::{Candidate, Presence, Tenure};
pub use state::{CANDIDATES_MAX, HISTORY_MAX, LEASES_MAX, MEMBERS_MAX, TEXT_BYTES_MAX};

/// Shortest lease.
pub const LEASE_TTL_MIN: Duration = Duration::from_millis(100);
/// Longest lease.
pub const LEASE_TTL_MAX: Duration = Duration::from_secs(3600);

/// Number of a change of the store; the store is as of a revision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

/// Name of a lease; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// What a registered process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A shard-node.
    Node,
    /// A coordinator.
    Coordinator,
}

/// A registered process. Its kind and name identify it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// What it is.
    pub kind: Kind,
    /// Its name, unique among its kind.
    pub name: String,
    /// How it is reached.
    pub address: String,
}

/// The candidate that was picked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Its name.
    pub name: String,
    /// Fencing token: the revision at which it became a candidate. It is higher than that of every leader before.
    pub token: Revision,
}

/// All that the store holds, as of one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The newest change that it includes.
    pub revision: Revision,
    /// Registered processes, by kind and name.
    pub members: Vec<Member>,
    /// The candidate that was picked, if there is one.
    pub leader: Option<Leader>,
}

/// What one revision changed, in an order of no meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The revision.
    pub revision: Revision,
    /// At least one change. Each is of another member, or of the leader.
    pub changes: Vec<Change>,
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The member is registered, or registered anew.
    Joined(Member),
    /// The member is gone.
    Left {
        /// What it was.
        kind: Kind,
        /// Its name.
        name: String,
    },
    /// Another candidate was picked, or there is none.
    Leader(Option<Leader>),
}

/// Why a call failed. It changed nothing, unless the store is [`Error::Unavailable`]: then it may have.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The lease ended, or never was.
    #[error("lease {} has ended", .0.0)]
    LeaseLost(LeaseId),
    /// Changes right after that revision are forgotten, or the store was set back to one before it: take a snapshot, and
    /// watch from there.
    #[error("changes after revision {} are forgotten, the oldest kept may be {}", .asked.0, .oldest.0)]
    Compacted {
        /// The revision asked for.
        asked: Revision,
        /// The oldest whose changes are kept.
        oldest: Revision,
    },
    /// A field has a value that it may not have.
    #[error("{0} is out of its limits")]
    Invalid(&'static str),
    /// A bounded number of things is reached.
    #[error("the metadata store has no room for more {0}")]
    Exhausted(&'static str),
    /// The store does not answer, or can't write.
    #[error("the metadata store is unavailable")]
    Unavailable(#[source] io::Error),
    /// What was stored is damaged.
    #[error("the metadata store's file is damaged: {0}")]
    Corrupted(&'static str),
    /// Another process has the store.
    #[error("the metadata store is in use")]
    InUse,
}

impl Error {
    /// The reason on the wire.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::LeaseLost(_) => Reason::StaleTerm,
            Self::Compacted { .. } => Reason::NotFound,
            Self::Invalid(_) => Reason::InvalidArgument,
            Self::Exhausted(_) => Reason::ResourceExhausted,
            Self::Unavailable(_) | Self::InUse => Reason::Unavailable,
            Self::Corrupted(_) => Reason::Corrupted,
        }
    }

    /// What the caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.reason().kind()
    }
}

/// A metadata store. All calls may come from several tasks; each is atomic and takes effect in one revision or none.
#[async_trait]
pub trait Metadata: Send + Sync + fmt::Debug {
    /// Opens a lease that ends when it was not kept alive for `ttl`, or somewhat later: etcd counts in whole seconds. Never
    /// earlier, unless the store is wiped.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a `ttl` out of [`LEASE_TTL_MIN`] to [`LEASE_TTL_MAX`].
    async fn grant(&self, ttl: Duration) -> Result<LeaseId, Error>;

    /// Lets the lease begin anew.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if it has ended: what was bound to it is gone.
    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error>;

    /// Ends the lease, and with it everything bound to it. One that has ended is no error.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    async fn revoke(&self, lease: LeaseId) -> Result<(), Error>;

    /// Registers a process for as long as the lease lasts. It replaces the one of the same kind and name: a process that
    /// was started again need not wait for its old lease's end.
    ///
    /// # Errors
    /// [`Error::LeaseLost`], [`Error::Invalid`], [`Error::Exhausted`].
    async fn register(&self, lease: LeaseId, member: Member) -> Result<Revision, Error>;

    /// Becomes a candidate, and waits until it is picked. Candidates are picked in the order in which they came; one of the
    /// same name is replaced, unless it has the same lease: then this goes on waiting for it. A call that is dropped leaves the
    /// candidate in line until its lease ends.
    ///
    /// # Errors
    /// [`Error::LeaseLost`], also if the lease ends, or the candidate is replaced, while it waits.
    async fn campaign(&self, lease: LeaseId, name: &str) -> Result<Leader, Error>;

    /// Takes the candidate of this lease out of the line; it no longer leads. Without one, nothing happens.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    async fn resign(&self, lease: LeaseId) -> Result<(), Error>;

    /// All that the store holds now.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    async fn snapshot(&self) -> Result<Snapshot, Error>;

    /// The changes after a revision, from that of a snapshot on without a gap.
    ///
    /// # Errors
    /// [`Error::Compacted`], here or from the watch.
    async fn watch(&self, after: Revision) -> Result<Box<dyn Watch>, Error>;
}

/// Changes, one revision after the other.
#[async_trait]
pub trait Watch: Send + fmt::Debug {
    /// Waits for the next changes. A call that is dropped loses none.
    ///
    /// # Errors
    /// After an error the watch is over: make another from the last revision that it gave.
    async fn next(&mut self) -> Result<Changes, Error>;
}
