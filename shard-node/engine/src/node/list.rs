//! Merkle lists with all their inner nodes, kept in memory for a tree node. With them, a change of
//! one entry hashes `log2(n)` pairs instead of n, and a proof hashes nothing.
//!
//! In the tree of RFC 6962 over n leaves, each level pairs its neighbours, and an odd last hash
//! moves up unchanged. So hashes to the left of the first change stay the same when entries are
//! added or removed.

use coppice_types::Digest;
use coppice_verify::hash;

/// Levels of the longest list: a node has fewer than 2^16 entries.
const LEVELS_MAX: usize = 17;

/// The hashes of a list of at least one leaf, level by level from the leaves to the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MerkleList {
    len: usize,
    hashes: Vec<Digest>,
}

/// Start and width of each level, up to the root.
fn levels(len: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut next = Some((0, len));
    std::iter::from_fn(move || {
        let (start, width) = next?;
        next = (width > 1).then_some((start + width, width.div_ceil(2)));
        Some((start, width))
    })
}

impl MerkleList {
    pub(crate) fn new(leaves: Vec<Digest>) -> Self {
        Self::grown(leaves, None)
    }

    /// An empty vector with capacity for a whole list over this many leaves. The leaves are pushed
    /// first.
    pub(crate) fn room(len: usize) -> Vec<Digest> {
        Vec::with_capacity(levels(len).map(|(_, width)| width).sum())
    }

    /// The list over these leaves. If `before` is given, the first leaves equal those of the other
    /// list, as many as its number says.
    pub(crate) fn grown(leaves: Vec<Digest>, before: Option<(&Self, usize)>) -> Self {
        assert!(!leaves.is_empty(), "a node has entries");
        assert!(leaves.len() < 1 << 16, "a node counts its entries by 16 bits");
        let len = leaves.len();
        let mut hashes = leaves;
        let all = levels(len).map(|(_, width)| width).sum();
        hashes.reserve_exact(all - len);
        hashes.resize(all, Digest::default());
        let (mut same, old) = before.map_or((0, None), |(old, same)| (same, Some(old)));
        let mut old_levels = levels(old.map_or(0, |old| old.len)).skip(1);
        for (start, width) in levels(len) {
            if width == 1 {
                break;
            }
            let (below, above) = hashes[start..].split_at_mut(width);
            same /= 2;
            if let (Some(old), Some((old_start, _))) = (old, old_levels.next()) {
                above[..same].copy_from_slice(&old.hashes[old_start..old_start + same]);
            } else {
                same = 0;
            }
            hash::list_node_hashes(&below[2 * same..], &mut above[same..width / 2]);
            if width % 2 == 1 {
                above[width / 2] = below[width - 1];
            }
        }
        Self { len, hashes }
    }

    /// Replaces leaves, given by ascending indices, and rehashes their paths.
    pub(crate) fn replace(&mut self, leaves: &mut Vec<(usize, Digest)>) {
        assert!(leaves.is_sorted_by(|a, b| a.0 < b.0));
        assert!(leaves.last().is_none_or(|last| last.0 < self.len));
        for (start, width) in levels(self.len) {
            leaves.iter().for_each(|(index, hash)| self.hashes[start + index] = *hash);
            leaves.dedup_by_key(|(index, _)| *index / 2);
            if width == 1 {
                break;
            }
            for (index, hash) in leaves.iter_mut() {
                *index /= 2;
                let left = start + 2 * *index;
                *hash = if 2 * *index + 1 < width {
                    hash::list_node_hash(&self.hashes[left], &self.hashes[left + 1])
                } else {
                    self.hashes[left]
                };
            }
        }
    }

    pub(crate) fn root(&self) -> &Digest {
        self.hashes.last().expect("a list has a leaf")
    }

    pub(crate) fn leaves(&self) -> &[Digest] {
        &self.hashes[..self.len]
    }

    pub(crate) fn size_bytes(&self) -> usize {
        size_of::<Self>() + self.hashes.capacity() * size_of::<Digest>()
    }

    /// The proof of the leaves `indices`, which ascend; it equals that of
    /// `coppice_verify::merkle::list_proof`.
    pub(crate) fn proof(&self, indices: &[u64]) -> Vec<Digest> {
        let mut all = [(0, 0); LEVELS_MAX];
        let count = all.iter_mut().zip(levels(self.len)).map(|(slot, level)| *slot = level).count();
        // Each hash of the proof covers unshown leaves, next to the path of a shown one.
        let mut out = Vec::with_capacity((self.len - indices.len()).min(indices.len() * (count - 1)).max(1));
        self.prove(&all[..count], 0, indices, &mut out);
        out
    }

    fn prove(&self, levels: &[(usize, usize)], at: usize, indices: &[u64], out: &mut Vec<Digest>) {
        let [below @ .., (start, _)] = levels else { return };
        if indices.is_empty() {
            out.push(self.hashes[start + at]);
            return;
        }
        let Some(&(_, width)) = below.last() else { return };
        let (left, right) = (2 * at, 2 * at + 1);
        let middle = (right as u64) << (below.len() - 1);
        let (before, after) = indices.split_at(indices.partition_point(|index| *index < middle));
        // An odd last hash has moved up and has no sibling.
        self.prove(below, left, before, out);
        if right < width {
            self.prove(below, right, after, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use coppice_verify::merkle;

    use super::*;

    fn leaves(len: usize, seed: usize) -> Vec<Digest> {
        (0..len).map(|index| hash::sha256(&(index * 1000 + seed).to_le_bytes())).collect()
    }

    #[test]
    fn lists_have_the_roots_and_proofs_of_rfc_6962() {
        for len in 1..70 {
            let leaves = leaves(len, 0);
            let list = MerkleList::new(leaves.clone());
            assert_eq!(*list.root(), merkle::mth(&leaves), "{len} leaves");
            assert_eq!(list.leaves(), leaves);
            for index in 0..len as u64 {
                for indices in [vec![index], (0..=index).collect(), (index..len as u64).step_by(3).collect()] {
                    assert_eq!(list.proof(&indices), merkle::list_proof(&leaves, &indices), "{indices:?} of {len}");
                }
            }
        }
    }

    #[test]
    fn replaced_leaves_lead_to_the_root_of_a_new_list() {
        for len in 1..40 {
            for step in 1..8 {
                let (mut changed, fresh) = (leaves(len, 0), leaves(len, 1));
                let mut list = MerkleList::new(changed.clone());
                let mut replaced: Vec<(usize, Digest)> =
                    (step - 1..len).step_by(step).map(|index| (index, fresh[index])).collect();
                replaced.iter().for_each(|(index, hash)| changed[*index] = *hash);
                list.replace(&mut replaced);
                assert_eq!(list, MerkleList::new(changed), "every {step}th of {len}");
            }
        }
    }

    #[test]
    fn a_list_that_shares_a_prefix_is_the_same_as_a_new_one() {
        for (old_len, len) in (1..20).flat_map(|old| (1..40).map(move |len| (old, len))) {
            let (old, fresh) = (leaves(old_len, 0), leaves(len, 1));
            let before = MerkleList::new(old.clone());
            for same in 0..=old_len.min(len) {
                let mixed = [&old[..same], &fresh[same..]].concat();
                assert_eq!(MerkleList::grown(mixed.clone(), Some((&before, same))), MerkleList::new(mixed));
            }
        }
    }
}
