//! The index of a chunk of 256 headers: where each header's record lies in the journal, and which
//! state leaves the header changed.
//!
//! The index begins with all leaves as they were before its first header. So one file is enough to
//! find the leaves after any of its headers.

use std::collections::BTreeMap;

use coppice_types::{
    ShardId,
    codec::{self, Reader, Writer},
};

use crate::{
    Error,
    codec::{checked, len32, list, with_checksum},
    journal::{End, Place},
    tiles::{TILE_WIDTH, number_path},
    types::ShardState,
};

/// First bytes of an index file.
const MAGIC: &[u8; 8] = b"copidx01";

/// The states of some shards.
pub(crate) type States = BTreeMap<ShardId, ShardState>;

/// The index entry of one header.
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

/// Name of the file with a full chunk's index.
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
        assert!(place.offset >= self.journal_len(), "the records of headers follow each other");
        self.headers.push(Indexed { place, changed });
    }

    /// The place of a header's record.
    pub(crate) fn place(&self, at: usize) -> Option<Place> {
        self.headers.get(at).map(|header| header.place)
    }

    /// Where the record of the last header ends in the chunk's journal.
    pub(crate) fn journal_len(&self) -> u64 {
        self.headers.last().map_or(0, |header| header.place.offset.saturating_add(header.place.len.into()))
    }

    /// All leaves after the header at this place.
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

    /// The bytes of a full chunk's file. `journal` is the end of the chunk's full journal.
    pub(crate) fn file(&self, journal: &End) -> Vec<u8> {
        assert_eq!(self.headers.len(), TILE_WIDTH, "only full chunks become files");
        assert_eq!(self.journal_len(), journal.len, "a chunk's journal ends with its last header");
        let mut out = Writer::new();
        out.raw(MAGIC);
        out.u64(journal.chunk);
        out.u64(journal.len);
        out.digest(&journal.chain);
        self.encode(&mut out);
        with_checksum(out.into_bytes())
    }

    /// Reads and checks the file of chunk `number`. Returns the end of the chunk's journal, too.
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

#[cfg(test)]
mod tests {
    use coppice_types::{Digest, Version};

    use super::*;

    fn state(version: u64) -> ShardState {
        ShardState { version: Version(version), digest: Digest([version as u8; 32]) }
    }

    /// A full chunk whose header `n` changes shard `n % 3` to version `n`, and its journal's end.
    fn full() -> (Chunk, End) {
        let mut chunk = Chunk::new(States::from([(ShardId(7), state(99))]));
        for at in 0..TILE_WIDTH as u64 {
            let changed = States::from([(ShardId(at as u32 % 3), state(at))]);
            chunk.push(Place { offset: 10 * at, len: 10 }, changed);
        }
        let end = End { chunk: 5, len: chunk.journal_len(), chain: Digest([1; 32]) };
        (chunk, end)
    }

    #[test]
    fn a_full_chunk_survives_its_file() {
        let (chunk, end) = full();
        let bytes = chunk.file(&end);
        assert_eq!(Chunk::from_file(5, &bytes).expect("its own bytes"), (chunk, end));
        assert!(Chunk::from_file(6, &bytes).is_err(), "it is the index of chunk 5");
    }

    #[test]
    fn the_states_after_a_header_are_the_newest_up_to_it() {
        let (chunk, _) = full();
        let expected = [(ShardId(0), 3), (ShardId(1), 4), (ShardId(2), 2), (ShardId(7), 99)];
        let expected = States::from(expected.map(|(shard, version)| (shard, state(version))));
        assert_eq!(chunk.states_after(4), expected);
    }
}
