//! The encoding of trees: one for each list, and none beyond the limits.

use alloc::vec;

use super::*;
use crate::hash::sha256;

fn record(key: &'static [u8]) -> Entry<'static> {
    Entry::Record { key: Cow::Borrowed(key), stamp: Stamp::new(1, 300), body: RecordBody::put(key) }
}

fn list() -> TreeList<'static> {
    let tombstone = Entry::Record { key: Cow::Borrowed(b"b"), stamp: Stamp::new(0, 2), body: RecordBody::Tombstone };
    let leaf = NodePart { count: 3, entries: vec![(0, record(b"a")), (2, tombstone)], hashes: vec![sha256(b"1")] };
    let child = |separator: &'static [u8], child| Entry::Child { separator: Cow::Borrowed(separator), child };
    let entries = vec![(0, child(b"", Subtree::Expanded(leaf))), (1, child(b"k", Subtree::Hash(sha256(b"hidden"))))];
    let root = NodePart { count: 200, entries, hashes: vec![sha256(b"2"), sha256(b"3")] };
    TreeList {
        trees: vec![
            Tree { level: 1, entries: 1000, root: Subtree::Expanded(root) },
            Tree { level: 0, entries: 0, root: Subtree::Hash(crate::hash::empty_root_hash()) },
        ],
    }
}

#[test]
fn a_list_of_trees_has_one_encoding() {
    let bytes = list().encode();
    assert_eq!(TreeList::decode(&bytes), Ok(list()));
    for len in 0..bytes.len() {
        assert!(TreeList::decode(&bytes[..len]).is_err(), "{len} bytes");
    }
    assert_eq!(TreeList::decode(&[&bytes[..], &[0]].concat()), Err(Error::Trailing));
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        if let Ok(other) = TreeList::decode(&flipped) {
            assert_ne!(other, list(), "bit {bit}");
            assert_eq!(other.encode(), flipped, "bit {bit}");
        }
    }
}

#[test]
fn trees_beyond_the_limits_are_refused() {
    let hash = [&[0][..], &[7; 32]].concat();
    let trees = |count: u8, level: u8| [&[count][..], &[&[level, 0][..], &hash].concat().repeat(count.into())].concat();
    assert!(TreeList::decode(&trees(16, LEVEL_MAX)).is_ok());
    assert_eq!(TreeList::decode(&trees(0, 0)), Err(Error::Malformed("number of trees")));
    assert_eq!(TreeList::decode(&trees(17, 0)), Err(Error::Malformed("number of trees")));
    assert_eq!(TreeList::decode(&trees(1, LEVEL_MAX + 1)), Err(Error::Malformed("level of a tree")));
    let leaf = |key: Vec<u8>| {
        let entry = Entry::Record { key: Cow::Owned(key), stamp: Stamp::new(0, 1), body: RecordBody::Tombstone };
        let node = NodePart { count: 1, entries: vec![(0, entry)], hashes: Vec::new() };
        TreeList { trees: vec![Tree { level: 0, entries: 1, root: Subtree::Expanded(node) }] }.encode()
    };
    assert!(TreeList::decode(&leaf(vec![1; KEY_BYTES_MAX])).is_ok());
    for key in [Vec::new(), vec![1; KEY_BYTES_MAX + 1]] {
        assert_eq!(TreeList::decode(&leaf(key)), Err(Error::Malformed("length of a key")));
    }
}

/// Nothing is reserved for entries that the bytes can't hold.
#[test]
fn a_claimed_number_of_entries_without_bytes_is_refused() {
    let mut out = Writer::new();
    out.u8(1);
    out.u8(0);
    out.short(u64::MAX);
    out.u8(1);
    out.short(u16::MAX.into());
    out.short(u16::MAX.into());
    assert_eq!(TreeList::decode(&out.into_bytes()), Err(Error::Truncated));
}

#[test]
#[should_panic(expected = "leaves hold records")]
fn a_record_in_an_inner_node_is_not_encoded() {
    let node = NodePart { count: 1, entries: vec![(0, record(b"a"))], hashes: Vec::new() };
    let _ = TreeList { trees: vec![Tree { level: 1, entries: 1, root: Subtree::Expanded(node) }] }.encode();
}
