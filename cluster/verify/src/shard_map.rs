//! The shard map, which says which shard holds which key, and the leaves of the state root
//! (`docs/verification.md` section 7).
//!
//! Invariant of [`ShardMap`]: the shards cover all keys without gap or overlap, in order of their
//! lows, and no id appears twice.

use alloc::vec::Vec;
use core::fmt;

use coppice_types::{
    Digest, ShardId, Version,
    codec::{Error, Reader, Writer},
};

use crate::{hash, merkle};

/// Longest key in bytes, and so the longest bound of a shard.
pub const KEY_BYTES_MAX: usize = 512;
/// The id that no shard has. In an encoded map it stands for "no parent".
pub const SHARD_NONE: ShardId = ShardId(u32::MAX);
const NO_PARENT: u32 = SHARD_NONE.0;

/// A shard and its range of keys: `low <= key < high`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Id of the shard, unique in its map.
    pub id: ShardId,
    /// The shard that was split to make this one; `None` in the map of a new ledger.
    pub parent: Option<ShardId>,
    /// Lowest key of the range, 0 to 512 bytes. The first shard's is empty.
    pub low: Vec<u8>,
    /// The key above the range, 1 to 512 bytes. `None` for the last shard, whose range has no upper
    /// bound.
    pub high: Option<Vec<u8>>,
}

impl Shard {
    /// Whether the key lies in the shard's range.
    #[must_use]
    pub fn holds(&self, key: &[u8]) -> bool {
        self.low.as_slice() <= key && self.high.as_ref().is_none_or(|high| key < high.as_slice())
    }
}

/// All shards of a ledger, in order of their lows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardMap {
    shards: Vec<Shard>,
}

/// The reason why a list of shards is not a map: the rule that it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidMap(pub &'static str);

impl fmt::Display for InvalidMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard map: {}", self.0)
    }
}

impl core::error::Error for InvalidMap {}

impl ShardMap {
    /// The map of these shards, which are in order of their lows.
    ///
    /// # Errors
    /// If they do not cover all keys exactly once, an id is used twice or is [`SHARD_NONE`], or a
    /// bound is longer than [`KEY_BYTES_MAX`].
    pub fn new(shards: Vec<Shard>) -> Result<Self, InvalidMap> {
        let (Some(first), Some(last)) = (shards.first(), shards.last()) else {
            return Err(InvalidMap("no shards"));
        };
        if !first.low.is_empty() || last.high.is_some() {
            return Err(InvalidMap("the ends are not covered"));
        }
        if shards.windows(2).any(|pair| pair[0].high.as_ref() != Some(&pair[1].low) || pair[0].low >= pair[1].low) {
            return Err(InvalidMap("ranges do not join"));
        }
        if shards.iter().any(|shard| shard.low.len() > KEY_BYTES_MAX) {
            return Err(InvalidMap("a bound is too long"));
        }
        let mut ids: Vec<u32> = shards.iter().map(|shard| shard.id.0).collect();
        ids.sort_unstable();
        if ids.windows(2).any(|pair| pair[0] == pair[1]) || ids.last() == Some(&NO_PARENT) {
            return Err(InvalidMap("an id is used twice or reserved"));
        }
        Ok(Self { shards })
    }

    /// The map of a new ledger: shards 0, 1, ... with these keys as their boundaries, in ascending
    /// order.
    ///
    /// # Errors
    /// If a key is empty or too long, or the keys do not ascend.
    pub fn from_splits(splits: &[Vec<u8>]) -> Result<Self, InvalidMap> {
        if u32::try_from(splits.len()).is_err() {
            return Err(InvalidMap("too many shards"));
        }
        let lows = core::iter::once(Vec::new()).chain(splits.iter().cloned());
        let highs = splits.iter().cloned().map(Some).chain(core::iter::once(None));
        let shards = lows
            .zip(highs)
            .zip(0..)
            .map(|((low, high), id)| Shard { id: ShardId(id), parent: None, low, high })
            .collect();
        Self::new(shards)
    }

    /// Whether the shards can hold ledgers of members: among the reserved keys no bound is longer
    /// than 2 bytes, so that keys of one place lie in one shard.
    #[must_use]
    pub fn fits_ledgers(&self) -> bool {
        self.shards.iter().all(|shard| shard.low.as_slice() >= [1].as_slice() || shard.low.len() <= 2)
    }

    /// The shards in order of their lows; at least one.
    #[must_use]
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Index of the shard that holds a key.
    #[must_use]
    pub fn index_of(&self, key: &[u8]) -> usize {
        // The first low is empty, so at least one low is at or below the key.
        self.shards.partition_point(|shard| shard.low.as_slice() <= key).saturating_sub(1)
    }

    /// The shard that holds a key.
    #[must_use]
    pub fn shard_of(&self, key: &[u8]) -> &Shard {
        &self.shards[self.index_of(key)]
    }

    /// The canonical bytes: `shard map` in section 7.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(1);
        // `new` ensures that ids are unique, so there are fewer than 2^32 shards.
        out.u32(self.shards.len() as u32);
        for shard in &self.shards {
            out.u32(shard.id.0);
            out.u32(shard.parent.map_or(NO_PARENT, |parent| parent.0));
            out.str16(&shard.low);
            write_bound(&mut out, shard.high.as_deref());
        }
        out.into_bytes()
    }

    /// Decodes the canonical bytes.
    ///
    /// # Errors
    /// If the bytes are not a shard map, or the map breaks a rule of [`ShardMap::new`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut input = Reader::new(bytes);
        if input.u8()? != 1 {
            return Err(Error::Malformed("shard map format"));
        }
        let count = input.u32()?;
        let mut shards = Vec::new();
        for _ in 0..count {
            let id = ShardId(input.u32()?);
            let parent = input.u32()?;
            shards.push(Shard {
                id,
                parent: (parent != NO_PARENT).then_some(ShardId(parent)),
                low: input.str16()?.to_vec(),
                high: read_bound(&mut input)?.map(<[u8]>::to_vec),
            });
        }
        input.finish()?;
        Self::new(shards).map_err(|error| Error::Malformed(error.0))
    }

    /// Hash of the map, which every header carries.
    #[must_use]
    pub fn hash(&self) -> Digest {
        hash::shard_map_hash(&self.encode())
    }

    /// The state leaves of version 0, in which every shard is empty.
    #[must_use]
    pub fn genesis_leaves(&self) -> Vec<StateLeaf> {
        let leaf = |shard: &Shard| StateLeaf {
            shard: shard.id,
            low: shard.low.clone(),
            high: shard.high.clone(),
            version: Version(0),
            digest: hash::empty_shard_digest(),
        };
        self.shards.iter().map(leaf).collect()
    }
}

/// A leaf of the state root: one shard's state at a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateLeaf {
    /// Id of the shard.
    pub shard: ShardId,
    /// Lowest key of the shard's range.
    pub low: Vec<u8>,
    /// The key above the shard's range; `None` means no upper bound.
    pub high: Option<Vec<u8>>,
    /// The newest version, at or below that of the state, in which the shard received a Prepare; 0
    /// at genesis.
    pub version: Version,
    /// Digest of the shard's forest at that version (section 6).
    pub digest: Digest,
}

impl StateLeaf {
    /// Hash of the leaf in the state root's list.
    #[must_use]
    pub fn hash(&self) -> Digest {
        hash::state_leaf_hash(self.shard, &self.low, self.high.as_deref(), self.version, &self.digest)
    }
}

/// The state root: the list root of all shards' leaves, in order of their lows (section 7).
#[must_use]
pub fn state_root(leaves: &[StateLeaf]) -> Digest {
    merkle::mth(&leaves.iter().map(StateLeaf::hash).collect::<Vec<_>>())
}

pub(crate) fn write_bound(out: &mut Writer, bound: Option<&[u8]>) {
    out.flag(bound.is_some());
    if let Some(bound) = bound {
        out.str16(bound);
    }
}

pub(crate) fn read_bound<'a>(input: &mut Reader<'a>) -> Result<Option<&'a [u8]>, Error> {
    if input.flag("bound flag")? { Ok(Some(input.str16()?)) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> ShardMap {
        ShardMap::from_splits(&[b"g".to_vec(), b"p".to_vec()]).expect("the splits ascend")
    }

    #[test]
    fn every_key_has_one_shard() {
        let map = map();
        for (key, shard) in [(&b"a"[..], 0), (b"fz", 0), (b"g", 1), (b"g\0", 1), (b"p", 2), (b"\xff\xff", 2)] {
            assert_eq!(map.shard_of(key).id, ShardId(shard));
            assert_eq!(map.shards().iter().filter(|shard| shard.holds(key)).count(), 1);
        }
    }

    #[test]
    fn a_map_survives_encoding() {
        let map = map();
        assert_eq!(ShardMap::decode(&map.encode()), Ok(map.clone()));
        let mut longer = map.encode();
        longer.push(0);
        assert_eq!(ShardMap::decode(&longer), Err(Error::Trailing));
        for len in 0..map.encode().len() {
            assert!(ShardMap::decode(&map.encode()[..len]).is_err());
        }
    }

    #[test]
    fn shards_that_do_not_cover_all_keys_once_are_not_a_map() {
        let good = map().shards().to_vec();
        let refused = |change: &dyn Fn(&mut Vec<Shard>)| {
            let mut shards = good.clone();
            change(&mut shards);
            ShardMap::new(shards).is_err()
        };
        assert!(refused(&|shards| shards.clear()));
        assert!(refused(&|shards| shards.truncate(2)));
        assert!(refused(&|shards| shards.swap(0, 1)));
        assert!(refused(&|shards| shards[0].low = b"a".to_vec()));
        assert!(refused(&|shards| shards[1].low = b"h".to_vec()));
        assert!(refused(&|shards| shards[1].high = None));
        assert!(refused(&|shards| shards[2].high = Some(b"z".to_vec())));
        assert!(refused(&|shards| shards[2].id = ShardId(0)));
        assert!(refused(&|shards| shards[2].id = ShardId(u32::MAX)));
        assert!(ShardMap::from_splits(&[b"p".to_vec(), b"g".to_vec()]).is_err());
        assert!(ShardMap::from_splits(&[b"p".to_vec(), b"p".to_vec()]).is_err());
        assert!(ShardMap::from_splits(&[Vec::new()]).is_err());
        assert!(ShardMap::from_splits(&[alloc::vec![1; 513]]).is_err());
    }
}
