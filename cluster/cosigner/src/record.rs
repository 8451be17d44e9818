//! What a cosigner must not forget: two slots on disk, written in turn.
//!
//! **Invariants.** A record is durable before anything that follows from it leaves the process. A
//! write touches only the slot that holds the older record, so a crash leaves the newer one whole.
//! A slot that does not check is never taken for the older one: it may have held the newest
//! record, and a signature may have been given under it. Then both are refused until
//! [`recover`](crate::witness::recover) has asked others.

use std::sync::Arc;

use coppice_env::{
    File, OpenMode, Storage,
    bug::{self, Bug},
};
use coppice_types::{
    Digest,
    codec::{self, Reader, Writer},
};
use coppice_verify::{hash::sha256, keys::KEY_CHANGES_MAX};

use crate::error::{Error, damaged, disk};

/// Name of the file.
pub const STATE: &str = "state";
/// Bytes of a slot.
const SLOT_BYTES: usize = 8 << 10;
const SLOTS: u64 = 2;
/// First bytes of a slot of this format.
const MAGIC: &[u8; 8] = b"CPCOSGN1";
/// Bytes before the payload: magic, counter and length.
const HEAD_BYTES: usize = 8 + 8 + 4;
const CHECKSUM_BYTES: usize = 32;
/// Most checkpoints whose evidence a person has seen, which no longer halt the cosigner.
pub const SEEN_MAX: usize = 16;

/// A checkpoint that this cosigner signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cosigned {
    /// The note with the ledger's line alone.
    pub note: String,
    /// The cosignature line.
    pub line: String,
    /// The time in the line, in seconds since 1970.
    pub time: u64,
}

/// What a cosigner must not forget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Origin of the ledger.
    pub origin: String,
    /// The cosigner's own public key: a record never serves another key.
    pub key: [u8; 32],
    /// The largest verified checkpoint, as a note with the ledger's line alone. The mirror holds
    /// its log.
    pub tip: Option<String>,
    /// The checkpoint that was cosigned last.
    pub cosigned: Option<Cosigned>,
    /// Indices of the entries that change the ledger's key, ascending.
    pub changes: Vec<u64>,
    /// How many of these changes are accepted.
    pub accepted: u32,
    /// Whether [`Record::cosigned`] is no longer complete: no signature before others were asked.
    pub lost: bool,
    /// Name of the evidence file that halts this cosigner.
    pub halted: Option<String>,
    /// Imprints of the checkpoints whose evidence a person has seen, oldest first.
    pub seen: Vec<String>,
}

impl Record {
    /// The record of a cosigner that has signed nothing.
    #[must_use]
    pub fn new(origin: &str, key: [u8; 32]) -> Self {
        Self {
            origin: origin.to_owned(),
            key,
            tip: None,
            cosigned: None,
            changes: Vec::new(),
            accepted: 0,
            lost: false,
            halted: None,
            seen: Vec::new(),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.str16(self.origin.as_bytes());
        out.raw(&self.key);
        out.str16(self.tip.as_deref().unwrap_or_default().as_bytes());
        match &self.cosigned {
            None => out.flag(false),
            Some(Cosigned { note, line, time }) => {
                out.flag(true);
                out.str16(note.as_bytes());
                out.str16(line.as_bytes());
                out.u64(*time);
            }
        }
        out.u16(u16::try_from(self.changes.len()).expect("the changes of a ledger are few"));
        for index in &self.changes {
            out.u64(*index);
        }
        out.u32(self.accepted);
        out.flag(self.lost);
        out.str16(self.halted.as_deref().unwrap_or_default().as_bytes());
        out.u16(u16::try_from(self.seen.len()).expect("seen files are few"));
        for name in &self.seen {
            out.str16(name.as_bytes());
        }
        out.into_bytes()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input = Reader::new(bytes);
        let record = Self::read(&mut input).ok()?;
        input.finish().ok()?;
        record
    }

    fn read(input: &mut Reader<'_>) -> Result<Option<Self>, codec::Error> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        let Some(origin) = text(input.str16()?) else { return Ok(None) };
        let key = input.digest()?.0;
        let Some(tip) = text(input.str16()?) else { return Ok(None) };
        let mut cosigned = None;
        if input.flag("cosigned")? {
            let (Some(note), Some(line)) = (text(input.str16()?), text(input.str16()?)) else { return Ok(None) };
            cosigned = Some(Cosigned { note, line, time: input.u64()? });
        }
        let count = usize::from(input.u16()?).min(KEY_CHANGES_MAX);
        let changes = (0..count).map(|_| input.u64()).collect::<Result<_, _>>()?;
        let (accepted, lost) = (input.u32()?, input.flag("lost")?);
        let Some(halted) = text(input.str16()?) else { return Ok(None) };
        let mut seen = Vec::new();
        for _ in 0..usize::from(input.u16()?).min(SEEN_MAX) {
            let Some(name) = text(input.str16()?) else { return Ok(None) };
            seen.push(name);
        }
        let given = |text: String| Some(text).filter(|text| !text.is_empty());
        let (tip, halted) = (given(tip), given(halted));
        Ok(Some(Self { origin, key, tip, cosigned, changes, accepted, lost, halted, seen }))
    }
}

/// The file of the two slots.
#[derive(Debug)]
pub struct Slots {
    file: Arc<dyn File>,
    /// Counter of the newest record.
    counter: u64,
    /// Whether a write has failed: what is on disk is not certain then.
    failed: bool,
}

impl Slots {
    /// Makes the file of a new cosigner.
    ///
    /// # Errors
    /// If there is one already, or the disk refuses.
    pub fn create(storage: &dyn Storage, record: &Record) -> Result<Self, Error> {
        let file = storage.open(STATE, OpenMode::CreateNew).map_err(disk(STATE))?;
        let mut slots = Self { file, counter: 0, failed: false };
        slots.write(record)?;
        slots.write(record)?;
        storage.sync_dir("").map_err(disk(STATE))?;
        Ok(slots)
    }

    /// Opens the file and reads the newest record.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the file is missing, or one of the slots does not check.
    pub fn open(storage: &dyn Storage) -> Result<(Self, Record), Error> {
        let lost =
            |what: &str| damaged(format!("{STATE}: {what}; `coppice cosigner recover` asks others what was signed"));
        let file = match storage.open(STATE, OpenMode::Existing) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(lost("the file is missing")),
            file => file.map_err(disk(STATE))?,
        };
        let [Some(a), Some(b)] = slots_of(&*file)? else {
            return Err(lost("a slot does not check, and it may have held the newest record"));
        };
        if a.0.abs_diff(b.0) != 1 {
            return Err(lost("the two slots are not of successive records"));
        }
        let (counter, record) = if a.0 > b.0 { a } else { b };
        Ok((Self { file, counter, failed: false }, record))
    }

    /// The newest record that checks, without a promise that it is the newest that was written.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn salvage(storage: &dyn Storage) -> Result<Option<Record>, Error> {
        match storage.open(STATE, OpenMode::Existing) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(disk(STATE)(error)),
            Ok(file) => {
                let sound = slots_of(&*file)?.into_iter().flatten();
                Ok(sound.max_by_key(|(counter, _)| *counter).map(|(_, record)| record))
            }
        }
    }

    /// Replaces both slots, whatever they hold.
    ///
    /// # Errors
    /// If the disk refuses. Then the record is still damaged, or is this one.
    pub fn replace(storage: &dyn Storage, record: &Record) -> Result<(), Error> {
        let file = storage.open(STATE, OpenMode::OpenOrCreate).map_err(disk(STATE))?;
        let sound = slots_of(&*file)?.into_iter().flatten().map(|(counter, _)| counter).max();
        let mut slots = Self { file, counter: sound.unwrap_or(0), failed: false };
        slots.write(record)?;
        slots.write(record)?;
        storage.sync_dir("").map_err(disk(STATE))
    }

    /// Writes a record over the older slot. It is durable when this returns.
    ///
    /// # Errors
    /// If the disk refuses, or has refused before: then only a restart finds out what is on disk.
    pub fn write(&mut self, record: &Record) -> Result<(), Error> {
        if self.failed {
            return Err(damaged(format!("{STATE}: a write has failed: start again")));
        }
        let slot = encode(self.counter + 1, record)?;
        self.failed = true;
        self.file.write_all_at(&slot, (self.counter + 1) % SLOTS * SLOT_BYTES as u64).map_err(disk(STATE))?;
        if !bug::planted(Bug::SignedBeforeSync) {
            self.file.sync_data().map_err(disk(STATE))?;
        }
        self.failed = false;
        self.counter += 1;
        Ok(())
    }
}

fn encode(counter: u64, record: &Record) -> Result<Vec<u8>, Error> {
    let payload = record.encode();
    let mut slot = Vec::with_capacity(SLOT_BYTES);
    slot.extend_from_slice(MAGIC);
    slot.extend_from_slice(&counter.to_le_bytes());
    slot.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
    slot.extend_from_slice(&payload);
    let checksum = sha256(&slot);
    slot.extend_from_slice(checksum.as_bytes());
    if slot.len() > SLOT_BYTES {
        return Err(Error::Refused(format!("{STATE}: the record is longer than a slot: names are too long")));
    }
    slot.resize(SLOT_BYTES, 0);
    Ok(slot)
}

/// The records of both slots; `None` for one that does not check.
fn slots_of(file: &dyn File) -> Result<[Option<(u64, Record)>; SLOTS as usize], Error> {
    let mut found = [None, None];
    for (index, found) in (0_u64..).zip(&mut found) {
        let mut slot = vec![0; SLOT_BYTES];
        match file.read_exact_at(&mut slot, index * SLOT_BYTES as u64) {
            Ok(()) => *found = decode(&slot).filter(|(counter, _)| counter % SLOTS == index),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(disk(STATE)(error)),
        }
    }
    Ok(found)
}

fn decode(slot: &[u8]) -> Option<(u64, Record)> {
    let (magic, rest) = slot.split_first_chunk::<8>()?;
    let (counter, rest) = rest.split_first_chunk::<8>()?;
    let (length, _) = rest.split_first_chunk::<4>()?;
    let end = HEAD_BYTES.checked_add(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
    let checksum = Digest::from_slice(slot.get(end..end.checked_add(CHECKSUM_BYTES)?)?)?;
    if magic != MAGIC || sha256(&slot[..end]) != checksum {
        return None;
    }
    Some((u64::from_le_bytes(*counter), Record::decode(&slot[HEAD_BYTES..end])?))
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;

    use super::*;

    fn full() -> Record {
        Record {
            tip: Some("tip".to_owned()),
            cosigned: Some(Cosigned { note: "note".to_owned(), line: "line".to_owned(), time: 7 }),
            changes: vec![3, 9],
            accepted: 1,
            lost: true,
            halted: Some("a.evidence".to_owned()),
            seen: vec!["b.evidence".to_owned()],
            ..Record::new("o", [5; 32])
        }
    }

    #[test]
    fn a_record_survives_its_slots() {
        let disk = SimStorage::new();
        let first = Record::new("o", [5; 32]);
        let mut slots = Slots::create(&disk, &first).expect("a new file");
        assert!(Slots::create(&disk, &first).is_err(), "there is one");
        assert_eq!(Slots::open(&disk).expect("both slots check").1, first);
        for record in [full(), first.clone(), full()] {
            slots.write(&record).expect("the disk is well");
            assert_eq!(Slots::open(&disk).expect("both slots check").1, record);
        }
    }

    #[test]
    fn no_flipped_bit_makes_an_older_record_pass_for_the_newest() {
        let disk = SimStorage::new();
        let mut slots = Slots::create(&disk, &Record::new("o", [5; 32])).expect("a new file");
        slots.write(&full()).expect("the disk is well");
        let length = (HEAD_BYTES + full().encode().len() + CHECKSUM_BYTES) as u64;
        for slot in 0..SLOTS {
            let used = if slot == 1 { length } else { (HEAD_BYTES + Record::new("o", [5; 32]).encode().len()) as u64 };
            for at in 0..used {
                let copy = disk.process_loss();
                copy.flip_bit(STATE, slot * SLOT_BYTES as u64 + at, (at % 8) as u8);
                let refused = Slots::open(&copy).expect_err("a slot is bad");
                assert!(refused.to_string().contains("recover"), "{refused}");
                let salvaged = Slots::salvage(&copy).expect("it can be read").expect("one slot is sound");
                Slots::replace(&copy, &salvaged).expect("the disk is well");
                assert_eq!(Slots::open(&copy).expect("both are new").1, salvaged);
            }
        }
    }

    #[test]
    fn a_lost_or_mixed_file_is_refused() {
        let disk = SimStorage::new();
        assert!(Slots::open(&disk).expect_err("no file").to_string().contains("missing"));
        assert_eq!(Slots::salvage(&disk).expect("no error"), None);
        let mut slots = Slots::create(&disk, &Record::new("o", [5; 32])).expect("a new file");
        let file = disk.open(STATE, OpenMode::Existing).expect("it is there");
        let mut old = vec![0; SLOT_BYTES];
        file.read_exact_at(&mut old, SLOT_BYTES as u64).expect("a slot");
        for _ in 0..2 {
            slots.write(&full()).expect("the disk is well");
        }
        file.write_all_at(&old, SLOT_BYTES as u64).expect("a slot is set back");
        assert!(Slots::open(&disk).expect_err("one slot is older").to_string().contains("successive"));
    }

    #[test]
    fn after_a_failed_write_nothing_is_written() {
        let disk = SimStorage::new();
        let mut slots = Slots::create(&disk, &Record::new("o", [5; 32])).expect("a new file");
        disk.inject(coppice_env::Fault {
            operation: coppice_env::Operation::Sync,
            path_part: STATE.to_owned(),
            skip: 0,
            kind: std::io::ErrorKind::Other,
        });
        assert!(slots.write(&full()).is_err());
        assert!(slots.write(&full()).expect_err("not certain").to_string().contains("start again"));
    }
}
