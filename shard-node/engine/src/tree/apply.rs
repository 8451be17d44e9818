//! Applies a batch of changes to the active tree (`docs/verification.md` section 4): in key order,
//! depth first, visiting each node once.
//!
//! The leaves of a large batch are made on several threads, since hashing and encoding them is most
//! of the work.
//!
//! No node is changed in place. Nodes on the paths to changes are replaced and their predecessors
//! pended. A failure leaves the old tree unchanged, and the caller frees what the delta has
//! allocated.

use std::{hint::black_box, ops::Range};

use coppice_env::Workers;
use coppice_types::{Digest, Params, Version};
use coppice_verify::rules;

use crate::{
    Result,
    cache::{Class, lists::Known},
    meta::{Delta, Meta, Tree},
    node::{Body, Child, ChildEntry, Draft, Entries, HashedRecord, NewEntry, Node, Patch, Source, list::MerkleList},
    place::{
        page::Pid,
        refs::{BlobRef, record_bytes},
    },
    store::Store,
};

/// Leaves made by one job.
const JOB_LEAVES: usize = 8;

/// A change of one key in the active tree.
#[derive(Clone, Debug)]
pub(crate) enum TreeChange<'a> {
    /// Inserts a record, a put or a tombstone, or replaces the key's record.
    Upsert(HashedRecord<'a>),
    /// Removes the key's record, which must exist.
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
            Self::Remove(_) => unreachable!("a removed record is not a source"),
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

    fn hashes<'e>(entries: impl Iterator<Item = &'e Self>) -> impl Iterator<Item = Digest>
    where
        Self: 'e,
    {
        entries.map(|entry| entry.new_record().hash)
    }

    fn encoded_bytes(&self) -> usize {
        self.new_record().encoded_bytes()
    }

    fn encode(&self, out: &mut [u8]) {
        self.new_record().encode(out);
    }
}

/// A node to be replaced, with the data about its entries.
struct Old {
    node: Node,
    known: Option<Known>,
}

impl Old {
    /// The node's place and that of its base.
    fn places(&self) -> [Option<Pid>; 2] {
        [Some(self.node.pid()), self.node.base().map(|base| base.pid)]
    }
}

/// A leaf to be replaced. The result depends on nothing else, so any thread may compute it.
struct LeafJob<'c> {
    old: Option<Old>,
    changes: &'c [TreeChange<'c>],
}

/// The result of a leaf's changes.
#[derive(Default)]
struct LeafMade {
    pieces: Vec<Piece>,
    added: u64,
    removed: u64,
    /// Values that the leaf no longer refers to.
    pended: Vec<BlobRef>,
    /// The places of the old leaf and its base.
    old: [Option<Pid>; 2],
}

/// Entries that form one node, and the node's separator. If several nodes replace one, the
/// separator of the first is empty.
struct Share {
    range: Range<usize>,
    /// Total weight of the entries. `None` for an inner node, as its first entry loses its
    /// separator.
    weight: Option<u64>,
    separator: Vec<u8>,
}

/// A node without a place, with the data about its entries, and its separator.
struct Piece {
    draft: Draft,
    known: Known,
    separator: Vec<u8>,
}

/// A node on the path to a change. Leaves are kept in a separate list, in order.
enum Touched {
    Leaf,
    Inner {
        old: Old,
        /// Children by ascending index.
        below: Vec<(usize, Touched)>,
    },
}

/// The nodes of a tree on the paths to keys that will change.
pub(crate) struct Touching {
    /// `None` if the tree is empty.
    root: Option<Touched>,
    leaves: Vec<TouchedLeaf>,
}

/// A leaf (`None` if the tree is empty), and the number of keys that fall into it.
struct TouchedLeaf {
    old: Option<Old>,
    keys: usize,
}

impl Touching {
    /// Reads the nodes on the paths to `keys` (non-empty, ascending). The new values may still be
    /// unknown.
    pub(crate) fn of(store: &mut Store, tree: &Tree, keys: &[&[u8]]) -> Result<Self> {
        assert!(tree.filter.is_none(), "frozen trees never change");
        assert!(keys.is_sorted_by(|a, b| a < b), "keys that change ascend");
        let mut leaves = Vec::new();
        let root = match tree.root {
            Some(root) => Some(touch(store, root, tree.level, keys, &mut leaves)?),
            None => {
                leaves.push(TouchedLeaf { old: None, keys: keys.len() });
                None
            }
        };
        Ok(Self { root, leaves })
    }
}

/// Reads a node and the nodes below it on the paths to these keys.
fn touch(
    store: &mut Store,
    child: Child,
    level: u8,
    mut keys: &[&[u8]],
    leaves: &mut Vec<TouchedLeaf>,
) -> Result<Touched> {
    let node = store.node_to_replace(&child, level)?;
    let known = store.take_known(&child);
    if level == 0 {
        leaves.push(TouchedLeaf { old: Some(Old { node, known }), keys: keys.len() });
        return Ok(Touched::Leaf);
    }
    let mut children = Vec::with_capacity(keys.len().min(node.len()));
    let mut keys_of = Vec::with_capacity(children.capacity());
    for index in 0..node.len() {
        let mine = if index + 1 < node.len() { keys_before(keys, node.key(index + 1)) } else { keys.len() };
        let (mine, later) = keys.split_at(mine);
        keys = later;
        if !mine.is_empty() {
            children.push(node.child(index));
            keys_of.push((index, mine));
        }
    }
    store.load_to_replace(&children);
    let touched = |(child, (index, keys))| Ok((index, touch(store, child, level - 1, keys, leaves)?));
    let below = children.into_iter().zip(keys_of).map(touched).collect::<Result<_>>()?;
    Ok(Touched::Inner { old: Old { node, known }, below })
}

/// Makes the nodes of one version.
pub(crate) struct Applier<'e> {
    pub(crate) store: &'e mut Store,
    pub(crate) meta: &'e mut Meta,
    pub(crate) params: &'e Params,
    pub(crate) version: Version,
    pub(crate) delta: &'e mut Delta,
    pub(crate) workers: Workers,
}

impl Applier<'_> {
    /// The tree after the changes, one for each key of `touching`.
    ///
    /// Leaves are made on several threads while this one assigns places. The order of places does
    /// not depend on which thread made a leaf.
    pub(crate) fn apply(&mut self, tree: &Tree, touching: Touching, changes: &[TreeChange<'_>]) -> Result<Tree> {
        let Touching { root, leaves } = touching;
        let mut rest = changes;
        let job = |TouchedLeaf { old, keys }| {
            let (changes, later) = rest.split_at(keys);
            rest = later;
            LeafJob { old, changes }
        };
        let mut jobs: Vec<LeafJob<'_>> = leaves.into_iter().map(job).collect();
        assert!(rest.is_empty(), "each change falls into a leaf");
        let (params, version, workers) = (self.params, self.version, self.workers);
        let (mut entries, mut level) = (tree.entries, tree.level);
        let mut made = Vec::new();
        workers.in_order(
            jobs.chunks_mut(JOB_LEAVES),
            |jobs| {
                jobs.iter().for_each(LeafJob::load);
                jobs.iter_mut().map(|job| job.run(params, version)).collect::<Vec<_>>()
            },
            |leaves| {
                let mut leaves = leaves.flatten().inspect(|leaf| entries = entries + leaf.added - leaf.removed);
                match root {
                    None => leaves.by_ref().take(1).for_each(|leaf| self.place_leaf(leaf, &mut made)),
                    Some(root) => self.place_touched(root, &mut leaves, &mut made),
                }
                assert!(leaves.next().is_none(), "each leaf that was made has its place");
            },
        );
        while made.len() > 1 {
            assert!(level < u8::MAX, "a tree is far lower than 255 levels");
            level += 1;
            let sources: Vec<Source> = (0..made.len()).map(Source::New).collect();
            let below = std::mem::take(&mut made);
            self.place_inner(level, None, sources, below, &mut made);
        }
        let Some(ChildEntry { child: mut root, .. }) = made.pop() else { return Ok(Tree::empty()) };
        while level > 0 {
            let node = self.store.node(&root, level, Class::Young)?;
            if node.len() > 1 {
                break;
            }
            self.retire(root, &node);
            root = node.child(0);
            level -= 1;
        }
        Ok(Tree::new(Some(root), level, entries, None))
    }

    /// Drops a node that the new tree does not use. A new node is discarded, an older one pended,
    /// and so is its base, which is always older.
    fn retire(&mut self, child: Child, node: &Node) {
        assert_eq!(node.pid(), child.pid, "a node lies where its parent says");
        self.delta.pended.extend(node.base().map(|base| base.pid));
        match self.delta.allocated.iter().rposition(|pid| *pid == child.pid) {
            Some(at) => {
                self.delta.allocated.swap_remove(at);
                self.meta.discard(child.pid);
                self.store.forget(&self.meta.take_freed());
            }
            None => self.delta.pended.push(child.pid),
        }
    }

    /// Places the successors of a node and of all nodes below it.
    fn place_touched(
        &mut self,
        touched: Touched,
        leaves: &mut impl Iterator<Item = LeafMade>,
        made: &mut Vec<ChildEntry>,
    ) {
        let Touched::Inner { old, below } = touched else {
            let leaf = leaves.next();
            assert!(leaf.is_some(), "each leaf that changes was made");
            return leaf.into_iter().for_each(|leaf| self.place_leaf(leaf, made));
        };
        let node = &old.node;
        let mut sources = Vec::with_capacity(node.len() + 1);
        let mut new = Vec::with_capacity(below.len());
        let mut next = 0;
        for (index, touched) in below {
            sources.extend((next..index).map(Source::Old));
            let first = new.len();
            self.place_touched(touched, leaves, &mut new);
            if let Some(entry) = new.get_mut(first) {
                entry.separator = node.key(index).to_vec();
            }
            sources.extend((first..new.len()).map(Source::New));
            next = index + 1;
        }
        sources.extend((next..node.len()).map(Source::Old));
        self.place_inner(node.level(), Some(old), sources, new, made);
    }

    fn place_leaf(&mut self, leaf: LeafMade, made: &mut Vec<ChildEntry>) {
        for blob in leaf.pended {
            self.delta.pend_value(blob.at.segment, record_bytes(blob.len));
        }
        self.place(leaf.old, leaf.pieces, made);
    }

    fn place_inner(
        &mut self,
        level: u8,
        old: Option<Old>,
        mut sources: Vec<Source>,
        mut new: Vec<ChildEntry>,
        made: &mut Vec<ChildEntry>,
    ) {
        let places = old.as_ref().map(Old::places).unwrap_or_default();
        let node = old.as_ref().map(|old| &old.node);
        if let Some(first) = sources.first_mut() {
            take_separator(first, node, &mut new);
        }
        let nodes = split(self.params, &Entries { sources: &sources, old: node, new: &new }, None);
        let share = |(range, _): (Range<usize>, u64)| {
            let separator = take_separator(&mut sources[range.start], node, &mut new);
            Share { range, weight: None, separator }
        };
        let shares: Vec<Share> = nodes.into_iter().map(share).collect();
        self.place(places, pieces(self.version, level, old, &sources, &new, shares), made);
    }

    /// Places the successors of a node and pends its old places, except for a base that stays in
    /// use.
    fn place(&mut self, old: [Option<Pid>; 2], pieces: Vec<Piece>, made: &mut Vec<ChildEntry>) {
        let base = pieces.iter().find_map(|piece| piece.draft.patch.as_ref()?.base.as_ref()).map(|base| base.pid);
        assert!(base.is_none() || old.contains(&base), "a patch has its predecessor's base, or the predecessor");
        self.delta.pended.extend(old.into_iter().flatten().filter(|pid| Some(*pid) != base));
        for Piece { draft, known, separator } in pieces {
            let child = self.store.add_node(self.meta, self.delta, draft, Class::Young);
            self.store.keep_known(&child, known);
            made.push(ChildEntry { separator, child });
        }
    }
}

impl LeafJob<'_> {
    /// Loads what [`Self::run`] reads into the processor's caches.
    fn load(&self) {
        if let Some(Old { node, known }) = &self.old {
            node.load();
            let hashes = known.iter().flat_map(|known| known.list.leaves());
            black_box(hashes.fold(0, |all, hash| all ^ hash.0[0]));
        }
    }

    fn run(&mut self, params: &Params, version: Version) -> LeafMade {
        let old = self.old.take();
        let mut made = LeafMade { old: old.as_ref().map(Old::places).unwrap_or_default(), ..LeafMade::default() };
        let node = old.as_ref().map(|old| &old.node);
        let old_len = node.map_or(0, Node::len);
        let mut sources = Vec::with_capacity(old_len + self.changes.len());
        let mut weight = old.as_ref().and_then(|old| old.known.as_ref()?.weight);
        let mut next = 0;
        for (index, change) in self.changes.iter().enumerate() {
            let found = node.map_or(Err(0), |node| node.search_from(next, change.key()));
            let (Ok(at) | Err(at)) = found;
            sources.extend((next..at).map(Source::Old));
            next = at + usize::from(found.is_ok());
            if let (Ok(at), Some(node)) = (found, node) {
                weight = weight.map(|weight| weight - u64::from(node.weight(at, params)));
                if let Body::Stored { blob, .. } = node.record(at).body {
                    made.pended.push(blob);
                }
            }
            match change {
                TreeChange::Upsert(new) => {
                    weight = weight.map(|weight| weight + u64::from(new.weight(params)));
                    sources.push(Source::New(index));
                    made.added += u64::from(found.is_err());
                }
                TreeChange::Remove(_) => {
                    assert!(found.is_ok(), "only records that exist are removed");
                    made.removed += 1;
                }
            }
        }
        sources.extend((next..old_len).map(Source::Old));
        let entries = Entries { sources: &sources, old: old.as_ref().map(|old| &old.node), new: self.changes };
        let key = |index: usize| entries.key(sources[index]);
        let separator = |start: usize| rules::separator(key(start - 1), key(start)).to_vec();
        let share = |(range, weight): (Range<usize>, u64)| {
            let separator = if range.start > 0 { separator(range.start) } else { Vec::new() };
            Share { range, weight: Some(weight), separator }
        };
        let shares = split(params, &entries, weight).into_iter().map(share).collect();
        made.pieces = pieces(version, 0, old, &sources, self.changes, shares);
        made
    }
}

/// Splits entries into nodes by the split rule, each with its weight. If the total `weight` is
/// known and one node takes all entries, no entry is weighed.
fn split<E: NewEntry>(params: &Params, entries: &Entries<'_, E>, weight: Option<u64>) -> Vec<(Range<usize>, u64)> {
    let weights = || entries.sources.iter().map(|source| entries.weight(*source, params));
    debug_assert!(weight.is_none_or(|weight| weight == weights().map(u64::from).sum()));
    let len = entries.sources.len();
    if let Some(weight) = weight.filter(|weight| len > 0 && rules::is_one_node(params, *weight)) {
        return vec![(0..len, weight)];
    }
    let weights: Vec<u32> = weights().collect();
    let sum = |range: Range<usize>| weights[range].iter().map(|weight| u64::from(*weight)).sum();
    rules::split(params, &weights).into_iter().map(|range| (range.clone(), sum(range))).collect()
}

/// Removes and returns the separator of an inner node's entry.
fn take_separator(source: &mut Source, old: Option<&Node>, new: &mut Vec<ChildEntry>) -> Vec<u8> {
    match (*source, old) {
        (Source::New(index), _) => std::mem::take(&mut new[index].separator),
        (Source::Old(index), Some(old)) if !old.key(index).is_empty() => {
            *source = Source::New(new.len());
            new.push(ChildEntry { separator: Vec::new(), child: old.child(index) });
            old.key(index).to_vec()
        }
        (Source::Old(_), _) => Vec::new(),
    }
}

/// Makes the nodes of these shares.
fn pieces<E: NewEntry>(
    version: Version,
    level: u8,
    old: Option<Old>,
    sources: &[Source],
    new: &[E],
    shares: Vec<Share>,
) -> Vec<Piece> {
    let (node, known) = old.map(|old| (old.node, old.known)).unzip();
    let list = |node: &Node| known.flatten().map_or_else(|| MerkleList::new(node.entry_hashes()), |known| known.list);
    let mut list = node.as_ref().map(list);
    let entries = |sources| Entries { sources, old: node.as_ref(), new };
    let piece = |Share { range, weight, separator }| {
        let entries = entries(&sources[range]);
        let whole = entries.sources.len() == sources.len();
        let list = list_of(&entries, if whole { list.take() } else { list.clone() });
        let mut draft = Draft::new(version, level, &entries, &list);
        if let Some(node) = node.as_ref().filter(|_| whole) {
            draft.patch = Patch::new(&draft, node, sources);
        }
        draft.patch = draft.patch.take().or_else(|| Patch::whole(&draft));
        Piece { draft, known: Known { list, weight }, separator }
    };
    shares.into_iter().map(piece).collect()
}

/// The Merkle list of the entries. It reuses the predecessor's hashes where possible.
fn list_of<E: NewEntry>(entries: &Entries<'_, E>, old: Option<MerkleList>) -> MerkleList {
    let sources = entries.sources;
    let mut new = entries.new_hashes();
    let Some(mut old) = old else {
        let mut leaves = MerkleList::room(sources.len());
        leaves.extend(new);
        return MerkleList::new(leaves);
    };
    let stays = |(at, source): &(usize, &Source)| **source == Source::Old(*at);
    let in_place = |(at, source): (usize, &Source)| matches!(source, Source::New(_)) || *source == Source::Old(at);
    if sources.len() == old.leaves().len() && sources.iter().enumerate().all(in_place) {
        let replaced = sources.iter().enumerate().filter(|it| !stays(it));
        old.replace(&mut replaced.map(|(at, _)| at).zip(new).collect());
        return old;
    }
    let same = sources.iter().enumerate().take_while(stays).count();
    let mut leaves = MerkleList::room(sources.len());
    leaves.extend(sources.iter().map(|source| match source {
        Source::Old(index) => old.leaves()[*index],
        Source::New(_) => new.next().expect("each new entry has its hash"),
    }));
    MerkleList::grown(leaves, Some((&old, same)))
}

/// Number of keys before `key`. Takes time logarithmic in the result.
fn keys_before(keys: &[&[u8]], key: &[u8]) -> usize {
    let mut end = 1;
    while end <= keys.len() && keys[end - 1] < key {
        end *= 2;
    }
    let start = end / 2;
    start + keys[start..end.min(keys.len())].partition_point(|before| *before < key)
}

#[cfg(test)]
mod tests;
