//! A scan of one shard at an exact state, page by page.
//!
//! Each page takes a separate call to any replica that has the state, so nothing is open between
//! two pages. A page must continue after the previous one, otherwise the answer is refused. So a
//! scan ends for any answers of a node.

use bytes::Bytes;
use coppice_proto::v1::{self, shard_scan_request::Scan};
use futures::future::try_join_all;
use tokio::time::{Instant, sleep};
use tonic::Status;

use super::reads::{PAUSE, Reads, again};
use crate::groups::wire;

/// Most scans of which the first page is read at one time.
pub const SCANS_AHEAD: usize = 4;

/// Reads the first page of each scan. Their shards work at one time. All answers are taken before
/// this returns: one that waits for a slow client would fill the connection to a node.
pub async fn begun(scans: Vec<Pages>) -> Result<Vec<Pages>, Status> {
    try_join_all(scans.into_iter().map(Pages::begun)).await
}

/// The pages of one scan.
#[derive(Debug)]
pub struct Pages {
    reads: Reads,
    /// The request for the next page; `None` after the last one.
    request: Option<v1::ShardScanRequest>,
    /// The first page, if it was read already.
    first: Option<v1::ShardScanResponse>,
}

impl Pages {
    /// The pages of this scan. The first page may have been read already.
    pub fn new(reads: Reads, request: v1::ShardScanRequest, first: Option<v1::ShardScanResponse>) -> Self {
        Self { reads, request: Some(request), first }
    }

    async fn begun(mut self) -> Result<Self, Status> {
        if let (Some(request), None) = (&self.request, &self.first) {
            self.first = Some(self.read(request).await?);
        }
        Ok(self)
    }

    /// The next page; `None` after the last one.
    ///
    /// # Errors
    /// The last replica's refusal, if none has the state within the read time-out.
    pub async fn next(&mut self) -> Result<Option<v1::ShardScanResponse>, Status> {
        let Some(request) = &self.request else { return Ok(None) };
        let page = match self.first.take() {
            Some(first) => first,
            None => self.read(request).await?,
        };
        let next = match &page.end {
            Some(_) => None,
            None => Some(after(request, &page).ok_or_else(|| wire::broken("scan"))?),
        };
        self.request = next;
        Ok(Some(page))
    }

    async fn read(&self, request: &v1::ShardScanRequest) -> Result<v1::ShardScanResponse, Status> {
        let deadline = Instant::now() + self.reads.read_timeout;
        loop {
            match self.reads.shards.scan(request, deadline).await {
                Err(error) if again(&error) && Instant::now() + PAUSE < deadline => sleep(PAUSE).await,
                answer => return answer,
            }
        }
    }
}

/// The request for the page after `page`. `None` if that page does not begin where it should.
fn after(request: &v1::ShardScanRequest, page: &v1::ShardScanResponse) -> Option<v1::ShardScanRequest> {
    let count = u32::try_from(page.records.len()).ok()?;
    // A scan ends when its limit is reached; 0 means no limit.
    let less = |limit: u32| if limit == 0 { Some(0) } else { limit.checked_sub(count).filter(|left| *left > 0) };
    let scan = match request.scan.clone()? {
        Scan::Range(scan) if scan.reverse => {
            let last = &page.records.last()?.key;
            let begin = scan.from.as_ref().or(scan.high.as_ref());
            let from = (*last >= scan.low && begin.is_none_or(|begin| last < begin)).then(|| last.clone())?;
            Scan::Range(v1::RangeScan { from: Some(from), limit: less(scan.limit)?, ..scan })
        }
        Scan::Range(scan) => {
            let last = &page.records.last()?.key;
            let begin = scan.from.as_ref().unwrap_or(&scan.low);
            let from = (last >= begin).then(|| Bytes::from([&last[..], &[0]].concat()))?;
            Scan::Range(v1::RangeScan { from: Some(from), limit: less(scan.limit)?, ..scan })
        }
        Scan::History(scan) => {
            let last = page.records.last()?.last_changed?.version;
            let below = scan.below.is_none_or(|below| last < below).then_some(last)?;
            Scan::History(v1::HistoryScan { below: Some(below), limit: less(scan.limit)?, ..scan })
        }
        Scan::Diff(scan) => {
            let low = page.next.clone().filter(|next| *next > scan.low)?;
            Scan::Diff(v1::DiffScan { low, ..scan })
        }
        Scan::Journal(scan) => {
            let last = page.journals.last()?.version;
            let from_version = last.checked_add(1).filter(|next| *next > scan.from_version)?;
            Scan::Journal(v1::JournalScan { from_version, ..scan })
        }
    };
    Some(v1::ShardScanRequest { scan: Some(scan), ..request.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str, version: u64) -> v1::ShardRecord {
        let key = Bytes::copy_from_slice(key.as_bytes());
        v1::ShardRecord { key, last_changed: Some(v1::Stamp { epoch: 0, version }), ..v1::ShardRecord::default() }
    }

    fn next(scan: &Scan, page: v1::ShardScanResponse) -> Option<Scan> {
        let request = v1::ShardScanRequest { scan: Some(scan.clone()), ..v1::ShardScanRequest::default() };
        after(&request, &page)?.scan
    }

    #[test]
    fn a_page_goes_on_from_the_one_before_or_the_scan_ends() {
        let records = |records: Vec<v1::ShardRecord>| v1::ShardScanResponse { records, ..Default::default() };
        let range = v1::RangeScan { low: "b".into(), limit: 2, ..v1::RangeScan::default() };
        let going_on = v1::RangeScan { from: Some(Bytes::from_static(b"c\0")), limit: 1, ..range.clone() };
        let range = Scan::Range(range);
        assert_eq!(next(&range, records(vec![record("c", 1)])), Some(Scan::Range(going_on)));
        assert_eq!(next(&range, records(vec![record("a", 1)])), None, "it lies below the page");
        assert_eq!(next(&range, records(Vec::new())), None);
        assert_eq!(next(&range, records(vec![record("c", 1), record("d", 1)])), None, "the limit is reached");
        let back = v1::RangeScan { low: "b".into(), limit: 2, reverse: true, ..v1::RangeScan::default() };
        let below = v1::RangeScan { from: Some("c".into()), limit: 1, ..back.clone() };
        assert_eq!(next(&Scan::Range(back.clone()), records(vec![record("c", 1)])), Some(Scan::Range(below.clone())));
        let ended = "it does not go back";
        assert_eq!(next(&Scan::Range(below.clone()), records(vec![record("c", 1)])), None, "{ended}");
        assert_eq!(
            next(&Scan::Range(v1::RangeScan { limit: 9, ..below }), records(vec![record("a", 1)])),
            None,
            "{ended}"
        );
        let history = |below| Scan::History(v1::HistoryScan { key: "k".into(), limit: 0, below });
        assert_eq!(next(&history(None), records(vec![record("k", 9), record("k", 7)])), Some(history(Some(7))));
        assert_eq!(next(&history(Some(7)), records(vec![record("k", 7)])), None);
        let diff = |low| Scan::Diff(v1::DiffScan { low: Bytes::from_static(low), ..v1::DiffScan::default() });
        let to = |next: &'static [u8]| v1::ShardScanResponse { next: Some(next.into()), ..Default::default() };
        assert_eq!(next(&diff(b"b"), to(b"c")), Some(diff(b"c")), "a page without differences goes on, too");
        assert_eq!(next(&diff(b"b"), to(b"b")), None);
        let journal = |from_version| Scan::Journal(v1::JournalScan { from_version, to_version: 9 });
        let kept = |version| v1::ShardScanResponse {
            journals: vec![v1::ShardJournal { version, lists: Vec::new() }],
            ..Default::default()
        };
        assert_eq!(next(&journal(3), kept(5)), Some(journal(6)));
        assert_eq!(next(&journal(3), kept(2)), None);
        assert_eq!(next(&journal(3), kept(u64::MAX)), None);
    }
}
