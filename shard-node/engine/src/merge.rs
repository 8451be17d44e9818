//! Merging frozen trees, a few leaves at a time.
//!
//! Frozen trees never change, so the output is a function of the inputs and of the filters of the trees older than they
//! (`docs/verification.md` section 6). A task reserves pages as it goes; nothing durable names them before the output
//! is complete, so a crash or a cancelled task leaves nothing behind. The complete output is kept aside until a version
//! installs it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use coppice_env::{OrderedQueue, Workers};
use coppice_types::{Params, Version};
use coppice_verify::{
    hash,
    rules::{self, Filter},
};

use crate::{
    Engine, Error, MergeName, MergePace, MergeProgress, Result,
    meta::{Delta, MergeRecord, Meta, MetaOp, Tree, TreeId},
    node::{Body, decode_record, is_tombstone},
    page::{PAGE_BYTES, PageFile},
    shortcuts,
    store::Store,
    tree::{
        build::{Builder, Records},
        cursor::youngest,
        lots::{Lot, Lots, Pace, Run},
    },
    values::{self, StoredValue},
};

/// So many records may be owed before a merge is behind.
const MERGE_OWED_MAX: u64 = 512;

/// Of the room that the active tree has when a merge begins that must end before it freezes, one of so many parts is left when the merge has
/// read its inputs: what is made of all keys takes another thread some time.
const REST_PART: u64 = 4;

/// Most leaves that are one piece of work, and about how many records have one: a step with a small budget takes few.
const LOT_LEAVES_MAX: usize = 16;
const LEAF_RECORDS: usize = 32;
/// Most pieces that are ahead of the engine.
const LOTS_AHEAD_MAX: usize = 64;

/// A merge at work.
#[derive(Debug)]
pub(crate) struct MergeTask {
    inputs: Vec<Tree>,
    older: Vec<TreeId>,
    older_filters: Arc<[Arc<Filter>]>,
    lots: Lots,
    /// Lots that are merged or being merged.
    merging: OrderedQueue<Result<Merged>>,
    /// How many of them may be.
    lots_ahead: usize,
    /// There are threads.
    is_helped: bool,
    /// A lot that is merged, and has values that are to be moved.
    moving: Option<Merged>,
    builder: Builder,
    /// Segments that live values are moved out of.
    sparse: Arc<BTreeSet<u32>>,
    /// Records of the inputs that were read.
    read: u64,
    pub(crate) delta: Delta,
}

impl MergeTask {
    /// Begins to merge `count` trees of a forest from `at` on.
    pub(crate) fn new(
        store: &Store,
        meta: &Meta,
        trees: &[Tree],
        at: usize,
        count: usize,
        workers: Workers,
    ) -> Result<Self> {
        let (inputs, older) = trees[at..].split_at(count);
        assert!(inputs.len() >= 2);
        let records: u64 = inputs.iter().map(|tree| tree.entries).sum();
        let with_shortcuts = store.wants_shortcuts(records);
        // A sound tree has no more than there is room for, and an unsound one is found when it is read.
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

    /// The trees that it reads, youngest first, and all older ones.
    pub(crate) fn ids(&self) -> (Vec<TreeId>, &[TreeId]) {
        (self.inputs.iter().map(Tree::id).collect(), &self.older)
    }

    /// Whether its inputs stand in this forest.
    pub(crate) fn stands_in(&self, trees: &[Tree]) -> bool {
        let (mut ids, older) = self.ids();
        ids.extend_from_slice(older);
        trees.len() > ids.len() && trees[trees.len() - ids.len()..].iter().map(Tree::id).eq(ids)
    }

    fn entries(&self) -> u64 {
        self.inputs.iter().map(|tree| tree.entries).sum()
    }

    /// Records that are to be read, and such as were read and whose leaves are not there.
    fn left(&self) -> u64 {
        self.entries().saturating_sub(self.read) + self.builder.waiting()
    }

    /// Merges about `budget` records, or a leaf's, and says how many. If the merge is behind, others go on with what comes next. None once
    /// all is read and in leaves; what is made of all keys may take longer.
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
            // One more with each piece, so that the beginning of a merge waits for few. Who need not hurry has nothing done by others, so
            // that the time he takes is all that it takes.
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

    /// What becomes of the next lot. None at the end.
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

    /// Moves values that are to be moved, one at least and about `budget`, and goes on to leaves once there are no others. How many were moved.
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
            let value = store.value(StoredValue { len, blob })?;
            self.delta.pend_value(blob.at.segment, values::record_bytes(blob.len));
            let moved = store.add_value(meta, &mut self.delta, (record.key, record.stamp), &value);
            store.counters.value_moved_bytes.add(values::record_bytes(moved.len));
            record.body = Body::Stored { hash, len, blob: moved };
            records.replace(index, &record);
        }
        Ok(())
    }

    /// Whether it only waits for another thread.
    fn is_going(&self) -> bool {
        self.builder.is_going()
    }

    /// The output, once all records are read.
    pub(crate) fn finish(mut self, store: &mut Store, meta: &mut Meta) -> MergeRecord {
        assert!(self.left() == 0, "a merge ends when its inputs are read, and in leaves");
        let output = self.builder.finish(store, meta, &mut self.delta);
        for blob in self.inputs.iter().flat_map(Tree::blobs) {
            self.delta.pend_value(blob.at.segment, values::record_bytes(blob.len));
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

/// What becomes of a lot.
#[derive(Debug, Default)]
struct Merged {
    records: Records,
    /// Those whose values are to be moved.
    sparse: VecDeque<usize>,
    /// Bytes of values that have no record any more, by segment.
    superseded: BTreeMap<u32, u64>,
    /// Records of the inputs.
    read: usize,
}

/// Takes the newest record of each key, if the output needs it.
fn merge(lot: &Lot, params: &Params, older_filters: &[Arc<Filter>], sparse: &BTreeSet<u32>) -> Result<Merged> {
    let mut runs = lot.runs()?;
    let (records, bytes) = runs.iter().map(Run::size).fold((0, 0), |all, run| (all.0 + run.0, all.1 + run.1));
    let mut merged = Merged { records: Records::with_room(records, bytes), ..Merged::default() };
    while let Some(youngest) = youngest(runs.iter().map(Run::key)) {
        let (newest, older) = runs[youngest..].split_first_mut().expect("it is one of them");
        let (leaf, index) = newest.first().expect("it has a key");
        let key = leaf.key(index);
        merged.read += 1;
        for run in older {
            if let Some((leaf, index)) = run.first().filter(|(leaf, index)| leaf.key(*index) == key) {
                if let Body::Stored { blob, .. } = leaf.record(index).body {
                    *merged.superseded.entry(blob.at.segment).or_default() += values::record_bytes(blob.len);
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
    Ok(merged)
}

impl Engine {
    /// How much there is to merge, and whether it is behind: merges keep pace with the writes, so that they are complete before these have
    /// used up half of the room that is left below the limit of trees; where that is the active tree's alone, before three quarters.
    #[must_use]
    pub fn merge_pace(&self) -> MergePace {
        match self.merge_left() {
            0 => MergePace::Idle,
            _ if self.merge.as_ref().is_some_and(MergeTask::is_going) => MergePace::Waiting,
            left if self.merge_owed >= left.min(MERGE_OWED_MAX) => MergePace::Behind(self.merge_owed),
            _ => MergePace::Going,
        }
    }

    /// Records that the merge which the tier rule asks for has yet to read.
    fn merge_left(&self) -> u64 {
        if let Some(task) = &self.merge {
            return task.left().max(1);
        }
        let tip = self.meta.tip();
        let frozen: Vec<u64> = tip.trees[1..].iter().map(|tree| tree.entries).collect();
        let wanted = rules::plan_merge(&self.meta.params, &frozen);
        let missing = wanted.filter(|count| self.meta.find_merge(&tip.trees, 1, *count).is_none());
        missing.map_or(0, |count| frozen[..count].iter().sum())
    }

    /// Notes that so many records were written.
    pub(crate) fn owe_merging(&mut self, written: usize) {
        let left = self.merge_left();
        let (params, trees) = (&self.meta.params, &self.meta.tip().trees);
        let capacity = u64::from(params.capacity);
        let rest = capacity.saturating_sub(trees[0].entries);
        let more_trees = usize::from(params.tree_limit).saturating_sub(trees.len()) as u64;
        let room = if left > 0 && more_trees == 0 {
            // The same with each write.
            rest.saturating_sub(*self.merge_until.get_or_insert(rest / REST_PART))
        } else {
            self.merge_until = None;
            (rest + more_trees * capacity) / 2
        };
        let owed = u128::from(left) * written as u128 / u128::from(room.max(1));
        self.merge_owed = self.merge_owed.saturating_add(u64::try_from(owed).unwrap_or(left)).min(left);
    }

    /// Works on the merge that the tier rule asks for in the decided state, for about `budget` records, or a leaf's.
    ///
    /// # Errors
    /// What reading pages gives; the merge begins anew with the next call.
    pub fn merge_step(&mut self, budget: usize) -> Result<MergeProgress> {
        self.check_usable()?;
        self.drop_lost_merges();
        if self.merge.is_none() {
            let tip = self.meta.tip();
            let frozen: Vec<u64> = tip.trees[1..].iter().map(|tree| tree.entries).collect();
            let Some(count) = rules::plan_merge(&self.meta.params, &frozen) else {
                return Ok(MergeProgress::Idle);
            };
            if self.meta.find_merge(&tip.trees, 1, count).is_some() {
                return Ok(MergeProgress::Idle);
            }
            let workers = self.options.workers;
            self.merge = Some(MergeTask::new(&self.store, &self.meta, &tip.trees, 1, count, workers)?);
        }
        let is_behind = matches!(self.merge_pace(), MergePace::Behind(_));
        let mut task = self.merge.take().expect("it was begun above");
        let stepped = task.step(&mut self.store, &mut self.meta, budget, is_behind);
        let done = stepped.as_ref().map_or(0, |done| done.unwrap_or_default());
        self.merge_owed = self.merge_owed.saturating_sub(done.max(budget) as u64);
        match stepped {
            Ok(done) if done.is_some() || task.is_going() => {
                self.merge = Some(task);
                Ok(MergeProgress::Working)
            }
            Ok(_) => {
                let record = task.finish(&mut self.store, &mut self.meta);
                let inputs = record.inputs.iter().map(|input| input.digest).collect();
                let name = MergeName { inputs, output: record.output.digest };
                self.apply(MetaOp::AddMerge(record));
                Ok(MergeProgress::Built(name))
            }
            Err(error) => {
                self.meta.discard_all(&task.delta);
                self.forget_freed();
                Err(error)
            }
        }
    }

    /// What the end of a merge may add at once to what waits for a flush, in bytes: the filter and the shortcuts of all records of the decided
    /// state.
    #[must_use]
    pub fn merge_end_bytes(&self) -> u64 {
        let records = self.meta.tip().trees.iter().map(|tree| tree.entries).sum();
        let filter_bytes =
            rules::filter_blocks(&self.meta.params, records).saturating_mul(rules::FILTER_BLOCK_BITS / 8);
        let placed = records.min(shortcuts::RECORDS_MAX);
        let has_shortcuts = self.store.wants_shortcuts(placed);
        let shortcut_bytes = if has_shortcuts { placed * shortcuts::RECORD_BYTES_MAX + PAGE_BYTES as u64 } else { 0 };
        filter_bytes.saturating_add(shortcut_bytes)
    }

    /// Merges that are built here and can be installed on the decided state.
    #[must_use]
    pub fn built_merges(&self) -> Vec<MergeName> {
        self.shape_of(&self.meta.tip().trees).ready
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::{Rng, SimRng, SimStorage};
    use coppice_types::{Change, Epoch, Operation, ShardId};

    use super::*;
    use crate::{
        Options, RaftPosition, cache::Class, fsck, node::Child, page::Pid, testing, tree::cursor::ForestCursor,
    };

    fn flush(engine: &mut Engine, index: u64) {
        engine.flush(RaftPosition { index, term: 1 }, b"").expect("room");
    }

    fn commit(engine: &mut Engine, version: u64, operations: Vec<Operation>) {
        testing::commit(engine, version, operations);
        while engine.merge_step(100).expect("sound pages") == MergeProgress::Working {}
        engine.prune(Version(version)).expect("usable");
        flush(engine, version);
    }

    /// Places of all nodes below one, and of what they rest on.
    fn places(engine: &Engine, child: Child, level: u8, class: Class, out: &mut Vec<Pid>) {
        let node = engine.store.node(&child, level, class).expect("sound pages");
        out.push(child.pid);
        out.extend(node.base().map(|base| base.pid));
        if level > 0 {
            (0..node.len()).for_each(|index| places(engine, node.child(index), level - 1, class, out));
        }
    }

    /// However small the lots are, and wherever leaves lie.
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
                // Some parts of the keys are in one tree alone.
                let from = rng.next_u64() % 300;
                let keys: BTreeSet<u64> = (0..40).map(|_| from + rng.next_u64() % 200).collect();
                let change = |n: u64| match n % 5 {
                    0 if version > 3 => Change::Delete,
                    _ => Change::Put(vec![version as u8; (n % 60) as usize]),
                };
                let operation = |n: u64| Operation { key: format!("{n:04}").into_bytes(), change: change(n) };
                let operations = keys.into_iter().map(operation).collect();
                commit(&mut engine, version, operations);
            }
            // Half of the engines have nothing of it in memory.
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

    /// For values that have shortcuts, and for such that have none.
    #[test]
    fn the_end_of_a_merge_adds_no_more_than_is_said() {
        for (value_bytes, old_cache_bytes, near) in
            [(1100, 64 << 10, true), (40, 64 << 10, false), (40, 64 << 20, true)]
        {
            let params = Params { capacity: 2000, tier_ratio: 2, ..Params::default() };
            let options = Options { old_cache_bytes, ..Options::default() };
            let mut engine =
                Engine::create(SimStorage::new().storage(), ShardId(0), params, options).expect("an empty directory");
            let mut most = 0;
            for version in 1..=10_u64 {
                let key = |n: u64| hash::sha256(&(1000 * version + n).to_le_bytes()).0.to_vec();
                let put = |n| Operation { key: key(n), change: Change::Put(vec![n as u8; value_bytes]) };
                testing::commit(&mut engine, version, (0..1000).map(put).collect());
                loop {
                    let (before, said) = (engine.unflushed_bytes(), engine.merge_end_bytes());
                    match engine.merge_step(1).expect("sound pages") {
                        MergeProgress::Working => {}
                        MergeProgress::Idle => break,
                        MergeProgress::Built(_) => {
                            // A step's own nodes, too.
                            let added = engine.unflushed_bytes() - before;
                            assert!(added <= said + (64 << 10), "{added} bytes, where {said} were to come at most");
                            most = added.max(most);
                        }
                    }
                }
                flush(&mut engine, version);
            }
            let said = engine.merge_end_bytes();
            assert!(!near || most > said / 4, "{most} of {said} bytes");
        }
    }

    /// What a merge has taken grows with the data, and what drops versions does not: the next step or the next writes give it back.
    #[test]
    fn what_a_lost_merge_took_is_given_back_behind_the_rollback() {
        for (is_complete, by_step) in [(false, false), (false, true), (true, false), (true, true)] {
            let sim = SimStorage::new();
            let params = Params { capacity: 200, ..Params::default() };
            let mut engine =
                Engine::create(sim.storage(), ShardId(0), params, Options::default()).expect("an empty directory");
            let quarter = |version: u64| {
                let put = |n: u64| Operation { key: format!("{n:04}").into_bytes(), change: Change::Put(vec![9; 60]) };
                (0..800).filter(|n| n % 4 == version).map(put).collect()
            };
            let used = |engine: &Engine| {
                let live = engine.meta.segments.values().map(|segment| segment.live).sum::<u64>();
                (PageFile::ALL.map(|file| engine.meta.space(file).used_pages()), live)
            };
            (1..=2).for_each(|version| testing::commit(&mut engine, version, quarter(version)));
            flush(&mut engine, 1);
            let (kept, before) = (engine.decided(), used(&engine));
            assert_eq!(engine.merge_pace(), MergePace::Idle);
            testing::commit(&mut engine, 3, quarter(3));
            while engine.merge_step(100).expect("sound pages") == MergeProgress::Working
                && (is_complete || engine.counters().merge_records < 200)
            {}
            flush(&mut engine, 2);
            assert_eq!((engine.built_merges().len(), engine.merge.is_some()), (usize::from(is_complete), !is_complete));
            engine.rollback(kept.version, Epoch(1)).expect("not pruned");
            assert!(used(&engine) > before, "not by the rollback");
            if by_step {
                assert_eq!(engine.merge_step(1).expect("usable"), MergeProgress::Idle);
            } else {
                flush(&mut engine, 3);
            }
            assert_eq!(used(&engine), before);
            flush(&mut engine, 4);
            drop(engine);
            assert!(fsck(sim.storage()).expect("a directory").is_clean());
        }
    }

    /// Neither records nor tombstones, and no bytes of values, once the trees that had them are merged.
    #[test]
    fn a_key_that_no_retained_version_has_leaves_nothing_behind() {
        let sim = SimStorage::new();
        let params =
            Params { key_bytes_max: 8, node_bytes: 320, fanout: 4, capacity: 32, tier_ratio: 4, ..Params::default() };
        let options = Options { segment_bytes_max: 4000, ..Options::default() };
        let mut engine = Engine::create(sim.storage(), ShardId(0), params, options).expect("an empty directory");
        let put = |name: char, n: u64, byte: u8| Operation {
            key: format!("{name}{n:04}").into_bytes(),
            change: Change::Put(vec![byte; 200]),
        };
        let delete = |n: u64| Operation { key: format!("gone{n:03}").into_bytes(), change: Change::Delete };
        let gone = |n: u64| Operation { key: format!("gone{n:03}").into_bytes(), ..put('x', n, 1) };
        let mut version = 0;
        let mut next = |engine: &mut Engine, operations: Vec<Operation>| {
            version += 1;
            commit(engine, version, operations);
        };
        for round in 0..10 {
            next(&mut engine, (0..20).map(|n| gone(20 * round + n)).collect());
        }
        let (before, held) =
            (engine.disk_usage().expect("readable"), engine.shape(&engine.decided()).expect("decided"));
        assert!(held.entries.iter().sum::<u64>() >= 200 && before.value_live_bytes >= 200 * 216);
        for round in 0..10 {
            next(&mut engine, (0..20).map(|n| delete(20 * round + n)).collect());
        }
        // Others come and go, so that trees freeze and merge.
        let of_gone = |engine: &Engine| {
            let trees = &engine.meta.tip().trees;
            let mut cursor = ForestCursor::seek(&engine.store, trees, b"").expect("sound pages");
            let mut found = 0;
            while let Some(newest) = cursor.next_newest(&engine.store, None).expect("sound pages") {
                found += usize::from(newest.key.starts_with(b"gone"));
            }
            found
        };
        assert!(of_gone(&engine) > 0, "tombstones");
        for round in 0..40 {
            next(&mut engine, (0..20).map(|n| put('k', (round * 7 + n) % 60, round as u8)).collect());
        }
        assert_eq!(of_gone(&engine), 0);
        let after = engine.disk_usage().expect("readable");
        assert!(after.value_live_bytes < 4 * 60 * 216, "{after:?}");
        assert!(after.value_bytes < 4 * after.value_live_bytes, "{after:?}");
        drop(engine);
        let report = fsck(sim.storage()).expect("a directory");
        assert!(report.is_clean() && report.records < 4 * 60, "{report:?}");
    }
}
