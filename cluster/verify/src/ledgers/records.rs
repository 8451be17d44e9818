//! Values of the records that describe a ledger: its head, its clues and their cells, its authors
//! and its purge (section 18, *Records*).

use alloc::vec::Vec;

use coppice_types::{
    Digest, MemberId, Stamp, Version,
    codec::{Error, Reader, Writer},
};

use super::list::Edge;

/// Value of a ledger's head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Whether a purge has closed the ledger: it takes orders, and nothing else.
    pub is_closed: bool,
    /// Journals below this number may have been swept by a purge; 0 if none was.
    pub purged: u64,
    /// Number of members that have journals.
    pub authors: u64,
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
    /// Number of the oldest of them that a purge has swept, or kept.
    pub gone: u64,
    /// The chain over these; all zero for none.
    pub chain_gone: Digest,
}

/// Value of a clue's cell: one journal with the clue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Number of the journal.
    pub jsn: u64,
    /// Hash of its leaf.
    pub leaf: Digest,
}

/// How far a purge has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PurgeState {
    /// It was ordered, and can be recalled.
    Pending,
    /// Journals are being deleted.
    Sweeping,
    /// All of its journals are deleted.
    Swept,
    /// It was recalled, and has deleted nothing.
    Recalled,
}

/// Value of the record of a ledger's newest purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purge {
    /// Number of the journal that ordered it.
    pub order: u64,
    /// The version of that journal.
    pub stamp: Stamp,
    /// Journals below this number go, but for those that are kept.
    pub before: u64,
    /// Whether it closes the ledger.
    pub closes: bool,
    /// How far it has come.
    pub state: PurgeState,
    /// The version of its newest sweep; 0 before the first.
    pub swept: Version,
}

/// Value of the record of a journal that a member keeps from a purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retained {
    /// Number of the journal with the order.
    pub order: u64,
    /// The member.
    pub member: MemberId,
}

/// Value of the record of what a member keeps from one purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retains {
    /// Number of the journal that ordered the purge.
    pub purge: u64,
    /// Number of the journals that the member keeps.
    pub count: u32,
}

/// Value of the record of a member that has journals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthorOf {
    /// The member.
    pub member: MemberId,
    /// Number of its first journal.
    pub first_jsn: u64,
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
            out.flag(self.is_closed);
            out.u64(self.purged);
            out.u64(self.authors);
            self.edge.encode(out);
        })
    }

    /// Decodes the canonical bytes.
    ///
    /// # Errors
    /// If the bytes are not a head.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        decoded(bytes, |input| {
            let (is_closed, purged) = (input.flag("whether a ledger is closed")?, input.u64()?);
            Ok(Self { is_closed, purged, authors: input.u64()?, edge: Edge::decode(input)? })
        })
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
            out.u64(self.gone);
            out.digest(&self.chain_gone);
        })
    }

    /// Decodes the canonical bytes.
    ///
    /// # Errors
    /// If the bytes are not a clue's record.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        decoded(bytes, |input| {
            let (count, last_jsn, chain) = (input.u64()?, input.u64()?, input.digest()?);
            let (gone, chain_gone) = (input.u64()?, input.digest()?);
            let none_is_gone = gone == 0 && chain_gone != Digest::default();
            if gone > count || none_is_gone {
                return Err(Error::Malformed("journals of a clue that are gone"));
            }
            Ok(Self { count, last_jsn, chain, gone, chain_gone })
        })
    }
}

impl Cell {
    /// The canonical bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encoded(|out| {
            out.u64(self.jsn);
            out.digest(&self.leaf);
        })
    }

    /// Decodes the canonical bytes.
    ///
    /// # Errors
    /// If the bytes are not a cell.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        decoded(bytes, |input| Ok(Self { jsn: input.u64()?, leaf: input.digest()? }))
    }
}

impl Purge {
    /// Whether it is under way: no other purge may begin.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.state, PurgeState::Pending | PurgeState::Sweeping)
    }

    /// The canonical bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encoded(|out| {
            out.u64(self.order);
            out.stamp(self.stamp);
            out.u64(self.before);
            out.flag(self.closes);
            out.u8(self.state as u8);
            out.u64(self.swept.0);
        })
    }

    /// Decodes the canonical bytes.
    ///
    /// # Errors
    /// If the bytes are not the record of a purge.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        decoded(bytes, |input| {
            let (order, stamp, before) = (input.u64()?, input.stamp()?, input.u64()?);
            let closes = input.flag("whether a purge closes")?;
            let state = match input.u8()? {
                0 => PurgeState::Pending,
                1 => PurgeState::Sweeping,
                2 => PurgeState::Swept,
                3 => PurgeState::Recalled,
                _ => return Err(Error::Malformed("state of a purge")),
            };
            Ok(Self { order, stamp, before, closes, state, swept: Version(input.u64()?) })
        })
    }
}

impl Retained {
    /// The canonical bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encoded(|out| {
            out.u64(self.order);
            out.raw(self.member.as_bytes());
        })
    }

    /// Decodes the canonical bytes.
    ///
    /// # Errors
    /// If the bytes are not the record of a journal that is kept.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        decoded(bytes, |input| Ok(Self { order: input.u64()?, member: MemberId(input.bytes16()?) }))
    }
}

impl Retains {
    /// The canonical bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encoded(|out| {
            out.u64(self.purge);
            out.u32(self.count);
        })
    }

    /// Decodes the canonical bytes.
    ///
    /// # Errors
    /// If the bytes are not the record of what a member keeps.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        decoded(bytes, |input| Ok(Self { purge: input.u64()?, count: input.u32()? }))
    }
}

impl AuthorOf {
    /// The canonical bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encoded(|out| {
            out.raw(self.member.as_bytes());
            out.u64(self.first_jsn);
        })
    }

    /// Decodes the canonical bytes.
    ///
    /// # Errors
    /// If the bytes are not the record of an author.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        decoded(bytes, |input| Ok(Self { member: MemberId(input.bytes16()?), first_jsn: input.u64()? }))
    }
}
