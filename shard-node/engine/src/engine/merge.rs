//! Merges during normal work: when one begins, how it keeps pace with writes, and how its output is
//! kept.

use coppice_verify::rules;

use crate::{
    Engine, MergeName, MergePace, MergeProgress, Result, cache::shortcuts, meta::MetaOp, place::page::PAGE_BYTES,
    tree::merge::MergeTask,
};

/// A merge is behind when this many records are owed.
const MERGE_OWED_MAX: u64 = 512;

/// A merge that must finish before the next freeze aims to leave 1/`REST_PART` of the active tree's
/// free capacity when it has read its inputs. Another thread needs that time to make the filter and
/// the shortcuts.
const REST_PART: u64 = 4;

impl Engine {
    /// How much there is to merge, and whether merging is behind.
    ///
    /// Merges keep pace with writes. They should be complete before writes have used half of the
    /// capacity that is left below the limit of trees. If only the active tree has capacity left,
    /// they should have read their inputs before three quarters of it are used.
    #[must_use]
    pub fn merge_pace(&self) -> MergePace {
        match self.merge_left() {
            0 => MergePace::Idle,
            _ if self.merge.as_ref().is_some_and(MergeTask::is_going) => MergePace::Waiting,
            left if self.merge_owed >= left.min(MERGE_OWED_MAX) => MergePace::Behind(self.merge_owed),
            _ => MergePace::Going,
        }
    }

    /// Number of records that are still to be processed by the merge that the tier rule asks for.
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

    /// Notes that `written` records were written.
    pub(crate) fn owe_merging(&mut self, written: usize) {
        let left = self.merge_left();
        let (params, trees) = (&self.meta.params, &self.meta.tip().trees);
        let capacity = u64::from(params.capacity);
        let rest = capacity.saturating_sub(trees[0].entries);
        let more_trees = usize::from(params.tree_limit).saturating_sub(trees.len()) as u64;
        let room = if left > 0 && more_trees == 0 {
            // The target stays the same from write to write.
            rest.saturating_sub(*self.merge_until.get_or_insert(rest / REST_PART))
        } else {
            self.merge_until = None;
            (rest + more_trees * capacity) / 2
        };
        let owed = u128::from(left) * written as u128 / u128::from(room.max(1));
        self.merge_owed = self.merge_owed.saturating_add(u64::try_from(owed).unwrap_or(left)).min(left);
    }

    /// Works on the merge that the tier rule asks for in the decided state: merges about `budget`
    /// records, but at least those of one leaf.
    ///
    /// # Errors
    /// `Corrupted`, a failure of the storage, or `Poisoned`. The next call begins the merge again.
    pub fn merge_step(&mut self, budget: usize) -> Result<MergeProgress> {
        self.check_usable()?;
        self.drop_lost_merges();
        if self.merge.is_none() {
            self.merge = self.planned_merge()?;
        }
        let is_behind = matches!(self.merge_pace(), MergePace::Behind(_));
        let Some(mut task) = self.merge.take() else { return Ok(MergeProgress::Idle) };
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

    /// Begins the merge that the tier rule asks for in the decided state. `None` if it asks for
    /// none, or if the output is built.
    fn planned_merge(&self) -> Result<Option<MergeTask>> {
        let tip = self.meta.tip();
        let frozen: Vec<u64> = tip.trees[1..].iter().map(|tree| tree.entries).collect();
        match rules::plan_merge(&self.meta.params, &frozen) {
            Some(count) if self.meta.find_merge(&tip.trees, 1, count).is_none() => {
                MergeTask::new(&self.store, &self.meta, &tip.trees, 1, count, self.options.workers).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Limit on the bytes that the end of a merge adds at once to the next flush: the filter and
    /// the shortcuts of all records of the decided state.
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

    /// Built merges that can be installed on the decided state.
    #[must_use]
    pub fn built_merges(&self) -> Vec<MergeName> {
        self.shape_of(&self.meta.tip().trees).ready
    }
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;
    use coppice_types::{Change, Epoch, Operation, Params, ShardId, Version};
    use coppice_verify::hash;

    use super::*;
    use crate::{Options, Position, fsck, place::page::PageFile, testing, tree::cursor::ForestCursor};

    fn flush(engine: &mut Engine, index: u64) {
        engine.flush(Position { index, term: 1 }, b"").expect("room");
    }

    fn commit(engine: &mut Engine, version: u64, operations: Vec<Operation>) {
        testing::commit(engine, version, operations);
        while engine.merge_step(100).expect("sound pages") == MergeProgress::Working {}
        engine.prune(Version(version)).expect("usable");
        flush(engine, version);
    }

    /// The first and the last case have shortcuts, the second has none.
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
                let put = |n| Operation { key: key(n).into(), change: Change::Put(vec![n as u8; value_bytes].into()) };
                testing::commit(&mut engine, version, (0..1000).map(put).collect());
                loop {
                    let (before, said) = (engine.unflushed_bytes(), engine.merge_end_bytes());
                    match engine.merge_step(1).expect("sound pages") {
                        MergeProgress::Working => {}
                        MergeProgress::Idle => break,
                        MergeProgress::Built(_) => {
                            // The step's own nodes count, too.
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

    /// The space that a merge has taken grows with the data; the cost of a rollback must not. The
    /// next step or the next writes free that space.
    #[test]
    fn what_a_lost_merge_took_is_given_back_behind_the_rollback() {
        for (is_complete, by_step) in [(false, false), (false, true), (true, false), (true, true)] {
            let sim = SimStorage::new();
            let params = Params { capacity: 200, ..Params::default() };
            let mut engine =
                Engine::create(sim.storage(), ShardId(0), params, Options::default()).expect("an empty directory");
            let quarter = |version: u64| {
                let put = |n: u64| Operation {
                    key: format!("{n:04}").into_bytes().into(),
                    change: Change::Put(vec![9; 60].into()),
                };
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

    /// Once its trees are merged, such a key has no records, tombstones or value bytes.
    #[test]
    fn a_key_that_no_retained_version_has_leaves_nothing_behind() {
        let sim = SimStorage::new();
        let params =
            Params { key_bytes_max: 8, node_bytes: 320, fanout: 4, capacity: 32, tier_ratio: 4, ..Params::default() };
        let options = Options { segment_bytes_max: 4000, ..Options::default() };
        let mut engine = Engine::create(sim.storage(), ShardId(0), params, options).expect("an empty directory");
        let put = |name: char, n: u64, byte: u8| Operation {
            key: format!("{name}{n:04}").into_bytes().into(),
            change: Change::Put(vec![byte; 200].into()),
        };
        let delete = |n: u64| Operation { key: format!("gone{n:03}").into_bytes().into(), change: Change::Delete };
        let gone = |n: u64| Operation { key: format!("gone{n:03}").into_bytes().into(), ..put('x', n, 1) };
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
        // Other keys come and go, so trees freeze and merge.
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

    /// An engine with this many full frozen trees of eight records, and an active tree of one.
    fn with_frozen(trees: u32) -> Engine {
        let mut engine = testing::create(&SimStorage::new(), testing::small());
        for tree in 0..trees {
            testing::commit(&mut engine, u64::from(tree) + 1, testing::puts(8 * tree..8 * tree + 8, 100));
        }
        testing::commit(&mut engine, 100, vec![testing::put("z", 100)]);
        assert_eq!(engine.meta.tip().trees.len(), 1 + trees as usize);
        engine
    }

    #[test]
    fn without_two_frozen_trees_there_is_nothing_to_merge() {
        for trees in [0, 1] {
            let mut engine = with_frozen(trees);
            assert_eq!(engine.merge_pace(), MergePace::Idle);
            assert_eq!(engine.merge_step(1000).expect("usable"), MergeProgress::Idle);
            assert_eq!((engine.built_merges(), engine.counters().merge_records), (vec![], 0));
        }
    }

    #[test]
    fn a_merge_goes_in_steps_until_its_output_can_be_installed() {
        let mut engine = with_frozen(2);
        let inputs: Vec<_> = engine.meta.tip().trees[1..].iter().map(|tree| tree.digest).collect();
        let mut steps = 0;
        let name = loop {
            assert!(!matches!(engine.merge_pace(), MergePace::Idle | MergePace::Waiting));
            match engine.merge_step(1).expect("sound pages") {
                MergeProgress::Working => steps += 1,
                MergeProgress::Built(name) => break name,
                MergeProgress::Idle => panic!("the merge was not built"),
            }
        };
        assert!(steps > 2, "{steps} steps");
        assert_eq!((&name.inputs, engine.built_merges()), (&inputs, vec![name.clone()]));
        assert_eq!((engine.counters().merge_records, engine.counters().merges_built), (16, 1));
        assert_eq!(engine.merge_pace(), MergePace::Idle);
        assert_eq!(engine.merge_step(1).expect("usable"), MergeProgress::Idle, "it is built once");
        let staged = testing::stage(&mut engine, 101, vec![]);
        assert_eq!(staged.shape.entries, [1, 16]);
        assert_eq!(engine.meta.tip().trees.len(), 3, "the decided version has its inputs");
    }

    #[test]
    fn writes_bring_a_merge_behind_and_its_steps_catch_up() {
        let mut engine = with_frozen(2);
        assert_eq!(engine.merge_pace(), MergePace::Going);
        engine.owe_merging(100_000);
        assert_eq!(engine.merge_pace(), MergePace::Behind(16));
        engine.merge_step(6).expect("sound pages");
        assert!((1..=10).contains(&engine.merge_owed), "{} of 16", engine.merge_owed);
        engine.merge_step(10).expect("sound pages");
        assert!(engine.merge_owed == 0 && !matches!(engine.merge_pace(), MergePace::Behind(_)));
    }

    #[test]
    fn what_is_owed_grows_with_the_writes_and_is_never_more_than_what_is_left() {
        let owed = |written| {
            let mut engine = with_frozen(2);
            (engine.merge_owed, engine.merge_until) = (0, None);
            engine.owe_merging(written);
            (engine.merge_owed, engine.merge_left())
        };
        let [none, some, more, most] = [0, 1, 4, usize::MAX].map(owed);
        assert_eq!((none, most), ((0, 16), (16, 16)));
        assert!(0 < some.0 && some.0 < more.0 && more.0 < most.0, "{some:?} {more:?}");
    }

    /// Without room for another tree, the next freeze waits for the merge.
    #[test]
    fn a_merge_that_the_next_freeze_waits_for_aims_at_the_same_place_from_write_to_write() {
        let mut engine =
            testing::create(&SimStorage::new(), Params { tree_limit: 3, capacity: 100, ..testing::small() });
        testing::commit(&mut engine, 1, testing::puts(0..100, 5));
        testing::commit(&mut engine, 2, testing::puts(100..200, 5));
        testing::commit(&mut engine, 3, testing::puts(200..220, 5));
        assert_eq!(engine.merge_until, None, "a third tree had room");
        for (version, numbers) in [(4, 220..260), (5, 260..270)] {
            testing::commit(&mut engine, version, testing::puts(numbers, 5));
            assert_eq!(engine.merge_until, Some(80 / REST_PART), "a part of what the first of them found free");
        }
        testing::merge(&mut engine);
        testing::commit(&mut engine, 6, testing::puts(270..271, 5));
        assert_eq!(engine.merge_until, None, "there is nothing more to merge");
    }

    #[test]
    fn a_step_that_meets_damage_gives_back_what_its_merge_took_and_the_next_one_begins_again() {
        let sim = SimStorage::new();
        let mut engine = testing::create(&sim, Params { capacity: 1000, ..Params::default() });
        testing::commit(&mut engine, 1, testing::puts(0..1000, 9));
        testing::commit(&mut engine, 2, testing::puts(1000..2000, 9));
        testing::commit(&mut engine, 3, testing::puts(2000..2001, 9));
        flush(&mut engine, 1);
        drop(engine);
        testing::damage(&sim, "data");
        let mut engine = testing::open(&sim);
        let before = testing::used(&engine);
        for _ in 0..2 {
            let failed = engine.merge_step(100_000);
            assert!(matches!(failed, Err(crate::Error::Corrupted { ref file, .. }) if file == "data"), "{failed:?}");
            assert!(engine.merge.is_none());
            assert_eq!(testing::used(&engine), before);
        }
        testing::damage(&sim, "data");
        assert!(matches!(engine.merge_step(100_000).expect("sound again"), MergeProgress::Built(_)));
    }

    #[test]
    fn an_engine_that_refuses_changes_merges_nothing() {
        let mut engine = with_frozen(2);
        engine.poisoned = true;
        assert!(matches!(engine.merge_step(1), Err(crate::Error::Poisoned)));
        assert_eq!(engine.counters().merge_records, 0);
    }
}
