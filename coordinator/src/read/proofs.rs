//! Proof files (`docs/verification.md` section 12): the proofs of the root group and of the shards,
//! joined into one file.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use coppice_proto::{status, v1};
use coppice_types::{ClusterId, Digest, LedgerId, Reason};
use coppice_verify::{
    checkpoint::Checkpoint,
    hash,
    header::Header,
    journal, merkle,
    proof::{
        EpochPart, HeaderPart, JournalPart, JournalsProof, KnownPart, LineageProof, LogPart, Proof, ProofFile, Query,
        QueryProof, ReceiptProof, ShardPart, StandingProof, TimeProof, TreeList,
    },
    shard_map::StateLeaf,
};
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use crate::{
    groups::{
        places::{Places, key_changes, paths_in, read_header},
        root_log::RootLog,
        wire::{self, View},
    },
    plan::{Commit, Leaves},
    shown::{Cosigned, Shown},
};

/// A committed prefix of the log with a checkpoint over it. Proofs are built on it.
#[derive(Clone, Debug)]
pub struct SignedPrefix {
    /// The root group's state, which says which versions stand.
    view: Arc<View>,
    size: u64,
    /// The last header of the prefix.
    newest: Bytes,
    checkpoint: Bytes,
}

impl SignedPrefix {
    /// Signs the whole log of `view`, or of a newer view.
    ///
    /// # Errors
    /// If it can't be signed; `UNAVAILABLE` without a quorum of the root group.
    pub async fn newest(log: &RootLog, view: Arc<View>) -> Result<Self, Status> {
        let (view, checkpoint) = log.signed(view).await?;
        Ok(Self::over(view, checkpoint))
    }

    /// The whole log of `view`, with the signed checkpoint over it.
    #[must_use]
    pub fn over(view: Arc<View>, checkpoint: Bytes) -> Self {
        Self { size: view.log_size, newest: view.newest.clone(), checkpoint, view }
    }

    /// The checkpoint over the prefix.
    #[must_use]
    pub fn checkpoint(&self) -> Bytes {
        self.checkpoint.clone()
    }

    /// Entries of the prefix.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The root group's state, which may be newer than the prefix.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Canonical bytes of the last header of the prefix.
    #[must_use]
    pub fn newest_bytes(&self) -> &Bytes {
        &self.newest
    }

    /// The last header of the prefix.
    ///
    /// # Errors
    /// `INTERNAL` if it does not decode.
    pub fn newest_header(&self) -> Result<Header, Status> {
        wire::header_in(&self.newest)
    }

    /// Waits for a cosigned prefix that has at least `size_min` entries and includes every
    /// rollback.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if this coordinator asks no witnesses; `UNAVAILABLE` if there is no such
    /// prefix by the deadline.
    pub async fn cosigned(log: &RootLog, shown: &Shown, size_min: u64, deadline: Instant) -> Result<Self, Status> {
        if !shown.asks_witnesses() {
            return Err(status::refuse(Reason::InvalidArgument, "this coordinator knows no witnesses"));
        }
        let mut newest = shown.cosigned.subscribe();
        let wait = async {
            loop {
                let covers = |shown: &Option<Arc<Cosigned>>| shown.as_ref().is_some_and(|it| it.size >= size_min);
                let cosigned = newest.wait_for(covers).await.ok().and_then(|shown| shown.clone());
                let cosigned = cosigned.ok_or_else(|| status::refuse(Reason::Unavailable, "the coordinator stops"))?;
                newest.mark_unchanged();
                let view = log.view().await?;
                let header = header_at(log, &view, cosigned.size - 1).await?;
                // A checkpoint from before a rollback has other epochs. The next cosigned one has
                // the present ones.
                if wire::header_in(&header)?.epochs_root == view.tail.epochs.root() {
                    return Ok(Self { view, size: cosigned.size, newest: header, checkpoint: cosigned.note.clone() });
                }
                // The sender lives as long as `shown`.
                let _ = newest.changed().await;
            }
        };
        let late = || status::refuse(Reason::Unavailable, "no checkpoint that witnesses have cosigned covers this yet");
        timeout_at(deadline, wait).await.unwrap_or_else(|_| Err(late()))
    }
}

async fn header_at(log: &RootLog, view: &View, sequence: u64) -> Result<Bytes, Status> {
    if sequence + 1 == view.log_size {
        return Ok(view.newest.clone());
    }
    read_header(log, sequence).await
}

/// The proof of a header's place in a signed log.
#[derive(Clone, Debug)]
pub struct HeaderProof {
    cluster: ClusterId,
    log: LogPart<'static>,
    header: HeaderPart<'static>,
    epoch: EpochPart,
}

impl HeaderProof {
    /// Fetches the proof for the header at `sequence`, which lies in the prefix.
    ///
    /// # Errors
    /// `ROLLED_BACK` if the header's version does not stand any more; `UNAVAILABLE` without a
    /// quorum of the root group.
    pub async fn of(log: &RootLog, prefix: SignedPrefix, header: &Bytes, sequence: u64) -> Result<Self, Status> {
        let SignedPrefix { view, size, newest, checkpoint } = prefix;
        let stamp = wire::header_in(header)?.stamp;
        let rolled_back = || status::refuse(Reason::RolledBack, format!("version {stamp} was rolled back"));
        let epoch = EpochPart::new(&view.tail.epochs, stamp).ok_or_else(rolled_back)?;
        let changes = log.keys.changes_below(size);
        let is_newest = size == view.log_size && sequence == size - 1 && changes.is_empty();
        let places = match view.newest_path.as_ref().filter(|_| is_newest) {
            Some(path) => Arc::new(Places { newest: path.clone(), own: path.clone(), key_changes: Vec::new() }),
            None => match log.known_places(size, sequence) {
                Some(known) => known,
                None => {
                    let end = Checkpoint::claimed(&checkpoint).map_err(|_| wire::broken("checkpoint"))?;
                    let places = Arc::new(Places::find(log, &end, (&newest, header, sequence), &changes).await?);
                    log.remember_places(size, sequence, places.clone());
                    places
                }
            },
        };
        let part = LogPart {
            checkpoint: Cow::Owned(checkpoint.to_vec()),
            newest_header: Cow::Owned(newest.to_vec()),
            path: places.newest.clone(),
            key_changes: places.key_changes.clone(),
        };
        let header = HeaderPart { header: Cow::Owned(header.to_vec()), path: places.own.clone() };
        Ok(Self { cluster: view.tail.header.cluster, log: part, header, epoch })
    }
}

/// The bytes of a proof file.
///
/// # Errors
/// `LIMIT_EXCEEDED` if the file would be too large.
pub fn encode(cluster: ClusterId, proof: Proof<'_>) -> Result<Bytes, Status> {
    let too_large = |_| status::refuse(Reason::LimitExceeded, "a proof file may have at most 64 MiB: ask for less");
    ProofFile { cluster, proof }.encode().map(Bytes::from).map_err(too_large)
}

/// One shard's part of a proof.
#[derive(Debug)]
pub struct ShardProof {
    /// The index of the shard's leaf.
    pub index: usize,
    /// An encoded `list of trees`.
    pub trees: Bytes,
}

/// Makes a query's proof file. `values` are those of the found records, in key order.
///
/// # Errors
/// `INTERNAL` if a shard's part does not parse; `RESOURCE_EXHAUSTED` if the file would be too
/// large.
pub fn query_file(
    proven: HeaderProof,
    leaves: &Leaves,
    query: Query<'_>,
    shards: &[ShardProof],
    values: Option<Vec<Cow<'_, [u8]>>>,
) -> Result<Bytes, Status> {
    let parts = shards.iter().map(|proof| shard_part(proof, leaves)).collect::<Result<Vec<_>, Status>>()?;
    let hashes: Vec<Digest> = leaves.all().iter().map(StateLeaf::hash).collect();
    let indices: Vec<u64> = shards.iter().map(|proof| proof.index as u64).collect();
    let cluster = proven.cluster;
    let proof = QueryProof {
        log: proven.log,
        header: proven.header,
        epoch: proven.epoch,
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

/// The receipts of one version.
#[derive(Debug)]
pub struct Receipts {
    proven: HeaderProof,
    journal: Vec<Vec<u8>>,
    hashes: merkle::ListTree,
}

impl Receipts {
    /// Makes the receipts of a version that was just committed as the newest entry of a log of this
    /// size and root. `None` if the path does not lead to that root, or if key changes have to be
    /// proven.
    pub fn of_newest(
        log: &RootLog,
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
        if !log.keys.changes_below(size).is_empty() {
            return None;
        }
        let part = LogPart {
            checkpoint: Cow::Owned(checkpoint.to_vec()),
            newest_header: Cow::Owned(commit.header.clone()),
            path: path.to_vec(),
            key_changes: Vec::new(),
        };
        let place = HeaderPart { header: Cow::Owned(commit.header.clone()), path: path.to_vec() };
        let epoch = EpochPart::new(&commit.tail.epochs, header.stamp)?;
        let (cluster, journal) = (header.cluster, commit.journal.clone());
        let proven = HeaderProof { cluster, log: part, header: place, epoch };
        Some(Self { proven, hashes: tree_of(&journal), journal })
    }

    /// Makes the receipts of a committed version with this journal.
    ///
    /// # Errors
    /// Those of [`HeaderProof::of`].
    pub async fn of(log: &RootLog, header: &Bytes, journal: &[Vec<u8>]) -> Result<Self, Status> {
        let prefix = SignedPrefix::newest(log, log.view().await?).await?;
        let sequence = wire::header_in(header)?.sequence.0;
        let proven = HeaderProof::of(log, prefix, header, sequence).await?;
        Ok(Self { proven, journal: journal.to_vec(), hashes: tree_of(journal) })
    }

    /// The receipt of the batch at this place in the journal.
    ///
    /// # Errors
    /// `INTERNAL` if there is none.
    pub fn receipt(&self, index: u32) -> Result<Bytes, Status> {
        let entry = self.journal.get(index as usize).ok_or_else(|| wire::broken("journal"))?;
        let HeaderProof { cluster, log, header, epoch } = self.proven.clone();
        let (entry, hashes) = (Cow::Borrowed(&entry[..]), self.hashes.proof(u64::from(index)));
        encode(cluster, Proof::Receipt(ReceiptProof { log, header, epoch, index, entry, hashes }))
    }

    /// The entry of a ledger's head in the journal; `None` if the version did not append to it.
    pub fn head(&self, ledger: LedgerId) -> Option<HeadEntry> {
        HeadEntry::find(&self.journal, &self.hashes, ledger)
    }

    /// The proof file of journals that the version appended, each with the inclusion path of its
    /// leaf.
    ///
    /// # Errors
    /// Those of [`journals_file`].
    pub fn of_journals(
        &self,
        head: &HeadEntry,
        journals: Vec<(JournalPart<'_>, Vec<Digest>)>,
    ) -> Result<Bytes, Status> {
        journals_file(self.proven.clone(), head, None, journals)
    }
}

/// The entry of a ledger's head in a version's journal.
#[derive(Debug)]
pub struct HeadEntry {
    pub index: u32,
    /// The canonical bytes.
    pub bytes: Bytes,
    /// The list proof of the entry.
    pub hashes: Vec<Digest>,
}

impl HeadEntry {
    /// The entry of a ledger's head in this journal, whose leaves have this tree. `None` if the
    /// version did not append to the ledger.
    pub fn find(journal: &[impl AsRef<[u8]>], tree: &merkle::ListTree, ledger: LedgerId) -> Option<Self> {
        let is_head = |entry: &_| match journal::Entry::decode(AsRef::as_ref(entry)) {
            Ok(journal::Entry::Head(head)) => head.ledger == ledger,
            _ => false,
        };
        // Heads come after batches and appends.
        let index = journal.iter().rposition(is_head)?;
        Some(Self {
            index: u32::try_from(index).ok()?,
            bytes: Bytes::copy_from_slice(journal[index].as_ref()),
            hashes: tree.proof(index as u64),
        })
    }
}

/// Makes the proof file of journals of a ledger, each with the inclusion path of its leaf.
///
/// # Errors
/// `LIMIT_EXCEEDED` if the file would be too large.
pub fn journals_file(
    proven: HeaderProof,
    entry: &HeadEntry,
    known: Option<KnownPart>,
    journals: Vec<(JournalPart<'_>, Vec<Digest>)>,
) -> Result<Bytes, Status> {
    let proof = JournalsProof {
        log: proven.log,
        header: proven.header,
        epoch: proven.epoch,
        index: entry.index,
        entry: Cow::Borrowed(&entry.bytes),
        hashes: entry.hashes.clone(),
        known,
        journals,
    };
    encode(proven.cluster, Proof::Journals(proof))
}

/// Makes the proof file of a lineage from the proof of its range, and the journals of its cells.
///
/// # Errors
/// `INTERNAL` if the range's file does not decode; `LIMIT_EXCEEDED` if the file would be too large.
pub fn lineage_file(
    range: &[u8],
    ledger: LedgerId,
    clue: Digest,
    journals: Vec<JournalPart<'_>>,
) -> Result<Bytes, Status> {
    match ProofFile::decode(range) {
        Ok(ProofFile { cluster, proof: Proof::Query(query) }) => {
            encode(cluster, Proof::Lineage(LineageProof { query, ledger, clue, journals }))
        }
        _ => Err(wire::broken("proof of a range")),
    }
}

/// Makes the proof file of the version of a time. `next` is the proof of the version after it, in
/// the same prefix; `None` if the version is head.
///
/// # Errors
/// `LIMIT_EXCEEDED` if the file would be too large.
pub fn time_file(proven: HeaderProof, next: Option<HeaderProof>, time_ms: u64) -> Result<Bytes, Status> {
    let HeaderProof { cluster, log, header, epoch } = proven;
    let next = next.map(|next| next.header);
    encode(cluster, Proof::Time(TimeProof { log, header, epoch, time_ms, next }))
}

/// The tree over the leaves of a journal.
pub fn tree_of(journal: &[impl AsRef<[u8]>]) -> merkle::ListTree {
    merkle::ListTree::new(journal.iter().map(|entry| hash::journal_leaf_hash(entry.as_ref())).collect())
}

/// Makes a file that proves that the log of `old_size` entries is a prefix of this one, and which
/// versions stand there.
///
/// # Errors
/// `INVALID_ARGUMENT` if the prefix is smaller; `UNAVAILABLE` without a quorum of the root group.
pub async fn standing_file(log: &RootLog, prefix: &SignedPrefix, old_size: u64) -> Result<Bytes, Status> {
    let SignedPrefix { view, size, newest, checkpoint } = prefix;
    if old_size > *size {
        let message = format!("old_size is {old_size}, the log has {size} entries");
        return Err(status::refuse(Reason::InvalidArgument, message));
    }
    let changes = log.keys.changes_below(*size);
    let indices = [size - 1].into_iter().chain(changes.iter().copied()).collect();
    let read = v1::LogProofRead { indices, size: *size, old_size };
    let answer = log.root.read(v1::read_root_request::Read::LogProof(read)).await?;
    let mut paths = paths_in(&answer)?;
    let path = paths.next().ok_or_else(|| wire::broken("log proof"))?;
    let key_changes = key_changes(log, &changes, paths).await?;
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
