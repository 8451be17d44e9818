//! The offline check of a replica's directory. It changes nothing.
//!
//! Every record of the journal is executed again, in order. That recomputes each tile from the
//! entries. It also checks the chain of headers, every state root against its leaves and every
//! journal root against its entries. The result must be, byte for byte, the files in the directory
//! and the state that was saved.

use std::sync::Arc;

use coppice_env::Storage;

use crate::{
    Error, Options, Root,
    journal::End,
    state::State,
    store::{self, is_ours},
    superblock::{Superblock, state_path},
};

/// A fault, or a fact that is worth knowing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file it was found in.
    pub file: String,
    /// What was found.
    pub what: String,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Damage; empty for a sound directory.
    pub findings: Vec<Finding>,
    /// Leftovers of a crash, which the next opening removes.
    pub notes: Vec<Finding>,
    /// Entries of the root log that were checked.
    pub headers: u64,
    /// Sealed files that were compared.
    pub files: u64,
    /// Bytes of the sealed files that were compared.
    pub bytes: u64,
}

/// Checks the directory of a replica that is not running.
///
/// # Errors
/// If the storage fails, or the directory is in use. Damage is a finding, not an error.
pub fn fsck(storage: &Arc<dyn Storage>) -> Result<Report, Error> {
    let _lock = store::lock(&**storage)?;
    match Superblock::read(&**storage) {
        Ok(superblock) => check(storage, &superblock),
        Err(error) => {
            let mut report = Report::default();
            report.found(error)?;
            Ok(report)
        }
    }
}

/// Checks the files that a superblock names.
pub(crate) fn check(storage: &Arc<dyn Storage>, superblock: &Superblock) -> Result<Report, Error> {
    let mut report = Report::default();
    let replayed = report.replay(storage, superblock);
    let replayed = report.keep(replayed)?;
    let loaded = Root::load(Arc::clone(storage), superblock.clone(), Options::default());
    let loaded = report.keep(loaded)?;
    if let Some(loaded) = &loaded {
        report.compare_names(storage, loaded)?;
    }
    if let (Some(replayed), Some(loaded)) = (replayed, loaded) {
        let end = loaded.journal.end();
        if replayed.state.file(&end) != loaded.state.file(&end) {
            report.add(&state_path(superblock.saved), "not the state that the journal leads to");
        }
    }
    Ok(report)
}

impl Report {
    /// Whether the directory is sound.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Turns the first finding into an error.
    ///
    /// # Errors
    /// [`Error::Corrupted`] if there is a finding.
    pub(crate) fn verdict(self) -> Result<(), Error> {
        match self.findings.into_iter().next() {
            None => Ok(()),
            Some(Finding { file, what }) => Err(Error::Corrupted { file, what }),
        }
    }

    fn replay(&mut self, storage: &Arc<dyn Storage>, superblock: &Superblock) -> Result<Root, Error> {
        let mut root = Root::from_parts(Arc::clone(storage), State::new(), End::of_chunk(0), Options::default());
        root.durable.superblock = superblock.clone();
        root.replay(|root| {
            root.journal.forget_unwritten();
            for (name, bytes) in root.store.take_pending() {
                self.files += 1;
                self.bytes += bytes.len() as u64;
                match store::read_file(storage.as_ref(), &name) {
                    Ok(found) if found == *bytes => {}
                    Ok(_) => self.add(&name, "not what its entries and the files below it lead to"),
                    Err(error) => self.found(error)?,
                }
            }
            Ok(())
        })?;
        self.headers = root.log_size();
        Ok(root)
    }

    fn compare_names(&mut self, storage: &Arc<dyn Storage>, root: &Root) -> Result<(), Error> {
        let named = root.named_files();
        let found = store::walk(storage.as_ref(), "")?;
        for name in named.iter().filter(|name| found.binary_search(name).is_err()) {
            self.add(name, "missing");
        }
        for name in found.iter().filter(|name| is_ours(name) && !named.contains(*name)) {
            self.notes.push(Finding { file: name.clone(), what: "left by a crash".to_owned() });
        }
        Ok(())
    }

    fn add(&mut self, file: &str, what: &str) {
        self.findings.push(Finding { file: file.to_owned(), what: what.to_owned() });
    }

    /// Adds damage to the findings. Returns other errors.
    fn found(&mut self, error: Error) -> Result<(), Error> {
        match error {
            Error::Corrupted { file, what } => self.findings.push(Finding { file, what }),
            other => return Err(other),
        }
        Ok(())
    }

    fn keep<T>(&mut self, result: Result<T, Error>) -> Result<Option<T>, Error> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) => self.found(error).map(|()| None),
        }
    }
}
