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
        links::Lane,
        wire::{self, View},
    },
    plan::{Leaves, Refusal, check_key, resolve},
    proofs::{self, Ground, Place, ShardProof},
};

/// Most keys of one request.
pub const KEYS_MAX: usize = 16_384;
/// Pause before a read is tried again.
pub const PAUSE: Duration = Duration::from_millis(10);

/// A state that is about to be read.
#[derive(Clone, Debug)]
pub struct Located {
    /// The root group's state in which it stands.
    pub view: Arc<View>,
    /// Its original name.
    pub stamp: Stamp,
    /// Its state leaves.
    pub leaves: Leaves,
    /// The signed checkpoint over the view, where a proof was asked for. Without it, proofs are
    /// under one that witnesses have cosigned.
    pub checkpoint: Option<Bytes>,
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
    pub(crate) context: Arc<Context>,
    /// For whom.
    pub(crate) caller: Arc<str>,
}

impl Reads {
    /// Reads over what the coordinator shares.
    pub fn new(context: Arc<Context>) -> Self {
        Self { context, caller: Arc::default() }
    }

    /// Reads for this caller.
    #[must_use]
    pub fn by(&self, caller: &str) -> Self {
        Self { context: self.context.clone(), caller: caller.into() }
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
        // What is newest is so in the very log whose checkpoint proves it: that one is signed
        // before anything is read, and another view may take the place of this one for it.
        let (view, checkpoint) = if read.want_proof && !read.cosigned {
            let (view, checkpoint) = self.context.signed(view).await?;
            (view, Some(checkpoint))
        } else {
            (view, None)
        };
        let located = self.locate_in(view, read.at.map(wire::stamp_in), read.any_epoch).await?;
        Ok(Located { checkpoint, ..located })
    }

    pub(crate) async fn locate_in(
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
        Ok(Located { view, stamp, leaves, checkpoint: None })
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
    pub(crate) async fn retry<T, F, Fut>(&self, read: &v1::ReadOptions, work: F) -> Result<T, Status>
    where
        F: Fn(Located, Instant) -> Fut,
        Fut: Future<Output = Result<T, Status>>,
    {
        let deadline = Instant::now() + self.context.limits.read_timeout;
        let (mut stale_ok, mut before) = (read.stale_ok, None);
        loop {
            let located = self.locate(read, stale_ok).await?;
            match work(located, deadline).await {
                Err(error) if again(&error) => {
                    if Instant::now() + PAUSE >= deadline {
                        // The last attempt may have failed for want of time alone; the one before says why.
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
        let answer =
            self.retry(read, |located, deadline| self.get_at(located, keys, read.want_proof, deadline)).await?;
        self.context.metrics.read(keys.len(), read.want_proof);
        Ok(answer)
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
        let _room = self.context.room(&self.caller, keys.len(), params, deadline).await?;
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
        let answer = self.context.shards.read(Lane::Reads, &request, deadline).await?;
        Ok((ShardProof { index, trees: answer.trees }, answer.records))
    }

    pub(crate) async fn place(&self, located: &Located) -> Result<Place, Status> {
        let known = self.version(&located.view, located.stamp).await?;
        let ground = match &located.checkpoint {
            Some(checkpoint) => Ground::over(located.view.clone(), checkpoint.clone()),
            None => {
                let deadline = Instant::now() + self.context.limits.read_timeout;
                Ground::cosigned(&self.context, known.sequence + 1, deadline).await?
            }
        };
        Place::of(&self.context, ground, &known.header, known.sequence).await
    }
}

/// Another view, or the same replica later, may answer differently.
pub fn again(error: &Status) -> bool {
    matches!(status::kind(error), ErrorKind::Unavailable | ErrorKind::Fenced)
}

/// Bytes of an answer must fit a message, with room for what surrounds them.
pub fn check_size(bytes: usize, params: &Params) -> Result<(), Refusal> {
    let max = u64::from(params.message_bytes_max);
    if bytes as u64 <= max {
        return Ok(());
    }
    let message = format!("message_bytes_max is {max}, the answer has {bytes} bytes: ask for less");
    Err(Refusal::new(Reason::LimitExceeded, message))
}

/// The proof, if it fits a message.
pub fn checked_proof(proof: Bytes, params: &Params) -> Result<Bytes, Status> {
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
