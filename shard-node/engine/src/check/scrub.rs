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
    files::values::ScrubPlace,
    meta::VersionId,
    node::{Child, Node},
    place::page::{PAGE_BYTES, PidSet},
    store::{Store, line::Line},
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
        // All below an unflushed node that is durable also belongs to a flushed version, or will at
        // the next flush. Walking down every unflushed version would cost no bytes of the step, and
        // so have no limit.
        if self.store.is_dirty(pid) {
            return Ok(true);
        }
        let node = self.read(child, level)?;
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
        self.seen.insert(pid);
        self.moved = true;
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
    pub(crate) fn step(&mut self, line: Line<'_>, bytes: u64) -> Result<()> {
        let mut left = bytes.max(PAGE_BYTES as u64);
        if self.values.is_none() {
            left = self.nodes(line, left)?;
        }
        if left > 0 {
            self.values(line, left)?;
        }
        Ok(())
    }

    /// Returns the number of bytes that are left once all nodes are read; before that, 0.
    fn nodes(&mut self, line: Line<'_>, bytes: u64) -> Result<u64> {
        let scrub = self;
        let key = std::mem::take(&mut scrub.key);
        let mut walk = Walk { store: line.store, seen: &mut scrub.seen, key, bytes_left: bytes, moved: false };
        for version in line.from(scrub.version) {
            let version = version?;
            if version.id != scrub.version {
                (scrub.version, scrub.tree) = (version.id, 0);
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

    fn values(&mut self, line: Line<'_>, mut bytes: u64) -> Result<()> {
        let Line { meta, store } = line;
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
                let is_erased = |key: &[u8]| meta.erasures.has(key);
                // The values that an erasure has still to reach.
                let read = store.values.scrub(place, known.end, bytes, &is_erased, &mut Vec::new())?;
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

#[cfg(test)]
mod tests {
    use coppice_env::{OpenMode, SimStorage, Storage};
    use coppice_types::{Params, Version};

    use super::*;
    use crate::{
        Engine,
        place::page::PageFile,
        testing::{commit, create, damage, flush, long_keys, put, puts, small},
    };

    /// A flushed engine with a tree of whole nodes on two levels, and a value in the log.
    fn engine(sim: &SimStorage) -> Engine {
        let mut engine = create(sim, Params::default());
        commit(&mut engine, 1, long_keys(4000));
        commit(&mut engine, 2, vec![put("long", 1000)]);
        flush(&mut engine, 1);
        engine
    }

    /// Scrubs by steps of this size to the end of the round.
    fn round(engine: &mut Engine, bytes: u64) -> Result<()> {
        let rounds = engine.counters().scrubs;
        for _ in 0..10_000 {
            engine.scrub(bytes)?;
            if engine.counters().scrubs > rounds {
                return Ok(());
            }
        }
        panic!("the round does not end");
    }

    fn damaged_file(found: Result<()>) -> String {
        match found {
            Err(Error::Corrupted { file, .. }) => file,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn rounds_of_one_step_read_the_same_bytes_and_those_of_small_steps_some_nodes_again() {
        let read = [u64::MAX, 10_000, 1].map(|bytes| {
            let mut engine = engine(&SimStorage::new());
            round(&mut engine, bytes).expect("sound");
            let read = engine.counters().scrubbed_bytes;
            round(&mut engine, bytes).expect("sound");
            assert_eq!(engine.counters().scrubbed_bytes, 2 * read, "the second round in steps of {bytes}");
            read
        });
        assert!(read[0] > 4000 * 180 && read.is_sorted(), "{read:?}");
    }

    #[test]
    fn damage_of_leaves_inner_nodes_and_values_is_found_though_caches_have_them() {
        for file in ["data", "index", "values-0"] {
            let sim = SimStorage::new();
            let mut engine = engine(&sim);
            match file {
                "values-0" => sim.flip_bit(file, 500, 0),
                _ => damage(&sim, file),
            }
            assert_eq!(damaged_file(round(&mut engine, 5000)), file);
            let key = long_keys(2)[1].key.clone();
            assert!(engine.view_at(Version(2)).expect("decided").get(&key, false).is_ok(), "a cache has it");
        }
    }

    #[test]
    fn the_step_after_a_found_damage_finds_it_again() {
        for file in ["data", "values-0"] {
            let sim = SimStorage::new();
            let mut engine = engine(&sim);
            match file {
                "values-0" => sim.flip_bit(file, 500, 0),
                _ => damage(&sim, file),
            }
            let first = round(&mut engine, 5000).expect_err("damage").to_string();
            for _ in 0..3 {
                assert_eq!(engine.scrub(5000).expect_err("damage").to_string(), first);
            }
            assert_eq!(engine.counters().scrubs, 0);
        }
    }

    #[test]
    fn a_node_whose_hash_is_not_what_its_parent_says_is_found() {
        let mut engine = engine(&SimStorage::new());
        let id = engine.meta.tip().id;
        let root = engine.meta.versions.get_mut(&id).and_then(|record| record.trees[0].root.as_mut());
        root.expect("it has records").hash = Digest([9; 32]);
        let found = round(&mut engine, u64::MAX).expect_err("another hash");
        assert!(found.to_string().contains("its hash is not what its parent says"), "{found}");
    }

    #[test]
    fn unflushed_nodes_and_values_are_left_to_a_later_round() {
        let sim = SimStorage::new();
        let mut engine = create(&sim, small());
        commit(&mut engine, 1, puts(0..20, 100));
        round(&mut engine, u64::MAX).expect("nothing to read");
        assert_eq!(engine.counters().scrubbed_bytes, 0);
        flush(&mut engine, 1);
        round(&mut engine, u64::MAX).expect("sound");
        assert!(engine.counters().scrubbed_bytes > 20 * 116);
    }

    #[test]
    fn a_step_walks_down_no_unflushed_version() {
        let sim = SimStorage::new();
        let mut engine = create(&sim, Params { capacity: 1000, ..small() });
        commit(&mut engine, 1, puts(0..600, 100));
        commit(&mut engine, 2, puts(0..600, 101));
        let looked_at = |engine: &Engine| {
            let counters = engine.counters();
            counters.node_dirty_hits + counters.node_young_hits + counters.node_old_hits
        };
        let before = looked_at(&engine);
        engine.scrub(1).expect("nothing to read");
        assert_eq!(looked_at(&engine), before, "such a walk would have no limit");
    }

    #[test]
    fn versions_may_go_and_come_between_two_steps() {
        let sim = SimStorage::new();
        let mut engine = create(&sim, Params { capacity: 1000, ..small() });
        for version in 1..20 {
            commit(&mut engine, version, puts(0..20, 90 + version as usize));
            engine.scrub(1).expect("sound");
            if version % 3 == 0 {
                engine.prune(Version(version)).expect("usable");
            }
            flush(&mut engine, version);
            engine.scrub(1).expect("sound");
        }
        round(&mut engine, 1).expect("sound");
    }

    #[test]
    fn a_segment_that_is_cut_short_is_found() {
        let sim = SimStorage::new();
        let mut engine = engine(&sim);
        let file = sim.open("values-0", OpenMode::Existing).expect("it is there");
        file.set_len(500).expect("cut");
        assert_eq!(damaged_file(round(&mut engine, u64::MAX)), "values-0");
    }

    #[test]
    fn patches_are_read_with_their_bases() {
        let sim = SimStorage::new();
        let mut engine = create(&sim, Params::default());
        commit(&mut engine, 1, puts(0..1000, 9));
        flush(&mut engine, 1);
        commit(&mut engine, 2, vec![put("0001", 8)]);
        engine.prune(Version(2)).expect("usable");
        flush(&mut engine, 2);
        let view = engine.view_at(Version(2)).expect("decided");
        let spans = view.footprint().expect("sound pages").spans;
        let patched =
            |pid: &u64| crate::place::page::Pid::from_u64(*pid).is_some_and(|pid| pid.file() == PageFile::Patches);
        assert!(spans.keys().any(patched), "the leaf of one change is a patch");
        damage(&sim, "data");
        assert_eq!(damaged_file(round(&mut engine, u64::MAX)), "data");
    }
}
