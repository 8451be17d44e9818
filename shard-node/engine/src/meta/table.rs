//! The encoding of the whole table: the first block of a meta log (`docs/format.md` section "Meta
//! log").

use coppice_env::bug::{Bug, planted};
use coppice_types::{
    Epoch, Params, ShardId, Version,
    codec::{Error as CodecError, Reader, Writer},
};

use super::{
    MergeRecord, Meta, VersionRecord,
    erasures::Erasures,
    record::{decode_list, encode_list},
    rows::Block,
};
use crate::place::{
    page::PageFile,
    refs::{BlobRef, Segment},
    space::{PAGES_MAX, Space},
};

impl Meta {
    /// Encodes the whole table as the first block of a meta log. Reserved pages are encoded as
    /// free, since nothing durable names them. Only a stage reserves patches, and it ends before
    /// anything is written.
    pub(crate) fn encode(&self, out: &mut Writer) {
        assert!(!self.reserved.iter().any(|pid| pid.is_patch()), "no stage is at work");
        assert!(self.going.is_none(), "a table is written between checkpoints");
        out.u32(self.shard.0);
        self.params.encode(out);
        out.u64(self.generation);
        out.u64(self.epoch.0);
        out.u64(self.boundary.0);
        out.u64(self.next_id);
        for file in PageFile::ALL {
            let mut space = self.spaces[file as usize].clone();
            for pid in self.reserved.iter().filter(|pid| pid.file() == file) {
                let released = space.release(pid.first(), pid.pages());
                assert!(released, "{pid:?} is reserved and free");
            }
            out.u64(space.high);
            encode_list(&space.free.iter().collect::<Vec<_>>(), out, |(start, len), out| {
                out.u64(*start);
                out.u64(*len);
            });
            encode_list(&space.limbo.iter().collect::<Vec<_>>(), out, |limbo, out| {
                out.u64(limbo.generation);
                out.u64(limbo.start);
                out.u64(limbo.len);
            });
        }
        let mut patches: Vec<_> = self.patches.iter().collect();
        patches.sort_unstable();
        encode_list(&patches, out, |(page, used), out| {
            out.u64(**page);
            out.u16(**used);
        });
        encode_list(&self.segments.iter().collect::<Vec<_>>(), out, |(id, segment), out| {
            out.u32(**id);
            out.u64(segment.end);
            out.u64(segment.live);
            out.u64(segment.dead_at.unwrap_or(0));
        });
        encode_list(&self.merges.values().collect::<Vec<_>>(), out, |merge, out| merge.encode(out));
        encode_list(&self.versions.values().collect::<Vec<_>>(), out, |version, out| version.encode(out));
        encode_list(&self.blocks.values().collect::<Vec<_>>(), out, |block, out| block.encode(out));
        if self.params.journals_kept {
            encode_list(&self.journals.iter().collect::<Vec<_>>(), out, |((version, id), blob), out| {
                out.u64(version.0);
                out.u64(*id);
                blob.encode(out);
            });
        }
        if self.has_erasures() {
            self.erasures.encode(out);
        }
    }

    /// Whether the table has erased keys. They are encoded behind it.
    pub(crate) fn has_erasures(&self) -> bool {
        !self.erasures.is_empty() && !planted(Bug::ErasuresLost)
    }

    /// Decodes the bytes that [`Self::encode`] wrote.
    pub(crate) fn decode(input: &mut Reader<'_>, with_erasures: bool) -> Result<Self, CodecError> {
        let shard = ShardId(input.u32()?);
        let mut meta = Self::empty(shard, Params::decode(input)?);
        meta.generation = input.u64()?;
        if meta.generation == u64::MAX {
            return Err(CodecError::Malformed("generation"));
        }
        meta.epoch = Epoch(input.u64()?);
        meta.boundary = Version(input.u64()?);
        meta.next_id = input.u64()?;
        for file in PageFile::ALL {
            meta.spaces[file as usize] = decode_space(input)?;
        }
        let patches = decode_list(input, |input| Ok((input.u64()?, input.u16()?)))?;
        let high = meta.spaces[PageFile::Patches as usize].high;
        if !patches.is_sorted_by(|a, b| a.0 < b.0) || patches.iter().any(|(page, used)| *page >= high || *used == 0) {
            return Err(CodecError::Malformed("pages of patches"));
        }
        meta.patches = patches.into_iter().collect();
        for (id, segment) in decode_list(input, |input| {
            let id = input.u32()?;
            let (end, live) = (input.u64()?, input.u64()?);
            let dead_at = Some(input.u64()?).filter(|generation| *generation > 0);
            Ok((id, Segment { end, live, dead_at }))
        })? {
            meta.segments.insert(id, segment);
        }
        for merge in decode_list(input, MergeRecord::decode)? {
            meta.merges.insert(merge.id, merge);
        }
        for version in decode_list(input, VersionRecord::decode)? {
            let follows = meta.versions.last_key_value().is_none_or(|(last, _)| *last < version.id);
            if !follows || version.id >= meta.next_id {
                return Err(CodecError::Malformed("version number"));
            }
            for merge in &version.installs {
                meta.merges.get_mut(merge).ok_or(CodecError::Malformed("installed merge"))?.installed_by += 1;
            }
            if version.decided {
                meta.decided.insert(version.stamp.version, version.id);
            } else {
                meta.staged.insert(version.id);
            }
            meta.versions.insert(version.id, version);
        }
        for block in decode_list(input, Block::decode)? {
            let follows = meta.blocks.last_key_value().is_none_or(|(_, last)| last.follows(&block));
            if !follows {
                return Err(CodecError::Malformed("order of blocks"));
            }
            for merge in &block.installs {
                meta.merges.get_mut(merge).ok_or(CodecError::Malformed("installed merge"))?.installed_by += 1;
            }
            meta.blocks.insert(block.first.version, block);
        }
        if meta.decided.is_empty() {
            return Err(CodecError::Malformed("no decided version"));
        }
        if meta.params.journals_kept {
            let journal = |input: &mut Reader<'_>| Ok(((Version(input.u64()?), input.u64()?), BlobRef::decode(input)?));
            meta.journals = decode_list(input, journal)?.into_iter().collect();
        }
        if with_erasures {
            meta.erasures = Erasures::decode(input, meta.generation)?;
        }
        Ok(meta)
    }
}

fn decode_space(input: &mut Reader<'_>) -> Result<Space, CodecError> {
    let high = input.u64()?;
    if high > PAGES_MAX {
        return Err(CodecError::Malformed("number of pages"));
    }
    let mut space = Space::used(high);
    let mut end = 0;
    for (start, len) in decode_list(input, |input| Ok((input.u64()?, input.u64()?)))? {
        let range_end = start.checked_add(len).ok_or(CodecError::Malformed("free range"))?;
        if start < end || range_end > space.high || !space.free.insert(start, len) {
            return Err(CodecError::Malformed("free range"));
        }
        end = range_end;
    }
    let mut left = space.used_pages();
    for (generation, start, len) in decode_list(input, |input| Ok((input.u64()?, input.u64()?, input.u64()?)))? {
        if start.checked_add(len).is_none_or(|end| end > space.high) || len > left {
            return Err(CodecError::Malformed("waiting range"));
        }
        left -= len;
        space.retire(start, len, generation);
    }
    Ok(space)
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;

    use super::*;
    use crate::{
        Engine,
        testing::{commit, create, flush, merge, prepare_id, puts, small, stage},
    };

    /// An engine with frozen trees, an installed and a built merge, a staged version with a
    /// journal, and free and waiting pages.
    fn engine() -> Engine {
        let mut engine = create(&SimStorage::new(), Params { journals_kept: true, ..small() });
        for version in 1..8 {
            commit(&mut engine, version, puts(5 * version as u32..5 * version as u32 + 8, 100));
            merge(&mut engine);
            flush(&mut engine, version);
        }
        engine.prune(Version(4)).expect("usable");
        let state = stage(&mut engine, 9, puts(0..9, 50)).state;
        engine.keep_journal(&state, prepare_id(9), b"journal").expect("it is staged");
        engine
    }

    fn encoded(meta: &Meta) -> Vec<u8> {
        let mut out = Writer::new();
        meta.encode(&mut out);
        out.into_bytes()
    }

    #[test]
    fn a_table_is_read_back_and_no_prefix_of_it_is_one() {
        let engine = engine();
        let bytes = encoded(&engine.meta);
        let mut input = Reader::new(&bytes);
        let meta = Meta::decode(&mut input, false).expect("its own");
        input.finish().expect("all of it");
        assert_eq!(encoded(&meta), bytes);
        assert_eq!((meta.versions.len(), meta.merges.len()), (engine.meta.versions.len(), engine.meta.merges.len()));
        assert_eq!(
            (&meta.versions, &meta.decided, &meta.staged),
            (&engine.meta.versions, &engine.meta.decided, &engine.meta.staged)
        );
        assert_eq!(
            (&meta.merges, &meta.journals, &meta.patches),
            (&engine.meta.merges, &engine.meta.journals, &engine.meta.patches)
        );
        assert_eq!((&meta.spaces, meta.next_id), (&engine.meta.spaces, engine.meta.next_id));
        assert_eq!(meta.check(), Ok(()));
        assert!((0..bytes.len()).all(|end| Meta::decode(&mut Reader::new(&bytes[..end]), false).is_err()));
    }

    #[test]
    fn a_reader_of_the_table_finds_reserved_pages_free() {
        let mut engine = engine();
        let bytes = encoded(&engine.meta);
        let before = Meta::decode(&mut Reader::new(&bytes), false).expect("its own");
        for file in [PageFile::Index, PageFile::Data] {
            engine.meta.allocate(file, 3);
        }
        let bytes = encoded(&engine.meta);
        let meta = Meta::decode(&mut Reader::new(&bytes), false).expect("its own");
        for file in PageFile::ALL {
            assert_eq!(meta.space(file).used_pages(), before.space(file).used_pages());
        }
    }

    #[test]
    fn a_table_that_breaks_its_own_order_is_refused() {
        type Breaks = fn(&mut Meta);
        let changes: [(&str, Breaks); 6] = [
            ("generation", |meta| meta.generation = u64::MAX),
            ("version number", |meta| meta.next_id = *meta.versions.keys().last().expect("one")),
            ("installed merge", |meta| {
                meta.versions.values_mut().next().expect("one").installs.push(1 << 40);
            }),
            ("no decided version", |meta| {
                meta.versions.values_mut().for_each(|record| record.decided = false);
            }),
            ("pages of patches", |meta| {
                meta.patches.insert(1 << 40, 1);
            }),
            ("pages of patches", |meta| {
                meta.patches.insert(0, 0);
            }),
        ];
        for (what, change) in changes {
            let mut engine = engine();
            change(&mut engine.meta);
            let bytes = encoded(&engine.meta);
            let refused = Meta::decode(&mut Reader::new(&bytes), false).err();
            assert_eq!(refused, Some(CodecError::Malformed(what)));
        }
    }

    /// A space as it is encoded.
    fn decode(high: u64, free: &[(u64, u64)], limbo: &[(u64, u64, u64)]) -> Result<Space, CodecError> {
        let mut out = Writer::new();
        out.u64(high);
        encode_list(free, &mut out, |(start, len), out| [start, len].into_iter().for_each(|it| out.u64(*it)));
        encode_list(limbo, &mut out, |(at, start, len), out| [at, start, len].into_iter().for_each(|it| out.u64(*it)));
        let bytes = out.into_bytes();
        decode_space(&mut Reader::new(&bytes))
    }

    #[test]
    fn the_pages_of_a_file_are_used_or_free_or_waiting() {
        let space = decode(10, &[(0, 2), (4, 1)], &[(3, 5, 5)]).expect("they fit");
        assert_eq!((space.used_pages(), space.limbo_pages()), (2, 5));
        assert!(decode(PAGES_MAX, &[], &[]).is_ok() && decode(PAGES_MAX + 1, &[], &[]).is_err());
        for free in [&[(9, 2)][..], &[(0, 2), (1, 2)], &[(4, 1), (0, 1)], &[(3, 0)], &[(u64::MAX, 2)]] {
            assert_eq!(decode(10, free, &[]).err(), Some(CodecError::Malformed("free range")), "{free:?}");
        }
        for limbo in [&[(3, 9, 2)][..], &[(3, 0, 6), (3, 0, 5)], &[(3, u64::MAX, 2)]] {
            assert_eq!(decode(10, &[], limbo).err(), Some(CodecError::Malformed("waiting range")), "{limbo:?}");
        }
        assert!(decode(10, &[(0, 6)], &[(3, 6, 5)]).is_err(), "more than the file has");
    }
}
