//! Building a tree from records in order: the packing of `docs/verification.md` section 4.
//!
//! Nodes are made as they fill, leaves some at a time, so the builder's memory is bounded, whatever the tree's size.

use std::collections::VecDeque;

use coppice_env::{Begun, Workers};
use coppice_types::{Digest, Params, Version};
use coppice_verify::{
    hash,
    rules::{self, Filter, Packer},
};

use crate::{
    cache::Class,
    meta::{Delta, Meta, Tree},
    node::{Child, ChildEntry, Draft, LeafRecord, NewEntry, ValueRef, decode_record, encoded_key},
    shortcuts::Gathered,
    store::Store,
};

/// So many full leaves are made at once: enough to be worth a thread.
const FULL_LEAVES_MAX: usize = 64;
/// So many lots of leaves are made before they have their places, whoever makes them.
const LOTS_AHEAD: usize = 5;
/// So many lots more than there are helpers are with threads at once: who is done with one has another, while the merge gathers the next
/// or makes one itself.
const LOTS_QUEUED: usize = 2;

#[derive(Debug)]
struct OpenNode {
    packer: Packer,
    entries: Vec<ChildEntry>,
    /// Nodes of this level that are made.
    made: u64,
}

/// The records of one leaf, encoded one behind the other.
#[derive(Debug, Default)]
struct LeafRecords {
    separator: Vec<u8>,
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
}

impl LeafRecords {
    /// None yet, of the leaf after another one, with room for as many; `key` is to be the first.
    fn after(other: &Self, key: &[u8]) -> Self {
        let last = other.records().last().map(encoded_key).unwrap_or_default();
        let separator = rules::separator(last, key).to_vec();
        let (bytes, ends) = (Vec::with_capacity(other.bytes.len()), Vec::with_capacity(other.ends.len()));
        Self { separator, bytes, ends }
    }

    fn push(&mut self, record: &LeafRecord<'_>) {
        let start = self.bytes.len();
        self.bytes.resize(start + record.encoded_bytes(), 0);
        record.encode(&mut self.bytes[start..]);
        self.ends.push(self.bytes.len());
    }

    fn records(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let start = |at: usize| at.checked_sub(1).map_or(0, |before| self.ends[before]);
        (0..self.ends.len()).map(move |at| &self.bytes[start(at)..self.ends[at]])
    }

    /// The leaf. The costly part of a merge: a function of the records alone.
    fn make(&self, made_at: Version, with_shortcuts: bool) -> MadeLeaf {
        let hashes = hash::record_hashes(self.records().map(|bytes| decode_record(bytes).hashed()));
        let entry = |(bytes, hash)| EncodedEntry { bytes, hash };
        let entries: Vec<EncodedEntry<'_>> = self.records().zip(hashes).map(entry).collect();
        let filter_hashes = hash::filter_hashes(self.records().map(encoded_key));
        let place = |(hash, bytes): (&(u64, u64), &[u8])| Gathered::entry(*hash, &decode_record(bytes).body);
        MadeLeaf {
            draft: Draft::all_new(made_at, 0, &entries),
            separator: self.separator.clone(),
            places: filter_hashes.iter().zip(self.records()).filter(|_| with_shortcuts).filter_map(place).collect(),
            filter_hashes,
        }
    }
}

/// A leaf without a place, its separator, and what a filter and shortcuts take of all its keys.
#[derive(Debug)]
struct MadeLeaf {
    draft: Draft,
    separator: Vec<u8>,
    filter_hashes: Vec<(u64, u64)>,
    places: Vec<(u64, ValueRef)>,
}

struct EncodedEntry<'a> {
    bytes: &'a [u8],
    hash: Digest,
}

impl NewEntry for EncodedEntry<'_> {
    fn key(&self) -> &[u8] {
        encoded_key(self.bytes)
    }

    fn weight(&self, params: &Params) -> u32 {
        let record = decode_record(self.bytes);
        rules::record_weight(params, record.key.len(), record.body.value_len())
    }

    fn hash(&self) -> Digest {
        self.hash
    }

    fn encoded_bytes(&self) -> usize {
        self.bytes.len()
    }

    fn encode(&self, out: &mut [u8]) {
        out.copy_from_slice(self.bytes);
    }
}

/// A tree that has all its nodes, without what is made of all its keys: that takes a while, in which others go on.
#[derive(Debug)]
struct Closed {
    tree: Tree,
    of_keys: Begun<(Filter, Option<Vec<u8>>)>,
}

/// A tree that grows at its right end.
#[derive(Debug)]
pub(crate) struct Builder {
    params: Params,
    version: Version,
    workers: Workers,
    leaf: LeafRecords,
    leaf_packer: Packer,
    /// Leaves that are full and not made yet: many are, at once.
    full: Vec<LeafRecords>,
    /// Lots of leaves that are made or being made, in order.
    making: VecDeque<Begun<Vec<MadeLeaf>>>,
    leaves_made: u64,
    /// Levels 1 and up.
    inner: Vec<OpenNode>,
    entries: u64,
    /// Of all keys: the filter's size is known at the end.
    filter_hashes: Vec<(u64, u64)>,
    shortcuts: Option<Gathered>,
    closed: Option<Closed>,
}

impl Builder {
    /// A tree of at most so many records; `version` is the one that the nodes bear as theirs.
    ///
    /// What is gathered of all records has its room at once: memory of this size goes back to the system when it is let go, and what grew
    /// would have been copied.
    pub(crate) fn new(
        params: &Params,
        version: Version,
        workers: Workers,
        records_max: usize,
        with_shortcuts: bool,
    ) -> Self {
        Self {
            params: params.clone(),
            version,
            workers,
            leaf: LeafRecords::default(),
            leaf_packer: Packer::new(params),
            full: Vec::new(),
            making: VecDeque::new(),
            leaves_made: 0,
            inner: Vec::new(),
            entries: 0,
            filter_hashes: Vec::with_capacity(records_max),
            shortcuts: with_shortcuts.then(|| Gathered::with_room(records_max)),
            closed: None,
        }
    }

    /// Adds the record after the last one.
    pub(crate) fn push(&mut self, store: &mut Store, meta: &mut Meta, delta: &mut Delta, record: &LeafRecord<'_>) {
        let weight = rules::record_weight(&self.params, record.key.len(), record.body.value_len());
        if self.leaf_packer.add(weight) {
            let next = LeafRecords::after(&self.leaf, record.key);
            self.full.push(std::mem::replace(&mut self.leaf, next));
            if self.full.len() == FULL_LEAVES_MAX {
                self.make_leaves(store, meta, delta);
            }
        }
        self.leaf.push(record);
        self.entries += 1;
    }

    /// Begins to make the leaves that are full, and gives those that were begun some lots before their places.
    fn make_leaves(&mut self, store: &mut Store, meta: &mut Meta, delta: &mut Delta) {
        let full = std::mem::take(&mut self.full);
        let (version, with_shortcuts) = (self.version, self.shortcuts.is_some());
        let workers = if full.len() < FULL_LEAVES_MAX { Workers::Inline } else { self.workers };
        let make = move || full.iter().map(|records| records.make(version, with_shortcuts)).collect();
        let going = self.making.iter().filter(|lot| lot.is_going()).count();
        self.making.push_back(workers.begin(going.saturating_sub(LOTS_QUEUED), make));
        self.place_leaves(store, meta, delta, LOTS_AHEAD);
    }

    /// Gives all leaves their places, in order, but for the last lots.
    fn place_leaves(&mut self, store: &mut Store, meta: &mut Meta, delta: &mut Delta, lots: usize) {
        while self.making.len() > lots {
            let made = self.making.pop_front().map(Begun::end).unwrap_or_default();
            for MadeLeaf { draft, separator, filter_hashes, places } in made {
                self.filter_hashes.extend(filter_hashes);
                if let Some(shortcuts) = &mut self.shortcuts {
                    shortcuts.extend(places);
                }
                let child = store.add_node(meta, delta, draft, Class::Old);
                self.leaves_made += 1;
                self.push_child(store, meta, delta, 1, ChildEntry { separator, child });
            }
        }
    }

    fn push_child(&mut self, store: &mut Store, meta: &mut Meta, delta: &mut Delta, level: u8, entry: ChildEntry) {
        let at = usize::from(level) - 1;
        if self.inner.len() == at {
            self.inner.push(OpenNode { packer: Packer::new(&self.params), entries: Vec::new(), made: 0 });
        }
        if self.inner[at].packer.add(rules::entry_weight(&self.params, entry.separator.len())) {
            self.close_inner(store, meta, delta, level);
        }
        self.inner[at].entries.push(entry);
    }

    fn close_inner(&mut self, store: &mut Store, meta: &mut Meta, delta: &mut Delta, level: u8) {
        let open = &mut self.inner[usize::from(level) - 1];
        let mut entries = std::mem::take(&mut open.entries);
        open.made += 1;
        let first = entries.first_mut().expect("a node that is closed has entries");
        let separator = std::mem::take(&mut first.separator);
        let child = store.add_node(meta, delta, Draft::all_new(self.version, level, &entries), Class::Old);
        self.push_child(store, meta, delta, level + 1, ChildEntry { separator, child });
    }

    /// No record follows. Begins to make the filter and the shortcuts, once.
    pub(crate) fn close(&mut self, store: &mut Store, meta: &mut Meta, delta: &mut Delta) {
        if self.closed.is_some() {
            return;
        }
        let (root, level) = self.root(store, meta, delta).unzip();
        let mut filter = Filter::new(&self.params, self.entries);
        let (filter_hashes, shortcuts) = (std::mem::take(&mut self.filter_hashes), self.shortcuts.take());
        let make = move || {
            filter_hashes.iter().for_each(|hash| filter.insert_hash(*hash));
            (filter, shortcuts.and_then(|gathered| gathered.pages(&filter_hashes)))
        };
        let tree = Tree::new(root, level.unwrap_or(0), self.entries, None);
        self.closed = Some(Closed { tree, of_keys: self.workers.begin(0, make) });
    }

    /// Whether another thread is at what was begun.
    pub(crate) fn is_going(&self) -> bool {
        self.closed.as_ref().is_some_and(|closed| closed.of_keys.is_going())
    }

    /// The whole tree, frozen.
    pub(crate) fn finish(mut self, store: &mut Store, meta: &mut Meta, delta: &mut Delta) -> Tree {
        self.close(store, meta, delta);
        let Closed { tree, of_keys } = self.closed.expect("it was closed above");
        let (filter, shortcuts) = of_keys.end();
        let filter = Some(store.add_filter(meta, delta, filter));
        let shortcuts = shortcuts.map(|pages| store.add_shortcuts(meta, delta, pages));
        Tree { filter, shortcuts, ..tree }
    }

    /// The root and its level; none if there were no records.
    fn root(&mut self, store: &mut Store, meta: &mut Meta, delta: &mut Delta) -> Option<(Child, u8)> {
        if self.entries == 0 {
            return None;
        }
        self.full.push(std::mem::take(&mut self.leaf));
        self.make_leaves(store, meta, delta);
        self.place_leaves(store, meta, delta, 0);
        let mut level = 0;
        let mut made = self.leaves_made;
        // The single node of a level is the root: the level above has its entry and nothing else.
        while made > 1 {
            level += 1;
            self.close_inner(store, meta, delta, level);
            made = self.inner[usize::from(level) - 1].made;
        }
        let root = self.inner[usize::from(level)].entries.pop().expect("the root was pushed up").child;
        Some((root, level))
    }
}
