//! Values of the records that describe a ledger: its head, its clues and their cells (section 18,
//! *Records*).

use alloc::vec::Vec;

use coppice_types::{
    Digest,
    codec::{Error, Reader, Writer},
};

use super::list::Edge;

/// Value of a ledger's head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Journals below this number may have been swept by a purge; 0 if none was.
    pub purged: u64,
    /// The list of leaves, which has the ledger's size.
    pub edge: Edge,
}

/// Value of a clue's record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clue {
    /// Number of journals with the clue.
    pub count: u64,
    /// Number of the newest of them.
    pub last_jsn: u64,
    /// The chain over all of them; all zero for none.
    pub chain: Digest,
}

/// Value of a clue's cell: one journal with the clue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Number of the journal.
    pub jsn: u64,
    /// Hash of its leaf.
    pub leaf: Digest,
    /// The chain before this cell, if the cells before it were swept by a purge.
    pub chain_before: Option<Digest>,
}

fn encoded(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut out = Writer::new();
    out.u8(1);
    write(&mut out);
    out.into_bytes()
}

fn decoded<T>(bytes: &[u8], read: impl FnOnce(&mut Reader<'_>) -> Result<T, Error>) -> Result<T, Error> {
    let mut input = Reader::new(bytes);
    if input.u8()? != 1 {
        return Err(Error::Malformed("format of a ledger's record"));
    }
    let value = read(&mut input)?;
    input.finish()?;
    Ok(value)
}

impl Head {
    /// The canonical bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encoded(|out| {
            out.u64(self.purged);
            self.edge.encode(out);
        })
    }

    /// Decodes the canonical bytes.
    ///
    /// # Errors
    /// If the bytes are not a head.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        decoded(bytes, |input| Ok(Self { purged: input.u64()?, edge: Edge::decode(input)? }))
    }
}

impl Clue {
    /// The canonical bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encoded(|out| {
            out.u64(self.count);
            out.u64(self.last_jsn);
            out.digest(&self.chain);
        })
    }

    /// Decodes the canonical bytes.
    ///
    /// # Errors
    /// If the bytes are not a clue's record.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        decoded(bytes, |input| Ok(Self { count: input.u64()?, last_jsn: input.u64()?, chain: input.digest()? }))
    }
}

impl Cell {
    /// The canonical bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encoded(|out| {
            out.u64(self.jsn);
            out.digest(&self.leaf);
            out.flag(self.chain_before.is_some());
            if let Some(chain) = &self.chain_before {
                out.digest(chain);
            }
        })
    }

    /// Decodes the canonical bytes.
    ///
    /// # Errors
    /// If the bytes are not a cell.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        decoded(bytes, |input| {
            let (jsn, leaf) = (input.u64()?, input.digest()?);
            let chain_before = if input.flag("chain before a cell")? { Some(input.digest()?) } else { None };
            Ok(Self { jsn, leaf, chain_before })
        })
    }
}
