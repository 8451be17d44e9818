//! Judgement of a note beside the mirrored log.

use std::borrow::Cow;

use coppice_verify::{
    checkpoint::Checkpoint,
    evidence::{self, Evidence, Shown},
    keys::Keys,
    note::VerifierKey,
};

use crate::{
    error::{Error, damaged},
    mirror::Mirror,
};

/// The verified log, as far as evidence needs it.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The key that the cosigner was told to trust.
    pub trusted: &'a VerifierKey,
    /// The keys of the ledger, as far as the log goes.
    pub keys: &'a Keys,
    pub mirror: &'a Mirror,
    /// Size of the verified log.
    pub size: u64,
    /// Notes of the verified log that may be note B, the preferred one first. The last one is of
    /// [`Known::size`].
    pub notes: &'a [Vec<u8>],
}

/// The verdict on a foreign note beside the verified log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judged {
    /// The log has it.
    Fine,
    /// No known key of the ledger signed it, or none that was in force there.
    Unsigned,
    /// It is signed, and larger than the log.
    Ahead,
    /// It is an evidence file.
    Evidence(Vec<u8>),
}

/// The known keys of the ledger that signed a note, the oldest first.
pub fn signers<'k>(note: &[u8], keys: &'k Keys) -> impl Iterator<Item = &'k VerifierKey> {
    let changed = keys.changes().map(|(_, key)| key);
    std::iter::once(keys.first()).chain(changed).filter(move |key| Checkpoint::open(note, key).is_ok())
}

impl Known<'_> {
    /// Judges a note.
    ///
    /// # Errors
    /// If the disk refuses, or the mirror is damaged.
    pub fn judge(&self, note: &[u8]) -> Result<Judged, Error> {
        let signers: Vec<_> = signers(note, self.keys).collect();
        let (Some(_), Ok(checkpoint)) = (signers.first(), Checkpoint::claimed(note)) else {
            return Ok(Judged::Unsigned);
        };
        let (size, within) = (checkpoint.size, checkpoint.size <= self.size);
        if within && size > 0 {
            let root = self.mirror.root(size)?;
            if root != checkpoint.root {
                let b = self.note_b(size)?;
                let path = self.mirror.consistency(size, b.1)?;
                return self.file(note, b.0, Shown::Root { size, root }, path);
            }
        }
        if let Some(index) = self.replaced(&signers, size) {
            let b = self.note_b(index + 1)?;
            let entry = Cow::Owned(self.mirror.entry(index)?);
            return self.file(note, b.0, Shown::KeyChange { index, entry }, self.mirror.inclusion(index, b.1)?);
        }
        Ok(match within {
            false => Judged::Ahead,
            true if signers.contains(&self.keys.in_force(size)) => Judged::Fine,
            true => Judged::Unsigned,
        })
    }

    /// The entry that replaces the newest of these keys, if it is below this size.
    fn replaced(&self, signers: &[&VerifierKey], size: u64) -> Option<u64> {
        let newest = *signers.last()?;
        let mut before = self.keys.first();
        for (index, key) in self.keys.changes() {
            if before == newest {
                return Some(index.0).filter(|index| *index < size);
            }
            before = key;
        }
        None
    }

    /// The preferred note of the verified log with at least this size, and its size.
    fn note_b(&self, least: u64) -> Result<(&[u8], u64), Error> {
        let sized = self.notes.iter().filter_map(|note| Some((note.as_slice(), Checkpoint::claimed(note).ok()?.size)));
        let mut fitting = sized.filter(|(_, size)| *size >= least);
        fitting.next().ok_or_else(|| damaged("state: it has no note of the mirrored log"))
    }

    /// The evidence file, if it proves something: a damaged mirror convicts nobody.
    fn file(&self, a: &[u8], b: &[u8], shown: Shown<'_>, path: Vec<coppice_types::Digest>) -> Result<Judged, Error> {
        let key_changes = self.keys.changes().map(|(index, _)| self.mirror.key_change(index.0));
        let key_changes = key_changes.collect::<Result<_, _>>()?;
        let evidence = Evidence { key_changes, shown, path, a: Cow::Borrowed(a), b: Cow::Borrowed(b) };
        let file = evidence.encode().map_err(|error| Error::Refused(error.to_string()))?;
        match evidence::verify(&file, self.trusted, None) {
            Ok(_) => Ok(Judged::Evidence(file)),
            Err(failure) => Err(damaged(format!("log: it does not prove what it shows: {failure}"))),
        }
    }
}
