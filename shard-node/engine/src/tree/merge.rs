//! Merges frozen trees, a few leaves at a time.
//!
//! Frozen trees never change, so the output is a function of the inputs and of the filters of all
//! older trees (`docs/verification.md` section 6). A task reserves pages as it goes. Nothing
//! durable names them before the output is complete, so a crash or a cancelled task leaves nothing
//! behind. The complete output is kept until a version installs it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use coppice_env::{OrderedQueue, Workers};
use coppice_types::{Params, Version};
use coppice_verify::{hash, rules::Filter};

use crate::{
    Error, Result,
    cache::shortcuts,
    files::values::StoredValue,
    meta::{Delta, MergeRecord, Meta, Tree, TreeId},
    node::{Body, decode_record, is_tombstone},
    place::{page::PageFile, refs::record_bytes},
    store::Store,
    tree::{
        build::{Builder, Records},
        cursor::youngest,
        lots::{Lot, Lots, Pace, Run},
    },
};

/// Limit on the number of leaves in one piece of work, and the approximate number of records in a
/// leaf. A step with a small budget takes few leaves.
const LOT_LEAVES_MAX: usize = 16;
const LEAF_RECORDS: usize = 32;
/// Limit on the number of pieces in progress ahead of the engine.
const LOTS_AHEAD_MAX: usize = 64;

/// A merge in progress.
#[derive(Debug)]
pub(crate) struct MergeTask {
    inputs: Vec<Tree>,
    older: Vec<TreeId>,
    older_filters: Arc<[Arc<Filter>]>,
    lots: Lots,
    /// Lots that are merged or being merged on other threads.
    merging: OrderedQueue<Result<Merged>>,
    /// The present limit for the number of lots.
    lots_ahead: usize,
    /// Whether other threads can help.
    is_helped: bool,
    /// A merged lot with values that are still to be moved.
    moving: Option<Merged>,
    builder: Builder,
    /// Segments that are mostly dead. Live values are moved out of them.
    sparse: Arc<BTreeSet<u32>>,
    /// Number of input records read.
    read: u64,
    pub(crate) delta: Delta,
}

impl MergeTask {
    /// Begins to merge `count` trees of a forest, beginning at `at`.
    pub(crate) fn new(
        store: &Store,
        meta: &Meta,
        trees: &[Tree],
        at: usize,
        count: usize,
        workers: Workers,
    ) -> Result<Self> {
        let (inputs, older) = trees[at..].split_at(count);
        assert!(inputs.len() >= 2, "a merge has at least two inputs");
        assert!(at > 0, "the active tree is not an input of a merge");
        let records: u64 = inputs.iter().map(|tree| tree.entries).sum();
        let with_shortcuts = store.wants_shortcuts(records);
        // A sound tree has at most this many. An unsound one is detected when it is read.
        let room = usize::try_from(records.min(shortcuts::RECORDS_MAX)).unwrap_or(0);
        let taking = store.values.taking();
        let unflushed = store.values.unflushed_ends();
        let sparse = meta.segments.iter().filter(|(id, segment)| {
            !taking.contains(id) && segment.live.saturating_mul(2) < meta.segment_end(**id, &unflushed)
        });
        Ok(Self {
            inputs: inputs.to_vec(),
            older: older.iter().map(Tree::id).collect(),
            older_filters: older.iter().map(|tree| store.filter(tree)).collect::<Result<_>>()?,
            lots: Lots::new(store, inputs)?,
            merging: OrderedQueue::new(workers),
            lots_ahead: 0,
            is_helped: workers != Workers::Inline,
            moving: None,
            builder: Builder::new(&meta.params, Version(0), workers, room, with_shortcuts),
            sparse: Arc::new(sparse.map(|(id, _)| *id).collect()),
            read: 0,
            delta: Delta::default(),
        })
    }

    /// The inputs, youngest first, and all older trees.
    pub(crate) fn ids(&self) -> (Vec<TreeId>, &[TreeId]) {
        (self.inputs.iter().map(Tree::id).collect(), &self.older)
    }

    /// Whether this forest contains the inputs, followed by the same older trees.
    pub(crate) fn stands_in(&self, trees: &[Tree]) -> bool {
        let (mut ids, older) = self.ids();
        ids.extend_from_slice(older);
        trees.len() > ids.len() && trees[trees.len() - ids.len()..].iter().map(Tree::id).eq(ids)
    }

    fn entries(&self) -> u64 {
        self.inputs.iter().map(|tree| tree.entries).sum()
    }

    /// Records not yet read, plus records read but not yet placed in leaves.
    pub(crate) fn left(&self) -> u64 {
        self.entries().saturating_sub(self.read) + self.builder.waiting()
    }

    /// Merges about `budget` records, but at least those of one leaf, and returns their number. If
    /// the merge is behind, other threads work ahead. Returns `None` once all records are in
    /// leaves; the filter and the shortcuts may take longer.
    pub(crate) fn step(
        &mut self,
        store: &mut Store,
        meta: &mut Meta,
        budget: usize,
        is_behind: bool,
    ) -> Result<Option<usize>> {
        let leaves = (budget / LEAF_RECORDS).clamp(1, LOT_LEAVES_MAX);
        let mut done = 0;
        while done < budget {
            // The limit grows with each piece, so that the start of a merge waits only for a few.
            // When merging is not behind, no other thread is used, so that the step's duration is
            // its total cost.
            let is_ahead = is_behind && self.is_helped;
            self.lots_ahead = if is_ahead { (self.lots_ahead + 1).min(LOTS_AHEAD_MAX) } else { 0 };
            let pace = Pace { leaves, ahead: self.lots_ahead };
            if self.moving.is_none() {
                self.moving = self.next_merged(store, meta, pace)?;
                done += self.moving.as_ref().map_or(0, |merged| merged.read);
            }
            done += match self.moving.take() {
                Some(merged) => self.take_in(store, meta, merged, budget.saturating_sub(done), pace)?,
                None if self.read != self.entries() => {
                    return Err(Error::corrupted(
                        PageFile::Data.name(),
                        None,
                        "a tree has not the records that it should",
                    ));
                }
                None => match self.builder.end_leaves(store, meta, &mut self.delta) {
                    0 => {
                        self.builder.close(store, meta, &mut self.delta);
                        return Ok(None);
                    }
                    taken => taken,
                },
            };
        }
        Ok(Some(done))
    }

    /// Returns the next merged lot; `None` at the end.
    fn next_merged(&mut self, store: &Store, meta: &Meta, pace: Pace) -> Result<Option<Merged>> {
        while self.merging.len() < pace.ahead {
            let Some(lot) = self.next_lot(store, pace)? else { break };
            let (params, filters, sparse) = (meta.params.clone(), self.older_filters.clone(), Arc::clone(&self.sparse));
            self.merging.push(move || merge(&lot, &params, &filters, &sparse));
        }
        let merged = match self.merging.take() {
            Some(merged) => Some(merged?),
            None => {
                let lot = self.next_lot(store, pace)?;
                lot.map(|lot| merge(&lot, &meta.params, &self.older_filters, &self.sparse)).transpose()?
            }
        };
        if let Some(merged) = &merged {
            merged.superseded.iter().for_each(|(segment, bytes)| self.delta.pend_value(*segment, *bytes));
            self.read += merged.read as u64;
            store.counters.merge_records.add(merged.read as u64);
        }
        Ok(merged)
    }

    fn next_lot(&mut self, store: &Store, pace: Pace) -> Result<Option<Lot>> {
        let lot = self.lots.next(store, pace.leaves)?;
        self.delta.pended.append(&mut self.lots.entered);
        Ok(lot)
    }

    /// Moves about `budget` values, but at least one, out of sparse segments. Once none is left,
    /// the records go to the builder. Returns the number of values moved.
    fn take_in(
        &mut self,
        store: &mut Store,
        meta: &mut Meta,
        mut merged: Merged,
        budget: usize,
        pace: Pace,
    ) -> Result<usize> {
        let mut moved = 0;
        while let Some(index) = merged.sparse.pop_front() {
            self.move_value(store, meta, &mut merged.records, index)?;
            moved += 1;
            if moved >= budget && !merged.sparse.is_empty() {
                self.moving = Some(merged);
                return Ok(moved);
            }
        }
        self.builder.push(store, meta, &mut self.delta, merged.records, pace);
        Ok(moved)
    }

    fn move_value(&mut self, store: &mut Store, meta: &mut Meta, records: &mut Records, index: usize) -> Result<()> {
        let encoded = records.encoded(index).to_vec();
        let mut record = decode_record(&encoded);
        if let Body::Stored { hash, len, blob } = record.body {
            let name = (record.key, record.stamp);
            let moved = if meta.erasures.has(record.key) {
                store.add_erased(meta, &mut self.delta, name, len)
            } else {
                let value = store.value(StoredValue { len, blob })?;
                store.add_value(meta, &mut self.delta, name, &value)
            };
            self.delta.pend_value(blob.at.segment, record_bytes(blob.len));
            store.counters.value_moved_bytes.add(record_bytes(moved.len));
            record.body = Body::Stored { hash, len, blob: moved };
            records.replace(index, &record);
        }
        Ok(())
    }

    /// Whether the merge only waits for another thread.
    pub(crate) fn is_going(&self) -> bool {
        self.builder.is_going()
    }

    /// Completes the merge. All records must be in leaves.
    pub(crate) fn finish(mut self, store: &mut Store, meta: &mut Meta) -> MergeRecord {
        assert!(self.left() == 0, "a merge ends when its inputs are read, and in leaves");
        assert!(self.merging.is_empty(), "a merge ends when no lot is being merged");
        assert!(self.moving.is_none(), "a merge ends when all values are moved");
        assert!(self.lots.entered.is_empty(), "a merge ends when all its inputs' nodes are pended");
        let output = self.builder.finish(store, meta, &mut self.delta);
        for blob in self.inputs.iter().flat_map(Tree::blobs) {
            self.delta.pend_value(blob.at.segment, record_bytes(blob.len));
        }
        store.counters.merges_built.one();
        MergeRecord {
            id: meta.next_id(),
            inputs: self.inputs.iter().map(Tree::id).collect(),
            older: self.older,
            output,
            delta: self.delta,
            installed_by: 0,
        }
    }
}

/// A merged lot.
#[derive(Debug, Default)]
struct Merged {
    records: Records,
    /// Indices of records whose values are to be moved.
    sparse: VecDeque<usize>,
    /// Bytes of values that the output no longer refers to, by segment.
    superseded: BTreeMap<u32, u64>,
    /// Number of input records.
    read: usize,
}

/// Keeps the newest record of each key, unless it is a tombstone that the output does not need.
fn merge(lot: &Lot, params: &Params, older_filters: &[Arc<Filter>], sparse: &BTreeSet<u32>) -> Result<Merged> {
    let mut runs = lot.runs()?;
    let (records, bytes) = runs.iter().map(Run::size).fold((0, 0), |all, run| (all.0 + run.0, all.1 + run.1));
    let mut merged = Merged { records: Records::with_room(records, bytes), ..Merged::default() };
    while let Some(youngest) = youngest(runs.iter().map(Run::key))
        && let [newest, older @ ..] = &mut runs[youngest..]
        && let Some((leaf, index)) = newest.first()
    {
        let key = leaf.key(index);
        merged.read += 1;
        for run in older {
            if let Some((leaf, index)) = run.first().filter(|(leaf, index)| leaf.key(*index) == key) {
                if let Body::Stored { blob, .. } = leaf.record(index).body {
                    *merged.superseded.entry(blob.at.segment).or_default() += record_bytes(blob.len);
                }
                run.skip();
                merged.read += 1;
            }
        }
        let record = leaf.encoded_record(index);
        let is_needed = !is_tombstone(record) || {
            let filter_hash = hash::filter_hash(key);
            older_filters.iter().any(|filter| filter.admits_hash(filter_hash))
        };
        if is_needed {
            let is_sparse = |body| matches!(body, Body::Stored { blob, .. } if sparse.contains(&blob.at.segment));
            if !sparse.is_empty() && is_sparse(leaf.record(index).body) {
                merged.sparse.push_back(merged.records.len());
            }
            merged.records.push(record, leaf.weight(index, params));
        }
        newest.skip();
    }
    assert!(runs.iter().all(|run| run.first().is_none()), "a merged lot has no record left");
    assert!(merged.records.len() <= merged.read, "a merge adds no record");
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use coppice_env::{Rng, SimRng, SimStorage};
    use coppice_types::{Change, Operation, ShardId};

    use super::*;
    use crate::{
        Engine, MergeProgress, Options, Position, cache::Class, node::Child, place::page::Pid, testing,
        tree::cursor::ForestCursor,
    };

    fn commit(engine: &mut Engine, version: u64, operations: Vec<Operation>) {
        testing::commit(engine, version, operations);
        while engine.merge_step(100).expect("sound pages") == MergeProgress::Working {}
        engine.prune(Version(version)).expect("usable");
        engine.flush(Position { index: version, term: 1 }, b"").expect("room");
    }

    /// Adds the places of a node, of all nodes below it, and of their bases.
    fn places(engine: &Engine, child: Child, level: u8, class: Class, out: &mut Vec<Pid>) {
        let node = engine.store.node(&child, level, class).expect("sound pages");
        out.push(child.pid);
        out.extend(node.base().map(|base| base.pid));
        if level > 0 {
            (0..node.len()).for_each(|index| places(engine, node.child(index), level - 1, class, out));
        }
    }

    /// The result depends neither on the size of the lots nor on the places of leaves.
    #[test]
    fn lots_come_to_the_newest_record_of_each_key() {
        for seed in 1..=20 {
            let (mut rng, sim) = (SimRng::new(seed), SimStorage::new());
            let params = Params {
                key_bytes_max: 8,
                node_bytes: 320,
                fanout: 4,
                capacity: 60,
                tier_ratio: 4,
                ..Params::default()
            };
            let old_cache_bytes = if seed % 2 == 0 { 0 } else { 64 << 10 };
            let options = Options { old_cache_bytes, ..Options::default() };
            let mut engine =
                Engine::create(sim.storage(), ShardId(0), params.clone(), options.clone()).expect("an empty directory");
            for version in 1..=12 {
                // Only one tree has keys in some ranges.
                let from = rng.next_u64() % 300;
                let keys: BTreeSet<u64> = (0..40).map(|_| from + rng.next_u64() % 200).collect();
                let change = |n: u64| match n % 5 {
                    0 if version > 3 => Change::Delete,
                    _ => Change::Put(vec![version as u8; (n % 60) as usize].into()),
                };
                let operation = |n: u64| Operation { key: format!("{n:04}").into_bytes().into(), change: change(n) };
                let operations = keys.into_iter().map(operation).collect();
                commit(&mut engine, version, operations);
            }
            // Half of the engines have nothing in memory.
            if seed % 4 < 2 {
                drop(engine);
                engine = Engine::open(sim.storage(), options).expect("a directory");
            }
            let trees = engine.meta.tip().trees.clone();
            assert!(trees.len() > 1, "something to merge");
            let mut expected = Vec::new();
            let mut cursor = ForestCursor::seek(&engine.store, &trees, b"").expect("sound pages");
            while let Some(newest) = cursor.next_newest(&engine.store, None).expect("sound pages") {
                expected.push((newest.key.clone(), newest.stamp, newest.is_tombstone()));
            }
            let mut all = Vec::new();
            for tree in &trees {
                tree.root.into_iter().for_each(|root| places(&engine, root, tree.level, tree.class(), &mut all));
            }
            all.sort_unstable();
            // A filter that admits everything keeps all tombstones.
            let admits_all = Arc::new(Filter::from_blocks(vec![[u64::MAX; 8]]).expect("a block"));
            for lot_leaves in [1, 2, 3, 7, 1000] {
                let mut lots = Lots::new(&engine.store, &trees).expect("sound pages");
                let (mut found, mut read, mut count) = (Vec::new(), 0, 0);
                while let Some(lot) = lots.next(&engine.store, lot_leaves).expect("sound pages") {
                    let merged =
                        merge(&lot, &params, &[Arc::clone(&admits_all)], &BTreeSet::new()).expect("sound pages");
                    for index in 0..merged.records.len() {
                        let record = decode_record(merged.records.encoded(index));
                        found.push((record.key.to_vec(), record.stamp, record.body == Body::Tombstone));
                    }
                    (read, count) = (read + merged.read as u64, count + 1);
                }
                assert!(found == expected, "seed {seed}, lots of {lot_leaves}");
                assert_eq!(read, trees.iter().map(|tree| tree.entries).sum::<u64>());
                assert!(count == 1 || lot_leaves < 1000, "{count} lots");
                lots.entered.sort_unstable();
                assert_eq!(lots.entered, all);
            }
        }
    }

    /// Three frozen trees of eight keys: 0 to 7 with values in the log, then deletes of 0 to 3 and
    /// puts of 8 to 11, then puts of 4 to 11. The active tree has one key.
    fn with_tombstones() -> Engine {
        let mut engine = testing::create(&SimStorage::new(), testing::small());
        testing::commit(&mut engine, 1, testing::puts(0..8, 100));
        let deletes = (0..4).map(|number| testing::delete(&testing::key(number)));
        testing::commit(&mut engine, 2, deletes.chain(testing::puts(8..12, 100)).collect());
        testing::commit(&mut engine, 3, testing::puts(4..12, 5));
        testing::commit(&mut engine, 4, vec![testing::put("z", 5)]);
        assert_eq!(engine.meta.tip().trees.iter().map(|tree| tree.entries).collect::<Vec<_>>(), [1, 8, 8, 8]);
        engine
    }

    fn task(engine: &Engine, at: usize, count: usize) -> MergeTask {
        let trees = &engine.meta.tip().trees;
        MergeTask::new(&engine.store, &engine.meta, trees, at, count, Workers::Inline).expect("readable filters")
    }

    /// Runs a merge to its end.
    fn run(engine: &mut Engine, mut task: MergeTask) -> MergeRecord {
        while task.step(&mut engine.store, &mut engine.meta, 5, false).expect("sound pages").is_some() {}
        task.finish(&mut engine.store, &mut engine.meta)
    }

    /// Keys of a tree, each with the version that wrote the record; `None` for a tombstone.
    fn records(engine: &Engine, tree: &Tree) -> Vec<(u32, Option<u64>)> {
        let mut cursor = ForestCursor::seek(&engine.store, std::slice::from_ref(tree), b"").expect("sound pages");
        let mut found = Vec::new();
        while let Some(newest) = cursor.next_newest(&engine.store, None).expect("sound pages") {
            let number = String::from_utf8_lossy(&newest.key).parse().expect("keys are numbers");
            found.push((number, newest.is_put().then_some(newest.stamp.version.0)));
        }
        found
    }

    #[test]
    fn a_tombstone_stays_while_an_older_tree_may_have_its_key() {
        let mut engine = with_tombstones();
        let older_stays = task(&engine, 1, 2);
        let output = run(&mut engine, older_stays).output;
        let puts = (4..12).map(|number| (number, Some(3)));
        assert_eq!(
            records(&engine, &output),
            (0..4).map(|number| (number, None)).chain(puts.clone()).collect::<Vec<_>>()
        );
        let all = task(&engine, 1, 3);
        let output = run(&mut engine, all).output;
        assert_eq!(records(&engine, &output), puts.collect::<Vec<_>>());
        assert_eq!(output.entries, 8);
    }

    #[test]
    fn a_tombstone_goes_if_no_older_tree_may_have_its_key() {
        let mut engine = testing::create(&SimStorage::new(), testing::small());
        testing::commit(&mut engine, 1, testing::puts(100..108, 5));
        testing::commit(&mut engine, 2, testing::puts(0..8, 5));
        let deletes = (0..4).map(|number| testing::delete(&testing::key(number)));
        testing::commit(&mut engine, 3, deletes.chain(testing::puts(8..12, 5)).collect());
        testing::commit(&mut engine, 4, vec![testing::put("z", 5)]);
        let trees = engine.meta.tip().trees.clone();
        assert_eq!(trees.len(), 4);
        let task = task(&engine, 1, 2);
        let output = run(&mut engine, task).output;
        let admitted = |number: &u32| {
            let filter_hash = hash::filter_hash(testing::key(*number).as_bytes());
            engine.store.admits(&trees[3], filter_hash).expect("readable")
        };
        let tombstones: Vec<u32> = (0..4).filter(admitted).collect();
        assert!(tombstones.len() < 4, "a filter excludes most keys");
        let found = records(&engine, &output);
        let deleted = found.iter().filter(|(_, put)| put.is_none()).map(|(number, _)| *number);
        assert_eq!(deleted.collect::<Vec<_>>(), tombstones);
        assert_eq!(found.len(), tombstones.len() + 8);
    }

    #[test]
    fn a_merge_pends_the_nodes_filters_and_values_that_its_output_replaces() {
        let mut engine = with_tombstones();
        let inputs = engine.meta.tip().trees[1..].to_vec();
        let task = task(&engine, 1, 3);
        assert_eq!(task.ids(), (inputs.iter().map(Tree::id).collect(), &[][..]));
        let record = run(&mut engine, task);
        let mut nodes = Vec::new();
        for tree in &inputs {
            places(&engine, tree.root.expect("it has records"), tree.level, tree.class(), &mut nodes);
        }
        let mut pended = record.delta.pended.clone();
        nodes.sort_unstable();
        pended.sort_unstable();
        assert_eq!(pended, nodes);
        // All values of the log were deleted or replaced by short ones: 12 of 100 bytes each.
        let filters: u64 = inputs.iter().flat_map(Tree::blobs).map(|blob| record_bytes(blob.len)).sum();
        assert_eq!(record.delta.values_pended.values().sum::<u64>(), filters + 12 * record_bytes(100));
    }

    #[test]
    fn a_merge_counts_what_it_has_read_and_what_is_left() {
        let mut engine = with_tombstones();
        let mut task = task(&engine, 1, 3);
        assert_eq!((task.left(), engine.counters().merge_records), (24, 0));
        let mut last = 24;
        while let Some(done) = task.step(&mut engine.store, &mut engine.meta, 4, false).expect("sound pages") {
            assert!(done >= 4 && task.left() <= last, "{} left after {last}", task.left());
            last = task.left();
        }
        assert_eq!((task.left(), engine.counters().merge_records), (0, 24));
        assert_eq!(task.finish(&mut engine.store, &mut engine.meta).output.entries, 8);
        assert_eq!(engine.counters().merges_built, 1);
    }

    #[test]
    fn a_merge_stands_in_a_forest_with_its_inputs_and_the_same_older_trees() {
        let engine = with_tombstones();
        let trees = engine.meta.tip().trees.clone();
        let task = task(&engine, 1, 2);
        assert!(task.stands_in(&trees));
        let younger = [&[Tree::empty()], &trees[..]].concat();
        assert!(task.stands_in(&younger), "younger trees do not matter");
        assert!(!task.stands_in(&trees[1..]), "the first tree of a forest is active");
        assert!(!task.stands_in(&trees[..3]), "an older tree is gone");
        let swapped = [trees[0].clone(), trees[2].clone(), trees[1].clone(), trees[3].clone()];
        assert!(!task.stands_in(&swapped));
        let mut other_filter = trees.clone();
        other_filter[3].filter = trees[2].filter;
        assert!(!task.stands_in(&other_filter));
    }

    #[test]
    fn live_values_leave_segments_that_are_mostly_dead() {
        let options = Options { segment_bytes_max: 1000, ..testing::options() };
        let mut engine = testing::create_with(&SimStorage::new(), testing::small(), options);
        testing::commit(&mut engine, 1, testing::puts(0..8, 100));
        testing::commit(&mut engine, 2, testing::puts(1..9, 101));
        testing::commit(&mut engine, 3, vec![testing::put("z", 5)]);
        testing::merge(&mut engine);
        assert_eq!(engine.counters().value_moved_bytes, 0, "the first segment was full of live values");
        testing::commit(&mut engine, 4, vec![]);
        engine.prune(Version(4)).expect("usable");
        assert_eq!(engine.meta.segments[&0].live, record_bytes(100), "one of eight values is left");
        testing::commit(&mut engine, 5, testing::puts(20..27, 100));
        testing::commit(&mut engine, 6, vec![testing::put("y", 5)]);
        testing::merge(&mut engine);
        assert_eq!(engine.counters().value_moved_bytes, record_bytes(100));
        testing::commit(&mut engine, 7, vec![]);
        engine.prune(Version(7)).expect("usable");
        assert_eq!(engine.meta.segments.get(&0).map_or(0, |segment| segment.live), 0);
        let page = engine.view_at(Version(7)).expect("decided").range(b"", None, 99, true).expect("sound pages");
        let lens: Vec<usize> = page.records.iter().map(|it| it.value.as_ref().map_or(0, Vec::len)).collect();
        assert_eq!(lens, [&[100][..], &[101; 8], &[100; 7], &[5; 2]].concat());
    }
}
