//! The operation lists of the newest versions that this coordinator committed, for those that
//! follow the log with its journals. Whoever reads them compares them with the hashes in the
//! journal.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use coppice_types::Digest;

use crate::{lock::held, plan::ShardLists};

/// Limit on the bytes of all lists together.
const BYTES_MAX: usize = 32 << 20;
/// Bytes that a list takes besides its own.
const LIST_BYTES: usize = 64;

/// Lists by the sequence of their version's header.
#[derive(Debug, Default)]
pub struct NewestLists(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// With the hash of the header: one that is not decided may give way to another.
    versions: BTreeMap<u64, (Digest, Arc<ShardLists>)>,
    bytes: usize,
}

impl NewestLists {
    /// Notes the lists of the version that the header with this hash commits. Forgets the oldest
    /// ones if they are too many.
    pub fn note(&self, sequence: u64, header: Digest, lists: ShardLists) {
        let mut known = held(&self.0);
        known.bytes += size(&lists);
        if let Some((_, before)) = known.versions.insert(sequence, (header, Arc::new(lists))) {
            known.bytes -= size(&before);
        }
        while known.bytes > BYTES_MAX {
            let Some((_, (_, oldest))) = known.versions.pop_first() else { break };
            known.bytes -= size(&oldest);
        }
    }

    /// The lists of a version; `None` if they are not known.
    pub fn of(&self, sequence: u64, header: &Digest) -> Option<Arc<ShardLists>> {
        let known = held(&self.0);
        known.versions.get(&sequence).filter(|(hash, _)| hash == header).map(|(_, lists)| lists.clone())
    }
}

fn size(lists: &ShardLists) -> usize {
    LIST_BYTES + lists.values().flatten().map(|list| LIST_BYTES + list.len()).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use coppice_types::ShardId;

    use super::*;

    fn lists(bytes: usize) -> ShardLists {
        BTreeMap::from([(ShardId(0), vec![Bytes::from(vec![0; bytes])])])
    }

    #[test]
    fn the_newest_lists_are_known_within_their_bounds() {
        let (known, hash) = (NewestLists::default(), |byte| Digest([byte; 32]));
        for sequence in 1..=5 {
            known.note(sequence, hash(1), lists(BYTES_MAX / 4));
        }
        let has = |sequence| known.of(sequence, &hash(1)).is_some();
        assert_eq!([1, 2, 3, 4, 5].map(has), [false, false, true, true, true]);
        assert!(known.of(5, &hash(2)).is_none(), "of another header");
        known.note(5, hash(2), lists(1));
        assert!(known.of(5, &hash(2)).is_some() && known.of(5, &hash(1)).is_none() && has(3));
        known.note(6, hash(1), lists(BYTES_MAX));
        assert!((1..=6).all(|sequence| !has(sequence)), "lists that are too large are not kept");
        assert_eq!(held(&known.0).bytes, 0);
    }
}
