//! The ledger as the cache needs it. A [`Client`](crate::Client) is one, and the model of the tests
//! is another.

use std::collections::BTreeMap;

use bytes::Bytes;
use coppice_proto::v1;
use coppice_types::{Digest, ShardId, Stamp};
use coppice_verify::header::Header;

use super::error::Error;

/// The newest state, as one coordinator says it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub stamp: Stamp,
    /// Number of entries in the root log.
    pub log_size: u64,
    /// The oldest version that can be read.
    pub boundary: u64,
}

/// A signed checkpoint of a log that only grew.
#[derive(Clone, Debug)]
pub(super) struct Grown {
    /// Number of entries in the log.
    pub size: u64,
    pub root: Digest,
    /// Hash of the newest entry. Each header names the hash of the one before, so a chain of
    /// headers that ends in this hash is the ledger's log.
    pub newest: Digest,
    /// The proof file that shows the growth.
    pub proof: Bytes,
}

/// The answer to a read of keys.
#[derive(Clone, Debug)]
pub(super) struct Got {
    /// The value of each key with the version of its last change, in the order of the question.
    pub records: Vec<Option<(Bytes, Stamp)>>,
    /// The proof file, if one was asked for.
    pub proof: Bytes,
}

/// The parts of each commit that a stream shows besides its header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shows {
    /// The changed keys, with their values or without.
    pub keys: bool,
    pub values: bool,
    pub journal: bool,
}

/// A header on the stream.
#[derive(Clone, Debug)]
pub(super) struct Headed {
    pub header: Header,
    /// The canonical bytes of the header.
    pub encoded: Bytes,
    /// The records that a commit changed, by ascending keys: the coordinator's word. They have no
    /// values if only keys were asked for.
    pub changes: Vec<v1::Record>,
    /// Changes were asked for, of a commit that was rolled back.
    pub rolled_back: bool,
    pub journal: Option<Journal>,
    /// The journal has no operation lists, because the ledger no longer knows them.
    pub lists_gone: bool,
}

/// The journal of a version, encoded: all entries, and the operation lists of each shard.
#[derive(Clone, Debug, Default)]
pub(super) struct Journal {
    pub entries: Vec<Bytes>,
    pub lists: BTreeMap<ShardId, Vec<Bytes>>,
}

/// See the head of this file.
#[tonic::async_trait]
pub(super) trait Ledger: Send + Sync {
    async fn head(&self) -> Result<Head, Error>;

    /// The newest checkpoint, with a proof that it extends the known one. [`Error::Evidence`] if
    /// the ledger proves that it does not.
    async fn grown(&self, known: Option<&Grown>) -> Result<Grown, Error>;

    async fn batch_get(&self, keys: &[Bytes], at: Stamp, proven: bool) -> Result<Got, Error>;

    /// Follows the headers of the log, beginning with a sequence number.
    async fn watch(&self, from: u64, shows: Shows) -> Result<Box<dyn Heads>, Error>;
}

/// A stream of headers.
#[tonic::async_trait]
pub(super) trait Heads: Send {
    /// Waits for the next header; `None` at the end of the stream. A caller that gives up the wait
    /// loses the stream.
    async fn next(&mut self) -> Result<Option<Headed>, Error>;
}
