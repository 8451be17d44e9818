//! Decisions: settle, abort, rollback and prune. All of them work on the Meta table; no page is
//! read.

use std::mem;

use coppice_types::{Epoch, Version};

use crate::{
    Engine, Error, PrepareId, Result, ShardState,
    files::values::RecordKind,
    meta::{
        Delta, MetaOp, NUMBER_MAX, VersionId,
        rows::{self, Block},
    },
};

impl Engine {
    /// Makes a staged version and those that it builds on permanent. Its descendants stay, all
    /// other staged versions are dropped. If the version is already decided, nothing happens.
    ///
    /// # Errors
    /// `StateMissing`.
    pub fn settle(&mut self, state: &ShardState) -> Result<()> {
        let row = self.find(state)?;
        if row.decided {
            return Ok(());
        }
        let mut line = vec![row.id];
        let mut parent = row.parent;
        while !self.meta.versions[&parent].decided {
            line.push(parent);
            parent = self.meta.versions[&parent].parent;
        }
        for id in line.iter().rev() {
            self.apply(MetaOp::Settle(*id));
        }
        assert_eq!(self.decided(), *state, "the version that was settled last is the newest decided one");
        let kept = self.meta.with_descendants(line[0]);
        let dropped = self.meta.staged.iter().copied().filter(|id| !kept.contains(id)).collect();
        self.drop_versions(dropped);
        assert_eq!(self.meta.staged.len(), kept.len() - 1, "only descendants of a settled version stay staged");
        Ok(())
    }

    /// Settles a version, then drops every other staged version.
    ///
    /// # Errors
    /// `StateMissing`; nothing is dropped then.
    pub fn adopt(&mut self, state: &ShardState) -> Result<()> {
        self.settle(state)?;
        self.abort_all_staged();
        Ok(())
    }

    /// Drops a staged version and its descendants. Returns their number.
    pub fn abort(&mut self, version: Version, prepare_id: PrepareId) -> usize {
        let named = |id: &&VersionId| {
            let record = &self.meta.versions[*id];
            record.stamp.version == version && record.prepare_id == prepare_id
        };
        let Some(id) = self.meta.staged.iter().find(named).copied() else { return 0 };
        let family = self.meta.with_descendants(id);
        let count = family.len();
        self.drop_versions(family);
        assert!(!self.meta.versions.contains_key(&id), "an aborted version is gone");
        count
    }

    /// Drops every staged version. Returns their number.
    pub fn abort_all_staged(&mut self) -> usize {
        let all: Vec<VersionId> = self.meta.staged.iter().copied().collect();
        let count = all.len();
        self.drop_versions(all);
        assert!(self.meta.staged.is_empty(), "an abort of all leaves no staged version");
        count
    }

    fn drop_versions(&mut self, mut ids: Vec<VersionId>) {
        // Children are dropped first.
        ids.sort_unstable();
        for id in ids.iter().rev() {
            self.apply_one_of_many(MetaOp::DropVersion(*id));
        }
        self.forget_dropped();
        self.merges_lost = true;
        if !ids.is_empty() {
            self.measure_waiting();
        }
    }

    /// Drops merges that no version can install any more. The cost grows with the data. So the
    /// calls that drop versions leave it to the next step of a merge or the next writes.
    pub(crate) fn drop_lost_merges(&mut self) {
        if !mem::take(&mut self.merges_lost) {
            return;
        }
        let merges = self.meta.needless_merges();
        for id in &merges {
            self.apply_one_of_many(MetaOp::DropMerge(*id));
        }
        let meta = &self.meta;
        let tips = || meta.staged.iter().map(|id| &meta.versions[id]).chain([meta.tip()]);
        let lost = self.merge.take_if(|task| !tips().any(|tip| task.stands_in(&tip.trees)));
        if let Some(task) = &lost {
            self.meta.discard_all(&task.delta);
        }
        if !merges.is_empty() || lost.is_some() {
            self.forget_dropped();
            self.measure_waiting();
        }
    }

    fn forget_dropped(&mut self) {
        let freed = self.meta.take_freed();
        self.store.forget_all_outside_caches(&freed);
    }

    /// Drops every staged version and every decided one above `to`, and returns the new tip. A
    /// frozen tree that was active there is active again, since versions list their trees.
    ///
    /// # Errors
    /// `Pruned` below the boundary, `Invalid` for numbers above the limit, `Poisoned`, `Corrupted`,
    /// or a failure of the storage; nothing is dropped then.
    pub fn rollback(&mut self, to: Version, epoch: Epoch) -> Result<ShardState> {
        self.check_usable()?;
        check_number(to.0.max(epoch.0))?;
        let target = self.decided_at(to)?;
        let blocks = self.take_back_blocks(to)?;
        let decided = self.meta.decided.range(to.next()..).map(|(_, id)| *id);
        let dropped = self.meta.staged.iter().copied().chain(decided).collect();
        self.drop_versions(dropped);
        blocks.into_iter().for_each(|drop| self.apply_one_of_many(drop));
        self.forget_dropped();
        self.apply(MetaOp::SetEpoch(epoch.max(self.meta.epoch)));
        assert!(self.meta.staged.is_empty(), "a rollback leaves no staged version");
        assert!(self.meta.epoch >= epoch, "epochs ascend");
        assert_eq!(self.decided(), target, "a rollback ends at its target");
        Ok(target)
    }

    /// Drops the decided versions below the newest one at or below `before`. Staged versions stay.
    ///
    /// # Errors
    /// `Invalid` for a number above the limit, `Poisoned` after a failed superblock write,
    /// `Corrupted`, or a failure of the storage; nothing is dropped then.
    pub fn prune(&mut self, before: Version) -> Result<()> {
        self.check_usable()?;
        check_number(before.0)?;
        if before > self.meta.boundary {
            self.prune_blocks(before)?;
            self.apply(MetaOp::Prune(before));
            assert_eq!(self.meta.boundary, before, "a prune moves the boundary to its version");
        }
        Ok(())
    }
}

impl Engine {
    /// Unfolds the block that a rollback ends within. Returns the operations that drop the blocks
    /// above, which follow the drops of younger versions. All blocks are read before anything is
    /// changed.
    fn take_back_blocks(&mut self, to: Version) -> Result<Vec<MetaOp>> {
        let (whole, within) = self.meta.blocks_to_roll_back(to);
        let drop = |block: &Block| {
            let rows = self.store.read_rows(block)?;
            Ok(MetaOp::DropBlock(block.first.version, rows::sum_of(&rows, false)))
        };
        let drops = whole.into_iter().map(drop).collect::<Result<_>>()?;
        if let Some(within) = within {
            let rows = self.store.read_rows(within)?;
            self.apply_one_of_many(MetaOp::Unfold(rows));
        }
        Ok(drops)
    }

    /// Drops the blocks below a boundary, and unfolds the one that the boundary is in. All blocks
    /// are read before anything is changed.
    fn prune_blocks(&mut self, before: Version) -> Result<()> {
        let (whole, within) = self.meta.blocks_to_prune(before);
        let prune = |block: &Block| {
            let rows = self.store.read_rows(block)?;
            Ok(MetaOp::PruneBlock(block.first.version, rows::sum_of(&rows, true)))
        };
        let mut operations = whole.into_iter().map(prune).collect::<Result<Vec<_>>>()?;
        if let Some(within) = within {
            operations.push(MetaOp::Unfold(self.store.read_rows(within)?));
        }
        operations.into_iter().for_each(|operation| self.apply_one_of_many(operation));
        Ok(())
    }

    /// Folds rows of old versions while more than enough are in the table. A flush does this before
    /// it takes what it writes, so blocks and the operations that name them are durable together.
    pub(super) fn fold_rows(&mut self) {
        let kept = self.options.rows_held_min;
        let count = rows::BLOCK_ROWS_MAX.min(kept);
        while let Some(rows) = self.meta.rows_to_fold(kept, count) {
            let (first, last) = (rows[0].id, rows[rows.len() - 1].id);
            let content = rows::encode_rows(&rows);
            let at = self.store.add_blob(&mut self.meta, &mut Delta::default(), RecordKind::Rows, &content);
            self.apply_one_of_many(MetaOp::Fold { first, last, at });
        }
    }
}

/// Checks that an epoch or version is below the limit of the Meta table.
pub(super) fn check_number(number: u64) -> Result<()> {
    if number < NUMBER_MAX { Ok(()) } else { Err(Error::Invalid("a number of 2^62 or more")) }
}

#[cfg(test)]
mod tests {
    use coppice_env::SimStorage;

    use super::*;
    use crate::testing::{commit, create, delete, flush, prepare_id, put, small, stage_on, used};

    /// A decided version 1, version 2 staged on it, version 3 staged on that, and a sibling of
    /// version 2.
    fn family() -> (Engine, [ShardState; 4]) {
        let mut engine = create(&SimStorage::new(), small());
        commit(&mut engine, 1, vec![put("a", 100)]);
        let base = engine.decided();
        let parent = stage_on(&mut engine, base, 2, 20, &[put("a", 102)]).expect("it follows");
        let child = stage_on(&mut engine, parent, 3, 30, &[put("a", 103)]).expect("it follows");
        let sibling = stage_on(&mut engine, base, 2, 21, &[put("b", 104)]).expect("it follows");
        (engine, [base, parent, child, sibling])
    }

    fn staged(engine: &Engine) -> Vec<ShardState> {
        engine.staged().iter().map(|info| info.state).collect()
    }

    #[test]
    fn a_settled_version_settles_its_base_and_drops_its_siblings() {
        let (mut engine, [_, parent, child, sibling]) = family();
        engine.settle(&child).expect("it is staged");
        assert_eq!(engine.decided(), child);
        assert_eq!(engine.decided_at(Version(2)).expect("it is kept"), parent);
        assert!(staged(&engine).is_empty() && !engine.has(&sibling).expect("readable"));
    }

    #[test]
    fn what_is_staged_on_a_settled_version_stays_staged() {
        let (mut engine, [_, parent, child, _]) = family();
        engine.settle(&parent).expect("it is staged");
        assert_eq!((engine.decided(), staged(&engine)), (parent, vec![child]));
    }

    #[test]
    fn settling_a_decided_version_changes_nothing() {
        let (mut engine, [base, parent, child, sibling]) = family();
        engine.settle(&base).expect("it is decided");
        assert_eq!((engine.decided(), staged(&engine)), (base, vec![parent, child, sibling]));
    }

    #[test]
    fn settling_or_adopting_an_unknown_version_drops_nothing() {
        let (mut engine, [base, parent, ..]) = family();
        let unknown = ShardState { version: Version(9), ..parent };
        assert!(matches!(engine.settle(&unknown), Err(Error::StateMissing(state)) if state == unknown));
        assert!(matches!(engine.adopt(&unknown), Err(Error::StateMissing(state)) if state == unknown));
        assert_eq!((engine.decided(), engine.staged().len()), (base, 3));
    }

    #[test]
    fn an_adopted_version_drops_even_what_is_staged_on_it() {
        let (mut engine, [_, parent, ..]) = family();
        engine.adopt(&parent).expect("it is staged");
        assert_eq!((engine.decided(), staged(&engine)), (parent, vec![]));
    }

    #[test]
    fn a_staged_version_is_gone_after_its_abort_with_what_was_staged_on_it() {
        let (mut engine, [_, parent, child, sibling]) = family();
        assert_eq!(engine.abort(Version(2), prepare_id(20)), 2);
        assert_eq!(staged(&engine), [sibling]);
        assert!(!engine.has(&parent).expect("readable") && !engine.has(&child).expect("readable"));
    }

    #[test]
    fn an_abort_needs_both_the_version_and_the_prepare_id() {
        let (mut engine, _) = family();
        assert_eq!(engine.abort(Version(2), prepare_id(30)), 0);
        assert_eq!(engine.abort(Version(3), prepare_id(20)), 0);
        assert_eq!(engine.abort(Version(1), prepare_id(1)), 0, "it is decided");
        assert_eq!(engine.staged().len(), 3);
    }

    #[test]
    fn an_abort_frees_exactly_what_its_versions_allocated() {
        for flushed in [false, true] {
            let mut engine = create(&SimStorage::new(), small());
            commit(&mut engine, 1, vec![put("a", 100)]);
            let (base, before) = (engine.decided(), used(&engine));
            for (version, attempt) in [(2, 1), (2, 2)] {
                stage_on(&mut engine, base, version, attempt, &[put("a", 100), put("b", 5)]).expect("it follows");
            }
            if flushed {
                flush(&mut engine, 1);
            }
            assert!(used(&engine) > before);
            assert_eq!(engine.abort_all_staged(), 2);
            assert_eq!(used(&engine), before, "flushed: {flushed}");
        }
    }

    #[test]
    fn a_rollback_drops_later_and_staged_versions_and_what_they_allocated() {
        let mut engine = create(&SimStorage::new(), small());
        commit(&mut engine, 1, vec![put("a", 100), put("b", 101)]);
        let (target, before) = (engine.decided(), used(&engine));
        commit(&mut engine, 2, vec![put("a", 102)]);
        commit(&mut engine, 3, vec![delete("b")]);
        let tip = engine.decided();
        stage_on(&mut engine, tip, 4, 1, &[put("c", 103)]).expect("it follows");
        assert_eq!(engine.rollback(Version(1), Epoch(1)).expect("it is kept"), target);
        assert_eq!((engine.decided(), engine.epoch(), engine.staged().len()), (target, Epoch(1), 0));
        assert_eq!(used(&engine), before);
        let record = engine.view(&target).expect("it is decided").get(b"b", true).expect("sound pages");
        assert_eq!(record.and_then(|record| record.value), Some(vec![101; 101]));
    }

    #[test]
    fn a_rollback_makes_a_frozen_tree_active_again() {
        let mut engine = create(&SimStorage::new(), small());
        commit(&mut engine, 1, crate::testing::puts(0..8, 5));
        commit(&mut engine, 2, vec![put("z", 5)]);
        assert_eq!(engine.shape(&engine.decided()).expect("decided").entries, [1, 8]);
        engine.rollback(Version(1), Epoch(1)).expect("it is kept");
        assert_eq!(engine.shape(&engine.decided()).expect("decided").entries, [8]);
        let base = engine.decided();
        let state = stage_on(&mut engine, base, 2, 9, &[put("y", 5)]).expect("it follows");
        assert_eq!(engine.shape(&state).expect("staged").entries, [1, 8]);
    }

    #[test]
    fn a_rollback_below_the_boundary_is_refused_and_drops_nothing() {
        let (mut engine, [base, ..]) = family();
        engine.prune(Version(1)).expect("usable");
        let refused = engine.rollback(Version(0), Epoch(7));
        assert!(matches!(refused, Err(Error::Pruned { boundary: Version(1) })));
        assert_eq!((engine.decided(), engine.staged().len(), engine.epoch()), (base, 3, Epoch(0)));
    }

    #[test]
    fn the_epoch_of_rollbacks_never_goes_down() {
        let (mut engine, _) = family();
        engine.rollback(Version(1), Epoch(5)).expect("it is kept");
        engine.rollback(Version(1), Epoch(2)).expect("it is kept");
        assert_eq!(engine.epoch(), Epoch(5));
    }

    #[test]
    fn a_prune_frees_exactly_what_only_older_versions_had() {
        let mut engine = create(&SimStorage::new(), small());
        commit(&mut engine, 1, vec![put("a", 100)]);
        let one = used(&engine);
        commit(&mut engine, 2, vec![put("a", 100)]);
        let tip = engine.decided();
        let staged = stage_on(&mut engine, tip, 3, 1, &[put("a", 100)]).expect("it follows");
        engine.prune(Version(2)).expect("usable");
        assert_eq!(used(&engine).1, 2 * one.1, "the tip's value and the staged one's");
        assert!(engine.has(&staged).expect("readable"));
        engine.abort_all_staged();
        assert_eq!(used(&engine), one);
    }

    #[test]
    fn a_prune_between_two_versions_keeps_the_one_below() {
        let mut engine = create(&SimStorage::new(), small());
        commit(&mut engine, 2, vec![put("a", 5)]);
        let kept = engine.decided();
        commit(&mut engine, 7, vec![put("a", 6)]);
        engine.prune(Version(4)).expect("usable");
        assert_eq!(engine.boundary(), Version(4));
        assert_eq!(engine.decided_at(Version(4)).expect("it is kept"), kept);
        assert!(matches!(engine.decided_at(Version(3)), Err(Error::Pruned { boundary: Version(4) })));
        assert_eq!(engine.disk_usage().expect("readable").versions, 2);
    }

    #[test]
    fn a_prune_at_or_below_the_boundary_changes_nothing() {
        let (mut engine, [base, ..]) = family();
        engine.prune(Version(1)).expect("usable");
        let before = used(&engine);
        (0..=1).for_each(|version| engine.prune(Version(version)).expect("usable"));
        assert_eq!((engine.boundary(), used(&engine), engine.decided()), (Version(1), before, base));
    }

    #[test]
    fn numbers_from_the_limit_on_are_refused() {
        assert!(check_number(NUMBER_MAX - 1).is_ok());
        assert!(matches!(check_number(NUMBER_MAX), Err(Error::Invalid(_))));
    }
}
