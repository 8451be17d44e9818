//! Batches of queries, verified part by part if a key is trusted.
//!
//! The client knows which version each key's next answer must be of. A proof of a key at that
//! version also shows from which version on the key did not change: that of its last change, or if
//! it has no value, that of the last change of its shard. A walk through the states of a key goes
//! on at the version before that. So no state can be withheld, none can come twice, and a reply
//! that leaves a key out does not end well.
//!
//! One part of the reply is in memory at a time, with a few numbers for each key of the request.

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;
use coppice_proto::v1::{self, moment::Moment};
use coppice_types::Reason;
use coppice_verify::{
    check::{Claim, Question, Subject},
    proof::{Proof, ProofFile, join_log},
};

use crate::{
    Client, Error, Stream,
    times::agree,
    trust::{Asked, Asking, Read, decoded, take_values},
};

/// Limit on the number of states beyond the first one of each key: a coordinator gives no more.
const STEPS_MAX: usize = 1 << 17;

/// A part of the reply to a batch of queries.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueryPart {
    /// Versions of times that the queries name, each with a complete proof file if proofs were
    /// asked for.
    pub times: Vec<v1::QueryTime>,
    /// Answers about keys.
    pub answers: Vec<QueryAnswer>,
    /// The proof file of all answers in this part; empty without proofs.
    pub proof: Bytes,
}

/// An answer about one key of a query.
#[derive(Clone, Debug, PartialEq)]
pub struct QueryAnswer {
    /// Index of the query in the request.
    pub query: usize,
    /// Index of the key in the query.
    pub key: usize,
    /// A state of the key, or the reason why there is no answer, or no further one. A reason is the
    /// coordinator's word.
    pub outcome: Result<KeyState, QueryFailure>,
    /// Further answers about this key follow.
    pub more: bool,
}

/// A state of a key that was in force for a while.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyState {
    /// The record; `found` is false if the key had no value.
    pub record: v1::Record,
    /// The first version that is known to have the record: the key did not change from there up to
    /// `read_at`.
    pub unchanged_since: u64,
    /// The version that was read.
    pub read_at: v1::Stamp,
}

/// The coordinator's reason for giving no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryFailure {
    /// The machine-readable cause; `None` if it is unknown to this build.
    pub reason: Option<Reason>,
    /// The coordinator's words.
    pub message: String,
}

/// The reply to a batch of queries. Drop it to end the call.
pub struct QueryStream {
    client: Client,
    stream: Stream<v1::QueryBatchResponse>,
    want_proof: bool,
    /// The client's knowledge before it asked; `None` if no key is trusted.
    asking: Option<Asking>,
    places: Vec<Place>,
    /// Number of places that need another answer.
    open: usize,
    /// Number of records that may still come.
    records_left: usize,
    /// The part that all proofs have in common.
    log: Bytes,
    times: Times,
}

impl fmt::Debug for QueryStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueryStream").field("open", &self.open).finish_non_exhaustive()
    }
}

/// The version that an answer must be of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Head,
    Named(Moment),
}

/// A key of a query.
#[derive(Debug)]
struct Place {
    query: u32,
    /// Index in the query.
    number: u32,
    key: Bytes,
    /// The version of the next answer; `None` once there was the last.
    next: Option<Expected>,
    since: Option<Moment>,
    /// Number of answers that may still come.
    left: u32,
}

/// Versions of times: by the time that was asked for, the time of the version, and its number.
#[derive(Debug, Default)]
struct Times {
    /// Number of different times that were asked for.
    left: usize,
    known: BTreeMap<u64, (u64, u64)>,
}

impl Times {
    fn version(&self, moment: Moment) -> Result<u64, Error> {
        let time_ms = match moment {
            Moment::Version(version) => return Ok(version),
            Moment::TimeMs(time_ms) => time_ms,
        };
        let known = self.known.range(time_ms..).next().map(|(_, known)| known);
        let known = known.filter(|(from, _)| *from <= time_ms);
        known.map(|(_, version)| *version).ok_or(Error::Malformed("an answer before the version of its time"))
    }
}

impl Client {
    /// Answers many queries. Their answers come in any order, those about one key newest first.
    ///
    /// # Errors
    /// If the batch is refused as a whole. A refusal of a single key is part of the reply.
    pub async fn query_batch(&self, mut request: v1::QueryBatchRequest) -> Result<QueryStream, Error> {
        request.want_proof |= self.trust.is_some();
        let (want_proof, asking) = (request.want_proof, self.asking());
        let places = places_of(&request);
        let times = Times { left: count_times(&request), known: BTreeMap::new() };
        let stream = self.call_query_batch(request).await?;
        Ok(QueryStream {
            client: self.clone(),
            stream,
            want_proof,
            asking,
            open: places.len(),
            records_left: places.len() + STEPS_MAX,
            places,
            log: Bytes::new(),
            times,
        })
    }
}

impl QueryStream {
    /// Waits for the next part; `None` once every key has had its last answer.
    ///
    /// # Errors
    /// Like [`Stream::next`]. Also [`Error::Malformed`] if an answer is none to these queries or is
    /// missing, and if a key is trusted [`Error::Unproven`] or [`Error::Untrusted`] if a proof does
    /// not show an answer. The reply is then over. What came before holds.
    pub async fn next(&mut self) -> Result<Option<QueryPart>, Error> {
        let Some(mut message) = self.stream.next().await? else {
            return if self.open == 0 { Ok(None) } else { Err(Error::Malformed("answers are missing")) };
        };
        if !message.log.is_empty() {
            ensure(self.log.is_empty(), "a second log part")?;
            self.log = std::mem::take(&mut message.log);
        }
        let kinds = [!message.times.is_empty(), message.failure.is_some(), !message.records.is_empty()];
        ensure(kinds.into_iter().filter(|kind| *kind).count() == 1, "a part that is not of one kind")?;
        if !message.times.is_empty() {
            return self.take_times(message.times).await.map(Some);
        }
        let expected = self.take_places(&message.places)?;
        match message.failure.take() {
            Some(failure) => Ok(Some(self.fail(&message.places, &failure))),
            None => self.take_records(message, &expected).await.map(Some),
        }
    }

    /// Takes the versions of times. Each must be one that is needed, and settled.
    async fn take_times(&mut self, mut times: Vec<v1::QueryTime>) -> Result<QueryPart, Error> {
        for told in &mut times {
            self.times.left = self.times.left.checked_sub(1).ok_or(Error::Malformed("too many times"))?;
            let time_ms = told.time_ms;
            let version = told.version.as_mut().ok_or(Error::Malformed("a time without a version"))?;
            if self.want_proof {
                version.proof = join_log(&self.log, &version.proof).into();
            }
            if let Some(asking) = &self.asking {
                let file = decoded(&version.proof)?;
                let question = Question::about(Subject::Time(time_ms));
                let claim = self.client.trust_claim(asking, &file, &question, false).await?;
                let Claim::Time(claim) = claim else { return Err(Error::Untrusted("the proof is of another kind")) };
                if !agree(version, &claim) {
                    return Err(Error::Untrusted("the answer and its proof disagree"));
                }
            }
            ensure(version.is_final && version.timestamp_ms <= time_ms, "a time that is not settled")?;
            let stamp = version.stamp.ok_or(Error::Malformed("a time without a version"))?;
            self.times.known.insert(time_ms, (version.timestamp_ms, stamp.version));
        }
        Ok(QueryPart { times, ..QueryPart::default() })
    }

    /// The versions that answers about these places must be of. Until they are taken, the places
    /// expect nothing, so none occurs twice.
    fn take_places(&mut self, places: &[u32]) -> Result<Vec<Expected>, Error> {
        ensure(!places.is_empty(), "a part about no key")?;
        let take = |place: &u32| {
            let place = self.places.get_mut(*place as usize).ok_or(Error::Malformed("a key that was not asked for"))?;
            place.next.take().ok_or(Error::Malformed("a second answer about a key"))
        };
        places.iter().map(take).collect()
    }

    fn fail(&mut self, places: &[u32], failure: &v1::QueryFailure) -> QueryPart {
        self.open -= places.len();
        let failure = QueryFailure { reason: Reason::from_name(&failure.reason), message: failure.message.clone() };
        let answer = |place: &u32| self.places[*place as usize].answer(Err(failure.clone()));
        QueryPart { answers: places.iter().map(answer).collect(), ..QueryPart::default() }
    }

    async fn take_records(
        &mut self,
        message: v1::QueryBatchResponse,
        expected: &[Expected],
    ) -> Result<QueryPart, Error> {
        let v1::QueryBatchResponse { places, mut records, unchanged_since, read_at, proof, .. } = message;
        let counted = records.len() == places.len() && unchanged_since.len() == places.len();
        ensure(counted, "a different number of records than of keys")?;
        self.records_left = self.records_left.checked_sub(records.len()).ok_or(Error::Malformed("too many answers"))?;
        let read_at = read_at.ok_or(Error::Malformed("no version"))?;
        for expected in expected {
            if let Expected::Named(moment) = expected {
                ensure(self.times.version(*moment)? == read_at.version, "an answer of another version")?;
            }
        }
        let file = if self.want_proof { Bytes::from(join_log(&self.log, &proof)) } else { Bytes::new() };
        let proven = if self.want_proof {
            let decoded = decoded(&file)?;
            take_values(&mut records, &file, &decoded);
            if let Some(asking) = &self.asking {
                let keys: Vec<Bytes> = places.iter().map(|place| self.places[*place as usize].key.clone()).collect();
                let at = Some(read_at).filter(|_| !expected.contains(&Expected::Head));
                let options = &v1::ReadOptions { at, any_epoch: at.is_some(), ..v1::ReadOptions::default() };
                let (question, records, read_at) = (Asked::Keys(&keys), &records, Some(&read_at));
                let read = Read { question, options, records, read_at, file: &decoded, seen: asking.seen };
                self.client.trust_read(&asking.keys, &read).await?;
            }
            Some(decoded)
        } else {
            None
        };
        let mut answers = Vec::with_capacity(places.len());
        for ((place, record), unchanged_since) in places.into_iter().zip(records).zip(unchanged_since) {
            ensure(record.key == self.places[place as usize].key, "a record of another key")?;
            let unchanged = unchanged_by(proven.as_ref(), &record)?;
            let sound = unchanged.unwrap_or(unchanged_since) == unchanged_since && unchanged_since <= read_at.version;
            ensure(sound, "another version of the last change")?;
            let next = self.after(place, unchanged_since)?;
            self.open -= usize::from(next.is_none());
            let place = &mut self.places[place as usize];
            place.next = next.map(|version| Expected::Named(Moment::Version(version)));
            answers.push(place.answer(Ok(KeyState { record, unchanged_since, read_at })));
        }
        drop(proven);
        Ok(QueryPart { times: Vec::new(), answers, proof: file })
    }

    /// The version of the next answer about a place, behind one that shows that its key did not
    /// change since `unchanged`. `None` at the end.
    fn after(&mut self, place: u32, unchanged: u64) -> Result<Option<u64>, Error> {
        let place = &mut self.places[place as usize];
        place.left = place.left.saturating_sub(1);
        let goes_on = match place.since {
            Some(since) => place.left > 0 && unchanged > self.times.version(since)?,
            None => false,
        };
        Ok(unchanged.checked_sub(1).filter(|_| goes_on))
    }
}

impl Place {
    fn answer(&self, outcome: Result<KeyState, QueryFailure>) -> QueryAnswer {
        let more = self.next.is_some();
        QueryAnswer { query: self.query as usize, key: self.number as usize, outcome, more }
    }
}

/// The version from which on a record is shown not to have changed. `None` for a key without a
/// value if there is no proof.
fn unchanged_by(file: Option<&ProofFile<'_>>, record: &v1::Record) -> Result<Option<u64>, Error> {
    if let Some(stamp) = record.last_changed.filter(|_| record.found) {
        return Ok(Some(stamp.version));
    }
    let Some(file) = file else { return Ok(None) };
    let Proof::Query(proof) = &file.proof else { return Err(Error::Untrusted("the proof is of another kind")) };
    let below = proof.shards.partition_point(|part| *part.low <= *record.key);
    let part = below.checked_sub(1).map(|at| &proof.shards[at]);
    part.map(|part| Some(part.version.0)).ok_or(Error::Untrusted("the proof leaves a key out"))
}

fn places_of(request: &v1::QueryBatchRequest) -> Vec<Place> {
    let mut places = Vec::new();
    for (query, asked) in (0..).zip(&request.queries) {
        let moment = |moment: Option<v1::Moment>| moment.and_then(|moment| moment.moment);
        let next = moment(asked.at).map_or(Expected::Head, Expected::Named);
        let left = if asked.limit == 0 { u32::MAX } else { asked.limit };
        for (number, key) in (0..).zip(&asked.keys) {
            let (key, since) = (key.clone(), moment(asked.since));
            places.push(Place { query, number, key, next: Some(next), since, left });
        }
    }
    places
}

/// Number of different times that a request names.
fn count_times(request: &v1::QueryBatchRequest) -> usize {
    let moments = request.queries.iter().flat_map(|query| [query.at, query.since]).flatten();
    let mut times: Vec<u64> = moments
        .filter_map(|moment| match moment.moment {
            Some(Moment::TimeMs(time_ms)) => Some(time_ms),
            _ => None,
        })
        .collect();
    times.sort_unstable();
    times.dedup();
    times.len()
}

fn ensure(holds: bool, message: &'static str) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(Error::Malformed(message)) }
}

#[cfg(test)]
mod tests;
