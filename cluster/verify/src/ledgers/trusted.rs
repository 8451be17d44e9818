//! Trusted anchors: the hashes of a ledger's list, as their holder has verified them (section 18,
//! *Trusted anchors*).
//!
//! A list is cut into blocks of 256 journals. An anchor holds the root of each full block, and the
//! hashes behind the last one. So the proof of a journal ends at its block. It has at most 8
//! hashes, however large the ledger is, and needs no checkpoint.
//!
//! Invariant of [`TrustedAnchor`]: the numbers of its blocks and of the hashes behind them follow
//! from its size.

use alloc::vec::Vec;

use coppice_types::{
    ClusterId, Digest, LedgerId,
    codec::{Error, Reader, Writer},
};

use super::{leaf::Leaf, list::TILE_WIDTH};
use crate::merkle::{empty_root, mth, root_from_inclusion};

/// Number of journals in a block.
pub const BLOCK_JOURNALS: u64 = 256;
/// Number of journals below a hash of a tile behind the last block.
const TILE_JOURNALS: u64 = TILE_WIDTH as u64;
/// First bytes of the file of an anchor.
const MAGIC: &[u8; 8] = b"coptra01";

/// A list whose hashes its holder has verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedAnchor {
    /// Id of the cluster.
    pub cluster: ClusterId,
    /// Id of the ledger.
    pub ledger: LedgerId,
    size: u64,
    /// Roots of the full blocks.
    blocks: Vec<Digest>,
    /// Behind them: roots of 16 journals each, then hashes of leaves.
    rest: Vec<Digest>,
}

/// Number of hashes behind the last full block of a list.
fn rest_of(size: u64) -> usize {
    let behind = size % BLOCK_JOURNALS;
    (behind / TILE_JOURNALS + behind % TILE_JOURNALS) as usize
}

/// Number of hashes in the path of a journal below an anchor of this size.
#[must_use]
pub fn path_len(jsn: u64, size: u64) -> u32 {
    if jsn / BLOCK_JOURNALS < size / BLOCK_JOURNALS {
        BLOCK_JOURNALS.trailing_zeros()
    } else if jsn / TILE_JOURNALS < size / TILE_JOURNALS {
        TILE_JOURNALS.trailing_zeros()
    } else {
        0
    }
}

impl TrustedAnchor {
    /// An anchor in the empty list.
    #[must_use]
    pub fn new(cluster: ClusterId, ledger: LedgerId) -> Self {
        Self { cluster, ledger, size: 0, blocks: Vec::new(), rest: Vec::new() }
    }

    /// Number of journals below the anchor.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Number of full blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Root of the list.
    #[must_use]
    pub fn root(&self) -> Digest {
        let tiles = (self.size % BLOCK_JOURNALS / TILE_JOURNALS) as usize;
        let (tiles, leaves) = self.rest.split_at(tiles);
        let mut right = None;
        for row in [leaves, tiles, &self.blocks] {
            // The part to the right is smaller than a subtree of this row, so it takes the place of
            // one more hash.
            let row: Vec<Digest> = row.iter().copied().chain(right).collect();
            right = (!row.is_empty()).then(|| mth(&row));
        }
        right.unwrap_or_else(empty_root)
    }

    /// The anchor at a larger size: with these blocks behind those that it has, and these hashes
    /// behind the last one. The caller has verified that the list of `size` journals has this root,
    /// and that it continues the list of the anchor.
    ///
    /// # Errors
    /// If the hashes do not give that root.
    pub fn grown(&self, size: u64, blocks: &[Digest], rest: &[Digest], root: &Digest) -> Result<Self, Error> {
        let grown = Self { size, blocks: [&self.blocks[..], blocks].concat(), rest: rest.to_vec(), ..*self };
        let fits = size >= self.size
            && grown.blocks() == size / BLOCK_JOURNALS
            && rest.len() == rest_of(size)
            && grown.root() == *root;
        if fits { Ok(grown) } else { Err(Error::Malformed("hashes of a list")) }
    }

    /// Whether the list has this leaf, by the path to the anchor's hash above it.
    #[must_use]
    pub fn holds(&self, leaf: &Leaf, path: &[Digest]) -> bool {
        let jsn = leaf.jsn;
        if leaf.ledger != self.ledger || jsn >= self.size || path.len() != path_len(jsn, self.size) as usize {
            return false;
        }
        let below = 1_u64 << path.len();
        root_from_inclusion(jsn % below, below, &leaf.hash(), path).is_ok_and(|root| self.above(jsn) == Some(&root))
    }

    /// The hash that a journal's path leads to.
    fn above(&self, jsn: u64) -> Option<&Digest> {
        let behind = usize::try_from(jsn.saturating_sub(self.blocks() * BLOCK_JOURNALS)).ok()?;
        let tiles = (self.size % BLOCK_JOURNALS) as usize / TILE_WIDTH;
        match path_len(jsn, self.size) {
            0 => self.rest.get(tiles + behind.checked_sub(tiles * TILE_WIDTH)?),
            len if 1 << len == TILE_JOURNALS => self.rest.get(behind / TILE_WIDTH),
            _ => self.blocks.get(usize::try_from(jsn / BLOCK_JOURNALS).ok()?),
        }
    }

    /// The bytes of the anchor's file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.raw(MAGIC);
        out.raw(&self.cluster.0);
        out.raw(&self.ledger.0);
        out.u64(self.size);
        self.blocks.iter().chain(&self.rest).for_each(|hash| out.digest(hash));
        out.into_bytes()
    }

    /// Decodes the file of an anchor.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut input = Reader::new(bytes);
        if input.take(MAGIC.len())? != MAGIC {
            return Err(Error::Malformed("first bytes of a trusted anchor"));
        }
        let (cluster, ledger) = (ClusterId(input.bytes16()?), LedgerId(input.bytes16()?));
        let size = input.u64()?;
        let blocks = size / BLOCK_JOURNALS;
        // The length is checked before any room is taken.
        let hashes = input.remaining() / size_of::<Digest>();
        if u64::try_from(hashes).ok().and_then(|hashes| hashes.checked_sub(blocks)) != Some(rest_of(size) as u64) {
            return Err(Error::Malformed("hashes of a trusted anchor"));
        }
        let mut hashes = (0..hashes).map(|_| input.digest()).collect::<Result<Vec<_>, _>>()?;
        input.finish()?;
        let rest = hashes.split_off(hashes.len() - rest_of(size));
        Ok(Self { cluster, ledger, size, blocks: hashes, rest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ledgers::Edge, merkle::inclusion_path};

    const LEDGER: LedgerId = LedgerId([3; 16]);

    fn leaf(jsn: u64) -> Leaf {
        Leaf { ledger: LEDGER, jsn, ..super::super::leaf::tests::leaf() }
    }

    fn roots(hashes: &[Digest], width: usize) -> Vec<Digest> {
        hashes.chunks_exact(width).map(mth).collect()
    }

    /// The anchor's hashes in a list: roots of full blocks, and what lies behind.
    fn cut(hashes: &[Digest]) -> (Vec<Digest>, Vec<Digest>) {
        let behind = &hashes[hashes.len() / 256 * 256..];
        let leaves = &behind[behind.len() / 16 * 16..];
        (roots(hashes, 256), [&roots(behind, 16)[..], leaves].concat())
    }

    #[test]
    fn an_anchor_has_the_root_of_its_list_and_holds_its_journals_by_at_most_8_hashes() {
        let leaves: Vec<Leaf> = (0..1100).map(leaf).collect();
        let hashes: Vec<Digest> = leaves.iter().map(Leaf::hash).collect();
        let mut anchor = TrustedAnchor::new(ClusterId([1; 16]), LEDGER);
        assert_eq!(anchor.root(), mth(&[]));
        for size in [1, 15, 16, 17, 255, 256, 257, 300, 511, 512, 700, 1024, 1099] {
            let list = &hashes[..size];
            let (blocks, rest) = cut(list);
            let new = &blocks[anchor.blocks() as usize..];
            anchor = anchor.grown(size as u64, new, &rest, &mth(list)).expect("it is the list");
            assert_eq!(TrustedAnchor::decode(&anchor.encode()), Ok(anchor.clone()));
            for jsn in (0..size).step_by(31).chain([size - 1]) {
                let len = path_len(jsn as u64, size as u64);
                let width = 1 << len;
                let path = inclusion_path(&list[jsn / width * width..][..width], (jsn % width) as u64);
                assert!(path.len() <= 8 && path.len() == len as usize);
                assert!(anchor.holds(&leaves[jsn], &path), "journal {jsn} of {size}");
                // Neither another journal, nor another number, ledger or path.
                assert!(path.is_empty() || !anchor.holds(&leaves[jsn + 1], &path));
                assert!(!anchor.holds(&Leaf { lane: 9, ..leaves[jsn].clone() }, &path));
                assert!(!anchor.holds(&Leaf { ledger: LedgerId([4; 16]), ..leaves[jsn].clone() }, &path));
                assert!(!anchor.holds(&leaves[jsn], &[&path[..], &[Digest::default()]].concat()));
                assert!(path.is_empty() || !anchor.holds(&leaves[jsn], &path[1..]));
            }
        }
    }

    #[test]
    fn an_anchor_grows_only_to_the_root_that_was_proven() {
        let hashes: Vec<Digest> = (0..600).map(|jsn| leaf(jsn).hash()).collect();
        let (blocks, rest) = cut(&hashes);
        let empty = TrustedAnchor::new(ClusterId([1; 16]), LEDGER);
        let root = mth(&hashes);
        let anchor = empty.grown(600, &blocks, &rest, &root).expect("it is the list");
        let mut edge = Edge::default();
        hashes.iter().for_each(|hash| edge.push(*hash, &mut Vec::new()));
        assert_eq!(anchor.root(), edge.root());
        let other = [blocks[1], blocks[0]];
        for (what, size, blocks, rest, root) in [
            ("blocks in another order", 600, &other[..], &rest[..], &root),
            ("a block too few", 600, &blocks[1..], &rest, &root),
            ("hashes too few", 600, &blocks, &rest[1..], &root),
            ("another size", 599, &blocks, &rest, &root),
            ("another root", 600, &blocks, &rest, &hashes[0]),
        ] {
            assert!(empty.grown(size, blocks, rest, root).is_err(), "{what}");
        }
        assert!(anchor.grown(599, &[], &cut(&hashes[..599]).1, &mth(&hashes[..599])).is_err(), "a smaller size");
        let bytes = anchor.encode();
        for len in 0..bytes.len() {
            assert!(TrustedAnchor::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        let mut huge = bytes.clone();
        huge[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(TrustedAnchor::decode(&huge).is_err());
        assert!(TrustedAnchor::decode(&[&bytes[..], &[0; 32]].concat()).is_err());
    }
}
