//! What halts a cosigner, and what may: evidence, lines of a twin, notes that wait for the log.

use std::{collections::BTreeSet, io::ErrorKind};

use coppice_env::bug::{self, Bug};
use coppice_verify::{
    checkpoint::Checkpoint,
    evidence::{self, Evidence},
    hash::sha256,
    note::NOTE_BYTES_MAX,
};

use super::{EVIDENCE, EVIDENCE_ENDING, FINDING_ENDING, TWIN_ENDING, Witness};
use crate::{
    config::hex,
    convict::Judged,
    error::{Error, disk},
    files,
    record::SEEN_MAX,
};

/// Folder of signed notes that are larger than the verified log.
const PENDING: &str = "pending";
/// Most of them.
const PENDING_MAX: usize = 64;
/// Most evidence files that are kept.
const EVIDENCE_FILES_MAX: usize = 64;

impl Witness {
    /// Judges an evidence file that others have.
    ///
    /// # Errors
    /// [`Error::Refused`] if it proves nothing about this ledger.
    pub fn take_evidence(&mut self, file: &[u8]) -> Result<(), Error> {
        if !bug::planted(Bug::EvidenceBelieved) {
            evidence::verify(file, &self.ledger, None).map_err(|failure| Error::Refused(failure.to_string()))?;
        }
        self.halt(file, EVIDENCE_ENDING)
    }

    /// Halts this auditor, because a version does not follow from its batches. The file says which.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn find(&mut self, file: &[u8]) -> Result<(), Error> {
        self.halt(file, FINDING_ENDING)
    }

    /// Judges what was put off until the log has grown.
    pub(super) fn look_back(&mut self) -> Result<(), Error> {
        if let Some(cosigned) = self.cosigned().filter(|_| self.cosigned_size() <= self.size()) {
            self.show(&cosigned)?;
        }
        for note in std::mem::take(&mut self.pending) {
            match self.judge(&note)? {
                Judged::Ahead => self.pending.push(note),
                judged => {
                    if let Judged::Evidence(file) = judged {
                        self.halt(&file, EVIDENCE_ENDING)?;
                    }
                    let path = pending_path(&note);
                    self.storage.remove(&path).map_err(disk(&path))?;
                }
            }
        }
        Ok(())
    }

    /// Puts a signed note off until the log is as large.
    ///
    /// # Errors
    /// Like [`Witness::judge`].
    pub fn put_off(&mut self, note: &[u8]) -> Result<(), Error> {
        if self.show(note)? != Judged::Ahead {
            return Ok(());
        }
        let same = |other: &Vec<u8>| Checkpoint::claimed(other).ok() == Checkpoint::claimed(note).ok();
        if self.pending.len() < PENDING_MAX && !self.pending.iter().any(same) {
            self.put(PENDING, &pending_path(note), note)?;
            self.pending.push(note.to_vec());
        }
        Ok(())
    }

    pub(super) fn read_pending(&self) -> Result<Vec<Vec<u8>>, Error> {
        let names = match self.storage.list(PENDING) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            names => names.map_err(disk(PENDING))?,
        };
        let mut found = Vec::new();
        for name in names.into_iter().filter(|name| !name.contains('.')).take(PENDING_MAX) {
            let path = format!("{PENDING}/{name}");
            let note = self.get(&path, NOTE_BYTES_MAX)?;
            // A file that a crash left half-written has another name.
            if pending_path(&note) == path {
                found.push(note);
            }
        }
        Ok(found)
    }

    /// Halts this cosigner, unless a person has seen what the file is about.
    pub(super) fn halt(&mut self, file: &[u8], ending: &str) -> Result<(), Error> {
        let about = self.about(file, ending)?;
        if self.record.seen.contains(&about) || (self.record.halted.is_some() && self.known.contains(&about)) {
            return Ok(());
        }
        let name = format!("{}{ending}", hex(&sha256(file)));
        if self.known.len() < EVIDENCE_FILES_MAX || self.record.halted.is_none() {
            self.put(EVIDENCE, &format!("{EVIDENCE}/{name}"), file)?;
            self.known.insert(about);
        }
        if self.record.halted.is_none() {
            tracing::error!(file = name, "HALTED: nothing is cosigned until a person has seen the evidence");
            self.write(|record| record.halted = Some(name))?;
        }
        Ok(())
    }

    /// The checkpoint that a file of evidence is about: the one that the verified log does not
    /// have. Lines and the other checkpoint do not matter: anybody can make files with others of a
    /// fork that was seen.
    fn about(&self, file: &[u8], ending: &str) -> Result<String, Error> {
        if ending == FINDING_ENDING {
            return Ok(hex(&sha256(file)));
        }
        let mut notes = vec![file.to_vec()];
        if ending == EVIDENCE_ENDING {
            let evidence = Evidence::decode(file).map_err(|failure| Error::Refused(failure.to_string()))?;
            notes = vec![evidence.a.to_vec(), evidence.b.to_vec()];
        }
        let mut first = None;
        for note in &notes {
            let checkpoint = Checkpoint::claimed(note).map_err(|error| Error::Refused(error.to_string()))?;
            let has = checkpoint.size <= self.size() && self.mirror.root(checkpoint.size)? == checkpoint.root;
            let about = hex(&checkpoint.imprint());
            if !has {
                return Ok(about);
            }
            first = first.or(Some(about));
        }
        first.ok_or_else(|| Error::Refused("no checkpoint".to_owned()))
    }

    /// What the evidence files are about.
    pub(super) fn read_known(&self) -> Result<BTreeSet<String>, Error> {
        let mut known = BTreeSet::new();
        for name in self.evidence()? {
            let ending = ending_of(&name);
            let file = self.get(&format!("{EVIDENCE}/{name}"), evidence::EVIDENCE_BYTES_MAX)?;
            // A person may have put other files there.
            if let Ok(about) = self.about(&file, ending) {
                known.insert(about);
            }
        }
        Ok(known)
    }

    /// The names of the evidence files.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn evidence(&self) -> Result<Vec<String>, Error> {
        match self.storage.list(EVIDENCE) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            names => {
                let mut names = names.map_err(disk(EVIDENCE))?;
                names.retain(|name| [EVIDENCE_ENDING, TWIN_ENDING, FINDING_ENDING].iter().any(|it| name.ends_with(it)));
                Ok(names)
            }
        }
    }

    /// An evidence file; `None` if there is none of this name.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn evidence_file(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        if !self.evidence()?.iter().any(|other| other == name) {
            return Ok(None);
        }
        self.get(&format!("{EVIDENCE}/{name}"), evidence::EVIDENCE_BYTES_MAX).map(Some)
    }

    /// Goes on after a person has seen the evidence that halts this cosigner.
    ///
    /// # Errors
    /// If this is not that evidence, or nothing halts it.
    pub fn resume(&mut self, seen: &[u8]) -> Result<(), Error> {
        let halted = self.record.halted.clone();
        let name = halted.ok_or_else(|| Error::Refused("this cosigner has not halted".to_owned()))?;
        if !name.starts_with(&hex(&sha256(seen))) {
            return Err(Error::Refused(format!("this is not the file that halts it, which is {EVIDENCE}/{name}")));
        }
        let ending = ending_of(&name);
        let about = self.about(seen, ending)?;
        self.write(|record| {
            record.halted = None;
            if ending == FINDING_ENDING {
                // The version is replayed again. If it is still wrong, that halts again.
                return;
            }
            let over = (record.seen.len() + 1).saturating_sub(SEEN_MAX);
            record.seen.drain(..over);
            record.seen.push(about);
        })
    }

    fn put(&self, dir: &str, path: &str, bytes: &[u8]) -> Result<(), Error> {
        files::put(&*self.storage, dir, path, bytes).map_err(disk(path))
    }

    fn get(&self, path: &str, most: usize) -> Result<Vec<u8>, Error> {
        files::get(&*self.storage, path, most).map_err(disk(path))
    }
}

/// The ending that tells the kind of a file of evidence.
fn ending_of(name: &str) -> &'static str {
    [TWIN_ENDING, FINDING_ENDING].into_iter().find(|ending| name.ends_with(ending)).unwrap_or(EVIDENCE_ENDING)
}

fn pending_path(note: &[u8]) -> String {
    format!("{PENDING}/{}", hex(&sha256(note)))
}
