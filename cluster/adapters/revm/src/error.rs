//! The errors of a chain in a ledger.

use coppice_client::state;
use coppice_types::{ErrorKind, Reason, Stamp};
use revm::{database_interface::DBErrorMarker, primitives::B256};

/// The reason why a read failed, or why a block was not written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting makes no sense.
    #[error("{0}")]
    Options(&'static str),
    /// The system gave no thread to wait for calls.
    #[error("no thread: {0}")]
    Threads(#[from] std::io::Error),
    /// The ledger refused a call or did not answer it, or its answer is not proven.
    #[error("{0}")]
    Ledger(#[from] coppice_client::Error),
    /// A read failed.
    #[error("{0}")]
    Read(#[from] state::Error),
    /// A call took longer than [`Options::timeout`](crate::Options::timeout).
    #[error("{0} took too long")]
    Timeout(&'static str),
    /// The ledger has no state with this root: it was never written, or was rolled back.
    #[error("the ledger has no state with the root {0}")]
    UnknownRoot(B256),
    /// The newest state is another one than that on which the block ran.
    #[error("the newest state has the root {head}, and the block is on {parent}")]
    NotHead {
        /// The root of the state on which the block ran.
        parent: B256,
        /// The root of the newest state.
        head: B256,
    },
    /// The ledger has no hash of this block: see [`Block::insert_block_hash`](crate::Block::insert_block_hash).
    #[error("the ledger has no hash of block {0}")]
    UnknownBlock(u64),
    /// Something other than this chain was written behind the newest block.
    #[error("version {0:?} of the ledger is not a block of this chain")]
    Moved(Stamp),
    /// The block leads to another root than the one that was staged: run it again.
    #[error("the block leads to the root {now}, and led to {before}")]
    OtherRoot {
        /// The root that was staged.
        before: B256,
        /// The root that the ledger gives now.
        now: B256,
    },
    /// A record of the ledger is not one of a chain.
    #[error("a record of the ledger makes no sense: {0}")]
    Malformed(&'static str),
}

impl Error {
    /// The machine-readable cause, if the cluster gave one.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Ledger(error) => error.reason(),
            Self::Read(error) => error.reason(),
            _ => None,
        }
    }

    /// Whether the ledger's answer can't be believed.
    #[must_use]
    pub fn is_untrusted(&self) -> bool {
        match self {
            Self::Ledger(error) => error.kind() == ErrorKind::Corrupted,
            Self::Read(error) => error.is_untrusted(),
            _ => false,
        }
    }

    /// Whether the same call may succeed later, without a change of anything else.
    fn is_passing(&self) -> bool {
        let passing = |kind| matches!(kind, ErrorKind::Unavailable | ErrorKind::Exhausted | ErrorKind::Fenced);
        match self {
            Self::Timeout(_) => true,
            Self::Ledger(error) => passing(error.kind()),
            Self::Read(state::Error::Ledger(error)) => passing(error.kind()),
            Self::Read(error) => matches!(error, state::Error::Timeout(_) | state::Error::GivenUp(_)),
            _ => false,
        }
    }
}

impl DBErrorMarker for Error {
    /// The transaction can be run again after an error that is not fatal.
    fn is_fatal(&self) -> bool {
        !self.is_passing()
    }
}
