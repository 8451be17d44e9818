//! The file `meta`: the log's owner, its base, and the other facts that must outlast segments.
//!
//! The file is replaced as a whole (written under another name, synced, renamed, directory synced),
//! so a crash leaves the old or the new one.

use coppice_env::{OpenMode, Storage};
use coppice_types::{
    ClusterId, GroupId,
    codec::{Error as DecodeError, Reader, Writer},
};

use super::{batch::HardState, block::crc32c};
use crate::{
    Membership, Position, RaftId,
    error::{Error, Result},
    ids::{number, put_position, take_position},
};

pub(crate) const META_FILE: &str = "meta";
const META_NEW_FILE: &str = "meta.new";
const MAGIC: &[u8; 7] = b"CPRAFT\0";
/// The format of the log: of this file and of the segments.
const FORMAT: u8 = 2;
/// A field of the file: the first segment whose blocks carry their segment's number. All segments
/// do.
const NUMBERED_FROM: u64 = 1;
/// Limit on the file's bytes: far more than a manifest and evidence take.
const META_BYTES_MAX: u64 = 16 << 20;

/// The replica whose log a directory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub cluster: ClusterId,
    pub group: GroupId,
    pub id: RaftId,
}

impl Owner {
    pub(crate) fn describe(&self) -> String {
        format!("replica {} of {} of cluster {}", self.id, self.group, self.cluster)
    }

    /// The value that checksums start from, so that another replica's files are never accepted.
    pub(crate) fn salt(&self) -> u32 {
        crc32c(0, &[&self.cluster.0, &self.group.number().to_le_bytes(), &self.id.0.to_le_bytes()])
    }
}

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub owner: Owner,
    /// The log holds entries after this position only. The state machine has the others.
    pub base: Position,
    /// The group's members at `base`.
    pub membership: Membership,
    /// Raft's state when the file was written. Segments hold newer states.
    pub hard_state: HardState,
    /// The first segment that counts. Older ones are garbage.
    pub first_segment: u64,
    /// The manifest of the snapshot at `base`, if the log was reset to one.
    pub manifest: Option<Vec<u8>>,
    /// The evidence against this replica's state, if it does not trust it.
    pub quarantine: Option<Vec<u8>>,
}

fn encode_option(writer: &mut Writer, bytes: Option<&Vec<u8>>) {
    writer.flag(bytes.is_some());
    if let Some(bytes) = bytes {
        writer.str32(bytes);
    }
}

fn decode_option(reader: &mut Reader<'_>) -> std::result::Result<Option<Vec<u8>>, DecodeError> {
    Ok(if reader.flag("presence")? { Some(reader.str32()?.to_vec()) } else { None })
}

/// Reads the first segment that counts. The blocks of all segments that count must carry their
/// segment's number.
fn first_segment(reader: &mut Reader<'_>) -> std::result::Result<u64, DecodeError> {
    let (first, numbered_from) = (number(reader)?, number(reader)?);
    if first == 0 || numbered_from > first { Err(DecodeError::Malformed("first numbered segment")) } else { Ok(first) }
}

/// The reason why bytes are not the content of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// The bytes have another format, with this number.
    OtherFormat(u8),
    Damaged(DecodeError),
}

impl From<DecodeError> for Unreadable {
    fn from(error: DecodeError) -> Self {
        Self::Damaged(error)
    }
}

impl Meta {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.raw(MAGIC);
        writer.u8(FORMAT);
        writer.raw(&self.owner.cluster.0);
        writer.u32(self.owner.group.number());
        writer.u64(self.owner.id.0);
        put_position(&mut writer, self.base);
        self.membership.encode(&mut writer);
        self.hard_state.encode(&mut writer);
        writer.u64(self.first_segment);
        writer.u64(NUMBERED_FROM);
        encode_option(&mut writer, self.manifest.as_ref());
        encode_option(&mut writer, self.quarantine.as_ref());
        let mut bytes = writer.into_bytes();
        bytes.extend_from_slice(&crc32c(0, &[&bytes]).to_le_bytes());
        bytes
    }

    /// Reads what [`Meta::encode`] wrote.
    pub(crate) fn decode(bytes: &[u8]) -> std::result::Result<Self, Unreadable> {
        let (bytes, crc) = bytes.split_last_chunk::<4>().ok_or(DecodeError::Truncated)?;
        if crc32c(0, &[bytes]) != u32::from_le_bytes(*crc) {
            return Err(DecodeError::Malformed("checksum").into());
        }
        let mut reader = Reader::new(bytes);
        if reader.take(MAGIC.len())? != MAGIC {
            return Err(DecodeError::Malformed("magic").into());
        }
        let format = reader.u8()?;
        if format != FORMAT {
            return Err(Unreadable::OtherFormat(format));
        }
        let owner = Owner {
            cluster: ClusterId(reader.bytes16()?),
            group: GroupId::from_number(reader.u32()?),
            id: RaftId(reader.u64()?),
        };
        let meta = Self {
            owner,
            base: take_position(&mut reader)?,
            membership: Membership::decode(&mut reader)?,
            hard_state: HardState::decode(&mut reader)?,
            first_segment: first_segment(&mut reader)?,
            manifest: decode_option(&mut reader)?,
            quarantine: decode_option(&mut reader)?,
        };
        reader.finish()?;
        if meta.base.index > meta.hard_state.commit {
            return Err(DecodeError::Malformed("base").into());
        }
        Ok(meta)
    }

    /// Reads the file; `None` if there is none.
    pub(crate) fn load(storage: &dyn Storage) -> Result<Option<Self>> {
        let file = match storage.open(META_FILE, OpenMode::Existing) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(Error::io("open its meta file"))?,
        };
        let len = file.len().map_err(Error::io("measure its meta file"))?;
        let corrupted = |detail| Error::Corrupted { file: META_FILE.to_owned(), block: 0, detail };
        if len > META_BYTES_MAX {
            return Err(corrupted("too long"));
        }
        let mut bytes = vec![0; usize::try_from(len).map_err(|_| corrupted("too long"))?];
        file.read_exact_at(&mut bytes, 0).map_err(Error::io("read its meta file"))?;
        match Self::decode(&bytes) {
            Ok(meta) => Ok(Some(meta)),
            Err(Unreadable::OtherFormat(found)) => Err(Error::OtherFormat { found, known: FORMAT }),
            Err(Unreadable::Damaged(_)) => Err(corrupted("the checksum or a field is wrong")),
        }
    }

    /// Replaces the file durably.
    pub(crate) fn store(&self, storage: &dyn Storage) -> Result<()> {
        assert!(self.base.index <= self.hard_state.commit, "the base is committed");
        assert!(self.first_segment >= NUMBERED_FROM, "every segment bears its number");
        let bytes = self.encode();
        assert!(bytes.len() as u64 <= META_BYTES_MAX, "the next start reads what is written");
        let write = || {
            let file = storage.open(META_NEW_FILE, OpenMode::OpenOrCreate)?;
            file.set_len(0)?;
            file.write_all_at(&bytes, 0)?;
            file.sync_data()?;
            drop(file);
            storage.rename(META_NEW_FILE, META_FILE)?;
            storage.sync_dir("")
        };
        write().map_err(Error::io("replace its meta file"))
    }
}
