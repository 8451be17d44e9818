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
            let space = self.meta.space(file);
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
        let used = self.meta.patches().len();
        if pages_of_patches != used {
            let what = format!("{pages_of_patches} pages have patches that are reachable, not {used}");
            self.report.finding(PageFile::Patches.name(), None, what);
        }
    }

    fn check_patches(&mut self, page: u64, found: u64) {
        let used = self.meta.patches().get(&page).copied().unwrap_or(0);
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
        for (id, segment) in &self.meta.segments {
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
