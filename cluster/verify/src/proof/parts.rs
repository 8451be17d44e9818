//! The parts that several kinds of proof files have in common.

use alloc::{borrow::Cow, vec::Vec};
use core::fmt;

use coppice_types::{
    Digest, Epoch, Stamp, Version,
    codec::{Error, Reader, Writer},
};

use super::digests::{read_digests, write_digests};
use crate::{
    epochs::{Epochs, Pair},
    keys::KEY_CHANGES_MAX,
    merkle,
};

/// `log part`: a signed checkpoint, the newest header in its log, and the log's key changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPart<'a> {
    /// The signed note.
    pub checkpoint: Cow<'a, [u8]>,
    /// The last entry of the checkpoint's log.
    pub newest_header: Cow<'a, [u8]>,
    /// Inclusion path of the newest header.
    pub path: Vec<Digest>,
    /// All key changes below the checkpoint, in order.
    pub key_changes: Vec<HeaderPart<'a>>,
}

impl LogPart<'_> {
    /// The part without borrowed bytes.
    #[must_use]
    pub fn into_owned(self) -> LogPart<'static> {
        let owned = |bytes: Cow<'_, [u8]>| Cow::Owned(bytes.into_owned());
        let change = |part: HeaderPart<'_>| HeaderPart { header: owned(part.header), path: part.path };
        LogPart {
            checkpoint: owned(self.checkpoint),
            newest_header: owned(self.newest_header),
            path: self.path,
            key_changes: self.key_changes.into_iter().map(change).collect(),
        }
    }
}

/// `header part`: a header in the log of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderPart<'a> {
    /// The canonical bytes of the header.
    pub header: Cow<'a, [u8]>,
    /// Inclusion path of the header at its own sequence.
    pub path: Vec<Digest>,
}

/// `epoch part`: shows that a version stands by the newest header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochPart {
    /// Index of the pair of the version's epoch.
    pub index: u32,
    /// The pair of the version's epoch.
    pub pair: Pair,
    /// The pair after it; `None` if it is the last.
    pub next: Option<Pair>,
    /// List proof of these pairs in the newest header's epochs root.
    pub hashes: Vec<Digest>,
}

impl EpochPart {
    /// The part for a version; `None` if the version does not stand.
    #[must_use]
    pub fn new(epochs: &Epochs, stamp: Stamp) -> Option<Self> {
        let index = epochs.find(stamp)?;
        let next = epochs.pairs().get(index + 1).copied();
        let mut indices = Vec::from([index as u64]);
        indices.extend(next.map(|_| index as u64 + 1));
        let hashes = merkle::list_proof(&epochs.leaves(), &indices);
        Some(Self { index: u32::try_from(index).ok()?, pair: epochs.pairs()[index], next, hashes })
    }
}

/// The error that a proof does not fit a proof file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the proof does not fit a proof file")
    }
}

impl core::error::Error for TooLarge {}

impl<'a> LogPart<'a> {
    pub(super) fn encode(&self, out: &mut Writer) {
        out.str32(&self.checkpoint);
        out.str16(&self.newest_header);
        write_digests(out, &self.path);
        out.u16(u16::try_from(self.key_changes.len()).expect("a ledger changes its key a few times"));
        self.key_changes.iter().for_each(|change| change.encode(out));
    }

    pub(super) fn decode(input: &mut Reader<'a>) -> Result<Self, Error> {
        let (checkpoint, newest_header) = (Cow::Borrowed(input.str32()?), Cow::Borrowed(input.str16()?));
        let path = read_digests(input)?;
        let count = usize::from(input.u16()?);
        if count > KEY_CHANGES_MAX {
            return Err(Error::Malformed("number of key changes"));
        }
        let mut key_changes = Vec::new();
        for _ in 0..count {
            key_changes.push(HeaderPart::decode(input)?);
        }
        Ok(Self { checkpoint, newest_header, path, key_changes })
    }
}

impl<'a> HeaderPart<'a> {
    pub(super) fn encode(&self, out: &mut Writer) {
        out.str16(&self.header);
        write_digests(out, &self.path);
    }

    pub(super) fn decode(input: &mut Reader<'a>) -> Result<Self, Error> {
        Ok(Self { header: Cow::Borrowed(input.str16()?), path: read_digests(input)? })
    }
}

impl EpochPart {
    pub(super) fn encode(&self, out: &mut Writer) {
        out.u32(self.index);
        write_pair(out, &self.pair);
        out.flag(self.next.is_some());
        if let Some(next) = &self.next {
            write_pair(out, next);
        }
        write_digests(out, &self.hashes);
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            index: input.u32()?,
            pair: read_pair(input)?,
            next: if input.flag("next pair flag")? { Some(read_pair(input)?) } else { None },
            hashes: read_digests(input)?,
        })
    }
}

pub(super) fn write_pair(out: &mut Writer, pair: &Pair) {
    out.u64(pair.epoch.0);
    out.u64(pair.base.0);
}

pub(super) fn read_pair(input: &mut Reader<'_>) -> Result<Pair, Error> {
    Ok(Pair { epoch: Epoch(input.u64()?), base: Version(input.u64()?) })
}

pub(super) fn write_count(out: &mut Writer, count: usize) -> Result<(), TooLarge> {
    out.u16(u16::try_from(count).map_err(|_| TooLarge)?);
    Ok(())
}
