//! Leaves of a tree that is walked from end to end, read before the walk comes to them: neighbours with one read, beside the engine if
//! there is a thread for it.
//!
//! They never come into a cache, which keeps what others read. What is in memory, or lies as a patch, is left to the walk, and so is what
//! could not be read: the walk says what is wrong with it.

use std::{collections::VecDeque, sync::Arc};

use coppice_env::{Begun, File, Workers};

use crate::{
    Result,
    cache::Class,
    meta::Tree,
    node::{Child, Node},
    page::{PageFile, Pid},
    store::Store,
};

/// So many leaves are looked at together in the end; the first lots, for which the walk has to wait, are smaller.
const LOT_LEAVES_MAX: usize = 256;
const LOT_LEAVES_MIN: usize = 4;
/// Without a thread nothing is gained but neighbours, and the walk waits for each lot.
const LOT_LEAVES_INLINE: usize = 16;
/// Most bytes of one read.
const READ_BYTES_MAX: usize = 256 << 10;

/// Leaves as they were read, by place.
type Read = VecDeque<(Pid, Option<Node>)>;

/// What is read ahead of a walk.
#[derive(Debug)]
pub(crate) struct Prefetch {
    workers: Workers,
    class: Class,
    /// Inner nodes on the way to the next leaf to look at, from the root down, each with the index of a child.
    path: Vec<(Node, usize)>,
    /// Leaves that were looked at and that the walk has not come to.
    ahead: usize,
    /// How many are looked at next.
    lot_leaves: usize,
    /// What was begun, in order, by the place of its first leaf. One at a time goes on.
    begun: VecDeque<(Pid, Begun<Read>)>,
    /// What is left of the lot that the walk is in.
    read: Read,
}

impl Prefetch {
    /// For a walk through all leaves of a tree.
    pub(crate) fn new(store: &Store, tree: &Tree, workers: Workers) -> Self {
        let (path, begun, read) = (Vec::new(), VecDeque::new(), Read::new());
        let (class, lot_leaves) = (tree.class(), LOT_LEAVES_MIN);
        let mut prefetch = Self { workers, class, path, ahead: 0, lot_leaves, begun, read };
        if let Some(root) = tree.root.filter(|_| tree.level > 0) {
            // The walk finds what is wrong here, too.
            let _ = prefetch.descend(store, root, tree.level);
        }
        prefetch
    }

    /// The next leaf of the walk, if it was read.
    pub(crate) fn leaf(&mut self, store: &Store, child: &Child) -> Option<Node> {
        self.ahead = self.ahead.saturating_sub(1);
        if self.ahead < self.lot_leaves && !self.begun.back().is_some_and(|(_, lot)| lot.is_going()) {
            self.look_ahead(store);
        }
        if let Some(lot) = pop_of(&mut self.begun, child.pid) {
            self.read = lot.end();
        }
        pop_of(&mut self.read, child.pid)?
    }

    /// Begins to read those of the next leaves that are nowhere in memory.
    fn look_ahead(&mut self, store: &Store) {
        let mut wanted = Vec::new();
        for _ in 0..self.lot_leaves {
            let Some(child) = self.next_child(store) else { break };
            self.ahead += 1;
            if child.pid.file() == PageFile::Data && !store.is_in_memory(&child) {
                wanted.push(child);
            }
        }
        if let Some(first) = wanted.first().map(|child| child.pid)
            && let Some(file) = store.file_to_read_ahead(&wanted)
        {
            self.begun.push_back((first, self.workers.begin(0, move || read(&*file, &wanted))));
        }
        let most = if self.workers == Workers::Inline { LOT_LEAVES_INLINE } else { LOT_LEAVES_MAX };
        self.lot_leaves = (2 * self.lot_leaves).min(most);
    }

    /// The leaf after the last one that was looked at. None at the end, or where a node can't be read.
    fn next_child(&mut self, store: &Store) -> Option<Child> {
        while let Some((node, index)) = self.path.last_mut() {
            if *index == node.len() {
                self.path.pop();
                continue;
            }
            let (child, level) = (node.child(*index), node.level() - 1);
            *index += 1;
            if level == 0 {
                return Some(child);
            }
            if self.descend(store, child, level).is_err() {
                self.path.clear();
            }
        }
        None
    }

    /// Enters an inner node, at its first child.
    fn descend(&mut self, store: &Store, child: Child, level: u8) -> Result<()> {
        self.path.push((store.node(&child, level, self.class)?, 0));
        Ok(())
    }
}

/// The first one, if it is of this place.
fn pop_of<T>(queue: &mut VecDeque<(Pid, T)>, pid: Pid) -> Option<T> {
    if queue.front()?.0 == pid { queue.pop_front().map(|(_, first)| first) } else { None }
}

/// Reads leaves, in the order of a tree, those that are neighbours at once, and checks them.
fn read(file: &dyn File, leaves: &[Child]) -> Read {
    let mut read = Read::with_capacity(leaves.len());
    let mut buffer = Vec::new();
    let mut rest = leaves;
    while let Some(first) = rest.first().map(|child| child.pid) {
        let (mut count, mut bytes) = (0, 0);
        let end = |bytes: usize| first.offset_bytes() + bytes as u64;
        while let Some(child) = rest.get(count)
            && child.pid.offset_bytes() == end(bytes)
            && bytes + child.pid.len_bytes() <= READ_BYTES_MAX
        {
            (count, bytes) = (count + 1, bytes + child.pid.len_bytes());
        }
        let (run, after) = rest.split_at(count);
        rest = after;
        buffer.resize(bytes.max(buffer.len()), 0);
        let there = file.read_exact_at(&mut buffer[..bytes], first.offset_bytes()).is_ok();
        let mut spans = buffer.as_slice();
        for child in run {
            let span = spans.split_off(..child.pid.len_bytes()).unwrap_or_default();
            let node = there.then(|| Node::check(Arc::from(span), child, 0).ok()).flatten();
            read.push_back((child.pid, node));
        }
    }
    read
}
