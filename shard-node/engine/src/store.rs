//! Nodes, values and filters by reference: what trees are built on.
//!
//! A node is looked for among the dirty ones, then in the caches, then in its file, where it is checked against its
//! parent's checksum before anyone sees it. New nodes stay dirty until a flush; those that die before are never
//! written.

use std::{
    io::ErrorKind,
    iter,
    sync::{Arc, PoisonError, RwLock},
};

use coppice_env::{File, OpenMode, Storage, Workers};
use coppice_types::Digest;
use coppice_verify::{hash, rules::Filter};

use crate::{
    Error, Options, Result,
    ahead::{AheadScope, WriteAhead},
    cache::{Class, Clock, DualCache},
    counters::Live,
    list::MerkleList,
    meta::{BlobRef, Delta, Meta, Tree},
    node::{Child, Draft, Node, ValueRef},
    page::{PAGE_BYTES, PageFile, Pid, PlaceMap},
    values::{self, RecordKind, ValueLog, write_sealed},
};

/// Most bytes of one write of neighbouring spans.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// Flushes of less are not worth a thread.
const SHARED_WRITE_BYTES_MIN: u64 = 1 << 20;

/// A node that no superblock covers.
#[derive(Debug)]
struct Dirty {
    node: Node,
    class: Class,
    /// Its bytes are durable at its place.
    ahead: bool,
}

/// Everything that lies in files but the meta log and the superblocks.
#[derive(Debug)]
pub(crate) struct Store {
    files: [Arc<dyn File>; 2],
    dirty: PlaceMap<Pid, Dirty>,
    dirty_bytes: u64,
    /// Bytes of those that were not written ahead, of active and of frozen trees.
    behind_bytes: [u64; 2],
    cache: DualCache,
    /// Hashes of the entries of active nodes. What is missing is computed.
    lists: Clock<MerkleList>,
    pub(crate) values: ValueLog,
    filters: RwLock<PlaceMap<ValueRef, Arc<Filter>>>,
    pub(crate) counters: Live,
}

impl Store {
    pub(crate) fn open(storage: &Arc<dyn Storage>, options: &Options, meta: &Meta, mode: OpenMode) -> Result<Self> {
        let open = |file: PageFile| storage.open(file.name(), mode).map_err(Error::io("open", file.name()));
        Ok(Self {
            files: [open(PageFile::Index)?, open(PageFile::Data)?],
            dirty: PlaceMap::default(),
            dirty_bytes: 0,
            behind_bytes: [0; 2],
            cache: DualCache::new(options.young_cache_bytes, options.old_cache_bytes),
            lists: Clock::new(options.hash_cache_bytes),
            values: ValueLog::new(Arc::clone(storage), options.segment_bytes_max, &meta.segments),
            filters: RwLock::default(),
            counters: Live::default(),
        })
    }

    /// The node, checked.
    pub(crate) fn node(&self, child: &Child, level: u8, class: Class) -> Result<Node> {
        if let Some(Dirty { node, .. }) = self.dirty.get(&child.pid) {
            assert_eq!(node.checksum(), child.checksum, "{:?} has two owners", child.pid);
            self.counters.node_dirty_hits.one();
            return Ok(node.clone());
        }
        let cached = self.cache.get(child.pid, child.checksum, class);
        if let Some((node, found)) = cached {
            match found {
                Class::Young => self.counters.node_young_hits.one(),
                Class::Old => self.counters.node_old_hits.one(),
            }
            return Ok(node);
        }
        self.counters.span_reads.one();
        self.counters.span_read_bytes.add(child.pid.len_bytes() as u64);
        let node = self.read_node(child, level)?;
        self.cache.insert(child.pid, node.clone(), class);
        Ok(node)
    }

    /// The node, if no superblock covers it: its file may not have it.
    pub(crate) fn dirty(&self, pid: Pid) -> Option<&Node> {
        self.dirty.get(&pid).map(|dirty| &dirty.node)
    }

    /// The node from its file, past dirty ones and caches.
    pub(crate) fn read_node(&self, child: &Child, level: u8) -> Result<Node> {
        let name = child.pid.file().name();
        let corrupted = |what: &str| Error::corrupted(name, Some(child.pid.first()), what);
        if PageFile::of_level(level) != child.pid.file() {
            return Err(corrupted("a node of this level lies in the other file"));
        }
        let file = &self.files[child.pid.file() as usize];
        let mut bytes: Arc<[u8]> = iter::repeat_n(0, child.pid.len_bytes()).collect();
        let buffer = Arc::get_mut(&mut bytes).expect("it was made here");
        match file.read_exact_at(buffer, child.pid.offset_bytes()) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Err(corrupted("the file ends before the span"));
            }
            read => read.map_err(Error::io("read", name))?,
        }
        Node::check(bytes, child, level).map_err(corrupted)
    }

    /// Gives a node its place.
    pub(crate) fn add_node(&mut self, meta: &mut Meta, delta: &mut Delta, draft: Draft, class: Class) -> Child {
        let pid = meta.allocate(PageFile::of_level(draft.level), draft.pages());
        delta.allocated.push(pid);
        let (node, child) = draft.place(pid);
        self.counters.nodes_made.one();
        let len = node.bytes().len() as u64;
        self.dirty_bytes += len;
        self.behind_bytes[class as usize] += len;
        let before = self.dirty.insert(pid, Dirty { node, class, ahead: false });
        assert!(before.is_none(), "{pid:?} has two owners");
        child
    }

    /// Appends a value or filter.
    pub(crate) fn add_blob(&mut self, meta: &mut Meta, delta: &mut Delta, kind: RecordKind, bytes: &[u8]) -> BlobRef {
        let blob = self.values.append(kind, bytes);
        meta.reserve_value(blob.at.segment, values::record_bytes(blob.len));
        delta.allocate_value(blob.at.segment, values::record_bytes(blob.len));
        blob
    }

    /// Reads a value.
    pub(crate) fn value(&self, at: ValueRef, len: u32) -> Result<Vec<u8>> {
        self.counters.value_reads.one();
        if !self.values.in_memory(at) {
            self.counters.value_file_reads.one();
        }
        self.values.read(RecordKind::Value, BlobRef { at, len })
    }

    /// Stores the filter of a tree that is being frozen or was made by a merge.
    pub(crate) fn add_filter(&mut self, meta: &mut Meta, delta: &mut Delta, filter: Filter) -> BlobRef {
        let bytes: Vec<u8> = filter.blocks().iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
        let blob = self.add_blob(meta, delta, RecordKind::Filter, &bytes);
        self.keep_filter(blob.at, &Arc::new(filter));
        blob
    }

    /// The filter of a frozen tree.
    pub(crate) fn filter(&self, tree: &Tree) -> Result<Arc<Filter>> {
        let blob = tree.filter.expect("a frozen tree has a filter");
        if let Some(filter) = self.filters.read().unwrap_or_else(PoisonError::into_inner).get(&blob.at) {
            return Ok(Arc::clone(filter));
        }
        let bytes = self.values.read(RecordKind::Filter, blob)?;
        let filter = decode_filter(&bytes).ok_or_else(|| {
            Error::corrupted(values::file_name(blob.at.segment), Some(u64::from(blob.at.offset)), "no filter")
        })?;
        let filter = Arc::new(filter);
        self.keep_filter(blob.at, &filter);
        Ok(filter)
    }

    fn keep_filter(&self, at: ValueRef, filter: &Arc<Filter>) {
        self.filters.write().unwrap_or_else(PoisonError::into_inner).insert(at, Arc::clone(filter));
    }

    /// False only if the frozen tree holds no record of a key with this filter hash.
    pub(crate) fn admits(&self, tree: &Tree, filter_hash: (u64, u64)) -> Result<bool> {
        Ok(self.filter(tree)?.admits_hash(filter_hash))
    }

    /// Forgets freed pages, everywhere. Filters of dead trees are forgotten when none of the given trees has them.
    pub(crate) fn forget(&mut self, pids: &[Pid]) {
        for pid in pids {
            if let Some(dirty) = self.dirty.remove(pid) {
                let len = dirty.node.bytes().len() as u64;
                self.dirty_bytes -= len;
                self.behind_bytes[dirty.class as usize] -= if dirty.ahead { 0 } else { len };
            } else {
                self.cache.remove(*pid);
            }
            self.lists.forget(*pid);
        }
    }

    /// Takes the hashes of an active node's entries, if they are known: its successor's are made of them.
    pub(crate) fn take_list(&mut self, child: &Child) -> Option<MerkleList> {
        self.lists.take(child.pid, child.checksum)
    }

    /// Keeps the hashes of an active node's entries.
    pub(crate) fn keep_list(&mut self, child: &Child, list: MerkleList) {
        self.lists.insert(child.pid, child.checksum, list);
    }

    /// The hashes of a node's entries, if they are known.
    pub(crate) fn list(&self, child: &Child) -> Option<&MerkleList> {
        self.lists.peek(child.pid, child.checksum)
    }

    /// Forgets the hashes of all nodes: there is a new active tree.
    pub(crate) fn drop_lists(&mut self) {
        self.lists.clear();
    }

    /// Keeps only the filters that these places name.
    pub(crate) fn retain_filters(&mut self, keep: impl Fn(&ValueRef) -> bool) {
        self.filters.get_mut().unwrap_or_else(PoisonError::into_inner).retain(|at, _| keep(at));
    }

    pub(crate) fn filters_cached(&self) -> usize {
        self.filters.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Bytes of pages and values that no superblock covers.
    pub(crate) fn unflushed_bytes(&self) -> u64 {
        self.dirty_bytes + self.values.unflushed_bytes()
    }

    /// Those of them that were not written ahead.
    pub(crate) fn behind_bytes(&self, scope: AheadScope) -> u64 {
        let [young, old] = self.behind_bytes;
        let nodes = if scope == AheadScope::All { young + old } else { old };
        nodes + self.values.behind_bytes()
    }

    /// Dirty nodes that were not written ahead, in order of place.
    fn behind(&self, scope: AheadScope) -> Vec<(Pid, &Node)> {
        let wanted = |dirty: &Dirty| !dirty.ahead && (scope == AheadScope::All || dirty.class == Class::Old);
        let behind = self.dirty.iter().filter(|(_, dirty)| wanted(dirty));
        let mut nodes: Vec<(Pid, &Node)> = behind.map(|(pid, dirty)| (*pid, &dirty.node)).collect();
        nodes.sort_unstable_by_key(|(pid, _)| (pid.file() as usize, pid.first()));
        nodes
    }

    /// What is to be written, for the caller to write.
    pub(crate) fn begin_ahead(&mut self, scope: AheadScope) -> WriteAhead {
        let values = self.values.seal();
        let nodes = self.behind(scope).into_iter().map(|(pid, node)| (pid, node.clone())).collect();
        WriteAhead { files: self.files.clone(), nodes, values, durable: false }
    }

    /// Notes what was written, unless other nodes came to the places meanwhile.
    pub(crate) fn end_ahead(&mut self, done: WriteAhead) {
        if !done.durable {
            return;
        }
        for (pid, node) in &done.nodes {
            self.count_write(node);
            if let Some(dirty) = self.dirty.get_mut(pid)
                && dirty.node.checksum() == node.checksum()
            {
                dirty.ahead = true;
                self.behind_bytes[dirty.class as usize] -= node.bytes().len() as u64;
            }
        }
        self.counters.value_write_bytes.add(self.values.written_ahead(&done.values));
    }

    fn count_write(&self, node: &Node) {
        self.counters.span_writes.one();
        self.counters.span_write_bytes.add(node.bytes().len() as u64);
    }

    /// Writes and syncs every dirty node and value that was not written ahead. They stay dirty until [`Self::flushed`],
    /// so that a failed flush can be repeated: what a failed sync has lost, no later sync would save. True if names
    /// changed.
    pub(crate) fn write(&mut self, workers: Workers) -> Result<bool> {
        let workers =
            if self.behind_bytes(AheadScope::All) < SHARED_WRITE_BYTES_MIN { Workers::Inline } else { workers };
        self.counters.value_write_bytes.add(self.values.behind_bytes());
        let (values, names_changed) = self.values.seal_to_write()?;
        let nodes = self.behind(AheadScope::All);
        // The files are independent: what counts is that all are durable before the meta log names what is in them.
        let mut outcomes = [const { Ok(()) }; 3];
        let files = PageFile::ALL.into_iter().map(Some).chain([None]);
        let write = |(file, outcome): (Option<PageFile>, &mut Result<()>)| {
            *outcome = match file {
                None => write_sealed(&values),
                Some(file) => {
                    let of_file = nodes.iter().filter(|(pid, _)| pid.file() == file).copied();
                    write_nodes(&*self.files[file as usize], file, of_file)
                }
            };
        };
        workers.share(files.zip(&mut outcomes), write, || ());
        outcomes.into_iter().collect::<Result<()>>()?;
        nodes.iter().for_each(|(_, node)| self.count_write(node));
        Ok(names_changed)
    }

    /// A superblock covers what was written.
    pub(crate) fn flushed(&mut self) {
        for (pid, dirty) in std::mem::take(&mut self.dirty) {
            self.cache.insert(pid, dirty.node, dirty.class);
        }
        (self.dirty_bytes, self.behind_bytes) = (0, [0; 2]);
        self.values.flushed();
    }

    /// Gives back the space of pages that nothing refers to. What fails is no loss.
    pub(crate) fn discard(&self, file: PageFile, first: u64, pages: u64) {
        let [offset, len] = [first, pages].map(|pages| pages * PAGE_BYTES as u64);
        if self.files[file as usize].discard(offset, len).is_ok() {
            self.counters.discarded_bytes.add(len);
        }
    }

    /// Lengths of the page files.
    pub(crate) fn page_file_bytes(&self, file: PageFile) -> Result<u64> {
        self.files[file as usize].len().map_err(Error::io("read", file.name()))
    }

    /// Bytes of the filters in memory.
    pub(crate) fn filter_bytes(&self) -> usize {
        let filters = self.filters.read().unwrap_or_else(PoisonError::into_inner);
        filters.values().map(|filter| size_of_val(filter.blocks())).sum()
    }

    /// Bytes of the lists of hashes in memory.
    pub(crate) fn list_bytes(&self) -> usize {
        self.lists.bytes()
    }

    pub(crate) fn cache_bytes(&self) -> (usize, usize) {
        self.cache.bytes()
    }
}

/// Writes nodes of one file, in order of place, neighbours in one write; and syncs, if there are any.
pub(crate) fn write_nodes<'n>(
    handle: &dyn File,
    file: PageFile,
    nodes: impl Iterator<Item = (Pid, &'n Node)>,
) -> Result<()> {
    let write = |run: &[&[u8]], at: u64| handle.write_parts_at(run, at).map_err(Error::io("write", file.name()));
    let mut run: Vec<&[u8]> = Vec::new();
    let (mut start, mut end) = (0, 0);
    for (pid, node) in nodes {
        let (bytes, at) = (node.bytes(), pid.offset_bytes());
        let more = (end - start) as usize + bytes.len();
        if !run.is_empty() && (end != at || more > WRITE_BYTES_MAX) {
            write(&run, start)?;
            run.clear();
        }
        if run.is_empty() {
            start = at;
        }
        run.push(bytes);
        end = at + bytes.len() as u64;
    }
    if run.is_empty() {
        return Ok(());
    }
    write(&run, start)?;
    handle.sync_data().map_err(Error::io("sync", file.name()))
}

/// Hash of a tree's root node.
pub(crate) fn root_hash(tree: &Tree) -> Digest {
    tree.root.map_or_else(hash::empty_root_hash, |root| root.hash)
}

pub(crate) fn decode_filter(bytes: &[u8]) -> Option<Filter> {
    let (blocks, rest) = bytes.as_chunks::<64>();
    let block = |bytes: &[u8; 64]| {
        let (words, _) = bytes.as_chunks::<8>();
        let mut block = [0; 8];
        block.iter_mut().zip(words).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
        block
    };
    if rest.is_empty() { Filter::from_blocks(blocks.iter().map(block).collect()) } else { None }
}
