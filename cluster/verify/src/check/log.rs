//! Steps `checkpoint`, `newest_header`, `header` and `epoch`: from the trusted key to a version that stands.

use coppice_types::{ClusterId, Stamp};

use super::failure::{Failure, Step, ensure, fail};
use crate::{
    checkpoint::{self, Checkpoint},
    hash::log_entry_hash,
    header::Header,
    merkle,
    note::VerifierKey,
    proof::{EpochPart, HeaderPart, LogPart},
};

/// A log whose checkpoint the key signed.
pub(super) struct Log {
    pub(super) cluster: ClusterId,
    pub(super) checkpoint: Checkpoint,
    pub(super) newest: Header,
}

impl Log {
    pub(super) fn check(cluster: ClusterId, part: &LogPart<'_>, key: &VerifierKey) -> Result<Self, Failure> {
        let checkpoint = Checkpoint::open(&part.checkpoint, key).map_err(fail(Step::Checkpoint))?;
        let prefix = checkpoint.origin.rsplit_once('/').map(|(prefix, _)| prefix);
        let of_cluster = prefix.is_some_and(|prefix| checkpoint::origin(prefix, &cluster) == checkpoint.origin);
        ensure(of_cluster, Step::Checkpoint, "origin of another cluster")?;
        let last = checkpoint.size.checked_sub(1).ok_or(Failure::rule(Step::NewestHeader, "the log is empty"))?;
        let newest = included(&part.newest_header, &part.path, cluster, &checkpoint, Step::NewestHeader)?;
        ensure(newest.sequence.0 == last, Step::NewestHeader, "not the last entry of the log")?;
        Ok(Self { cluster, checkpoint, newest })
    }

    /// A header that is in the log.
    pub(super) fn header(&self, part: &HeaderPart<'_>) -> Result<Header, Failure> {
        included(&part.header, &part.path, self.cluster, &self.checkpoint, Step::Header)
    }

    /// Checks that a version stands by the newest header.
    pub(super) fn stands(&self, part: &EpochPart, stamp: Stamp) -> Result<(), Failure> {
        let index = u64::from(part.index);
        let pairs = u64::from(self.newest.epoch_pairs);
        let revealed = [Some((index, part.pair.hash())), part.next.map(|next| (index + 1, next.hash()))];
        let revealed: alloc::vec::Vec<_> = revealed.into_iter().flatten().collect();
        let root = merkle::list_root(pairs, &revealed, &part.hashes).map_err(fail(Step::Epoch))?;
        ensure(root == self.newest.epochs_root, Step::Epoch, "another epochs root")?;
        ensure(part.next.is_some() || index + 1 == pairs, Step::Epoch, "the next pair is not shown")?;
        ensure(part.pair.epoch == stamp.epoch, Step::Epoch, "pair of another epoch")?;
        ensure(part.pair.stands(stamp.version, part.next.as_ref()), Step::Epoch, "the version was rolled back")
    }
}

/// The header of these bytes, which are the log's entry at the header's own sequence.
fn included(
    bytes: &[u8],
    path: &[coppice_types::Digest],
    cluster: ClusterId,
    checkpoint: &Checkpoint,
    step: Step,
) -> Result<Header, Failure> {
    let header = Header::decode(bytes).map_err(fail(step))?;
    ensure(header.cluster == cluster, step, "header of another cluster")?;
    let entry = log_entry_hash(bytes);
    merkle::verify_inclusion(header.sequence.0, checkpoint.size, &entry, path, &checkpoint.root).map_err(fail(step))?;
    Ok(header)
}
