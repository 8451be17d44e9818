//! Building a tree from records in order: the packing of `docs/verification.md` section 4.
//!
//! Nodes are made as they fill, so the builder's memory is one open node a level, whatever the tree's size.

use coppice_types::{Digest, Params, Version};
use coppice_verify::rules::{self, Packer};

use crate::{
    cache::Class,
    meta::{Delta, Meta, Tree},
    node::{ChildEntry, Draft, HashedRecord, LeafRecord, NewEntry, encoded_key},
    store::Store,
};

#[derive(Debug)]
struct OpenNode {
    packer: Packer,
    entries: Vec<ChildEntry>,
    /// Nodes of this level that are made.
    made: u64,
}

/// A record that is encoded already.
#[derive(Clone, Copy, Debug)]
struct Encoded {
    /// Where its bytes end; they begin where those of the one before end.
    end: usize,
    weight: u32,
    hash: Digest,
}

/// The records of the leaf that is open, one behind the other.
#[derive(Debug, Default)]
struct OpenLeaf {
    bytes: Vec<u8>,
    records: Vec<Encoded>,
    first_key: Vec<u8>,
}

impl OpenLeaf {
    fn push(&mut self, record: &LeafRecord<'_>, weight: u32) {
        if self.records.is_empty() {
            self.first_key = record.key.to_vec();
        }
        let new = HashedRecord::new(*record);
        let start = self.bytes.len();
        self.bytes.resize(start + new.encoded_bytes(), 0);
        new.encode(&mut self.bytes[start..]);
        self.records.push(Encoded { end: self.bytes.len(), weight, hash: new.hash });
    }

    /// The leaf; the next one opens.
    fn close(&mut self, made_at: Version) -> (Draft, Vec<u8>) {
        let mut start = 0;
        let mut entries = Vec::with_capacity(self.records.len());
        for record in &self.records {
            entries.push(EncodedEntry { bytes: &self.bytes[start..record.end], record: *record });
            start = record.end;
        }
        let draft = Draft::all_new(made_at, 0, &entries);
        self.bytes.clear();
        self.records.clear();
        (draft, std::mem::take(&mut self.first_key))
    }
}

struct EncodedEntry<'a> {
    bytes: &'a [u8],
    record: Encoded,
}

impl NewEntry for EncodedEntry<'_> {
    fn key(&self) -> &[u8] {
        encoded_key(self.bytes)
    }

    fn weight(&self, _params: &Params) -> u32 {
        self.record.weight
    }

    fn hash(&self) -> Digest {
        self.record.hash
    }

    fn encoded_bytes(&self) -> usize {
        self.bytes.len()
    }

    fn encode(&self, out: &mut [u8]) {
        out.copy_from_slice(self.bytes);
    }
}

/// A tree that grows at its right end.
#[derive(Debug)]
pub(crate) struct Builder {
    params: Params,
    version: Version,
    leaf: OpenLeaf,
    leaf_packer: Packer,
    leaves_made: u64,
    /// Levels 1 and up.
    inner: Vec<OpenNode>,
    pub(crate) entries: u64,
}

impl Builder {
    /// `version` is the one that the nodes bear as theirs.
    pub(crate) fn new(params: &Params, version: Version) -> Self {
        Self {
            params: params.clone(),
            version,
            leaf: OpenLeaf::default(),
            leaf_packer: Packer::new(params),
            leaves_made: 0,
            inner: Vec::new(),
            entries: 0,
        }
    }

    /// Adds the record after the last one.
    pub(crate) fn push(&mut self, store: &mut Store, meta: &mut Meta, delta: &mut Delta, record: &LeafRecord<'_>) {
        let weight = rules::record_weight(&self.params, record.key.len(), record.body.value_len());
        if self.leaf_packer.add(weight) {
            self.close_leaf(store, meta, delta);
        }
        self.leaf.push(record, weight);
        self.entries += 1;
    }

    fn close_leaf(&mut self, store: &mut Store, meta: &mut Meta, delta: &mut Delta) {
        let (draft, separator) = self.leaf.close(self.version);
        let child = store.add_node(meta, delta, draft, Class::Old);
        self.leaves_made += 1;
        self.push_child(store, meta, delta, 1, ChildEntry { separator, child });
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
        let entries = std::mem::take(&mut open.entries);
        open.made += 1;
        let child = store.add_node(meta, delta, Draft::all_new(self.version, level, &entries), Class::Old);
        let separator = entries.into_iter().next().expect("a node that is closed has entries").separator;
        self.push_child(store, meta, delta, level + 1, ChildEntry { separator, child });
    }

    /// The whole tree: its root and level, none if there were no records.
    pub(crate) fn finish(mut self, store: &mut Store, meta: &mut Meta, delta: &mut Delta) -> Tree {
        if self.leaf.records.is_empty() {
            return Tree::empty();
        }
        self.close_leaf(store, meta, delta);
        let mut level = 0;
        let mut made = self.leaves_made;
        // The single node of a level is the root: the level above has its entry and nothing else.
        while made > 1 {
            level += 1;
            self.close_inner(store, meta, delta, level);
            made = self.inner[usize::from(level) - 1].made;
        }
        let root = self.inner[usize::from(level)].entries.pop().expect("the root was pushed up").child;
        Tree::new(Some(root), level, self.entries, None)
    }
}
