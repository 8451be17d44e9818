//! Checks of answers against their proofs.
//!
//! A proof alone shows that *something* was so. Here it must show that the question that was asked
//! has the answer that was given: the same keys, values and version, the same range without a gap,
//! or exactly the batch that was sent.
//!
//! The rules from one answer to the next are those of [`coppice_verify::trust`]. This module keeps
//! the locks and times around them.

use std::{
    borrow::Cow,
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use coppice_proto::v1;
use coppice_types::{SessionId, ShardId, Stamp, Version};
use coppice_verify::{
    check::{self, Claim, ProvenLog, Question, Record, Subject, Verified},
    checkpoint::Checkpoint,
    hash::{self, RecordBody},
    header::{Body, Header},
    journal::{BatchEntry, Entry},
    keys::Keys,
    note::VerifierKey,
    proof::{Proof, ProofFile, QueryProof},
    shard_map::ShardMap,
    trust::{self, Asked as Place, Distrust, Grown, Growth, Mark, Marks},
};
use tokio::time::Instant;

use crate::Error;

/// The subject of the question: keys in any order, or a range.
pub(crate) enum Asked<'a> {
    Keys(&'a [bytes::Bytes]),
    /// `more` is part of the answer: whether records follow.
    Range {
        low: &'a [u8],
        high: Option<&'a [u8]>,
        limit: u32,
        reverse: bool,
        more: bool,
    },
}

/// Time between proofs that the log only grew.
const GROWTH_INTERVAL: Duration = Duration::from_secs(10);
/// Longest time for which requests for that proof may fail. After that, no answer is accepted
/// without it.
const GROWTH_PATIENCE: Duration = Duration::from_secs(60);

/// The ledger's keys, and the newest checkpoint that was seen under them.
#[derive(Debug)]
pub(crate) struct Trust {
    keys: Mutex<Arc<Keys>>,
    newest: Mutex<Option<Newest>>,
    /// The logs that were verified last.
    pub(crate) logs: ProvenLogs,
    /// The shards of the genesis header, once they are known.
    pub(crate) map: OnceLock<ShardMap>,
}

/// Logs that were verified. Answers of one moment have the same checkpoint, and a signature costs
/// more than all else that is checked of a small answer.
#[derive(Debug, Default)]
pub(crate) struct ProvenLogs(Mutex<VecDeque<Arc<ProvenLog>>>);

/// Limit on the number of logs that are remembered.
const LOGS_MAX: usize = 8;

impl ProvenLogs {
    /// Verifies a file as [`check::verify_known`] does, without checking a known log again.
    fn verify<'a>(
        &self,
        file: &ProofFile<'a>,
        keys: &Keys,
        newer: Option<&[u8]>,
        question: &Question<'_>,
    ) -> Result<Verified<'a>, check::Failure> {
        if newer.is_some() {
            return check::verify_known(file, keys, newer, question);
        }
        let known = self.lock().iter().find(|log| log.is_of(file, keys)).cloned();
        let log = match known {
            Some(log) => log,
            None => {
                let log = Arc::new(ProvenLog::prove(file, keys)?);
                let mut logs = self.lock();
                logs.truncate(LOGS_MAX - 1);
                logs.push_front(log.clone());
                log
            }
        };
        check::verify_in(file, keys, &log, question)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<ProvenLog>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Newest {
    marks: Marks,
    /// When a proof of growth was last requested.
    asked_at: Instant,
    /// When it was first requested since the last proof.
    asked_since: Option<Instant>,
}

impl Newest {
    fn is_overdue(&self) -> bool {
        self.asked_since.is_some_and(|since| since.elapsed() >= GROWTH_PATIENCE)
    }
}

impl Trust {
    pub(crate) fn new(key: VerifierKey) -> Self {
        let keys = Mutex::new(Arc::new(Keys::new(key)));
        Self { keys, newest: Mutex::default(), logs: ProvenLogs::default(), map: OnceLock::new() }
    }

    /// The ledger's keys that are known now. An answer is checked with the keys that were known
    /// when it was asked for: it may have been signed just before a key change that another answer
    /// reported.
    pub(crate) fn keys(&self) -> Arc<Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Learns of key changes from a proven checkpoint. From then on only the newest key is trusted.
    ///
    /// # Errors
    /// If the changes contradict the known ones, or if the key that signed the checkpoint had been
    /// replaced before that size.
    fn learn(&self, seen: &Seen) -> Result<(), Error> {
        let mut known = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let joined = known.join(seen.keys.clone()).map_err(Error::Untrusted)?;
        trust::compare(trust::changes(&known), trust::changes(&seen.keys), seen.checkpoint.size)?;
        *known = Arc::new(joined.advanced());
        Ok(())
    }

    /// The size of the newest checkpoint that was seen, in entries.
    pub(crate) fn seen(&self) -> u64 {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(0, |known| known.marks.newest.size)
    }

    /// Notes a proven checkpoint. Returns the checkpoints whose growth must be proven, if a proof
    /// is due.
    ///
    /// # Errors
    /// If the log had a different root at that size: the ledger was forked, and both checkpoints
    /// are signed.
    pub(crate) fn note(&self, seen: Seen) -> Result<Option<Growth>, Error> {
        self.learn(&seen)?;
        let seen = Mark::from(&seen.checkpoint);
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = newest.as_mut() else {
            *newest = Some(Newest { marks: Marks::new(seen), asked_at: Instant::now(), asked_since: None });
            return Ok(None);
        };
        known.marks.note(seen)?;
        // Only one call at a time asks for the proof, unless it is overdue.
        let waited = known.asked_at.elapsed() >= GROWTH_INTERVAL || known.is_overdue();
        let due = known.marks.is_unproven() && waited;
        if due {
            known.asked_at = Instant::now();
            known.asked_since.get_or_insert(known.asked_at);
        }
        let Marks { newest, proven } = known.marks;
        Ok(due.then_some(Growth { proven, newest }))
    }

    /// Notes that a request for a proof of growth failed.
    ///
    /// # Errors
    /// If such requests have failed for too long.
    pub(crate) fn unproven(&self) -> Result<(), Error> {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let overdue = newest.as_ref().is_some_and(Newest::is_overdue);
        if overdue { Err(Error::unproven_growth()) } else { Ok(()) }
    }

    /// Checks two proofs of growth, from the last proven checkpoint and from the newest one seen.
    /// Returns whether they show one log: their ends can be compared only if they have the
    /// same size.
    ///
    /// # Errors
    /// If they show different logs, or do not hold.
    pub(crate) fn check_growth(
        &self,
        keys: &Keys,
        growth: &Growth,
        from_proven: &[u8],
        from_newest: &[u8],
    ) -> Result<bool, Error> {
        let from_proven = self.grown(keys, growth.proven.size, from_proven)?;
        let from_newest = self.grown(keys, growth.newest.size, from_newest)?;
        let Some(end) = growth.check(from_proven, from_newest)? else { return Ok(false) };
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = newest.as_mut() {
            known.marks.prove(end)?;
            known.asked_since = None;
        }
        Ok(true)
    }

    /// The growth from a size on that a proof shows.
    fn grown(&self, keys: &Keys, old_size: u64, standing: &[u8]) -> Result<Grown, Error> {
        let file = decoded(standing)?;
        let verified = check::verify_known(&file, keys, None, &Question::about(Subject::Growth(old_size)))?;
        let Claim::Standing(claim) = &verified.claim else {
            return Err(Error::Untrusted("the proof is of another kind"));
        };
        let grown = Grown { old_root: claim.old_root, end: Mark::from(&verified.checkpoint) };
        self.learn(&Seen { checkpoint: verified.checkpoint, keys: verified.keys })?;
        Ok(grown)
    }

    /// Verifies a proof. It must answer the question, and be no older than what was known before
    /// the question. If head was asked for, the proof must be of the newest version. Returns what
    /// the proof shows, and its checkpoint.
    pub(crate) fn check<'a>(
        &self,
        asking: &Asking,
        newer: Option<&[u8]>,
        file: &ProofFile<'a>,
        question: &Question<'_>,
        of_head: bool,
    ) -> Result<(Claim<'a>, Seen), Error> {
        let verified = self.logs.verify(file, &asking.keys, newer, question)?;
        let version = verified.header().map(|header| header.stamp.version);
        let place = Place { seen: asking.seen, of_head };
        place.check(version, verified.newest.stamp.version, verified.checkpoint.size)?;
        let Verified { claim, checkpoint, keys, .. } = verified;
        Ok((claim, Seen { checkpoint, keys }))
    }

    /// Verifies a proof of the growth since genesis, which must be no older than what was known
    /// before it was asked for. Returns the newest header under its checkpoint.
    pub(crate) fn check_newest(&self, asking: &Asking, proof: &[u8]) -> Result<(Header, Seen), Error> {
        let question = Question::about(Subject::Growth(1));
        let verified = check::verify_known(&decoded(proof)?, &asking.keys, None, &question)?;
        let place = Place { seen: asking.seen, of_head: false };
        place.check(None, verified.newest.stamp.version, verified.checkpoint.size)?;
        Ok((verified.newest, Seen { checkpoint: verified.checkpoint, keys: verified.keys }))
    }

    /// Like the function [`check_receipt`]. Uses the known shards, or those of this genesis header,
    /// which are kept once a receipt holds with them.
    pub(crate) fn check_receipt(
        &self,
        keys: &Keys,
        newer: Option<&[u8]>,
        genesis: Option<&[u8]>,
        sent: &Sent<'_>,
        answer: &Receipted<'_>,
    ) -> Result<Seen, Error> {
        if let Some(map) = self.map.get() {
            return check_receipt(&self.logs, keys, newer, map, sent, answer);
        }
        let map = map_of(genesis.ok_or(Error::Malformed("genesis header"))?)?;
        let seen = check_receipt(&self.logs, keys, newer, &map, sent, answer)?;
        // If another receipt has set the map meanwhile, it is the same map.
        let _ = self.map.set(map);
        Ok(seen)
    }
}

/// The client's knowledge before it asks a question.
pub(crate) struct Asking {
    pub keys: Arc<Keys>,
    /// The size of the newest checkpoint that was seen, in entries.
    pub seen: u64,
}

/// A proven checkpoint, and the keys that its proof shows.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub checkpoint: Checkpoint,
    pub keys: Keys,
}

/// A read with its answer.
pub(crate) struct Read<'a> {
    pub question: Asked<'a>,
    pub options: &'a v1::ReadOptions,
    pub records: &'a [v1::Record],
    pub read_at: Option<&'a v1::Stamp>,
    /// The answer's proof.
    pub file: &'a ProofFile<'a>,
    /// The size of the newest checkpoint that was seen before the question, in entries.
    pub seen: u64,
}

/// Decodes a proof file.
///
/// # Errors
/// [`Error::Unproven`] if it is malformed.
pub(crate) fn decoded(proof: &[u8]) -> Result<ProofFile<'_>, Error> {
    let malformed = |error| check::Failure { step: check::Step::Format, cause: check::Cause::Codec(error) };
    ProofFile::decode(proof).map_err(|error| Error::Unproven(malformed(error)))
}

/// Sets the values that an answer leaves to its proof. Nothing is checked here: [`check_read`]
/// compares each value with its hash.
pub(crate) fn take_values(records: &mut [v1::Record], proof: &Bytes, file: &ProofFile<'_>) {
    let Proof::Query(QueryProof { values: Some(values), .. }) = &file.proof else { return };
    let mut found: Vec<&mut v1::Record> = records.iter_mut().filter(|record| record.found).collect();
    found.sort_by(|a, b| a.key.cmp(&b.key));
    // A key that was asked for twice has one value.
    for (same, value) in found.chunk_by_mut(|a, b| a.key == b.key).zip(values) {
        for record in same.iter_mut().filter(|record| record.value.is_empty()) {
            record.value = match value {
                Cow::Borrowed(value) => proof.slice_ref(value),
                Cow::Owned(value) => Bytes::copy_from_slice(value),
            };
        }
    }
}

/// The size that the checkpoint of a proof claims, no matter who signed it. `None` if it is not a
/// checkpoint.
pub(crate) fn claimed_size(file: &ProofFile<'_>) -> Option<u64> {
    Checkpoint::claimed(&file.proof.log().checkpoint).ok().map(|checkpoint| checkpoint.size)
}

/// Checks the answer to a read. If its checkpoint was signed before a key change, `newer` is the
/// proof of growth to a newer one. Returns the checkpoint of the proof.
pub(crate) fn check_read(logs: &ProvenLogs, keys: &Keys, newer: Option<&[u8]>, read: &Read<'_>) -> Result<Seen, Error> {
    let verified = read.verify(logs, keys, newer)?;
    check_place(&verified, read)?;
    check_claim(&verified, read)?;
    Ok(Seen { checkpoint: verified.checkpoint, keys: verified.keys })
}

impl Read<'_> {
    /// Verifies the proof, which must be about the keys that were asked for, or the range that was
    /// answered.
    fn verify(&self, logs: &ProvenLogs, keys: &Keys, newer: Option<&[u8]>) -> Result<Verified<'_>, Error> {
        let cut: Option<Vec<u8>>;
        let subject = match &self.question {
            Asked::Keys(keys) => Subject::Keys(keys.iter().map(AsRef::as_ref).collect()),
            Asked::Range { low, high, more: false, .. } => Subject::Range { low, high: *high },
            // A limit cut the range short. Then the proof covers the range up to the last record,
            // or from it on, and the answer must have as many records as were asked for.
            Asked::Range { low, high, limit, reverse, more: true } => {
                ensure(*limit > 0 && self.records.len() == *limit as usize, "the range ends below its limit")?;
                if *reverse {
                    let last = self.records.last().map_or(*low, |last| &last.key);
                    Subject::Range { low: last, high: *high }
                } else {
                    cut = successor(self.records);
                    Subject::Range { low, high: cut.as_deref() }
                }
            }
        };
        Ok(logs.verify(self.file, keys, newer, &Question::about(subject))?)
    }
}

/// Checks that the answer is of the version that was asked for, and not older than what was known
/// before the question.
fn check_place(verified: &Verified<'_>, read: &Read<'_>) -> Result<(), Error> {
    let (Proof::Query(proof), Claim::Query(claim)) = (&read.file.proof, &verified.claim) else {
        return Err(Error::Untrusted("the proof is of another kind"));
    };
    let (stamp, v1::ReadOptions { at, any_epoch, stale_ok, cosigned, .. }) = (claim.header.stamp, read.options);
    ensure(read.read_at.is_some_and(|read_at| same(stamp, read_at)), "the proof is for another version")?;
    let asked = match at {
        None => true,
        Some(at) if *any_epoch => Version(at.version) == stamp.version,
        // A rollback gives its target a second name, in the new epoch.
        Some(at) => {
            let renamed =
                |next: &coppice_verify::epochs::Pair| same(Stamp { epoch: next.epoch, version: next.base }, at);
            same(stamp, at) || Version(at.version) == stamp.version && proof.epoch.next.as_ref().is_some_and(renamed)
        }
    };
    ensure(asked, Distrust::NotHead.as_str())?;
    // Witnesses may lag behind.
    let seen = if *stale_ok || *cosigned { 0 } else { read.seen };
    let place = Place { seen, of_head: at.is_none() && !cosigned };
    Ok(place.check(Some(stamp.version), verified.newest.stamp.version, verified.checkpoint.size)?)
}

fn check_claim(verified: &Verified<'_>, read: &Read<'_>) -> Result<(), Error> {
    let Claim::Query(claim) = &verified.claim else { return Err(Error::Untrusted("the proof is of another kind")) };
    let records = read.records;
    match (&claim.answer, &read.question) {
        (check::Answer::Keys(proven), Asked::Keys(keys)) => check_keys(proven, keys, records),
        (check::Answer::Range { records: proven, .. }, Asked::Range { low, high, reverse, more, .. }) => {
            // The answer says that more records follow, so the range must not end at its last
            // record.
            let ends = if *reverse {
                records.last().is_none_or(|last| last.key == *low)
            } else {
                successor(records).as_deref() == *high
            };
            ensure(!(*more && ends), "the proof ends elsewhere than the answer")?;
            ensure(proven.len() == records.len(), "the answer is not the proven range")?;
            let mut records: Vec<_> = records.iter().collect();
            if *reverse {
                records.reverse();
            }
            proven.iter().zip(records).try_for_each(|(proven, record)| check_record(Some(proven), record))
        }
        _ => Err(Error::Untrusted("the proof answers another question")),
    }
}

/// A batch as it was sent.
pub(crate) struct Sent<'a> {
    pub session: Option<(SessionId, u64)>,
    pub batch: &'a v1::Batch,
}

impl<'a> Sent<'a> {
    pub(crate) fn new(session: &Bytes, number: u64, batch: Option<&'a v1::Batch>) -> Result<Self, Error> {
        let batch = batch.ok_or(Error::Malformed("no batch was sent"))?;
        Ok(Self { session: SessionId::from_slice(session).map(|id| (id, number)), batch })
    }

    /// The batch's entry in the journal.
    fn entry(&self, map: &ShardMap) -> BatchEntry {
        let mut lists: BTreeMap<ShardId, Vec<(&[u8], RecordBody)>> = BTreeMap::new();
        for operation in &self.batch.operations {
            let body = match &operation.change {
                Some(v1::operation::Change::Put(value)) => RecordBody::Put {
                    // No ledger accepts a longer value.
                    value_len: u32::try_from(value.len()).unwrap_or(u32::MAX),
                    value_hash: hash::sha256(value),
                },
                _ => RecordBody::Tombstone,
            };
            lists.entry(map.shard_of(&operation.key).id).or_default().push((&operation.key, body));
        }
        BatchEntry {
            session: self.session,
            metadata: hash::metadata_hash(&self.batch.metadata),
            shards: lists.into_iter().map(|(shard, list)| (shard, hash::operation_list_hash(list))).collect(),
        }
    }
}

/// The answer to a commit.
pub(crate) struct Receipted<'a> {
    pub response: &'a v1::CommitResponse,
    /// The response's receipt.
    pub file: ProofFile<'a>,
}

impl<'a> Receipted<'a> {
    /// Decodes the receipt of an answer.
    ///
    /// # Errors
    /// [`Error::Unproven`] if it is malformed.
    pub(crate) fn new(response: &'a v1::CommitResponse) -> Result<Self, Error> {
        Ok(Self { response, file: decoded(&response.receipt)? })
    }
}

/// The shards in a genesis header. The header is not proven yet: [`check_receipt`] compares its map
/// with a proven header.
pub(crate) fn map_of(genesis: &[u8]) -> Result<ShardMap, Error> {
    match crate::header(genesis)?.body {
        Body::Genesis(genesis) => Ok(genesis.shard_map),
        _ => Err(Error::Malformed("genesis header")),
    }
}

/// Checks that the receipt of a commit is for the batch that was sent. Returns its checkpoint.
pub(crate) fn check_receipt(
    logs: &ProvenLogs,
    keys: &Keys,
    newer: Option<&[u8]>,
    map: &ShardMap,
    sent: &Sent<'_>,
    answer: &Receipted<'_>,
) -> Result<Seen, Error> {
    let Receipted { response, file } = answer;
    let header = crate::header(&response.header)?;
    ensure(map.hash() == header.shard_map, "the genesis header that was shown has other shards")?;
    let sent = Entry::Batch(sent.entry(map)).hash();
    let verified = logs.verify(file, keys, newer, &Question::about(Subject::Batch(sent)))?;
    ensure(verified.header() == Some(&header), "the receipt is for another version")?;
    let same_stamp = response.stamp.as_ref().is_some_and(|stamp| same(header.stamp, stamp));
    ensure(same_stamp, "the receipt is for another version")?;
    Ok(Seen { checkpoint: verified.checkpoint, keys: verified.keys })
}

fn check_keys(
    proven: &[(Cow<'_, [u8]>, Option<Record<'_>>)],
    keys: &[bytes::Bytes],
    records: &[v1::Record],
) -> Result<(), Error> {
    ensure(keys.len() == records.len(), "the answer has different keys than the question")?;
    for (key, record) in keys.iter().zip(records) {
        let found = proven.binary_search_by(|(proven, _)| proven.as_ref().cmp(key.as_ref()));
        let at = found.map_err(|_| Error::Untrusted("the proof leaves a key out"))?;
        ensure(record.key == *key, "the answer has different keys than the question")?;
        check_record(proven[at].1.as_ref(), record)?;
    }
    Ok(())
}

fn check_record(proven: Option<&Record<'_>>, record: &v1::Record) -> Result<(), Error> {
    ensure(proven.is_some() == record.found, "the answer and its proof disagree")?;
    let Some(proven) = proven else { return Ok(()) };
    let agree = *proven.key == *record.key
        && proven.value_hash == coppice_verify::hash::sha256(&record.value)
        && record.last_changed.as_ref().is_some_and(|stamp| same(proven.stamp, stamp));
    ensure(agree, "the answer and its proof disagree")
}

/// The smallest key above the last record.
fn successor(records: &[v1::Record]) -> Option<Vec<u8>> {
    records.last().map(|record| [record.key.as_ref(), &[0]].concat())
}

fn same(stamp: Stamp, other: &v1::Stamp) -> bool {
    stamp == Stamp::new(other.epoch, other.version)
}

impl From<Distrust> for Error {
    fn from(distrust: Distrust) -> Self {
        Self::Untrusted(distrust.as_str())
    }
}

fn ensure(holds: bool, message: &'static str) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(Error::Untrusted(message)) }
}

#[cfg(test)]
mod tests;
