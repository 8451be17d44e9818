//! The walk from each root to the records, in several passes over the keys.
//!
//! A pass covers a range of keys and remembers the nodes and values that it has checked. More
//! passes need less memory.

use std::{
    collections::{BTreeMap, HashMap, HashSet, hash_map::Entry},
    hash::{BuildHasher, Hash},
};

use coppice_types::Digest;
use coppice_verify::{hash, rules::Filter};

use super::report::Report;
use crate::{
    Error, Result,
    cache::shortcuts::{self, Gathered},
    files::values::{self, RecordKind, StoredValue},
    meta::{Meta, Tree, TreeId, VersionRecord},
    node::{Body, Child, Node},
    place::{
        page::{PageFile, Pid, PidSet},
        refs::{BlobRef, ValueRef, record_bytes},
    },
    store::{Store, filters::decode_filter, line::Line},
};

/// Limit on the number of nodes and values that a pass should remember, in about 60 MB.
pub(super) const PLACES_MAX: u64 = 1 << 20;
/// Limit on the number of passes. The data that determines their number is not trusted either.
const PASSES_MAX: u64 = 256;
/// The largest trees of this many versions, and this many merge outputs, determine where passes
/// end.
const CUT_TREES_MAX: usize = 16;
/// A range of keys. It has no end if `high` is `None`.
#[derive(Clone, Copy, Debug, Hash)]
struct Keys<'k> {
    low: &'k [u8],
    high: Option<&'k [u8]>,
}

impl<'k> Keys<'k> {
    fn has(self, key: &[u8]) -> bool {
        key >= self.low && self.high.is_none_or(|high| key < high)
    }

    fn meets(self, other: Keys<'_>) -> bool {
        let before = |low: &[u8], high: Option<&[u8]>| high.is_none_or(|high| low < high);
        before(self.low, other.high) && before(other.low, self.high)
    }

    /// The range of a child's keys, if this is the range of the node's.
    fn of_child<'n>(self, node: &'n Node, index: usize) -> Keys<'n>
    where
        'k: 'n,
    {
        let low = if index == 0 { self.low } else { node.key(index) };
        let high = if index + 1 < node.len() { Some(node.key(index + 1)) } else { self.high };
        Keys { low, high }
    }
}

/// The ranges between the cuts.
fn passes(cuts: &[Vec<u8>]) -> impl Iterator<Item = Keys<'_>> {
    let highs = cuts.iter().map(|cut| Some(cut.as_slice())).chain([None]);
    [[].as_slice()].into_iter().chain(cuts.iter().map(Vec::as_slice)).zip(highs).map(|(low, high)| Keys { low, high })
}

/// The facts that a pass remembers about a sound node.
#[derive(Debug)]
struct Sound {
    /// Fingerprint of the parent's reference.
    child: Fingerprint,
    /// Fingerprint of the range in which the node was last checked.
    keys: Fingerprint,
    /// Number of the node's records in the pass.
    entries: u64,
    /// First and last key below the node, if they were needed.
    ends: Option<Box<[Vec<u8>; 2]>>,
}

/// A 64-bit hash used in place of the value.
type Fingerprint = u64;

type Checked<T> = std::result::Result<T, Unsound>;

/// A defect of a node; `None` if the defect is in a node below and was already reported.
#[derive(Debug)]
struct Unsound(Option<Error>);

impl From<Error> for Unsound {
    fn from(error: Error) -> Self {
        Self(Some(error))
    }
}

/// Checks that the first and the last key below a sound node are in a range.
fn check_ends(
    store: &Store,
    child: &Child,
    level: u8,
    keys: Keys<'_>,
    ends: &mut Option<Box<[Vec<u8>; 2]>>,
) -> Checked<()> {
    let ends = match ends {
        Some(ends) => ends,
        None => ends.insert(Box::new([end_of(store, child, level, false)?, end_of(store, child, level, true)?])),
    };
    if ends.iter().all(|key| keys.has(key)) { Ok(()) } else { Err(unbounded(child)) }
}

/// The first or last key below a node.
fn end_of(store: &Store, child: &Child, level: u8, last: bool) -> Result<Vec<u8>> {
    let (mut child, mut level) = (*child, level);
    loop {
        let node = store.read_node(&child, level)?;
        let index = if last { node.len() - 1 } else { 0 };
        if level == 0 {
            return Ok(node.key(index).to_vec());
        }
        (child, level) = (node.child(index), level - 1);
    }
}

fn unbounded(child: &Child) -> Unsound {
    let (file, page) = (child.pid.file().name(), Some(child.pid.first()));
    Error::corrupted(file, page, "separators do not bound the children").into()
}

pub(super) struct Checker<'c> {
    pub(super) line: Line<'c>,
    pub(super) report: &'c mut Report,
    /// Limit on the number of nodes and values that a pass should remember.
    places_max: u64,
    /// Nodes that this pass has reached.
    nodes: HashMap<Pid, Sound>,
    /// Values that this pass has read, with the fingerprints of their records.
    values: HashMap<ValueRef, Fingerprint>,
    /// Nodes that are not sound.
    unsound: HashSet<Pid>,
    /// Whether rows could not be read.
    rows_lost: bool,
    pub(super) reached: PidSet,
    /// Bases of nodes that are stored as patches.
    pub(super) bases: PidSet,
    /// Records of the value log other than values, with their lengths.
    pub(super) blobs: HashMap<ValueRef, u32>,
    /// Bytes of values by segment.
    pub(super) live: BTreeMap<u32, u64>,
    /// Frozen trees whose filters and shortcuts are checked.
    trees: HashSet<(TreeId, Option<BlobRef>)>,
}

impl<'c> Checker<'c> {
    pub(super) fn new(meta: &'c Meta, store: &'c Store, report: &'c mut Report, places_max: u64) -> Self {
        Self {
            line: Line { meta, store },
            report,
            places_max,
            nodes: HashMap::new(),
            values: HashMap::new(),
            unsound: HashSet::new(),
            rows_lost: false,
            reached: PidSet::default(),
            bases: PidSet::default(),
            blobs: HashMap::new(),
            live: BTreeMap::new(),
            trees: HashSet::new(),
        }
    }

    pub(super) fn check(mut self) {
        self.check_rows();
        let mut entries: Vec<Option<u64>> = Vec::new();
        let cuts = self.cuts();
        for (number, pass) in passes(&cuts).enumerate() {
            let mut at = 0;
            self.each_tree(|checker, tree, _| {
                if number == 0 {
                    entries.push(Some(0));
                }
                // A block that could not be read in the first pass has no sums.
                if let Some(sum) = entries.get_mut(at) {
                    *sum = sum.and_then(|before: u64| before.checked_add(checker.walk_tree(tree, pass)?));
                }
                at += 1;
            });
            (self.nodes, self.values) = Default::default();
        }
        let mut entries = entries.into_iter();
        self.each_tree(|checker, tree, frozen| {
            if let Some(entries) = entries.next().flatten() {
                checker.check_tree(tree, frozen, entries);
            }
        });
        self.check_journals();
        // The pages below an unsound node are unknown, and so are those of unread rows.
        if self.unsound.is_empty() && !self.rows_lost {
            self.check_pages();
            self.check_segments();
        }
    }

    /// Checks the digest of each version, and that every block of rows can be read.
    fn check_rows(&mut self) {
        for version in self.line.from(0) {
            let version = match version {
                Ok(version) => version,
                Err(error) => {
                    self.rows_lost = true;
                    self.report.error(error);
                    continue;
                }
            };
            self.report.versions += 1;
            let digests: Vec<Digest> = version.trees.iter().map(|tree| tree.digest).collect();
            if hash::shard_digest(&digests) != version.digest {
                self.report.finding("meta", None, format!("digest of version {}", version.stamp));
            }
        }
        let blocks = &self.line.meta.blocks;
        blocks.values().for_each(|block| self.note_blob(block.at));
    }

    /// Calls a function with every tree of every version that can be read, and with the outputs of
    /// merges, always in the same order. Tells it whether the tree should be frozen.
    fn each_tree(&mut self, mut act: impl FnMut(&mut Self, &Tree, bool)) {
        for version in self.line.from(0).flatten() {
            version.trees.iter().enumerate().for_each(|(at, tree)| act(self, tree, at > 0));
        }
        self.line.meta.merges.values().for_each(|merge| act(self, &merge.output, true));
    }

    /// Hashes by a map's random key, which the author of a forged directory cannot know.
    fn fingerprint(&self, of: impl Hash) -> Fingerprint {
        self.unsound.hasher().hash_one(of)
    }

    /// The keys between passes, chosen so that each pass remembers about `places_max` nodes and
    /// values.
    fn cuts(&self) -> Vec<Vec<u8>> {
        let patches = self.line.meta.patches().values().map(|used| u64::from(*used)).sum();
        let value_bytes_min = record_bytes(self.line.meta.params.inline_bytes);
        let value_bytes = self.line.meta.segments.values().map(|segment| segment.live).fold(0, u64::saturating_add);
        let used = |file| self.line.meta.space(file).used_pages();
        let places = [used(PageFile::Index), used(PageFile::Data), patches, value_bytes / value_bytes_min];
        let places = places.into_iter().fold(0, u64::saturating_add);
        let passes = places.div_ceil(self.places_max).clamp(1, PASSES_MAX) as usize;
        if passes == 1 {
            return Vec::new();
        }
        // Keys come and go, so the largest trees of several versions count, and so do the outputs
        // of merges that are not installed.
        let largest = |version: &VersionRecord| version.trees.iter().max_by_key(|tree| tree.entries).cloned();
        let meta = self.line.meta;
        let held = meta.versions.values().step_by(meta.versions.len().div_ceil(CUT_TREES_MAX)).chain([meta.tip()]);
        let folded = meta.blocks.values().step_by(meta.blocks.len().div_ceil(CUT_TREES_MAX).max(1));
        let folded = folded.filter_map(|block| largest(self.line.store.rows(block).ok()?.first()?));
        let trees = held.filter_map(largest).chain(folded);
        let trees = trees.chain(meta.merges.values().map(|merge| merge.output.clone()).take(CUT_TREES_MAX));
        let mut separators: Vec<Vec<u8>> = trees.flat_map(|tree| self.separators(&tree, 8 * passes)).collect();
        separators.sort_unstable();
        let at = |pass: usize| separators.get(pass * separators.len() / passes).cloned();
        let mut cuts: Vec<Vec<u8>> = (1..passes).filter_map(at).collect();
        cuts.dedup();
        cuts
    }

    /// About `count` separators of a tree, spread evenly. They are those of the highest level that
    /// has enough. Unreadable nodes are left to the passes.
    fn separators(&self, tree: &Tree, count: usize) -> Vec<Vec<u8>> {
        let mut nodes: Vec<(Vec<u8>, Child)> = tree.root.map(|root| (Vec::new(), root)).into_iter().collect();
        let mut level = tree.level;
        while level > 0 && nodes.len() < count {
            let known =
                nodes.iter().filter_map(|(low, child)| Some((low, self.line.store.read_node(child, level).ok()?)));
            let below = known.flat_map(|(low, node)| {
                let separator = |index| if index == 0 { low.clone() } else { node.key(index).to_vec() };
                (0..node.len()).map(|index| (separator(index), node.child(index))).collect::<Vec<_>>()
            });
            (nodes, level) = (below.collect(), level - 1);
        }
        nodes.into_iter().map(|(separator, _)| separator).filter(|separator| !separator.is_empty()).collect()
    }

    fn check_journals(&mut self) {
        let meta = self.line.meta;
        for ((version, id), blob) in &meta.journals {
            self.note_blob(*blob);
            if let Err(error) = self.line.store.values.read(RecordKind::Journal, *blob) {
                self.report.error(error);
            }
            self.report.journals += 1;
            let known = meta.versions.get(id).is_none_or(|record| record.stamp.version == *version);
            if !known {
                self.report.finding("meta", None, format!("the journal of version {version} belongs to another one"));
            }
        }
    }

    /// Checks all nodes of a tree whose ranges meet the pass. Returns the number of records in it;
    /// `None` if the tree is damaged.
    fn walk_tree(&mut self, tree: &Tree, pass: Keys<'_>) -> Option<u64> {
        let all = Keys { low: &[], high: None };
        tree.root.map_or(Some(0), |root| self.check_node(&root, tree.level, all, pass))
    }

    /// Checks a tree whose nodes are sound and have this many records.
    fn check_tree(&mut self, tree: &Tree, frozen: bool, entries: u64) {
        let root_hash = tree.root.map_or_else(hash::empty_root_hash, |root| root.hash);
        let sound = entries == tree.entries && hash::tree_digest(tree.level, entries, &root_hash) == tree.digest;
        if !sound || frozen != tree.filter.is_some() {
            self.report.finding("meta", None, format!("tree of {} entries and digest {}", tree.entries, tree.digest));
            return;
        }
        tree.blobs().for_each(|blob| self.note_blob(blob));
        if frozen
            && self.trees.insert((tree.id(), tree.shortcuts))
            && let Err(error) = self.check_blobs(tree)
        {
            self.report.error(error);
        }
    }

    /// Checks a node and all nodes below it, once in each pass, and compares the references of its
    /// parents. All keys of the node must be in `keys`. So no node occurs twice in a tree, and the
    /// work is bounded by the number of pages.
    fn check_node(&mut self, child: &Child, level: u8, keys: Keys<'_>, pass: Keys<'_>) -> Option<u64> {
        if self.unsound.contains(&child.pid) {
            return None;
        }
        let of_child = self.fingerprint((child.checksum, child.hash, level));
        let of_keys = self.fingerprint(keys);
        let checked = match self.nodes.get_mut(&child.pid) {
            Some(known) if known.child != of_child => {
                let (file, page) = (child.pid.file().name(), Some(child.pid.first()));
                self.report.finding(file, page, "its parents disagree about it");
                return None;
            }
            Some(known) if known.keys == of_keys => return Some(known.entries),
            Some(known) => check_ends(self.line.store, child, level, keys, &mut known.ends).map(|()| {
                known.keys = of_keys;
                known.entries
            }),
            None => self.read_node(child, level, keys, pass).inspect(|entries| {
                let sound = Sound { child: of_child, keys: of_keys, entries: *entries, ends: None };
                self.nodes.insert(child.pid, sound);
            }),
        };
        match checked {
            Ok(entries) => return Some(entries),
            Err(Unsound(Some(error))) => self.report.error(error),
            Err(Unsound(None)) => (),
        }
        self.unsound.insert(child.pid);
        None
    }

    /// Reads and checks a node. Returns the number of its records in the pass.
    fn read_node(&mut self, child: &Child, level: u8, keys: Keys<'_>, pass: Keys<'_>) -> Checked<u64> {
        let node = self.line.store.read_node(child, level)?;
        if node.hash() != child.hash {
            let (file, page) = (child.pid.file().name(), Some(child.pid.first()));
            return Err(Error::corrupted(file, page, "its hash is not what its parent says").into());
        }
        if let Some(base) = node.base() {
            self.bases.insert(base.pid);
        }
        if self.reached.insert(child.pid) {
            self.report.nodes += 1;
        }
        if level == 0 {
            let among = keys.has(node.key(0)) && keys.has(node.key(node.len() - 1));
            return if among { Ok(self.check_records(&node, child.pid, pass)) } else { Err(unbounded(child)) };
        }
        // Every child has records, so only the first separator may equal the lowest key.
        if !(1..node.len()).all(|index| keys.has(node.key(index)) && node.key(index) > keys.low) {
            return Err(unbounded(child));
        }
        let mut entries = 0;
        for index in 0..node.len() {
            let below = keys.of_child(&node, index);
            if below.meets(pass) {
                entries += self.check_node(&node.child(index), level - 1, below, pass).ok_or(Unsound(None))?;
            }
        }
        Ok(entries)
    }

    /// Notes a record of the value log that is not a value.
    fn note_blob(&mut self, blob: BlobRef) {
        self.blobs.insert(blob.at, blob.len);
    }

    /// Checks the records of a pass and returns their number. Versions of a leaf refer to the same
    /// values, so each value is read only once.
    fn check_records(&mut self, leaf: &Node, pid: Pid, pass: Keys<'_>) -> u64 {
        let mut records = 0;
        for index in (0..leaf.len()).filter(|index| pass.has(leaf.key(*index))) {
            records += 1;
            let record = leaf.record(index);
            let value = match record.body {
                Body::Tombstone => continue,
                Body::Inline { hash, value } => (hash, Ok(value.to_vec())),
                Body::Stored { hash, len, blob } => {
                    let named = self.fingerprint((blob.len, record.hash()));
                    match self.values.entry(blob.at) {
                        Entry::Occupied(entry) if *entry.get() == named => continue,
                        Entry::Occupied(_) => {
                            let what = format!("record {index} has its value where something else lies");
                            self.report.finding(pid.file().name(), Some(pid.first()), what);
                            continue;
                        }
                        Entry::Vacant(entry) => {
                            entry.insert(named);
                            self.report.values += 1;
                            *self.live.entry(blob.at.segment).or_default() += record_bytes(blob.len);
                        }
                    }
                    let (value, erasures) = (StoredValue { len, blob }, &self.line.meta.erasures);
                    if erasures.has(record.key) {
                        match self.line.store.values.is_erased(value, record.key, record.stamp) {
                            Ok(false) if erasures.is_done(record.key) => {
                                let what = format!("record {index} has a value that should be erased");
                                self.report.finding(pid.file().name(), Some(pid.first()), what);
                            }
                            Ok(_) => {}
                            Err(error) => self.report.error(error),
                        }
                        continue;
                    }
                    (hash, self.line.store.values.read_of(value, record.key, record.stamp))
                }
            };
            match value {
                (hash, Ok(value)) if hash::sha256(&value) == hash => {}
                (_, Ok(_)) => {
                    let what = format!("record {index} has a different value than its hash says");
                    self.report.finding(pid.file().name(), Some(pid.first()), what);
                }
                (_, Err(error)) => self.report.error(error),
            }
        }
        self.report.records += records;
        records
    }

    /// Computes a frozen tree's filter and shortcuts again, and compares them.
    fn check_blobs(&mut self, tree: &Tree) -> Result<()> {
        let mut filter = Filter::new(&self.line.meta.params, tree.entries);
        // The check takes as much memory as the merge that made them.
        let room = tree.shortcuts.map_or(0, |_| tree.entries.min(shortcuts::RECORDS_MAX)) as usize;
        let (mut gathered, mut filter_hashes) = (Gathered::with_room(room), Vec::with_capacity(room));
        let mut open: Vec<(Child, u8)> = tree.root.map(|root| (root, tree.level)).into_iter().collect();
        while let Some((child, level)) = open.pop() {
            let node = self.line.store.read_node(&child, level)?;
            for index in 0..node.len() {
                match level.checked_sub(1) {
                    None => {
                        let filter_hash = hash::filter_hash(node.key(index));
                        filter.insert_hash(filter_hash);
                        if tree.shortcuts.is_some() {
                            filter_hashes.push(filter_hash);
                            gathered.extend(Gathered::entry(filter_hash, &node.record(index).body));
                        }
                    }
                    Some(below) => open.push((node.child(index), below)),
                }
            }
        }
        let mut stranger = |blob: BlobRef, what: &str| {
            self.report.finding(values::file_name(blob.at.segment), Some(u64::from(blob.at.offset)), what);
        };
        if let Some(blob) = tree.filter {
            let bytes = self.line.store.values.read(RecordKind::Filter, blob)?;
            if decode_filter(&bytes).as_ref() != Some(&filter) {
                stranger(blob, "the filter is not that of its tree");
            }
        }
        if let Some(blob) = tree.shortcuts {
            let bytes = self.line.store.values.read(RecordKind::Shortcuts, blob)?;
            let mut expected = gathered.pages(&filter_hashes).unwrap_or_default();
            if bytes.len() == expected.len() {
                shortcuts::seal(&mut expected, blob.at);
            }
            if bytes != expected {
                stranger(blob, "the shortcuts are not those of its tree");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::{OpenMode, Rng, SimRng, SimStorage, Workers};
    use coppice_types::{Change, Operation, Params, ShardId, Stamp, Version};

    use super::*;
    use crate::{
        Engine, MergeProgress, Options, Position,
        cache::Class,
        check::fsck,
        files::{meta_log::MetaLog, superblock},
        meta::Delta,
        node::{ChildEntry, Draft, HashedRecord, LeafRecord},
        testing,
    };

    /// A few pages can refer to one leaf an astronomical number of times. A receiver must neither
    /// walk nor count all of them.
    #[test]
    fn a_node_that_stands_under_many_separators_is_one_finding() {
        let sim = SimStorage::new();
        // After some flushes, the Meta log is rewritten from the changed table.
        let options = Options { meta_compaction_bytes_min: 0, ..Options::default() };
        let mut engine =
            Engine::create(sim.storage(), ShardId(0), Params::default(), options).expect("an empty directory");
        let put =
            |n: u64| Operation { key: format!("{n:04}").into_bytes().into(), change: Change::Put(vec![1; 9].into()) };
        testing::commit(&mut engine, 1, (0..20).map(put).collect());
        let id = engine.meta.tip().id;
        let mut tree = engine.meta.tip().trees[0].clone();
        assert_eq!((tree.level, tree.entries), (0, 20));
        for level in 1..=24 {
            let child = tree.root.expect("it has records");
            let separator = |n: u8| if n == 0 { Vec::new() } else { vec![0, n] };
            let entries: Vec<ChildEntry> = (0..50).map(|n| ChildEntry { separator: separator(n), child }).collect();
            let draft = Draft::all_new(Version(1), level, &entries);
            let root = engine.store.add_node(&mut engine.meta, &mut Delta::default(), draft, Class::Old);
            let entries = tree.entries.saturating_mul(50);
            let digest = hash::tree_digest(level, entries, &root.hash);
            tree = Tree { root: Some(root), level, entries, digest, ..tree };
        }
        let record = engine.meta.versions.get_mut(&id).expect("it is decided");
        record.digest = hash::shard_digest(&[tree.digest]);
        record.trees = vec![tree];
        (1..100).for_each(|index| engine.flush(Position { index, term: 1 }, b"").expect("room"));
        drop(engine);
        let report = fsck(sim.storage()).expect("a directory");
        let bounds = report.findings.iter().filter(|finding| finding.to_string().contains("do not bound")).count();
        assert!(bounds == 1 && report.nodes < 50, "{report:?}");
    }

    /// A directory with several trees and versions, a merge with shortcuts, patches, and values in
    /// leaves and in the log.
    fn with_much(seed: u64, emptied: bool) -> SimStorage {
        let sim = SimStorage::new();
        let params =
            Params { capacity: 64, key_bytes_max: 16, node_bytes: 512, fanout: 8, tier_ratio: 2, ..Params::default() };
        let options = Options { old_cache_bytes: 0, workers: Workers::Inline, ..Options::default() };
        let mut engine = Engine::create(sim.storage(), ShardId(0), params, options).expect("an empty directory");
        let mut rng = SimRng::new(seed);
        for version in 1..90 {
            let mut operations = BTreeMap::new();
            // In the end all keys are deleted, and the tombstones are merged away.
            let last = if emptied { 60 } else { 90 };
            for n in (0..40).filter(|_| version >= last) {
                let key = format!("{:03}", (40 * (version - last) + n) % 400);
                operations.insert(key.into_bytes(), Change::Delete);
            }
            for _ in (0..9).filter(|_| version < last) {
                let len = [3, 300][rng.below(2) as usize];
                let change =
                    if rng.chance(200) { Change::Delete } else { Change::Put(vec![rng.next_u64() as u8; len].into()) };
                operations.insert(format!("{:03}", rng.below(400)).into_bytes(), change);
            }
            testing::commit(
                &mut engine,
                version,
                operations.into_iter().map(|(key, change)| Operation { key: key.into(), change }).collect(),
            );
            while engine.merge_step(1000).expect("merges") == MergeProgress::Working {}
            if version % 7 == 0 {
                engine.flush(Position { index: version, term: 1 }, b"").expect("room");
            }
        }
        engine.flush(Position { index: 90, term: 1 }, b"").expect("room");
        sim
    }

    /// The report for passes with this limit, their number, and the most that one of them
    /// remembers.
    fn check_in_passes(sim: &SimStorage, places_max: u64) -> Result<(Report, usize, usize)> {
        let storage = sim.storage();
        let file = storage.open(superblock::FILE, OpenMode::Existing).map_err(Error::io("open", superblock::FILE))?;
        let (newest, _) = superblock::newest(superblock::read_slots(&*file)?)?;
        let (_, meta) = MetaLog::open(&*storage, &newest)?;
        let store = Store::open(&storage, &Options::default(), &meta, OpenMode::Existing)?;
        let mut report = Report::default();
        let mut checker = Checker::new(&meta, &store, &mut report, places_max);
        let cuts = checker.cuts();
        let remembered = passes(&cuts).map(|pass| {
            (checker.nodes, checker.values) = Default::default();
            meta.versions.values().flat_map(|version| &version.trees).for_each(|tree| {
                checker.walk_tree(tree, pass);
            });
            checker.nodes.len() + checker.values.len()
        });
        let remembered = remembered.max().unwrap_or_default();
        let mut report = Report::default();
        Checker::new(&meta, &store, &mut report, places_max).check();
        Ok((report, cuts.len() + 1, remembered))
    }

    #[test]
    fn passes_find_what_one_finds_and_remember_less() {
        let mut damaged = 0;
        for seed in 0..3 {
            let sim = with_much(seed, seed == 2);
            let (whole, passes, all) = check_in_passes(&sim, u64::MAX).expect("it is sound");
            assert!(whole.is_clean() && passes == 1 && whole.values > 100, "{whole:?}");
            for (places_max, parts) in [(1, 3), (50, 3), (400, 1)] {
                let (report, passes, most) = check_in_passes(&sim, places_max).expect("it is sound");
                assert_eq!(report, whole);
                assert!(passes > parts && most < all / parts, "{most} of {all}, {passes} passes for {places_max}");
            }
            let mut rng = SimRng::new(seed);
            for name in sim.storage().list("").expect("a directory") {
                for _ in 0..4 {
                    let len =
                        sim.storage().open(&name, OpenMode::Existing).and_then(|file| file.len()).expect("a file");
                    let (at, bit) = (rng.below(len.max(1)), rng.below(8) as u8);
                    if len == 0 {
                        continue;
                    }
                    sim.flip_bit(&name, at, bit);
                    let clean = |places_max| check_in_passes(&sim, places_max).map(|(report, ..)| report.is_clean());
                    let (in_one, in_many) = (clean(u64::MAX).ok(), clean(50).ok());
                    assert_eq!(in_one, in_many, "{name} at {at}");
                    damaged += u32::from(in_one == Some(false));
                    sim.flip_bit(&name, at, bit);
                }
            }
        }
        assert!(damaged > 10, "only {damaged} of the flipped bits were found");
    }

    /// A child whose neighbours have changed is checked against its new bounds.
    #[test]
    fn a_node_under_other_keys_is_checked_again() {
        let sim = with_much(1, false);
        let storage = sim.storage();
        let file = storage.open(superblock::FILE, OpenMode::Existing).expect("a directory");
        let (newest, _) = superblock::newest(superblock::read_slots(&*file).expect("read")).expect("one is valid");
        let (_, meta) = MetaLog::open(&*storage, &newest).expect("a log");
        let store = Store::open(&storage, &Options::default(), &meta, OpenMode::Existing).expect("a store");
        let tree = meta.tip().trees.iter().max_by_key(|tree| tree.entries).expect("it has trees");
        let root = tree.root.expect("it has records");
        let all = Keys { low: &[], high: None };
        for (keys, sound) in [
            (all, true),
            (Keys { low: b"0", high: Some(b"5") }, true),
            (Keys { low: b"0", high: Some(b"2") }, false),
            (Keys { low: b"2", high: None }, false),
        ] {
            let mut report = Report::default();
            let mut checker = Checker::new(&meta, &store, &mut report, u64::MAX);
            assert_eq!(checker.check_node(&root, tree.level, all, all), Some(tree.entries));
            assert_eq!(checker.check_node(&root, tree.level, keys, all).is_some(), sound, "{keys:?}");
            assert_eq!(report.is_clean(), sound);
        }
    }

    #[test]
    fn keys_are_in_a_range_from_its_low_key_up_to_but_without_its_high_key() {
        let (closed, open) = (Keys { low: b"b", high: Some(b"d") }, Keys { low: b"b", high: None });
        assert_eq!([&b"a"[..], b"b", b"c", b"d", b"e"].map(|key| closed.has(key)), [false, true, true, false, false]);
        assert_eq!([&b"a"[..], b"b", b"z"].map(|key| open.has(key)), [false, true, true]);
        let meets = |low: &[u8], high: Option<&[u8]>| {
            let other = Keys { low, high };
            assert_eq!(closed.meets(other), other.meets(closed));
            closed.meets(other)
        };
        assert!(meets(b"", None) && meets(b"c", Some(b"cc")) && meets(b"", Some(b"bb")) && meets(b"c", None));
        assert!(!meets(b"", Some(b"b")) && !meets(b"d", None) && !meets(b"e", Some(b"f")));
    }

    #[test]
    fn passes_cover_all_keys_once() {
        let told = |cuts: &[&[u8]]| {
            let cuts: Vec<Vec<u8>> = cuts.iter().map(|cut| cut.to_vec()).collect();
            passes(&cuts).map(|keys| (keys.low.to_vec(), keys.high.map(<[u8]>::to_vec))).collect::<Vec<_>>()
        };
        let (a, b) = (|| b"a".to_vec(), || b"b".to_vec());
        assert_eq!(told(&[]), [(vec![], None)]);
        assert_eq!(told(&[b"a", b"b"]), [(vec![], Some(a())), (a(), Some(b())), (b(), None)]);
    }

    /// A flushed engine with an active tree of one record and two frozen ones of eight.
    fn forest() -> Engine {
        let mut engine = testing::create(&SimStorage::new(), testing::small());
        testing::commit(&mut engine, 1, testing::puts(0..8, 100));
        testing::commit(&mut engine, 2, testing::puts(8..16, 100));
        testing::commit(&mut engine, 3, testing::puts(16..17, 100));
        testing::flush(&mut engine, 1);
        engine
    }

    fn tip(engine: &mut Engine) -> &mut VersionRecord {
        let id = engine.meta.tip().id;
        engine.meta.versions.get_mut(&id).expect("it is decided")
    }

    /// Checks the table in memory, after a change of it.
    fn assert_found(engine: &Engine, what: &str) {
        let mut report = Report::default();
        Checker::new(&engine.meta, &engine.store, &mut report, PLACES_MAX).check();
        let found: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        assert!(found.iter().any(|finding| finding.contains(what)), "no {what:?} in {found:?}");
    }

    #[test]
    fn a_tree_whose_number_or_digest_does_not_fit_its_records_is_found() {
        type Breaks = fn(&mut Tree);
        let breaks: [Breaks; 4] = [
            |tree| tree.entries += 1,
            |tree| tree.digest = Digest([9; 32]),
            |tree| tree.filter = None,
            |tree| *tree = Tree { root: None, level: 0, ..tree.clone() },
        ];
        for change in breaks {
            let mut engine = forest();
            change(&mut tip(&mut engine).trees[1]);
            assert_found(&engine, "meta: tree of ");
        }
        let mut engine = forest();
        tip(&mut engine).digest = Digest([9; 32]);
        assert_found(&engine, "meta: digest of version ");
    }

    #[test]
    fn a_filter_or_shortcuts_of_another_tree_are_found() {
        let mut engine = forest();
        tip(&mut engine).trees[1].filter = engine.meta.tip().trees[2].filter;
        assert_found(&engine, "the filter is not that of its tree");
        let options = Options { old_cache_bytes: 0, ..testing::options() };
        let mut engine = testing::create_with(&SimStorage::new(), testing::small(), options);
        (1..4).for_each(|n| testing::commit(&mut engine, n, testing::puts(8 * n as u32..8 * n as u32 + 8, 1000)));
        testing::merge(&mut engine);
        testing::flush(&mut engine, 1);
        let shortcuts = engine.meta.merges.values().next().expect("it was built").output.shortcuts;
        assert!(shortcuts.is_some());
        tip(&mut engine).trees[1].shortcuts = shortcuts;
        assert_found(&engine, "the shortcuts are not those of its tree");
    }

    #[test]
    fn a_reference_whose_hash_is_not_its_nodes_is_found() {
        let mut engine = forest();
        tip(&mut engine).trees[1].root.as_mut().expect("it has records").hash = Digest([9; 32]);
        assert_found(&engine, "its parents disagree about it");
        engine.prune(Version(3)).expect("usable");
        assert_found(&engine, "its hash is not what its parent says");
    }

    /// Makes a node the only tree of the newest version.
    fn with_root(draft: Draft, entries: u64) -> Engine {
        let mut engine = forest();
        let level = draft.level;
        let root = engine.store.add_node(&mut engine.meta, &mut Delta::default(), draft, Class::Old);
        testing::flush(&mut engine, 2);
        tip(&mut engine).trees = vec![Tree::new(Some(root), level, entries, None)];
        engine
    }

    fn record<'r>(key: &'r [u8], body: Body<'r>) -> HashedRecord<'r> {
        HashedRecord::new(LeafRecord { key, stamp: Stamp::new(0, 3), body })
    }

    #[test]
    fn a_value_that_its_hash_does_not_fit_is_found() {
        let sound = Body::Inline { hash: hash::sha256(b"abc"), value: b"abc" };
        let forged = Body::Inline { hash: hash::sha256(b"abd"), value: b"abc" };
        let engine = with_root(Draft::all_new(Version(3), 0, &[record(b"a", sound), record(b"b", forged)]), 2);
        assert_found(&engine, "record 1 has a different value than its hash says");
    }

    #[test]
    fn a_value_of_two_keys_is_found() {
        let blob = BlobRef { at: ValueRef { segment: 0, offset: 0 }, len: 50 };
        let body = Body::Stored { hash: hash::sha256(&[7; 50]), len: 50, blob };
        let engine = with_root(Draft::all_new(Version(3), 0, &[record(b"a", body), record(b"b", body)]), 2);
        assert_found(&engine, "record 1 has its value where something else lies");
    }

    #[test]
    fn a_child_that_its_separators_do_not_bound_is_found() {
        let leaf_of = |engine: &Engine| engine.meta.tip().trees[1].clone();
        let engine = forest();
        let mut child = leaf_of(&engine).root.expect("it has records");
        for level in (1..=leaf_of(&engine).level).rev() {
            child = engine.store.node(&child, level, Class::Old).expect("sound pages").child(1);
        }
        let entries = [&b""[..], b"zzz"].map(|separator| ChildEntry { separator: separator.to_vec(), child });
        let engine = with_root(Draft::all_new(Version(3), 1, &entries), 8);
        assert_found(&engine, "separators do not bound the children");
    }

    #[test]
    fn a_journal_of_another_version_or_kind_is_found() {
        for (kind, what) in
            [(RecordKind::Journal, "the journal of version 9 belongs to another one"), (RecordKind::Value, "values-")]
        {
            let mut engine = forest();
            let id = engine.meta.tip().id;
            let blob = engine.store.add_blob(&mut engine.meta, &mut Delta::default(), kind, b"journal");
            engine.meta.journals.insert((Version(9), id), blob);
            assert_found(&engine, what);
        }
    }
}
