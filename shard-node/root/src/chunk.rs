//! The index of 256 headers: where the record of each lies in the journal, and which state leaves it changed.
//!
//! It begins with all leaves as they were before its first header, so the leaves after any header are found in one file.

use std::collections::BTreeMap;

use coppice_types::{
    Digest, ShardId,
    codec::{self, Reader, Writer},
};
use twox_hash::XxHash3_64;

use crate::{
    Error,
    command::{len32, list},
    journal::{End, Place},
    tiles::{TILE_WIDTH, number_path},
    types::ShardState,
};

/// First bytes of an index file.
const MAGIC: &[u8; 8] = b"copidx01";
/// Bytes behind the encoding.
const CHECKSUM_BYTES: usize = 8;

/// States of some shards.
pub(crate) type States = BTreeMap<ShardId, ShardState>;

/// What the index knows of one header.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Indexed {
    place: Place,
    changed: States,
}

/// The index of one chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// All leaves before the first header; none before genesis.
    base: States,
    headers: Vec<Indexed>,
}

/// File of a full chunk's index.
pub(crate) fn index_path(chunk: u64) -> String {
    format!("index/{}", number_path(chunk))
}

impl Chunk {
    /// An index that continues from these leaves.
    pub(crate) fn new(base: States) -> Self {
        Self { base, headers: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.headers.len()
    }

    pub(crate) fn push(&mut self, place: Place, changed: States) {
        assert!(self.headers.len() < TILE_WIDTH, "a full chunk was sealed before");
        self.headers.push(Indexed { place, changed });
    }

    /// Where the record of a header lies.
    pub(crate) fn place(&self, at: usize) -> Option<Place> {
        self.headers.get(at).map(|header| header.place)
    }

    /// All leaves after the header `at`.
    pub(crate) fn states_after(&self, at: usize) -> States {
        let mut states = self.base.clone();
        self.headers.iter().take(at + 1).for_each(|header| states.extend(&header.changed));
        states
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        encode_states(&self.base, out);
        out.u32(len32(self.headers.len()));
        for header in &self.headers {
            out.u64(header.place.offset);
            out.u32(header.place.len);
            encode_states(&header.changed, out);
        }
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, codec::Error> {
        let base = decode_states(input)?;
        let headers = list(input, |input| {
            let place = Place { offset: input.u64()?, len: input.u32()? };
            Ok(Indexed { place, changed: decode_states(input)? })
        })?;
        if headers.len() > TILE_WIDTH {
            return Err(codec::Error::Malformed("headers of a chunk"));
        }
        Ok(Self { base, headers })
    }

    /// The bytes of a full chunk's file; `journal` is the end of the chunk's full journal.
    pub(crate) fn file(&self, journal: &End) -> Vec<u8> {
        assert_eq!(self.headers.len(), TILE_WIDTH, "only full chunks become files");
        let mut out = Writer::new();
        out.raw(MAGIC);
        out.u64(journal.chunk);
        out.u64(journal.len);
        out.digest(&journal.chain);
        self.encode(&mut out);
        let mut bytes = out.into_bytes();
        let checksum = XxHash3_64::oneshot(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads and checks the file of chunk `number`.
    pub(crate) fn from_file(number: u64, bytes: &[u8]) -> Result<(Self, End), Error> {
        let damaged = |what| Error::corrupted(&index_path(number), what);
        let body = checked(bytes).ok_or_else(|| damaged("the checksum differs"))?;
        let decode = || -> Result<(Self, End), codec::Error> {
            let mut input = Reader::new(body);
            if input.take(MAGIC.len())? != MAGIC {
                return Err(codec::Error::Malformed("magic"));
            }
            let journal = End { chunk: input.u64()?, len: input.u64()?, chain: input.digest()? };
            let chunk = Self::decode(&mut input)?;
            input.finish()?;
            Ok((chunk, journal))
        };
        let (chunk, journal) = decode().map_err(|_| damaged("malformed"))?;
        if journal.chunk != number || chunk.len() != TILE_WIDTH {
            return Err(damaged("not the index of this chunk"));
        }
        Ok((chunk, journal))
    }
}

/// The bytes before a trailing checksum, if it is theirs.
pub(crate) fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (body, checksum) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM_BYTES)?)?;
    (XxHash3_64::oneshot(body).to_le_bytes() == checksum).then_some(body)
}

pub(crate) fn encode_states(states: &States, out: &mut Writer) {
    out.u32(len32(states.len()));
    for (shard, state) in states {
        out.u32(shard.0);
        state.encode(out);
    }
}

pub(crate) fn decode_states(input: &mut Reader<'_>) -> Result<States, codec::Error> {
    let states = list(input, |input| Ok((ShardId(input.u32()?), ShardState::decode(input)?)))?;
    if !states.is_sorted_by(|a, b| a.0 < b.0) {
        return Err(codec::Error::Malformed("order of shards"));
    }
    Ok(states.into_iter().collect())
}

/// A file that never changes again, with what names its content: SHA-256, for journals the chain over their records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sealed {
    pub(crate) kind: Kind,
    pub(crate) number: u64,
    pub(crate) len: u64,
    pub(crate) hash: Digest,
}

/// The kinds of files that are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tile(u8),
    Bundle,
    Index,
    Journal,
}

impl Sealed {
    pub(crate) fn name(&self) -> String {
        match self.kind {
            Kind::Tile(level) => crate::tiles::tile_path(usize::from(level), self.number),
            Kind::Bundle => crate::tiles::bundle_path(self.number),
            Kind::Index => index_path(self.number),
            Kind::Journal => crate::journal::journal_path(self.number),
        }
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u8(match self.kind {
            Kind::Tile(level) => level,
            Kind::Bundle => 0x10,
            Kind::Index => 0x11,
            Kind::Journal => 0x12,
        });
        out.u64(self.number);
        out.u64(self.len);
        out.digest(&self.hash);
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, codec::Error> {
        let kind = match input.u8()? {
            level @ 0..8 => Kind::Tile(level),
            0x10 => Kind::Bundle,
            0x11 => Kind::Index,
            0x12 => Kind::Journal,
            _ => return Err(codec::Error::Malformed("kind of a sealed file")),
        };
        Ok(Self { kind, number: input.u64()?, len: input.u64()?, hash: input.digest()? })
    }
}
