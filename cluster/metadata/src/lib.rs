//! The metadata store: which coordinator is the candidate for leadership, and which nodes and
//! coordinators there are.
//!
//! It only picks a candidate. Its content can be rebuilt: every living process registers again, and
//! the root group allots the terms. So a store that was wiped, or that serves two candidates at
//! once, causes delay but no harm.
//!
//! Every entry is bound to a lease, which ends by time unless it is kept alive. Every change has a
//! revision. Revisions only grow, also across restarts, as long as the store is not wiped or set
//! back. The semantics are those of etcd: [`EtcdStore`] is for a cluster of processes,
//! [`EmbeddedStore`] for one. The duties of an implementation are written down as tests: `suite`,
//! behind the feature `test-suite`.
//!
//! Layers, each using only those above it:
//!
//! - this file: the trait [`Metadata`] and its types
//! - `state`: the store as a plain state machine
//! - `embedded`, `etcd`: the two implementations
//! - `keeper`, `follow`: users of any store

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

/// The number of a change. The store's content is always that of one revision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

/// The name of a lease. It is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// The kind of a registered process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Node,
    Coordinator,
}

/// A registered process. Its kind and name identify it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    pub kind: Kind,
    /// The name, unique among processes of the same kind.
    pub name: String,
    pub address: String,
}

/// The candidate that was picked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    pub name: String,
    /// The fencing token: the revision at which the process became a candidate. It is higher than
    /// that of every earlier leader.
    pub token: Revision,
}

/// The store's whole content, as of one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The newest change that is included.
    pub revision: Revision,
    /// Registered processes, by kind and name.
    pub members: Vec<Member>,
    /// The candidate that was picked, if there is one.
    pub leader: Option<Leader>,
}

/// The changes of one revision. Their order has no meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    pub revision: Revision,
    /// At least one change. Each concerns a different member, or the leader.
    pub changes: Vec<Change>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The member has registered, for the first time or again.
    Joined(Member),
    /// The member is gone.
    Left { kind: Kind, name: String },
    /// Another candidate was picked, or there is none now.
    Leader(Option<Leader>),
}

/// The reason why a call failed. A call that failed has changed nothing, except that with
/// [`Error::Unavailable`] it may have.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The lease has ended, or never existed.
    #[error("lease {} has ended", .0.0)]
    LeaseLost(LeaseId),
    /// The changes after the revision are forgotten, or the store was set back to a revision before
    /// it. Take a snapshot, and watch from there.
    #[error("changes after revision {} are forgotten, the oldest kept may be {}", .asked.0, .oldest.0)]
    Compacted {
        /// The revision asked for.
        asked: Revision,
        /// The oldest revision whose changes are kept.
        oldest: Revision,
    },
    /// A field has a value that is not allowed.
    #[error("{0} is out of its limits")]
    Invalid(&'static str),
    /// The store has as many entries of a kind as it may hold.
    #[error("the metadata store has no room for more {0}")]
    Exhausted(&'static str),
    /// The store does not answer, or can't write.
    #[error("the metadata store is unavailable")]
    Unavailable(#[source] io::Error),
    /// The stored bytes are damaged.
    #[error("the metadata store's file is damaged: {0}")]
    Corrupted(&'static str),
    /// Another process holds the store.
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

    /// The kind of the error, which says what the caller can do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.reason().kind()
    }
}

/// A metadata store. Calls may come from several tasks. Each is atomic, and takes effect in one
/// revision or not at all.
#[async_trait]
pub trait Metadata: Send + Sync + fmt::Debug {
    /// Opens a lease, which ends when it was not kept alive for `ttl`. It may last somewhat longer,
    /// since etcd counts in whole seconds. It never ends earlier, unless the store is wiped.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a `ttl` outside of [`LEASE_TTL_MIN`] to [`LEASE_TTL_MAX`].
    async fn grant(&self, ttl: Duration) -> Result<LeaseId, Error>;

    /// Starts the time of the lease again.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if it has ended. All that was bound to it is gone.
    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error>;

    /// Ends the lease and all that is bound to it. A lease that has ended already is not an error.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    async fn revoke(&self, lease: LeaseId) -> Result<(), Error>;

    /// Registers a process for as long as the lease lasts. It replaces the process of the same kind
    /// and name. So a process that was started again need not wait for the end of its old lease.
    ///
    /// # Errors
    /// [`Error::LeaseLost`], [`Error::Invalid`], [`Error::Exhausted`].
    async fn register(&self, lease: LeaseId, member: Member) -> Result<Revision, Error>;

    /// Becomes a candidate, and waits until it is picked. Candidates are picked in the order of
    /// their arrival. A candidate of the same name is replaced, unless it has the same lease: then
    /// this call continues its wait. If the call is dropped, the candidate stays in line until its
    /// lease ends.
    ///
    /// # Errors
    /// [`Error::LeaseLost`], also if the lease ends or the candidate is replaced during the wait.
    async fn campaign(&self, lease: LeaseId, name: &str) -> Result<Leader, Error>;

    /// Takes the candidate of this lease out of the line, so that it no longer leads. If there is
    /// none, nothing happens.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    async fn resign(&self, lease: LeaseId) -> Result<(), Error>;

    /// The store's present content.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    async fn snapshot(&self) -> Result<Snapshot, Error>;

    /// The changes after a revision. From the revision of a snapshot on, there is no gap.
    ///
    /// # Errors
    /// [`Error::Compacted`], here or from the watch.
    async fn watch(&self, after: Revision) -> Result<Box<dyn Watch>, Error>;
}

/// A sequence of changes, one revision after the other.
#[async_trait]
pub trait Watch: Send + fmt::Debug {
    /// Waits for the next changes. A call that is dropped loses none.
    ///
    /// # Errors
    /// After an error the watch is over. Make another one from the last revision that this one
    /// returned.
    async fn next(&mut self) -> Result<Changes, Error>;
}
