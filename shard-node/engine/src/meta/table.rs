//! The encoding of the whole table: the first block of a meta log (`docs/format.md` section "Meta
//! log").

use coppice_types::{
    Epoch, Params, ShardId, Version,
    codec::{Error as CodecError, Reader, Writer},
};

use super::{
    MergeRecord, Meta, VersionRecord,
    record::{decode_list, encode_list},
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
        if self.params.journals_kept {
            encode_list(&self.journals.iter().collect::<Vec<_>>(), out, |((version, id), blob), out| {
                out.u64(version.0);
                out.u64(*id);
                blob.encode(out);
            });
        }
    }

    /// Decodes the bytes that [`Self::encode`] wrote.
    pub(crate) fn decode(input: &mut Reader<'_>) -> Result<Self, CodecError> {
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
        if meta.decided.is_empty() {
            return Err(CodecError::Malformed("no decided version"));
        }
        if meta.params.journals_kept {
            let journal = |input: &mut Reader<'_>| Ok(((Version(input.u64()?), input.u64()?), BlobRef::decode(input)?));
            meta.journals = decode_list(input, journal)?.into_iter().collect();
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
