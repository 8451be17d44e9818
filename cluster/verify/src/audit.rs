//! Rules of an audit in addition to hashes and state roots (`docs/verification.md` section 8, *What
//! an auditor checks*). Rules 1 to 6 hold along a log. Rules 8, 9, 11, 12 and 14 hold for one
//! version's journal and operation lists.
//!
//! A ledger that breaks one of them can still have a log, journals and state roots that fit each
//! other. The holder of its key could sign that.

mod ledgers;

use alloc::{collections::BTreeSet, vec::Vec};

use coppice_types::{Digest, Params, ShardId, Stamp, Version};

use crate::{
    anchor::Anchor,
    epochs::Epochs,
    hash::RecordBody,
    header::{Body, BrokenRule, Header, check},
    journal::Entry,
    keys::KEY_CHANGES_MAX,
    ledgers::RESERVED_END,
    shard_map::ShardMap,
};

pub use self::ledgers::{Finding, LedgerAuditor, LogSeen, Told};

/// A version that stands, as the log describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Stamp of the version's commit.
    pub stamp: Stamp,
    /// Entry hash of its header.
    pub hash: Digest,
    /// State root of its header.
    pub state_root: Digest,
    /// Timestamp of its header, in milliseconds.
    pub timestamp_ms: u64,
    /// Root and number of entries of its journal.
    pub journal: (Digest, u32),
}

impl Line {
    /// The line of a version, by the header of its commit or of genesis.
    ///
    /// # Panics
    /// If the header was not decoded, and its bytes are longer than a header may be.
    #[must_use]
    pub fn of(header: &Header) -> Self {
        Self {
            stamp: header.stamp,
            hash: header.hash(),
            state_root: header.state_root,
            timestamp_ms: header.timestamp_ms,
            journal: (header.journal_root, header.journal_leaves),
        }
    }
}

/// Checks the rules along a log, header by header, and keeps no versions: its memory grows with key
/// changes and with rollbacks alone.
#[derive(Clone, Debug, Default)]
pub struct LogRules {
    before: Option<Header>,
    epochs: Epochs,
    boundary: Version,
    /// The ledger's keys, from that of genesis on.
    keys: Vec<[u8; 32]>,
    /// Entries of the log that was stamped last.
    stamped: Option<u64>,
}

impl LogRules {
    /// Takes the next header of the log. `target` is the line of the version to which a rollback
    /// leads, as it stood before; `None` if there is none, or the header is no rollback.
    ///
    /// # Errors
    /// Names the first rule that the header breaks. The rules must not be used then.
    pub fn take(&mut self, header: Header, target: Option<&Line>) -> Result<(), BrokenRule> {
        header.check_alone()?;
        match &self.before {
            Some(before) => header.check_follows(before)?,
            None => check(&[("the log begins with genesis", matches!(header.body, Body::Genesis(_)))])?,
        }
        let shards = |header: &Header| (header.shard_map, header.state_leaves);
        let same = self.before.as_ref().is_none_or(|before| shards(before) == shards(&header));
        check(&[("different shards than those of genesis", same)])?;
        match &header.body {
            Body::Genesis(genesis) => self.keys.push(genesis.public_key),
            Body::Rollback(rollback) => self.roll_back(&header, rollback.target, target)?,
            Body::Prune(prune) => {
                check(&[("the boundary of a prune does not rise", prune.boundary > self.boundary)])?;
                self.boundary = prune.boundary;
            }
            Body::Key(change) => {
                check(&[
                    ("number of a key change", usize::try_from(change.number) == Ok(self.keys.len())),
                    ("more key changes than a ledger may have", self.keys.len() <= KEY_CHANGES_MAX),
                    ("a key change from another key", self.keys.last() == Some(&change.old)),
                    ("a key change to an earlier key", !self.keys.contains(&change.new)),
                ])?;
                self.keys.push(change.new);
            }
            Body::Anchor(Anchor::Stamps(stamps)) => {
                let grows = self.stamped.is_none_or(|size| stamps.size > size);
                check(&[("an anchor of a log that is no larger than the one stamped before", grows)])?;
                self.stamped = Some(stamps.size);
            }
            Body::Commit | Body::Anchor(Anchor::Chain(_)) | Body::Other { .. } => {}
        }
        let pairs = u32::try_from(self.epochs.pairs().len()) == Ok(header.epoch_pairs);
        check(&[("epochs that its rollbacks do not lead to", pairs && self.epochs.root() == header.epochs_root)])?;
        self.before = Some(header);
        Ok(())
    }

    fn roll_back(&mut self, header: &Header, target: Stamp, line: Option<&Line>) -> Result<(), BrokenRule> {
        check(&[("a rollback to below the boundary of a prune", target.version >= self.boundary)])?;
        let line = line.ok_or(BrokenRule("a rollback to a version above head"))?;
        check(&[
            ("a rollback with another name for its target", line.stamp == target),
            ("a rollback to a different state root than its target's", line.state_root == header.state_root),
            ("a rollback that raises no epoch", header.stamp.epoch > self.epochs.current()),
        ])?;
        self.epochs.roll_back(header.stamp.epoch, target.version);
        Ok(())
    }
}

/// Checks the rules along a log, header by header, and keeps the versions that stand.
///
/// Invariant: `lines` has a line for each version from genesis to the head, in order.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    rules: LogRules,
    lines: Vec<Line>,
}

impl Chain {
    /// The versions that stand, from genesis on.
    #[must_use]
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// The versions that stand, after the whole log was taken.
    #[must_use]
    pub fn into_lines(self) -> Vec<Line> {
        self.lines
    }

    /// Takes the next header of the log.
    ///
    /// # Errors
    /// Names the first rule that the header breaks. The chain must not be used then.
    ///
    /// # Panics
    /// If the header was not decoded, and its bytes are longer than a header may be.
    pub fn take(&mut self, header: Header) -> Result<(), BrokenRule> {
        let (mut new, mut kept) = (None, None);
        match &header.body {
            Body::Genesis(_) | Body::Commit => new = Some(Line::of(&header)),
            Body::Rollback(rollback) => kept = usize::try_from(rollback.target.version.0).ok(),
            _ => {}
        }
        self.rules.take(header, kept.and_then(|target| self.lines.get(target)))?;
        if let Some(target) = kept {
            self.lines.truncate(target + 1);
        }
        self.lines.extend(new);
        Ok(())
    }
}

/// A rule that a version's journal or operation lists break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The shard at fault; `None` if no single shard is.
    pub shard: Option<ShardId>,
    /// The rule.
    pub rule: &'static str,
}

fn ensure(holds: bool, shard: Option<ShardId>, rule: &'static str) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken { shard, rule }) }
}

/// The kind of entry that operations are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// A client's batch.
    Batch,
    /// An append to a ledger, or a ledger's head. They follow from what members sign.
    Ledger,
}

impl Author {
    /// The author of an entry's operations.
    #[must_use]
    pub fn of(entry: &Entry) -> Self {
        if matches!(entry, Entry::Batch(_)) { Self::Batch } else { Self::Ledger }
    }
}

/// Checks the entries of a version's journal (rules 8 and 9). The caller has compared them with the
/// header's journal root.
///
/// # Errors
/// Names the first rule that does not hold.
pub fn check_entries(params: &Params, map: &ShardMap, entries: &[Entry]) -> Result<(), Broken> {
    let known: BTreeSet<ShardId> = map.shards().iter().map(|shard| shard.id).collect();
    let mut numbers = BTreeSet::new();
    let (mut place, mut ledger) = (0, None);
    for entry in entries {
        ensure(place <= entry.place(), None, "its journal has entries out of order")?;
        place = entry.place();
        let touched: Vec<ShardId> = match entry {
            Entry::Batch(batch) => {
                let number = batch.session.is_none_or(|(_, number)| number > 0);
                ensure(number, None, "a batch has number 0 of its session")?;
                let once = batch.session.is_none_or(|number| numbers.insert(number));
                ensure(once, None, "two batches have the same session number")?;
                batch.shards.iter().map(|(shard, _)| *shard).collect()
            }
            Entry::Append(_) | Entry::Head(_) if !params.ledgers => {
                return Err(Broken {
                    shard: None,
                    rule: "its journal has an entry of a ledger, which genesis rules out",
                });
            }
            Entry::Append(append) => append.shards.iter().map(|(shard, _)| *shard).collect(),
            Entry::Head(head) => {
                ensure(ledger < Some(head.ledger), None, "its journal has the heads of ledgers out of order")?;
                ledger = Some(head.ledger);
                head.shards.iter().map(|(shard, _)| *shard).collect()
            }
            Entry::Merge(merge) => Vec::from([merge.shard]),
        };
        let strange = touched.into_iter().find(|shard| !known.contains(shard));
        ensure(strange.is_none(), strange, "its journal names an unknown shard")?;
    }
    Ok(())
}

/// Checks the operations of one entry on one shard (rules 9, 11 and 12). Returns the bytes of their
/// keys and values together.
///
/// # Errors
/// Names the first rule that does not hold.
pub fn check_operations(
    params: &Params,
    map: &ShardMap,
    shard: ShardId,
    author: Author,
    operations: &[(Vec<u8>, RecordBody)],
) -> Result<u64, Broken> {
    let rule = |holds, rule| ensure(holds, Some(shard), rule);
    let range = map.shards().iter().find(|known| known.id == shard);
    let range = range.ok_or(Broken { shard: Some(shard), rule: "its journal names an unknown shard" })?;
    rule(!operations.is_empty(), "an operation list is empty")?;
    let mut bytes = 0;
    for (key, body) in operations {
        let value = u64::from(body.value_len().unwrap_or(0));
        rule(!key.is_empty(), "an operation has an empty key")?;
        rule(key.len() as u64 <= u64::from(params.key_bytes_max), "an operation has a key over the limit of genesis")?;
        rule(range.holds(key), "an operation has a key that is not in the range of its shard")?;
        let reserved = key.as_slice() < RESERVED_END;
        let own = !params.ledgers || reserved == (author == Author::Ledger);
        rule(own, "a batch writes a reserved key, or a ledger one that is not")?;
        rule(value <= u64::from(params.value_bytes_max), "an operation has a value over the limit of genesis")?;
        bytes += key.len() as u64 + value;
    }
    rule(author == Author::Ledger || bytes <= u64::from(params.batch_bytes_max), OVER_BATCH)?;
    Ok(bytes)
}

/// Checks the size of a batch (rule 12). `bytes` is the sum of [`check_operations`] over its
/// shards.
///
/// # Errors
/// If the sum is over `batch_bytes_max`.
pub fn check_batch(params: &Params, bytes: u64) -> Result<(), Broken> {
    ensure(bytes <= u64::from(params.batch_bytes_max), None, OVER_BATCH)
}

const OVER_BATCH: &str = "a batch is over the limit of genesis";

/// Checks the number of trees of a shard after a version (rule 14).
///
/// # Errors
/// If it is over `tree_limit`.
pub fn check_trees(params: &Params, shard: ShardId, trees: usize) -> Result<(), Broken> {
    ensure(trees <= usize::from(params.tree_limit), Some(shard), "it has more trees than the limit of genesis")
}

#[cfg(test)]
mod tests;
