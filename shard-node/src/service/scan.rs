//! Pages of scans. Each request names its state and its beginning, so no state is kept between
//! pages.
//!
//! A page has a bounded number of records and bytes. Unless it is the last page, it has at least
//! one record, change or journal.

use bytes::Bytes;
use coppice_engine::{Engine, HistoryPage, KeyChange, RangePage, ShardState, View};
use coppice_proto::{
    convert,
    v1::{self, shard_scan_request::Scan},
};
use coppice_types::{Reason, Version};

use super::shard::refused;
use crate::{
    limits::{PAGE_RECORDS_MAX, SCAN_CHUNK_BYTES},
    refusal::Refusal,
    shard::{decode_journal, messages},
};

/// One page of a scan of a state.
pub(super) fn page(engine: &Engine, state: &ShardState, scan: &Scan) -> Result<v1::ShardScanResponse, Refusal> {
    match scan {
        Scan::Range(scan) => range(&engine.view(state).map_err(refused)?, scan),
        Scan::History(scan) => history(&engine.view(state).map_err(refused)?, scan),
        Scan::Diff(scan) => diff(engine, state, scan),
        Scan::Journal(scan) => journal(engine, state, scan),
    }
}

/// A limit as a number of records; 0 means that there is none.
fn left(limit: u32) -> usize {
    if limit == 0 { usize::MAX } else { limit as usize }
}

fn range(view: &View<'_>, scan: &v1::RangeScan) -> Result<v1::ShardScanResponse, Refusal> {
    let (high, left) = (scan.high.as_deref(), left(scan.limit));
    let (records_max, from) = (left.min(PAGE_RECORDS_MAX), scan.from.as_deref());
    let part = if scan.reverse {
        if scan.want_proof {
            return Err(Refusal::new(Reason::InvalidArgument, "a range in reverse has no proof"));
        }
        view.range_back(&scan.low, from.or(high), records_max, SCAN_CHUNK_BYTES, true)
    } else {
        view.range_part(from.unwrap_or(&scan.low), high, records_max, SCAN_CHUNK_BYTES, true)
    };
    let RangePage { records, more } = part.map_err(refused)?;
    let is_last = !more || records.len() == left;
    let mut end = is_last.then(|| v1::ScanEnd { trees: Bytes::new(), more });
    if let Some(end) = end.as_mut().filter(|_| scan.want_proof) {
        let next = records.last().map(|last| after(&last.key)).filter(|_| more);
        end.trees = view.prove_range(&scan.low, next.as_deref().or(high)).map_err(refused)?.into();
    }
    let records = records.into_iter().map(messages::to_record).collect();
    Ok(v1::ShardScanResponse { records, end, ..v1::ShardScanResponse::default() })
}

fn history(view: &View<'_>, scan: &v1::HistoryScan) -> Result<v1::ShardScanResponse, Refusal> {
    let left = left(scan.limit);
    let part = view.history_part(&scan.key, scan.below.map(Version), left.min(PAGE_RECORDS_MAX), SCAN_CHUNK_BYTES);
    let HistoryPage { changes, more } = part.map_err(refused)?;
    let is_last = !more || changes.len() == left;
    let wire = |change: KeyChange| match change.record {
        Some(record) => messages::to_record(record),
        None => messages::to_absent(scan.key.clone(), Some(change.stamp)),
    };
    let end = is_last.then(|| v1::ScanEnd { trees: Bytes::new(), more });
    let records = changes.into_iter().map(wire).collect();
    Ok(v1::ShardScanResponse { records, end, ..v1::ShardScanResponse::default() })
}

fn diff(engine: &Engine, state: &ShardState, scan: &v1::DiffScan) -> Result<v1::ShardScanResponse, Refusal> {
    let from = convert::state(scan.from.as_ref(), "from")?;
    let view = engine.view(state).map_err(refused)?;
    let before = engine.view(&from).map_err(refused)?;
    let part = view.diff_part(&before, &scan.low, scan.high.as_deref(), PAGE_RECORDS_MAX, SCAN_CHUNK_BYTES);
    let part = part.map_err(refused)?;
    let mut page = v1::ShardScanResponse::default();
    for (before, after) in part.differences {
        let record = before.as_ref().or(after.as_ref());
        let key = record.map(|record| Bytes::copy_from_slice(&record.key)).unwrap_or_default();
        let wire =
            |record: Option<_>| record.map_or_else(|| messages::to_absent(key.clone(), None), messages::to_record);
        page.before.push(wire(before));
        page.records.push(wire(after));
    }
    page.next = part.next.map(Bytes::from);
    page.end = page.next.is_none().then(v1::ScanEnd::default);
    Ok(page)
}

/// A page of kept journals, of versions that the state builds on.
fn journal(engine: &Engine, state: &ShardState, scan: &v1::JournalScan) -> Result<v1::ShardScanResponse, Refusal> {
    let (from, to) = (Version(scan.from_version), Version(scan.to_version).min(state.version));
    let kept = engine.journals(state, from, to, SCAN_CHUNK_BYTES).map_err(refused)?;
    let is_last = kept.last().is_none_or(|last| last.version >= to);
    let mut journals = Vec::with_capacity(kept.len());
    for kept in kept {
        let broken = |_| Refusal::new(Reason::Corrupted, "a kept journal is malformed");
        let lists = decode_journal(&kept.bytes).map_err(broken)?.into_iter().map(Bytes::from).collect();
        journals.push(v1::ShardJournal { version: kept.version.0, lists });
    }
    let end = is_last.then(v1::ScanEnd::default);
    Ok(v1::ShardScanResponse { journals, end, ..v1::ShardScanResponse::default() })
}

/// The least key above `key`.
fn after(key: &[u8]) -> Bytes {
    let mut next = key.to_vec();
    next.push(0);
    next.into()
}
