//! Reads: head and leaves from the root group, then the exact state of a shard from any replica that has it.
//!
//! Every read begins with a ReadIndex on the root group (one serves all that queued before it); only `stale_ok` skips it.
//! What a version's name means is resolved against that view alone, so a replica that is behind can never answer for a
//! state that does not stand.

use std::{borrow::Cow, collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use coppice_proto::{status, v1};
use coppice_types::{ErrorKind, Params, Reason, Stamp};
use coppice_verify::{header::Body, proof::Query, shard_map::StateLeaf};
use tokio::{sync::mpsc, time::Instant};
use tonic::Status;

use crate::{
    exec::{
        context::{Context, KnownVersion},
        wire::{self, View},
    },
    plan::{Leaves, Refusal, check_key, resolve},
    proofs::{self, Place, ShardProof},
};

/// Most keys of one request.
pub const KEYS_MAX: usize = 16_384;
/// Pause before a read is tried again.
const PAUSE: Duration = Duration::from_millis(10);

/// A state that is about to be read.
#[derive(Clone, Debug)]
pub struct Located {
    /// The root group's state in which it stands.
    pub view: Arc<View>,
    /// Its original name.
    pub stamp: Stamp,
    /// Its state leaves.
    pub leaves: Leaves,
}

impl Located {
    /// What a replica is told with every read.
    #[must_use]
    pub fn shard_context(&self, leaf: &StateLeaf) -> v1::ShardContext {
        v1::ShardContext {
            term: self.view.term,
            admin_sequence: self.view.tail.header.admin_sequence,
            decided: self.view.tail.leaves.state(leaf.shard).map(wire::state_out),
        }
    }
}

/// Where answers of a stream go.
pub type Sink<T> = mpsc::Sender<Result<T, Status>>;

/// Sends one message of a stream.
///
/// # Errors
/// If the client has gone: the work ends.
pub async fn send<T>(sink: &Sink<T>, message: T) -> Result<(), Status> {
    sink.send(Ok(message)).await.map_err(|_| Status::cancelled("the client has gone"))
}

/// Serves reads.
#[derive(Clone, Debug)]
pub struct Reads {
    context: Arc<Context>,
}

impl Reads {
    /// Reads over what the coordinator shares.
    pub fn new(context: Arc<Context>) -> Self {
        Self { context }
    }

    /// The root group's state: linearizable, unless a stale one will do and is known.
    ///
    /// # Errors
    /// `UNAVAILABLE` without a quorum.
    pub async fn view(&self, stale_ok: bool) -> Result<Arc<View>, Status> {
        if stale_ok {
            let last = self.context.last_view.lock().expect("no holder of the lock panics").clone();
            if let Some(view) = last {
                return Ok(view);
            }
        }
        self.context.view().await
    }

    async fn locate(&self, read: &v1::ReadOptions, stale_ok: bool) -> Result<Located, Status> {
        let view = self.view(stale_ok).await?;
        self.locate_in(view, read.at.map(wire::stamp_in), read.any_epoch).await
    }

    async fn locate_in(&self, view: Arc<View>, at: Option<Stamp>, any_epoch: bool) -> Result<Located, Status> {
        let head = view.head();
        let stamp = match resolve(at, any_epoch, &view.tail.epochs, head, view.boundary) {
            Ok(stamp) => stamp,
            Err(refusal) => return Err(self.explain(refusal, at.filter(|_| any_epoch)).await),
        };
        let leaves = if stamp.version == head.version {
            view.tail.leaves.clone()
        } else {
            self.version(&view, stamp).await?.leaves.clone()
        };
        Ok(Located { view, stamp, leaves })
    }

    /// A number above head may be one that was rolled back: only the root group remembers that.
    async fn explain(&self, refusal: Refusal, number: Option<Stamp>) -> Status {
        let (Some(number), Reason::NotYet) = (number, refusal.reason) else { return refusal.into() };
        let read = v1::VersionRead { version: number.version.0, epoch: None };
        let answer = self.context.root.read(v1::read_root_request::Read::Version(read)).await;
        match answer {
            Err(exact) if status::reason(&exact) == Some(Reason::RolledBack) => exact,
            _ => refusal.into(),
        }
    }

    /// Header, place and leaves of a version that stands.
    async fn version(&self, view: &View, stamp: Stamp) -> Result<Arc<KnownVersion>, Status> {
        if let Some(known) = self.context.known_version(stamp.epoch.0, stamp.version) {
            return Ok(known);
        }
        let newest = &view.tail.header;
        let known = if newest.stamp == stamp && matches!(newest.body, Body::Commit | Body::Genesis(_)) {
            KnownVersion { header: view.newest.clone(), sequence: newest.sequence.0, leaves: view.tail.leaves.clone() }
        } else {
            let read = v1::VersionRead { version: stamp.version.0, epoch: Some(stamp.epoch.0) };
            let answer = self.context.root.read(v1::read_root_request::Read::Version(read)).await?;
            KnownVersion {
                sequence: answer.header_sequence,
                leaves: wire::leaves_in(answer.leaves)?,
                header: answer.header,
            }
        };
        let known = Arc::new(known);
        self.context.remember_version(stamp.epoch.0, stamp.version, known.clone());
        Ok(known)
    }

    /// Tries a read until a replica has its state, each time on a new view of the root group.
    async fn retry<T, F, Fut>(&self, read: &v1::ReadOptions, work: F) -> Result<T, Status>
    where
        F: Fn(Located, Instant) -> Fut,
        Fut: Future<Output = Result<T, Status>>,
    {
        let deadline = Instant::now() + self.context.limits.read_timeout;
        let mut stale_ok = read.stale_ok;
        loop {
            let located = self.locate(read, stale_ok).await?;
            match work(located, deadline).await {
                Err(error) if again(&error) && Instant::now() + PAUSE < deadline => tokio::time::sleep(PAUSE).await,
                answer => return answer,
            }
            stale_ok = false;
        }
    }

    /// Reads keys at one state.
    ///
    /// # Errors
    /// The refusal of the first step that fails.
    pub async fn batch_get(&self, keys: &[Bytes], read: &v1::ReadOptions) -> Result<v1::BatchGetResponse, Status> {
        if keys.is_empty() {
            return Err(Refusal::invalid("at least one key is asked for").into());
        }
        if keys.len() > KEYS_MAX {
            return Err(Refusal::over_limit("keys_max", KEYS_MAX as u64, keys.len() as u64).into());
        }
        self.retry(read, |located, deadline| self.get_at(located, keys, read.want_proof, deadline)).await
    }

    async fn get_at(
        &self,
        located: Located,
        keys: &[Bytes],
        want_proof: bool,
        deadline: Instant,
    ) -> Result<v1::BatchGetResponse, Status> {
        let params = &located.view.genesis.params;
        keys.iter().try_for_each(|key| check_key(key, params))?;
        let mut by_shard: BTreeMap<usize, Vec<Bytes>> = BTreeMap::new();
        let mut sorted: Vec<Bytes> = keys.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        for key in &sorted {
            by_shard.entry(located.leaves.index_of(key)).or_default().push(key.clone());
        }
        let calls =
            by_shard.into_iter().map(|(index, keys)| self.get_shard(&located, index, keys, want_proof, deadline));
        let answers = futures::future::try_join_all(calls).await?;
        let (proofs, records): (Vec<_>, Vec<_>) = answers.into_iter().unzip();
        let found: BTreeMap<Bytes, v1::ShardRecord> =
            records.into_iter().flatten().map(|record| (record.key.clone(), record)).collect();
        check_size(found.values().map(|record| record.value.len() + record.key.len() + 64).sum(), params)?;
        let proof = if want_proof {
            let values = values_of(found.values(), params);
            let query = Query::Keys(sorted.iter().map(|key| Cow::Borrowed(key.as_ref())).collect());
            let place = self.place(&located).await?;
            checked_proof(proofs::query_file(place, &located.leaves, query, &proofs, values)?, params)?
        } else {
            Bytes::new()
        };
        let missing = || wire::broken("read");
        let record = |key: &Bytes| found.get(key).cloned().map(|record| wire::record_out(record, true));
        Ok(v1::BatchGetResponse {
            records: keys.iter().map(|key| record(key).ok_or_else(missing)).collect::<Result<_, _>>()?,
            read_at: Some(wire::stamp_out(located.stamp)),
            proof,
        })
    }

    async fn get_shard(
        &self,
        located: &Located,
        index: usize,
        keys: Vec<Bytes>,
        want_proof: bool,
        deadline: Instant,
    ) -> Result<(ShardProof, Vec<v1::ShardRecord>), Status> {
        let leaf = &located.leaves.all()[index];
        let request = v1::ShardReadRequest {
            group: wire::group_number(leaf.shard),
            context: Some(located.shard_context(leaf)),
            state: Some(wire::state_out(leaf.into())),
            keys,
            want_proof,
            want_values: true,
        };
        let answer = self.context.shards.read(&request, deadline).await?;
        Ok((ShardProof { index, trees: answer.trees }, answer.records))
    }

    async fn place(&self, located: &Located) -> Result<Place, Status> {
        let known = self.version(&located.view, located.stamp).await?;
        Place::of(&self.context, located.view.clone(), &known.header, known.sequence).await
    }

    /// Streams a range; the last message carries its end.
    ///
    /// # Errors
    /// The refusal of the first step that fails, also in the middle of the stream.
    pub async fn range(&self, request: &v1::RangeRequest, sink: &Sink<v1::RangeResponse>) -> Result<(), Status> {
        let read = request.read.unwrap_or_default();
        // Nothing has been sent when the first shard answers, so until then the read can be tried again.
        let located = self.retry(&read, |located, _| async { Ok(located) }).await?;
        check_range(&request.low, request.high.as_deref(), &located.view.genesis.params)?;
        let mut left = if request.limit == 0 { u32::MAX } else { request.limit };
        let shards = located.leaves.overlapping(&request.low, request.high.as_deref());
        let mut more = false;
        let mut last_key: Option<Bytes> = None;
        for index in shards {
            // With nothing left, one record more tells whether there is one.
            let probe = left == 0;
            let scan = self.scan_range(&located, index, request.high.as_deref(), &request.low, left.max(1), false);
            let mut stream = scan.await?;
            while let Some(message) = stream.message().await? {
                more |= message.end.as_ref().is_some_and(|end| end.more) || (probe && !message.records.is_empty());
                if probe || message.records.is_empty() {
                    continue;
                }
                let count = u32::try_from(message.records.len()).map_err(|_| wire::broken("scan"))?;
                left = left.checked_sub(count).ok_or_else(|| wire::broken("scan"))?;
                last_key = message.records.last().map(|record| record.key.clone());
                let records = message.records.into_iter().map(|record| wire::record_out(record, true)).collect();
                send(sink, v1::RangeResponse { records, end: None }).await?;
            }
            if more {
                break;
            }
        }
        let proof = if read.want_proof {
            let high = match last_key {
                // The smallest key above the last record.
                Some(last) if more => Some(Bytes::from([&last[..], &[0]].concat())),
                _ => request.high.clone(),
            };
            self.prove_range(&located, &request.low, high.as_deref()).await?
        } else {
            Bytes::new()
        };
        let end = v1::RangeEnd { read_at: Some(wire::stamp_out(located.stamp)), more, proof };
        send(sink, v1::RangeResponse { records: Vec::new(), end: Some(end) }).await
    }

    async fn scan_range(
        &self,
        located: &Located,
        index: usize,
        high: Option<&[u8]>,
        low: &[u8],
        limit: u32,
        want_proof: bool,
    ) -> Result<tonic::Streaming<v1::ShardScanResponse>, Status> {
        let leaf = &located.leaves.all()[index];
        let (low, high) = clip(leaf, low, high);
        let scan = v1::RangeScan {
            low: Bytes::copy_from_slice(low),
            high: high.map(Bytes::copy_from_slice),
            limit: if limit == u32::MAX { 0 } else { limit },
            want_proof,
        };
        self.scan(located, leaf, v1::shard_scan_request::Scan::Range(scan)).await
    }

    async fn scan(
        &self,
        located: &Located,
        leaf: &StateLeaf,
        scan: v1::shard_scan_request::Scan,
    ) -> Result<tonic::Streaming<v1::ShardScanResponse>, Status> {
        let request = v1::ShardScanRequest {
            group: wire::group_number(leaf.shard),
            context: Some(located.shard_context(leaf)),
            state: Some(wire::state_out(leaf.into())),
            scan: Some(scan),
        };
        let deadline = Instant::now() + self.context.limits.read_timeout;
        loop {
            match self.context.shards.scan(&request, deadline).await {
                Err(error) if again(&error) && Instant::now() + PAUSE < deadline => tokio::time::sleep(PAUSE).await,
                answer => return answer,
            }
        }
    }

    /// Proves all records of a range that was answered.
    async fn prove_range(&self, located: &Located, low: &[u8], high: Option<&[u8]>) -> Result<Bytes, Status> {
        let params = &located.view.genesis.params;
        let mut proofs = Vec::new();
        let mut values = Vec::new();
        let mut size = 0;
        for index in located.leaves.overlapping(low, high) {
            let mut stream = self.scan_range(located, index, high, low, u32::MAX, true).await?;
            let mut trees = Bytes::new();
            while let Some(message) = stream.message().await? {
                size += message.records.iter().map(|record| record.value.len()).sum::<usize>();
                check_size(size, params)?;
                values.extend(message.records.into_iter().map(|record| Cow::Owned(record.value.to_vec())));
                if let Some(end) = message.end {
                    trees = end.trees;
                }
            }
            proofs.push(ShardProof { index, trees });
        }
        let query = Query::Range { low: Cow::Borrowed(low), high: high.map(Cow::Borrowed) };
        let place = self.place(located).await?;
        checked_proof(proofs::query_file(place, &located.leaves, query, &proofs, Some(values))?, params)
    }

    /// Streams the changes of one key, newest first.
    ///
    /// # Errors
    /// The refusal of the first step that fails, also in the middle of the stream.
    pub async fn history(&self, request: &v1::HistoryRequest, sink: &Sink<v1::HistoryResponse>) -> Result<(), Status> {
        let read = request.read.unwrap_or_default();
        if read.want_proof {
            return Err(Refusal::invalid("a history has no proof: prove the key at the versions of interest").into());
        }
        let located = self.retry(&read, |located, _| async { Ok(located) }).await?;
        check_key(&request.key, &located.view.genesis.params)?;
        let leaf = &located.leaves.all()[located.leaves.index_of(&request.key)];
        let scan = v1::HistoryScan { key: request.key.clone(), limit: request.limit };
        let mut stream = self.scan(&located, leaf, v1::shard_scan_request::Scan::History(scan)).await?;
        let mut count = 0;
        let mut held: Option<v1::Record> = None;
        while let Some(message) = stream.message().await? {
            for record in message.records {
                count += 1;
                if let Some(change) = held.replace(wire::record_out(record, true)) {
                    send(sink, v1::HistoryResponse { change: Some(change), truncated: false }).await?;
                }
            }
            if let Some(end) = message.end {
                // What lies below the boundary can't be told from what never was.
                let limited = end.more || (request.limit > 0 && count >= request.limit);
                let truncated = !limited && located.view.boundary.0 > 0;
                if held.is_some() || truncated {
                    send(sink, v1::HistoryResponse { change: held.take(), truncated }).await?;
                }
            }
        }
        Ok(())
    }

    /// Streams what differs between two versions.
    ///
    /// # Errors
    /// The refusal of the first step that fails, also in the middle of the stream.
    pub async fn diff(&self, request: &v1::DiffRequest, sink: &Sink<v1::DiffResponse>) -> Result<(), Status> {
        let view = self.context.view().await?;
        check_range(&request.low, request.high.as_deref(), &view.genesis.params)?;
        let (from, to) = (request.from.map(wire::stamp_in), request.to.map(wire::stamp_in));
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

    /// Gives what changed from an older to a newer version, in key order, part by part.
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
        for index in newer.leaves.overlapping(low, high) {
            let leaf = &newer.leaves.all()[index];
            let from = older.leaves.state(leaf.shard).ok_or_else(|| wire::broken("list of state leaves"))?;
            if from == leaf.into() {
                continue;
            }
            let (low, high) = clip(leaf, low, high);
            let scan = v1::DiffScan {
                from: Some(wire::state_out(from)),
                low: Bytes::copy_from_slice(low),
                high: high.map(Bytes::copy_from_slice),
            };
            let mut stream = self.scan(newer, leaf, v1::shard_scan_request::Scan::Diff(scan)).await?;
            while let Some(message) = stream.message().await? {
                if message.before.len() != message.records.len() {
                    return Err(wire::broken("diff"));
                }
                if !message.records.is_empty() {
                    give(message.before.into_iter().zip(message.records).collect()).await?;
                }
            }
        }
        Ok(())
    }

    /// Streams headers in order, from a sequence on; with `follow` until the client goes.
    ///
    /// # Errors
    /// The refusal of the first step that fails, also in the middle of the stream.
    pub async fn watch(
        &self,
        request: &v1::WatchHeadsRequest,
        sink: &Sink<v1::WatchHeadsResponse>,
    ) -> Result<(), Status> {
        let mut next = request.from_sequence;
        let mut grown = self.context.log_size.subscribe();
        loop {
            let read = v1::HeadersRead { from_sequence: next, limit: 64 };
            let answer = self.context.root.read(v1::read_root_request::Read::Headers(read)).await;
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
                // Another coordinator may lead: then only the root group tells.
                _ = tokio::time::timeout(Duration::from_millis(250), changed) => {}
                () = sink.closed() => return Ok(()),
            }
        }
    }

    async fn watch_one(
        &self,
        request: &v1::WatchHeadsRequest,
        header: &Bytes,
        sink: &Sink<v1::WatchHeadsResponse>,
    ) -> Result<(), Status> {
        let parsed = wire::header_in(header)?;
        let wanted = request.want_changed_keys || request.want_changed_values;
        if wanted && parsed.body == Body::Commit {
            let view = self.context.view().await?;
            let before = view.tail.epochs.stamp_of(coppice_types::Version(parsed.stamp.version.0 - 1));
            let older = self.locate_in(view.clone(), Some(before), false).await?;
            let newer = self.locate_in(view, Some(parsed.stamp), false).await?;
            let values = request.want_changed_values;
            self.changes(&older, &newer, &[], None, |pairs| {
                let changes = pairs.into_iter().map(|(_, after)| wire::record_out(after, values)).collect();
                send(sink, v1::WatchHeadsResponse { header: header.clone(), changes, continued: true })
            })
            .await?;
        }
        send(sink, v1::WatchHeadsResponse { header: header.clone(), changes: Vec::new(), continued: false }).await
    }
}

/// Another view, or the same replica later, may answer differently.
fn again(error: &Status) -> bool {
    matches!(status::kind(error), ErrorKind::Unavailable | ErrorKind::Fenced)
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
        return Err(Refusal::invalid("the range is empty or inverted: low is not below high"));
    }
    let max = u64::from(params.key_bytes_max) + 1;
    match [Some(low), high].into_iter().flatten().find(|bound| bound.len() as u64 > max) {
        Some(bound) => Err(Refusal::over_limit("a range's bound", max, bound.len() as u64)),
        None => Ok(()),
    }
}

/// Bytes of an answer must fit a message, with room for what surrounds them.
fn check_size(bytes: usize, params: &Params) -> Result<(), Refusal> {
    let max = u64::from(params.message_bytes_max);
    if bytes as u64 <= max {
        return Ok(());
    }
    let message = format!("message_bytes_max is {max}, the answer has {bytes} bytes: ask for less");
    Err(Refusal::new(Reason::ResourceExhausted, message))
}

fn checked_proof(proof: Bytes, params: &Params) -> Result<Bytes, Status> {
    check_size(proof.len(), params)?;
    Ok(proof)
}

/// The values that go into a proof file: all of them, unless the answer would carry too much twice.
fn values_of<'a>(
    records: impl Iterator<Item = &'a v1::ShardRecord> + Clone,
    params: &Params,
) -> Option<Vec<Cow<'a, [u8]>>> {
    let found = records.filter(|record| record.found);
    let bytes: usize = found.clone().map(|record| record.value.len()).sum();
    let fits = bytes <= params.message_bytes_max as usize / 3;
    fits.then(|| found.map(|record| Cow::Borrowed(record.value.as_ref())).collect())
}
