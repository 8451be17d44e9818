//! The payload of interval proofs: anchors around an entry of the log (`docs/verification.md`
//! sections 12 and 19).

use alloc::vec::Vec;

use coppice_types::{
    Digest,
    codec::{Error, Reader, Writer},
};

use super::{
    digests::{read_digests, write_digests},
    parts::{HeaderPart, LogPart, TooLarge},
};

/// Most anchors on either side of the entry.
pub const ANCHORS_MAX: usize = 16;

/// Payload of an interval proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntervalProof<'a> {
    /// The checkpoint, and the log's newest header.
    pub log: LogPart<'a>,
    /// The header whose time is in question.
    pub header: HeaderPart<'a>,
    /// Anchors before the header, in the order of the log. The header is younger than their stamps.
    pub below: Vec<HeaderPart<'a>>,
    /// Anchors behind the header, in the order of the log, each with the header's inclusion path in
    /// the stamped log. The header is older than their stamps.
    pub above: Vec<(HeaderPart<'a>, Vec<Digest>)>,
}

impl<'a> IntervalProof<'a> {
    pub(super) fn encode(&self, out: &mut Writer) -> Result<(), TooLarge> {
        self.log.encode(out);
        self.header.encode(out);
        write_count(out, self.below.len())?;
        self.below.iter().for_each(|anchor| anchor.encode(out));
        write_count(out, self.above.len())?;
        for (anchor, path) in &self.above {
            anchor.encode(out);
            write_digests(out, path);
        }
        Ok(())
    }

    pub(super) fn decode(input: &mut Reader<'a>) -> Result<Self, Error> {
        let (log, header) = (LogPart::decode(input)?, HeaderPart::decode(input)?);
        let below = (0..read_count(input)?).map(|_| HeaderPart::decode(input)).collect::<Result<_, _>>()?;
        let above = (0..read_count(input)?).map(|_| Ok((HeaderPart::decode(input)?, read_digests(input)?)));
        let above = above.collect::<Result<_, Error>>()?;
        Ok(Self { log, header, below, above })
    }
}

fn write_count(out: &mut Writer, count: usize) -> Result<(), TooLarge> {
    if count > ANCHORS_MAX {
        return Err(TooLarge);
    }
    super::write_count(out, count)
}

fn read_count(input: &mut Reader<'_>) -> Result<u16, Error> {
    let count = input.u16()?;
    if usize::from(count) > ANCHORS_MAX { Err(Error::Malformed("number of anchors")) } else { Ok(count) }
}
