//! Checks a data directory offline, and trusts nothing in it.
//!
//! For each valid superblock, it checks that
//!
//! - the meta log replays;
//! - every node that a version or merge reaches has its checksum and hash, read from its file;
//! - keys ascend across nodes; numbers of entries and digests add up;
//! - values, filters and shortcuts match their records;
//! - kept journals can be read;
//! - a page is reachable if and only if it is neither free nor in limbo;
//! - the live bytes of each segment are those that are reachable.

mod pages;
mod report;
pub(crate) mod scrub;
mod walk;

use std::sync::Arc;

use coppice_env::{OpenMode, Storage};

use crate::{
    Error, Options, Result,
    files::{
        dir::{is_ours, lock},
        meta_log::{self, MetaLog},
        superblock::{self, Slot, Superblock},
        values::tier,
    },
    store::Store,
};

pub use report::{Finding, Report};
use walk::{Checker, PLACES_MAX};

/// Checks the data directory from both superblocks.
///
/// # Errors
/// `Missing`, `Locked`, `OtherFormat` or `ColdMissing`, or a failure to list the directory.
/// Everything else is in the report.
pub fn fsck(storage: Arc<dyn Storage>) -> Result<Report> {
    if !superblock::exists(&*storage)? {
        return Err(Error::Missing);
    }
    let _guard = lock(&*storage)?;
    let slots = storage
        .open(superblock::FILE, OpenMode::Existing)
        .map_err(Error::io("open", superblock::FILE))
        .and_then(|file| superblock::read_slots(&*file));
    let slots = match slots {
        Ok(slots) => slots,
        Err(error @ Error::OtherFormat { .. }) => return Err(error),
        Err(error) => {
            let mut report = Report::default();
            report.error(error);
            return Ok(report);
        }
    };
    let mut notes = Vec::new();
    for (number, slot) in slots.iter().enumerate() {
        if *slot == Slot::Broken {
            notes.push(format!("{}: slot {number} is torn or damaged", superblock::FILE));
        }
    }
    let (newest, older) = match superblock::newest(slots) {
        Ok(pair) => pair,
        Err(error) => {
            let mut report = Report { notes, ..Report::default() };
            report.error(error);
            return Ok(report);
        }
    };
    let mut report = check_superblock(&storage, &newest);
    report.notes.extend(notes);
    if let Some(file) = report.cold_missing.take() {
        return Err(Error::ColdMissing { file });
    }
    if let Some(older) = &older {
        let other = check_superblock(&storage, older);
        for finding in other.findings {
            if !report.findings.contains(&finding) {
                report.list(Finding { what: format!("{} (older superblock)", finding.what), ..finding });
            }
        }
    }
    note_strangers(&*storage, &newest, older.as_ref(), &mut report)?;
    note_cold_strangers(&*storage, &mut report)?;
    Ok(report)
}

fn note_strangers(
    storage: &dyn Storage,
    newest: &Superblock,
    older: Option<&Superblock>,
    report: &mut Report,
) -> Result<()> {
    for name in storage.list("").map_err(Error::io("list", "the directory"))? {
        let number = meta_log::file_number(&name);
        let named = number
            .is_none_or(|number| number == newest.meta_file || older.is_some_and(|older| number == older.meta_file));
        let known = is_ours(&name) || ["superblock", "superblock.new", "lock"].contains(&name.as_str());
        if !named || !known {
            report.notes.push(format!("{name}: no superblock names this file"));
        }
    }
    Ok(())
}

/// Adds a note for each file of the cold directory that the next start removes.
fn note_cold_strangers(storage: &dyn Storage, report: &mut Report) -> Result<()> {
    let Some(there) = storage.cold().map(|cold| tier::list(&*cold)).transpose()?.flatten() else { return Ok(()) };
    let here = storage.list("").map_err(Error::io("list", "the directory"))?;
    for name in there {
        let known = tier::file_number(&name).is_some_and(|(_, last)| last);
        if !known || here.contains(&name) {
            report.notes.push(format!("{name}: a move to the cold directory was cut off"));
        }
    }
    Ok(())
}

/// Checks the state that a superblock names.
pub(crate) fn check_superblock(storage: &Arc<dyn Storage>, superblock: &Superblock) -> Report {
    let mut report = Report::default();
    let meta = match MetaLog::open(&**storage, superblock) {
        Ok((_, meta)) => meta,
        Err(error) => {
            report.error(error);
            return report;
        }
    };
    let found = tier::find(&**storage, &meta);
    match found.and_then(|_| Store::open(storage, &Options::default(), &meta, OpenMode::Existing)) {
        Ok(store) => Checker::new(&meta, &store, &mut report, PLACES_MAX).check(),
        Err(error) => report.error(error),
    }
    report
}
