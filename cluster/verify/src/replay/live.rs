//! The newest state of one shard, for replays of long histories. It follows the rules of
//! [`super::Forest`], but the cost of a version depends only on its changes.
//!
//! Hashes of untouched nodes are kept. A frozen tree is kept as its records, filter and digest. A
//! test compares it with the model, digest by digest.

use alloc::{boxed::Box, collections::BTreeMap, vec::Vec};
use core::{mem, ops::Range};

use coppice_types::{Digest, Params, Stamp};

use super::{
    forest::Error,
    gather::{Gathered, GatheredNode, GatheredTree},
    tree::{Change, Record, Tree},
};
use crate::{
    hash::{self, RecordBody},
    rules::{self, Filter},
};

/// The newest state of one shard.
#[derive(Debug)]
pub struct LiveForest {
    params: Params,
    active: LiveTree,
    /// The frozen trees, youngest first.
    frozen: Vec<FrozenTree>,
}

#[derive(Debug)]
struct FrozenTree {
    digest: Digest,
    records: Vec<Record>,
    filter: Filter,
}

#[derive(Debug)]
struct LiveTree {
    root: Node,
    entries: u64,
}

#[derive(Debug)]
struct Node {
    hash: Digest,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Records with their hashes.
    Leaf(Vec<(Record, Digest)>),
    /// Level of the node, and its children.
    Inner(u8, Vec<Named>),
}

/// A node and its separator, which is empty for the first of a list.
type Named = (Vec<u8>, Node);

impl LiveForest {
    /// The state of a new shard.
    #[must_use]
    pub fn new(params: &Params) -> Self {
        Self { params: params.clone(), active: LiveTree::empty(), frozen: Vec::new() }
    }

    /// The state made of the gathered trees, youngest first. No part of a tree may be missing.
    pub(super) fn of(params: &Params, gathered: Gathered) -> Result<Self, Error> {
        let mut trees = gathered.trees.into_iter().map(LiveTree::of).collect::<Result<Vec<_>, _>>()?.into_iter();
        let active = trees.next().ok_or(Error::Parts("none"))?;
        let frozen = trees.map(|tree| FrozenTree::of(params, tree)).collect();
        Ok(Self { params: params.clone(), active, frozen })
    }

    /// The shard digest.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let frozen = self.frozen.iter().map(|frozen| frozen.digest);
        hash::shard_digest(&core::iter::once(self.active.digest()).chain(frozen).collect::<Vec<_>>())
    }

    /// Number of trees.
    #[must_use]
    pub fn trees(&self) -> usize {
        self.frozen.len() + 1
    }

    /// Number of records in all trees, tombstones and superseded ones included.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.active.entries + self.frozen.iter().map(|frozen| frozen.records.len() as u64).sum::<u64>()
    }

    /// Applies a Prepare, like [`super::Forest::prepare`].
    ///
    /// # Errors
    /// If a merge does not apply to the state. The state must not be used after that.
    pub fn prepare<'a>(
        &mut self,
        stamp: Stamp,
        merges: &[(Vec<Digest>, Digest)],
        operations: impl IntoIterator<Item = (&'a [u8], RecordBody)>,
    ) -> Result<(), Error> {
        for (inputs, output) in merges {
            self.install(inputs, *output)?;
        }
        let folded: BTreeMap<&[u8], RecordBody> = operations.into_iter().collect();
        if !folded.is_empty() && self.active.entries >= u64::from(self.params.capacity) {
            self.freeze();
        }
        let changes: Vec<(Vec<u8>, Change)> = folded
            .into_iter()
            .filter_map(|(key, body)| self.change(key, stamp, body).map(|change| (key.to_vec(), change)))
            .collect();
        if !changes.is_empty() {
            self.active.apply(&self.params, &changes);
        }
        Ok(())
    }

    fn freeze(&mut self) {
        let active = mem::replace(&mut self.active, LiveTree::empty());
        self.frozen.insert(0, FrozenTree::of(&self.params, active));
    }

    fn change(&self, key: &[u8], stamp: Stamp, body: RecordBody) -> Option<Change> {
        let record = Record { key: key.to_vec(), stamp, body };
        if matches!(body, RecordBody::Put { .. }) {
            return Some(Change::Set(record));
        }
        let held = self.active.root.find(key);
        let newest = held.or_else(|| self.frozen.iter().find_map(|frozen| frozen.find(key)));
        newest.filter(|record| record.body != RecordBody::Tombstone)?;
        let excluded = self.frozen.iter().all(|frozen| !frozen.filter.admits(key));
        Some(if held.is_some() && excluded { Change::Remove } else { Change::Set(record) })
    }

    fn install(&mut self, inputs: &[Digest], recorded: Digest) -> Result<(), Error> {
        let digests: Vec<Digest> = self.frozen.iter().map(|frozen| frozen.digest).collect();
        let neighbours = |from: &usize| digests[*from..].starts_with(inputs);
        let from = (0..digests.len()).find(neighbours).filter(|_| inputs.len() >= 2).ok_or(Error::Inputs)?;
        let older = from + inputs.len();
        let mut newest: BTreeMap<&[u8], &Record> = BTreeMap::new();
        for record in self.frozen[from..older].iter().flat_map(|frozen| &frozen.records) {
            newest.entry(&record.key).or_insert(record);
        }
        let needed = |record: &&Record| {
            record.body != RecordBody::Tombstone
                || self.frozen[older..].iter().any(|frozen| frozen.filter.admits(&record.key))
        };
        let records: Vec<Record> = newest.into_values().filter(needed).cloned().collect();
        let filter = filter_of(&self.params, &records);
        let computed = Tree::pack(&self.params, records.clone()).digest();
        if computed != recorded {
            return Err(Error::Output { recorded, computed });
        }
        self.frozen.splice(from..older, [FrozenTree { digest: computed, records, filter }]);
        Ok(())
    }
}

impl Gathered {
    /// The forest of the gathered parts. The caller compares its digest with the signed one.
    ///
    /// # Errors
    /// If a part is missing.
    pub fn forest(self, params: &Params) -> Result<LiveForest, Error> {
        LiveForest::of(params, self)
    }
}

fn filter_of(params: &Params, records: &[Record]) -> Filter {
    let mut filter = Filter::new(params, records.len() as u64);
    records.iter().for_each(|record| filter.insert(&record.key));
    filter
}

impl FrozenTree {
    fn of(params: &Params, tree: LiveTree) -> Self {
        let digest = tree.digest();
        let mut records = Vec::new();
        tree.root.collect(&mut records);
        Self { digest, filter: filter_of(params, &records), records }
    }

    fn find(&self, key: &[u8]) -> Option<&Record> {
        let at = self.records.binary_search_by(|record| record.key.as_slice().cmp(key)).ok()?;
        self.records.get(at)
    }
}

impl LiveTree {
    fn empty() -> Self {
        Self { root: Node::leaf(Vec::new()), entries: 0 }
    }

    fn of(GatheredTree { level, entries, root }: GatheredTree) -> Result<Self, Error> {
        if entries == 0 {
            // A proof shows an empty tree by its hash alone.
            return Ok(Self::empty());
        }
        let root = Node::of(level, root.ok_or(Error::Parts("without a root"))?)?;
        if root.records() != entries {
            return Err(Error::Parts("with a different number of records than a tree is said to have"));
        }
        Ok(Self { root, entries })
    }

    fn digest(&self) -> Digest {
        hash::tree_digest(self.root.level(), self.entries, &self.root.hash)
    }

    fn apply(&mut self, params: &Params, changes: &[(Vec<u8>, Change)]) {
        let root = mem::replace(&mut self.root, Node::leaf(Vec::new()));
        let mut nodes = root.apply(params, changes, &mut self.entries);
        while nodes.len() > 1 {
            nodes = Node::inner(params, nodes[0].1.level() + 1, nodes);
        }
        let Some((_, mut root)) = nodes.pop() else { return };
        loop {
            match root.kind {
                Kind::Inner(_, mut entries) if entries.len() == 1 => {
                    root = entries.pop().expect("it has one child").1;
                }
                kind => {
                    self.root = Node { hash: root.hash, kind };
                    return;
                }
            }
        }
    }
}

impl Node {
    fn of(level: u8, GatheredNode { count, records, children }: GatheredNode) -> Result<Self, Error> {
        let missing = Err(Error::Parts("without some entries of a node"));
        // Indices are unique, so their number and the last one tell whether all are there.
        let whole =
            |found: usize, last: Option<&u16>| found == usize::from(count) && last.is_none_or(|last| *last < count);
        let Some(below) = level.checked_sub(1) else {
            if !whole(records.len(), records.last_key_value().map(|(index, _)| index)) {
                return missing;
            }
            let hashed = |record: Record| {
                let hash = hash::record_hash(&record.key, record.stamp, &record.body);
                (record, hash)
            };
            return Ok(Self::leaf(records.into_values().map(hashed).collect()));
        };
        if count == 0 || !whole(children.len(), children.last_key_value().map(|(index, _)| index)) {
            return missing;
        }
        let child = |(separator, child): (Vec<u8>, Option<Box<GatheredNode>>)| {
            let child = child.ok_or(Error::Parts("without a child of a node"))?;
            Ok((separator, Self::of(below, *child)?))
        };
        Ok(Self::parent(level, children.into_values().map(child).collect::<Result<_, _>>()?))
    }

    fn parent(level: u8, entries: Vec<Named>) -> Self {
        let hashes: Vec<Digest> =
            entries.iter().map(|(separator, child)| hash::entry_hash(separator, &child.hash)).collect();
        Self { hash: hash::inner_node_hash(level, &hashes), kind: Kind::Inner(level, entries) }
    }

    fn leaf(records: Vec<(Record, Digest)>) -> Self {
        let hashes: Vec<Digest> = records.iter().map(|(_, hash)| *hash).collect();
        Self { hash: hash::leaf_node_hash(&hashes), kind: Kind::Leaf(records) }
    }

    /// The nodes of one level over these children. The separator of a node's first child becomes
    /// the node's own.
    fn inner(params: &Params, level: u8, mut entries: Vec<Named>) -> Vec<Named> {
        if let Some((first, _)) = entries.first_mut() {
            first.clear();
        }
        let weights: Vec<u32> =
            entries.iter().map(|(separator, _)| rules::entry_weight(params, separator.len())).collect();
        let node = |mut entries: Vec<Named>| (mem::take(&mut entries[0].0), Self::parent(level, entries));
        cut(entries, rules::split(params, &weights)).into_iter().map(node).collect()
    }

    fn level(&self) -> u8 {
        match &self.kind {
            Kind::Leaf(_) => 0,
            Kind::Inner(level, _) => *level,
        }
    }

    fn find(&self, key: &[u8]) -> Option<&Record> {
        match &self.kind {
            Kind::Leaf(records) => {
                let at = records.binary_search_by(|(record, _)| record.key.as_slice().cmp(key)).ok()?;
                Some(&records[at].0)
            }
            Kind::Inner(_, entries) => {
                let after = entries.partition_point(|(separator, _)| separator.as_slice() <= key);
                entries.get(after.checked_sub(1)?)?.1.find(key)
            }
        }
    }

    fn records(&self) -> u64 {
        match &self.kind {
            Kind::Leaf(records) => records.len() as u64,
            Kind::Inner(_, entries) => entries.iter().map(|(_, child)| child.records()).sum(),
        }
    }

    fn collect(self, out: &mut Vec<Record>) {
        match self.kind {
            Kind::Leaf(records) => out.extend(records.into_iter().map(|(record, _)| record)),
            Kind::Inner(_, entries) => entries.into_iter().for_each(|(_, child)| child.collect(out)),
        }
    }

    /// The nodes that replace this one after `changes`, which ascend and all belong to it. `count`
    /// is the number of records in the tree.
    fn apply(self, params: &Params, changes: &[(Vec<u8>, Change)], count: &mut u64) -> Vec<Named> {
        match self.kind {
            Kind::Leaf(records) => {
                let before = records.len() as u64;
                let records = changed(records, changes);
                *count = *count - before + records.len() as u64;
                let weights: Vec<u32> = records
                    .iter()
                    .map(|(record, _)| rules::record_weight(params, record.key.len(), record.body.value_len()))
                    .collect();
                let pieces = cut(records, rules::split(params, &weights));
                let ends = pieces.windows(2).map(|pair| [&pair[0][pair[0].len() - 1], &pair[1][0]]);
                let between = ends.map(|[(left, _), (right, _)]| rules::separator(&left.key, &right.key).to_vec());
                let separators: Vec<Vec<u8>> = core::iter::once(Vec::new()).chain(between).collect();
                separators.into_iter().zip(pieces.into_iter().map(Self::leaf)).collect()
            }
            Kind::Inner(level, entries) => {
                let mut next = Vec::with_capacity(entries.len() + 1);
                let mut rest = changes;
                let mut entries = entries.into_iter().peekable();
                while let Some((separator, child)) = entries.next() {
                    let own = match entries.peek() {
                        Some((above, _)) => rest.partition_point(|(key, _)| key < above),
                        None => rest.len(),
                    };
                    let (own, left) = rest.split_at(own);
                    rest = left;
                    if own.is_empty() {
                        next.push((separator, child));
                        continue;
                    }
                    let mut nodes = child.apply(params, own, count);
                    if let Some((first, _)) = nodes.first_mut() {
                        *first = separator;
                    }
                    next.extend(nodes);
                }
                Self::inner(params, level, next)
            }
        }
    }
}

/// The records after the changes. Both lists ascend by key.
fn changed(records: Vec<(Record, Digest)>, changes: &[(Vec<u8>, Change)]) -> Vec<(Record, Digest)> {
    let mut next = Vec::with_capacity(records.len() + changes.len());
    let mut records = records.into_iter().peekable();
    for (key, change) in changes {
        while let Some(kept) = records.next_if(|(record, _)| record.key < *key) {
            next.push(kept);
        }
        records.next_if(|(record, _)| record.key == *key);
        if let Change::Set(record) = change {
            let hash = hash::record_hash(&record.key, record.stamp, &record.body);
            next.push((record.clone(), hash));
        }
    }
    next.extend(records);
    next
}

/// Cuts a list into adjacent pieces.
fn cut<T>(items: Vec<T>, pieces: Vec<Range<usize>>) -> Vec<Vec<T>> {
    let mut items = items.into_iter();
    pieces.into_iter().map(|piece| items.by_ref().take(piece.len()).collect()).collect()
}
