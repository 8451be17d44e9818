//! Proofs of the version that stood at a time (`docs/verification.md` section 12, *Time*).

use coppice_types::codec::{Error, Reader, Writer};

use super::parts::{EpochPart, HeaderPart, LogPart};

/// Payload of a proof of the newest version at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeProof<'a> {
    /// The checkpoint, and the log's newest header.
    pub log: LogPart<'a>,
    /// Header of the version.
    pub header: HeaderPart<'a>,
    /// Shows that the version stands, and whether the version after it does.
    pub epoch: EpochPart,
    /// The time that was asked for, in milliseconds since 1970.
    pub time_ms: u64,
    /// Header of the version after it; `None` if the version is head.
    pub next: Option<HeaderPart<'a>>,
}

impl<'a> TimeProof<'a> {
    pub(super) fn encode(&self, out: &mut Writer) {
        self.log.encode(out);
        self.header.encode(out);
        self.epoch.encode(out);
        out.u64(self.time_ms);
        out.flag(self.next.is_some());
        if let Some(next) = &self.next {
            next.encode(out);
        }
    }

    pub(super) fn decode(input: &mut Reader<'a>) -> Result<Self, Error> {
        Ok(Self {
            log: LogPart::decode(input)?,
            header: HeaderPart::decode(input)?,
            epoch: EpochPart::decode(input)?,
            time_ms: input.u64()?,
            next: if input.flag("next version flag")? { Some(HeaderPart::decode(input)?) } else { None },
        })
    }
}
