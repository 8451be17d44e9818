//! Records as lookups find them.

use coppice_types::{Digest, Stamp};

use crate::{
    files::values::StoredValue,
    node::{Body, LeafRecord},
};

/// A record that was read, without its value if that lies in the value log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) key: Vec<u8>,
    pub(crate) stamp: Stamp,
    pub(crate) body: FoundBody,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FoundBody {
    Inline {
        hash: Digest,
        value: Vec<u8>,
    },
    Stored {
        hash: Digest,
        value: StoredValue,
    },
    /// A value that shortcuts led to.
    Named {
        value: Vec<u8>,
    },
    Tombstone,
}

impl Found {
    pub(crate) fn of(record: &LeafRecord<'_>) -> Self {
        let body = match record.body {
            Body::Inline { hash, value } => FoundBody::Inline { hash, value: value.to_vec() },
            Body::Stored { hash, len, blob } => FoundBody::Stored { hash, value: StoredValue { len, blob } },
            Body::Tombstone => FoundBody::Tombstone,
        };
        Self { key: record.key.to_vec(), stamp: record.stamp, body }
    }

    pub(crate) fn is_tombstone(&self) -> bool {
        matches!(self.body, FoundBody::Tombstone)
    }

    pub(crate) fn is_put(&self) -> bool {
        !self.is_tombstone()
    }
}
