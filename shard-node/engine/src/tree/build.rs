//! Builds a tree from records in key order: the packing of `docs/verification.md` section 4.
//!
//! Nodes are made as they fill, leaves several at a time. So the nodes in memory are bounded,
//! whatever the tree's size; only a hash and a place of each key are kept to the end.

use std::{ops::Range, sync::Arc};

use coppice_env::{OrderedQueue, Workers};
use coppice_types::{Digest, Params, Version};
use coppice_verify::{
    hash,
    rules::{self, Filter, Packer},
};

use crate::{
    cache::{Class, shortcuts::Gathered},
    meta::{Delta, Meta, Tree},
    node::{Child, ChildEntry, Draft, LeafRecord, NewEntry, Node, decode_record, encoded_key, span_pages},
    place::{
        page::{PageFile, Pid},
        refs::ValueRef,
    },
    store::Store,
    tree::lots::Pace,
};

#[derive(Debug)]
struct OpenNode {
    packer: Packer,
    entries: Vec<ChildEntry>,
    /// Number of nodes made on this level.
    made: u64,
}

/// Encoded records in key order, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Records {
    bytes: Vec<u8>,
    /// End and weight of each record.
    ends: Vec<(usize, u32)>,
}

impl Records {
    pub(crate) fn with_room(records: usize, bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), ends: Vec::with_capacity(records) }
    }

    /// Adds a leaf's encoded record.
    pub(crate) fn push(&mut self, record: &[u8], weight: u32) {
        self.bytes.extend_from_slice(record);
        self.ends.push((self.bytes.len(), weight));
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Byte range of consecutive records.
    fn range(&self, records: &Range<usize>) -> Range<usize> {
        let end = |at: usize| at.checked_sub(1).map_or(0, |last| self.ends[last].0);
        end(records.start)..end(records.end)
    }

    pub(crate) fn encoded(&self, index: usize) -> &[u8] {
        &self.bytes[self.range(&(index..index + 1))]
    }

    fn encoded_ones(&self, records: &Range<usize>) -> impl Iterator<Item = &[u8]> {
        records.clone().map(|index| self.encoded(index))
    }

    /// Replaces a record by one that takes as many bytes.
    pub(crate) fn replace(&mut self, index: usize, record: &LeafRecord<'_>) {
        let range = self.range(&(index..index + 1));
        record.encode(&mut self.bytes[range]);
    }
}

/// The records of one leaf, as parts of batches that were pushed.
#[derive(Debug, Default)]
struct LeafRecords {
    separator: Vec<u8>,
    parts: Vec<(Arc<Records>, Range<usize>)>,
}

impl LeafRecords {
    /// The leaf after another one. It has no records yet; `key` will be its first key.
    fn after(other: &Self, key: &[u8]) -> Self {
        let last = other.parts.last().map(|(records, range)| encoded_key(records.encoded(range.end - 1)));
        Self { separator: rules::separator(last.unwrap_or_default(), key).to_vec(), parts: Vec::new() }
    }

    fn extend(&mut self, records: &Arc<Records>, range: Range<usize>) {
        if !range.is_empty() {
            self.parts.push((Arc::clone(records), range));
        }
    }

    /// Number of records, and their bytes.
    fn size(&self) -> (usize, usize) {
        let part = |(records, range): &(Arc<Records>, Range<usize>)| (range.len(), records.range(range).len());
        self.parts.iter().map(part).fold((0, 0), |all, part| (all.0 + part.0, all.1 + part.1))
    }

    /// Makes the leaf, the most expensive part of a merge. The result depends only on the records
    /// and the place.
    fn make(self, made_at: Version, pid: Pid, with_shortcuts: bool) -> MadeLeaf {
        let encoded: Vec<&[u8]> = self.parts.iter().flat_map(|(records, range)| records.encoded_ones(range)).collect();
        let records: Vec<LeafRecord<'_>> = encoded.iter().map(|bytes| decode_record(bytes)).collect();
        let hashes = hash::record_hashes(records.iter().map(LeafRecord::hashed));
        let filter_hashes = hash::filter_hashes(records.iter().map(|record| record.key));
        let place = |(hash, record): (&(u64, u64), &LeafRecord<'_>)| Gathered::entry(*hash, &record.body);
        let places = filter_hashes.iter().zip(&records).filter(|_| with_shortcuts).filter_map(place).collect();
        let entries = encoded.iter().zip(hashes).map(|(bytes, hash)| EncodedEntry { bytes, hash });
        let entries: Vec<EncodedEntry<'_>> = entries.collect();
        let (node, child) = Draft::all_new(made_at, 0, &entries).place(pid);
        MadeLeaf { node, entry: ChildEntry { separator: self.separator, child }, filter_hashes, places }
    }
}

/// A leaf, its entry in its parent, and the data of its keys for the filter and the shortcuts.
#[derive(Debug)]
struct MadeLeaf {
    node: Node,
    entry: ChildEntry,
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

    fn hashes<'e>(entries: impl Iterator<Item = &'e Self>) -> impl Iterator<Item = Digest>
    where
        Self: 'e,
    {
        entries.map(|entry| entry.hash)
    }

    fn encoded_bytes(&self) -> usize {
        self.bytes.len()
    }

    fn encode(&self, out: &mut [u8]) {
        out.copy_from_slice(self.bytes);
    }
}

/// A tree whose nodes are complete. Its filter and shortcuts are still being made from all keys,
/// perhaps on another thread.
#[derive(Debug)]
struct Closed {
    tree: Tree,
    of_keys: OrderedQueue<(Filter, Option<Vec<u8>>)>,
}

/// A tree that grows at its right end.
#[derive(Debug)]
pub(crate) struct Builder {
    params: Params,
    version: Version,
    workers: Workers,
    leaf: LeafRecords,
    leaf_packer: Packer,
    /// Full leaves that are not made yet, and their places. Many are made at once.
    full: Vec<(LeafRecords, Pid)>,
    /// Batches of leaves that are made or being made.
    making: OrderedQueue<Vec<MadeLeaf>>,
    leaves_made: u64,
    /// Inner levels, from level 1 up.
    inner: Vec<OpenNode>,
    entries: u64,
    /// Records of leaves that were taken in.
    taken: u64,
    /// Hashes of all keys. The filter's size is known only at the end.
    filter_hashes: Vec<(u64, u64)>,
    shortcuts: Option<Gathered>,
    closed: Option<Closed>,
}

impl Builder {
    /// A builder for at most `records_max` records. Its nodes are marked as made by `version`.
    ///
    /// The vectors over all records get their capacity at once. Growing them would copy them, and
    /// memory of this size returns to the system when it is freed.
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
            making: OrderedQueue::new(workers),
            leaves_made: 0,
            inner: Vec::new(),
            entries: 0,
            taken: 0,
            filter_hashes: Vec::with_capacity(records_max),
            shortcuts: with_shortcuts.then(|| Gathered::with_room(records_max)),
            closed: None,
        }
    }

    /// Adds records that follow the last one.
    pub(crate) fn push(&mut self, store: &mut Store, meta: &mut Meta, delta: &mut Delta, records: Records, pace: Pace) {
        let (records, mut begin) = (Arc::new(records), 0);
        for (at, (_, weight)) in records.ends.iter().enumerate() {
            if self.leaf_packer.add(*weight) {
                self.leaf.extend(&records, begin..at);
                begin = at;
                let next = LeafRecords::after(&self.leaf, encoded_key(records.encoded(at)));
                self.end_leaf(meta, delta, next);
                if self.full.len() >= pace.leaves {
                    self.make_leaves(store, meta, delta, pace.ahead);
                }
            }
        }
        self.leaf.extend(&records, begin..records.len());
        self.entries += records.len() as u64;
    }

    /// Assigns the leaf its place and begins the next one.
    fn end_leaf(&mut self, meta: &mut Meta, delta: &mut Delta, next: LeafRecords) {
        let leaf = std::mem::replace(&mut self.leaf, next);
        let (entries, encoded_bytes) = leaf.size();
        assert!(entries > 0, "a leaf has a record");
        let pid = meta.allocate(PageFile::Data, span_pages(entries, encoded_bytes));
        delta.allocated.push(pid);
        self.full.push((leaf, pid));
    }

    /// The job that makes the full leaves.
    fn making_of_full(&mut self) -> impl FnOnce() -> Vec<MadeLeaf> + Send + use<> {
        let full = std::mem::take(&mut self.full);
        let (version, with_shortcuts) = (self.version, self.shortcuts.is_some());
        move || full.into_iter().map(|(leaf, pid)| leaf.make(version, pid, with_shortcuts)).collect()
    }

    /// Makes the full leaves, or hands them to other threads. If more than `ahead` batches are in
    /// progress, two are taken in for each new one.
    fn make_leaves(&mut self, store: &mut Store, meta: &mut Meta, delta: &mut Delta, ahead: usize) {
        let make = self.making_of_full();
        if ahead == 0 && self.making.is_empty() {
            return self.take_in(store, meta, delta, make());
        }
        self.making.push(make);
        for _ in 0..2 {
            if self.making.len() > ahead
                && let Some(made) = self.making.take()
            {
                self.take_in(store, meta, delta, made);
            }
        }
    }

    fn take_in(&mut self, store: &mut Store, meta: &mut Meta, delta: &mut Delta, made: Vec<MadeLeaf>) {
        for MadeLeaf { node, entry, filter_hashes, places } in made {
            self.taken += filter_hashes.len() as u64;
            self.filter_hashes.extend(filter_hashes);
            if let Some(shortcuts) = &mut self.shortcuts {
                shortcuts.extend(places);
            }
            store.add_placed(&entry.child, node, Class::Old);
            self.leaves_made += 1;
            self.push_child(store, meta, delta, 1, entry);
        }
    }

    /// Number of records whose leaves are not taken in yet.
    pub(crate) fn waiting(&self) -> u64 {
        assert!(self.taken <= self.entries, "leaves that are taken in have only records that were pushed");
        self.entries - self.taken
    }

    /// Ends the records, and takes in some of the remaining leaves. Returns the number of records
    /// in them; 0 means that all leaves were taken in before.
    pub(crate) fn end_leaves(&mut self, store: &mut Store, meta: &mut Meta, delta: &mut Delta) -> usize {
        if !self.leaf.parts.is_empty() {
            self.end_leaf(meta, delta, LeafRecords::default());
        }
        if !self.full.is_empty() {
            let make = self.making_of_full();
            self.making.push(make);
        }
        let before = self.taken;
        if let Some(made) = self.making.take() {
            self.take_in(store, meta, delta, made);
        }
        (self.taken - before) as usize
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
        assert!(!entries.is_empty(), "a node that is closed has entries");
        let separator = std::mem::take(&mut entries[0].separator);
        let child = store.add_node(meta, delta, Draft::all_new(self.version, level, &entries), Class::Old);
        self.push_child(store, meta, delta, level + 1, ChildEntry { separator, child });
    }

    /// Completes the inner nodes, and begins to make the filter and the shortcuts, once. All leaves
    /// must be taken in.
    pub(crate) fn close(&mut self, store: &mut Store, meta: &mut Meta, delta: &mut Delta) {
        if self.closed.is_some() {
            return;
        }
        let (root, level) = self.root(store, meta, delta).unzip();
        assert_eq!(self.taken, self.entries, "all records are in leaves");
        assert_eq!(self.filter_hashes.len() as u64, self.entries, "the filter has all keys");
        let mut filter = Filter::new(&self.params, self.entries);
        let (filter_hashes, shortcuts) = (std::mem::take(&mut self.filter_hashes), self.shortcuts.take());
        let make = move || {
            filter_hashes.iter().for_each(|hash| filter.insert_hash(*hash));
            (filter, shortcuts.and_then(|gathered| gathered.pages(&filter_hashes)))
        };
        let tree = Tree::new(root, level.unwrap_or(0), self.entries, None);
        let mut of_keys = OrderedQueue::new(self.workers);
        of_keys.push(make);
        self.closed = Some(Closed { tree, of_keys });
    }

    /// Whether another thread is making the filter and the shortcuts.
    pub(crate) fn is_going(&self) -> bool {
        self.closed.as_ref().is_some_and(|closed| closed.of_keys.is_going())
    }

    /// Returns the whole tree, frozen.
    pub(crate) fn finish(mut self, store: &mut Store, meta: &mut Meta, delta: &mut Delta) -> Tree {
        self.close(store, meta, delta);
        let Closed { tree, mut of_keys } = self.closed.expect("it was closed above");
        let (filter, shortcuts) = of_keys.take().expect("it was begun");
        let filter = Some(store.add_filter(meta, delta, filter));
        let shortcuts = shortcuts.map(|pages| store.add_shortcuts(meta, delta, pages));
        Tree { filter, shortcuts, ..tree }
    }

    /// The root and its level; `None` if there were no records.
    fn root(&mut self, store: &mut Store, meta: &mut Meta, delta: &mut Delta) -> Option<(Child, u8)> {
        if self.entries == 0 {
            return None;
        }
        while self.end_leaves(store, meta, delta) > 0 {}
        let mut level = 0;
        let mut made = self.leaves_made;
        // A level with a single node is that of the root; the level above has only the root's
        // entry.
        while made > 1 {
            level += 1;
            self.close_inner(store, meta, delta, level);
            made = self.inner[usize::from(level) - 1].made;
        }
        let root = self.inner[usize::from(level)].entries.pop().expect("the root was pushed up").child;
        Some((root, level))
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;
    use coppice_types::Stamp;
    use coppice_verify::rules::pack;

    use super::*;
    use crate::{
        Engine,
        node::Body,
        testing::{create, key, small, used},
        tree::cursor::Cursor,
    };

    const PACE: Pace = Pace { leaves: 3, ahead: 0 };

    /// Records of these numbers, with values of various lengths in their leaf.
    fn records(numbers: Range<u32>) -> Records {
        let mut records = Records::with_room(numbers.len(), 0);
        for number in numbers {
            let (key, value) = (key(number), vec![number as u8; number as usize % 9]);
            let body = Body::Inline { hash: hash::sha256(&value), value: &value };
            let record = LeafRecord { key: key.as_bytes(), stamp: Stamp::new(0, 1), body };
            let mut bytes = vec![0; record.encoded_bytes()];
            record.encode(&mut bytes);
            records.push(&bytes, weight(number));
        }
        records
    }

    fn weight(number: u32) -> u32 {
        rules::record_weight(&small(), 4, Some(number % 9))
    }

    /// The tree of batches of records, and what it took.
    fn build(engine: &mut Engine, batches: Vec<Records>, pace: Pace) -> (Tree, Delta) {
        let len = batches.iter().map(Records::len).sum();
        let mut builder = Builder::new(&small(), Version(1), Workers::Inline, len, false);
        let (store, meta, mut delta) = (&mut engine.store, &mut engine.meta, Delta::default());
        batches.into_iter().for_each(|batch| builder.push(store, meta, &mut delta, batch, pace));
        let tree = builder.finish(store, meta, &mut delta);
        (tree, delta)
    }

    /// Number of records of each leaf.
    fn leaves(engine: &Engine, tree: &Tree) -> Vec<usize> {
        let mut cursor = Cursor::seek(&engine.store, tree, b"").expect("sound pages");
        let mut lens = Vec::new();
        while let Some((leaf, index)) = cursor.at() {
            lens.extend((index == 0).then(|| leaf.len()));
            cursor.skip(&engine.store).expect("sound pages");
        }
        lens
    }

    #[test]
    fn no_records_give_the_empty_tree_with_a_filter() {
        let mut engine = create(&SimStorage::new(), small());
        for batches in [vec![], vec![Records::default()]] {
            let (tree, delta) = build(&mut engine, batches, PACE);
            assert_eq!((tree.root, tree.entries, tree.digest), (None, 0, Tree::empty().digest));
            assert!(tree.filter.is_some() && delta.allocated.is_empty());
        }
    }

    #[test]
    fn leaves_are_packed_by_the_rule_and_every_record_is_found() {
        let mut engine = create(&SimStorage::new(), small());
        for count in [1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 200] {
            let (tree, _) = build(&mut engine, vec![records(0..count)], PACE);
            let weights: Vec<u32> = (0..count).map(weight).collect();
            let packed: Vec<usize> = pack(&small(), &weights).into_iter().map(|range| range.len()).collect();
            assert_eq!((leaves(&engine, &tree), tree.entries), (packed, u64::from(count)));
            for number in 0..count {
                assert!(tree.has(&engine.store, key(number).as_bytes()).expect("sound pages"), "{number} of {count}");
            }
            assert!(!tree.has(&engine.store, key(count).as_bytes()).expect("sound pages"));
        }
    }

    #[test]
    fn neither_batches_nor_pace_change_the_tree() {
        let mut engine = create(&SimStorage::new(), small());
        let digest = build(&mut engine, vec![records(0..100)], PACE).0.digest;
        for (batch, leaves, ahead) in [(1, 1, 0), (7, 1, 2), (30, 100, 0), (99, 2, 5), (100, 1, 1)] {
            let batches =
                (0..100).step_by(batch).map(|start| records(start..(start + batch as u32).min(100))).collect();
            let (tree, _) = build(&mut engine, batches, Pace { leaves, ahead });
            assert_eq!(tree.digest, digest, "batches of {batch}, {leaves} leaves, {ahead} ahead");
        }
    }

    #[test]
    fn all_that_a_tree_took_is_in_its_delta() {
        let mut engine = create(&SimStorage::new(), small());
        let (before, unflushed) = (used(&engine), engine.store.behind_bytes(true));
        let (_, delta) = build(&mut engine, vec![records(0..100)], PACE);
        assert!(used(&engine) > before);
        engine.meta.discard_all(&delta);
        engine.forget_freed();
        assert_eq!(used(&engine), before);
        let filter = delta.values_allocated.values().sum::<u64>();
        assert_eq!(engine.store.behind_bytes(true), unflushed + filter, "the log keeps its bytes");
    }

    #[test]
    fn a_record_is_replaced_by_one_of_its_size() {
        let mut records = records(0..3);
        let encoded = records.encoded(1).to_vec();
        let (before, after) = (records.encoded(0).to_vec(), records.encoded(2).to_vec());
        let record = LeafRecord { stamp: Stamp::new(7, 8), ..decode_record(&encoded) };
        records.replace(1, &record);
        assert_eq!(decode_record(records.encoded(1)).stamp, Stamp::new(7, 8));
        assert_eq!((records.encoded(0), records.encoded(2)), (&before[..], &after[..]));
    }
}
