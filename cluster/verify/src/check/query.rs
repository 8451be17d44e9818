//! Steps `state`, `query` and `value`: from a version's state root to an answer.

use alloc::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use coppice_types::{Digest, ShardId, Stamp};

use super::{
    claim::{Answer, Record},
    failure::{Failure, Step, ensure, fail},
    tree::{self, Revealed},
};
use crate::{
    hash::{self, RecordBody, plan::HashPlan},
    header::Header,
    merkle,
    proof::{Query, QueryProof, ShardPart, Tree, TreeList},
};

/// The answer of the shard parts, which must lead to the header's state root.
pub(super) fn check<'a>(header: &Header, proof: &QueryProof<'a>) -> Result<Answer<'a>, Failure> {
    ensure(state_root(header, proof)? == header.state_root, Step::State, "another state root")?;
    check_places(header, &proof.shards)?;
    proof.shards.iter().flat_map(|part| &part.trees.trees).try_for_each(tree::check_count)?;
    answer_with_values(proof)
}

/// The answer of shard parts that have led to the state root, with values if the file has them.
pub(crate) fn answer_with_values<'a>(proof: &QueryProof<'a>) -> Result<Answer<'a>, Failure> {
    let mut answer = answer(&proof.query, &proof.shards)?;
    if let Some(values) = &proof.values {
        attach(&mut answer, values)?;
    }
    Ok(answer)
}

/// The answer of a single shard that holds all keys. Its trees must lead to `digest`.
pub(super) fn check_trees<'a>(
    trees: TreeList<'a>,
    digest: &Digest,
    stamp: Stamp,
    query: &Query<'a>,
) -> Result<Answer<'a>, Failure> {
    let digests = shard_digests(core::iter::once(&trees), stamp)?;
    ensure(digests == [*digest], Step::Tree, "another shard digest")?;
    trees.trees.iter().try_for_each(tree::check_count)?;
    let (low, version) = (Cow::Borrowed([].as_slice()), stamp.version);
    let part = ShardPart { index: 0, shard: ShardId(0), low, high: None, version, trees };
    answer(query, &[part])
}

fn answer<'a>(query: &Query<'a>, shards: &[ShardPart<'a>]) -> Result<Answer<'a>, Failure> {
    Ok(match query {
        Query::Keys(keys) => Answer::Keys(answer_keys(keys, shards)?),
        Query::Range { low, high } => {
            let records = answer_range(low, high.as_deref(), shards)?;
            Answer::Range { low: low.clone(), high: high.clone(), records }
        }
    })
}

/// Hashes in the proof of a key in four trees.
const KEY_PROOF_STEPS: usize = 160;

/// The shard digests to which lists of trees lead.
fn shard_digests<'p, 'a: 'p>(
    lists: impl Iterator<Item = &'p TreeList<'a>> + Clone,
    stamp: Stamp,
) -> Result<Vec<Digest>, Failure> {
    let (mut plan, mut roots) = (HashPlan::new(KEY_PROOF_STEPS), Vec::new());
    for tree in lists.clone().flat_map(|list| &list.trees) {
        roots.push(tree::root_hash(&mut plan, tree, stamp)?);
    }
    let hashes = plan.run();
    let mut roots = roots.iter().map(|root| hashes.get(root));
    let digests = |list: &TreeList<'_>| {
        let digest = |(tree, root): (&Tree<'_>, &Digest)| hash::tree_digest(tree.level, tree.entries, root);
        hash::shard_digest(&list.trees.iter().zip(&mut roots).map(digest).collect::<Vec<_>>())
    };
    Ok(lists.map(digests).collect())
}

/// The state root to which the shard parts lead.
pub(crate) fn state_root(header: &Header, proof: &QueryProof<'_>) -> Result<Digest, Failure> {
    let past = proof.shards.iter().all(|part| part.version <= header.stamp.version);
    ensure(past, Step::State, "a shard version above the version")?;
    let digests = shard_digests(proof.shards.iter().map(|part| &part.trees), header.stamp)?;
    let leaf = |(part, digest): (&ShardPart<'_>, &Digest)| {
        let leaf = hash::state_leaf_hash(part.shard, &part.low, part.high.as_deref(), part.version, digest);
        (u64::from(part.index), leaf)
    };
    let leaves: Vec<_> = proof.shards.iter().zip(&digests).map(leaf).collect();
    merkle::list_root(u64::from(header.state_leaves), &leaves, &proof.state_hashes).map_err(fail(Step::State))
}

/// Checks that the shown shards can be those of one map: the ends are covered, neighbours join, and
/// others keep their order. No two have one id.
fn check_places(header: &Header, shards: &[ShardPart<'_>]) -> Result<(), Failure> {
    let ends = shards.iter().all(|part| {
        let (first, last) = (part.index == 0, part.index.checked_add(1) == Some(header.state_leaves));
        first == part.low.is_empty() && last == part.high.is_none()
    });
    let joined = shards.windows(2).all(|pair| {
        let neighbours = pair[0].index.checked_add(1) == Some(pair[1].index);
        pair[0].high.as_ref().is_some_and(|high| if neighbours { *high == pair[1].low } else { *high < pair[1].low })
    });
    ensure(ends && joined, Step::State, "shards that are not those of one map")?;
    let ids: BTreeSet<u32> = shards.iter().map(|part| part.shard.0).collect();
    ensure(ids.len() == shards.len(), Step::State, "two shards of one id")
}

type KeyAnswer<'a> = (Cow<'a, [u8]>, Option<Record<'a>>);

fn answer_keys<'a>(keys: &[Cow<'a, [u8]>], shards: &[ShardPart<'a>]) -> Result<Vec<KeyAnswer<'a>>, Failure> {
    let mut answers = Vec::new();
    let mut rest = keys;
    for part in shards {
        let below = rest.partition_point(|key| part.high.as_ref().is_none_or(|high| key < high));
        let (own, others) = rest.split_at(below);
        rest = others;
        ensure(!own.is_empty(), Step::Query, "a shard that holds none of the keys")?;
        for key in own {
            ensure(part.low <= *key, Step::Query, "the shard that holds a key is not shown")?;
            answers.push((key.clone(), find(part, key)?));
        }
    }
    ensure(rest.is_empty(), Step::Query, "the shard that holds a key is not shown")?;
    Ok(answers)
}

/// The record of the youngest tree that has the key; `None` if that is a tombstone, or no tree has
/// the key.
fn find<'a>(part: &ShardPart<'a>, key: &[u8]) -> Result<Option<Record<'a>>, Failure> {
    for tree in &part.trees.trees {
        if let Some(revealed) = tree::find(tree, key)? {
            return Ok(record(&revealed));
        }
    }
    Ok(None)
}

fn answer_range<'a>(low: &[u8], high: Option<&[u8]>, shards: &[ShardPart<'a>]) -> Result<Vec<Record<'a>>, Failure> {
    let (Some(first), Some(last)) = (shards.first(), shards.last()) else {
        return Err(Failure::rule(Step::Query, "no shard is shown"));
    };
    let begins = *first.low <= *low && first.high.as_ref().is_none_or(|end| *low < **end);
    let joined = shards.windows(2).all(|pair| {
        let (before, after) = (&pair[0], &pair[1]);
        before.index.checked_add(1) == Some(after.index) && before.high.as_ref() == Some(&after.low)
    });
    let ends = match (&last.high, high) {
        (None, _) => true,
        (Some(end), Some(high)) => **end >= *high,
        (Some(_), None) => false,
    };
    let ordered = shards.iter().all(|part| part.high.as_ref().is_none_or(|high| part.low < *high));
    ensure(begins && joined && ends && ordered, Step::Query, "the shards do not cover the range")?;
    let needed = shards.len() == 1 || high.is_none_or(|high| *last.low < *high);
    ensure(needed, Step::Query, "a shard that holds nothing of the range")?;
    let mut records = Vec::new();
    for part in shards {
        scan(part, low, high, &mut records)?;
    }
    Ok(records)
}

/// Appends the live records of a shard in the range: for each key, the record of the youngest tree.
fn scan<'a>(
    part: &ShardPart<'a>,
    low: &[u8],
    high: Option<&[u8]>,
    records: &mut Vec<Record<'a>>,
) -> Result<(), Failure> {
    // A shard's trees are complete within its bounds. After a split they may hold keys of its
    // sibling, too.
    let low = low.max(&part.low);
    let high = match (&part.high, high) {
        (Some(end), Some(high)) => Some(high.min(end)),
        (Some(end), None) => Some(&**end),
        (None, high) => high,
    };
    let mut youngest: BTreeMap<&[u8], Revealed<'_, 'a>> = BTreeMap::new();
    let mut found = Vec::new();
    for tree in &part.trees.trees {
        tree::scan(tree, low, high, &mut found)?;
        for revealed in found.drain(..) {
            youngest.entry(revealed.key).or_insert(revealed);
        }
    }
    records.extend(youngest.values().filter_map(record));
    Ok(())
}

fn record<'a>(revealed: &Revealed<'_, 'a>) -> Option<Record<'a>> {
    match revealed.body {
        RecordBody::Tombstone => None,
        RecordBody::Put { value_len, value_hash } => Some(Record {
            key: revealed.key.clone(),
            stamp: revealed.stamp,
            value_len: *value_len,
            value_hash: *value_hash,
            value: None,
        }),
    }
}

/// Attaches its value to each found record.
fn attach<'a>(answer: &mut Answer<'a>, values: &[Cow<'a, [u8]>]) -> Result<(), Failure> {
    let records: Vec<&mut Record<'a>> = match answer {
        Answer::Keys(keys) => keys.iter_mut().filter_map(|(_, record)| record.as_mut()).collect(),
        Answer::Range { records, .. } => records.iter_mut().collect(),
    };
    ensure(records.len() == values.len(), Step::Value, "a different number of values than of records")?;
    for (record, value) in records.into_iter().zip(values) {
        ensure(value.len() as u64 == u64::from(record.value_len), Step::Value, "a value of another length")?;
        ensure(hash::sha256(value) == record.value_hash, Step::Value, "another value")?;
        record.value = Some(value.clone());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::proof::{Entry, NodePart, Subtree, Tree};

    /// The holder of the ledger's key could sign such bounds.
    #[test]
    fn shards_that_run_backwards_are_refused() {
        let record = |key: &'static [u8]| Entry::Record {
            key: Cow::Borrowed(key),
            stamp: Stamp::new(0, 1),
            body: RecordBody::put(b"value"),
        };
        let leaf = NodePart { count: 2, entries: vec![(0, record(b"b")), (1, record(b"x"))], hashes: Vec::new() };
        let trees = TreeList { trees: vec![Tree { level: 0, entries: 2, root: Subtree::Expanded(leaf) }] };
        let part = |index: u32, low: &'static [u8], high: Option<&'static [u8]>| ShardPart {
            index,
            shard: ShardId(index),
            low: Cow::Borrowed(low),
            high: high.map(Cow::Borrowed),
            version: coppice_types::Version(1),
            trees: trees.clone(),
        };
        let backwards = [part(0, b"", Some(b"m")), part(1, b"m", Some(b"a")), part(2, b"a", None)];
        assert_eq!(answer_range(b"", None, &backwards).map_err(|failure| failure.step), Err(Step::Query));
        let in_order = [part(0, b"", Some(b"m")), part(1, b"m", None)];
        assert_eq!(answer_range(b"", None, &in_order).map(|records| records.len()), Ok(2));
    }
}
