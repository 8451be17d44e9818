//! The accepted commands, in files that only grow: one file for each chunk of 256 headers.
//!
//! A record holds the raft index and the bytes of a command that changed the state. Recovery
//! executes the records after the newest saved state again. Later, the records answer reads of a
//! header's journal entries. Records wait in memory until a flush appends and syncs them. Bytes
//! that a crash leaves beyond the length in the superblock are cut off.

use std::sync::Arc;

use coppice_env::Storage;
use coppice_types::Digest;
use coppice_verify::hash;
use twox_hash::XxHash3_64;

use crate::{
    COMMAND_BYTES_MAX, Error,
    codec::{len32, to_usize},
    store::{self, Store},
    tiles::number_path,
};

/// Bytes of the length and the checksum before each record.
const RECORD_HEAD_BYTES: usize = 12;

// The size in docs/format.md.
const _: () = assert!(RECORD_HEAD_BYTES == size_of::<u32>() + size_of::<u64>());
/// Bytes of the raft index before the command.
const INDEX_BYTES: usize = 8;

/// The place of a record in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

/// The end of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// Number of the growing file, which is that of the bundle for the next header.
    pub(crate) chunk: u64,
    /// Length of the growing file.
    pub(crate) len: u64,
    /// Hash chain over the file's records.
    pub(crate) chain: Digest,
}

impl End {
    /// The start of a file.
    pub(crate) fn of_chunk(chunk: u64) -> Self {
        Self { chunk, len: 0, chain: Digest::default() }
    }
}

/// A record in its file.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    pub(crate) place: Place,
    pub(crate) index: u64,
    pub(crate) command: &'a [u8],
}

/// The growing journal.
#[derive(Debug)]
pub(crate) struct Journal {
    end: End,
    /// Parts that a flush is writing.
    writing: Vec<Arc<Unwritten>>,
    /// Later parts.
    unwritten: Vec<Unwritten>,
}

/// The end of a file that is not on disk yet.
#[derive(Debug)]
pub(crate) struct Unwritten {
    chunk: u64,
    offset: u64,
    bytes: Vec<u8>,
}

impl Unwritten {
    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The bytes at a place, if they are in this part.
    fn get(&self, chunk: u64, offset: u64, len: usize) -> Option<&[u8]> {
        let from = offset.checked_sub(self.offset).filter(|_| chunk == self.chunk)?;
        self.bytes.get(usize::try_from(from).ok()?..)?.get(..len)
    }
}

/// Name of a chunk's journal file.
pub(crate) fn journal_path(chunk: u64) -> String {
    format!("journal/{}", number_path(chunk))
}

/// The next link of the hash chain over a file's records. In a manifest, the chain stands for the
/// file's hash.
pub(crate) fn chain(before: &Digest, record: &[u8]) -> Digest {
    hash::sha256(&[&before.0, record].concat())
}

impl Journal {
    pub(crate) fn new(end: End) -> Self {
        Self { end, writing: Vec::new(), unwritten: Vec::new() }
    }

    pub(crate) fn end(&self) -> End {
        self.end
    }

    pub(crate) fn unwritten_bytes(&self) -> u64 {
        self.parts().map(Unwritten::len).sum()
    }

    /// Appends a record to the growing file.
    pub(crate) fn append(&mut self, index: u64, command: &[u8]) -> Place {
        assert!(command.len() <= COMMAND_BYTES_MAX, "a command that was decoded is within its limit");
        let payload = [&index.to_le_bytes(), command].concat();
        let len = len32(payload.len());
        let checksum = XxHash3_64::oneshot_with_seed(seed(self.end.chunk, self.end.len), &payload);
        let record = [&len.to_le_bytes()[..], &checksum.to_le_bytes(), &payload].concat();
        let place = Place { offset: self.end.len, len: len32(record.len()) };
        match self.unwritten.last_mut() {
            Some(part) if part.chunk == self.end.chunk => {
                assert_eq!(part.offset + part.bytes.len() as u64, self.end.len, "records follow each other");
                part.bytes.extend_from_slice(&record);
            }
            _ => self.unwritten.push(Unwritten { chunk: self.end.chunk, offset: self.end.len, bytes: record.clone() }),
        }
        self.end.len += u64::from(place.len);
        self.end.chain = chain(&self.end.chain, &record);
        place
    }

    /// Ends the growing file and starts the next one. Returns the end of the full file.
    pub(crate) fn roll(&mut self) -> End {
        assert!(self.end.len > 0, "a chunk ends with the record of a header");
        let next = End::of_chunk(self.end.chunk + 1);
        std::mem::replace(&mut self.end, next)
    }

    /// The command at a place.
    pub(crate) fn read(&self, store: &Store, chunk: u64, place: Place) -> Result<Vec<u8>, Error> {
        let len = to_usize(place.len);
        let bytes = match self.parts().find_map(|part| part.get(chunk, place.offset, len)) {
            Some(bytes) => bytes.to_vec(),
            None => store::read_part(store.storage(), &journal_path(chunk), place.offset, len)?,
        };
        let record = parse(chunk, place.offset, &bytes)?;
        if record.place != place {
            return Err(Error::corrupted(&journal_path(chunk), "a record has a different length than its index says"));
        }
        Ok(record.command.to_vec())
    }

    /// All parts that are not on disk, in their order.
    fn parts(&self) -> impl Iterator<Item = &Unwritten> {
        self.writing.iter().map(Arc::as_ref).chain(&self.unwritten)
    }

    /// The parts that a flush has to write. They stay readable until [`Self::note_written`].
    pub(crate) fn begin_write(&mut self) -> Vec<Arc<Unwritten>> {
        self.writing.extend(self.unwritten.drain(..).map(Arc::new));
        self.writing.clone()
    }

    /// Forgets the parts of [`Self::begin_write`], which are durable now.
    pub(crate) fn note_written(&mut self) {
        self.writing.clear();
    }

    /// Drops records that recovery appended again from memory, since they are on disk already.
    pub(crate) fn forget_unwritten(&mut self) {
        self.unwritten.clear();
    }
}

/// Makes parts of the journal durable.
pub(crate) fn write(storage: &dyn Storage, parts: &[Arc<Unwritten>]) -> Result<(), Error> {
    let mut created = Vec::new();
    for part in parts {
        let name = journal_path(part.chunk);
        let file = store::open_or_create(storage, &name)?;
        file.write_all_at(&part.bytes, part.offset).map_err(Error::io(&name, "write"))?;
        file.sync_data().map_err(Error::io(&name, "sync"))?;
        if part.offset == 0 {
            created.push(name);
        }
    }
    if created.is_empty() { Ok(()) } else { store::sync_parents(storage, created.iter().map(String::as_str)) }
}

/// Length of the record at the start of `bytes`, by its own header.
pub(crate) fn record_len(bytes: &[u8]) -> Option<usize> {
    let len = u32::from_le_bytes(*bytes.first_chunk::<4>()?);
    to_usize(len).checked_add(RECORD_HEAD_BYTES)
}

/// Parses the first record in `bytes`, which lie at `offset` of the chunk's file.
pub(crate) fn parse(chunk: u64, offset: u64, bytes: &[u8]) -> Result<Record<'_>, Error> {
    let damaged = |what| Error::corrupted(&journal_path(chunk), what);
    let ends_early = || damaged("a record ends early");
    let (len, rest) = bytes.split_first_chunk::<4>().ok_or_else(ends_early)?;
    let (checksum, rest) = rest.split_first_chunk::<8>().ok_or_else(ends_early)?;
    let (len, checksum) = (u32::from_le_bytes(*len), u64::from_le_bytes(*checksum));
    let payload = rest.get(..to_usize(len)).ok_or_else(ends_early)?;
    if XxHash3_64::oneshot_with_seed(seed(chunk, offset), payload) != checksum {
        return Err(damaged("a record has another checksum"));
    }
    let (index, command) =
        payload.split_first_chunk::<INDEX_BYTES>().ok_or_else(|| damaged("a record has no index"))?;
    let whole = len.checked_add(RECORD_HEAD_BYTES as u32).ok_or_else(|| damaged("a record is too long"))?;
    Ok(Record { place: Place { offset, len: whole }, index: u64::from_le_bytes(*index), command })
}

/// Binds a checksum to the place of its record, so that a record in a wrong place is noticed.
fn seed(chunk: u64, offset: u64) -> u64 {
    chunk.rotate_left(40) ^ offset
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;

    use super::*;

    #[test]
    fn a_record_is_read_from_memory_and_from_disk() {
        let disk = SimStorage::new();
        let store = Store::new(disk.storage());
        let mut journal = Journal::new(End::of_chunk(0));
        let persist = |journal: &mut Journal| {
            write(store.storage(), &journal.begin_write()).expect("the disk works");
            journal.note_written();
        };
        let first = journal.append(1, b"first");
        persist(&mut journal);
        let second = journal.append(2, b"second");
        let full = journal.roll();
        let third = journal.append(3, b"third");
        assert_eq!((full.chunk, full.len), (0, second.offset + u64::from(second.len)));
        assert_eq!((journal.end().chunk, third.offset), (1, 0));
        for persisted in [false, true] {
            for (chunk, place, command) in [(0, first, &b"first"[..]), (0, second, b"second"), (1, third, b"third")] {
                assert_eq!(journal.read(&store, chunk, place).expect("it is there"), command, "on disk: {persisted}");
            }
            persist(&mut journal);
            assert_eq!(journal.unwritten_bytes(), 0);
        }
    }

    #[test]
    fn a_record_in_another_place_is_damage() {
        let mut journal = Journal::new(End::of_chunk(4));
        journal.append(9, b"command");
        let bytes = journal.unwritten[0].bytes.clone();
        assert_eq!(record_len(&bytes), Some(bytes.len()));
        let record = parse(4, 0, &bytes).expect("its own place");
        assert_eq!((record.index, record.command), (9, &b"command"[..]));
        for (chunk, offset) in [(4, 1), (5, 0)] {
            assert!(parse(chunk, offset, &bytes).is_err(), "{chunk} {offset}");
        }
        for len in 0..bytes.len() {
            assert!(parse(4, 0, &bytes[..len]).is_err(), "cut at {len}");
        }
    }
}
