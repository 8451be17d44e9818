//! A ledger's log that forks, and a cosigner on a simulated disk.
#![expect(dead_code, reason = "each test binary uses a part of it")]

use std::sync::Arc;

use coppice_cosigner::{
    Error,
    config::{KeyChanges, origin_hash},
    mirror::Mirror,
    record::{Record, Slots},
    witness::{Answer, Means, Outcome, Own, Witness},
};
use coppice_env::{SimClock, SimStorage, Storage};
use coppice_types::{ClusterId, Params};
use coppice_verify::{
    checkpoint::Checkpoint,
    cosignature::{self, Cosigner, CosignerKey, WitnessKey, add_lines},
    header::Header,
    merkle,
    note::{SignerKey, VerifierKey},
    replay::Ledger,
    shard_map::ShardMap,
};

/// Logs of different kinds differ from this entry on.
pub const COMMON: u64 = 5;

/// A log of so many entries.
pub fn log(kind: u64, size: u64) -> Ledger {
    let map = ShardMap::from_splits(&[]).expect("one shard");
    let mut ledger = Ledger::new("ledger.example", ClusterId([9; 16]), &[1; 32], &Params::default(), map);
    for at in 1..size {
        ledger.append_unknown(9, if at < COMMON { 0 } else { kind }.to_le_bytes().to_vec());
    }
    ledger
}

pub fn signer() -> Cosigner {
    Cosigner::from_seed("member.example/w", &[40; 32]).expect("a name")
}

pub fn key() -> CosignerKey {
    signer().verifier().clone()
}

pub fn ledger_key() -> VerifierKey {
    ledger_signer(1).verifier().clone()
}

pub fn ledger_signer(seed: u8) -> SignerKey {
    SignerKey::from_seed(log(0, 1).key.name(), &[seed; 32]).expect("a name")
}

pub fn hash() -> String {
    origin_hash(ledger_key().name())
}

/// The signed checkpoint of a log at a size.
pub fn note(log: &Ledger, size: u64) -> Vec<u8> {
    log.checkpoint(size).sign(log.key_at(size)).expect("its own origin").into_bytes()
}

/// A request for a checkpoint of a log.
pub fn request(log: &Ledger, old: u64, size: u64) -> Vec<u8> {
    let hashes: Vec<_> = log.headers[..size as usize].iter().map(Header::hash).collect();
    let proof = match old {
        0 => Vec::new(),
        _ => merkle::consistency_path(&hashes, old),
    };
    cosignature::request(old, &proof, &note(log, size))
}

/// The note with a line of the cosigner's key, as only its holder makes it.
pub fn cosigned(log: &Ledger, size: u64, time: u64) -> Vec<u8> {
    let line = signer().cosign(&log.checkpoint(size).text(), time);
    add_lines(&note(log, size), &[line]).expect("a line")
}

pub fn clock() -> SimClock {
    SimClock::new(1_800_000_000_000)
}

pub fn means(disk: &SimStorage, clock: &SimClock, floor_peers: usize) -> Means {
    Means {
        storage: disk.storage(),
        mirror: mirror(disk),
        clock: Arc::new(clock.clone()),
        signer: signer(),
        ledger: ledger_key(),
        key_changes: KeyChanges::Follow,
        floor_peers,
    }
}

pub fn mirror(disk: &SimStorage) -> Mirror {
    Mirror::new(disk.subdir("log").expect("a path"))
}

/// Makes the state of a new cosigner.
pub fn init(disk: &SimStorage) -> Result<(), Error> {
    Slots::create(disk, &Record::new(ledger_key().name(), key().public_key())).map(drop)
}

/// A new cosigner that may sign, with its mirror at this size.
pub fn cosigner(disk: &SimStorage, clock: &SimClock, log: &Ledger, size: u64) -> Witness {
    init(disk).expect("a new disk");
    let mut witness = Witness::open(means(disk, clock, 0)).expect("a new state");
    assert!(witness.asked(0).expect("the disk is well"));
    grow(&mut witness, log, size).expect("an honest log");
    witness
}

/// Lets the mirror grow to a size of a log.
pub fn grow(witness: &mut Witness, log: &Ledger, size: u64) -> Result<(), Error> {
    let from = witness.size();
    if from >= size {
        return Ok(());
    }
    let mut extension = witness.mirror().extension(from)?;
    let entries: Vec<Vec<u8>> = log.headers[..size as usize].iter().map(Header::encode).collect();
    while extension.size() < size {
        let at = extension.size();
        let end = size.min(at - at % 256 + 256);
        let new: Vec<&[u8]> = entries[at as usize..end as usize].iter().map(Vec::as_slice).collect();
        extension.push(&new)?;
    }
    witness.advance(&note(log, size), &extension.grown(from))
}

/// The answer to a request; the mirror grows by this log if it is behind.
pub fn ask(witness: &mut Witness, log: &Ledger, old: u64, size: u64) -> Result<Answer, Error> {
    let body = request(log, old, size);
    match witness.add_checkpoint(&body)? {
        Outcome::Done(answer) => Ok(answer),
        Outcome::Behind(_) => {
            grow(witness, log, size)?;
            match witness.add_checkpoint(&body)? {
                Outcome::Done(answer) => Ok(answer),
                Outcome::Behind(_) => panic!("the mirror has grown"),
            }
        }
    }
}

/// The checkpoint of a log with this line, if the line is sound.
pub fn signed_by_line(log: &Ledger, size: u64, line: &str) -> Option<Checkpoint> {
    let note = add_lines(&note(log, size), &[line.to_owned()]).ok()?;
    WitnessKey::from(key()).cosigned(&note).ok()??;
    Some(log.checkpoint(size))
}

/// Goes on from what others saw, as the floor does.
pub fn adopt(witness: &mut Witness, log: &Ledger, note: &[u8]) -> Result<Own, Error> {
    let size = Checkpoint::claimed(note).expect("a checkpoint").size;
    grow(witness, log, size)?;
    let own = witness.own(note)?;
    if own == Own::Later {
        witness.adopt(note)?;
    }
    Ok(own)
}
