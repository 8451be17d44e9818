//! Reads: head and leaves come from the root group, then the exact state of a shard from any
//! replica that has it.
//!
//! Every read begins with a ReadIndex on the root group; one serves all reads that queued before
//! it. Only `stale_ok` skips it. A version's name is resolved against that view alone, so a replica
//! that lags can never answer for a state that does not stand.

use std::{borrow::Cow, collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use coppice_proto::{convert, status, v1};
use coppice_types::{ErrorKind, Params, Reason, Stamp};
use coppice_verify::{header::Body, proof::Query, shard_map::StateLeaf};
use tokio::{sync::mpsc, time::Instant};
use tonic::Status;

use super::{
    proofs::{self, HeaderProof, ShardProof, SignedPrefix},
    room::{Room, Taken},
};
use crate::{
    groups::{
        root_log::{KnownVersion, RootLog},
        shards::Shards,
        wire::{self, View},
    },
    metrics::Metrics,
    plan::{Leaves, Refusal, check_key, resolve, state_of},
    shown::Shown,
};

/// Limit on the number of keys of one request.
pub const KEYS_MAX: usize = 16_384;
/// The length that a value is assumed to have before it is read, if the ledger allows longer ones.
const VALUE_BYTES: u32 = 1 << 20;
/// Pause before a read is tried again.
pub const PAUSE: Duration = Duration::from_millis(10);

/// A state that is about to be read.
#[derive(Clone, Debug)]
pub struct Located {
    /// A state of the root group. The version stands in it.
    pub view: Arc<View>,
    /// The version's original name.
    pub stamp: Stamp,
    /// The version's state leaves.
    pub leaves: Leaves,
    /// The signed checkpoint over the view, if a proof under it was asked for. `None` for proofs
    /// under a cosigned checkpoint.
    pub checkpoint: Option<Bytes>,
    /// The state was head at some time since the read began.
    pub is_head: bool,
}

impl Located {
    /// The context that every read of a replica carries.
    #[must_use]
    pub fn shard_context(&self, leaf: &StateLeaf) -> v1::ShardContext {
        v1::ShardContext {
            term: self.view.term.0,
            admin_sequence: self.view.tail.header.admin_sequence,
            decided: self.view.tail.leaves.state(leaf.shard).map(convert::to_state),
        }
    }
}

/// The channel for the messages of a stream.
pub type Sink<T> = mpsc::Sender<Result<T, Status>>;

/// Sends one message of a stream.
///
/// # Errors
/// If the client has gone. This ends the work.
pub async fn send<T>(sink: &Sink<T>, message: T) -> Result<(), Status> {
    sink.send(Ok(message)).await.map_err(|_| Status::cancelled("the client has gone"))
}

/// Serves reads.
#[derive(Clone, Debug)]
pub struct Reads {
    pub(super) log: Arc<RootLog>,
    pub(super) shards: Shards,
    /// Shows which checkpoints are cosigned.
    pub(super) shown: Arc<Shown>,
    room: Arc<Room>,
    /// The room of batches of queries, which hold theirs until their callers have all answers.
    pub(super) batches: Arc<Room>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) read_timeout: Duration,
    /// The caller that the reads are made for.
    pub(super) caller: Arc<str>,
}

impl Reads {
    /// Reads without a caller.
    pub fn new(
        log: Arc<RootLog>,
        shards: Shards,
        shown: Arc<Shown>,
        metrics: Arc<Metrics>,
        read_timeout: Duration,
    ) -> Self {
        let (room, batches) = (Arc::default(), Arc::default());
        Self { log, shards, shown, room, batches, metrics, read_timeout, caller: Arc::default() }
    }

    /// Reads for this caller.
    #[must_use]
    pub fn by(&self, caller: &str) -> Self {
        Self { caller: caller.into(), ..self.clone() }
    }

    /// The root group's state: a linearizable view, or with `stale_ok` the newest known one.
    ///
    /// # Errors
    /// `UNAVAILABLE` without a quorum.
    pub async fn view(&self, stale_ok: bool) -> Result<Arc<View>, Status> {
        if stale_ok { self.log.any_view().await } else { self.log.view().await }
    }

    pub(super) async fn locate(&self, read: &v1::ReadOptions, stale_ok: bool) -> Result<Located, Status> {
        let timed = match read.at_time_ms {
            Some(time_ms) => Some(self.at_time(read, time_ms).await?),
            None => None,
        };
        let (view, at) = match timed {
            Some((view, stamp)) => (view, Some(stamp)),
            None => (self.view(stale_ok).await?, read.at.map(convert::from_stamp)),
        };
        // The checkpoint of a proof is signed before anything is read, and signing may replace the
        // view by a newer one. So the version that is head in the view is also the newest in the
        // log under the checkpoint.
        let (view, checkpoint) = if read.want_proof && !read.cosigned {
            let (view, checkpoint) = self.log.signed(view).await?;
            (view, Some(checkpoint))
        } else {
            (view, None)
        };
        let located = self.locate_in(view, at, read.any_epoch).await;
        let located = if read.at_time_ms.is_some() { located.map_err(moved)? } else { located? };
        let is_head = !stale_ok && read.at_time_ms.is_none() && located.stamp == located.view.head();
        Ok(Located { checkpoint, is_head, ..located })
    }

    /// Head, since the read of `located` began.
    pub(super) async fn head_of(&self, located: &Located) -> Result<Located, Status> {
        if located.is_head {
            return Ok(located.clone());
        }
        self.locate_in(self.view(false).await?, None, false).await
    }

    pub(super) async fn locate_in(
        &self,
        view: Arc<View>,
        at: Option<Stamp>,
        any_epoch: bool,
    ) -> Result<Located, Status> {
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
        Ok(Located { view, stamp, leaves, checkpoint: None, is_head: false })
    }

    /// Explains the refusal of a number above head. It may have been rolled back, which only the
    /// root group remembers.
    async fn explain(&self, refusal: Refusal, number: Option<Stamp>) -> Status {
        let (Some(number), Reason::NotYet) = (number, refusal.reason) else { return refusal.into() };
        let read = v1::VersionRead { version: number.version.0, epoch: None, header_only: false };
        let answer = self.log.root.read(v1::read_root_request::Read::Version(read)).await;
        match answer {
            Err(exact) if status::reason(&exact) == Some(Reason::RolledBack) => exact,
            _ => refusal.into(),
        }
    }

    /// Header, place and leaves of a version that stands.
    pub(super) async fn version(&self, view: &View, stamp: Stamp) -> Result<Arc<KnownVersion>, Status> {
        if let Some(known) = self.log.known_version(stamp) {
            return Ok(known);
        }
        let newest = &view.tail.header;
        let known = if newest.stamp == stamp && matches!(newest.body, Body::Commit | Body::Genesis(_)) {
            KnownVersion { header: view.newest.clone(), sequence: newest.sequence.0, leaves: view.tail.leaves.clone() }
        } else {
            let read = v1::VersionRead { version: stamp.version.0, epoch: Some(stamp.epoch.0), header_only: false };
            let answer = self.log.root.read(v1::read_root_request::Read::Version(read)).await?;
            KnownVersion {
                sequence: answer.header_sequence,
                leaves: wire::leaves_in(answer.leaves)?,
                header: answer.header,
            }
        };
        let known = Arc::new(known);
        self.log.remember_version(stamp, known.clone());
        Ok(known)
    }

    /// Tries a read until a replica has its state, each time on a new view of the root group.
    pub(super) async fn retry<T, F, Fut>(&self, read: &v1::ReadOptions, work: F) -> Result<T, Status>
    where
        F: Fn(Located, Instant) -> Fut,
        Fut: Future<Output = Result<T, Status>>,
    {
        let deadline = Instant::now() + self.read_timeout;
        let (mut stale_ok, mut before) = (read.stale_ok, None);
        loop {
            let located = self.locate(read, stale_ok).await?;
            match work(located, deadline).await {
                Err(error) if again(&error) => {
                    if Instant::now() + PAUSE >= deadline {
                        // The last attempt may have failed only because time ran out. The error
                        // before it gives the reason.
                        return Err(before.unwrap_or(error));
                    }
                    before = Some(error);
                    tokio::time::sleep(PAUSE).await;
                }
                answer => return answer,
            }
            stale_ok = false;
        }
    }

    /// Waits for room to make an answer with the values of this many keys, or for the room of a
    /// whole message if there are too many.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if there is no room before the deadline.
    pub(super) async fn room_for(&self, keys: usize, params: &Params, deadline: Instant) -> Result<Taken, Status> {
        let each = params.value_bytes_max.min(VALUE_BYTES) + params.key_bytes_max;
        let bytes = u32::try_from(keys).unwrap_or(u32::MAX).saturating_mul(each);
        self.room.take(&self.caller, bytes.min(params.message_bytes_max), deadline).await
    }

    /// Reads keys at one state.
    ///
    /// # Errors
    /// The refusal of the first step that fails.
    pub async fn batch_get(&self, keys: &[Bytes], read: &v1::ReadOptions) -> Result<v1::BatchGetResponse, Status> {
        if keys.is_empty() {
            return Err(Refusal::invalid("at least one key must be asked for").into());
        }
        if keys.len() > KEYS_MAX {
            return Err(Refusal::over_limit("keys_max", KEYS_MAX as u64, keys.len() as u64).into());
        }
        let checked = |located: Located, deadline| async move {
            let params = &located.view.genesis.params;
            keys.iter().try_for_each(|key| check_key(key, params))?;
            self.get_at(located, keys, read, deadline).await
        };
        let answer = self.retry(read, checked).await?;
        self.metrics.read(keys.len(), read.want_proof);
        Ok(answer)
    }

    /// Reads keys at a located state, whose keys are allowed.
    pub(super) async fn get_at(
        &self,
        located: Located,
        keys: &[Bytes],
        read: &v1::ReadOptions,
        deadline: Instant,
    ) -> Result<v1::BatchGetResponse, Status> {
        let _room = self.room_for(keys.len(), &located.view.genesis.params, deadline).await?;
        self.get_in_room(&located, keys, read, 0, deadline).await
    }

    /// Like `get_at`, for a caller that holds room. A shard whose answer has more bytes than
    /// `bytes_max` refuses; 0 means the limit of messages.
    pub(super) async fn get_in_room(
        &self,
        located: &Located,
        keys: &[Bytes],
        read: &v1::ReadOptions,
        bytes_max: u32,
        deadline: Instant,
    ) -> Result<v1::BatchGetResponse, Status> {
        let params = &located.view.genesis.params;
        let mut by_shard: BTreeMap<usize, Vec<Bytes>> = BTreeMap::new();
        let mut sorted: Vec<Bytes> = keys.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        for key in &sorted {
            by_shard.entry(located.leaves.index_of(key)).or_default().push(key.clone());
        }
        let asked = (read.want_proof, bytes_max);
        let calls = by_shard.into_iter().map(|(index, keys)| self.get_shard(located, index, keys, asked, deadline));
        let answers = futures::future::try_join_all(calls).await?;
        let (proofs, records): (Vec<_>, Vec<_>) = answers.into_iter().unzip();
        let found: BTreeMap<Bytes, v1::ShardRecord> =
            records.into_iter().flatten().map(|record| (record.key.clone(), record)).collect();
        check_size(found.values().map(|record| record.value.len() + record.key.len() + 64).sum(), params)?;
        let mut want_values = true;
        let proof = if read.want_proof {
            let values = values_of(found.values(), params);
            want_values = values.is_none() || !read.values_in_proof;
            let query = Query::Keys(sorted.iter().map(|key| Cow::Borrowed(key.as_ref())).collect());
            let header = self.header_proof(located).await?;
            checked_proof(proofs::query_file(header, &located.leaves, query, &proofs, values)?, params)?
        } else {
            Bytes::new()
        };
        let missing = || wire::broken("read");
        let record = |key: &Bytes| found.get(key).cloned().map(|record| wire::record_out(record, want_values));
        Ok(v1::BatchGetResponse {
            records: keys.iter().map(|key| record(key).ok_or_else(missing)).collect::<Result<_, _>>()?,
            read_at: Some(convert::to_stamp(located.stamp)),
            proof,
        })
    }

    pub(super) async fn get_shard(
        &self,
        located: &Located,
        index: usize,
        keys: Vec<Bytes>,
        (want_proof, bytes_max): (bool, u32),
        deadline: Instant,
    ) -> Result<(ShardProof, Vec<v1::ShardRecord>), Status> {
        let leaf = &located.leaves.all()[index];
        let request = v1::ShardReadRequest {
            group: wire::group_number(leaf.shard),
            context: Some(located.shard_context(leaf)),
            state: Some(convert::to_state(state_of(leaf))),
            parts: Vec::new(),
            want_proof,
            want_values: true,
            bytes_max,
        };
        let answer = self.shards.read(request, keys, deadline).await?;
        Ok((ShardProof { index, trees: answer.trees }, answer.records))
    }

    /// Place and header of a version that stands, even if it was pruned.
    pub(super) async fn commit_header(&self, view: &View, stamp: Stamp) -> Result<(u64, Bytes), Status> {
        if let Some(known) = self.log.known_version(stamp) {
            return Ok((known.sequence, known.header.clone()));
        }
        if view.tail.header.stamp == stamp && view.tail.header.body == Body::Commit {
            return Ok((view.tail.header.sequence.0, view.newest.clone()));
        }
        let read = v1::VersionRead { version: stamp.version.0, epoch: Some(stamp.epoch.0), header_only: true };
        let answer = self.log.root.read(v1::read_root_request::Read::Version(read)).await?;
        Ok((answer.header_sequence, answer.header))
    }

    pub(super) async fn header_proof(&self, located: &Located) -> Result<HeaderProof, Status> {
        let known = self.version(&located.view, located.stamp).await?;
        self.header_proof_of(located, &known.header, known.sequence).await
    }

    /// The proof for the header at this place, under the checkpoint of the read.
    pub(super) async fn header_proof_of(
        &self,
        located: &Located,
        header: &Bytes,
        sequence: u64,
    ) -> Result<HeaderProof, Status> {
        let prefix = match &located.checkpoint {
            Some(checkpoint) => SignedPrefix::over(located.view.clone(), checkpoint.clone()),
            None => {
                let deadline = Instant::now() + self.read_timeout;
                SignedPrefix::cosigned(&self.log, &self.shown, sequence + 1, deadline).await?
            }
        };
        HeaderProof::of(&self.log, prefix, header, sequence).await
    }
}

/// Whether another view, or the same replica later, may answer differently.
pub fn again(error: &Status) -> bool {
    matches!(status::kind(error), ErrorKind::Unavailable | ErrorKind::Fenced)
}

/// The error of a read at a time. A version that was rolled back after it was found is no answer:
/// another one is.
pub(super) fn moved(error: Status) -> Status {
    match status::reason(&error) {
        Some(Reason::RolledBack) => {
            let message = "the version of that time was rolled back meanwhile: ask again";
            status::refuse(Reason::Unavailable, message)
        }
        _ => error,
    }
}

/// Checks that an answer of this many bytes fits a message. Messages have room for some overhead.
pub fn check_size(bytes: usize, params: &Params) -> Result<(), Refusal> {
    let max = u64::from(params.message_bytes_max);
    if bytes as u64 <= max {
        return Ok(());
    }
    let message = format!("message_bytes_max is {max}, the answer has {bytes} bytes: ask for less");
    Err(Refusal::new(Reason::LimitExceeded, message))
}

/// Returns the proof if it fits a message.
pub fn checked_proof(proof: Bytes, params: &Params) -> Result<Bytes, Status> {
    check_size(proof.len(), params)?;
    Ok(proof)
}

/// The values for a proof file. `None` if answer and proof together would carry too many bytes.
fn values_of<'a>(
    records: impl Iterator<Item = &'a v1::ShardRecord> + Clone,
    params: &Params,
) -> Option<Vec<Cow<'a, [u8]>>> {
    let found = records.filter(|record| record.found);
    let bytes: usize = found.clone().map(|record| record.value.len()).sum();
    let fits = bytes <= params.message_bytes_max as usize / 3;
    fits.then(|| found.map(|record| Cow::Borrowed(record.value.as_ref())).collect())
}
