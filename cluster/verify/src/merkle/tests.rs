//! Paths and proofs of every small list lead to its root, and nothing else does.

use super::*;
use crate::hash::sha256;

fn leaves(count: u64) -> Vec<Digest> {
    (0..count).map(|index| sha256(&index.to_le_bytes())).collect()
}

#[test]
fn inclusion_paths_of_every_small_list_lead_to_the_root_and_nothing_else_does() {
    for size in 1..=40 {
        let leaves = leaves(size);
        let root = mth(&leaves);
        for index in 0..size {
            let leaf = &leaves[index as usize];
            let path = inclusion_path(&leaves, index);
            assert_eq!(verify_inclusion(index, size, leaf, &path, &root), Ok(()));
            for other in (0..size + 2).filter(|other| *other != index) {
                assert!(verify_inclusion(other, size, leaf, &path, &root).is_err());
            }
            let mut longer = path.clone();
            longer.push(root);
            assert!(verify_inclusion(index, size, leaf, &longer, &root).is_err());
            if let Some((_, shorter)) = path.split_last() {
                assert!(verify_inclusion(index, size, leaf, shorter, &root).is_err());
            }
        }
    }
}

#[test]
fn consistency_paths_of_every_pair_of_small_lists_join_their_roots_only() {
    for new in 0..=40 {
        let leaves = leaves(new);
        let root = mth(&leaves);
        for old in 0..=new {
            let old_root = mth(&leaves[..old as usize]);
            let path = consistency_path(&leaves, old);
            assert_eq!(verify_consistency(old, new, &old_root, &root, &path), Ok(()), "{old} {new}");
            assert!(verify_consistency(old, new, &sha256(b"x"), &root, &path).is_err());
            assert!(old == 0 || verify_consistency(old, new, &old_root, &sha256(b"x"), &path).is_err());
            let mut longer = path.clone();
            longer.push(root);
            assert!(verify_consistency(old, new, &old_root, &root, &longer).is_err());
            if let Some((_, shorter)) = path.split_last() {
                assert!(verify_consistency(old, new, &old_root, &root, shorter).is_err());
            }
            assert!(old == new || verify_consistency(new, old, &root, &old_root, &path).is_err());
        }
    }
}

#[test]
fn a_tree_proves_each_leaf_as_the_list_does() {
    for count in 1..40 {
        let leaves = leaves(count);
        let tree = ListTree::new(leaves.clone());
        for index in 0..count {
            assert_eq!(tree.proof(index), list_proof(&leaves, &[index]), "{index} of {count}");
            assert_eq!(tree.path(index), inclusion_path(&leaves, index), "{index} of {count}");
        }
    }
}

#[test]
fn list_proofs_of_every_subset_of_small_lists_lead_to_the_root_only() {
    for size in 1_u64..=9 {
        let leaves = leaves(size);
        let root = mth(&leaves);
        for subset in 1_u64..1 << size {
            let indices: Vec<u64> = (0..size).filter(|index| subset >> index & 1 == 1).collect();
            let revealed: Vec<_> = indices.iter().map(|index| (*index, leaves[*index as usize])).collect();
            let hashes = list_proof(&leaves, &indices);
            assert_eq!(list_root(size, &revealed, &hashes), Ok(root));
            let mut longer = hashes.clone();
            longer.push(root);
            assert_eq!(list_root(size, &revealed, &longer), Err(Error::Long));
            if let Some((_, shorter)) = hashes.split_last() {
                assert_eq!(list_root(size, &revealed, shorter), Err(Error::Short));
            }
            let mut swapped = revealed.clone();
            swapped.reverse();
            assert!(revealed.len() < 2 || list_root(size, &swapped, &hashes) == Err(Error::Order));
        }
        assert_eq!(list_root(size, &[], &[root]), Err(Error::Order));
        assert_eq!(list_root(size, &[(size, root)], &[root]), Err(Error::OutOfRange));
    }
    assert_eq!(list_root(0, &[], &[]), Ok(empty_root()));
    assert_eq!(list_root(0, &[], &[empty_root()]), Err(Error::Long));
    assert_eq!(list_root(0, &[(0, empty_root())], &[]), Err(Error::OutOfRange));
}

#[test]
fn huge_sizes_from_outside_end_at_once() {
    let leaf = sha256(b"leaf");
    assert_eq!(list_root(u64::MAX, &[(u64::MAX - 1, leaf)], &[leaf; 3]), Err(Error::Short));
    assert!(list_root(u64::MAX, &[(0, leaf)], &[leaf; 64]).is_ok());
    let ends = [(0, leaf), (u64::MAX - 1, leaf)];
    assert!(list_root(u64::MAX, &ends, &[leaf; 125]).is_ok());
    assert_eq!(list_root(u64::MAX, &ends, &[leaf; 126]), Err(Error::Long));
    assert_eq!(root_from_inclusion(u64::MAX - 1, u64::MAX, &leaf, &[leaf; 3]), Err(Error::Short));
    assert_eq!(verify_consistency(u64::MAX - 1, u64::MAX, &leaf, &leaf, &[leaf; 65]), Err(Error::Long));
}

#[test]
fn parts_from_complete_subtrees_equal_parts_from_leaves() {
    let leaves = leaves(300);
    let mut complete =
        |level: u32, index: u64| Ok::<_, core::convert::Infallible>(of_slice(&leaves, index << level, 1 << level));
    for size in [1, 2, 3, 255, 256, 257, 300] {
        let subtree = |start, size| subtree_root_with(start, size, &mut complete);
        assert_eq!(
            inclusion_path_with(size, size - 1, subtree),
            Ok(inclusion_path(&leaves[..size as usize], size - 1))
        );
        let subtree = |start, size| subtree_root_with(start, size, &mut complete);
        assert_eq!(
            consistency_path_with(size, size / 2, subtree),
            Ok(consistency_path(&leaves[..size as usize], size / 2))
        );
        assert_eq!(subtree_root_with(0, size, &mut complete), Ok(mth(&leaves[..size as usize])));
    }
}
