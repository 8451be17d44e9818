//! Proof files (`docs/verification.md` section 12): what the root group and the shards prove, joined to one file.

use std::{
    borrow::Cow,
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;
use coppice_proto::{status, v1};
use coppice_types::{ClusterId, Digest, Reason};
use coppice_verify::{
    hash, merkle,
    proof::{
        EpochPart, HeaderPart, LogPart, Proof, ProofFile, Query, QueryProof, ReceiptProof, ShardPart, StandingProof,
        TreeList,
    },
    shard_map::StateLeaf,
};
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use crate::{
    exec::{context::Context, wire, wire::View},
    plan::{Commit, Leaves},
    publish::Cosigned,
};

/// A committed prefix of the log with a checkpoint over it: what a proof stands on.
#[derive(Debug)]
pub struct Ground {
    /// The root group's state by which versions stand.
    view: Arc<View>,
    size: u64,
    /// The last header of the prefix.
    newest: Bytes,
    checkpoint: Bytes,
}

impl Ground {
    /// The whole log as `view` shows it, or a newer view, signed.
    ///
    /// # Errors
    /// If it can't be signed; `UNAVAILABLE` without a quorum of the root group.
    pub async fn newest(context: &Context, view: Arc<View>) -> Result<Self, Status> {
        let (view, checkpoint) = context.signed(view).await?;
        Ok(Self::over(view, checkpoint))
    }

    /// The whole log as `view` shows it, with the signed checkpoint over it.
    #[must_use]
    pub fn over(view: Arc<View>, checkpoint: Bytes) -> Self {
        Self { size: view.log_size, newest: view.newest.clone(), checkpoint, view }
    }

    /// The checkpoint over it.
    #[must_use]
    pub fn checkpoint(&self) -> Bytes {
        self.checkpoint.clone()
    }

    /// The newest prefix that witnesses have cosigned, once it has `size_min` entries and knows of every rollback.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if no witnesses are asked here; `UNAVAILABLE` if they have not cosigned so much by the deadline.
    pub async fn cosigned(context: &Context, size_min: u64, deadline: Instant) -> Result<Self, Status> {
        if !context.asks_witnesses.load(Ordering::Relaxed) {
            return Err(status::refuse(Reason::InvalidArgument, "this coordinator knows no witnesses"));
        }
        let mut shown = context.cosigned.subscribe();
        let wait = async {
            loop {
                let covers = |shown: &Option<Arc<Cosigned>>| shown.as_ref().is_some_and(|it| it.size >= size_min);
                let cosigned = shown.wait_for(covers).await.ok().and_then(|shown| shown.clone());
                let cosigned = cosigned.ok_or_else(|| status::refuse(Reason::Unavailable, "the coordinator stops"))?;
                shown.mark_unchanged();
                let view = context.view().await?;
                let newest = header_at(context, &view, cosigned.size - 1).await?;
                // After a rollback the next cosigned checkpoint has the epochs by which versions stand now.
                if wire::header_in(&newest)?.epochs_root == view.tail.epochs.root() {
                    return Ok(Self { view, size: cosigned.size, newest, checkpoint: cosigned.note.clone() });
                }
                // The sender is in the context.
                let _ = shown.changed().await;
            }
        };
        let late = || status::refuse(Reason::Unavailable, "no checkpoint that witnesses have cosigned covers this yet");
        timeout_at(deadline, wait).await.unwrap_or_else(|_| Err(late()))
    }
}

async fn header_at(context: &Context, view: &View, sequence: u64) -> Result<Bytes, Status> {
    if sequence + 1 == view.log_size {
        return Ok(view.newest.clone());
    }
    read_header(context, sequence).await
}

async fn read_header(context: &Context, sequence: u64) -> Result<Bytes, Status> {
    let read = v1::HeadersRead { from_sequence: sequence, limit: 1 };
    let answer = context.root.read(v1::read_root_request::Read::Headers(read)).await?;
    answer.headers.into_iter().next().ok_or_else(|| wire::broken("header"))
}

/// Where a header stands in a signed log.
#[derive(Debug)]
pub struct Place {
    view: Arc<View>,
    log: LogPart<'static>,
    header: HeaderPart<'static>,
    epoch: EpochPart,
}

impl Place {
    /// Finds the proofs of a header at `sequence`, which is on the ground.
    ///
    /// # Errors
    /// `ROLLED_BACK` if its version does not stand any more; `UNAVAILABLE` without a quorum of the root group.
    pub async fn of(context: &Context, ground: Ground, header: &Bytes, sequence: u64) -> Result<Self, Status> {
        let Ground { view, size, newest, checkpoint } = ground;
        let stamp = wire::header_in(header)?.stamp;
        let rolled_back = || status::refuse(Reason::RolledBack, format!("version {stamp} was rolled back"));
        let epoch = EpochPart::new(&view.tail.epochs, stamp).ok_or_else(rolled_back)?;
        let changes = context.keys.changes_below(size);
        let indices = [size - 1, sequence].into_iter().chain(changes.iter().copied()).collect();
        let read = v1::LogProofRead { indices, size, old_size: 0 };
        let answer = context.root.read(v1::read_root_request::Read::LogProof(read)).await?;
        let mut paths = paths_in(&answer)?;
        let (Some(first), Some(own)) = (paths.next(), paths.next()) else { return Err(wire::broken("log proof")) };
        let log = LogPart {
            checkpoint: Cow::Owned(checkpoint.to_vec()),
            newest_header: Cow::Owned(newest.to_vec()),
            path: first,
            key_changes: key_changes(context, &changes, paths).await?,
        };
        let header = HeaderPart { header: Cow::Owned(header.to_vec()), path: own };
        Ok(Self { view, log, header, epoch })
    }
}

fn paths_in(answer: &v1::ReadRootResponse) -> Result<std::vec::IntoIter<Vec<Digest>>, Status> {
    Ok(answer.inclusion.iter().map(wire::path_in).collect::<Result<Vec<_>, _>>()?.into_iter())
}

/// The headers of the key changes at these places, each with its path.
async fn key_changes(
    context: &Context,
    changes: &[u64],
    paths: impl ExactSizeIterator<Item = Vec<Digest>>,
) -> Result<Vec<HeaderPart<'static>>, Status> {
    if paths.len() != changes.len() {
        return Err(wire::broken("log proof"));
    }
    let mut parts = Vec::with_capacity(changes.len());
    for (&sequence, path) in changes.iter().zip(paths) {
        let header = match context.keys.header(sequence) {
            Some(header) => header,
            None => {
                let header = read_header(context, sequence).await?;
                context.keys.keep_header(sequence, header.clone());
                header
            }
        };
        parts.push(HeaderPart { header: Cow::Owned(header.to_vec()), path });
    }
    Ok(parts)
}

fn encode(cluster: ClusterId, proof: Proof<'_>) -> Result<Bytes, Status> {
    let too_large = |_| status::refuse(Reason::LimitExceeded, "a proof file has at most 64 MiB: ask for less");
    ProofFile { cluster, proof }.encode().map(Bytes::from).map_err(too_large)
}

/// What one shard proved.
#[derive(Debug)]
pub struct ShardProof {
    /// The place of its leaf.
    pub index: usize,
    /// An encoded `list of trees`.
    pub trees: Bytes,
}

/// Makes a query's proof file; `values` are those of the found records, in key order.
///
/// # Errors
/// `INTERNAL` if a shard's part does not parse, `RESOURCE_EXHAUSTED` if the file would be too large.
pub fn query_file(
    place: Place,
    leaves: &Leaves,
    query: Query<'_>,
    shards: &[ShardProof],
    values: Option<Vec<Cow<'_, [u8]>>>,
) -> Result<Bytes, Status> {
    let parts = shards.iter().map(|proof| shard_part(proof, leaves)).collect::<Result<Vec<_>, Status>>()?;
    let hashes: Vec<Digest> = leaves.all().iter().map(StateLeaf::hash).collect();
    let indices: Vec<u64> = shards.iter().map(|proof| proof.index as u64).collect();
    let cluster = place.view.tail.header.cluster;
    let proof = QueryProof {
        log: place.log,
        header: place.header,
        epoch: place.epoch,
        query,
        shards: parts,
        state_hashes: merkle::list_proof(&hashes, &indices),
        values,
    };
    encode(cluster, Proof::Query(proof))
}

fn shard_part<'a>(proof: &'a ShardProof, leaves: &'a Leaves) -> Result<ShardPart<'a>, Status> {
    let leaf = &leaves.all()[proof.index];
    Ok(ShardPart {
        index: u32::try_from(proof.index).expect("shards are few"),
        shard: leaf.shard,
        low: Cow::Borrowed(&leaf.low),
        high: leaf.high.as_deref().map(Cow::Borrowed),
        version: leaf.version,
        trees: TreeList::decode(&proof.trees).map_err(|_| wire::broken("list of trees"))?,
    })
}

/// Receipts of one version.
#[derive(Debug)]
pub struct Receipts {
    cluster: ClusterId,
    log: LogPart<'static>,
    header: HeaderPart<'static>,
    epoch: EpochPart,
    journal: Vec<Vec<u8>>,
    hashes: merkle::ListTree,
}

impl Receipts {
    /// Receipts of a version that was just committed as the newest entry of a log of this size and root; `None` if the
    /// path does not lead there, or if there are key changes to be proven.
    pub fn of_newest(
        context: &Context,
        checkpoint: &Bytes,
        commit: &Commit,
        (size, root): (u64, Digest),
        path: &[Digest],
    ) -> Option<Self> {
        let header = &commit.tail.header;
        let newest = header.sequence.0;
        if size != newest + 1 || merkle::verify_inclusion(newest, size, &commit.tail.hash, path, &root).is_err() {
            return None;
        }
        if !context.keys.changes_below(size).is_empty() {
            return None;
        }
        let log = LogPart {
            checkpoint: Cow::Owned(checkpoint.to_vec()),
            newest_header: Cow::Owned(commit.header.clone()),
            path: path.to_vec(),
            key_changes: Vec::new(),
        };
        let place = HeaderPart { header: Cow::Owned(commit.header.clone()), path: path.to_vec() };
        let epoch = EpochPart::new(&commit.tail.epochs, header.stamp)?;
        let journal = commit.journal.clone();
        Some(Self { cluster: header.cluster, log, header: place, epoch, hashes: tree_of(&journal), journal })
    }

    /// Prepares the receipts of a committed version with this journal.
    ///
    /// # Errors
    /// As [`Place::of`].
    pub async fn of(context: &Context, header: &Bytes, journal: &[Vec<u8>]) -> Result<Self, Status> {
        let ground = Ground::newest(context, context.view().await?).await?;
        let sequence = wire::header_in(header)?.sequence.0;
        let Place { view, log, header, epoch } = Place::of(context, ground, header, sequence).await?;
        let (cluster, hashes) = (view.tail.header.cluster, tree_of(journal));
        Ok(Self { cluster, log, header, epoch, journal: journal.to_vec(), hashes })
    }

    /// The receipt of the batch at a place in the journal.
    ///
    /// # Errors
    /// `INTERNAL` if there is none.
    pub fn receipt(&self, index: u32) -> Result<Bytes, Status> {
        let entry = self.journal.get(index as usize).ok_or_else(|| wire::broken("journal"))?;
        let proof = ReceiptProof {
            log: self.log.clone(),
            header: self.header.clone(),
            epoch: self.epoch.clone(),
            index,
            entry: Cow::Borrowed(entry),
            hashes: self.hashes.proof(u64::from(index)),
        };
        encode(self.cluster, Proof::Receipt(proof))
    }
}

fn tree_of(journal: &[Vec<u8>]) -> merkle::ListTree {
    merkle::ListTree::new(journal.iter().map(|entry| hash::journal_leaf_hash(entry)).collect())
}

/// Shows that the log of `old_size` entries is the beginning of the log on the ground, and what stands there.
///
/// # Errors
/// `INVALID_ARGUMENT` if the log is smaller; `UNAVAILABLE` without a quorum of the root group.
pub async fn standing_file(context: &Context, ground: &Ground, old_size: u64) -> Result<Bytes, Status> {
    let Ground { view, size, newest, checkpoint } = ground;
    if old_size > *size {
        let message = format!("old_size is {old_size}, the log has {size} entries");
        return Err(status::refuse(Reason::InvalidArgument, message));
    }
    let changes = context.keys.changes_below(*size);
    let indices = [size - 1].into_iter().chain(changes.iter().copied()).collect();
    let read = v1::LogProofRead { indices, size: *size, old_size };
    let answer = context.root.read(v1::read_root_request::Read::LogProof(read)).await?;
    let mut paths = paths_in(&answer)?;
    let path = paths.next().ok_or_else(|| wire::broken("log proof"))?;
    let key_changes = key_changes(context, &changes, paths).await?;
    let consistency = answer.consistency.as_ref().map(wire::path_in).transpose()?.unwrap_or_default();
    let proof = StandingProof {
        log: LogPart { checkpoint: Cow::Borrowed(checkpoint), newest_header: Cow::Borrowed(newest), path, key_changes },
        old_size,
        old_root: wire::digest_in(&answer.old_root)?,
        path: consistency,
        pairs: view.tail.epochs.pairs().to_vec(),
    };
    encode(view.tail.header.cluster, Proof::Standing(proof))
}
