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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::refs::{BlobRef, ValueRef};

    #[test]
    fn a_found_record_has_all_that_its_leaf_says() {
        let (hash, stamp) = (Digest([7; 32]), Stamp::new(1, 2));
        let blob = BlobRef { at: ValueRef { segment: 3, offset: 4 }, len: 50 };
        let found = |body| Found::of(&LeafRecord { key: b"key", stamp, body });
        let expected = |body| Found { key: b"key".to_vec(), stamp, body };
        let inline = found(Body::Inline { hash, value: b"abc" });
        assert_eq!(inline, expected(FoundBody::Inline { hash, value: b"abc".to_vec() }));
        let stored = found(Body::Stored { hash, len: 20, blob });
        assert_eq!(stored, expected(FoundBody::Stored { hash, value: StoredValue { len: 20, blob } }));
        let tombstone = found(Body::Tombstone);
        assert_eq!(tombstone, expected(FoundBody::Tombstone));
        let named = expected(FoundBody::Named { value: Vec::new() });
        assert!([&inline, &stored, &named].iter().all(|it| it.is_put() && !it.is_tombstone()));
        assert!(tombstone.is_tombstone() && !tombstone.is_put());
    }
}
