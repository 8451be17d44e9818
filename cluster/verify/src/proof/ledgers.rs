//! Proofs of ledgers (`docs/verification.md` section 18, *Proofs*).

use alloc::{borrow::Cow, vec::Vec};

use coppice_types::{
    Digest, LedgerId,
    codec::{Error, Reader, Writer},
};

use super::{
    QueryProof,
    digests::{read_digests, write_digests},
    parts::{EpochPart, HeaderPart, LogPart, TooLarge, write_count},
};
use crate::ledgers::LEAF_BYTES_MIN;

/// The request that a member signed, with the path of one item in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestPart<'a> {
    /// The signed bytes.
    pub signed: Cow<'a, [u8]>,
    /// Inclusion path of the item.
    pub path: Vec<Digest>,
}

/// `journal part`: one journal of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalPart<'a> {
    /// The canonical bytes of the leaf.
    pub leaf: Cow<'a, [u8]>,
    /// The author's request; `None` if it was not asked for.
    pub request: Option<RequestPart<'a>>,
    /// The envelope; `None` if it was not asked for.
    pub envelope: Option<Cow<'a, [u8]>>,
}

/// An earlier state of a ledger that the asking side knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownPart {
    /// Number of journals then.
    pub size: u64,
    /// Root of the list then.
    pub root: Digest,
    /// Consistency path from there.
    pub path: Vec<Digest>,
}

/// Payload of a proof of journals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalsProof<'a> {
    /// The checkpoint, and the log's newest header.
    pub log: LogPart<'a>,
    /// Header of the version.
    pub header: HeaderPart<'a>,
    /// Shows that the version stands.
    pub epoch: EpochPart,
    /// Index of the ledger's head in the version's journal.
    pub index: u32,
    /// The canonical bytes of that entry.
    pub entry: Cow<'a, [u8]>,
    /// List proof of the entry in the header's journal root.
    pub hashes: Vec<Digest>,
    /// The state of the ledger that the asking side knows; `None` if it knows none.
    pub known: Option<KnownPart>,
    /// The journals, each with the inclusion path of its leaf.
    pub journals: Vec<(JournalPart<'a>, Vec<Digest>)>,
}

/// Payload of a lineage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineageProof<'a> {
    /// The range of the clue's record and cells, with values.
    pub query: QueryProof<'a>,
    /// Id of the ledger.
    pub ledger: LedgerId,
    /// Hash of the clue.
    pub clue: Digest,
    /// The journals in the order of their cells: newest first.
    pub journals: Vec<JournalPart<'a>>,
}

impl<'a> JournalPart<'a> {
    fn encode(&self, out: &mut Writer) {
        out.str16(&self.leaf);
        out.flag(self.request.is_some());
        if let Some(RequestPart { signed, path }) = &self.request {
            out.str16(signed);
            write_digests(out, path);
        }
        out.flag(self.envelope.is_some());
        if let Some(envelope) = &self.envelope {
            out.str32(envelope);
        }
    }

    fn decode(input: &mut Reader<'a>) -> Result<Self, Error> {
        let leaf = input.str16()?;
        // Without it, many empty parts would take far more memory than the file.
        if leaf.len() < LEAF_BYTES_MIN {
            return Err(Error::Malformed("length of a leaf"));
        }
        let request = if input.flag("request flag")? {
            Some(RequestPart { signed: Cow::Borrowed(input.str16()?), path: read_digests(input)? })
        } else {
            None
        };
        let envelope = if input.flag("envelope flag")? { Some(Cow::Borrowed(input.str32()?)) } else { None };
        Ok(Self { leaf: Cow::Borrowed(leaf), request, envelope })
    }
}

impl<'a> JournalsProof<'a> {
    pub(super) fn encode(&self, out: &mut Writer) -> Result<(), TooLarge> {
        self.log.encode(out);
        self.header.encode(out);
        self.epoch.encode(out);
        out.u32(self.index);
        out.str16(&self.entry);
        write_digests(out, &self.hashes);
        out.flag(self.known.is_some());
        if let Some(known) = &self.known {
            out.u64(known.size);
            out.digest(&known.root);
            write_digests(out, &known.path);
        }
        write_count(out, self.journals.len())?;
        for (journal, path) in &self.journals {
            journal.encode(out);
            write_digests(out, path);
        }
        Ok(())
    }

    pub(super) fn decode(input: &mut Reader<'a>) -> Result<Self, Error> {
        let (log, header, epoch) = (LogPart::decode(input)?, HeaderPart::decode(input)?, EpochPart::decode(input)?);
        let (index, entry, hashes) = (input.u32()?, Cow::Borrowed(input.str16()?), read_digests(input)?);
        let known = if input.flag("known size flag")? {
            Some(KnownPart { size: input.u64()?, root: input.digest()?, path: read_digests(input)? })
        } else {
            None
        };
        let mut journals = Vec::new();
        for _ in 0..input.u16()? {
            journals.push((JournalPart::decode(input)?, read_digests(input)?));
        }
        Ok(Self { log, header, epoch, index, entry, hashes, known, journals })
    }
}

impl<'a> LineageProof<'a> {
    pub(super) fn encode(&self, out: &mut Writer) -> Result<(), TooLarge> {
        self.query.encode(out)?;
        out.raw(self.ledger.as_bytes());
        out.digest(&self.clue);
        write_count(out, self.journals.len())?;
        self.journals.iter().for_each(|journal| journal.encode(out));
        Ok(())
    }

    pub(super) fn decode(input: &mut Reader<'a>) -> Result<Self, Error> {
        let query = QueryProof::decode(input)?;
        let (ledger, clue) = (LedgerId(input.bytes16()?), input.digest()?);
        let mut journals = Vec::new();
        for _ in 0..input.u16()? {
            journals.push(JournalPart::decode(input)?);
        }
        Ok(Self { query, ledger, clue, journals })
    }
}
