//! Checks that pages and segments are used exactly as the Meta table says.

use super::walk::Checker;
use crate::{
    files::values,
    place::{
        page::{PageFile, Span},
        refs::record_bytes,
    },
};

impl Checker<'_> {
    /// Checks that a page, or a patch, is reachable if and only if it is used.
    pub(super) fn check_pages(&mut self) {
        let mut reached = std::mem::take(&mut self.reached);
        reached.unite(std::mem::take(&mut self.bases));
        let mut pages_of_patches = 0;
        for file in PageFile::ALL {
            let space = self.line.meta.space(file);
            // Used and unused pages must tile the file.
            let limbo = space.limbo.iter().map(|limbo| (limbo.start, limbo.len));
            let mut unused: Vec<(u64, u64)> = space.free.iter().chain(limbo).collect();
            unused.sort_unstable();
            let free: u64 = unused.iter().map(|(_, len)| len).sum();
            let (mut unused, mut used) = (unused.into_iter().peekable(), reached.spans(file).peekable());
            let mut end = 0;
            loop {
                let other = unused.peek().map(|(start, _)| *start);
                let (start, len) = match used.next_if(|span| other.is_none_or(|other| span.first <= other)) {
                    Some(Span { first, pages, places }) => {
                        if file == PageFile::Patches {
                            pages_of_patches += 1;
                            self.check_patches(first, places);
                        }
                        (first, pages)
                    }
                    None => match unused.next() {
                        Some(span) => span,
                        None => break,
                    },
                };
                if start > end {
                    self.report.finding(file.name(), Some(end), format!("{} pages are leaked", start - end));
                }
                if start < end {
                    self.report.finding(file.name(), Some(start), "a page is used twice, or used and free");
                }
                end = end.max(start + len);
            }
            if end != space.high {
                self.report.finding(file.name(), Some(end), "pages up to the maximum are leaked or beyond it");
            }
            self.report.pages_free += free;
            self.report.pages_used += space.high.saturating_sub(free);
        }
        let used = self.line.meta.patches().len();
        if pages_of_patches != used {
            let what = format!("{pages_of_patches} pages have patches that are reachable, not {used}");
            self.report.finding(PageFile::Patches.name(), None, what);
        }
    }

    fn check_patches(&mut self, page: u64, found: u64) {
        let used = self.line.meta.patches().get(&page).copied().unwrap_or(0);
        if found != u64::from(used) {
            let what = format!("{found} patches of it are reachable, not {used}");
            self.report.finding(PageFile::Patches.name(), Some(page), what);
        }
    }

    pub(super) fn check_segments(&mut self) {
        let mut live = std::mem::take(&mut self.live);
        for (at, len) in &self.blobs {
            *live.entry(at.segment).or_default() += record_bytes(*len);
        }
        for (id, segment) in &self.line.meta.segments {
            let found = live.remove(id).unwrap_or(0);
            if found != segment.live {
                let what = format!("{} bytes are live, not {}", found, segment.live);
                self.report.finding(values::file_name(*id), None, what);
            }
        }
        for id in live.keys() {
            self.report.finding(values::file_name(*id), None, "the segment is not in the Meta table");
        }
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;
    use coppice_types::Params;

    use super::*;
    use crate::{
        Engine, Report,
        check::walk::PLACES_MAX,
        meta::MetaOp,
        testing::{commit, create, flush, put, puts, small, stage},
    };

    /// A flushed engine with a decided version, and a staged one on it.
    fn engine() -> Engine {
        let mut engine = create(&SimStorage::new(), small());
        commit(&mut engine, 1, puts(0..8, 100));
        stage(&mut engine, 2, puts(0..8, 90));
        flush(&mut engine, 1);
        engine
    }

    /// The findings of a check of the table in memory.
    fn findings(engine: &Engine) -> Vec<String> {
        let mut report = Report::default();
        Checker::new(&engine.meta, &engine.store, &mut report, PLACES_MAX).check();
        report.findings.iter().map(ToString::to_string).collect()
    }

    fn assert_found(engine: &Engine, what: &str) {
        let found = findings(engine);
        assert!(found.iter().any(|finding| finding.contains(what)), "no {what:?} in {found:?}");
    }

    #[test]
    fn a_table_that_fits_its_files_has_no_finding() {
        assert_eq!(findings(&engine()), [""; 0]);
    }

    #[test]
    fn pages_that_are_in_use_and_that_nothing_reaches_are_leaked() {
        for file in [PageFile::Index, PageFile::Data] {
            let mut engine = engine();
            engine.meta.allocate(file, 3);
            assert_found(&engine, "leaked");
        }
    }

    #[test]
    fn pages_of_a_version_that_forgot_its_tree_are_leaked() {
        let mut engine = create(&SimStorage::new(), Params::default());
        stage(&mut engine, 1, puts(0..1000, 9));
        let staged = *engine.meta.staged.first().expect("one");
        engine.meta.versions.get_mut(&staged).expect("it is staged").trees[0].root = None;
        assert_found(&engine, "leaked");
    }

    #[test]
    fn a_page_that_is_reached_and_free_is_found() {
        let mut engine = create(&SimStorage::new(), Params::default());
        stage(&mut engine, 1, puts(0..1000, 9));
        flush(&mut engine, 1);
        let staged = *engine.meta.staged.first().expect("one");
        let record = engine.meta.versions[&staged].clone();
        engine.meta.apply(MetaOp::DropVersion(staged)).expect("it is staged");
        engine.meta.versions.insert(staged, record);
        engine.meta.staged.insert(staged);
        assert_found(&engine, "a page is used twice, or used and free");
    }

    #[test]
    fn a_patch_that_nothing_reaches_is_found() {
        let mut engine = engine();
        let page = *engine.meta.patches().keys().next().expect("small nodes are patches");
        engine.meta.allocate_patch(Some((page, 200)));
        assert_found(&engine, "patches of it are reachable, not");
        let mut engine = self::engine();
        engine.meta.allocate_patch(None);
        assert_found(&engine, "pages have patches that are reachable, not");
    }

    #[test]
    fn live_bytes_are_those_of_the_values_that_are_reached() {
        for change in [1_i64, -1] {
            let mut engine = engine();
            let segment = engine.meta.segments.get_mut(&0).expect("it has values");
            segment.live = segment.live.saturating_add_signed(change);
            assert_found(&engine, "values-0: ");
            assert_found(&engine, "bytes are live, not");
        }
    }

    #[test]
    fn a_value_of_a_segment_that_the_table_lacks_is_found() {
        let mut engine = engine();
        engine.meta.segments.remove(&0);
        assert_found(&engine, "the segment is not in the Meta table");
    }

    #[test]
    fn free_and_used_pages_are_counted() {
        let mut engine = engine();
        commit(&mut engine, 3, vec![put("a", 5)]);
        flush(&mut engine, 2);
        let mut report = Report::default();
        Checker::new(&engine.meta, &engine.store, &mut report, PLACES_MAX).check();
        let spaces = PageFile::ALL.map(|file| engine.meta.space(file));
        assert_eq!(report.pages_used, spaces.iter().map(|space| space.used_pages()).sum::<u64>());
        assert_eq!(report.pages_used + report.pages_free, spaces.iter().map(|space| space.high).sum::<u64>());
    }
}
