//! Building a tree from records in order: the packing of `docs/verification.md` section 4.
//!
//! Nodes are made as they fill, so the builder's memory is one open node a level, whatever the tree's size.

use coppice_types::{Params, Version};
use coppice_verify::rules::{self, Packer};

use crate::{
    cache::Class,
    meta::{Delta, Meta, Tree},
    node::{Child, Draft},
    store::Store,
    tree::Found,
};

#[derive(Debug)]
struct OpenNode {
    packer: Packer,
    entries: Vec<(Vec<u8>, Child)>,
    /// Nodes of this level that are made.
    made: u64,
}

/// A tree that grows at its right end.
#[derive(Debug)]
pub(crate) struct Builder {
    params: Params,
    version: Version,
    leaf: Vec<Found>,
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
            leaf: Vec::new(),
            leaf_packer: Packer::new(params),
            leaves_made: 0,
            inner: Vec::new(),
            entries: 0,
        }
    }

    /// Adds the record after the last one.
    pub(crate) fn push(&mut self, store: &mut Store, meta: &mut Meta, delta: &mut Delta, record: Found) {
        let fields = record.record();
        let weight = rules::record_weight(&self.params, fields.key.len(), fields.body.value_len());
        if self.leaf_packer.add(weight) {
            self.close_leaf(store, meta, delta);
        }
        self.leaf.push(record);
        self.entries += 1;
    }

    fn close_leaf(&mut self, store: &mut Store, meta: &mut Meta, delta: &mut Delta) {
        let records: Vec<_> = self.leaf.iter().map(Found::record).collect();
        let child = store.add_node(meta, delta, Draft::leaf(self.version, &records), Class::Old);
        let separator = self.leaf.swap_remove(0).key;
        self.leaf.clear();
        self.leaves_made += 1;
        self.push_child(store, meta, delta, 1, (separator, child));
    }

    fn push_child(
        &mut self,
        store: &mut Store,
        meta: &mut Meta,
        delta: &mut Delta,
        level: u8,
        entry: (Vec<u8>, Child),
    ) {
        let at = usize::from(level) - 1;
        if self.inner.len() == at {
            self.inner.push(OpenNode { packer: Packer::new(&self.params), entries: Vec::new(), made: 0 });
        }
        if self.inner[at].packer.add(rules::entry_weight(&self.params, entry.0.len())) {
            self.close_inner(store, meta, delta, level);
        }
        self.inner[at].entries.push(entry);
    }

    fn close_inner(&mut self, store: &mut Store, meta: &mut Meta, delta: &mut Delta, level: u8) {
        let open = &mut self.inner[usize::from(level) - 1];
        let entries = std::mem::take(&mut open.entries);
        open.made += 1;
        let child = store.add_node(meta, delta, Draft::inner(self.version, level, &entries), Class::Old);
        let separator = entries.into_iter().next().expect("a node that is closed has entries").0;
        self.push_child(store, meta, delta, level + 1, (separator, child));
    }

    /// The whole tree: its root and level, none if there were no records.
    pub(crate) fn finish(mut self, store: &mut Store, meta: &mut Meta, delta: &mut Delta) -> Tree {
        if self.leaf.is_empty() {
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
        let root = self.inner[usize::from(level)].entries.pop().expect("the root was pushed up").1;
        Tree::new(Some(root), level, self.entries, None)
    }
}
