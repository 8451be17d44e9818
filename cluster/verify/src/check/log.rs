//! Steps `keys`, `checkpoint`, `newest_header`, `header` and `epoch`: from the trusted key to a
//! version that stands.

use alloc::vec::Vec;

use coppice_types::{ClusterId, Digest, Sequence, Stamp};

use super::failure::{Failure, Step, ensure, fail};
use crate::{
    checkpoint::{self, Checkpoint},
    epochs::Pair,
    hash::log_entry_hash,
    header::{Body, Header},
    keys::{KeyChange, Keys},
    merkle,
    note::{self, VerifierKey, split_line, split_note},
    policy::Policy,
    proof::{EpochPart, HeaderPart, LogPart, ProofFile},
};

/// The rule that a list of pairs breaks if no sequence of rollbacks leaves it (section 11).
pub(super) const NO_ROLLBACKS: &str = "epoch pairs that no rollbacks leave";

/// A log whose checkpoint is signed by the key in force.
#[derive(Clone, Debug)]
pub(super) struct Log {
    pub(super) cluster: ClusterId,
    pub(super) checkpoint: Checkpoint,
    pub(super) keys: Keys,
    pub(super) newest: Header,
}

impl Log {
    /// Verifies the log part of a file. With `joined`, the checkpoint may be older than the trusted
    /// key, since the caller will show that a newer one extends it.
    pub(super) fn check(cluster: ClusterId, part: &LogPart<'_>, keys: &Keys, joined: bool) -> Result<Self, Failure> {
        let keys = follow(keys, cluster, part)?;
        let checkpoint = open(&part.checkpoint, &keys, joined)?;
        for part in &part.key_changes {
            included(&part.header, &part.path, cluster, &checkpoint, Step::Keys)?;
        }
        let prefix = checkpoint.origin.rsplit_once('/').map(|(prefix, _)| prefix);
        let of_cluster = prefix.is_some_and(|prefix| checkpoint::origin(prefix, &cluster) == checkpoint.origin);
        ensure(of_cluster, Step::Checkpoint, "origin of another cluster")?;
        let last = checkpoint.size.checked_sub(1).ok_or(Failure::rule(Step::NewestHeader, "the log is empty"))?;
        let newest = included(&part.newest_header, &part.path, cluster, &checkpoint, Step::NewestHeader)?;
        ensure(newest.sequence.0 == last, Step::NewestHeader, "not the last entry of the log")?;
        let log = Self { cluster, checkpoint, keys, newest };
        log.check_keys_in(&log.newest, Step::NewestHeader)?;
        Ok(log)
    }

    /// Checks that a header names only known keys of the ledger. A key change must be among those
    /// that are shown, and all changes that the header counts must be shown. Genesis must name the
    /// first key and the checkpoint's origin.
    fn check_keys_in(&self, header: &Header, step: Step) -> Result<(), Failure> {
        if let Some(count) = header.key_changes {
            let known = self.keys.changes().filter(|(at, _)| *at <= header.sequence).count();
            ensure(known as u64 == u64::from(count), step, "it counts other key changes than those that are shown")?;
        }
        match &header.body {
            Body::Key(change) => {
                let known =
                    |(at, key): (Sequence, &VerifierKey)| (at, key.public_key()) == (header.sequence, change.new);
                ensure(self.keys.changes().any(known), step, "it changes the key, and is not among the key changes")
            }
            Body::Genesis(genesis) => {
                let named = checkpoint::origin(&genesis.prefix, &header.cluster) == self.checkpoint.origin;
                let first = genesis.public_key == self.keys.first().public_key();
                ensure(named && first, step, "genesis names a different origin or key than the checkpoint's")
            }
            _ => Ok(()),
        }
    }

    /// Decodes a header and checks that it is in the log.
    pub(super) fn header(&self, part: &HeaderPart<'_>) -> Result<Header, Failure> {
        self.entry(part, Step::Header)
    }

    /// Like [`header`](Self::header), at another step.
    pub(super) fn entry(&self, part: &HeaderPart<'_>, step: Step) -> Result<Header, Failure> {
        let header = included(&part.header, &part.path, self.cluster, &self.checkpoint, step)?;
        self.check_keys_in(&header, step)?;
        Ok(header)
    }

    /// Checks that a version stands by the newest header.
    pub(super) fn stands(&self, part: &EpochPart, stamp: Stamp) -> Result<(), Failure> {
        let index = u64::from(part.index);
        let pairs = u64::from(self.newest.epoch_pairs);
        let revealed = [Some((index, part.pair.hash())), part.next.map(|next| (index + 1, next.hash()))];
        let revealed: Vec<_> = revealed.into_iter().flatten().collect();
        let root = merkle::list_root(pairs, &revealed, &part.hashes).map_err(fail(Step::Epoch))?;
        ensure(root == self.newest.epochs_root, Step::Epoch, "another epochs root")?;
        ensure(part.next.is_some() || index + 1 == pairs, Step::Epoch, "the next pair is not shown")?;
        let follows = part.next.is_none_or(|next| part.pair.may_precede(&next, part.index));
        ensure(part.pair.may_be_at(part.index) && follows, Step::Epoch, NO_ROLLBACKS)?;
        let newest = part.next.as_ref().unwrap_or(&part.pair);
        // Each pair behind it is of a later epoch.
        let behind = pairs - 1 - index - u64::from(part.next.is_some());
        self.check_newest_pair(newest, behind, Step::Epoch)?;
        ensure(part.pair.epoch == stamp.epoch, Step::Epoch, "pair of another epoch")?;
        ensure(part.pair.stands(stamp.version, part.next.as_ref()), Step::Epoch, "the version was rolled back")?;
        self.check_not_above(stamp, Step::Epoch)
    }

    /// Checks a pair of the newest header's list: its base is not above that header, and its epoch
    /// leaves room for those of the `behind` later pairs. The last pair has the header's epoch.
    pub(super) fn check_newest_pair(&self, pair: &Pair, behind: u64, step: Step) -> Result<(), Failure> {
        let Stamp { epoch, version } = self.newest.stamp;
        let fits = match behind {
            0 => pair.epoch == epoch,
            _ => pair.epoch.0.checked_add(behind).is_some_and(|least| least <= epoch.0),
        };
        ensure(fits && pair.base <= version, step, "epoch pairs of a different head than the newest header's")
    }

    /// Checks that a version that stands is not above the newest header.
    pub(super) fn check_not_above(&self, stamp: Stamp, step: Step) -> Result<(), Failure> {
        ensure(stamp.version <= self.newest.stamp.version, step, "the version is above the newest header's")
    }
}

/// A log part that was verified, with the bytes and keys that it was verified by. Many files have
/// the same log part; this saves all but the first a check of signatures and paths.
#[derive(Clone, Debug)]
pub struct ProvenLog {
    cluster: ClusterId,
    part: LogPart<'static>,
    trusted: Keys,
    pub(super) log: Log,
}

impl ProvenLog {
    /// Verifies the log part of a file.
    ///
    /// # Errors
    /// Names the step that failed.
    pub fn prove(file: &ProofFile<'_>, keys: &Keys) -> Result<Self, Failure> {
        let part = file.proof.log();
        let log = Log::check(file.cluster, part, keys, false)?;
        Ok(Self { cluster: file.cluster, part: part.clone().into_owned(), trusted: keys.clone(), log })
    }

    /// Whether a file has this log part, byte for byte, and is to be verified by the same keys.
    #[must_use]
    pub fn is_of(&self, file: &ProofFile<'_>, keys: &Keys) -> bool {
        self.cluster == file.cluster && self.part == *file.proof.log() && self.trusted == *keys
    }
}

/// The known keys joined with those of the shown key changes. Whether the changes are in the log is
/// checked later.
fn follow(keys: &Keys, cluster: ClusterId, part: &LogPart<'_>) -> Result<Keys, Failure> {
    let headers = part.key_changes.iter().map(|part| Header::decode(&part.header).map_err(fail(Step::Keys)));
    let headers = headers.collect::<Result<Vec<_>, Failure>>()?;
    keys.follow(changes(&headers, cluster)?).map_err(|rule| Failure::rule(Step::Keys, rule))
}

/// The policy, extended by the keys to which the keys of its logs have changed. Whether the changes
/// are in the log is left to [`Log::check`].
pub(super) fn successors(policy: &Policy, cluster: ClusterId, part: &LogPart<'_>) -> Policy {
    let mut extended = policy.clone();
    for log in policy.logs() {
        // The key changes of one log do not follow the key of another.
        if let Ok(keys) = follow(&Keys::new(log.clone()), cluster, part) {
            extended.believe_successor(keys.newest());
        }
    }
    extended
}

/// The key changes in these headers, all of which must be key changes.
fn changes(headers: &[Header], cluster: ClusterId) -> Result<Vec<(Sequence, &KeyChange)>, Failure> {
    let mut changes = Vec::new();
    for header in headers {
        let Body::Key(change) = &header.body else { return Err(Failure::rule(Step::Keys, "not a key change")) };
        ensure(header.cluster == cluster, Step::Keys, "header of another cluster")?;
        changes.push((header.sequence, change));
    }
    Ok(changes)
}

/// The checkpoint in a note that is signed by the key in force at its size.
///
/// # Errors
/// If it is not a checkpoint, or signed by another key; the message then says what to do.
pub(super) fn open(note: &[u8], keys: &Keys, joined: bool) -> Result<Checkpoint, Failure> {
    let (text, lines) = split_note(note).map_err(fail(Step::Checkpoint))?;
    let size = Checkpoint::parse(text).map_err(fail(Step::Checkpoint))?.size;
    let key = keys.in_force(size);
    let rule = |rule| Err(Failure::rule(Step::Checkpoint, rule));
    match Checkpoint::open(note, key) {
        Ok(_) if !joined && !keys.believes(size) => rule(
            "signed by a key that the ledger has replaced since: show a newer checkpoint that goes on from this one",
        ),
        Err(note::Error::Unsigned) if keys.another_signed(note, size) => rule(
            "signed by a key of the ledger that is not in force at this size: keep it, it is evidence that a replaced key is misused",
        ),
        Err(note::Error::Unsigned)
            if lines.lines().any(|line| split_line(line).is_ok_and(|it| it.name == key.name())) =>
        {
            rule(
                "no signature of the trusted key, but one of another key of its name: if the ledger has changed its key, the changes are missing; ask for a new proof file, or trust the new key if its holder has told you of it",
            )
        }
        opened => opened.map_err(fail(Step::Checkpoint)),
    }
}

/// Decodes a header, and checks that it is the log's entry at its own sequence.
fn included(
    bytes: &[u8],
    path: &[Digest],
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
