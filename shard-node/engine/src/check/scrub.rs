//! The scrubber reads everything in the directory, a little at a time during normal work. This
//! finds damage while other replicas still have the data.
//!
//! A round reads every node of every version from its file, and compares checksum and Merkle hash.
//! Then it reads every record of the value log, and compares its checksum. Versions come and go
//! between two steps, so a step resumes by version and key, not by place. Nodes that several
//! versions share are read once in a round. Unflushed data is checked in a later round.

use coppice_types::Digest;

use crate::{
    Error, Result,
    cache::Class,
    files::values::ScrubPlace,
    meta::{Meta, VersionId},
    node::{Child, Node},
    place::page::{PAGE_BYTES, PidSet},
    store::Store,
};

/// The scrubber's position.
#[derive(Debug, Default)]
pub(crate) struct Scrub {
    /// The version, the index of the tree, and the key at which to resume.
    version: VersionId,
    tree: usize,
    key: Vec<u8>,
    seen: PidSet,
    /// The position in the value log, once all nodes are read.
    values: Option<ScrubPlace>,
}

/// One step through a tree.
struct Walk<'w> {
    store: &'w Store,
    seen: &'w mut PidSet,
    /// Keys below this were walked.
    key: Vec<u8>,
    bytes_left: u64,
    /// Whether this step finished a node that no earlier step had finished. The nodes above are
    /// read again in each step and may use up its bytes.
    moved: bool,
}

impl Walk<'_> {
    /// Returns `false` if the walk stopped. It resumes at `key`.
    fn node(&mut self, child: &Child, level: u8) -> Result<bool> {
        let pid = child.pid;
        if self.seen.has(pid) {
            return Ok(true);
        }
        let dirty = self.store.is_dirty(pid);
        if level == 0 && dirty {
            return Ok(true);
        }
        let node = if dirty { self.store.node(child, level, Class::Young)? } else { self.read(child, level)? };
        for index in (0..node.len()).take_while(|_| level > 0) {
            let passed = index + 1 < node.len() && *node.key(index + 1) <= *self.key;
            if passed {
                continue;
            }
            if self.bytes_left == 0 && self.moved {
                self.key = self.key.as_slice().max(node.key(index)).to_vec();
                return Ok(false);
            }
            if !self.node(&node.child(index), level - 1)? {
                self.key = self.key.as_slice().max(node.key(index)).to_vec();
                return Ok(false);
            }
        }
        if !dirty {
            self.seen.insert(pid);
            self.moved = true;
        }
        Ok(true)
    }

    fn read(&mut self, child: &Child, level: u8) -> Result<Node> {
        let node = self.store.read_node(child, level)?;
        let found: Digest = node.hash();
        if found != child.hash {
            let what = "its hash is not what its parent says";
            return Err(Error::corrupted(child.pid.file().name(), Some(child.pid.first()), what));
        }
        let bytes = (child.pid.len_bytes() + node.base().map_or(0, |base| base.pid.len_bytes())) as u64;
        self.store.counters.scrubbed_bytes.add(bytes);
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        Ok(node)
    }
}

impl Scrub {
    /// Reads and checks about this many durable bytes. The next call continues there.
    ///
    /// # Errors
    /// `Corrupted`, or a failure of the storage. The next call returns to the same place.
    pub(crate) fn step(&mut self, meta: &Meta, store: &Store, bytes: u64) -> Result<()> {
        let mut left = bytes.max(PAGE_BYTES as u64);
        if self.values.is_none() {
            left = self.nodes(meta, store, left)?;
        }
        if left > 0 {
            self.values(meta, store, left)?;
        }
        Ok(())
    }

    /// Returns the number of bytes that are left once all nodes are read; before that, 0.
    fn nodes(&mut self, meta: &Meta, store: &Store, bytes: u64) -> Result<u64> {
        let scrub = self;
        let key = std::mem::take(&mut scrub.key);
        let mut walk = Walk { store, seen: &mut scrub.seen, key, bytes_left: bytes, moved: false };
        for (id, version) in meta.versions.range(scrub.version..) {
            if *id != scrub.version {
                (scrub.version, scrub.tree) = (*id, 0);
                walk.key.clear();
            }
            while let Some(tree) = version.trees.get(scrub.tree) {
                let done = match &tree.root {
                    Some(root) => walk.node(root, tree.level),
                    None => Ok(true),
                };
                if !matches!(done, Ok(true)) {
                    scrub.key = walk.key;
                    return done.map(|_| 0);
                }
                scrub.tree += 1;
                walk.key.clear();
            }
        }
        let left = walk.bytes_left;
        scrub.values = Some(ScrubPlace::default());
        Ok(left)
    }

    fn values(&mut self, meta: &Meta, store: &Store, mut bytes: u64) -> Result<()> {
        let place = self.values.get_or_insert_default();
        while bytes > 0 {
            let mut next = meta.segments.range(place.segment..);
            let next = next.find(|(_, known)| known.dead_at.is_none() && known.end > 0);
            let Some((&found, known)) = next else {
                *self = Self::default();
                store.counters.scrubs.one();
                return Ok(());
            };
            if found != place.segment {
                *place = ScrubPlace::of_segment(found);
            }
            if place.offset < known.end {
                let read = store.values.scrub(place, known.end, bytes)?;
                store.counters.scrubbed_bytes.add(read);
                bytes = bytes.saturating_sub(read);
            }
            if place.offset >= known.end {
                *place = ScrubPlace::of_segment(found.saturating_add(1));
            }
        }
        Ok(())
    }
}
