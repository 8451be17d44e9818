//! The commands that raft replicates in the root group, and their encoding.
//!
//! An encoded command begins with a version byte and a kind. A replica stops at a version or kind
//! that it does not know, because it can no longer follow the others (PROTOCOL 1.5). Decoding never
//! panics, and never allocates by a count that exceeds the bytes at hand.

use coppice_types::{
    PinId, SessionId, Term, Version,
    codec::{self, Reader, Writer},
};
use coppice_verify::header::HEADER_BYTES_MAX;

use crate::{
    codec::{len32, list},
    types::{SessionCommit, StateLeaf, decode_leaf, encode_leaf},
};

/// The encoding that this code writes and reads.
pub const COMMAND_VERSION: u8 = 1;
/// The header formats that this code applies: of protocol versions 2 and 3.
const HEADER_FORMATS: [u8; 2] = [1, 2];
/// The header kinds that this code applies: genesis, commit, rollback, prune, key, anchor.
const HEADER_KINDS: [u8; 6] = [0, 1, 2, 3, 6, 7];
/// Longest name of a candidate, in bytes.
pub const CANDIDATE_BYTES_MAX: usize = 256;
/// Limit on the number of shards that one header changes.
pub const CHANGED_LEAVES_MAX: usize = 65_536;
/// Largest encoded command, in bytes.
pub const COMMAND_BYTES_MAX: usize = 64 << 20;

/// A command of the root group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    TakeOver(TakeOver),
    AppendHeader(AppendHeader),
    OpenSession(OpenSession),
    SetPin(SetPin),
    Unpin(Unpin),
}

/// Makes the candidate leader and allots it a term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeOver {
    /// Name of the coordinator.
    pub candidate: String,
    /// Wall clock of the replica that proposed the command, in ms since 1970.
    pub clock_ms: u64,
    /// The genesis header if the log is empty. Otherwise it is ignored.
    pub genesis: Option<Vec<u8>>,
}

/// Appends a header to the root log, and thereby decides the event that the header describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendHeader {
    /// The leader's term.
    pub term: Term,
    /// Canonical bytes of the header.
    pub header: Vec<u8>,
    /// Leaves that differ from those of the head. A rollback may leave them out: its leaves are
    /// those of its target.
    pub changed_leaves: Vec<StateLeaf>,
    /// Encoded journal entries, in order.
    pub journal: Vec<Vec<u8>>,
    /// The batches in the journal that belong to sessions, in any order.
    pub sessions: Vec<SessionCommit>,
}

/// Opens a session, or finds it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenSession {
    /// Name that the client chose.
    pub session: SessionId,
    /// Wall clock of the replica that proposed the command, in ms since 1970.
    pub clock_ms: u64,
}

/// Pins a version, or renews its pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetPin {
    /// Name that the client chose.
    pub pin: PinId,
    /// The version, which must stand.
    pub version: Version,
    /// How long the pin lives, in ms.
    pub ttl_ms: u64,
    /// Wall clock of the replica that proposed the command, in ms since 1970.
    pub clock_ms: u64,
}

/// Removes a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpin {
    pub pin: PinId,
    /// Wall clock of the replica that proposed the command, in ms since 1970.
    pub clock_ms: u64,
}

/// The reason why bytes are not a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// A newer replica wrote the command.
    #[error("root command version {0} is not known")]
    UnknownVersion(u8),
    /// A newer replica wrote the command.
    #[error("root command kind {0} is not known")]
    UnknownKind(u8),
    /// The command appends a header that only a newer replica can apply.
    #[error("header of format {format} and kind {kind} is not known")]
    UnknownHeader {
        /// The header's first byte.
        format: u8,
        /// The header's second byte.
        kind: u8,
    },
    /// The command exceeds the limit.
    #[error("root command of {0} bytes is over the limit of {COMMAND_BYTES_MAX}")]
    TooLarge(usize),
    /// The command is damaged.
    #[error("malformed root command")]
    Malformed(#[source] codec::Error),
}

impl From<codec::Error> for CommandError {
    fn from(error: codec::Error) -> Self {
        Self::Malformed(error)
    }
}

impl Command {
    /// The bytes to propose.
    ///
    /// # Errors
    /// If a part is over its limit. The command must not be proposed then.
    pub fn encode(&self) -> Result<Vec<u8>, CommandError> {
        let mut out = Writer::new();
        out.u8(COMMAND_VERSION);
        match self {
            Self::TakeOver(command) => {
                out.u8(0);
                command.encode(&mut out)?;
            }
            Self::AppendHeader(command) => {
                out.u8(1);
                command.encode(&mut out)?;
            }
            Self::OpenSession(command) => {
                out.u8(2);
                out.raw(command.session.as_bytes());
                out.u64(command.clock_ms);
            }
            Self::SetPin(command) => {
                out.u8(3);
                out.raw(command.pin.as_bytes());
                out.u64(command.version.0);
                out.u64(command.ttl_ms);
                out.u64(command.clock_ms);
            }
            Self::Unpin(command) => {
                out.u8(4);
                out.raw(command.pin.as_bytes());
                out.u64(command.clock_ms);
            }
        }
        if let Self::AppendHeader(command) = self {
            known(&command.header)?;
        }
        let bytes = out.into_bytes();
        if bytes.len() > COMMAND_BYTES_MAX { Err(CommandError::TooLarge(bytes.len())) } else { Ok(bytes) }
    }

    /// Whether the bytes are of a command that adds to the ledger: a commit, a session or a pin.
    /// All others are small, or make room.
    #[must_use]
    pub fn grows(bytes: &[u8]) -> bool {
        const COMMIT: u8 = 1;
        let mut input = Reader::new(bytes);
        let mut append = || Ok::<_, codec::Error>((input.u8()?, input.u8()?, input.u64()?, input.str16()?));
        match bytes {
            [COMMAND_VERSION, 0 | 4, ..] => false,
            [COMMAND_VERSION, 1, ..] => append().map_or(true, |(.., header)| header.get(1) == Some(&COMMIT)),
            _ => true,
        }
    }

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// If the bytes are not a command that this code knows. The replica must stop.
    pub fn decode(bytes: &[u8]) -> Result<Self, CommandError> {
        if bytes.len() > COMMAND_BYTES_MAX {
            return Err(CommandError::TooLarge(bytes.len()));
        }
        let mut input = Reader::new(bytes);
        match input.u8()? {
            COMMAND_VERSION => {}
            version => return Err(CommandError::UnknownVersion(version)),
        }
        let command = match input.u8()? {
            0 => Self::TakeOver(TakeOver::decode(&mut input)?),
            1 => Self::AppendHeader(AppendHeader::decode(&mut input)?),
            2 => Self::OpenSession(OpenSession { session: SessionId(input.bytes16()?), clock_ms: input.u64()? }),
            3 => Self::SetPin(SetPin {
                pin: PinId(input.bytes16()?),
                version: Version(input.u64()?),
                ttl_ms: input.u64()?,
                clock_ms: input.u64()?,
            }),
            4 => Self::Unpin(Unpin { pin: PinId(input.bytes16()?), clock_ms: input.u64()? }),
            kind => return Err(CommandError::UnknownKind(kind)),
        };
        input.finish()?;
        if let Self::AppendHeader(command) = &command {
            known(&command.header)?;
        }
        Ok(command)
    }
}

impl TakeOver {
    fn encode(&self, out: &mut Writer) -> Result<(), CommandError> {
        limit("candidate", self.candidate.len(), CANDIDATE_BYTES_MAX)?;
        out.str16(self.candidate.as_bytes());
        out.u64(self.clock_ms);
        out.flag(self.genesis.is_some());
        if let Some(genesis) = &self.genesis {
            limit("genesis header", genesis.len(), HEADER_BYTES_MAX)?;
            out.str16(genesis);
        }
        Ok(())
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, codec::Error> {
        let candidate = input.str16()?;
        if candidate.len() > CANDIDATE_BYTES_MAX {
            return Err(codec::Error::Malformed("candidate"));
        }
        Ok(Self {
            candidate: String::from_utf8(candidate.to_vec()).map_err(|_| codec::Error::Malformed("candidate"))?,
            clock_ms: input.u64()?,
            genesis: if input.flag("genesis")? { Some(header_bytes(input)?) } else { None },
        })
    }
}

impl AppendHeader {
    fn encode(&self, out: &mut Writer) -> Result<(), CommandError> {
        limit("header", self.header.len(), HEADER_BYTES_MAX)?;
        limit("changed leaves", self.changed_leaves.len(), CHANGED_LEAVES_MAX)?;
        limit("journal", self.journal.len(), u32::MAX as usize)?;
        limit("sessions", self.sessions.len(), u32::MAX as usize)?;
        out.u64(self.term.0);
        out.str16(&self.header);
        out.u32(len32(self.changed_leaves.len()));
        for leaf in &self.changed_leaves {
            limit("key", leaf.low.len().max(leaf.high.as_ref().map_or(0, Vec::len)), usize::from(u16::MAX))?;
            encode_leaf(leaf, out);
        }
        out.u32(len32(self.journal.len()));
        for entry in &self.journal {
            limit("journal entry", entry.len(), COMMAND_BYTES_MAX)?;
            out.str32(entry);
        }
        out.u32(len32(self.sessions.len()));
        for commit in &self.sessions {
            out.raw(commit.session.as_bytes());
            out.u64(commit.number);
            out.digest(&commit.batch_hash);
            out.u32(commit.journal_index);
        }
        Ok(())
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, codec::Error> {
        Ok(Self {
            term: Term(input.u64()?),
            header: header_bytes(input)?,
            changed_leaves: list(input, decode_leaf)?,
            journal: list(input, |input| Ok(input.str32()?.to_vec()))?,
            sessions: list(input, |input| {
                Ok(SessionCommit {
                    session: SessionId(input.bytes16()?),
                    number: input.u64()?,
                    batch_hash: input.digest()?,
                    journal_index: input.u32()?,
                })
            })?,
        })
    }
}

/// Refuses headers of a kind from a later protocol version, which only newer replicas can apply.
fn known(header: &[u8]) -> Result<(), CommandError> {
    match header {
        [format, kind, ..] if HEADER_FORMATS.contains(format) && HEADER_KINDS.contains(kind) => Ok(()),
        [format, kind, ..] => Err(CommandError::UnknownHeader { format: *format, kind: *kind }),
        _ => Err(CommandError::Malformed(codec::Error::Malformed("header"))),
    }
}

fn header_bytes(input: &mut Reader<'_>) -> Result<Vec<u8>, codec::Error> {
    match input.str16()? {
        bytes if bytes.len() > HEADER_BYTES_MAX => Err(codec::Error::Malformed("header length")),
        bytes => Ok(bytes.to_vec()),
    }
}

fn limit(part: &'static str, len: usize, max: usize) -> Result<(), CommandError> {
    if len > max { Err(CommandError::Malformed(codec::Error::Malformed(part))) } else { Ok(()) }
}
