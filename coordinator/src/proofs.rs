//! Proof files (`docs/verification.md` section 12): what the root group and the shards prove, joined to one file.

use std::{borrow::Cow, sync::Arc};

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
use tonic::Status;

use crate::{
    exec::{context::Context, wire, wire::View},
    plan::Leaves,
};

/// Where a header stands in a signed log.
#[derive(Debug)]
pub struct Place {
    view: Arc<View>,
    log: LogPart<'static>,
    header: HeaderPart<'static>,
    epoch: EpochPart,
}

impl Place {
    /// Finds the proofs of a header at `sequence` in the log as `view` shows it.
    ///
    /// # Errors
    /// `ROLLED_BACK` if its version does not stand any more; `UNAVAILABLE` without a quorum of the root group.
    pub async fn of(context: &Context, view: Arc<View>, header: &Bytes, sequence: u64) -> Result<Self, Status> {
        let stamp = wire::header_in(header)?.stamp;
        let rolled_back = || status::refuse(Reason::RolledBack, format!("version {stamp} was rolled back"));
        let epoch = EpochPart::new(&view.tail.epochs, stamp).ok_or_else(rolled_back)?;
        let newest = view.log_size - 1;
        let indices = if newest == sequence { vec![newest] } else { vec![newest, sequence] };
        let read = v1::LogProofRead { indices, size: view.log_size, old_size: 0 };
        let answer = context.root.read(v1::read_root_request::Read::LogProof(read)).await?;
        let paths = answer.inclusion.iter().map(path_in).collect::<Result<Vec<_>, _>>()?;
        let (Some(first), Some(last)) = (paths.first(), paths.last()) else { return Err(wire::broken("log proof")) };
        let checkpoint = context.checkpoint(view.log_size, view.log_root)?;
        let log = LogPart {
            checkpoint: Cow::Owned(checkpoint.to_vec()),
            newest_header: Cow::Owned(view.newest.to_vec()),
            path: first.clone(),
        };
        let header = HeaderPart { header: Cow::Owned(header.to_vec()), path: last.clone() };
        Ok(Self { view, log, header, epoch })
    }
}

fn path_in(path: &v1::HashPath) -> Result<Vec<Digest>, Status> {
    path.hashes.iter().map(|hash| wire::digest_in(hash)).collect()
}

fn encode(cluster: ClusterId, proof: Proof<'_>) -> Result<Bytes, Status> {
    let too_large = |_| status::refuse(Reason::ResourceExhausted, "a proof file has at most 64 MiB: ask for less");
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
    hashes: Vec<Digest>,
}

impl Receipts {
    /// Prepares the receipts of a committed version with this journal.
    ///
    /// # Errors
    /// As [`Place::of`].
    pub async fn of(context: &Context, header: &Bytes, journal: &[Vec<u8>]) -> Result<Self, Status> {
        let view = context.view().await?;
        let sequence = wire::header_in(header)?.sequence.0;
        let Place { view, log, header, epoch } = Place::of(context, view, header, sequence).await?;
        let hashes = journal.iter().map(|entry| hash::journal_leaf_hash(entry)).collect();
        Ok(Self { cluster: view.tail.header.cluster, log, header, epoch, journal: journal.to_vec(), hashes })
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
            hashes: merkle::list_proof(&self.hashes, &[u64::from(index)]),
        };
        encode(self.cluster, Proof::Receipt(proof))
    }
}

/// Shows that the log of `old_size` entries is the beginning of the log as it is now, and what stands there.
///
/// # Errors
/// `INVALID_ARGUMENT` if the log is smaller; `UNAVAILABLE` without a quorum of the root group.
pub async fn standing_file(context: &Context, view: &View, old_size: u64) -> Result<Bytes, Status> {
    if old_size > view.log_size {
        let message = format!("old_size is {old_size}, the log has {} entries", view.log_size);
        return Err(status::refuse(Reason::InvalidArgument, message));
    }
    let read = v1::LogProofRead { indices: vec![view.log_size - 1], size: view.log_size, old_size };
    let answer = context.root.read(v1::read_root_request::Read::LogProof(read)).await?;
    let path = answer.inclusion.first().map(path_in).transpose()?.ok_or_else(|| wire::broken("log proof"))?;
    let consistency = answer.consistency.as_ref().map(path_in).transpose()?.unwrap_or_default();
    let proof = StandingProof {
        log: LogPart {
            checkpoint: Cow::Owned(context.checkpoint(view.log_size, view.log_root)?.to_vec()),
            newest_header: Cow::Borrowed(&view.newest),
            path,
        },
        old_size,
        old_root: wire::digest_in(&answer.old_root)?,
        path: consistency,
        pairs: view.tail.epochs.pairs().to_vec(),
    };
    encode(view.tail.header.cluster, Proof::Standing(proof))
}
