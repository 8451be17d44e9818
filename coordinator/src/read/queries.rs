//! Batches of queries: keys at their versions or times, and walks through the states of keys.
//!
//! All answers are of one view of the root group, and all proofs are under one checkpoint. So the
//! answers of a batch fit together, and the proofs share their log part.
//!
//! The places of a batch are its keys, each with the version of its next answer. They are read
//! version by version, from the newest one back, so that keys of one version share a proof. An
//! answer says from which version on the key did not change. A walk goes on at the version before
//! that. So what a client verifies leaves no room for a change that is not shown.
//!
//! A batch holds room from its beginning to its end. That bounds the memory of all batches, however
//! slowly their callers read. A part of a reply that would be too large is cut into smaller ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use bytes::Bytes;
use coppice_proto::{
    status,
    v1::{self, moment::Moment},
};
use coppice_types::{ErrorKind, Reason};
use coppice_verify::proof::split_log;
use futures::future::join_all;
use prost::Message;
use tokio::time::{Instant, sleep};
use tonic::Status;

use super::reads::{KEYS_MAX, PAUSE, Reads, Sink, again, moved, send};
use crate::{
    groups::wire::{self, View},
    plan::{Leaves, Refusal, check_key},
};

/// Limit on the number of keys of one part of a reply.
const PART_KEYS_MAX: usize = 512;
/// Limit on the bytes that a shard adds to a part of several keys.
const PART_BYTES_MAX: u32 = 512 << 10;
/// Number of parts that are read at one time.
const PARTS_AHEAD: usize = 4;
/// Limit on the number of further answers about keys whose states are walked through.
const STEPS_MAX: usize = 1 << 17;
/// Number of times in one message.
const TIMES_PER_MESSAGE: usize = 64;
/// Assumed cost of a place, and of a time, in bytes.
const PLACE_BYTES: usize = 256;

/// A key of a query.
#[derive(Debug)]
struct Place {
    key: Bytes,
    /// The walk ends at this version; `None` if there is no walk.
    since: Option<u64>,
    /// Number of answers that the walk may still give.
    left: u32,
}

impl Place {
    /// The version of the next answer, behind one that shows that the key did not change since
    /// `unchanged`. `None` at the end of the walk.
    fn after(&mut self, unchanged: u64) -> Option<u64> {
        self.left = self.left.saturating_sub(1);
        let goes_on = self.left > 0 && self.since.is_some_and(|since| unchanged > since);
        if goes_on { unchanged.checked_sub(1) } else { None }
    }
}

/// Places whose next answer is of this version.
#[derive(Debug)]
struct Part {
    version: u64,
    places: Vec<u32>,
}

/// The versions of times, or why they have none.
type Times = BTreeMap<u64, Result<u64, Status>>;

/// A batch under way.
struct Batch<'a> {
    reads: &'a Reads,
    sink: &'a Sink<v1::QueryBatchResponse>,
    view: Arc<View>,
    /// The checkpoint over the view, if proofs were asked for.
    checkpoint: Option<Bytes>,
    /// The log part that was sent.
    log: Option<Bytes>,
    places: Vec<Place>,
    /// The places that wait for an answer, by its version.
    open: BTreeMap<u64, Vec<u32>>,
    /// Number of keys that a part may have. It falls when parts are too large.
    keys_max: usize,
    steps_left: usize,
}

impl Reads {
    /// Answers a batch of queries. A refusal that concerns single keys is part of the reply.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` or `LIMIT_EXCEEDED` for a batch without keys, or with too many;
    /// `RESOURCE_EXHAUSTED` without room; `UNAVAILABLE` if a group does not answer, or if versions
    /// are rolled back meanwhile. The last may come in the middle of the reply.
    pub async fn query_batch(
        &self,
        request: v1::QueryBatchRequest,
        sink: &Sink<v1::QueryBatchResponse>,
    ) -> Result<(), Status> {
        let count = count_keys(&request)?;
        let view = self.view(false).await?;
        let params = &view.genesis.params;
        // A part is held as it came from the shards, and as a message with a proof.
        let longest = params.value_bytes_max.max(PART_BYTES_MAX) as usize + params.key_bytes_max as usize;
        let held = request.encoded_len() + count * PLACE_BYTES + 2 * longest * (PARTS_AHEAD + 1);
        let bytes = u32::try_from(held).unwrap_or(u32::MAX);
        let _room = self.batches.take(&self.caller, bytes, Instant::now() + self.read_timeout).await?;
        let (view, checkpoint) = if request.want_proof {
            let (view, checkpoint) = self.log.signed(view).await?;
            (view, Some(checkpoint))
        } else {
            (view, None)
        };
        let mut batch = Batch {
            reads: self,
            sink,
            view,
            checkpoint,
            log: None,
            places: Vec::with_capacity(count),
            open: BTreeMap::new(),
            keys_max: PART_KEYS_MAX,
            steps_left: STEPS_MAX,
        };
        let times = batch.tell_times(times_of(&request)).await?;
        batch.begin(request, &times).await?;
        batch.run().await
    }
}

impl Batch<'_> {
    /// Finds and sends the versions of times.
    async fn tell_times(&mut self, asked: BTreeSet<u64>) -> Result<Times, Status> {
        let (mut times, mut message) = (Times::new(), Vec::new());
        let mut told: Option<(u64, Result<u64, Status>)> = None;
        // From the newest time back, since the version of a time has earlier times, too.
        for time_ms in asked.into_iter().rev() {
            if let Some((from, version)) = &told
                && time_ms >= *from
            {
                times.insert(time_ms, version.clone());
                continue;
            }
            match self.reads.time_in(time_ms, &self.view, self.checkpoint.as_ref()).await {
                Ok(mut answer) => {
                    let stamp = answer.stamp.ok_or_else(|| wire::broken("version of a time"))?;
                    told = Some((answer.timestamp_ms, Ok(stamp.version)));
                    times.insert(time_ms, Ok(stamp.version));
                    let log = self.share(&mut answer.proof)?;
                    message.push(v1::QueryTime { time_ms, version: Some(answer) });
                    if !log.is_empty() || message.len() >= TIMES_PER_MESSAGE {
                        self.send_times(log, mem::take(&mut message)).await?;
                    }
                }
                Err(error) if is_of_query(&error) => {
                    // Earlier times are before genesis, too.
                    told = (status::reason(&error) == Some(Reason::NotFound)).then(|| (0, Err(error.clone())));
                    times.insert(time_ms, Err(error));
                }
                Err(error) => return Err(error),
            }
        }
        if !message.is_empty() {
            self.send_times(Bytes::new(), message).await?;
        }
        Ok(times)
    }

    async fn send_times(&self, log: Bytes, times: Vec<v1::QueryTime>) -> Result<(), Status> {
        send(self.sink, v1::QueryBatchResponse { log, times, ..v1::QueryBatchResponse::default() }).await
    }

    /// Takes the places of the queries. Those that can't be answered are told so.
    async fn begin(&mut self, request: v1::QueryBatchRequest, times: &Times) -> Result<(), Status> {
        let head = self.view.head().version.0;
        let mut refused: BTreeMap<(String, String), Vec<u32>> = BTreeMap::new();
        for query in request.queries {
            let at = query.at.map_or(Ok(head), |at| version_of(&at, times));
            let since = query.since.map(|since| version_of(&since, times)).transpose();
            let left = if query.limit == 0 { u32::MAX } else { query.limit };
            for key in query.keys {
                let place = u32::try_from(self.places.len()).expect("places are few");
                let allowed = check_key(&key, &self.view.genesis.params).map_err(Status::from);
                let began = allowed.and_then(|()| Ok((at.clone()?, since.clone()?)));
                let since = began.as_ref().ok().and_then(|(_, since)| *since);
                self.places.push(Place { key, since, left });
                match began {
                    Ok((version, _)) => self.open.entry(version).or_default().push(place),
                    Err(error) => refused.entry(told(&error)).or_default().push(place),
                }
            }
        }
        for ((reason, message), places) in refused {
            self.fail(places, v1::QueryFailure { reason, message }).await?;
        }
        Ok(())
    }

    async fn run(&mut self) -> Result<(), Status> {
        loop {
            let parts = self.next_parts();
            if parts.is_empty() {
                return Ok(());
            }
            // All answers are taken before one is sent: one that waits for a slow client would fill
            // the connection to a node.
            let answers = join_all(parts.iter().map(|part| self.read(part))).await;
            for (part, answer) in parts.into_iter().zip(answers) {
                self.take(part, answer).await?;
            }
        }
    }

    /// The next parts to read, of the newest versions that are open.
    fn next_parts(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        while parts.len() < PARTS_AHEAD
            && let Some(mut newest) = self.open.last_entry()
        {
            let version = *newest.key();
            let places = newest.get_mut();
            // Neighbouring keys share most of their proofs.
            places.sort_unstable_by(|a, b| self.places[*a as usize].key.cmp(&self.places[*b as usize].key));
            let rest = places.split_off(places.len().min(self.keys_max));
            let own = mem::replace(places, rest);
            if places.is_empty() {
                newest.remove();
            }
            parts.push(Part { version, places: own });
        }
        parts
    }

    /// Reads the keys of a part, and the leaves of its version.
    async fn read(&self, part: &Part) -> Result<(Leaves, v1::BatchGetResponse), Status> {
        let deadline = Instant::now() + self.reads.read_timeout;
        let want_proof = self.checkpoint.is_some();
        let read = v1::ReadOptions { want_proof, values_in_proof: true, ..v1::ReadOptions::default() };
        let at = v1::Stamp { epoch: 0, version: part.version };
        let keys: Vec<Bytes> = part.places.iter().map(|place| self.places[*place as usize].key.clone()).collect();
        let bytes_max = if keys.len() > 1 { PART_BYTES_MAX } else { 0 };
        loop {
            let answer = async {
                let at = Some(coppice_proto::convert::from_stamp(at));
                let mut located = self.reads.locate_in(self.view.clone(), at, true).await?;
                located.checkpoint.clone_from(&self.checkpoint);
                let answer = self.reads.get_in_room(&located, &keys, &read, bytes_max, deadline).await;
                Ok::<_, Status>((located.leaves, answer.map_err(moved)?))
            };
            match answer.await {
                Err(error) if again(&error) && Instant::now() + PAUSE < deadline => sleep(PAUSE).await,
                answer => return answer,
            }
        }
    }

    async fn take(&mut self, part: Part, answer: Result<(Leaves, v1::BatchGetResponse), Status>) -> Result<(), Status> {
        match answer {
            Ok((leaves, answer)) => self.answer(part, &leaves, answer).await,
            Err(error) if part.places.len() > 1 && is_of_one_key(&error) => {
                self.keys_max = self.keys_max.min(part.places.len() / 2);
                self.open.entry(part.version).or_default().extend(part.places);
                Ok(())
            }
            Err(error) if is_of_query(&error) => {
                let (reason, message) = told(&error);
                self.fail(part.places, v1::QueryFailure { reason, message }).await
            }
            Err(error) => Err(error),
        }
    }

    /// Sends the answer to a part, and opens the next step of walks.
    async fn answer(&mut self, part: Part, leaves: &Leaves, answer: v1::BatchGetResponse) -> Result<(), Status> {
        let v1::BatchGetResponse { records, read_at, mut proof } = answer;
        let bytes = proof.len() + records.iter().map(|record| record.value.len()).sum::<usize>();
        if bytes < PART_BYTES_MAX as usize / 4 {
            self.keys_max = (self.keys_max * 2).min(PART_KEYS_MAX);
        }
        self.reads.metrics.read(records.len(), self.checkpoint.is_some());
        // A key without a value has not changed since its shard did.
        let unchanged = |record: &v1::Record| match record.last_changed {
            Some(stamp) if record.found => stamp.version,
            _ => leaves.all()[leaves.index_of(&record.key)].version.0,
        };
        let unchanged_since: Vec<u64> = records.iter().map(unchanged).collect();
        let mut ended = Vec::new();
        for (place, unchanged) in part.places.iter().zip(&unchanged_since) {
            let Some(next) = self.places[*place as usize].after(*unchanged) else { continue };
            if self.steps_left == 0 {
                ended.push(*place);
                continue;
            }
            self.steps_left -= 1;
            self.open.entry(next).or_default().push(*place);
        }
        let log = self.share(&mut proof)?;
        let (times, failure) = (Vec::new(), None);
        let places = part.places;
        let message = v1::QueryBatchResponse { log, times, places, records, unchanged_since, read_at, proof, failure };
        send(self.sink, message).await?;
        if ended.is_empty() {
            return Ok(());
        }
        let message = format!("a batch has at most {STEPS_MAX} further states: go on below the last one in another");
        let reason = Reason::LimitExceeded.name().to_owned();
        self.fail(ended, v1::QueryFailure { reason, message }).await
    }

    async fn fail(&self, places: Vec<u32>, failure: v1::QueryFailure) -> Result<(), Status> {
        let failure = Some(failure);
        send(self.sink, v1::QueryBatchResponse { places, failure, ..v1::QueryBatchResponse::default() }).await
    }

    /// Takes the log part out of a proof. Returns it if it was not sent yet.
    fn share(&mut self, proof: &mut Bytes) -> Result<Bytes, Status> {
        if proof.is_empty() {
            return Ok(Bytes::new());
        }
        let (log, rest) = split_log(proof).map_err(|_| wire::broken("proof"))?;
        let fresh = match &self.log {
            Some(sent) if *sent == log => Bytes::new(),
            Some(_) => return Err(wire::broken("log part of a proof")),
            None => Bytes::copy_from_slice(log),
        };
        if self.log.is_none() {
            self.log = Some(fresh.clone());
        }
        *proof = rest.into();
        Ok(fresh)
    }
}

/// Number of keys of a batch.
fn count_keys(request: &v1::QueryBatchRequest) -> Result<usize, Refusal> {
    if request.queries.is_empty() || request.queries.iter().any(|query| query.keys.is_empty()) {
        return Err(Refusal::invalid("a batch needs queries, and a query needs keys"));
    }
    let count = request.queries.iter().map(|query| query.keys.len()).sum();
    if count > KEYS_MAX {
        return Err(Refusal::over_limit("keys_max", KEYS_MAX as u64, count as u64));
    }
    Ok(count)
}

/// The times that a batch names.
fn times_of(request: &v1::QueryBatchRequest) -> BTreeSet<u64> {
    let moments = request.queries.iter().flat_map(|query| [query.at, query.since]).flatten();
    let time = |moment: v1::Moment| match moment.moment {
        Some(Moment::TimeMs(time_ms)) => Some(time_ms),
        _ => None,
    };
    moments.filter_map(time).collect()
}

/// The version that a moment names.
fn version_of(moment: &v1::Moment, times: &Times) -> Result<u64, Status> {
    match moment.moment {
        Some(Moment::Version(version)) => Ok(version),
        Some(Moment::TimeMs(time_ms)) => times.get(&time_ms).cloned().unwrap_or_else(|| Err(wire::broken("times"))),
        None => Err(Refusal::invalid("a moment is a version or a time").into()),
    }
}

/// Reason and message of a refusal.
fn told(error: &Status) -> (String, String) {
    let reason = status::reason(error).map_or("", Reason::name);
    (reason.to_owned(), error.message().to_owned())
}

/// Whether a refusal concerns the keys or versions of a query, and says nothing about other ones.
fn is_of_query(error: &Status) -> bool {
    use ErrorKind::{Conflict, Corrupted, Invalid, NotFound};
    matches!(status::kind(error), Conflict | Corrupted | Invalid | NotFound)
}

/// Whether another key of the same part may be the reason of a refusal.
fn is_of_one_key(error: &Status) -> bool {
    matches!(status::reason(error), Some(Reason::LimitExceeded | Reason::Corrupted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_ends_where_it_should_begin_or_at_its_limit() {
        let place = |since, left| Place { key: Bytes::from_static(b"k"), since, left };
        for (since, left, unchanged, next) in [
            (None, u32::MAX, 5, None),
            (Some(4), u32::MAX, 5, Some(4)),
            (Some(5), u32::MAX, 5, None),
            (Some(6), u32::MAX, 5, None),
            (Some(0), u32::MAX, 1, Some(0)),
            (Some(0), u32::MAX, 0, None),
            (Some(0), 2, 5, Some(4)),
            (Some(0), 1, 5, None),
        ] {
            assert_eq!(place(since, left).after(unchanged), next, "{since:?}, {left}, {unchanged}");
        }
    }
}
