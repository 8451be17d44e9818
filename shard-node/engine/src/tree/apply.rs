//! Applying a batch of changes to the active tree (`docs/verification.md` section 4): in key order, depth first, each
//! node touched once.
//!
//! No node is changed in place. The nodes on the way to a change are made anew and their predecessors pended; a failure
//! leaves the old tree as it was, and the caller gives back what the delta has allocated.

use coppice_types::{Digest, Params, Version};
use coppice_verify::rules;

use crate::{
    Result,
    cache::Class,
    list::MerkleList,
    meta::{Delta, Meta, Tree},
    node::{Body, Child, ChildEntry, Draft, Entries, HashedRecord, NewEntry, Node, Source},
    store::Store,
    values,
};

/// What becomes of one key of the active tree.
#[derive(Clone, Debug)]
pub(crate) enum TreeChange<'a> {
    /// The record, a put or a tombstone, replaces or joins.
    Upsert(HashedRecord<'a>),
    /// The record, which exists, goes.
    Remove(&'a [u8]),
}

impl<'a> TreeChange<'a> {
    fn key(&self) -> &'a [u8] {
        match self {
            Self::Upsert(new) => new.record.key,
            Self::Remove(key) => key,
        }
    }

    fn new_record(&self) -> &HashedRecord<'a> {
        match self {
            Self::Upsert(new) => new,
            Self::Remove(_) => unreachable!("a removed record is no source"),
        }
    }
}

impl NewEntry for TreeChange<'_> {
    fn key(&self) -> &[u8] {
        Self::key(self)
    }

    fn weight(&self, params: &Params) -> u32 {
        self.new_record().weight(params)
    }

    fn hash(&self) -> Digest {
        self.new_record().hash
    }

    fn encoded_bytes(&self) -> usize {
        self.new_record().encoded_bytes()
    }

    fn encode(&self, out: &mut [u8]) {
        self.new_record().encode(out);
    }
}

/// A node that is replaced, with the hashes of its entries.
struct Old {
    node: Node,
    list: MerkleList,
}

/// Makes the nodes of one version.
pub(crate) struct Applier<'e> {
    pub(crate) store: &'e mut Store,
    pub(crate) meta: &'e mut Meta,
    pub(crate) params: &'e Params,
    pub(crate) version: Version,
    pub(crate) delta: &'e mut Delta,
}

impl Applier<'_> {
    /// The tree after the changes, which ascend by key.
    pub(crate) fn apply(&mut self, tree: &Tree, changes: &[TreeChange<'_>]) -> Result<Tree> {
        assert!(tree.filter.is_none(), "frozen trees never change");
        assert!(changes.is_sorted_by(|a, b| a.key() < b.key()));
        if changes.is_empty() {
            return Ok(tree.clone());
        }
        let mut entries = tree.entries;
        let mut level = tree.level;
        let mut made = Vec::new();
        match tree.root {
            None => self.apply_leaf(None, changes, &mut entries, &mut made),
            Some(root) => self.apply_node(root, level, changes, &mut entries, &mut made)?,
        }
        while made.len() > 1 {
            level = level.checked_add(1).expect("a tree is far lower than 255 levels");
            let sources: Vec<Source> = (0..made.len()).map(Source::New).collect();
            let below = std::mem::take(&mut made);
            self.make(level, None, &sources, &below, &mut made);
        }
        let Some(ChildEntry { child: mut root, .. }) = made.pop() else { return Ok(Tree::empty()) };
        while level > 0 {
            let node = self.store.node(&root, level, Class::Young)?;
            if node.len() > 1 {
                break;
            }
            self.retire(root);
            root = node.child(0);
            level -= 1;
        }
        Ok(Tree::new(Some(root), level, entries, None))
    }

    /// A node that the new tree does not use: never made if it is new, else pended.
    fn retire(&mut self, child: Child) {
        match self.delta.allocated.iter().rposition(|pid| *pid == child.pid) {
            Some(at) => {
                self.delta.allocated.swap_remove(at);
                self.meta.discard(child.pid);
                self.store.forget(&self.meta.take_freed());
            }
            None => self.delta.pended.push(child.pid),
        }
    }

    fn apply_node(
        &mut self,
        child: Child,
        level: u8,
        changes: &[TreeChange<'_>],
        entries: &mut u64,
        made: &mut Vec<ChildEntry>,
    ) -> Result<()> {
        let node = self.store.node(&child, level, Class::Young)?;
        self.delta.pended.push(child.pid);
        let list = self.store.take_list(&child).unwrap_or_else(|| MerkleList::new(node.entry_hashes()));
        let old = Old { node, list };
        if level == 0 {
            self.apply_leaf(Some(old), changes, entries, made);
            Ok(())
        } else {
            self.apply_inner(old, changes, entries, made)
        }
    }

    fn apply_inner(
        &mut self,
        old: Old,
        mut changes: &[TreeChange<'_>],
        entries: &mut u64,
        made: &mut Vec<ChildEntry>,
    ) -> Result<()> {
        let node = &old.node;
        let mut sources = Vec::with_capacity(node.len() + 1);
        let mut below = Vec::with_capacity(changes.len().min(node.len()));
        for index in 0..node.len() {
            let mine = if index + 1 < node.len() {
                let next = node.key(index + 1);
                changes.partition_point(|change| change.key() < next)
            } else {
                changes.len()
            };
            let (mine, later) = changes.split_at(mine);
            changes = later;
            if mine.is_empty() {
                sources.push(Source::Old(index));
            } else {
                let first = below.len();
                self.apply_node(node.child(index), node.level() - 1, mine, entries, &mut below)?;
                sources.extend((first..below.len()).map(Source::New));
            }
        }
        self.make(node.level(), Some(old), &sources, &below, made);
        Ok(())
    }

    fn apply_leaf(
        &mut self,
        old: Option<Old>,
        changes: &[TreeChange<'_>],
        entries: &mut u64,
        made: &mut Vec<ChildEntry>,
    ) {
        let node = old.as_ref().map(|old| &old.node);
        let old_len = node.map_or(0, Node::len);
        let mut sources = Vec::with_capacity(old_len + changes.len());
        let mut next = 0;
        for (index, change) in changes.iter().enumerate() {
            let found = node.map_or(Err(0), |node| node.search_from(next, change.key()));
            let (Ok(at) | Err(at)) = found;
            sources.extend((next..at).map(Source::Old));
            next = at + usize::from(found.is_ok());
            if let (Ok(at), Some(node)) = (found, node)
                && let Body::Stored { len, at, .. } = node.record(at).body
            {
                self.delta.pend_value(at.segment, values::record_bytes(len));
            }
            match change {
                TreeChange::Upsert(_) => {
                    sources.push(Source::New(index));
                    *entries += u64::from(found.is_err());
                }
                TreeChange::Remove(_) => {
                    assert!(found.is_ok(), "only records that exist are removed");
                    *entries -= 1;
                }
            }
        }
        sources.extend((next..old_len).map(Source::Old));
        self.make(0, old, &sources, changes, made);
    }

    /// Makes the nodes that the split rule gives for these entries.
    fn make<E: NewEntry>(
        &mut self,
        level: u8,
        old: Option<Old>,
        sources: &[Source],
        new: &[E],
        made: &mut Vec<ChildEntry>,
    ) {
        let (node, mut list) = old.map(|old| (old.node, old.list)).unzip();
        let entries = |sources| Entries { sources, old: node.as_ref(), new };
        let all = entries(sources);
        let weights: Vec<u32> = sources.iter().map(|source| all.weight(*source, self.params)).collect();
        for piece in rules::split(self.params, &weights) {
            let entries = entries(&sources[piece]);
            let whole = entries.sources.len() == sources.len();
            let list = list_of(&entries, if whole { list.take() } else { list.clone() });
            let draft = Draft::new(self.version, level, &entries, &list);
            let child = self.store.add_node(self.meta, self.delta, draft, Class::Young);
            self.store.keep_list(&child, list);
            made.push(ChildEntry { separator: entries.key(entries.sources[0]).to_vec(), child });
        }
    }
}

/// The hashes of the entries, from those of the predecessor as far as they go.
fn list_of<E: NewEntry>(entries: &Entries<'_, E>, old: Option<MerkleList>) -> MerkleList {
    let sources = entries.sources;
    let Some(mut old) = old else {
        return MerkleList::new(sources.iter().map(|source| entries.new_hash(*source)).collect());
    };
    let stays = |(at, source): &(usize, &Source)| **source == Source::Old(*at);
    let in_place = |(at, source): (usize, &Source)| matches!(source, Source::New(_)) || *source == Source::Old(at);
    if sources.len() == old.leaves().len() && sources.iter().enumerate().all(in_place) {
        let replaced = sources.iter().enumerate().filter(|it| !stays(it));
        old.replace(&mut replaced.map(|(at, source)| (at, entries.new_hash(*source))).collect());
        return old;
    }
    let same = sources.iter().enumerate().take_while(stays).count();
    let leaves = sources.iter().map(|source| match source {
        Source::Old(index) => old.leaves()[*index],
        Source::New(_) => entries.new_hash(*source),
    });
    MerkleList::grown(leaves.collect(), Some((&old, same)))
}
