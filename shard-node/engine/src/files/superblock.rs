//! The two superblocks, where recovery begins.
//!
//! Generation g is written to slot g mod 2, so writing one never touches the other. A torn write
//! leaves a slot with a wrong checksum next to the valid one of the previous generation; recovery
//! takes the newest valid one. Once a superblock is durable, a copy of it may take the other slot;
//! then nothing of the previous generation is needed any more. The file is written under another
//! name and renamed, so its presence shows that the directory is complete.

use std::sync::Arc;

use coppice_env::{File, OpenMode, Storage};
use coppice_types::codec::{Reader, Writer};
use twox_hash::XxHash3_64;

use crate::{Error, Position, Result};

pub(crate) const FILE: &str = "superblock";
const NEW_FILE: &str = "superblock.new";
/// Bytes of one slot.
pub(crate) const SLOT_BYTES: usize = 72 << 10;
/// Limit for the bytes that the caller stores with a flush.
pub const MACHINE_STATE_BYTES_MAX: usize = 64 << 10;
const MAGIC: &[u8; 8] = b"coppiceS";
/// The format of protocol version 2. Protocol version 1 had formats 1 to 4.
const FORMAT: u32 = 6;
const FIXED_BYTES: usize = 8 + 8 + 4 + 6 * 8 + 4;
const _: () = assert!(FIXED_BYTES + MACHINE_STATE_BYTES_MAX <= SLOT_BYTES);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) generation: u64,
    pub(crate) position: Position,
    /// Number of the meta log file, its valid length, and the checksum of its last block.
    pub(crate) meta_file: u64,
    pub(crate) meta_len: u64,
    pub(crate) meta_chain: u64,
    pub(crate) machine_state: Arc<[u8]>,
}

impl Superblock {
    pub(crate) fn encode(&self) -> Vec<u8> {
        assert!(self.machine_state.len() <= MACHINE_STATE_BYTES_MAX, "the caller's bytes were measured");
        let mut out = Writer::new();
        out.u32(FORMAT);
        out.u64(self.generation);
        out.u64(self.position.index);
        out.u64(self.position.term);
        out.u64(self.meta_file);
        out.u64(self.meta_len);
        out.u64(self.meta_chain);
        out.str32(&self.machine_state);
        let mut body = out.into_bytes();
        assert!(body.len() <= SLOT_BYTES - 16, "a superblock fits its slot");
        body.resize(SLOT_BYTES - 16, 0);
        let mut slot = MAGIC.to_vec();
        slot.extend_from_slice(&XxHash3_64::oneshot(&body).to_le_bytes());
        slot.extend_from_slice(&body);
        assert_eq!(slot.len(), SLOT_BYTES, "a superblock fills its slot");
        slot
    }

    /// The format in a slot's bytes and the fields after it; `None` if the slot is not whole.
    fn split(slot: &[u8]) -> Option<(u32, Reader<'_>)> {
        if slot.len() != SLOT_BYTES {
            return None;
        }
        let (magic, rest) = slot.split_first_chunk::<8>()?;
        let (checksum, body) = rest.split_first_chunk::<8>()?;
        if magic != MAGIC || u64::from_le_bytes(*checksum) != XxHash3_64::oneshot(body) {
            return None;
        }
        let mut input = Reader::new(body);
        Some((input.u32().ok()?, input))
    }

    /// The superblock in a slot's bytes; `None` if it is not whole or has another format.
    pub(crate) fn decode(slot: &[u8]) -> Option<Self> {
        let (_, mut input) = Self::split(slot).filter(|(format, _)| *format == FORMAT)?;
        let superblock = Self {
            generation: input.u64().ok()?,
            position: Position { index: input.u64().ok()?, term: input.u64().ok()? },
            meta_file: input.u64().ok()?,
            meta_len: input.u64().ok()?,
            meta_chain: input.u64().ok()?,
            machine_state: input.str32().ok()?.into(),
        };
        let valid = superblock.machine_state.len() <= MACHINE_STATE_BYTES_MAX && superblock.generation < u64::MAX;
        valid.then_some(superblock)
    }
}

/// A slot of the superblock file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// The slot was never written.
    Blank,
    /// The slot is torn or damaged.
    Broken,
    Valid(Superblock),
}

/// Whether the directory is complete: the superblock file has its final name.
pub(crate) fn exists(storage: &dyn Storage) -> Result<bool> {
    let names = storage.list("").map_err(Error::io("list", "the directory"));
    match names {
        Ok(names) => Ok(names.iter().any(|name| name == FILE)),
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Creates the file with its first superblock. Everything that the superblock names must already be
/// durable.
pub(crate) fn publish(storage: &dyn Storage, first: &Superblock) -> Result<()> {
    let file = storage.open(NEW_FILE, OpenMode::OpenOrCreate).map_err(Error::io("create", NEW_FILE))?;
    file.set_len(0).map_err(Error::io("truncate", NEW_FILE))?;
    file.write_all_at(&vec![0; 2 * SLOT_BYTES], 0).map_err(Error::io("write", NEW_FILE))?;
    write_slot(&*file, first).map_err(Error::io("write", NEW_FILE))?;
    file.sync_data().map_err(Error::io("sync", NEW_FILE))?;
    storage.rename(NEW_FILE, FILE).map_err(Error::io("rename", NEW_FILE))?;
    storage.sync_dir("").map_err(Error::io("sync", "the directory"))
}

/// Writes a superblock to its own slot. It is durable only after a sync.
pub(crate) fn write_slot(file: &dyn File, superblock: &Superblock) -> std::io::Result<()> {
    file.write_all_at(&superblock.encode(), (superblock.generation % 2) * SLOT_BYTES as u64)
}

/// Writes a copy of a superblock over the previous generation. The original must be durable in its
/// own slot; the copy is durable only after a sync. A torn copy leaves the original.
pub(crate) fn write_copy(file: &dyn File, superblock: &Superblock) -> std::io::Result<()> {
    file.write_all_at(&superblock.encode(), ((superblock.generation + 1) % 2) * SLOT_BYTES as u64)
}

/// Writes a superblock to its slot again, and makes it and the file's name durable. A torn write
/// leaves the other slot, whose pages have not been reused yet.
pub(crate) fn republish(storage: &dyn Storage, file: &dyn File, newest: &Superblock) -> Result<()> {
    write_slot(file, newest).map_err(Error::io("write", FILE))?;
    file.sync_data().map_err(Error::io("sync", FILE))?;
    storage.sync_dir("").map_err(Error::io("sync", "the directory"))
}

/// Reads both slots.
pub(crate) fn read_slots(file: &dyn File) -> Result<[Slot; 2]> {
    let len = file.len().map_err(Error::io("read", FILE))?;
    if len != 2 * SLOT_BYTES as u64 {
        return Err(Error::corrupted(FILE, None, format!("it has {len} bytes")));
    }
    let read = |number: u64| {
        let mut bytes = vec![0; SLOT_BYTES];
        file.read_exact_at(&mut bytes, number * SLOT_BYTES as u64).map_err(Error::io("read", FILE))?;
        if let Some((found, _)) = Superblock::split(&bytes).filter(|(format, _)| *format != FORMAT) {
            return Err(Error::OtherFormat { found, known: FORMAT });
        }
        Ok(match Superblock::decode(&bytes) {
            Some(superblock) => Slot::Valid(superblock),
            _ if bytes.iter().all(|byte| *byte == 0) => Slot::Blank,
            _ => Slot::Broken,
        })
    };
    Ok([read(0)?, read(1)?])
}

/// The newest valid superblock and the previous one. The latter is `None` if the other slot is
/// invalid or holds a copy.
pub(crate) fn newest(slots: [Slot; 2]) -> Result<(Superblock, Option<Superblock>)> {
    match slots {
        [Slot::Valid(a), Slot::Valid(b)] => {
            let (newer, older) = if a.generation > b.generation { (a, b) } else { (b, a) };
            let older = Some(older).filter(|older| older.generation < newer.generation);
            Ok((newer, older))
        }
        [Slot::Valid(one), _] | [_, Slot::Valid(one)] => Ok((one, None)),
        _ => Err(Error::corrupted(FILE, None, "neither slot is valid")),
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;

    use super::*;

    fn superblock(generation: u64) -> Superblock {
        Superblock {
            generation,
            position: Position { index: 5, term: 6 },
            meta_file: 1,
            meta_len: 2,
            meta_chain: 3,
            machine_state: b"state".as_slice().into(),
        }
    }

    #[test]
    fn a_slot_is_read_back_and_every_flipped_byte_found() {
        let slot = superblock(7).encode();
        assert_eq!(slot.len(), SLOT_BYTES);
        assert_eq!(Superblock::decode(&slot), Some(superblock(7)));
        for at in (0..200).chain((200..SLOT_BYTES).step_by(991)) {
            let mut broken = slot.clone();
            broken[at] ^= 1;
            assert_eq!(Superblock::decode(&broken), None, "byte {at}");
        }
    }

    #[test]
    fn the_newest_valid_slot_wins() {
        let valid = |generation| Slot::Valid(superblock(generation));
        assert_eq!(newest([valid(8), valid(7)]), Ok((superblock(8), Some(superblock(7)))));
        assert_eq!(newest([valid(8), valid(9)]), Ok((superblock(9), Some(superblock(8)))));
        assert_eq!(newest([Slot::Broken, valid(7)]), Ok((superblock(7), None)));
        assert_eq!(newest([valid(7), valid(7)]), Ok((superblock(7), None)));
        assert!(newest([Slot::Broken, Slot::Blank]).is_err());
    }

    fn slots(sim: &SimStorage) -> [Slot; 2] {
        read_slots(&*sim.open(FILE, OpenMode::Existing).expect("it is there")).expect("readable")
    }

    #[test]
    fn a_write_leaves_the_slot_of_the_previous_generation_and_a_copy_replaces_it() {
        let sim = SimStorage::new();
        publish(&sim, &superblock(1)).expect("room");
        assert_eq!(slots(&sim), [Slot::Blank, Slot::Valid(superblock(1))]);
        let file = sim.open(FILE, OpenMode::Existing).expect("it is there");
        write_slot(&*file, &superblock(2)).expect("room");
        assert_eq!(slots(&sim), [Slot::Valid(superblock(2)), Slot::Valid(superblock(1))]);
        write_copy(&*file, &superblock(2)).expect("room");
        assert_eq!(slots(&sim), [Slot::Valid(superblock(2)), Slot::Valid(superblock(2))]);
        write_slot(&*file, &superblock(3)).expect("room");
        sim.flip_bit(FILE, 100, 0);
        assert_eq!(slots(&sim), [Slot::Broken, Slot::Valid(superblock(3))]);
    }

    #[test]
    fn a_crash_while_the_first_one_is_published_leaves_none_or_all_of_it() {
        let mut outcomes = [0; 2];
        for n in 0.. {
            let sim = SimStorage::new();
            sim.crash_after(n);
            let published = publish(&sim, &superblock(1));
            for seed in 0..8 {
                let loss = sim.power_loss(seed);
                let found = exists(&loss).expect("readable");
                assert!(found || published.is_err(), "after {n} calls, seed {seed}");
                if found {
                    assert_eq!(slots(&loss), [Slot::Blank, Slot::Valid(superblock(1))], "after {n} calls, seed {seed}");
                }
                outcomes[usize::from(found)] += 1;
            }
            if published.is_ok() {
                break;
            }
        }
        assert!(outcomes[0] > 0 && outcomes[1] > 0, "{outcomes:?}");
    }

    #[test]
    fn a_file_of_another_length_and_a_slot_of_another_format_are_refused() {
        let sim = SimStorage::new();
        publish(&sim, &superblock(1)).expect("room");
        let file = sim.open(FILE, OpenMode::Existing).expect("it is there");
        let mut other = superblock(2).encode();
        other[16] = 99;
        let checksum = XxHash3_64::oneshot(&other[16..]);
        other[8..16].copy_from_slice(&checksum.to_le_bytes());
        file.write_all_at(&other, 0).expect("room");
        assert!(matches!(read_slots(&*file), Err(Error::OtherFormat { found: 99, known: FORMAT })));
        for len in [0, SLOT_BYTES as u64, 2 * SLOT_BYTES as u64 + 1] {
            file.set_len(len).expect("room");
            assert!(matches!(read_slots(&*file), Err(Error::Corrupted { .. })), "{len} bytes");
        }
    }

    #[test]
    fn a_directory_that_is_not_there_has_no_superblock() {
        let dir = SimStorage::new().subdir("nowhere").expect("a path");
        assert_eq!(exists(&*dir), Ok(false));
    }

    impl PartialEq for Error {
        fn eq(&self, other: &Self) -> bool {
            self.to_string() == other.to_string()
        }
    }
}
