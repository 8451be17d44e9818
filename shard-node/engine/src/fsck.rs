//! Checks a data directory offline, and trusts nothing in it.
//!
//! From each valid superblock: the meta log replays; every node that a version or merge reaches is read from its file,
//! with its checksum and its hash; keys ascend across nodes; entries and digests add up; values and filters are what
//! their records say; kept journals can be read; a page is reachable if and only if it is neither free nor waiting to be; live bytes of segments
//! are those that are reachable.

use std::{
    collections::{BTreeMap, HashMap, HashSet, hash_map::Entry},
    fmt,
    sync::Arc,
};

use coppice_env::{OpenMode, Storage};
use coppice_types::Digest;
use coppice_verify::{hash, rules::Filter};

use crate::{
    Error, Options, Result, cold,
    engine::{is_ours, lock},
    meta::{BlobRef, Meta, Tree, TreeId},
    meta_log::{self, MetaLog},
    node::{Body, Child, Node, ValueRef},
    page::{PageFile, Pid, PlaceMap},
    shortcuts::{self, Gathered},
    store::{Store, decode_filter},
    superblock::{self, Slot, Superblock},
    values::{self, RecordKind, StoredValue},
};

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Name of the file in the data directory.
    pub file: String,
    /// First page of a span, in a file of pages; else an offset, where there is one.
    pub page: Option<u64>,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.page {
            Some(page) => write!(f, "{} at {page}: {}", self.file, self.what),
            None => write!(f, "{}: {}", self.file, self.what),
        }
    }
}

/// What a check found. The counts are of the newest superblock's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Damage. Empty: the directory is sound.
    pub findings: Vec<Finding>,
    /// What a crash may leave and recovery copes with.
    pub notes: Vec<String>,
    /// Versions, decided and staged.
    pub versions: u64,
    /// Nodes that they reach.
    pub nodes: u64,
    /// Records in the leaves among them.
    pub records: u64,
    /// Values read from the value log.
    pub values: u64,
    /// Kept journals read from the value log.
    pub journals: u64,
    /// Pages in use.
    pub pages_used: u64,
    /// Pages that are free, or will be after the next superblocks.
    pub pages_free: u64,
    /// Findings that only say that the storage failed.
    unread: usize,
    /// A segment that is in a cold directory that is not there.
    cold_missing: Option<String>,
}

impl Report {
    /// Nothing is damaged.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Whether what was checked is sound.
    ///
    /// # Errors
    /// `Corrupted`, with the first finding; `Unchecked` if the storage failed and nothing else was found.
    pub(crate) fn verdict(self) -> Result<()> {
        let damaged = self.findings.len() > self.unread;
        match self.findings.into_iter().next() {
            None => Ok(()),
            Some(finding) if !damaged => Err(Error::Unchecked(finding.to_string())),
            Some(Finding { file, page, what }) => Err(Error::Corrupted { file, page, what }),
        }
    }

    fn finding(&mut self, file: impl Into<String>, page: Option<u64>, what: impl Into<String>) {
        self.findings.push(Finding { file: file.into(), page, what: what.into() });
    }

    fn error(&mut self, error: Error) {
        match error {
            Error::Corrupted { file, page, what } => self.finding(file, page, what),
            Error::Io { file, ref source, .. } => {
                let what = source.to_string();
                self.finding(file, None, what);
                self.unread += 1;
            }
            Error::ColdMissing { file } => self.cold_missing = Some(file),
            other => self.finding("", None, other.to_string()),
        }
    }
}

/// Checks the data directory, from both superblocks.
///
/// # Errors
/// `Missing`, `Locked` or `ColdMissing`, or if the directory can't be listed; everything else is in the report.
pub fn fsck(storage: Arc<dyn Storage>) -> Result<Report> {
    if !superblock::exists(&*storage)? {
        return Err(Error::Missing);
    }
    let _guard = lock(&*storage)?;
    let slots = storage
        .open(superblock::FILE, OpenMode::Existing)
        .map_err(Error::io("open", superblock::FILE))
        .and_then(|file| superblock::read_slots(&*file));
    let slots = match slots {
        Ok(slots) => slots,
        Err(error @ Error::OtherFormat { .. }) => return Err(error),
        Err(error) => {
            let mut report = Report::default();
            report.error(error);
            return Ok(report);
        }
    };
    let mut notes = Vec::new();
    for (number, slot) in slots.iter().enumerate() {
        if *slot == Slot::Broken {
            notes.push(format!("{}: slot {number} is torn or damaged", superblock::FILE));
        }
    }
    let (newest, older) = match superblock::newest(slots) {
        Ok(pair) => pair,
        Err(error) => {
            let mut report = Report { notes, ..Report::default() };
            report.error(error);
            return Ok(report);
        }
    };
    let mut report = check_superblock(&storage, &newest);
    report.notes.extend(notes);
    if let Some(file) = report.cold_missing.take() {
        return Err(Error::ColdMissing { file });
    }
    if let Some(older) = &older {
        let other = check_superblock(&storage, older);
        for finding in other.findings {
            if !report.findings.contains(&finding) {
                report.findings.push(Finding { what: format!("{} (older superblock)", finding.what), ..finding });
            }
        }
    }
    note_strangers(&*storage, &newest, older.as_ref(), &mut report)?;
    note_cold_strangers(&*storage, &mut report)?;
    Ok(report)
}

fn note_strangers(
    storage: &dyn Storage,
    newest: &Superblock,
    older: Option<&Superblock>,
    report: &mut Report,
) -> Result<()> {
    for name in storage.list("").map_err(Error::io("list", "the directory"))? {
        let number = meta_log::file_number(&name);
        let named = number
            .is_none_or(|number| number == newest.meta_file || older.is_some_and(|older| number == older.meta_file));
        let known = is_ours(&name) || ["superblock", "superblock.new", "lock"].contains(&name.as_str());
        if !named || !known {
            report.notes.push(format!("{name}: no superblock names this file"));
        }
    }
    Ok(())
}

/// Files of the cold directory that the next start removes.
fn note_cold_strangers(storage: &dyn Storage, report: &mut Report) -> Result<()> {
    let Some(there) = storage.cold().map(|cold| cold::list(&*cold)).transpose()?.flatten() else { return Ok(()) };
    let here = storage.list("").map_err(Error::io("list", "the directory"))?;
    for name in there {
        let known = cold::file_number(&name).is_some_and(|(_, last)| last);
        if !known || here.contains(&name) {
            report.notes.push(format!("{name}: a move to the cold directory was cut off"));
        }
    }
    Ok(())
}

/// Checks the state that one superblock leads to.
pub(crate) fn check_superblock(storage: &Arc<dyn Storage>, superblock: &Superblock) -> Report {
    let mut report = Report::default();
    let meta = match MetaLog::open(&**storage, superblock) {
        Ok((_, meta)) => meta,
        Err(error) => {
            report.error(error);
            return report;
        }
    };
    let found = cold::find(&**storage, &meta);
    match found.and_then(|_| Store::open(storage, &Options::default(), &meta, OpenMode::Existing)) {
        Ok(store) => Checker::new(&meta, &store, &mut report).check(),
        Err(error) => report.error(error),
    }
    report
}

/// A node that was found sound.
#[derive(Debug)]
struct CheckedNode {
    checksum: u64,
    hash: Digest,
    level: u8,
    entries: u64,
    first: Vec<u8>,
    last: Vec<u8>,
}

struct Checker<'c> {
    meta: &'c Meta,
    store: &'c Store,
    report: &'c mut Report,
    nodes: HashMap<Pid, Option<CheckedNode>>,
    /// What nodes that lie as patches rest on.
    bases: HashSet<Pid>,
    /// What of the value log was read so far.
    blobs: HashMap<ValueRef, Blob>,
    /// Frozen trees whose filters and shortcuts are theirs.
    trees: HashSet<(TreeId, Option<BlobRef>)>,
}

/// A record of the value log: how long it is, and half of the hash of the leaf's record whose value it has. Every version of a leaf
/// names the values that it kept, so values are named by far more often than there are any, and each is read once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Blob {
    len: u32,
    hash: [u8; 16],
}

impl<'c> Checker<'c> {
    fn new(meta: &'c Meta, store: &'c Store, report: &'c mut Report) -> Self {
        Self {
            meta,
            store,
            report,
            nodes: HashMap::new(),
            bases: HashSet::new(),
            blobs: HashMap::new(),
            trees: HashSet::new(),
        }
    }

    fn check(mut self) {
        for version in self.meta.versions.values() {
            self.report.versions += 1;
            for (at, tree) in version.trees.iter().enumerate() {
                self.check_tree(tree, at > 0);
            }
            let digests: Vec<Digest> = version.trees.iter().map(|tree| tree.digest).collect();
            if hash::shard_digest(&digests) != version.digest {
                self.report.finding("meta", None, format!("digest of version {}", version.stamp));
            }
        }
        for merge in self.meta.merges.values() {
            self.check_tree(&merge.output, true);
        }
        self.check_journals();
        self.check_pages();
        self.check_segments();
    }

    fn check_journals(&mut self) {
        for ((version, id), blob) in &self.meta.journals {
            self.note_blob(*blob);
            if let Err(error) = self.store.values.read(RecordKind::Journal, *blob) {
                self.report.error(error);
            }
            self.report.journals += 1;
            let known = self.meta.versions.get(id).is_none_or(|record| record.stamp.version == *version);
            if !known {
                self.report.finding("meta", None, format!("the journal of version {version} is of another one"));
            }
        }
    }

    fn check_tree(&mut self, tree: &Tree, frozen: bool) {
        let expected = match tree.root {
            None => Some((hash::empty_root_hash(), 0)),
            Some(root) => self.check_node(&root, tree.level).map(|known| (known.hash, known.entries)),
        };
        let Some((root_hash, entries)) = expected else { return };
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

    /// Checks a node and all below it once; a parent that knows something else of it is wrong.
    fn check_node(&mut self, child: &Child, level: u8) -> Option<&CheckedNode> {
        if !self.nodes.contains_key(&child.pid) {
            let known = self.read_node(child, level);
            self.nodes.insert(child.pid, known);
        }
        let known = self.nodes.get(&child.pid)?.as_ref()?;
        if (known.checksum, known.hash, known.level) != (child.checksum, child.hash, level) {
            let file = child.pid.file().name();
            self.report.finding(file, Some(child.pid.first()), "its parents disagree about it");
            return None;
        }
        Some(known)
    }

    fn read_node(&mut self, child: &Child, level: u8) -> Option<CheckedNode> {
        let node = match self.store.read_node(child, level) {
            Ok(node) => node,
            Err(error) => {
                self.report.error(error);
                return None;
            }
        };
        self.bases.extend(node.base().map(|base| base.pid));
        let (file, page) = (child.pid.file().name(), Some(child.pid.first()));
        let hash = node.hash();
        if hash != child.hash {
            self.report.finding(file, page, "its hash is not what its parent says");
            return None;
        }
        self.report.nodes += 1;
        let (mut first, mut last) = (node.key(0).to_vec(), node.key(node.len() - 1).to_vec());
        let mut entries = node.len() as u64;
        if level == 0 {
            self.report.records += entries;
            self.check_records(&node, child.pid);
        } else {
            entries = 0;
            for index in 0..node.len() {
                let below = self.check_node(&node.child(index), level - 1)?;
                // Bounded children have no record in common, so these are no more than there are.
                entries += below.entries;
                let bounded = match index + 1 < node.len() {
                    true => *below.last < *node.key(index + 1),
                    false => {
                        last.clone_from(&below.last);
                        true
                    }
                };
                let bounded = bounded && *below.first >= *node.key(index);
                if index == 0 {
                    first.clone_from(&below.first);
                }
                if !bounded {
                    // A child may stand under more than one separator: what would be counted or walked below grows without bound.
                    self.report.finding(file, page, "separators do not bound the children");
                    return None;
                }
            }
        }
        Some(CheckedNode { checksum: child.checksum, hash, level, entries, first, last })
    }

    /// Notes a record of the value log that is no value.
    fn note_blob(&mut self, blob: BlobRef) {
        self.blobs.insert(blob.at, Blob { len: blob.len, ..Blob::default() });
    }

    fn check_records(&mut self, leaf: &Node, pid: Pid) {
        for index in 0..leaf.len() {
            let record = leaf.record(index);
            let value = match record.body {
                Body::Tombstone => continue,
                Body::Inline { hash, value } => (hash, Ok(value.to_vec())),
                Body::Stored { hash, len, blob } => {
                    let named =
                        Blob { len: blob.len, hash: *record.hash().0.first_chunk().expect("a digest has 32 bytes") };
                    match self.blobs.entry(blob.at) {
                        Entry::Occupied(entry) if *entry.get() == named => continue,
                        Entry::Occupied(_) => {
                            let what = format!("record {index} has its value where something else lies");
                            self.report.finding(pid.file().name(), Some(pid.first()), what);
                            continue;
                        }
                        Entry::Vacant(entry) => {
                            entry.insert(named);
                            self.report.values += 1;
                        }
                    }
                    (hash, self.store.values.read_of(StoredValue { len, blob }, record.key, record.stamp))
                }
            };
            match value {
                (hash, Ok(value)) if hash::sha256(&value) == hash => {}
                (_, Ok(_)) => {
                    let what = format!("record {index} has another value than its hash says");
                    self.report.finding(pid.file().name(), Some(pid.first()), what);
                }
                (_, Err(error)) => self.report.error(error),
            }
        }
    }

    /// Makes a frozen tree's filter and shortcuts anew.
    fn check_blobs(&mut self, tree: &Tree) -> Result<()> {
        let mut filter = Filter::new(&self.meta.params, tree.entries);
        let (mut gathered, mut filter_hashes) = (Gathered::default(), Vec::new());
        let mut open: Vec<(Child, u8)> = tree.root.map(|root| (root, tree.level)).into_iter().collect();
        while let Some((child, level)) = open.pop() {
            let node = self.store.read_node(&child, level)?;
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
            let bytes = self.store.values.read(RecordKind::Filter, blob)?;
            if decode_filter(&bytes).as_ref() != Some(&filter) {
                stranger(blob, "the filter is not that of its tree");
            }
        }
        if let Some(blob) = tree.shortcuts {
            let bytes = self.store.values.read(RecordKind::Shortcuts, blob)?;
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

    /// A page is reachable if and only if it is used, and so is a patch.
    fn check_pages(&mut self) {
        let mut patches = PlaceMap::default();
        let places: HashSet<Pid> = self.nodes.keys().chain(&self.bases).copied().collect();
        for pid in places.iter().filter(|pid| pid.is_patch()) {
            *patches.entry(pid.first()).or_insert(0) += 1;
        }
        for (page, used) in self.meta.patches() {
            let found = patches.get(page).copied().unwrap_or(0);
            if found != *used {
                let what = format!("{found} patches of it are reachable, not {used}");
                self.report.finding(PageFile::Patches.name(), Some(*page), what);
            }
        }
        let pages = patches.keys().map(|page| Pid::of_patch(*page, 0));
        let reachable: Vec<Pid> = places.into_iter().filter(|pid| !pid.is_patch()).chain(pages).collect();
        for file in PageFile::ALL {
            let space = self.meta.space(file);
            // Start and length of everything that must tile the file, and whether it is reachable.
            let mut spans: Vec<(u64, u64, bool)> = space.free.iter().map(|(start, len)| (start, len, false)).collect();
            spans.extend(space.limbo.iter().map(|limbo| (limbo.start, limbo.len, false)));
            let free: u64 = spans.iter().map(|(_, len, _)| len).sum();
            let reachable = reachable.iter().filter(|pid| pid.file() == file);
            spans.extend(reachable.map(|pid| (pid.first(), pid.pages(), true)));
            spans.sort_unstable();
            let mut end = 0;
            for (start, len, _) in spans {
                if start > end {
                    self.report.finding(file.name(), Some(end), format!("{} pages are leaked", start - end));
                }
                if start < end {
                    self.report.finding(file.name(), Some(start), "a page is used twice, or used and free");
                }
                end = end.max(start + len);
            }
            if end != space.high {
                self.report.finding(file.name(), Some(end), "pages up to the maximum are leaked or beyond it");
            }
            self.report.pages_free += free;
            self.report.pages_used += space.high.saturating_sub(free);
        }
    }

    fn check_segments(&mut self) {
        let mut live: BTreeMap<u32, u64> = BTreeMap::new();
        for (at, blob) in &self.blobs {
            *live.entry(at.segment).or_default() += values::record_bytes(blob.len);
        }
        for (id, segment) in &self.meta.segments {
            let found = live.remove(id).unwrap_or(0);
            if found != segment.live {
                let what = format!("{} bytes are live, not {}", found, segment.live);
                self.report.finding(values::file_name(*id), None, what);
            }
        }
        for id in live.keys() {
            self.report.finding(values::file_name(*id), None, "the segment is not in the Meta table");
        }
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;
    use coppice_types::{Change, Operation, Params, ShardId, Version};

    use super::*;
    use crate::{
        Engine, RaftPosition,
        cache::Class,
        meta::Delta,
        node::{ChildEntry, Draft},
        testing,
    };

    /// A few pages can name one leaf more often than there are numbers: whoever sends them must not have the receiver walk or count that.
    #[test]
    fn a_node_that_stands_under_many_separators_is_one_finding() {
        let sim = SimStorage::new();
        // After some flushes the Meta log begins anew, from the table as it is.
        let options = Options { meta_compaction_bytes_min: 0, ..Options::default() };
        let mut engine =
            Engine::create(sim.storage(), ShardId(0), Params::default(), options).expect("an empty directory");
        let put = |n: u64| Operation { key: format!("{n:04}").into_bytes(), change: Change::Put(vec![1; 9]) };
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
        (1..100).for_each(|index| engine.flush(RaftPosition { index, term: 1 }, b"").expect("room"));
        drop(engine);
        let report = fsck(sim.storage()).expect("a directory");
        let bounds = report.findings.iter().filter(|finding| finding.to_string().contains("do not bound")).count();
        assert!(bounds == 1 && report.nodes < 50, "{report:?}");
    }
}
