//! Marks: hash bytes of a cached leaf's keys, in one line of the processor's cache.
//!
//! A binary search in a leaf outside of the processor's caches waits for memory at almost every
//! step. Marks hold one byte of each key's hash side by side. They exclude most keys that the leaf
//! does not have, and lead directly to a key that it has.

use twox_hash::XxHash3_64;

use crate::node::Node;

/// Limit on the number of records of a leaf with marks.
const RECORDS_MAX: usize = 64;

/// One byte of the hash of each key of a leaf, in key order.
#[derive(Debug)]
pub(crate) struct Marks {
    count: u8,
    marks: [u8; RECORDS_MAX],
}

impl Marks {
    /// The marks of a leaf; `None` if it has too many records.
    pub(crate) fn of(leaf: &Node) -> Option<Self> {
        assert_eq!(leaf.level(), 0);
        let count = u8::try_from(leaf.len()).ok().filter(|count| usize::from(*count) <= RECORDS_MAX)?;
        let mut marks = [0; RECORDS_MAX];
        for (index, mark) in marks[..leaf.len()].iter_mut().enumerate() {
            *mark = of_key(leaf.key(index));
        }
        Some(Self { count, marks })
    }

    /// Index of the leaf's record with this key. If no mark matches, the leaf is not read. Each key
    /// with the same mark, perhaps chosen on purpose, costs one comparison.
    pub(crate) fn search(&self, leaf: &Node, key: &[u8]) -> Option<usize> {
        let mark = of_key(key);
        let marks = self.marks[..usize::from(self.count)].iter().enumerate();
        marks.filter(|(_, other)| **other == mark).map(|(index, _)| index).find(|index| leaf.key(*index) == key)
    }
}

fn of_key(key: &[u8]) -> u8 {
    XxHash3_64::oneshot(key) as u8
}

#[cfg(test)]
mod tests {
    use coppice_types::{Stamp, Version};

    use super::*;
    use crate::{
        node::{Body, Draft, HashedRecord, LeafRecord},
        place::page::{PageFile, Pid},
    };

    fn leaf(keys: &[Vec<u8>]) -> Node {
        let record = |key| HashedRecord::new(LeafRecord { key, stamp: Stamp::new(0, 1), body: Body::Tombstone });
        let records: Vec<HashedRecord<'_>> = keys.iter().map(|key| record(key.as_slice())).collect();
        let draft = Draft::all_new(Version(1), 0, &records);
        let pid = Pid::new(PageFile::Data, 4, draft.pages());
        draft.place(pid).0
    }

    #[test]
    fn keys_are_found_and_others_with_their_marks_are_not() {
        let keys: Vec<Vec<u8>> = (0..RECORDS_MAX).map(|number| format!("key/{number:03}").into_bytes()).collect();
        for count in [1, 7, RECORDS_MAX] {
            let leaf = leaf(&keys[..count]);
            let marks = Marks::of(&leaf).expect("few enough");
            for (index, key) in keys.iter().enumerate() {
                assert_eq!(marks.search(&leaf, key), Some(index).filter(|index| *index < count));
            }
            let others = (0..5000).map(|number| format!("other/{number}").into_bytes());
            let alike: Vec<Vec<u8>> = others.filter(|key| marks.marks[..count].contains(&of_key(key))).collect();
            assert!(!alike.is_empty());
            assert!(alike.iter().all(|key| marks.search(&leaf, key).is_none()));
        }
    }

    #[test]
    fn a_leaf_of_too_many_records_has_none() {
        let keys: Vec<Vec<u8>> = (0..=RECORDS_MAX).map(|number| vec![number as u8, 1]).collect();
        assert!(Marks::of(&leaf(&keys)).is_none());
    }
}
