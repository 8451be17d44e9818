//! A naive auditor: the rules of `docs/verification.md` section 8 one after the other, over a whole
//! log in memory.
//!
//! It is an oracle for [`crate::audit`], which streams. The two share decoders and hash functions
//! only.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;

use coppice_types::{Digest, ShardId, Stamp, Version};

use super::forest::Forest;
use crate::{
    epochs::Epochs,
    hash::{self, RecordBody},
    header::{Body, Genesis, Header},
    journal::{Entry, decode_operations},
    merkle,
    shard_map::{StateLeaf, state_root},
};

/// An entry of a log, with everything that the ledger keeps of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audited {
    /// The canonical bytes of the header.
    pub header: Vec<u8>,
    /// The journal entries; empty unless the header is a commit.
    pub journal: Vec<Vec<u8>>,
    /// For each touched shard, its operation lists in the order of the batches; empty unless the
    /// header is a commit.
    pub lists: BTreeMap<ShardId, Vec<Vec<u8>>>,
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Index of the entry in the log.
    pub sequence: usize,
    /// Number of the rule in section 8.
    pub rule: u8,
    /// Description of what is wrong.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entry {} breaks rule {}: {}", self.sequence, self.rule, self.what)
    }
}

impl core::error::Error for Finding {}

type Rule<T> = Result<T, (u8, String)>;

fn need(holds: bool, rule: u8, what: &str) -> Rule<()> {
    if holds { Ok(()) } else { Err((rule, what.to_string())) }
}

/// Audits a log, whose headers the caller has compared with a signed checkpoint. Two passes: all
/// headers, then the versions that stand.
///
/// # Errors
/// The first rule that does not hold.
pub fn audit(log: &[Audited]) -> Result<(), Finding> {
    let finding = |sequence: usize| move |(rule, what): (u8, String)| Finding { sequence, rule, what };
    let mut headers: Vec<Header> = Vec::new();
    for (sequence, entry) in log.iter().enumerate() {
        let header = Header::decode(&entry.header).map_err(|error| (1, format!("{error}")));
        let header = header.map_err(finding(sequence))?;
        check_header(&headers, &header).map_err(finding(sequence))?;
        headers.push(header);
    }
    let Some(Header { body: Body::Genesis(genesis), .. }) = headers.first() else {
        return Err(finding(0)((1, "the log does not begin with genesis".to_string())));
    };
    let mut forests: Vec<(Forest, Version)> =
        genesis.shard_map.shards().iter().map(|_| (Forest::new(&genesis.params), Version(0))).collect();
    let commits = headers.iter().zip(log).enumerate().filter(|(_, (header, _))| header.body == Body::Commit);
    let standing: BTreeSet<Stamp> = versions(&headers).iter().map(|header| header.stamp).collect();
    for (sequence, (header, entry)) in commits.filter(|(_, (header, _))| standing.contains(&header.stamp)) {
        check_version(genesis, &mut forests, header, entry).map_err(finding(sequence))?;
    }
    Ok(())
}

/// The headers of the versions that stand after these headers, in order.
fn versions(headers: &[Header]) -> Vec<&Header> {
    let mut versions: Vec<&Header> = Vec::new();
    for header in headers {
        match &header.body {
            Body::Genesis(_) | Body::Commit => versions.push(header),
            Body::Rollback(rollback) => versions.retain(|it| it.stamp.version <= rollback.target.version),
            _ => {}
        }
    }
    versions
}

fn check_header(before: &[Header], header: &Header) -> Rule<()> {
    match before.last() {
        None => need(matches!(header.body, Body::Genesis(_)), 1, "the log does not begin with genesis")?,
        Some(last) => {
            header.check_follows(last).map_err(|rule| (2, rule.0.to_string()))?;
            let same = (header.shard_map, header.state_leaves) == (last.shard_map, last.state_leaves);
            need(same, 2, "different shards than those of genesis")?;
        }
    }
    let mut pruned = before.iter().filter_map(|header| match &header.body {
        Body::Prune(prune) => Some(prune.boundary),
        _ => None,
    });
    let boundary = pruned.next_back().unwrap_or_default();
    match &header.body {
        Body::Rollback(rollback) => {
            let standing = versions(before);
            let target = standing.iter().find(|it| it.stamp.version == rollback.target.version);
            let target = target.ok_or((3, "a rollback to a version that does not stand".to_string()))?;
            need(target.stamp == rollback.target, 3, "a rollback with another name for its target")?;
            need(target.state_root == header.state_root, 3, "a rollback to another state root")?;
            need(rollback.target.version >= boundary, 4, "a rollback to below the boundary of a prune")?;
        }
        Body::Prune(prune) => need(prune.boundary > boundary, 4, "the boundary of a prune does not rise")?,
        Body::Key(change) => {
            let mut keys: Vec<[u8; 32]> = Vec::new();
            for header in before {
                match &header.body {
                    Body::Genesis(genesis) => keys.push(genesis.public_key),
                    Body::Key(change) => keys.push(change.new),
                    _ => {}
                }
            }
            need(change.number as usize == keys.len() && keys.len() <= 256, 5, "the number of a key change")?;
            need(keys.last() == Some(&change.old), 5, "a key change from another key")?;
            need(!keys.contains(&change.new), 5, "a key change to an earlier key")?;
        }
        _ => {}
    }
    let mut epochs = Epochs::new();
    for header in before.iter().chain([header]) {
        if let Body::Rollback(rollback) = &header.body {
            epochs.roll_back(header.stamp.epoch, rollback.target.version);
        }
    }
    let pairs = header.epoch_pairs as usize == epochs.pairs().len() && header.epochs_root == epochs.root();
    need(pairs, 6, "epochs that the rollbacks do not lead to")
}

type Operations = Vec<(Vec<u8>, RecordBody)>;
type Merges = Vec<(Vec<Digest>, Digest)>;

fn check_version(genesis: &Genesis, forests: &mut [(Forest, Version)], header: &Header, audited: &Audited) -> Rule<()> {
    let hashes: Vec<Digest> = audited.journal.iter().map(|entry| hash::journal_leaf_hash(entry)).collect();
    let whole = hashes.len() == header.journal_leaves as usize && merkle::mth(&hashes) == header.journal_root;
    need(whole, 7, "a different journal than the header commits to")?;
    let entries = audited.journal.iter().map(|entry| Entry::decode(entry)).collect::<Result<Vec<_>, _>>();
    let entries = entries.map_err(|error| (7, format!("{error}")))?;
    check_entries(genesis, &entries)?;
    let mut merges: BTreeMap<ShardId, Merges> = BTreeMap::new();
    let mut operations: BTreeMap<ShardId, Operations> = BTreeMap::new();
    for (at, entry) in entries.iter().enumerate() {
        match (entry, entry.writes()) {
            (_, Some(shards)) => {
                let of_ledger = !matches!(entry, Entry::Batch(_));
                let mut bytes = 0;
                for (shard, wanted) in shards {
                    let nth = entries[..at].iter().filter(|before| touches(before, *shard)).count();
                    let list = audited.lists.get(shard).and_then(|lists| lists.get(nth));
                    let list = list.ok_or((10, "an operation list that is not kept".to_string()))?;
                    let list = decode_operations(list).map_err(|error| (10, format!("{error}")))?;
                    let found = hash::operation_list_hash(list.iter().map(|(key, body)| (key.as_slice(), *body)));
                    need(found == *wanted, 10, "a different operation list than was committed")?;
                    bytes += check_operations(genesis, *shard, of_ledger, &list)?;
                    operations.entry(*shard).or_default().extend(list);
                }
                let fits = of_ledger || bytes <= u64::from(genesis.params.batch_bytes_max);
                need(fits, 12, "a batch over the limit")?;
            }
            (Entry::Merge(merge), _) => {
                merges.entry(merge.shard).or_default().push((merge.inputs.clone(), merge.output))
            }
            _ => {}
        }
    }
    let mut leaves = Vec::new();
    for (shard, (forest, version)) in genesis.shard_map.shards().iter().zip(forests) {
        let (merges, operations) = (merges.remove(&shard.id), operations.remove(&shard.id));
        if merges.is_some() || operations.is_some() {
            let operations = operations.unwrap_or_default();
            let folded = operations.iter().map(|(key, body)| (key.as_slice(), *body));
            let done = forest.prepare(header.stamp, &merges.unwrap_or_default(), folded);
            done.map_err(|error| (13, format!("{error}")))?;
            *version = header.stamp.version;
        }
        let limit = usize::from(genesis.params.tree_limit);
        need(forest.trees().len() <= limit, 14, "more trees than the limit")?;
        leaves.push(StateLeaf {
            shard: shard.id,
            low: shard.low.clone(),
            high: shard.high.clone(),
            version: *version,
            digest: forest.digest(),
        });
    }
    need(state_root(&leaves) == header.state_root, 15, "a different state root than the batches give")
}

fn touches(entry: &Entry, shard: ShardId) -> bool {
    entry.writes().is_some_and(|shards| shards.iter().any(|(touched, _)| *touched == shard))
}

fn check_entries(genesis: &Genesis, entries: &[Entry]) -> Rule<()> {
    need(entries.is_sorted_by_key(Entry::place), 8, "an event before a batch")?;
    let heads = || entries.iter().filter_map(|it| if let Entry::Head(head) = it { Some(head.ledger) } else { None });
    need(heads().is_sorted_by(|a, b| a < b), 8, "heads out of order")?;
    let mut numbers = BTreeSet::new();
    for entry in entries {
        let shards: Vec<ShardId> = match entry {
            Entry::Batch(batch) => {
                if let Some((session, number)) = batch.session {
                    need(number > 0 && numbers.insert((session, number)), 8, "the number of a session")?;
                }
                batch.shards.iter().map(|(shard, _)| *shard).collect()
            }
            Entry::Merge(merge) => Vec::from([merge.shard]),
            Entry::Append(_) | Entry::Head(_) => {
                need(genesis.params.ledgers, 8, "an entry of a ledger")?;
                entry.writes().into_iter().flatten().map(|(shard, _)| *shard).collect()
            }
        };
        let known = |shard: &ShardId| genesis.shard_map.shards().iter().any(|known| known.id == *shard);
        need(shards.iter().all(known), 9, "an unknown shard")?;
    }
    Ok(())
}

/// Checks one operation list. Returns the bytes of its keys and values together.
fn check_operations(genesis: &Genesis, shard: ShardId, of_ledger: bool, list: &Operations) -> Rule<u64> {
    need(!list.is_empty(), 11, "an empty operation list")?;
    let mut bytes = 0;
    for (key, body) in list {
        need(genesis.shard_map.shard_of(key).id == shard, 11, "a key that is not in the range of its shard")?;
        let own = !genesis.params.ledgers || (key.first() == Some(&0)) == of_ledger;
        need(own, 11, "a reserved key of a batch, or another one of a ledger")?;
        let limits = 1..=genesis.params.key_bytes_max as usize;
        need(limits.contains(&key.len()), 12, "a key over the limit")?;
        let value = body.value_len().unwrap_or(0);
        need(value <= genesis.params.value_bytes_max, 12, "a value over the limit")?;
        bytes += key.len() as u64 + u64::from(value);
    }
    Ok(bytes)
}
