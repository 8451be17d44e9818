//! The report of a check.

use std::fmt;

use crate::{Error, Result};

/// Limit on the number of findings that a report lists.
const FINDINGS_MAX: usize = 1000;

/// A defect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub file: String,
    /// The first page of a span, in a file of pages; elsewhere the offset, if known.
    pub page: Option<u64>,
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.page {
            Some(page) => write!(f, "{} at {page}: {}", self.file, self.what),
            None => write!(f, "{}: {}", self.file, self.what),
        }
    }
}

/// The result of a check. The counts describe the state of the newest superblock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Damage. The directory is sound if there is none.
    pub findings: Vec<Finding>,
    /// Leftovers of a crash that recovery handles.
    pub notes: Vec<String>,
    /// Versions, decided and staged.
    pub versions: u64,
    /// Nodes that the versions reach.
    pub nodes: u64,
    /// Records in the leaves among these nodes.
    pub records: u64,
    /// Values read from the value log.
    pub values: u64,
    /// Kept journals read from the value log.
    pub journals: u64,
    /// Pages in use.
    pub pages_used: u64,
    /// Pages that are free, or will be after later superblocks.
    pub pages_free: u64,
    /// The first finding other than a failure of the storage, even if it is not listed.
    pub(super) damage: Option<Finding>,
    /// A segment in a cold directory that is missing.
    pub(super) cold_missing: Option<String>,
}

impl Report {
    /// Whether no damage was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Whether the checked state is sound.
    ///
    /// # Errors
    /// `Corrupted` with the first damage; `Unchecked` if the storage failed and no damage was
    /// found.
    pub(crate) fn verdict(self) -> Result<()> {
        if let Some(Finding { file, page, what }) = self.damage {
            return Err(Error::Corrupted { file, page, what });
        }
        let failed = self.findings.first().map(Finding::to_string);
        let missing = self.cold_missing.map(|file| format!("{file}: its directory is not there"));
        failed.or(missing).map_or(Ok(()), |why| Err(Error::Unchecked(why)))
    }

    pub(super) fn finding(&mut self, file: impl Into<String>, page: Option<u64>, what: impl Into<String>) {
        let finding = Finding { file: file.into(), page, what: what.into() };
        self.damage.get_or_insert_with(|| finding.clone());
        self.list(finding);
    }

    pub(super) fn list(&mut self, finding: Finding) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        }
    }

    pub(super) fn error(&mut self, error: Error) {
        match error {
            Error::Corrupted { file, page, what } => self.finding(file, page, what),
            Error::Io { file, ref source, .. } => {
                self.list(Finding { file, page: None, what: source.to_string() });
            }
            Error::ColdMissing { file } => self.cold_missing = Some(file),
            other => self.finding("", None, other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_told_from_a_storage_that_fails_however_much_is_found() {
        let fails = || Error::io("read", "pages")(std::io::ErrorKind::TimedOut.into());
        let damaged =
            || Error::Corrupted { file: "meta".to_owned(), page: None, what: "it does not add up".to_owned() };
        for (before, after) in [(0, 2 * FINDINGS_MAX), (2 * FINDINGS_MAX, 0), (3, 3)] {
            let mut report = Report::default();
            (0..before).for_each(|_| report.error(fails()));
            assert!(before == 0 || matches!(report.clone().verdict(), Err(Error::Unchecked(_))));
            report.error(damaged());
            (0..after).for_each(|_| report.error(fails()));
            assert!(report.findings.len() <= FINDINGS_MAX);
            assert!(
                matches!(report.verdict(), Err(Error::Corrupted { file, .. }) if file == "meta"),
                "{before} {after}"
            );
        }
    }

    #[test]
    fn the_verdict_is_the_first_damage() {
        let mut report = Report::default();
        report.error(Error::io("read", "data")(std::io::ErrorKind::TimedOut.into()));
        for page in 1..4 {
            report.finding("index", Some(page), "damage");
        }
        assert_eq!(report.findings.len(), 4);
        assert!(matches!(report.verdict(), Err(Error::Corrupted { page: Some(1), .. })));
    }

    #[test]
    fn a_report_without_findings_is_sound() {
        let report = Report { notes: vec!["a leftover of a crash".to_owned()], ..Report::default() };
        assert!(report.is_clean() && report.verdict().is_ok());
    }

    #[test]
    fn what_lies_on_a_missing_disk_is_unchecked_and_not_a_finding() {
        let mut report = Report::default();
        report.error(Error::ColdMissing { file: "values-3".to_owned() });
        assert!(report.is_clean());
        let verdict = report.verdict();
        assert!(matches!(verdict, Err(Error::Unchecked(ref why)) if why.starts_with("values-3: ")), "{verdict:?}");
    }

    #[test]
    fn an_error_of_any_other_kind_is_damage_of_no_file() {
        let mut report = Report::default();
        report.error(Error::Missing);
        assert!(matches!(report.verdict(), Err(Error::Corrupted { file, page: None, .. }) if file.is_empty()));
    }

    #[test]
    fn a_finding_names_its_page_if_it_has_one() {
        let finding = |page| Finding { file: "data".to_owned(), page, what: "checksum".to_owned() }.to_string();
        assert_eq!([finding(Some(7)), finding(None)], ["data at 7: checksum", "data: checksum"]);
    }
}
