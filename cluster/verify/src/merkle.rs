//! Merkle lists as RFC 6962 hashes them, their list proofs, and the log proofs of RFC 9162
//! (`docs/verification.md` section 2).
//!
//! All functions take leaf *hashes*; only the caller knows what a leaf is. Indices and sizes are
//! `u64`. A size from outside never makes a loop longer than 64 steps or than the number of hashes
//! at hand.

use alloc::vec::{self, Vec};
use core::{fmt, iter::Peekable, slice};

use coppice_types::Digest;

pub use crate::hash::list::{empty_root, mth};
use crate::hash::{
    list::{list_node_hash, pairs_above},
    plan::{HashPlan, Planned},
};

/// The reason why a Merkle proof proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The index is not below the size, or the smaller size is above the larger one.
    OutOfRange,
    /// Revealed indices are missing or do not ascend.
    Order,
    /// The proof has fewer hashes than its shape needs.
    Short,
    /// The proof has more hashes than its shape needs.
    Long,
    /// The hashes lead to a different root.
    Mismatch,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutOfRange => "index out of range",
            Self::Order => "revealed indices do not ascend",
            Self::Short => "proof hashes are missing",
            Self::Long => "proof hashes are left over",
            Self::Mismatch => "the proof leads to another root",
        })
    }
}

impl core::error::Error for Error {}

/// The list proof of the leaves `indices`, which ascend: the roots of the largest subtrees without
/// any of them, from left to right (section 2). [`list_root`] checks it.
///
/// # Panics
/// If an index is beyond the list, or the indices do not ascend.
#[must_use]
pub fn list_proof(leaves: &[Digest], indices: &[u64]) -> Vec<Digest> {
    assert!(indices.is_sorted_by(|a, b| a < b), "indices ascend");
    assert!(indices.last().is_none_or(|last| *last < leaves.len() as u64), "indices are in the list");
    let mut out = Vec::new();
    if !leaves.is_empty() {
        prove_list(leaves, 0, indices, &mut out);
    }
    out
}

/// A list with the roots of all its complete subtrees, for provers that prove many leaves one by
/// one.
#[derive(Clone, Debug)]
pub struct ListTree {
    /// The leaves, then the roots of the complete subtrees of 2, 4, 8, ... leaves.
    levels: Vec<Vec<Digest>>,
}

impl ListTree {
    /// Computes the tree of these leaf hashes.
    #[must_use]
    pub fn new(leaves: Vec<Digest>) -> Self {
        let mut levels = alloc::vec![leaves];
        while let Some(below) = levels.last().filter(|below| below.len() > 1) {
            let above = pairs_above(below);
            levels.push(above);
        }
        Self { levels }
    }

    /// [`list_proof`] of one leaf.
    ///
    /// # Panics
    /// If the index is beyond the list.
    #[must_use]
    pub fn proof(&self, index: u64) -> Vec<Digest> {
        let size = self.levels[0].len() as u64;
        assert!(index < size, "the leaf is in the list");
        let (mut start, mut size) = (0, size);
        let (mut left, mut right) = (Vec::new(), Vec::new());
        while size > 1 {
            let half = split_point(size);
            if index < start + half {
                right.push(self.part(start + half, size - half));
                size = half;
            } else {
                left.push(self.part(start, half));
                start += half;
                size -= half;
            }
        }
        left.extend(right.into_iter().rev());
        left
    }

    /// [`inclusion_path`] of one leaf.
    ///
    /// # Panics
    /// If the index is beyond the list.
    #[must_use]
    pub fn path(&self, index: u64) -> Vec<Digest> {
        let part = |start: u64, size: u64| Ok::<_, core::convert::Infallible>(self.part(start, size));
        match inclusion_path_with(self.levels[0].len() as u64, index, part) {
            Ok(path) => path,
            Err(never) => match never {},
        }
    }

    fn part(&self, start: u64, size: u64) -> Digest {
        if size.is_power_of_two() {
            return self.levels[size.trailing_zeros() as usize][(start / size) as usize];
        }
        let half = split_point(size);
        list_node_hash(&self.part(start, half), &self.part(start + half, size - half))
    }
}

fn prove_list(leaves: &[Digest], start: u64, indices: &[u64], out: &mut Vec<Digest>) {
    if indices.is_empty() {
        out.push(mth(leaves));
    } else if leaves.len() > 1 {
        let half = split_point(leaves.len() as u64);
        let (left, right) = leaves.split_at(half as usize);
        let (before, after) = indices.split_at(indices.partition_point(|index| *index < start + half));
        prove_list(left, start, before, out);
        prove_list(right, start + half, after, out);
    }
}

/// The root of a list of `size` leaves, from the revealed leaves (index and hash, ascending) and
/// the hashes of their list proof (section 2). An empty list reveals nothing and has no proof
/// hashes.
///
/// # Errors
/// [`Error::OutOfRange`] if an index is not below `size`, [`Error::Order`] if the indices do not
/// ascend or none is revealed, [`Error::Short`] or [`Error::Long`] if hashes are missing or left
/// over.
pub fn list_root(size: u64, revealed: &[(u64, Digest)], hashes: &[Digest]) -> Result<Digest, Error> {
    let mut plan = HashPlan::new(revealed.len() + hashes.len());
    let revealed = revealed.iter().map(|(index, leaf)| (*index, plan.known(*leaf))).collect();
    let root = plan_list_root(&mut plan, 0, size, revealed, hashes)?;
    Ok(*plan.run().get(&root))
}

/// [`list_root`] as steps of a plan, for the entries of a node of this level.
pub(crate) fn plan_list_root(
    plan: &mut HashPlan<'_>,
    level: u8,
    size: u64,
    revealed: Vec<(u64, Planned)>,
    hashes: &[Digest],
) -> Result<Planned, Error> {
    if size == 0 {
        return match (&*revealed, hashes) {
            ([], []) => Ok(plan.known(empty_root())),
            ([], _) => Err(Error::Long),
            _ => Err(Error::OutOfRange),
        };
    }
    let (last, _) = revealed.last().ok_or(Error::Order)?;
    if *last >= size {
        return Err(Error::OutOfRange);
    }
    if !revealed.is_sorted_by(|a, b| a.0 < b.0) {
        return Err(Error::Order);
    }
    let mut shown = Shown { level, revealed: revealed.into_iter().peekable(), hashes: hashes.iter() };
    let root = shown.part_root(plan, 0, size)?;
    if shown.hashes.len() == 0 { Ok(root) } else { Err(Error::Long) }
}

/// The leaves and hashes of a list proof that are not consumed yet, from left to right.
struct Shown<'p> {
    level: u8,
    revealed: Peekable<vec::IntoIter<(u64, Planned)>>,
    hashes: slice::Iter<'p, Digest>,
}

impl Shown<'_> {
    /// The root of the part [`start`, `start + size`). All leaves and hashes before it have been
    /// consumed.
    fn part_root(&mut self, plan: &mut HashPlan<'_>, start: u64, size: u64) -> Result<Planned, Error> {
        match self.revealed.peek() {
            Some((index, _)) if *index < start + size => {}
            _ => return self.hashes.next().map(|hash| plan.known(*hash)).ok_or(Error::Short),
        }
        if size == 1 {
            let (_, leaf) = self.revealed.next().expect("it was just seen");
            return Ok(leaf);
        }
        let half = split_point(size);
        let left = self.part_root(plan, start, half)?;
        let right = self.part_root(plan, start + half, size - half)?;
        Ok(plan.list_node(self.level, size, &left, &right))
    }
}

/// The inclusion path of leaf `index`, in the order of RFC 9162 (2.1.3.1).
///
/// # Panics
/// If the index is beyond the list.
#[must_use]
pub fn inclusion_path(leaves: &[Digest], index: u64) -> Vec<Digest> {
    let subtree = |start: u64, size: u64| Ok::<_, core::convert::Infallible>(of_slice(leaves, start, size));
    match inclusion_path_with(leaves.len() as u64, index, subtree) {
        Ok(path) => path,
        Err(never) => match never {},
    }
}

/// The consistency path in the order of RFC 9162 (2.1.4.1): it shows that the first `old` leaves
/// are a prefix of the list. It is empty if `old` is 0 or the whole list.
///
/// # Panics
/// If `old` is more than the list has.
#[must_use]
pub fn consistency_path(leaves: &[Digest], old: u64) -> Vec<Digest> {
    let subtree = |start: u64, size: u64| Ok::<_, core::convert::Infallible>(of_slice(leaves, start, size));
    match consistency_path_with(leaves.len() as u64, old, subtree) {
        Ok(path) => path,
        Err(never) => match never {},
    }
}

fn of_slice(leaves: &[Digest], start: u64, size: u64) -> Digest {
    mth(&leaves[start as usize..(start + size) as usize])
}

/// [`inclusion_path`] for a list that is not in memory. `subtree(start, size)` returns the root of
/// the part [`start`, `start + size`).
///
/// # Errors
/// Those of `subtree`.
///
/// # Panics
/// If `index` is not below `size`.
pub fn inclusion_path_with<E>(
    size: u64,
    index: u64,
    mut subtree: impl FnMut(u64, u64) -> Result<Digest, E>,
) -> Result<Vec<Digest>, E> {
    assert!(index < size, "the entry is in the log");
    let (mut start, mut size) = (0, size);
    let mut path = Vec::new();
    while size > 1 {
        let half = split_point(size);
        if index < start + half {
            path.push(subtree(start + half, size - half)?);
            size = half;
        } else {
            path.push(subtree(start, half)?);
            start += half;
            size -= half;
        }
    }
    path.reverse();
    Ok(path)
}

/// [`consistency_path`] for a list that is not in memory. `subtree(start, size)` returns the root
/// of the part [`start`, `start + size`).
///
/// # Errors
/// Those of `subtree`.
///
/// # Panics
/// If `old` is more than `size`.
pub fn consistency_path_with<E>(
    size: u64,
    old: u64,
    mut subtree: impl FnMut(u64, u64) -> Result<Digest, E>,
) -> Result<Vec<Digest>, E> {
    assert!(old <= size, "the old log is a prefix of the new one");
    if old == 0 || old == size {
        return Ok(Vec::new());
    }
    let (mut start, mut size) = (0, size);
    let mut path = Vec::new();
    // Invariant: the part [start, start + size) contains the end of the old log.
    while start + size != old {
        let half = split_point(size);
        if old <= start + half {
            path.push(subtree(start + half, size - half)?);
            size = half;
        } else {
            path.push(subtree(start, half)?);
            start += half;
            size -= half;
        }
    }
    if start != 0 {
        path.push(subtree(start, size)?);
    }
    path.reverse();
    Ok(path)
}

/// The root of the part [`start`, `start + size`) of a list, from the roots of its complete
/// subtrees. `complete(level, index)` returns the root of the leaves [`index << level`, `(index +
/// 1) << level`), which a log in tiles has at hand.
///
/// `start` must be a multiple of the least power of two that is `size` or more. That holds for
/// every part that the provers above ask for.
///
/// # Errors
/// Those of `complete`.
///
/// # Panics
/// If the part is empty, or a complete subtree of it does not start at a multiple of its size.
pub fn subtree_root_with<E>(
    start: u64,
    size: u64,
    complete: &mut impl FnMut(u32, u64) -> Result<Digest, E>,
) -> Result<Digest, E> {
    assert!(size > 0, "a part has leaves");
    if size.is_power_of_two() {
        let level = size.trailing_zeros();
        assert!(start.is_multiple_of(size), "a complete subtree starts at a multiple of its size");
        return complete(level, start >> level);
    }
    let half = split_point(size);
    let left = subtree_root_with(start, half, complete)?;
    let right = subtree_root_with(start + half, size - half, complete)?;
    Ok(list_node_hash(&left, &right))
}

/// The root to which an inclusion path leads (RFC 9162, 2.1.3.2).
///
/// # Errors
/// If `index` is not below `size`, or the path is too short or too long.
pub fn root_from_inclusion(index: u64, size: u64, leaf: &Digest, path: &[Digest]) -> Result<Digest, Error> {
    if index >= size {
        return Err(Error::OutOfRange);
    }
    let (mut first, mut last) = (index, size - 1);
    let mut root = *leaf;
    for hash in path {
        if last == 0 {
            return Err(Error::Long);
        }
        if first & 1 == 1 || first == last {
            root = list_node_hash(hash, &root);
            while first & 1 == 0 && first != 0 {
                first >>= 1;
                last >>= 1;
            }
        } else {
            root = list_node_hash(&root, hash);
        }
        first >>= 1;
        last >>= 1;
    }
    if last == 0 { Ok(root) } else { Err(Error::Short) }
}

/// Checks that the leaf is number `index` of the list of `size` leaves with this root.
///
/// # Errors
/// Those of [`root_from_inclusion`], and [`Error::Mismatch`] if the path leads to a different root.
pub fn verify_inclusion(index: u64, size: u64, leaf: &Digest, path: &[Digest], root: &Digest) -> Result<(), Error> {
    if root_from_inclusion(index, size, leaf, path)? == *root { Ok(()) } else { Err(Error::Mismatch) }
}

/// Checks that the list of `old` leaves is a prefix of the list of `new` leaves (RFC 9162,
/// 2.1.4.2). Equal sizes, and an `old` of 0, need an empty path.
///
/// # Errors
/// [`Error::OutOfRange`] if `old` is above `new`, [`Error::Short`] or [`Error::Long`] if hashes are
/// missing or left over, [`Error::Mismatch`] if the path leads to a different root.
pub fn verify_consistency(
    old: u64,
    new: u64,
    old_root: &Digest,
    new_root: &Digest,
    path: &[Digest],
) -> Result<(), Error> {
    if old > new {
        return Err(Error::OutOfRange);
    }
    if old == new || old == 0 {
        let known = if old == 0 { &empty_root() } else { new_root };
        let new_holds = new != 0 || *new_root == empty_root();
        return match path {
            [] if old_root == known && new_holds => Ok(()),
            [] => Err(Error::Mismatch),
            _ => Err(Error::Long),
        };
    }
    let (mut first, mut last) = (old - 1, new - 1);
    while first & 1 == 1 {
        first >>= 1;
        last >>= 1;
    }
    // A complete old log is itself the first hash.
    let (seed, rest) = match path.split_first() {
        None => return Err(Error::Short),
        Some(_) if old.is_power_of_two() => (old_root, path),
        Some((seed, rest)) => (seed, rest),
    };
    let (mut from_old, mut from_new) = (*seed, *seed);
    for hash in rest {
        if last == 0 {
            return Err(Error::Long);
        }
        if first & 1 == 1 || first == last {
            from_old = list_node_hash(hash, &from_old);
            from_new = list_node_hash(hash, &from_new);
            while first & 1 == 0 && first != 0 {
                first >>= 1;
                last >>= 1;
            }
        } else {
            from_new = list_node_hash(&from_new, hash);
        }
        first >>= 1;
        last >>= 1;
    }
    match (last, from_old == *old_root && from_new == *new_root) {
        (0, true) => Ok(()),
        (0, false) => Err(Error::Mismatch),
        _ => Err(Error::Short),
    }
}

/// The largest power of two below `size`, which is at least 2.
fn split_point(size: u64) -> u64 {
    1 << (size - 1).ilog2()
}

#[cfg(test)]
mod tests;
