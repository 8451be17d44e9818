//! Streamed reads: ranges, histories, differences and heads, shard by shard in key order.
//!
//! A stream shows the state that was located when it began. Only a few messages are made before the
//! client takes them. Shards are read page by page ([`Pages`]), so a client that takes nothing
//! holds no resources of a node.

use std::{borrow::Cow, time::Duration};

use bytes::Bytes;
use coppice_proto::{
    convert, status,
    v1::{self, shard_scan_request::Scan},
};
use coppice_types::{ErrorKind, Params, Reason, Version};
use coppice_verify::{header::Body, ledgers::RESERVED_END, proof::Query, shard_map::StateLeaf};
use tokio::time::Instant;
use tonic::Status;

use super::{
    pages::{self, Pages, SCANS_AHEAD},
    proofs::{self, ShardProof},
    reads::{Located, PAUSE, Reads, Sink, check_size, checked_proof, send},
};
use crate::{
    groups::wire::{self, View},
    plan::{Refusal, check_key, check_open, state_of},
};

impl Reads {
    /// Streams a range. The last message carries its end.
    ///
    /// # Errors
    /// The refusal of the first step that fails, even in the middle of the stream.
    pub async fn range(&self, request: &v1::RangeRequest, sink: &Sink<v1::RangeResponse>) -> Result<(), Status> {
        let read = request.read.unwrap_or_default();
        let (low, high) = (&request.low, request.high.as_deref());
        let (with_values, reverse) = (!request.without_values, request.reverse);
        let mut left = if request.limit == 0 { u32::MAX } else { request.limit };
        let begin = self.begin_scan(&read, |located| {
            check_range(low, high, &located.view.genesis.params)?;
            if with_values {
                check_open(low, &located.view.genesis.params)?;
            }
            let shards = located.leaves.overlapping(low, high);
            let index = if reverse { shards.end.saturating_sub(1) } else { shards.start };
            let leaf = &located.leaves.all()[index];
            Ok((leaf, range_scan(leaf, (low, high), (left, reverse), false)))
        });
        let (located, first) = begin.await?;
        let mut first = Some(first);
        let shards = located.leaves.overlapping(low, high);
        let shards: Box<dyn Iterator<Item = usize> + Send> =
            if reverse { Box::new(shards.rev()) } else { Box::new(shards) };
        let mut more = false;
        let mut last_key: Option<Bytes> = None;
        for index in shards {
            // When the limit is reached, one more record is read to learn whether there are more.
            let probe = left == 0;
            let rest = || self.scan_range(&located, index, (low, high), (left.max(1), reverse), false);
            let mut pages = first.take().unwrap_or_else(rest);
            while let Some(message) = pages.next().await? {
                more |= message.end.as_ref().is_some_and(|end| end.more) || (probe && !message.records.is_empty());
                if probe || message.records.is_empty() {
                    continue;
                }
                let count = u32::try_from(message.records.len()).map_err(|_| wire::broken("scan"))?;
                left = left.checked_sub(count).ok_or_else(|| wire::broken("scan"))?;
                last_key = message.records.last().map(|record| record.key.clone());
                let records = message.records.into_iter().map(|record| wire::record_out(record, with_values)).collect();
                send(sink, v1::RangeResponse { records, end: None }).await?;
            }
            if more {
                break;
            }
        }
        let proof = if read.want_proof {
            let (low, high) = match last_key {
                Some(last) if more && reverse => (last, request.high.clone()),
                // The smallest key above the last record.
                Some(last) if more => (low.clone(), Some(Bytes::from([&last[..], &[0]].concat()))),
                _ => (low.clone(), request.high.clone()),
            };
            self.prove_range(&located, (&low, high.as_deref()), with_values).await?
        } else {
            Bytes::new()
        };
        let end = v1::RangeEnd { read_at: Some(convert::to_stamp(located.stamp)), more, proof };
        send(sink, v1::RangeResponse { records: Vec::new(), end: Some(end) }).await
    }

    /// The pages of the part of a range that lies in a shard: at most as many records, from the
    /// upper end if they are wanted in reverse.
    pub(super) fn scan_range(
        &self,
        located: &Located,
        index: usize,
        range: (&[u8], Option<&[u8]>),
        limit: (u32, bool),
        want_proof: bool,
    ) -> Pages {
        let leaf = &located.leaves.all()[index];
        self.scan(located, leaf, range_scan(leaf, range, limit, want_proof))
    }

    /// Starts the first scan of a stream. Until it answers, nothing has been sent, so each attempt
    /// locates the state again: a rollback may have removed it.
    async fn begin_scan(
        &self,
        read: &v1::ReadOptions,
        scan_of: impl Fn(&Located) -> Result<(&StateLeaf, Scan), Status>,
    ) -> Result<(Located, Pages), Status> {
        let begin = |located: Located, deadline| {
            let request = scan_of(&located).map(|(leaf, scan)| scan_request(&located, leaf, scan));
            async move {
                let request = request?;
                let first = self.shards.scan(&request, deadline).await?;
                Ok((located, Pages::new(self.clone(), request, Some(first))))
            }
        };
        self.retry(read, begin).await
    }

    /// The pages of a scan. None is read yet.
    pub(super) fn scan(&self, located: &Located, leaf: &StateLeaf, scan: Scan) -> Pages {
        Pages::new(self.clone(), scan_request(located, leaf, scan), None)
    }

    /// Proves all records of a range that was read.
    async fn prove_range(
        &self,
        located: &Located,
        range: (&[u8], Option<&[u8]>),
        with_values: bool,
    ) -> Result<Bytes, Status> {
        let deadline = Instant::now() + self.read_timeout;
        let _room = self.room_for(usize::MAX, &located.view.genesis.params, deadline).await?;
        self.prove_range_in_room(located, range, with_values).await
    }

    /// Like `prove_range`, for a caller that holds the room of a whole message.
    pub(super) async fn prove_range_in_room(
        &self,
        located: &Located,
        (low, high): (&[u8], Option<&[u8]>),
        with_values: bool,
    ) -> Result<Bytes, Status> {
        let params = &located.view.genesis.params;
        let mut proofs = Vec::new();
        let mut values = Vec::new();
        let mut size = 0;
        for index in located.leaves.overlapping(low, high) {
            let mut pages = self.scan_range(located, index, (low, high), (u32::MAX, false), true);
            let mut trees = Bytes::new();
            while let Some(message) = pages.next().await? {
                if with_values {
                    size += message.records.iter().map(|record| record.value.len()).sum::<usize>();
                    check_size(size, params)?;
                    values.extend(message.records.into_iter().map(|record| Cow::Owned(record.value.to_vec())));
                }
                if let Some(end) = message.end {
                    trees = end.trees;
                }
            }
            proofs.push(ShardProof { index, trees });
        }
        let query = Query::Range { low: Cow::Borrowed(low), high: high.map(Cow::Borrowed) };
        let header = self.header_proof(located).await?;
        checked_proof(
            proofs::query_file(header, &located.leaves, query, &proofs, with_values.then_some(values))?,
            params,
        )
    }

    /// Streams the changes of one key, newest first.
    ///
    /// # Errors
    /// The refusal of the first step that fails, even in the middle of the stream.
    pub async fn history(&self, request: &v1::HistoryRequest, sink: &Sink<v1::HistoryResponse>) -> Result<(), Status> {
        let read = request.read.unwrap_or_default();
        if read.want_proof {
            return Err(Refusal::invalid("a history has no proof: prove the key at the versions of interest").into());
        }
        let begin = self.begin_scan(&read, |located| {
            check_key(&request.key, &located.view.genesis.params)?;
            let scan = v1::HistoryScan { key: request.key.clone(), limit: request.limit, below: None };
            Ok((&located.leaves.all()[located.leaves.index_of(&request.key)], Scan::History(scan)))
        });
        let (_, mut pages) = begin.await?;
        let mut count = 0;
        let mut held: Option<v1::Record> = None;
        while let Some(message) = pages.next().await? {
            for record in message.records {
                count += 1;
                if let Some(change) = held.replace(wire::record_out(record, true)) {
                    send(sink, v1::HistoryResponse { change: Some(change), truncated: false }).await?;
                }
            }
            if let Some(end) = message.end {
                let limited = end.more || (request.limit > 0 && count >= request.limit);
                let oldest = held.as_ref().and_then(|change| change.last_changed).map(|stamp| stamp.version);
                // The boundary may have moved meanwhile.
                let truncated = !limited && may_go_on(oldest, self.view(read.stale_ok).await?.boundary);
                if held.is_some() || truncated {
                    send(sink, v1::HistoryResponse { change: held.take(), truncated }).await?;
                }
            }
        }
        Ok(())
    }

    /// Streams the differences between two versions.
    ///
    /// # Errors
    /// The refusal of the first step that fails, even in the middle of the stream.
    pub async fn diff(&self, request: &v1::DiffRequest, sink: &Sink<v1::DiffResponse>) -> Result<(), Status> {
        let view = self.log.view().await?;
        check_range(&request.low, request.high.as_deref(), &view.genesis.params)?;
        check_open(&request.low, &view.genesis.params)?;
        let (from, to) = (request.from.map(convert::from_stamp), request.to.map(convert::from_stamp));
        let from = self.locate_in(view.clone(), from, request.any_epoch).await?;
        let to = self.locate_in(view, to, request.any_epoch).await?;
        let backwards = from.stamp.version > to.stamp.version;
        let (older, newer) = if backwards { (&to, &from) } else { (&from, &to) };
        self.changes(older, newer, &request.low, request.high.as_deref(), |pairs| {
            let difference = |(before, after)| {
                let (before, after) = if backwards { (after, before) } else { (before, after) };
                v1::Difference {
                    before: Some(wire::record_out(before, true)),
                    after: Some(wire::record_out(after, true)),
                }
            };
            let differences = pairs.into_iter().map(difference).collect();
            send(sink, v1::DiffResponse { differences })
        })
        .await
    }

    /// Passes the changes from an older to a newer version to `give`, in key order, part by part.
    async fn changes<Fut>(
        &self,
        older: &Located,
        newer: &Located,
        low: &[u8],
        high: Option<&[u8]>,
        mut give: impl FnMut(Vec<(v1::ShardRecord, v1::ShardRecord)>) -> Fut,
    ) -> Result<(), Status>
    where
        Fut: Future<Output = Result<(), Status>>,
    {
        let mut scans = Vec::new();
        for index in newer.leaves.overlapping(low, high) {
            let leaf = &newer.leaves.all()[index];
            let from = older.leaves.state(leaf.shard).ok_or_else(|| wire::broken("list of state leaves"))?;
            if from == state_of(leaf) {
                continue;
            }
            let (low, high) = clip(leaf, low, high);
            let scan = v1::DiffScan {
                from: Some(convert::to_state(from)),
                low: Bytes::copy_from_slice(low),
                high: high.map(Bytes::copy_from_slice),
            };
            scans.push(self.scan(newer, leaf, Scan::Diff(scan)));
        }
        while !scans.is_empty() {
            let later = scans.split_off(scans.len().min(SCANS_AHEAD));
            for mut pages in pages::begun(scans).await? {
                while let Some(message) = pages.next().await? {
                    if message.before.len() != message.records.len() {
                        return Err(wire::broken("diff"));
                    }
                    if !message.records.is_empty() {
                        give(message.before.into_iter().zip(message.records).collect()).await?;
                    }
                }
            }
            scans = later;
        }
        Ok(())
    }

    /// Streams headers in order, starting at a sequence. With `follow`, the stream lasts until the
    /// client ends it.
    ///
    /// # Errors
    /// The refusal of the first step that fails, even in the middle of the stream.
    pub async fn watch(
        &self,
        request: &v1::WatchHeadsRequest,
        sink: &Sink<v1::WatchHeadsResponse>,
    ) -> Result<(), Status> {
        if request.want_journal && request.follow {
            self.check_shows_lists(&*self.log.any_view().await?)?;
        }
        let mut next = request.from_sequence;
        let mut grown = self.log.watch_size();
        loop {
            let read = v1::HeadersRead { from_sequence: next, limit: 64 };
            let answer = self.log.root.read(v1::read_root_request::Read::Headers(read)).await;
            let headers = match answer {
                Ok(answer) => answer.headers,
                Err(error) if request.follow && status::kind(&error) == ErrorKind::Unavailable => {
                    tokio::time::sleep(PAUSE * 10).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            for header in &headers {
                self.watch_one(request, header, sink).await?;
                next += 1;
            }
            if !headers.is_empty() {
                continue;
            }
            if !request.follow {
                return Ok(());
            }
            let changed = grown.wait_for(|size| *size > next);
            tokio::select! {
                biased;
                // If another coordinator leads, new headers are only seen by asking the root group.
                _ = tokio::time::timeout(Duration::from_millis(250), changed) => {}
                () = sink.closed() => return Ok(()),
            }
        }
    }

    /// Refuses a watcher of journals where the ledger does not keep them, unless this coordinator
    /// leads: then it knows the newest.
    fn check_shows_lists(&self, view: &View) -> Result<(), Status> {
        if view.genesis.params.journals_kept || self.shown.leads() {
            return Ok(());
        }
        let message = "the ledger keeps no journals, so the coordinator that leads alone shows the newest";
        Err(Refusal::new(Reason::NotLeader, message).into())
    }

    async fn watch_one(
        &self,
        request: &v1::WatchHeadsRequest,
        header: &Bytes,
        sink: &Sink<v1::WatchHeadsResponse>,
    ) -> Result<(), Status> {
        let parsed = wire::header_in(header)?;
        let mut message = v1::WatchHeadsResponse { header: header.clone(), ..v1::WatchHeadsResponse::default() };
        if parsed.body != Body::Commit {
            return send(sink, message).await;
        }
        let wants_changes = request.want_changed_keys || request.want_changed_values;
        if !(request.want_journal || wants_changes) {
            return send(sink, message).await;
        }
        let view = self.log.view().await?;
        if !view.tail.epochs.stands(parsed.stamp) {
            return send(sink, v1::WatchHeadsResponse { rolled_back: true, ..message }).await;
        }
        if request.want_journal {
            message.lists_gone = self.send_watched(&view, (&parsed, header), sink).await?;
            if message.lists_gone && request.follow {
                self.check_shows_lists(&view)?;
            }
        }
        if wants_changes {
            let newer = match self.locate_in(view.clone(), Some(parsed.stamp), false).await {
                Ok(newer) => newer,
                // It was rolled back since the view.
                Err(error) if status::reason(&error) == Some(Reason::RolledBack) => {
                    return send(sink, v1::WatchHeadsResponse { rolled_back: true, ..message }).await;
                }
                Err(error) => return Err(error),
            };
            let before = view.tail.epochs.stamp_of(Version(parsed.stamp.version.0 - 1));
            let older = self.locate_in(view, Some(before), false).await?;
            let values = request.want_changed_values;
            let low = if newer.view.genesis.params.ledgers { RESERVED_END } else { &[] };
            self.changes(&older, &newer, low, None, |pairs| {
                let changes = pairs.into_iter().map(|(_, after)| wire::record_out(after, values)).collect();
                send(sink, v1::WatchHeadsResponse { changes, continued: true, ..message.clone() })
            })
            .await?;
        }
        send(sink, message).await
    }
}

/// Whether a key may have changed before its oldest known change, in versions that are pruned. A
/// pruned change leaves no trace. But version 0 is empty, so there is no change before version 1.
fn may_go_on(oldest: Option<u64>, boundary: Version) -> bool {
    boundary.0 > 1 && oldest.is_none_or(|version| version > 1)
}

fn scan_request(located: &Located, leaf: &StateLeaf, scan: Scan) -> v1::ShardScanRequest {
    v1::ShardScanRequest {
        group: wire::group_number(leaf.shard),
        context: Some(located.shard_context(leaf)),
        state: Some(convert::to_state(state_of(leaf))),
        scan: Some(scan),
    }
}

/// The scan of the part of a range that lies in a shard.
fn range_scan(
    leaf: &StateLeaf,
    (low, high): (&[u8], Option<&[u8]>),
    (limit, reverse): (u32, bool),
    want_proof: bool,
) -> Scan {
    let (low, high) = clip(leaf, low, high);
    Scan::Range(v1::RangeScan {
        low: Bytes::copy_from_slice(low),
        high: high.map(Bytes::copy_from_slice),
        limit: if limit == u32::MAX { 0 } else { limit },
        want_proof,
        from: None,
        reverse,
    })
}

/// The part of a range that lies in a shard.
fn clip<'a>(leaf: &'a StateLeaf, low: &'a [u8], high: Option<&'a [u8]>) -> (&'a [u8], Option<&'a [u8]>) {
    let high = match (leaf.high.as_deref(), high) {
        (Some(end), Some(high)) => Some(end.min(high)),
        (end, high) => end.or(high),
    };
    (low.max(&leaf.low), high)
}

fn check_range(low: &[u8], high: Option<&[u8]>, params: &Params) -> Result<(), Refusal> {
    if high.is_some_and(|high| low >= high) {
        return Err(Refusal::invalid("the range is empty or inverted: low must be below high"));
    }
    let max = u64::from(params.key_bytes_max) + 1;
    match [Some(low), high].into_iter().flatten().find(|bound| bound.len() as u64 > max) {
        Some(bound) => Err(Refusal::over_limit("a range's bound", max, bound.len() as u64)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_goes_on_below_the_boundary_only_where_a_change_could_lie() {
        for (oldest, boundary, may) in [
            (None, 0, false),
            (None, 1, false),
            (None, 2, true),
            (Some(1), 9, false),
            (Some(2), 1, false),
            (Some(2), 2, true),
            (Some(9), 5, true),
        ] {
            assert_eq!(may_go_on(oldest, Version(boundary)), may, "{oldest:?}, {boundary}");
        }
    }
}
