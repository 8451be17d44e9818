//! Step `tree`, and walks through the parts of one tree (`docs/verification.md` section 13).
//!
//! [`root_hash`] recomputes the hash of a tree's root from its revealed part. Once that hash has
//! led to the state root, the ledger is known to have committed to everything revealed. Only then
//! do [`find`] and [`scan`] read it.

use alloc::{borrow::Cow, vec::Vec};

use coppice_types::Stamp;

use super::failure::{Failure, Step, ensure, fail};
use crate::{
    hash::{
        self, RecordBody,
        plan::{HashPlan, Planned},
    },
    merkle,
    proof::{Entry, NodePart, Subtree, Tree},
};

/// A revealed record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Revealed<'p, 'a> {
    pub(super) key: &'p Cow<'a, [u8]>,
    pub(super) stamp: Stamp,
    pub(super) body: &'p RecordBody,
}

/// Plans the hash of a tree's root from the revealed part, and checks its shape. No stamp in it may
/// have an epoch or version above those of `stamp`.
pub(super) fn root_hash<'p>(plan: &mut HashPlan<'p>, tree: &'p Tree<'_>, stamp: Stamp) -> Result<Planned, Failure> {
    subtree_hash(plan, &tree.root, tree.level, Bounds { low: None, high: None }, stamp)
}

/// Bounds of the keys in a node. Every key is at or above `low`, the node's separator, and below
/// `high`. `None` means no bound.
#[derive(Clone, Copy)]
struct Bounds<'p> {
    low: Option<&'p [u8]>,
    high: Option<&'p [u8]>,
}

fn subtree_hash<'p>(
    plan: &mut HashPlan<'p>,
    subtree: &'p Subtree<'_>,
    level: u8,
    bounds: Bounds<'_>,
    stamp: Stamp,
) -> Result<Planned, Failure> {
    let node = match subtree {
        Subtree::Hash(hash) => return Ok(plan.known(*hash)),
        Subtree::Expanded(node) => node,
    };
    ensure(node.count > 0 || level == 0 && bounds.low.is_none(), Step::Tree, "a node without entries")?;
    check_order(node, level, bounds)?;
    let mut revealed = Vec::with_capacity(node.entries.len());
    for (position, (index, entry)) in node.entries.iter().enumerate() {
        let hash = match (level.checked_sub(1), entry) {
            (None, Entry::Record { key, stamp: written, body }) => {
                let past = written.epoch <= stamp.epoch && written.version <= stamp.version;
                ensure(past, Step::Tree, "a record from after the version")?;
                plan.record(key, *written, body)
            }
            (Some(below), Entry::Child { separator, child }) => {
                let next = node.entries.get(position + 1).map(|(_, next)| next.key());
                let low = if *index == 0 { bounds.low.unwrap_or_default() } else { separator };
                let bounds = Bounds { low: Some(low), high: next.or(bounds.high) };
                let child = subtree_hash(plan, child, below, bounds, stamp)?;
                plan.entry(level, separator, &child)
            }
            _ => return Err(Failure::rule(Step::Tree, "an entry of another level")),
        };
        revealed.push((u64::from(*index), hash));
    }
    let list =
        merkle::plan_list_root(plan, level, u64::from(node.count), revealed, &node.hashes).map_err(fail(Step::Tree))?;
    Ok(plan.node(level, node.count, &list))
}

/// Checks that the tree's number of records fits the revealed part.
pub(super) fn check_count(tree: &Tree<'_>) -> Result<(), Failure> {
    let empty = match &tree.root {
        Subtree::Hash(root) => tree.level == 0 && *root == hash::empty_root_hash(),
        Subtree::Expanded(node) => node.count == 0,
    };
    let (least, whole) = if empty { (0, true) } else { records_below(&tree.root) };
    let fits = if whole { tree.entries == least } else { tree.entries >= least };
    ensure(fits, Step::Tree, "a different number of records than a tree is said to have")
}

/// The least number of records below a node, and whether it is exact. Every hidden node has at
/// least one record.
fn records_below(subtree: &Subtree<'_>) -> (u64, bool) {
    let Subtree::Expanded(node) = subtree else { return (1, false) };
    let hidden = u64::from(node.count).saturating_sub(node.entries.len() as u64);
    let mut sum = (hidden, true);
    for (_, entry) in &node.entries {
        let (least, whole) = match entry {
            Entry::Record { .. } => (1, true),
            Entry::Child { child, .. } => {
                sum.1 &= hidden == 0;
                records_below(child)
            }
        };
        sum = (sum.0 + least, sum.1 && whole);
    }
    sum
}

fn check_order(node: &NodePart<'_>, level: u8, bounds: Bounds<'_>) -> Result<(), Failure> {
    let keys = || node.entries.iter().map(|(_, entry)| entry.key());
    ensure(keys().is_sorted_by(|a, b| a < b), Step::Tree, "keys do not ascend")?;
    // An inner node begins at its own separator, so its first entry has the empty one.
    let low = bounds.low.unwrap_or_default();
    let fits = |(index, entry): &(u16, Entry<'_>)| match (level, *index) {
        (0, _) => entry.key() >= low,
        (_, 0) => entry.key().is_empty(),
        _ => entry.key() > low,
    };
    ensure(node.entries.iter().take(2).all(fits), Step::Tree, "a key below its node's separator")?;
    let last_fits = keys().next_back().is_none_or(|last| bounds.high.is_none_or(|high| last < high));
    ensure(last_fits, Step::Tree, "a key above its child's neighbour")
}

/// The record of a key; `None` if the part shows that the tree has none. Anything else is an error.
///
/// Keys ascend in a tree. So two neighbouring records of a leaf have no record between them,
/// wherever the leaf is.
pub(super) fn find<'p, 'a>(tree: &'p Tree<'a>, key: &[u8]) -> Result<Option<Revealed<'p, 'a>>, Failure> {
    let unproven = Err(Failure::rule(Step::Query, "it is not shown whether a tree has the key"));
    let mut subtree = &tree.root;
    // Whether everything behind the current node in the tree is shown to be above the key.
    let mut ends = true;
    loop {
        let Subtree::Expanded(node) = subtree else {
            return if is_empty(tree) { Ok(None) } else { unproven };
        };
        let after = node.entries.partition_point(|(_, entry)| entry.key() <= key);
        let above = node.entries.get(after);
        let Some((index, entry)) = after.checked_sub(1).map(|at| &node.entries[at]) else {
            // No separator on the way is above the key. So all keys before the leaf are below it,
            // and the leaf's first record is above it.
            return if above.is_none_or(|(index, _)| *index == 0) { Ok(None) } else { unproven };
        };
        let followed = above.is_some_and(|(next, _)| *next == *index + 1);
        ends = followed || ends && *index == node.count - 1;
        match entry {
            Entry::Child { child, .. } => subtree = child,
            Entry::Record { key: found, stamp, body } if **found == *key => {
                return Ok(Some(Revealed { key: found, stamp: *stamp, body }));
            }
            Entry::Record { .. } => return if ends { Ok(None) } else { unproven },
        }
    }
}

/// Appends all records of a tree with `low <= key < high` in key order, or fails if the part does
/// not show all of them.
pub(super) fn scan<'p, 'a>(
    tree: &'p Tree<'a>,
    low: &[u8],
    high: Option<&[u8]>,
    out: &mut Vec<Revealed<'p, 'a>>,
) -> Result<(), Failure> {
    match &tree.root {
        Subtree::Hash(_) if is_empty(tree) => Ok(()),
        root => scan_subtree(root, low, high, out),
    }
}

fn scan_subtree<'p, 'a>(
    subtree: &'p Subtree<'a>,
    low: &[u8],
    high: Option<&[u8]>,
    out: &mut Vec<Revealed<'p, 'a>>,
) -> Result<(), Failure> {
    let Subtree::Expanded(node) = subtree else {
        return Err(Failure::rule(Step::Query, "a node that may have records of the range is not shown"));
    };
    let entries = &node.entries;
    // The last entry at or below `low`, the entries of the range, and the first entry beyond it
    // must be neighbours.
    let start = entries.partition_point(|(_, entry)| entry.key() <= low).saturating_sub(1);
    let end = entries.partition_point(|(_, entry)| high.is_none_or(|high| entry.key() < high));
    let shown = &entries[start..entries.len().min(end + 1)];
    let begins = shown.first().is_none_or(|(index, entry)| *index == 0 || entry.key() <= low);
    let joined = shown.windows(2).all(|pair| pair[1].0 == pair[0].0 + 1);
    let ends = end < entries.len() || shown.last().is_none_or(|(index, _)| *index == node.count - 1);
    ensure(begins && joined && ends, Step::Query, "it is not shown that a range is complete")?;
    for (_, entry) in entries.get(start..end).unwrap_or_default() {
        match entry {
            Entry::Child { child, .. } => scan_subtree(child, low, high, out)?,
            Entry::Record { key, stamp, body } if **key >= *low => {
                out.push(Revealed { key, stamp: *stamp, body });
            }
            Entry::Record { .. } => {}
        }
    }
    Ok(())
}

/// Whether the tree is empty, which its root's hash alone proves.
fn is_empty(tree: &Tree<'_>) -> bool {
    let Subtree::Hash(root) = &tree.root else { return false };
    tree.level == 0 && tree.entries == 0 && *root == hash::empty_root_hash()
}

#[cfg(test)]
mod tests;
