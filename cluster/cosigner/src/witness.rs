//! The cosigner's state machine: synchronous, on a storage and a clock.
//!
//! **The order, always**: the note is signed by the key in force; the mirror holds its log, which
//! goes on from the largest verified note and from the note that was cosigned last; the new record
//! is durable; only then the signature leaves.
//!
//! **Invariants.** No two lines of this key are on checkpoints that one log can't have, over all
//! restarts and crashes. After a halt there is no signature until a person has seen the evidence.
//! Before the first signature after a start, others have said which lines of this key they saw.

mod cosign;
mod halt;
mod status;

use std::{collections::BTreeSet, sync::Arc};

use coppice_env::{
    Clock, Storage,
    bug::{self, Bug},
};
use coppice_types::Sequence;
use coppice_verify::{
    checkpoint::{Checkpoint, cluster_of},
    cosignature::{Cosigner, CosignerKey, WitnessKey, add_lines},
    keys::{KeyChange, Keys},
    note::VerifierKey,
};

pub use self::{
    cosign::{Answer, Outcome},
    status::Status,
};
use crate::{
    config::KeyChanges,
    convict::{Judged, Known},
    error::{Error, damaged, disk},
    lines::{self, Found},
    mirror::{Grown, Mirror},
    record::{Cosigned, Record, Slots},
};

/// Folder of the mirrored log.
pub const LOG: &str = "log";
/// Folder of evidence.
pub const EVIDENCE: &str = "evidence";
/// Ending of the names of evidence files.
pub const EVIDENCE_ENDING: &str = ".evidence";
/// Ending of the names of notes that only another holder of this key can have cosigned.
pub const TWIN_ENDING: &str = ".twin";
/// Ending of the names of an auditor's findings: versions that do not follow from their batches.
pub const FINDING_ENDING: &str = ".finding";

/// What a cosigner is made of.
#[derive(Debug)]
pub struct Means {
    /// The folder of its state and of its evidence.
    pub storage: Arc<dyn Storage>,
    /// The mirrored log.
    pub mirror: Mirror,
    pub clock: Arc<dyn Clock>,
    pub signer: Cosigner,
    /// The ledger's public key.
    pub ledger: VerifierKey,
    pub key_changes: KeyChanges,
    /// How many peers must have answered before the first signature.
    pub floor_peers: usize,
}

/// What a line of this cosigner's key on a note means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// There is none, or it is a line that was given.
    Known,
    /// The state was set back: this line was given later.
    Later,
    /// The cosigner has halted.
    Halted,
}

/// A cosigner of one ledger.
pub struct Witness {
    storage: Arc<dyn Storage>,
    clock: Arc<dyn Clock>,
    signer: Cosigner,
    ledger: VerifierKey,
    key_changes: KeyChanges,
    slots: Slots,
    record: Record,
    mirror: Mirror,
    keys: Keys,
    /// The newest note of the verified log that has lines of others, for evidence and readers.
    shown: Option<Vec<u8>>,
    /// Signed notes that are larger than the verified log.
    pending: Vec<Vec<u8>>,
    /// What the evidence files are about.
    known: BTreeSet<String>,
    /// How many peers must answer, and how many have.
    floor_peers: usize,
    answered: usize,
    /// Whether others were asked since the start.
    floor: bool,
    /// The smallest size that may be signed.
    least: u64,
    /// Keeps other processes away from the folder; `None` if it is only looked into.
    lock: Option<Box<dyn Send + Sync>>,
}

impl std::fmt::Debug for Witness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Witness").field("record", &self.record).finish_non_exhaustive()
    }
}

/// Takes the folder for this process.
///
/// # Errors
/// If another process has it.
pub fn lock(storage: &dyn Storage) -> Result<Box<dyn Send + Sync>, Error> {
    storage.lock("lock").map_err(|error| match error.kind() {
        std::io::ErrorKind::WouldBlock => {
            Error::Refused("the folder is in use: stop its `coppice cosigner run` first".to_owned())
        }
        _ => disk("lock")(error),
    })
}

impl Witness {
    /// Opens the folder of a cosigner, which nobody else may have open.
    ///
    /// # Errors
    /// If the folder is in use, is damaged, or is of another key or ledger.
    pub fn open(means: Means) -> Result<Self, Error> {
        let lock = lock(&*means.storage)?;
        let mut witness = Self::look(means)?;
        witness.lock = Some(lock);
        Ok(witness)
    }

    /// Looks into the folder of a cosigner, which may run meanwhile. Nothing is to be changed by
    /// what this returns.
    ///
    /// # Errors
    /// If the folder is damaged, or is of another key or ledger.
    pub fn look(means: Means) -> Result<Self, Error> {
        let Means { storage, mirror, clock, signer, ledger, key_changes, floor_peers } = means;
        let (slots, mut record) = Slots::open(&*storage)?;
        if bug::planted(Bug::HaltForgotten) {
            record.halted = None;
        }
        if record.origin != ledger.name() || record.key != signer.verifier().public_key() {
            return Err(Error::Refused("the state is of another ledger or of another key".to_owned()));
        }
        check_tip(&mirror, &record)?;
        let keys = keys_of(&mirror, &ledger, &record.changes)?;
        let mut witness = Self {
            clock,
            signer,
            ledger,
            key_changes,
            slots,
            record,
            mirror,
            keys,
            shown: None,
            pending: Vec::new(),
            known: BTreeSet::new(),
            floor_peers,
            answered: 0,
            floor: false,
            least: 0,
            storage,
            lock: None,
        };
        witness.pending = witness.read_pending()?;
        witness.known = witness.read_known()?;
        Ok(witness)
    }

    /// Size of the verified log.
    #[must_use]
    pub fn size(&self) -> u64 {
        size_of(self.record.tip.as_deref())
    }

    /// Size that was cosigned last; 0 if nothing was.
    #[must_use]
    pub fn cosigned_size(&self) -> u64 {
        size_of(self.record.cosigned.as_ref().map(|cosigned| cosigned.note.as_str()))
    }

    /// The mirror, which readers may use up to [`Witness::size`].
    #[must_use]
    pub fn mirror(&self) -> Mirror {
        self.mirror.clone()
    }

    /// The keys of the ledger, as far as the verified log goes.
    #[must_use]
    pub fn keys(&self) -> Keys {
        self.keys.clone()
    }

    /// Indices of the key changes of the verified log from this entry on, ascending.
    #[must_use]
    pub fn changes_from(&self, index: u64) -> Vec<u64> {
        self.record.changes.iter().copied().filter(|change| *change >= index).collect()
    }

    /// The key changes of the verified log, each with its entry.
    ///
    /// # Errors
    /// If the disk refuses, or the mirror is damaged.
    pub fn changes(&self) -> Result<Vec<(Sequence, KeyChange)>, Error> {
        self.record.changes.iter().map(|index| Ok((Sequence(*index), self.mirror.key_change(*index)?))).collect()
    }

    /// The largest verified checkpoint, as a note.
    #[must_use]
    pub fn tip(&self) -> Option<String> {
        self.record.tip.clone()
    }

    /// The newest cosigned checkpoint with the ledger's line and this cosigner's.
    #[must_use]
    pub fn cosigned(&self) -> Option<Vec<u8>> {
        let Cosigned { note, line, .. } = self.record.cosigned.as_ref()?;
        add_lines(note.as_bytes(), std::slice::from_ref(line)).ok()
    }

    /// The ledger's public key, as it was given.
    #[must_use]
    pub fn ledger(&self) -> &VerifierKey {
        &self.ledger
    }

    /// The public key of this cosigner.
    #[must_use]
    pub fn key(&self) -> &CosignerKey {
        self.signer.verifier()
    }

    /// Whether a note is in the verified log, is not, or can't be.
    ///
    /// # Errors
    /// If the disk refuses, or the mirror is damaged.
    pub fn judge(&self, note: &[u8]) -> Result<Judged, Error> {
        // A log that was fetched again may be another one than what was cosigned.
        let own = if self.has_cosigned()? { self.cosigned() } else { None };
        let tip = self.record.tip.as_ref().map(|tip| tip.clone().into_bytes());
        let notes: Vec<Vec<u8>> = self.shown.iter().cloned().chain(own).chain(tip).collect();
        let known =
            Known { trusted: &self.ledger, keys: &self.keys, mirror: &self.mirror, size: self.size(), notes: &notes };
        known.judge(note)
    }

    /// Whether the verified log has what was cosigned last.
    fn has_cosigned(&self) -> Result<bool, Error> {
        let Some(cosigned) = &self.record.cosigned else { return Ok(false) };
        match Checkpoint::claimed(cosigned.note.as_bytes()) {
            Ok(last) if last.size <= self.size() => Ok(self.mirror.root(last.size)? == last.root),
            _ => Ok(false),
        }
    }

    /// Judges a note that somebody shows. Evidence halts this cosigner.
    ///
    /// # Errors
    /// Like [`Witness::judge`].
    pub fn show(&mut self, note: &[u8]) -> Result<Judged, Error> {
        let judged = self.judge(note)?;
        if let Judged::Evidence(file) = &judged {
            self.halt(file, EVIDENCE_ENDING)?;
        }
        Ok(judged)
    }

    /// Keeps the newest note of the log that has lines of others, for evidence: who signed both of
    /// two logs is convicted, too. The note must be [`Judged::Fine`], and come from a server that
    /// the settings name, since anybody can add lines.
    pub fn keep_lines(&mut self, note: &[u8]) {
        let size = |note: &[u8]| Checkpoint::claimed(note).map_or(0, |checkpoint| checkpoint.size);
        let newer = self.shown.as_ref().is_none_or(|shown| size(note) >= size(shown));
        let has_lines = note
            .windows(2)
            .rposition(|pair| pair == b"\n\n")
            .is_some_and(|at| note[at + 2..].iter().filter(|byte| **byte == b'\n').count() > 1);
        if newer && has_lines {
            self.shown = Some(note.to_vec());
        }
    }

    /// Says what a line of this cosigner's key on a note means, and halts if only another holder of
    /// the key can have given it.
    ///
    /// # Errors
    /// Like [`Witness::judge`].
    pub fn own(&mut self, note: &[u8]) -> Result<Own, Error> {
        let Some(checkpoint) = self.line_on(note).and_then(|_| Checkpoint::claimed(note).ok()) else {
            return Ok(Own::Known);
        };
        if checkpoint.origin == self.ledger.name() && checkpoint.size > self.cosigned_size() && !self.floor {
            return Ok(Own::Later);
        }
        let known = checkpoint.size <= self.cosigned_size();
        match self.judge(note)? {
            Judged::Evidence(file) => self.halt(&file, EVIDENCE_ENDING)?,
            Judged::Fine if known => return Ok(Own::Known),
            // A log that was lost is not there yet again, nor are its later keys.
            Judged::Ahead | Judged::Unsigned if known && checkpoint.size > self.size() => return Ok(Own::Known),
            _ => self.halt(note, TWIN_ENDING)?,
        }
        Ok(Own::Halted)
    }

    fn line_on(&self, note: &[u8]) -> Option<Found> {
        lines::cosignature(note, &WitnessKey::from(self.signer.verifier().clone()))
    }

    /// Goes on from a line that was given before the state was set back. The mirror must have its
    /// log.
    ///
    /// # Errors
    /// If the note is not of the verified log, or has no line of this key.
    pub fn adopt(&mut self, note: &[u8]) -> Result<(), Error> {
        let found = self.line_on(note).ok_or_else(|| Error::Refused("no line of this cosigner".to_owned()))?;
        match self.show(note)? {
            Judged::Fine => {}
            _ => return Err(Error::Refused("a line of this cosigner is on a note beyond its log".to_owned())),
        }
        let checkpoint = Checkpoint::claimed(note).map_err(|error| Error::Refused(error.to_string()))?;
        if checkpoint.size <= self.cosigned_size() {
            return Ok(());
        }
        let key = self.keys.in_force(checkpoint.size);
        let note = lines::bare(note, key).ok_or_else(|| Error::Refused("not signed".to_owned()))?;
        let size = checkpoint.size;
        tracing::warn!(size, "the state was set back: going on from a cosignature that others had");
        self.write(|record| record.cosigned = Some(Cosigned { note, line: found.line, time: found.time }))
    }

    /// Notes that so many peers have said what they saw of this cosigner, and that all of it is
    /// adopted. Returns whether that is enough to sign.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn asked(&mut self, peers: usize) -> Result<bool, Error> {
        self.answered = self.answered.max(peers);
        // The ledger alone is not asked what it may hide.
        let enough = self.floor_peers.max(usize::from(self.record.lost));
        if !self.floor && (self.answered >= enough || bug::planted(Bug::CosignerFloorSkipped)) {
            if self.record.lost {
                self.write(|record| record.lost = false)?;
            }
            self.floor = true;
        }
        Ok(self.floor)
    }

    /// Signs no size below this one from now on, but for the checkpoint that was cosigned last.
    pub fn sign_from(&mut self, size: u64) {
        self.least = self.least.max(size);
    }

    /// Takes a log that has grown in the mirror up to a signed note.
    ///
    /// # Errors
    /// [`Error::Refused`] if it does not lead to the note, or no key in force signed that.
    pub fn advance(&mut self, note: &[u8], grown: &Grown) -> Result<(), Error> {
        let refused = |what: &str| Error::Refused(what.to_owned());
        if grown.from != self.size() {
            return Err(refused("the log has grown meanwhile"));
        }
        // The mirror may have another owner, who had to fetch it again.
        check_tip(&self.mirror, &self.record)?;
        let checkpoint = Checkpoint::claimed(note).map_err(|error| Error::Refused(error.to_string()))?;
        if checkpoint.size != grown.to || self.mirror.root(checkpoint.size)? != checkpoint.root {
            return Err(refused("the entries do not lead to the signed root"));
        }
        // In a log that is no ledger, an entry that reads like a key change is just an entry.
        let is_ledger = cluster_of(self.ledger.name()).is_some();
        let new: &[u64] = if is_ledger { &grown.changes } else { &[] };
        let changes = [&self.record.changes, new].concat();
        let keys = keys_of(&self.mirror, &self.ledger, &changes)?;
        let in_force = keys.in_force(checkpoint.size);
        let tip = lines::bare(note, in_force).ok_or_else(|| refused("not signed by the key in force"))?;
        let accepted = match self.key_changes {
            KeyChanges::Follow => changes.len(),
            KeyChanges::Ask => place_of(&keys, &self.ledger).max(self.record.accepted as usize),
        };
        let accepted = u32::try_from(accepted).unwrap_or(u32::MAX);
        let tip = Some(tip);
        self.write(|record| (record.tip, record.changes, record.accepted) = (tip, changes, accepted))?;
        self.keys = keys;
        self.look_back()
    }

    /// Accepts the ledger's next key.
    ///
    /// # Errors
    /// If this is not the key to which the first change that is not accepted leads.
    pub fn accept(&mut self, key: &VerifierKey) -> Result<(), Error> {
        let next = self.keys.changes().nth(self.record.accepted as usize).map(|(_, key)| key.clone());
        let next = next.ok_or_else(|| Error::Refused("no key change waits to be accepted".to_owned()))?;
        if next != *key {
            return Err(Error::Refused(format!("the ledger's next key is {next}, not this one")));
        }
        self.write(|record| record.accepted += 1)
    }

    /// Gives up the folder: from now on another process may have it, and nothing is written here.
    pub fn release(&mut self) {
        self.lock = None;
    }

    /// Makes a changed record durable.
    fn write(&mut self, change: impl FnOnce(&mut Record)) -> Result<(), Error> {
        let mut record = self.record.clone();
        change(&mut record);
        assert!(self.lock.is_some(), "only the holder of the folder writes");
        self.slots.write(&record)?;
        self.record = record;
        Ok(())
    }
}

/// Writes a new state from what is left of the old one. Nothing is signed before others have said
/// which lines of this key they saw. If the mirror does not lead to the signed root, the state has
/// no log, so that all of it is fetched or audited again.
///
/// # Errors
/// If the folder is in use or the disk refuses.
pub fn recover(storage: &dyn Storage, mirror: &Mirror, origin: &str, key: [u8; 32]) -> Result<Record, Error> {
    let _lock = lock(storage)?;
    let mut record = Slots::salvage(storage)?.unwrap_or_else(|| Record::new(origin, key));
    if record.origin != origin || record.key != key {
        return Err(Error::Refused("the state is of another ledger or of another key".to_owned()));
    }
    record.lost = true;
    if check_tip(mirror, &record).is_err() {
        (record.tip, record.changes) = (None, Vec::new());
    }
    Slots::replace(storage, &record)?;
    Ok(record)
}

fn size_of(note: Option<&str>) -> u64 {
    note.and_then(|note| Checkpoint::claimed(note.as_bytes()).ok()).map_or(0, |checkpoint| checkpoint.size)
}

/// Checks that the mirror leads to the root of the record's note.
fn check_tip(mirror: &Mirror, record: &Record) -> Result<(), Error> {
    let Some(tip) = &record.tip else { return Ok(()) };
    let advice = "`coppice cosigner recover` fetches the log again";
    let checkpoint = Checkpoint::claimed(tip.as_bytes()).map_err(|_| damaged(format!("state: {advice}")))?;
    match mirror.root(checkpoint.size) {
        Ok(root) if root == checkpoint.root => Ok(()),
        Err(Error::Disk(error)) => Err(Error::Disk(error)),
        _ => Err(damaged(format!("log: it does not lead to its signed root; {advice}"))),
    }
}

/// The keys of a ledger by the changes at these entries of its log.
fn keys_of(mirror: &Mirror, ledger: &VerifierKey, changes: &[u64]) -> Result<Keys, Error> {
    let read = |index: &u64| Ok((Sequence(*index), mirror.key_change(*index)?));
    let changes = changes.iter().map(read).collect::<Result<Vec<(Sequence, KeyChange)>, Error>>()?;
    follow(&Keys::new(ledger.clone()), changes.iter().map(|(at, change)| (*at, change)))
}

/// Follows key changes, each of which both of its keys must have signed.
///
/// # Errors
/// If one is not signed by both, or they do not lead from a trusted key.
pub fn follow<'a>(keys: &Keys, changes: impl Iterator<Item = (Sequence, &'a KeyChange)>) -> Result<Keys, Error> {
    let changes: Vec<_> = changes.collect();
    let cluster = cluster_of(keys.first().name());
    for (_, change) in &changes {
        let cluster = cluster.as_ref().ok_or_else(|| Error::Refused("the origin ends in no cluster id".to_owned()))?;
        if !bug::planted(Bug::ChangeSignedOnce) {
            change.check(cluster).map_err(|broken| Error::Refused(format!("key change: {}", broken.0)))?;
        }
    }
    keys.follow(changes).map_err(|why| Error::Refused(why.to_owned()))
}

/// How many changes lead to this key.
fn place_of(keys: &Keys, key: &VerifierKey) -> usize {
    keys.changes().position(|(_, other)| other == key).map_or(0, |before| before + 1)
}
