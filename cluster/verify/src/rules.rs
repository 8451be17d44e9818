//! Rules that digests depend on in addition to hashing: weights, splitting, packing, filters and
//! tiers (`docs/verification.md` sections 4 to 6).
//!
//! The rules depend on the parameters of the genesis header alone, and never on the content of a
//! disk.

use alloc::{vec, vec::Vec};
use core::{iter, ops::Range};

use coppice_types::Params;

use crate::hash::filter_hash;

/// Weight of a record (section 4). `value_len` is the length in bytes of the value that is put;
/// `None` for a tombstone.
#[must_use]
pub fn record_weight(params: &Params, key_len: usize, value_len: Option<u32>) -> u32 {
    let inline = value_len.filter(|len| *len <= params.inline_bytes).unwrap_or(0);
    weight(72, key_len).saturating_add(inline).max(params.entry_weight_min())
}

/// Weight of an entry of an inner node (section 4).
#[must_use]
pub fn entry_weight(params: &Params, separator_len: usize) -> u32 {
    weight(64, separator_len).max(params.entry_weight_min())
}

fn weight(fixed: u32, key_len: usize) -> u32 {
    fixed.saturating_add(u32::try_from(key_len).unwrap_or(u32::MAX))
}

/// The separator of two neighbouring leaves (section 4). `left` is the highest key of the first
/// leaf, `right` the lowest key of the second. Returns the shortest prefix of `right` above `left`.
#[must_use]
pub fn separator<'k>(left: &[u8], right: &'k [u8]) -> &'k [u8] {
    debug_assert!(left < right);
    let common = left.iter().zip(right).take_while(|(left, right)| left == right).count();
    right.get(..=common).unwrap_or(right)
}

/// The nodes into which the split rule (section 4) divides a list of entries with these weights:
/// ranges of entries, in order, none empty.
///
/// # Panics
/// If the weights add up to 2^64, which no list in memory does.
#[must_use]
pub fn split(params: &Params, weights: &[u32]) -> Vec<Range<usize>> {
    let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
    if weights.is_empty() {
        return Vec::new();
    }
    if is_one_node(params, total) {
        return iter::once(0..weights.len()).collect();
    }
    let pieces = u128::from(total.div_ceil(u64::from(params.node_bytes)));
    let piece_at = |before: u64| u128::from(before) * pieces / u128::from(total);
    let mut out = Vec::new();
    let (mut start, mut before, mut piece) = (0, 0, 0);
    for (index, weight) in weights.iter().enumerate() {
        if piece_at(before) != piece {
            out.push(start..index);
            start = index;
            piece = piece_at(before);
        }
        before += u64::from(*weight);
    }
    out.push(start..weights.len());
    out
}

/// Whether [`split`] makes a single node of entries with this total weight.
#[must_use]
pub fn is_one_node(params: &Params, weight: u64) -> bool {
    weight <= u64::from(params.node_bytes)
}

/// The nodes into which a merge packs entries with these weights (section 4, *Packing*): ranges of
/// entries, in order, none empty.
#[must_use]
pub fn pack(params: &Params, weights: &[u32]) -> Vec<Range<usize>> {
    let mut out = Vec::new();
    let mut packer = Packer::new(params);
    let mut start = 0;
    for (index, weight) in weights.iter().enumerate() {
        if packer.add(*weight) {
            out.push(start..index);
            start = index;
        }
    }
    if !weights.is_empty() {
        out.push(start..weights.len());
    }
    out
}

/// The rule of [`pack`], for entries that come one by one.
#[derive(Clone, Debug)]
pub struct Packer {
    node_bytes: u64,
    weight: u64,
}

impl Packer {
    /// A packer whose first node is empty.
    #[must_use]
    pub fn new(params: &Params) -> Self {
        Self { node_bytes: u64::from(params.node_bytes), weight: 0 }
    }

    /// Adds an entry. Returns true if the entry does not fit the current node, and so begins a new
    /// one.
    pub fn add(&mut self, weight: u32) -> bool {
        let weight = u64::from(weight);
        // Weight 0 means an empty node, since no entry weighs 0.
        let begins = self.weight > 0 && self.weight + weight > self.node_bytes;
        self.weight = if begins { weight } else { self.weight + weight };
        begins
    }
}

/// Bits of a filter block (section 5).
pub const FILTER_BLOCK_BITS: u64 = 512;
/// Bits that a key sets in its block.
pub const FILTER_KEY_BITS: usize = 7;

/// Number of blocks in the filter of a tree with `entries` records (section 5).
#[must_use]
pub fn filter_blocks(params: &Params, entries: u64) -> u64 {
    let bits = u128::from(entries) * u128::from(params.filter_bits);
    u64::try_from(bits.div_ceil(u128::from(FILTER_BLOCK_BITS))).unwrap_or(u64::MAX).max(1)
}

/// A key's block, and the bits that it sets there, from its [`filter_hash`] and the number of
/// blocks (section 5).
#[must_use]
pub fn filter_position(hash: (u64, u64), blocks: u64) -> (u64, [u16; FILTER_KEY_BITS]) {
    let product = u128::from(hash.0) * u128::from(blocks);
    let mut bits = [0; FILTER_KEY_BITS];
    for (index, bit) in bits.iter_mut().enumerate() {
        *bit = (hash.1 >> (9 * index) & 511) as u16;
    }
    ((product >> 64) as u64, bits)
}

/// Filter of a frozen tree. Bit b of a block is bit `b % 64` of its word `b / 64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    blocks: Vec<[u64; 8]>,
}

impl Filter {
    /// An empty filter for a tree of `entries` records.
    ///
    /// # Panics
    /// If the filter does not fit the address space.
    #[must_use]
    pub fn new(params: &Params, entries: u64) -> Self {
        let blocks = usize::try_from(filter_blocks(params, entries)).expect("filters fit into memory");
        Self { blocks: vec![[0; 8]; blocks] }
    }

    /// A filter with these blocks; `None` without blocks.
    #[must_use]
    pub fn from_blocks(blocks: Vec<[u64; 8]>) -> Option<Self> {
        if blocks.is_empty() { None } else { Some(Self { blocks }) }
    }

    /// The blocks of the filter; at least one.
    #[must_use]
    pub fn blocks(&self) -> &[[u64; 8]] {
        &self.blocks
    }

    /// Adds a key.
    pub fn insert(&mut self, key: &[u8]) {
        self.insert_hash(filter_hash(key));
    }

    /// Adds the key that has this [`filter_hash`].
    pub fn insert_hash(&mut self, hash: (u64, u64)) {
        let (block, bits) = filter_position(hash, self.blocks.len() as u64);
        let block = &mut self.blocks[block as usize];
        for bit in bits {
            block[usize::from(bit / 64)] |= 1 << (bit % 64);
        }
    }

    /// Whether the key may have been added. False only if it never was.
    #[must_use]
    pub fn admits(&self, key: &[u8]) -> bool {
        self.admits_hash(filter_hash(key))
    }

    /// [`Filter::admits`] for the key that has this [`filter_hash`].
    #[must_use]
    pub fn admits_hash(&self, hash: (u64, u64)) -> bool {
        let (block, bits) = filter_position(hash, self.blocks.len() as u64);
        let block = &self.blocks[block as usize];
        bits.iter().all(|bit| block[usize::from(bit / 64)] >> (bit % 64) & 1 == 1)
    }
}

/// Least ratio of tiers. Below it, on average, a younger tree would supersede more than an eighth
/// of the records.
const TIER_RATIO_LEAST: u64 = 4;

/// The ratio of the sizes of neighbouring trees to aim for if the oldest tree has `oldest` entries.
///
/// The tree before the oldest grows by `capacity` at a time, up to T entries, and is merged each
/// time. So for each record written, merges write T / (2 capacity) records there, and oldest / T in
/// the oldest tree. The sum is least if oldest / T is the square root of oldest / (2 capacity).
fn tier_ratio(params: &Params, oldest: u64) -> u64 {
    let most = u64::from(params.tier_ratio);
    let cheapest = (oldest / (2 * u64::from(params.capacity))).isqrt() + 1;
    cheapest.clamp(TIER_RATIO_LEAST.min(most), most)
}

/// Number of the youngest frozen trees that the tier rule (section 6) merges now; `None` if it
/// merges none. `frozen` has the number of entries of each frozen tree, youngest first.
#[must_use]
pub fn plan_merge(params: &Params, frozen: &[u64]) -> Option<usize> {
    let [first, second, ..] = frozen else { return None };
    let ratio = u128::from(tier_ratio(params, *frozen.last()?));
    let crowded = frozen.len() >= usize::from(params.tree_limit) - 1;
    if !crowded && u128::from(*first) * ratio < u128::from(*second) {
        return None;
    }
    let mut sum = u128::from(*first);
    for (index, entries) in frozen.iter().enumerate().skip(1) {
        if index >= 2 && sum * ratio < u128::from(*entries) {
            return Some(index);
        }
        sum += u128::from(*entries);
    }
    Some(frozen.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(len: usize) -> Vec<Range<usize>> {
        iter::once(0..len).collect()
    }

    #[test]
    fn weights_have_a_floor_and_count_only_inline_values() {
        let params = Params::default();
        assert_eq!(record_weight(&params, 1, None), 73);
        assert_eq!(record_weight(&params, 10, Some(128)), 210);
        assert_eq!(record_weight(&params, 10, Some(129)), 82);
        assert_eq!(entry_weight(&params, 1), 65);
        let coarse = Params { fanout: 4, ..params };
        assert_eq!(record_weight(&coarse, 1, None), 1008);
        assert_eq!(entry_weight(&coarse, 1), 1008);
    }

    #[test]
    fn a_list_is_split_evenly_by_weight_and_loses_nothing() {
        let params = Params { node_bytes: 1200, ..Params::default() };
        assert_eq!(split(&params, &[]), vec![]);
        assert_eq!(split(&params, &[600, 600]), one(2));
        // An entry belongs to the piece in which it begins, so a piece may weigh more than a node.
        assert_eq!(split(&params, &[600, 601]), one(2));
        assert_eq!(split(&params, &[601, 600]), vec![0..1, 1..2]);
        assert_eq!(split(&params, &[100; 13]), vec![0..7, 7..13]);
        // A piece in which no entry begins becomes no node.
        assert_eq!(split(&params, &[10, 5000, 10]), vec![0..2, 2..3]);
        for count in 1..200_u32 {
            let weights: Vec<u32> = (0..count).map(|index| 65 + index * 7919 % 647).collect();
            let pieces = split(&params, &weights);
            assert_eq!(
                pieces.iter().flat_map(Clone::clone).collect::<Vec<_>>(),
                (0..weights.len()).collect::<Vec<_>>()
            );
            assert!(pieces.iter().all(|piece| !piece.is_empty()));
        }
    }

    #[test]
    fn packing_fills_each_node() {
        let params = Params { node_bytes: 1200, ..Params::default() };
        assert_eq!(pack(&params, &[]), vec![]);
        assert_eq!(pack(&params, &[100; 25]), vec![0..12, 12..24, 24..25]);
        assert_eq!(pack(&params, &[5000, 100, 5000]), vec![0..1, 1..2, 2..3]);
    }

    #[test]
    fn a_filter_admits_its_keys_and_few_others() {
        let params = Params::default();
        let keys: Vec<[u8; 4]> = (0..2000_u32).map(u32::to_le_bytes).collect();
        let mut filter = Filter::new(&params, 1000);
        assert_eq!(filter.blocks().len(), 20);
        keys[..1000].iter().for_each(|key| filter.insert(key));
        assert!(keys[..1000].iter().all(|key| filter.admits(key)));
        let wrong = keys[1000..].iter().filter(|key| filter.admits(*key)).count();
        assert!(wrong < 40, "{wrong} of 1000 absent keys are admitted");
        assert_eq!(filter_blocks(&params, 0), 1);
        assert!(!Filter::new(&params, 0).admits(b"a"));
        assert_eq!(filter_position((u64::MAX, u64::MAX), 7), (6, [511; 7]));
    }

    #[test]
    fn the_tier_rule_merges_neighbours_of_like_size() {
        let params = Params { capacity: 64, ..Params::default() };
        assert_eq!(plan_merge(&params, &[]), None);
        assert_eq!(plan_merge(&params, &[64]), None);
        assert_eq!(plan_merge(&params, &[64, 64]), Some(2));
        assert_eq!(plan_merge(&params, &[64, 256]), Some(2));
        assert_eq!(plan_merge(&params, &[64, 257]), None);
        assert_eq!(plan_merge(&params, &[64, 513, 100_000]), Some(2));
        assert_eq!(plan_merge(&params, &[64, 513, 3462]), Some(3));
        assert_eq!(plan_merge(&params, &[64, 513, 3463]), Some(2));
    }

    #[test]
    fn the_ratio_of_tiers_is_the_one_that_merges_least_within_its_bounds() {
        let params = Params { capacity: 64, ..Params::default() };
        let ratios = [0, 128, 1152, 2048, 3200, 6272, 100_000].map(|oldest| tier_ratio(&params, oldest));
        assert_eq!(ratios, [4, 4, 4, 5, 6, 8, 8]);
        assert_eq!(tier_ratio(&Params { tier_ratio: 2, ..params.clone() }, 100_000), 2);
        assert_eq!(tier_ratio(&Params { tier_ratio: 64, ..params }, u64::MAX), 64);
    }
}
