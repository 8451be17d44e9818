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
    meta::Meta,
    store::Store,
    tree,
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
    check_state(storage, superblock, &|_| None)
}

/// Checks the state that a superblock names. Also checks that each erased value has the record that
/// erases it: `reason` gives that record's key by the value's key, or `None` if the value needs
/// none. No digest covers the erased keys that a snapshot names.
pub(crate) fn check_state(
    storage: &Arc<dyn Storage>,
    superblock: &Superblock,
    reason: &dyn Fn(&[u8]) -> Option<Vec<u8>>,
) -> Report {
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
        Ok(store) => {
            Checker::new(&meta, &store, &mut report, PLACES_MAX).check();
            if report.is_clean()
                && let Err(error) = check_erasures(&meta, &store, reason)
            {
                report.error(error);
            }
        }
        Err(error) => report.error(error),
    }
    report
}

fn check_erasures(meta: &Meta, store: &Store, reason: &dyn Fn(&[u8]) -> Option<Vec<u8>>) -> Result<()> {
    for key in meta.erasures.keys() {
        let Some(reason) = reason(key) else { continue };
        let record = tree::get(store, &meta.tip().trees, None, &reason)?;
        if !record.is_some_and(|record| record.is_put()) {
            return Err(Error::corrupted("meta".to_owned(), None, "a value is erased, and no record says so"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;
    use coppice_types::{Params, Version};

    use super::*;
    use crate::{
        place::page::{PageFile, Pid},
        testing::{commit, create, damage, deletes, flush, long_keys, put, puts, small, two_versions},
    };

    fn check(sim: &SimStorage) -> Report {
        fsck(sim.storage()).expect("a directory")
    }

    #[test]
    fn a_directory_that_has_no_engine_or_is_in_use_is_refused() {
        let sim = SimStorage::new();
        assert!(matches!(fsck(sim.storage()), Err(Error::Missing)));
        let engine = create(&sim, small());
        assert!(matches!(fsck(sim.storage()), Err(Error::Locked)));
        drop(engine);
        check(&sim);
    }

    #[test]
    fn a_sound_directory_has_its_counts_and_no_findings_or_notes() {
        let report = check(&two_versions());
        assert!(report.is_clean() && report.notes.is_empty(), "{report:?}");
        assert_eq!((report.versions, report.records, report.values), (3, 8, 8));
    }

    #[test]
    fn a_broken_slot_is_a_note_and_the_state_of_the_other_superblock_is_checked() {
        for (slot, versions) in [(0, 3), (1, 2)] {
            let sim = two_versions();
            sim.flip_bit(superblock::FILE, slot * superblock::SLOT_BYTES as u64 + 30, 0);
            let report = check(&sim);
            assert!(report.is_clean(), "{report:?}");
            assert_eq!((report.notes.len(), report.versions), (1, versions));
            assert!(report.notes[0].contains(&format!("slot {slot}")));
        }
    }

    #[test]
    fn two_broken_slots_and_a_superblock_file_of_another_length_are_damage() {
        let sim = two_versions();
        (0..2).for_each(|slot| sim.flip_bit(superblock::FILE, slot * superblock::SLOT_BYTES as u64 + 30, 0));
        let report = check(&sim);
        assert_eq!((report.findings.len(), report.notes.len()), (1, 2));
        let sim = two_versions();
        let file = sim.open(superblock::FILE, OpenMode::Existing).expect("it is there");
        file.set_len(100).expect("cut");
        assert_eq!(check(&sim).findings.len(), 1);
    }

    #[test]
    fn damage_that_only_the_older_superblock_reaches_is_named_as_such() {
        let sim = SimStorage::new();
        let mut engine = create(&sim, Params::default());
        commit(&mut engine, 1, puts(0..1000, 9));
        flush(&mut engine, 1);
        let old = engine.view_at(Version(1)).expect("decided").footprint().expect("sound pages");
        commit(&mut engine, 2, deletes(0..1000));
        engine.prune(Version(2)).expect("usable");
        flush(&mut engine, 2);
        drop(engine);
        let leaf = old.spans.keys().filter_map(|pid| Pid::from_u64(*pid)).find(|pid| pid.file() == PageFile::Data);
        sim.flip_bit("data", leaf.expect("whole leaves").offset_bytes() + 100, 0);
        let report = check(&sim);
        assert!(!report.is_clean());
        assert!(report.findings.iter().all(|finding| finding.what.ends_with("(older superblock)")), "{report:?}");
    }

    #[test]
    fn each_damaged_file_is_named() {
        let sim = SimStorage::new();
        let mut engine = create(&sim, Params::default());
        commit(&mut engine, 1, long_keys(4000));
        commit(&mut engine, 2, vec![put("long", 1000)]);
        flush(&mut engine, 1);
        drop(engine);
        for file in ["index", "data", "values-0", "meta-1"] {
            let sim = sim.process_loss();
            match file {
                "index" | "data" => damage(&sim, file),
                _ => sim.flip_bit(file, 100, 0),
            }
            let report = check(&sim);
            assert!(report.findings.iter().any(|finding| finding.file == file), "{file}: {report:?}");
        }
        for file in ["index", "data", "patches", "values-0", "meta-1"] {
            let sim = sim.process_loss();
            sim.storage().remove(file).expect("it is there");
            assert!(!check(&sim).is_clean(), "{file} is missing");
        }
    }

    #[test]
    fn files_that_no_superblock_names_are_notes() {
        let sim = two_versions();
        for name in ["stranger", "meta-9"] {
            sim.open(name, OpenMode::CreateNew).expect("a new file");
        }
        let report = check(&sim);
        assert!(report.is_clean());
        assert_eq!(report.notes.len(), 2, "{:?}", report.notes);
        assert!(["stranger", "meta-9"].iter().all(|name| report.notes.iter().any(|note| note.starts_with(name))));
    }

    #[test]
    fn a_check_changes_no_file() {
        let sim = two_versions();
        let (count, files) = (sim.io_count(), sim.files());
        check(&sim);
        assert_eq!((sim.io_count(), sim.files()), (count, files));
    }
}
