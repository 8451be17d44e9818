//! The served versions: their nodes on the host, and the pages of their subtrees on the DPUs.
//!
//! Nodes are named by their hashes, and versions share them. A node of the *cut* level of a large
//! tree is the root of a subtree that lies on one DPU as a whole, with a page for each node. Nodes
//! above the cut, and small trees, are on the host only. Every lookup passes them, so they are the
//! hottest ones.
//!
//! Invariants, which `Image::check` states for tests: a node is held as long as a served version
//! reaches it, and counts the references to it. A page lies on a DPU once, counts the parents there
//! that name it, and is never changed. Pages do not overlap. What waits to be written is a page
//! that is placed.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use coppice_engine::{NodePlace, ShardState, View};
use coppice_types::{Digest, Version};
use coppice_verify::{
    hash, merkle,
    proof::{Entry, NodePart, Subtree, Tree, TreeList},
};

use crate::{
    Error, Result,
    layout::{LEVELS_MAX, PageBytes, PageName, encode_page},
    node::{Answer, Node},
    space::Space,
};

#[cfg(test)]
mod check;

/// What is served, and where it may lie.
#[derive(Clone, Debug)]
pub struct ImageOptions {
    /// Level of the subtrees' roots: 0 puts leaves on the DPUs, 1 their parents as well. Less than
    /// [`LEVELS_MAX`].
    pub cut_level: u8,
    /// Trees with fewer records stay on the host.
    pub entries_min: u64,
    /// Most versions that are served; an older one is dropped for a newer one.
    pub versions_max: usize,
    /// Most nodes that the host holds.
    pub nodes_max: usize,
}

impl Default for ImageOptions {
    fn default() -> Self {
        Self { cut_level: 0, entries_min: 100_000, versions_max: 64, nodes_max: 4 << 20 }
    }
}

/// Whether a tree has subtrees on DPUs. A node may be in trees of both kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    Host,
    Pim,
}

#[derive(Debug)]
struct Held {
    node: Arc<Node>,
    /// Parents of the same side, and versions whose tree has it as root.
    refs: u64,
}

/// A page on a DPU.
#[derive(Debug)]
struct Placed {
    name: PageName,
    bytes: u32,
    /// Parents on the same DPU, and 1 if it is the root of a subtree.
    refs: u64,
    children: Vec<Digest>,
}

/// The root of a subtree.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    /// `None` if no DPU has room for it, or its pages can't be made.
    pub(crate) at: Option<(usize, PageName)>,
    /// Decayed number of lookups, as of a batch.
    pub(crate) heat: f64,
    pub(crate) batch: u64,
    /// Whether the host answers for it.
    pub(crate) promoted: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct ServedTree {
    level: u8,
    entries: u64,
    root_hash: Digest,
    root: Option<Digest>,
    side: Side,
}

#[derive(Debug)]
struct Served {
    state: ShardState,
    trees: Vec<ServedTree>,
    /// Whether its pages are on the DPUs.
    published: bool,
}

/// A version whose nodes are being read, a part at a time.
#[derive(Debug)]
pub struct Loading {
    state: ShardState,
    trees: Vec<ServedTree>,
    /// Places of nodes that may have to be read.
    open: Vec<(NodePlace, Side)>,
    fresh: HashMap<(Digest, Side), Arc<Node>>,
    /// The image's `removals` when this was begun.
    removals: u64,
}

impl Loading {
    /// The version.
    #[must_use]
    pub fn state(&self) -> ShardState {
        self.state
    }
}

/// Where the way of a key through one tree leads.
pub(crate) struct Way<'i> {
    /// The nodes on the host, and the child taken in each.
    path: Vec<(&'i Node, usize)>,
    pub(crate) end: End<'i>,
}

pub(crate) enum End<'i> {
    Leaf(&'i Node),
    Unit(Digest),
}

/// The served versions, and the places of their nodes.
#[derive(Debug)]
pub(crate) struct Image {
    options: ImageOptions,
    spaces: Vec<Space>,
    /// DPUs that are out of service: nothing more is placed there.
    bad: Vec<bool>,
    held: HashMap<(Digest, Side), Held>,
    placed: HashMap<(usize, Digest), Placed>,
    units: HashMap<Digest, Unit>,
    versions: BTreeMap<Version, Served>,
    /// Pages that are not written yet, by DPU and address.
    writes: BTreeMap<(usize, u32), Vec<u8>>,
    serial: u32,
    /// Number of versions that were dropped.
    removals: u64,
}

impl Image {
    /// No versions. `memories` has the first and the last address for pages of each DPU.
    pub(crate) fn new(options: ImageOptions, memories: &[(u32, u32)]) -> Result<Self> {
        if usize::from(options.cut_level) >= LEVELS_MAX {
            return Err(Error::Setting("the cut level is too high"));
        }
        if options.versions_max == 0 {
            return Err(Error::Setting("at least one version must be served"));
        }
        Ok(Self {
            options,
            spaces: memories.iter().map(|(start, end)| Space::new(*start, *end)).collect(),
            bad: vec![false; memories.len()],
            held: HashMap::new(),
            placed: HashMap::new(),
            units: HashMap::new(),
            versions: BTreeMap::new(),
            writes: BTreeMap::new(),
            serial: 0,
            removals: 0,
        })
    }

    // Versions.

    /// Begins to add the version of a view. `None` if it is here already.
    pub(crate) fn begin(&self, view: &View<'_>) -> Option<Loading> {
        let state = view.state();
        if self.versions.get(&state.version).is_some_and(|served| served.state == state) {
            return None;
        }
        let (mut trees, mut open) = (Vec::new(), Vec::new());
        for place in view.tree_places() {
            let large = place.entries >= self.options.entries_min && place.level >= self.options.cut_level;
            let side = if large { Side::Pim } else { Side::Host };
            open.extend(place.root.map(|root| (root, side)));
            trees.push(ServedTree {
                level: place.level,
                entries: place.entries,
                root_hash: place.root_hash,
                root: place.root.map(|root| root.hash()),
                side,
            });
        }
        Some(Loading { state, trees, open, fresh: HashMap::new(), removals: self.removals })
    }

    /// Reads up to `nodes` nodes that are not held yet. Returns whether all are read.
    ///
    /// # Errors
    /// `Engine` or `Mismatch` if a node can't be read or the view is another one, `TooLarge`.
    pub(crate) fn gather(&self, loading: &mut Loading, view: &View<'_>, nodes: usize) -> Result<bool> {
        if view.state() != loading.state {
            return Err(Error::Mismatch("the view of a version"));
        }
        if loading.removals != self.removals {
            // What was held at the beginning may be gone.
            match self.begin(view) {
                Some(again) => *loading = again,
                None => return Ok(true),
            }
        }
        let mut read = 0;
        while read < nodes
            && let Some((place, side)) = loading.open.pop()
        {
            let key = (place.hash(), side);
            if self.held.contains_key(&key) || loading.fresh.contains_key(&key) {
                continue;
            }
            if self.held.len() + loading.fresh.len() >= self.options.nodes_max {
                return Err(Error::TooLarge);
            }
            let whole = view.whole_node(&place)?;
            loading.fresh.insert(key, Node::new(whole.part, place.level(), &place.hash())?);
            loading.open.extend(whole.children.into_iter().map(|child| (child, side)));
            read += 1;
        }
        Ok(loading.open.is_empty())
    }

    /// Adds a version whose nodes are all read. It is served once it is published. Another version
    /// with the same number is dropped. Returns `false`, and adds nothing, if a version was dropped
    /// since the nodes were read: some may be missing.
    pub(crate) fn finish(&mut self, loading: Loading) -> bool {
        let Loading { state, trees, open, fresh, removals } = loading;
        assert!(open.is_empty(), "all nodes are read");
        if removals != self.removals {
            return false;
        }
        let mut new_units = Vec::new();
        for tree in &trees {
            tree.root.into_iter().for_each(|root| self.retain((root, tree.side), &fresh, &mut new_units));
        }
        // Behind the new one, which may share its nodes.
        self.remove(state.version);
        self.versions.insert(state.version, Served { state, trees, published: false });
        while self.versions.len() > self.options.versions_max && self.drop_oldest(state.version) {}
        self.place_all(new_units, state.version);
        true
    }

    /// Counts one more reference to a node, and holds it from the first one on.
    fn retain(
        &mut self,
        root: (Digest, Side),
        fresh: &HashMap<(Digest, Side), Arc<Node>>,
        new_units: &mut Vec<Digest>,
    ) {
        let mut open = vec![root];
        while let Some(key) = open.pop() {
            if let Some(held) = self.held.get_mut(&key) {
                held.refs += 1;
                continue;
            }
            let node = Arc::clone(&fresh[&key]);
            open.extend(node.children().map(|child| (child, key.1)));
            if key.1 == Side::Pim && node.level == self.options.cut_level {
                new_units.push(key.0);
            }
            self.held.insert(key, Held { node, refs: 1 });
        }
    }

    /// Drops a version.
    pub(crate) fn remove(&mut self, version: Version) {
        let Some(served) = self.versions.remove(&version) else { return };
        self.removals += 1;
        for tree in served.trees {
            tree.root.into_iter().for_each(|root| self.release((root, tree.side)));
        }
    }

    fn release(&mut self, root: (Digest, Side)) {
        let mut open = vec![root];
        while let Some(key) = open.pop() {
            let held = self.held.get_mut(&key).expect("what is referred to is held");
            held.refs -= 1;
            if held.refs > 0 {
                continue;
            }
            let held = self.held.remove(&key).expect("it was found above");
            open.extend(held.node.children().map(|child| (child, key.1)));
            let unit = if key.1 == Side::Pim { self.units.remove(&key.0) } else { None };
            if let Some((dpu, _)) = unit.and_then(|unit| unit.at) {
                self.release_page(dpu, key.0);
            }
        }
    }

    /// Drops the versions below a boundary.
    pub(crate) fn prune(&mut self, boundary: Version) {
        let gone: Vec<Version> = self.versions.range(..boundary).map(|(version, _)| *version).collect();
        gone.into_iter().for_each(|version| self.remove(version));
    }

    /// Drops the versions above the one that stands.
    pub(crate) fn roll_back(&mut self, to: Version) {
        let gone: Vec<Version> = self.versions.keys().filter(|version| **version > to).copied().collect();
        gone.into_iter().for_each(|version| self.remove(version));
    }

    /// Drops the oldest version other than `kept`. `false` if there is none.
    fn drop_oldest(&mut self, kept: Version) -> bool {
        let oldest = self.versions.keys().find(|version| **version != kept).copied();
        oldest.into_iter().for_each(|version| self.remove(version));
        oldest.is_some()
    }

    /// Drops the versions whose states are not wanted any more.
    pub(crate) fn keep(&mut self, wanted: impl Fn(&ShardState) -> bool) {
        let gone = self.versions.values().map(|served| served.state).filter(|state| !wanted(state));
        gone.collect::<Vec<_>>().into_iter().for_each(|state| self.remove(state.version));
    }

    /// The states that are served, oldest first.
    pub(crate) fn states(&self) -> impl Iterator<Item = ShardState> {
        self.versions.values().filter(|served| served.published).map(|served| served.state)
    }

    /// Number of nodes that the host holds.
    pub(crate) fn nodes(&self) -> usize {
        self.held.len()
    }

    /// The oldest version that is served.
    pub(crate) fn oldest(&self) -> Option<Version> {
        self.versions.iter().find(|(_, served)| served.published).map(|(version, _)| *version)
    }

    /// The pages that wait to be written, by DPU and address. All versions are served once they are
    /// written.
    pub(crate) fn publish(&mut self) -> BTreeMap<(usize, u32), Vec<u8>> {
        self.versions.values_mut().for_each(|served| served.published = true);
        std::mem::take(&mut self.writes)
    }

    // Places.

    /// Places new subtrees, the largest ones first.
    fn place_all(&mut self, units: Vec<Digest>, version: Version) {
        // Nothing is dropped for a subtree that no DPU could hold.
        let sound = self.spaces.iter().zip(&self.bad).filter(|(_, bad)| !**bad);
        let bytes_max = sound.map(|(space, _)| space.all_bytes()).max().unwrap_or(0);
        let bytes = |unit| Some(self.subtree(unit)?.iter().map(|(_, bytes)| bytes).sum::<u64>());
        let sized = |unit| (bytes(unit).filter(|bytes| *bytes <= bytes_max), unit);
        let mut sized: Vec<(Option<u64>, Digest)> = units.into_iter().map(sized).collect();
        sized.sort_unstable_by(|a, b| b.cmp(a));
        for (bytes, unit) in sized {
            let mut at = bytes.and_then(|_| self.place_unit(unit));
            while bytes.is_some() && at.is_none() && self.drop_oldest(version) {
                at = self.place_unit(unit);
            }
            self.units.insert(unit, Unit { at, heat: 0.0, batch: 0, promoted: false });
        }
    }

    /// The nodes of a subtree and the bytes of their pages. `None` if a page can't be made.
    fn subtree(&self, unit: Digest) -> Option<Vec<(Digest, u64)>> {
        let (mut open, mut seen, mut nodes) = (vec![unit], HashSet::new(), Vec::new());
        while let Some(hash) = open.pop() {
            if !seen.insert(hash) {
                continue;
            }
            let node = &self.held[&(hash, Side::Pim)].node;
            nodes.push((hash, PageBytes::of(node)?.bytes as u64));
            open.extend(node.children());
        }
        Some(nodes)
    }

    /// Places a subtree on the DPU that has most of its pages, or else on the least filled one.
    fn place_unit(&mut self, unit: Digest) -> Option<(usize, PageName)> {
        let nodes = self.subtree(unit)?;
        let all: u64 = nodes.iter().map(|(_, bytes)| bytes).sum();
        let mut dpus: Vec<(u64, u64, usize)> = Vec::with_capacity(self.spaces.len());
        for (dpu, space) in self.spaces.iter().enumerate().filter(|(dpu, _)| !self.bad[*dpu]) {
            let here = nodes.iter().filter(|(hash, _)| self.placed.contains_key(&(dpu, *hash)));
            let shared: u64 = here.map(|(_, bytes)| bytes).sum();
            if all - shared <= space.free_bytes() {
                dpus.push((shared, space.free_bytes(), dpu));
            }
        }
        dpus.sort_unstable_by(|a, b| (b.0, b.1, a.2).cmp(&(a.0, a.1, b.2)));
        dpus.into_iter().find_map(|(_, _, dpu)| Some((dpu, self.place(dpu, unit)?)))
    }

    /// Places a node's page, and those below it. Without room for all, none is placed.
    fn place(&mut self, dpu: usize, hash: Digest) -> Option<PageName> {
        if let Some(placed) = self.placed.get_mut(&(dpu, hash)) {
            placed.refs += 1;
            return Some(placed.name);
        }
        let node = Arc::clone(&self.held[&(hash, Side::Pim)].node);
        let page = PageBytes::of(&node)?;
        let children: Vec<Digest> = node.children().collect();
        let mut names = Vec::with_capacity(children.len());
        for child in &children {
            match self.place(dpu, *child) {
                Some(name) => names.push(name),
                None => break,
            }
        }
        let bytes = page.bytes as u32;
        let at = if names.len() == children.len() { self.spaces[dpu].take(bytes) } else { None };
        let Some(at) = at else {
            children[..names.len()].iter().for_each(|child| self.release_page(dpu, *child));
            return None;
        };
        // A number comes again after 2^32 pages, long after the one before is overwritten.
        self.serial = self.serial.wrapping_add(1);
        let name = PageName::new(&page, at, self.serial);
        self.writes.insert((dpu, at), encode_page(&node, &page, self.serial, &names));
        self.placed.insert((dpu, hash), Placed { name, bytes, refs: 1, children });
        Some(name)
    }

    fn release_page(&mut self, dpu: usize, root: Digest) {
        let mut open = vec![root];
        while let Some(hash) = open.pop() {
            let placed = self.placed.get_mut(&(dpu, hash)).expect("what is referred to is placed");
            placed.refs -= 1;
            if placed.refs > 0 {
                continue;
            }
            let placed = self.placed.remove(&(dpu, hash)).expect("it was found above");
            let at = placed.name.address();
            self.spaces[dpu].give(at, placed.bytes);
            self.writes.remove(&(dpu, at));
            open.extend(placed.children);
        }
    }

    /// Takes a DPU out of service. The host answers for its subtrees.
    pub(crate) fn take_out(&mut self, dpu: usize) {
        self.bad[dpu] = true;
    }

    pub(crate) fn is_bad(&self, dpu: usize) -> bool {
        self.bad[dpu]
    }

    /// The subtree that has this root.
    pub(crate) fn unit(&self, hash: &Digest) -> Option<&Unit> {
        self.units.get(hash)
    }

    pub(crate) fn unit_mut(&mut self, hash: &Digest) -> Option<&mut Unit> {
        self.units.get_mut(hash)
    }

    /// The promoted subtrees.
    pub(crate) fn promoted(&self) -> impl Iterator<Item = (&Digest, &Unit)> {
        self.units.iter().filter(|(_, unit)| unit.promoted)
    }

    // Lookups.

    /// The trees of a published state, youngest first.
    pub(crate) fn trees(&self, state: &ShardState) -> Option<&[ServedTree]> {
        let served = self.versions.get(&state.version)?;
        (served.published && served.state == *state).then_some(&served.trees)
    }

    /// The way of a key through the host's part of a tree. `None` for an empty tree.
    pub(crate) fn way(&self, tree: &ServedTree, key: &[u8]) -> Option<Way<'_>> {
        let mut hash = tree.root?;
        let mut path = Vec::with_capacity(usize::from(tree.level) + 1);
        loop {
            let node = &*self.held[&(hash, tree.side)].node;
            if tree.side == Side::Pim && node.level == self.options.cut_level {
                return Some(Way { path, end: End::Unit(hash) });
            }
            if node.level == 0 {
                return Some(Way { path, end: End::Leaf(node) });
            }
            let index = node.child_of(key);
            path.push((node, index));
            hash = node.child(index);
        }
    }

    /// What the host answers for a subtree.
    pub(crate) fn answer_unit(&self, unit: Digest, key: &[u8]) -> Answer {
        let mut path = Vec::new();
        let mut node = &*self.held[&(unit, Side::Pim)].node;
        while node.level > 0 {
            let index = node.child_of(key);
            path.push((node, index));
            node = &self.held[&(node.child(index), Side::Pim)].node;
        }
        finish(&path, node.answer_leaf(key))
    }
}

/// Adds the nodes above an answer.
fn finish(path: &[(&Node, usize)], answer: Answer) -> Answer {
    path.iter().rev().fold(answer, |below, (node, index)| node.answer_above(*index, below))
}

impl Way<'_> {
    /// The answer of the whole tree, given that of the end.
    pub(crate) fn finish(&self, answer: Answer) -> Answer {
        finish(&self.path, answer)
    }
}

/// The proof of one key from the answers of the trees, youngest first. Trees behind the one that
/// has the key stand with their hashes.
pub(crate) fn proof(trees: &[ServedTree], mut answer: impl FnMut(usize) -> Option<Answer>) -> Vec<u8> {
    let mut answered = false;
    let mut parts = Vec::with_capacity(trees.len());
    for (number, tree) in trees.iter().enumerate() {
        let found = if answered { None } else { answer(number) };
        answered |= found.as_ref().is_some_and(|found| found.found);
        let root = found.map_or(Subtree::Hash(tree.root_hash), |found| Subtree::Expanded(found.part));
        parts.push(Tree { level: tree.level, entries: tree.entries, root });
    }
    TreeList { trees: parts }.encode()
}

/// The hash of a node, from a part of it.
pub(crate) fn part_hash(part: &NodePart<'_>, level: u8) -> Option<Digest> {
    let mut shown = Vec::with_capacity(part.entries.len());
    for (index, entry) in &part.entries {
        let hash = match entry {
            Entry::Record { key, stamp, body } => hash::record_hash(key, *stamp, body),
            Entry::Child { separator, child: Subtree::Hash(hash) } => hash::entry_hash(separator, hash),
            Entry::Child { separator, child: Subtree::Expanded(below) } => {
                hash::entry_hash(separator, &part_hash(below, level.checked_sub(1)?)?)
            }
        };
        shown.push((u64::from(*index), hash));
    }
    let root = merkle::list_root(part.count.into(), &shown, &part.hashes).ok()?;
    Some(match level {
        0 => hash::leaf_node_hash_of(part.count, &root),
        level => hash::inner_node_hash_of(level, part.count, &root),
    })
}
