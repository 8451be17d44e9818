//! The shard map: which shard holds which key (`docs/verification.md` section 7), and the leaves of the state root.
//!
//! Invariant of [`ShardMap`]: the shards cover all keys without gap or overlap, in order of their lows, and no id appears twice.

use alloc::vec::Vec;
use core::fmt;

use coppice_types::{
    Digest, ShardId, Version,
    codec::{Error, Reader, Writer},
};

use crate::{hash, merkle};

/// Longest key, and so longest bound of a shard, in bytes.
pub const KEY_BYTES_MAX: usize = 512;
/// Names no shard: it stands for "no parent" in a map.
pub const SHARD_NONE: ShardId = ShardId(u32::MAX);
const NO_PARENT: u32 = SHARD_NONE.0;

/// A shard and its keys: `low <= key < high`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its name.
    pub id: ShardId,
    /// The shard that was split to make it.
    pub parent: Option<ShardId>,
    /// Lowest key.
    pub low: Vec<u8>,
    /// The key above the highest; none means no bound.
    pub high: Option<Vec<u8>>,
}

impl Shard {
    /// The shard holds this key.
    #[must_use]
    pub fn holds(&self, key: &[u8]) -> bool {
        self.low.as_slice() <= key && self.high.as_ref().is_none_or(|high| key < high.as_slice())
    }
}

/// All shards in order of their lows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardMap {
    shards: Vec<Shard>,
}

/// Why shards are no map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidMap(pub &'static str);

impl fmt::Display for InvalidMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard map: {}", self.0)
    }
}

impl core::error::Error for InvalidMap {}

impl ShardMap {
    /// A map of these shards, in order.
    ///
    /// # Errors
    /// If they don't cover all keys exactly once, an id is used twice, or a bound is too long.
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

    /// The map of a new ledger: shards 0, 1, ... parted by these keys, which ascend.
    ///
    /// # Errors
    /// If a key is empty or too long, or they don't ascend.
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

    /// The shards in order of their lows.
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

    /// The canonical bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u8(1);
        // `new` and `decode` see to it that the ids, and so the shards, are fewer than 2^32.
        out.u32(self.shards.len() as u32);
        for shard in &self.shards {
            out.u32(shard.id.0);
            out.u32(shard.parent.map_or(NO_PARENT, |parent| parent.0));
            out.str16(&shard.low);
            write_bound(&mut out, shard.high.as_deref());
        }
        out.into_bytes()
    }

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// If the bytes are no shard map.
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

    /// The hash that headers carry.
    #[must_use]
    pub fn hash(&self) -> Digest {
        hash::shard_map_hash(&self.encode())
    }

    /// The leaves of version 0: every shard empty.
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

/// What the state root says of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateLeaf {
    /// The shard.
    pub shard: ShardId,
    /// Lowest key.
    pub low: Vec<u8>,
    /// The key above the highest; none means no bound.
    pub high: Option<Vec<u8>>,
    /// The newest version, at or below that of the state, that touched the shard.
    pub version: Version,
    /// The shard's forest at that version.
    pub digest: Digest,
}

impl StateLeaf {
    /// The hash in the state root's list.
    #[must_use]
    pub fn hash(&self) -> Digest {
        hash::state_leaf_hash(self.shard, &self.low, self.high.as_deref(), self.version, &self.digest)
    }
}

/// The root of all shards' leaves, in order of their lows.
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
    fn shards_that_do_not_cover_all_keys_once_are_no_map() {
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
