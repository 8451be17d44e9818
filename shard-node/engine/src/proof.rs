//! Proofs of what a version holds: the `list of trees` of `docs/verification.md` section 12.
//!
//! For keys, each tree from the youngest on proves the keys that no younger one has answered; for ranges every tree
//! proves all its records in the range. A node part reveals what the verifier's walk (section 13) needs and no more.

use std::{borrow::Cow, collections::BTreeMap};

use coppice_verify::{
    merkle,
    proof::{Entry, NodePart, Subtree, Tree as TreePart, TreeList},
};

use crate::{
    Error, Result, View,
    cache::Class,
    meta::Tree,
    node::{Child, Node},
    store::{self, Store},
};

/// A key to prove in one tree.
#[derive(Clone, Copy)]
struct Asked<'k> {
    key: &'k [u8],
    present: bool,
}

/// What of a tree is asked.
enum Query<'q> {
    Keys(Vec<Asked<'q>>),
    Range { low: &'q [u8], high: Option<&'q [u8]> },
}

impl View<'_> {
    /// Proves the records of keys, or that they have none; the keys ascend, each once.
    ///
    /// # Errors
    /// `Invalid` keys, or what reading pages gives.
    pub fn prove_keys(&self, keys: &[&[u8]]) -> Result<Vec<u8>> {
        if keys.is_empty() || !keys.is_sorted_by(|a, b| a < b) {
            return Err(Error::Invalid("keys to prove ascend"));
        }
        let store = &self.engine.store;
        let mut open: Vec<&[u8]> = keys.to_vec();
        let mut trees = Vec::new();
        for tree in self.trees() {
            let mut asked = Vec::with_capacity(open.len());
            for key in &open {
                asked.push(Asked { key, present: tree.has(store, key)? });
            }
            open = asked.iter().filter(|asked| !asked.present).map(|asked| asked.key).collect();
            trees.push(prove(store, tree, &Query::Keys(asked))?);
        }
        Ok(TreeList { trees }.encode())
    }

    /// Proves all records with `low <= key < high`. After a read that a limit cut short, the range that it answered
    /// ends with the last record's key followed by a zero byte.
    ///
    /// # Errors
    /// An `Invalid` range, or what reading pages gives.
    pub fn prove_range(&self, low: &[u8], high: Option<&[u8]>) -> Result<Vec<u8>> {
        if high.is_some_and(|high| low >= high) {
            return Err(Error::Invalid("a range ends above its start"));
        }
        let prove = |tree| prove(&self.engine.store, tree, &Query::Range { low, high });
        let trees = self.trees().iter().map(prove).collect::<Result<_>>()?;
        Ok(TreeList { trees }.encode())
    }
}

fn prove(store: &Store, tree: &Tree, query: &Query<'_>) -> Result<TreePart<'static>> {
    let nothing = matches!(query, Query::Keys(keys) if keys.is_empty());
    let root = match tree.root {
        Some(root) if !nothing => Subtree::Expanded(node_part(store, &root, tree.level, tree.class(), query)?),
        _ => Subtree::Hash(store::root_hash(tree)),
    };
    Ok(TreePart { level: tree.level, entries: tree.entries, root })
}

fn node_part(store: &Store, child: &Child, level: u8, class: Class, query: &Query<'_>) -> Result<NodePart<'static>> {
    let node = store.node(child, level, class)?;
    let revealed = match (level, query) {
        (0, Query::Keys(keys)) => leaf_keys(&node, keys),
        (0, Query::Range { low, high }) => leaf_range(&node, low, *high),
        (_, Query::Keys(keys)) => inner_keys(&node, keys),
        (_, Query::Range { low, high }) => inner_range(&node, low, *high),
    };
    let indices: Vec<u64> = revealed.keys().map(|index| *index as u64).collect();
    let hashes = match store.list(child) {
        Some(list) => list.proof(&indices),
        None => merkle::list_proof(&node.entry_hashes(), &indices),
    };
    let mut entries = Vec::with_capacity(revealed.len());
    for (index, below) in revealed {
        entries.push((index as u16, entry(store, &node, index, class, below.as_ref())?));
    }
    Ok(NodePart { count: node.len() as u16, entries, hashes })
}

fn entry(store: &Store, node: &Node, index: usize, class: Class, below: Option<&Query<'_>>) -> Result<Entry<'static>> {
    if node.level() == 0 {
        let record = node.record(index);
        let key = Cow::Owned(record.key.to_vec());
        return Ok(Entry::Record { key, stamp: record.stamp, body: record.body.record_body() });
    }
    let child = node.child(index);
    let subtree = match below {
        Some(query) => Subtree::Expanded(node_part(store, &child, node.level() - 1, class, query)?),
        None => Subtree::Hash(child.hash),
    };
    Ok(Entry::Child { separator: Cow::Owned(node.key(index).to_vec()), child: subtree })
}

/// Indices to reveal, each with what is asked of the child there; none for a record or a bare hash.
type Revealed<'q> = BTreeMap<usize, Option<Query<'q>>>;

fn leaf_keys<'q>(leaf: &Node, keys: &[Asked<'_>]) -> Revealed<'q> {
    let mut revealed = Revealed::new();
    for asked in keys {
        match leaf.search(asked.key) {
            Ok(index) => {
                revealed.insert(index, None);
            }
            Err(above) => {
                let neighbours = [above.checked_sub(1), Some(above).filter(|above| *above < leaf.len())];
                revealed.extend(neighbours.into_iter().flatten().map(|index| (index, None)));
            }
        }
    }
    revealed
}

fn inner_keys<'q>(node: &Node, keys: &[Asked<'q>]) -> Revealed<'q> {
    let mut revealed = Revealed::new();
    for asked in keys {
        if asked.key < node.key(0) {
            revealed.entry(0).or_insert(None);
            continue;
        }
        let index = node.child_of(asked.key);
        match revealed.entry(index).or_insert(None) {
            Some(Query::Keys(below)) => below.push(*asked),
            expanded => *expanded = Some(Query::Keys(vec![*asked])),
        }
        if !asked.present && index + 1 < node.len() {
            revealed.entry(index + 1).or_insert(None);
        }
    }
    revealed
}

fn leaf_range<'q>(leaf: &Node, low: &[u8], high: Option<&[u8]>) -> Revealed<'q> {
    // From the last record that is not above low to the first one beyond the range.
    let end = high.map_or(leaf.len(), |high| leaf.search(high).unwrap_or_else(|above| above));
    (leaf.child_of(low)..(end + 1).min(leaf.len())).map(|index| (index, None)).collect()
}

fn inner_range<'q>(node: &Node, low: &'q [u8], high: Option<&'q [u8]>) -> Revealed<'q> {
    let first = node.child_of(low);
    let end = high.map_or(node.len(), |high| node.search(high).unwrap_or_else(|above| above));
    let expanded = (first..end).map(|index| (index, Some(Query::Range { low, high })));
    expanded.chain((end < node.len()).then_some((end, None))).collect()
}
