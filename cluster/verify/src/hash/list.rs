//! The root of a list of hashes, as RFC 6962 defines it (`docs/verification.md` section 2). Below
//! [`crate::merkle`], since hashes of nodes contain such roots.

use alloc::vec::Vec;

use coppice_types::Digest;

use super::message::sha256;
use crate::sha256::{LANES, pair_each};

pub(super) const LIST_NODE_TAG: u8 = 0x01;

/// Hash of an inner node of any Merkle list (section 2, tag `01`).
#[must_use]
pub fn list_node_hash(left: &Digest, right: &Digest) -> Digest {
    let [hash] = pair_each(LIST_NODE_TAG, [[left, right]]);
    hash
}

/// [`list_node_hash`] of neighbours: `above[i]` becomes the node over `below[2 * i]` and `below[2 *
/// i + 1]`. Further hashes of `below` are ignored.
///
/// # Panics
/// If `below` has fewer than two hashes for each one of `above`.
pub fn list_node_hashes(below: &[Digest], above: &mut [Digest]) {
    let (pairs, _) = below[..2 * above.len()].as_chunks();
    let (pairs, above) = list_nodes_by::<LANES>(pairs, above);
    let (pairs, above) = list_nodes_by::<{ LANES.div_ceil(2) }>(pairs, above);
    list_nodes_by::<1>(pairs, above);
}

/// Hashes pairs in groups of `N` while there are enough of them, and returns those that are left.
#[inline]
fn list_nodes_by<'a, const N: usize>(
    pairs: &'a [[Digest; 2]],
    above: &'a mut [Digest],
) -> (&'a [[Digest; 2]], &'a mut [Digest]) {
    let ((groups, rest), (groups_above, rest_above)) = (pairs.as_chunks::<N>(), above.as_chunks_mut::<N>());
    for (group, above) in groups.iter().zip(groups_above) {
        *above = pair_each(LIST_NODE_TAG, group.each_ref().map(<[Digest; 2]>::each_ref));
    }
    (rest, rest_above)
}

/// Root of the empty list: the SHA-256 of nothing.
#[must_use]
pub fn empty_root() -> Digest {
    sha256(b"")
}

/// Root of a list of leaf hashes: `MTH` of section 2. The root of one leaf is that leaf's hash.
#[must_use]
pub fn mth(leaves: &[Digest]) -> Digest {
    match leaves {
        [] => empty_root(),
        [leaf] => *leaf,
        _ => {
            let mut level = above(leaves);
            while level.len() > 1 {
                level = above(&level);
            }
            level[0]
        }
    }
}

/// The nodes above neighbours in pairs. An odd last element has none.
pub(crate) fn pairs_above(level: &[Digest]) -> Vec<Digest> {
    let mut above = alloc::vec![Digest::default(); level.len() / 2];
    list_node_hashes(level, &mut above);
    above
}

/// The next level of a list. An odd last element moves up as it is.
fn above(level: &[Digest]) -> Vec<Digest> {
    let mut above = pairs_above(level);
    above.extend_from_slice(&level[2 * above.len()..]);
    above
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(count: u64) -> Vec<Digest> {
        (0..count).map(|index| sha256(&index.to_le_bytes())).collect()
    }

    #[test]
    fn roots_are_those_that_rfc_6962_defines() {
        /// Section 2.1: a list is cut at the largest power of two below its length.
        fn defined(leaves: &[Digest]) -> Digest {
            match leaves.len() {
                0 => sha256(b""),
                1 => leaves[0],
                len => {
                    let (left, right) = leaves.split_at(1 << (len - 1).ilog2());
                    list_node_hash(&defined(left), &defined(right))
                }
            }
        }
        for size in 0..300 {
            let leaves = leaves(size);
            assert_eq!(mth(&leaves), defined(&leaves), "{size} leaves");
        }
    }

    #[test]
    fn list_nodes_are_the_hashes_of_their_tag_and_two_digests() {
        let below: Vec<Digest> = (0..41_u8).map(|seed| sha256(&[seed])).collect();
        let node = |pair: &[Digest; 2]| sha256(&[&[0x01][..], &pair[0].0, &pair[1].0].concat());
        let above: Vec<Digest> = below.as_chunks().0.iter().map(node).collect();
        for count in 0..=above.len() {
            let mut out = alloc::vec![Digest::default(); count];
            list_node_hashes(&below, &mut out);
            assert_eq!(out, above[..count], "{count} nodes");
        }
        assert_eq!(list_node_hash(&below[4], &below[5]), above[2]);
    }
}
